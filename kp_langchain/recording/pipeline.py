"""What happens to the draft of a finished run: judge, score, gate, deliver.

It may wait: for the embedding model, for verifiers, for functions of the user.
"""

from __future__ import annotations

import os
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING
from uuid import UUID

from kp_langchain._forksafe import ForkSafeLock, allow_forks
from kp_langchain._logging import warn_once
from kp_langchain.calibration.features import features_of
from kp_langchain.embedding import local_models
from kp_langchain.errors import ScorerError, VerdictError
from kp_langchain.gate import ScoredTrace, decide
from kp_langchain.gate.check import GateCheck, check
from kp_langchain.novelty_sources import SCORER_FAILED, STILL_LOADING, is_measured
from kp_langchain.recording import worker
from kp_langchain.recording.drafter import OUTCOME_EVENT
from kp_langchain.recording.outcome import choose_outcome
from kp_langchain.recording.recent_runs import RecentRuns
from kp_langchain.recording.time_limit import name_of
from kp_langchain.recording.trace_entry import entry_of
from kp_langchain.recording.verdict_reader import read_verdict
from kp_langchain.schema import ReasoningTrace
from kp_langchain.scoring.breakdown import ScoreBreakdown
from kp_langchain.scoring.changed_outcome import with_outcome
from kp_langchain.scoring.dimensions import TraceShape, outcome_confidence
from kp_langchain.scoring.scorer import Scorer
from kp_langchain.verdict import Verdict, first_decisive

if TYPE_CHECKING:
    from kp_langchain.calibration.model import ConfidenceModel
    from kp_langchain.domain_policy import DomainPolicy
    from kp_langchain.recording.draft import Draft
    from kp_langchain.recording.drafter import Drafter, Judge
    from kp_langchain.recording.kept_memory import KeptMemory
    from kp_langchain.recording.run_record import RunRecord
    from kp_langchain.recording.sinks import Sink
    from kp_langchain.recording.store_writer import StoreWriter
    from kp_langchain.recording.user_functions import UserFunctions
    from kp_langchain.recording.verifiers import Verifiers
    from kp_langchain.scoring.novelty_memory import MemoryEntry

OUTCOME_FUNCTION = "outcome function"
_LONGEST_WAIT_FOR_MODEL_S = 30.0

# Traces of one run, as several handlers recorded it: they are one experience, so none of them is
# a precedent for the others.
_siblings: OrderedDict[UUID, frozenset[str]] = OrderedDict()
_siblings_lock = ForkSafeLock()
_SIBLINGS_KEPT = 256

_SCORERS_KEPT = 16
_model_awaited_until: dict[tuple[int, int], float] = {}


_novelty_sources: Counter[str] = Counter()  # of the runs that this process scored
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_novelty_sources.clear)


def warn_of_unmeasured(_: float = 0.0) -> None:
    """Warn, once, that novelty was not measured in a process that ended before its model loaded.

    Any other reason has been logged when it occurred.
    """
    counts, models = Counter(_novelty_sources), list(local_models.loading.values())
    if counts[STILL_LOADING] and not any(map(is_measured, counts)):
        warn_once(
            "novelty never measured",
            "novelty was measured in none of the %d runs that were scored, and is 0.5: %s%s. Call "
            "handler.flush() before the program ends; kp-langchain doctor says whether the model "
            "can be loaded, and from where",
            counts.total(),
            ", ".join(f"{source} ({number})" for source, number in counts.most_common()),
            f", {' and '.join(models)}" if models else "",
        )


worker.at_finish["novelty"] = warn_of_unmeasured


@dataclass(frozen=True, slots=True)
class Pipeline:
    """Scores the drafts of one handler's runs, and delivers them to its sinks.

    Attributes:
        drafter: Made the drafts; redacts the notes of verdicts.
        scorer: The scorer.
        foreign_scorer: Whether the scorer, or its embedder, is the user's own.
        verifiers: Judge runs that nobody else called a success or a failure, if any.
        functions: Calls the user's functions; has the counters of run outcomes.
        writer: Writes drafts into the store, and knows its confidence models; None without a store.
        sinks: What receives each scored run.
        recent_runs: What the gate saw of the last runs.
        kept: The kept runs that new ones are compared with.
    """

    drafter: Drafter
    scorer: Scorer
    foreign_scorer: bool
    verifiers: Verifiers | None
    functions: UserFunctions
    writer: StoreWriter | None
    sinks: tuple[Sink, ...]
    recent_runs: RecentRuns
    kept: KeptMemory

    def draft(self, record: RunRecord) -> tuple[Draft, Judge | None] | None:
        """Make the redacted draft of a run and have it written; None if there is none (counted)."""
        pair = self.drafter.draft(record)
        if pair is not None:
            draft, _ = pair
            _add_sibling(draft.run_id, draft.trace.id)
            if self.writer is not None:
                self.writer.write_draft(draft)
        return pair

    def score(
        self, draft: Draft, judge: Judge | None = None, *, is_adopted: bool = False
    ) -> ScoredTrace | None:
        """Score a draft; None if that failed (and was counted).

        Args:
            draft: The run.
            judge: The outcome function, with the run that it is to judge.
            is_adopted: Whether it is a run of an earlier process, which counted it as its own.
        """
        if is_adopted:  # it may have been remembered before its process ended
            _add_sibling(draft.run_id, draft.trace.id)
        try:
            scored = self._score(draft, judge)
        except BaseException as error:  # noqa: BLE001 - whatever it is, the next run must go on
            self.functions.report_failure("failed", "a finished run cannot be scored", error)
            return None
        if not is_adopted:
            self.functions.counters.add("scored")
            self.functions.counters.add(scored.decision)
        if scored.breakdown.over_budget:
            self.functions.counters.add("over_budget")
        return scored

    def deliver(self, scored: ScoredTrace, *, to_user_code: bool) -> None:
        """Give a run to the sinks of one kind, each of which fails alone.

        Args:
            scored: The run, scored or scored again.
            to_user_code: Whether to the sinks that call functions of the user, which may take
                their time, or to the others.
        """
        for sink in self.sinks:
            if sink.calls_user_code is not to_user_code:
                continue
            try:
                sink.receive(scored)
            except BaseException as error:  # noqa: BLE001 - the next sink must get it all the same
                self.functions.report_failure(sink.error_counter, f"{sink.name} failed", error)

    def _score(self, draft: Draft, judge: Judge | None) -> ScoredTrace:
        policy = draft.policy
        trace = _unscored_copy(draft.trace)  # the draft may be written meanwhile
        verdicts = self._verdicts(draft, judge)
        features = features_of(
            trace,
            looked_successful=draft.looked_successful,
            proves_failure=draft.proves_failure,
        )
        model = self._model(trace.metadata.task_domain)
        breakdown, entry = self._rate(draft, trace, verdicts, model, features)
        _novelty_sources[breakdown.novelty_source] += 1
        gate_check = self._check(policy, trace.metadata.task_domain, breakdown, model)
        may_pass = not draft.withheld and entry is not None
        decision = decide(gate_check.value, gate_check.threshold) if may_pass else "below_threshold"
        scored = ScoredTrace(
            trace=trace,
            breakdown=breakdown,
            decision=decision,
            threshold=gate_check.threshold,
            run_id=draft.run_id,
            # A withheld trace can never be contributed, so its body is not kept to await a verdict.
            keep_body=policy.keep == "all"
            or decision == "contributed"
            or (policy.keep_days > 0 and not draft.withheld),
            keep_days=None if policy.keep == "all" else policy.keep_days,
            task=draft.task,
            features=features,
            verdict=self._decisive(verdicts, draft),
            withheld=draft.withheld,
            keys=draft.keys,
            dropped=draft.dropped,
            external_traces=draft.external_traces,
            shown=draft.shown,
            registry=draft.registry,
            gate=gate_check.gate,
            pass_rate=gate_check.pass_rate,
            twin_similarity=policy.twin_similarity,
            entry=entry,
        )
        return self._admit(scored) if may_pass else scored

    def _admit(self, scored: ScoredTrace) -> ScoredTrace:
        """Hold a run against the kept ones, and have it count for the pass rate."""
        scored = self.kept.admit(scored)
        self.recent_runs.add(scored)
        return scored

    def _rate(
        self,
        draft: Draft,
        trace: ReasoningTrace,
        verdicts: list[Verdict],
        model: ConfidenceModel | None,
        features: Mapping[str, float],
    ) -> tuple[ScoreBreakdown, MemoryEntry | None]:
        """Set success, confidence and score of a trace.

        Returns:
            The breakdown, with the worth if there is a model; and what others are compared with of
            the trace, None if the user's scorer failed.
        """
        estimate = None
        if model is not None:
            estimate = Verdict(confidence=model.confidence(features), source=model.source)
        outcome = choose_outcome(
            draft.looked_successful,
            verdicts=verdicts,
            structured=draft.structured,
            token_probability=draft.token_probability,
            model_verdict=estimate,
            proves_failure=draft.proves_failure,
        )
        success, confidence = bool(outcome.success), outcome.confidence or 0.0
        trace.metadata.success, trace.outcome.confidence = success, confidence
        breakdown, entry = self._breakdown(draft, trace)
        if success or draft.proves_failure or model is None or outcome.source != model.source:
            breakdown = breakdown.with_confidence_from(outcome.source, confidence, success=success)
        else:
            breakdown = _with_estimate(breakdown, outcome, trace)
        if estimate is not None and estimate.confidence is not None:
            calibrated = breakdown.outcome_confidence.value
            if not verdicts:  # the run may state a confidence of its own, which nothing has tested
                calibrated = outcome_confidence(
                    estimate.confidence, success=not draft.proves_failure
                )
            breakdown = breakdown.with_worth(calibrated)
        trace.metadata.quality_score = breakdown.total
        return breakdown, entry

    def _check(
        self,
        policy: DomainPolicy,
        domain: str,
        breakdown: ScoreBreakdown,
        model: ConfidenceModel | None,
    ) -> GateCheck:
        with allow_forks():  # the recent runs may have to be read
            return check(
                breakdown,
                domain,
                policy,
                recent=lambda gate: self.recent_runs.of(domain, gate, model),
                base_rate=0.0 if model is None else model.base_rate,
            )

    def _breakdown(
        self, draft: Draft, trace: ReasoningTrace
    ) -> tuple[ScoreBreakdown, MemoryEntry | None]:
        """Return the score of a trace, and what others are compared with of it.

        The latter is None if the user's scorer failed.
        """
        # What is left of a trace after failed redaction is nothing to remember or to contribute.
        assess = self.scorer.score if draft.withheld else self.scorer.evaluate
        # A run that was shown a trace is not less novel for having followed it.
        shown = {one.trace_id for one in draft.shown if not one.held_out}
        ignore = _siblings.get(draft.run_id, frozenset()) | shown
        assess = partial(assess, trace, weights=draft.policy.weights, ignore=ignore)
        both = partial(_breakdown_and_entry, assess, self.scorer, trace)
        self._await_model()
        if not self.foreign_scorer:
            return both()
        try:
            return self.functions.call(both)
        except BaseException as error:  # noqa: BLE001 - the caller's scorer or embedder
            name = name_of(self.scorer)
            self.functions.report_failure("scorer_errors", f"the scorer ({name}) failed", error)
            breakdown = Scorer(embedder=None).score(trace, weights=draft.policy.weights)
            source = f"{SCORER_FAILED}: {type(error).__name__}"
            return breakdown.with_unmeasured_novelty(source), None

    def _await_model(self) -> None:
        """Wait for a model that is loading: the run is on disk, and the agent does not wait."""
        scorer: object = self.scorer
        if not isinstance(scorer, Scorer):  # the caller's own takes what time it needs
            return
        # The 30 s begin with the first run, and once only: a download may hang.
        process = os.getpid(), id(scorer)
        now = time.monotonic()
        if len(_model_awaited_until) >= _SCORERS_KEPT:
            _model_awaited_until.clear()
        until = _model_awaited_until.setdefault(process, now + _LONGEST_WAIT_FOR_MODEL_S)
        if until > now:
            Scorer.wait_until_ready(scorer, until - now)

    def _model(self, domain: str) -> ConfidenceModel | None:
        """Return the domain's confidence model, if there is one that can be used."""
        if self.writer is None:
            return None
        with allow_forks():
            return self.writer.confidence.model(domain)

    def _verdicts(self, draft: Draft, judge: Judge | None) -> list[Verdict]:
        """Return the verdicts reported earlier, the outcome function's, and verifiers', best first.

        Verifiers are only asked if nobody else has called the run a success or a failure.
        """
        verdicts = self._stated(draft, judge)
        # A run that could not be redacted has no text left to judge.
        if self.verifiers is not None and not draft.withheld and first_decisive(verdicts) is None:
            verdicts += self.verifiers.ask(draft, self.functions.lane)
        return verdicts

    def _stated(self, draft: Draft, judge: Judge | None) -> list[Verdict]:
        """Return the verdicts reported earlier and the outcome function's, best first."""
        earlier = [] if draft.reported is None else [draft.reported]
        if judge is None:
            return earlier
        try:
            # What it returns may be a mapping of its own kind, which takes its time, too.
            verdict = self.functions.call(lambda: read_verdict(judge(), OUTCOME_FUNCTION))
        except VerdictError as error:
            what = f"the verdict of the {OUTCOME_FUNCTION} is invalid"
            self.functions.report_failure("outcome_errors", what, error)
            return earlier
        except BaseException as error:  # noqa: BLE001 - the user's function
            what = f"the outcome function ({name_of(self.drafter.outcome)}) failed"
            self.functions.report_failure("outcome_errors", what, error)
            return earlier
        if verdict is None:
            return earlier
        # `report_outcome` outranks the function, whether it is called before or after the end.
        if draft.reported is not None and draft.reported.source != OUTCOME_EVENT:
            return [draft.reported, verdict]
        return [verdict, *earlier]

    def _decisive(self, verdicts: list[Verdict], draft: Draft) -> Verdict | None:
        """Return the first verdict that calls the run a success or a failure, its note redacted."""
        verdict = first_decisive(verdicts)
        if verdict is None or verdict is draft.reported:  # that one is redacted already
            return verdict
        return self.drafter.redact_note(verdict, str(draft.run_id), draft.policy.privacy_level)


def _add_sibling(run_id: UUID, trace_id: str) -> None:
    with _siblings_lock:
        _siblings[run_id] = _siblings.get(run_id, frozenset()) | {trace_id}
        while len(_siblings) > _SIBLINGS_KEPT:
            _siblings.popitem(last=False)


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
    return breakdown, entry_of(scorer, trace)


def _with_estimate(
    breakdown: ScoreBreakdown, estimate: Verdict, trace: ReasoningTrace
) -> ScoreBreakdown:
    """Return the score of a run that looks like a failure, its confidence a model's estimate."""
    return with_outcome(
        breakdown,
        success=False,
        confidence=estimate.confidence or 0.0,
        source=estimate.source,
        shape=TraceShape.of(trace),
        lowers_confidence=False,
    )


def _unscored_copy(trace: ReasoningTrace) -> ReasoningTrace:
    """Return a copy in which success, confidence and score can be set."""
    parts = {"metadata": trace.metadata.model_copy(), "outcome": trace.outcome.model_copy()}
    return trace.model_copy(update=parts)
