"""Judges one run: asks for its outcome, scores it, and has the gate decide on it.

`HandlerContext` is what one handler adds to the engine that its runs go through.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Set
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING

from kp_langchain._logging import warn_once
from kp_langchain.calibration.features import basic_features, features_of
from kp_langchain.errors import ScorerError, VerdictError
from kp_langchain.gate import Rescored
from kp_langchain.gate.check import check
from kp_langchain.gate.judge import explain_outcome, judge, outcome_of, trace_with_outcome
from kp_langchain.novelty_sources import SCORER_FAILED, STILL_LOADING
from kp_langchain.recording.outcome import read_verdict
from kp_langchain.recording.run_builder import OUTCOME_EVENT
from kp_langchain.recording.user_calls import name_of
from kp_langchain.scoring.breakdown import ScoreBreakdown
from kp_langchain.scoring.novelty_memory import MemoryEntry
from kp_langchain.scoring.repeats import embedded_text, fingerprint
from kp_langchain.scoring.scorer import Scorer
from kp_langchain.store.run_log import log_rescored, log_scored
from kp_langchain.verdict import Verdict, first_decisive

if TYPE_CHECKING:
    from kp_langchain.gate import ScoredTrace
    from kp_langchain.gate.run import Run
    from kp_langchain.recording.bounds import Counters
    from kp_langchain.recording.outcome import Verifiers
    from kp_langchain.recording.run_builder import AskOutcome, RunBuilder
    from kp_langchain.recording.score_receivers import ScoreSender
    from kp_langchain.recording.user_calls import UserFunctions
    from kp_langchain.recording.windows import Windows
    from kp_langchain.registry.sender import Sender
    from kp_langchain.schema import ReasoningTrace
    from kp_langchain.store import TraceStore


@dataclass(slots=True, eq=False)
class HandlerContext:
    """What is needed to judge and announce the runs of one handler.

    Attributes:
        store: Where runs are kept; None to keep nothing.
        builder: Makes the redacted runs, and redacts the notes of verdicts.
        scorer: The scorer.
        is_foreign_scorer: Whether the scorer, or its embedder, is the user's own.
        windows: What its runs are judged beside.
        verifiers: Judge runs that nobody else called a success or a failure, if any.
        functions: Calls the user's functions; has the counters of run outcomes.
        sender: Sends to the registry; None without one.
        score_senders: Send the scores of runs to other tools.
        on_scored: The user's function that is called with each judged run, if any.
        observers: Functions that are called with each judged run and must not wait.
        last: The newest judged run.
    """

    store: TraceStore | None
    builder: RunBuilder
    scorer: Scorer
    is_foreign_scorer: bool
    windows: Windows
    verifiers: Verifiers | None
    functions: UserFunctions
    sender: Sender | None
    score_senders: tuple[ScoreSender, ...]
    on_scored: Callable[[ScoredTrace], object] | None
    observers: list[Callable[[ScoredTrace], object]] = field(default_factory=list)
    last: ScoredTrace | None = None

    @property
    def counters(self) -> Counters:
        """The counters of run outcomes."""
        return self.functions.counters

    @property
    def judges_with_user_code(self) -> bool:
        """Whether functions of the user are called to judge a run."""
        return (
            self.is_foreign_scorer or self.verifiers is not None or self.builder.outcome is not None
        )

    @property
    def has_user_code(self) -> bool:
        """Whether any function of the user is called for a run."""
        return (
            self.judges_with_user_code
            or self.on_scored is not None
            or self.builder.redactor is not None
        )

    @property
    def is_scorer_ready(self) -> bool:
        """Whether no run has to wait for an embedding model that is loading."""
        return self.wait_for_scorer(0.0)

    @property
    def tools(self) -> tuple[str, ...]:
        """The names of the tools that are sent the scores of runs."""
        return tuple(sender.tool for sender in self.score_senders)

    def wait_for_scorer(self, timeout_s: float) -> bool:
        """Wait for a model that is loading: the run is on disk, and the agent does not wait.

        Args:
            timeout_s: Seconds to wait at most.

        Returns:
            Whether nothing is loading any more. The caller's own scorer takes what time it needs.
        """
        scorer: object = self.scorer
        return not isinstance(scorer, Scorer) or Scorer.wait_until_ready(scorer, timeout_s)

    def for_taken_over(self) -> HandlerContext:
        """Return it as it judges runs of processes that have ended: without the user's code."""
        return replace(
            self,
            builder=replace(self.builder, outcome=None),
            scorer=self.windows.scorer(),
            is_foreign_scorer=False,
            verifiers=None,
            on_scored=None,
        )

    def count(self, scored: ScoredTrace) -> None:
        """Count a judged run by its fate; one of another process was counted there."""
        if not scored.is_taken_over:
            self.counters.add("scored")
            self.counters.add(scored.decision)
        if scored.breakdown.over_budget:
            self.counters.add("over_budget")

    def announce(self, scored: ScoredTrace) -> None:
        """Log a judged run, and give it to observers, each of which may fail."""
        self._try("the log", partial(log_scored, scored))
        self._announce_to_observers(scored)
        for tool in self.tools:
            if tool not in scored.external_traces:
                self.counters.add("scores_without_trace")
                warn_once(
                    f"no trace:{tool}",
                    "%s has no trace of a run, or its id of the run cannot be known, so the score "
                    "is not sent there; counted under 'scores_without_trace'. Its tracer must be "
                    "attached to the run's root",
                    tool,
                )

    def announce_rescored(self, scored: ScoredTrace) -> bool:
        """Announce a run that was judged again; return whether the verdict changed it."""
        change = Rescored.of(scored)
        if not change.changed or scored.verdict is None:
            return False
        self._try("the log", partial(log_rescored, change, scored.verdict.source))
        self._announce_to_observers(scored)
        return True

    def _announce_to_observers(self, scored: ScoredTrace) -> None:
        for observer in self.observers:
            self._try("an observer of scored runs", partial(observer, scored))

    def _try(self, name: str, receive: Callable[[], object]) -> None:
        try:
            receive()
        except BaseException as error:  # noqa: BLE001 - the next one must get it all the same
            self.functions.report_failure("on_scored_errors", f"{name} failed", error)

    def call_on_scored(self, scored: ScoredTrace) -> None:
        """Call the user's function with a judged run; from a job of the lane."""
        on_scored = self.on_scored
        if on_scored is not None:
            call = partial(self.functions.call, partial(on_scored, scored))
            self._try(f"on_scored ({name_of(on_scored)})", call)

    def wake_senders(self) -> None:
        """Have what was written sent to the registry and to other tools."""
        if self.sender is not None:
            self.sender.loop.wake()
        for sender in self.score_senders:
            sender.wake(self.counters)


OUTCOME_FUNCTION = "outcome function"


def judge_run(
    context: HandlerContext, run: Run, ask_outcome: AskOutcome | None, siblings: Set[str]
) -> ScoredTrace:
    """Return a run as it is judged, and remember it in the windows.

    Args:
        context: The handler that recorded it.
        run: The run.
        ask_outcome: The outcome function with the run that it is to judge, if there is one.
        siblings: The ids of the traces of the same run, as other handlers recorded it. They are
            one experience, so they are no precedent for it.
    """
    windows = context.windows
    verdicts = _verdicts(context, run, ask_outcome)
    decisive = first_decisive(verdicts)
    if decisive is not None and decisive is not run.reported:  # that one is redacted already
        decisive = context.builder.redact_note(decisive, str(run.run_id), run.policy.privacy_level)
    domain = run.trace.metadata.task_domain
    model = None if windows.models is None else windows.models.model(domain)
    policy = run.policy
    keeps_body = policy.keep == "all" or (policy.keep_days > 0 and not run.withheld)
    # All features only where something needs them now, or the trace is not kept for later.
    needs_all = model is not None or decisive is not None or not keeps_body
    features = (features_of if needs_all else basic_features)(
        run.trace,
        looked_successful=run.looked_successful,
        proves_failure=run.proves_failure,
    )
    estimate = None
    if model is not None:
        estimate = Verdict(confidence=model.confidence(features), source=model.source)
    outcome = outcome_of(run, verdicts, estimate)
    trace = trace_with_outcome(run.trace, outcome)
    breakdown, entry = _score(context, run, trace, siblings)
    breakdown = explain_outcome(breakdown, run, outcome, verdicts, estimate)
    trace.metadata.quality_score = breakdown.total
    if breakdown.novelty_source == STILL_LOADING:
        loading = context.scorer.loading if isinstance(context.scorer, Scorer) else None
        warn_once(
            "novelty not measured",
            "novelty of a run was not measured, and is 0.5, because its model is still loading%s. "
            "kp-langchain doctor says whether it can be loaded, and from where",
            "" if loading is None else f": {loading}",
        )
    gate_check = check(
        breakdown,
        domain,
        policy,
        recent=lambda gate: windows.recent_runs.of(domain, gate, model),
        base_rate=0.0 if model is None else model.base_rate,
    )
    scored = judge(
        run,
        trace,
        breakdown,
        gate_check,
        entry=entry,
        verdict=decisive,
        features=features,
        is_remembered=not run.withheld and windows.is_remembered_by(context.scorer),
    )
    if run.withheld or entry is None:
        return scored
    scored = windows.kept_memory.admit(scored)
    windows.recent_runs.add(scored)
    return scored


def _verdicts(context: HandlerContext, run: Run, ask_outcome: AskOutcome | None) -> list[Verdict]:
    """Return the verdicts reported earlier, the outcome function's, and verifiers', best first.

    Verifiers are only asked if nobody else has called the run a success or a failure.
    """
    verdicts = _stated(context, run, ask_outcome)
    # A run that could not be redacted has no text left to judge.
    if context.verifiers is not None and not run.withheld and first_decisive(verdicts) is None:
        verdicts += context.verifiers.ask(run)
    return verdicts


def _stated(context: HandlerContext, run: Run, ask_outcome: AskOutcome | None) -> list[Verdict]:
    """Return the verdicts reported earlier and the outcome function's, best first."""
    earlier = [] if run.reported is None else [run.reported]
    if ask_outcome is None:
        return earlier
    functions = context.functions
    try:
        # What it returns may be a mapping of its own kind, which takes its time, too.
        verdict = functions.call(lambda: read_verdict(ask_outcome(), OUTCOME_FUNCTION))
    except VerdictError as error:
        what = f"the verdict of the {OUTCOME_FUNCTION} is invalid"
        functions.report_failure("outcome_errors", what, error)
        return earlier
    except BaseException as error:  # noqa: BLE001 - the user's function
        what = f"the outcome function ({name_of(context.builder.outcome)}) failed"
        functions.report_failure("outcome_errors", what, error)
        return earlier
    if verdict is None:
        return earlier
    # `report_outcome` outranks the function, whether it is called before or after the end.
    if run.reported is not None and run.reported.source != OUTCOME_EVENT:
        return [run.reported, verdict]
    return [verdict, *earlier]


def _score(
    context: HandlerContext, run: Run, trace: ReasoningTrace, siblings: Set[str]
) -> tuple[ScoreBreakdown, MemoryEntry | None]:
    """Return the score of a trace, and what others are compared with of it.

    The latter is None if the user's scorer failed.
    """
    scorer = context.scorer
    # What is left of a trace after failed redaction is nothing to remember or to contribute.
    assess = scorer.score if run.withheld else scorer.evaluate
    # A run that was shown a trace is not less novel for having followed it.
    ignore = {one.trace_id for one in run.shown if not one.held_out} | siblings
    if run.is_taken_over:  # the process that died may have remembered it
        ignore.add(trace.id)
    assess = partial(assess, trace, weights=run.policy.weights, ignore=ignore)
    both = partial(_breakdown_and_entry, assess, scorer, trace)
    if not context.is_foreign_scorer:
        return both()
    try:
        return context.functions.call(both)
    except BaseException as error:  # noqa: BLE001 - the caller's scorer or embedder
        what = f"the scorer ({name_of(scorer)}) failed"
        context.functions.report_failure("scorer_errors", what, error)
        breakdown = Scorer(embedder=None).score(trace, weights=run.policy.weights)
        source = f"{SCORER_FAILED}: {type(error).__name__}"
        return breakdown.with_unmeasured_novelty(source), None


def _breakdown_and_entry(
    assess: Callable[[], object], scorer: object, trace: ReasoningTrace
) -> tuple[ScoreBreakdown, MemoryEntry]:
    """Score a trace; on one thread, so that its text is embedded once."""
    breakdown = assess()
    if not isinstance(breakdown, ScoreBreakdown):
        raise ScorerError(
            f"it returned a {type(breakdown).__name__}; return a ScoreBreakdown, as "
            "Scorer.evaluate does"
        )
    json.dumps(breakdown.to_dict())  # as the store will write it
    return breakdown, _entry_of(scorer, trace)


def _entry_of(scorer: object, trace: ReasoningTrace) -> MemoryEntry:
    """Return a trace's text and vector as others are compared with it.

    Args:
        scorer: The scorer that has just scored the trace, on this thread. One that is no `Scorer`
            has no vector that is known to be usable, so only the same text is recognised.
        trace: The trace.
    """
    if isinstance(scorer, Scorer):
        return scorer.entry(trace)
    return MemoryEntry(trace.id, fingerprint(embedded_text(trace)))
