"""What is done with one run, pause or verdict in an engine, stage by stage.

A run is built, recorded, judged, written and announced. Judging asks for its outcome, scores it,
and has the gate decide on it.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import replace
from functools import partial
from inspect import isawaitable
from itertools import islice
from typing import TYPE_CHECKING
from uuid import UUID

from kp_langchain._logging import warn_once
from kp_langchain.calibration.agreement import agreement_of
from kp_langchain.calibration.features import basic_features, features_of
from kp_langchain.calibration.flags import flags_of
from kp_langchain.errors import BusyError, ScorerError, VerdictError
from kp_langchain.gate.judge import (
    explain_outcome,
    judge,
    outcome_of,
    trace_with_outcome,
    with_worth,
)
from kp_langchain.novelty_sources import SCORER_FAILED, STILL_LOADING
from kp_langchain.recording.outcome import FinishedRun, Verifier, inside_verifier, read_verdict
from kp_langchain.recording.run_builder import (
    OUTCOME_EVENT,
    build_run,
    keep_paused,
    redact_note,
)
from kp_langchain.recording.task_runs import check_in, judge_earlier, task_key_of, task_run_of
from kp_langchain.recording.user_calls import name_of
from kp_langchain.scoring.breakdown import ScoreBreakdown
from kp_langchain.scoring.novelty_memory import MemoryEntry
from kp_langchain.scoring.repeats import embedded_text, fingerprint
from kp_langchain.scoring.scorer import Scorer
from kp_langchain.verdict import Verdict, first_decisive

if TYPE_CHECKING:
    from kp_langchain.calibration.agreement import Pair
    from kp_langchain.gate import ScoredTrace
    from kp_langchain.gate.run import Run
    from kp_langchain.recording.context import HandlerContext
    from kp_langchain.recording.run_builder import AskOutcome
    from kp_langchain.recording.store_writer import Item, Stage
    from kp_langchain.schema import ReasoningTrace

OUTCOME_FUNCTION = "outcome function"
_MOST_RUNS = 256
# Other handlers may record the same run. Novelty is not measured against their traces of it.
_traces_of_runs: dict[UUID, set[str]] = {}


def steps_of(item: Item, wait_for_scorer: Callable[[HandlerContext], None]) -> Iterator[Stage]:
    """Return the generator that does what is to be done of an item; see `engine`."""
    if item.kind == "run":
        return _run_steps(item, wait_for_scorer)
    return (_pause_steps if item.kind == "pause" else _verdict_steps)(item)


def _run_steps(item: Item, wait_for_scorer: Callable[[HandlerContext], None]) -> Iterator[Stage]:
    context = item.context
    if item.record is not None:
        if context.may_wait(item.record):
            yield "lane"
        built = build_run(context, item.record)
        item.record = None
        if built is None:
            context.counters.add("queued", -1)
            return
        item.run, item.ask_outcome = built
        del built  # else it keeps the user's own values
        yield "record"
    yield "judge"
    lane = context.lane
    # After those that are in it: runs of a handler keep their order.
    if context.judges_with_user_code or lane.runs or not context.wait_for_scorer():
        lane.runs += 1
        yield "lane"
        wait_for_scorer(context)
        _judge(item)
        yield "engine"
        lane.runs -= 1
    else:
        _judge(item)
    if item.run is not None and not item.run.is_taken_over:
        context.counters.add("queued", -1)
    if item.scored is not None:
        yield from _writing_steps(item)


def _verdict_steps(item: Item) -> Iterator[Stage]:
    context = item.context
    yield "earlier runs"
    if context.judges_with_user_code or context.redactor is not None:
        yield "lane"  # behind the run, which may still be on its way
    if item.verdict is not None:
        item.verdict = redact_note(context, item.verdict, item.verdict_on)
    context.counters.add("queued_verdicts", -1)
    yield from _writing_steps(item)


def _writing_steps(item: Item) -> Iterator[Stage]:
    """Write an item, and announce what changed; a run also while it cannot be written."""
    context = item.context
    item.waits_for_store = context.store is not None
    context.counters.add("waiting_to_store", int(item.waits_for_store))
    yield "write"
    if item.scored is not None:
        context.count(item.scored)
    if item.scored is not None and item.fate != "gone":
        scored = item.scored
        if item.fate != "written":
            item.scored = scored = replace(scored, stored=False)
        context.last = scored
        context.announce(scored)
        if context.options.on_scored is not None:
            yield "lane"
            context.call_on_scored(scored)
            yield "engine"
    if item.waits_for_store:
        item.let_go()
    while item.waits_for_store:
        yield "write"
    store, judged = context.store, item.scored
    if store is not None and judged is not None and item.fate == "written":
        item.changed_runs = [*item.changed_runs, *judge_earlier(context, store, judged)]
    # Only changed runs: else an `on_scored` that reports an outcome has no end.
    for scored in item.changed_runs:
        if context.announce_rescored(scored) and context.options.on_scored is not None:
            yield "lane"
            context.call_on_scored(scored)


def _judge(item: Item) -> None:
    run, ask_outcome = item.run, item.ask_outcome
    item.ask_outcome = None  # it has the run in the user's own values
    if run is None:
        return
    try:
        item.judged = judged = _judge_run(item.context, run, ask_outcome)
        item.scored = judged
        if not run.withheld and judged.entry is not None:
            window = item.context.windows.of(judged.trace.metadata.task_domain)
            item.scored = window.admit(judged)
            window.add(item.scored)
    except BaseException as error:  # noqa: BLE001 - whatever it is, the next run must go on
        what = "a finished run cannot be scored"
        item.context.counters.report_failure("failed", what, error)


def _pause_steps(item: Item) -> Iterator[Stage]:
    """Redact and keep what a paused run recorded, for a run that resumes it."""
    yield "lane"
    if item.record is not None:
        keep_paused(item.context, item.record)


# ------------------------------------------------------------------ how a run is judged


def _judge_run(context: HandlerContext, run: Run, ask_outcome: AskOutcome | None) -> ScoredTrace:
    """Return a run as it is judged, without regard to the kept runs that it may repeat.

    Args:
        context: The handler that recorded it.
        run: The run.
        ask_outcome: The outcome function with the run that it is to judge, if there is one.
    """
    if len(_traces_of_runs) >= _MOST_RUNS:
        _traces_of_runs.clear()
    of_run = _traces_of_runs.setdefault(run.run_id, set())
    of_run.add(run.trace.id)  # at once: another lane may judge a trace of the same run
    windows = context.windows
    verdicts = _verdicts(context, run, ask_outcome)
    decisive = first_decisive(verdicts)
    if decisive is not None and decisive is not run.reported:  # that one is redacted already
        decisive = redact_note(context, decisive, str(run.run_id), run.policy.privacy_level)
    domain = run.trace.metadata.task_domain
    window = windows.of(domain)
    model = window.model()
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
    breakdown, entry = _score(context, run, trace, of_run - {run.trace.id})
    breakdown = explain_outcome(breakdown, run, outcome, estimate)
    breakdown = replace(breakdown, flags=flags_of(trace))
    trace.metadata.quality_score = breakdown.total
    if breakdown.novelty_source == STILL_LOADING:
        loading = context.scorer.loading if isinstance(context.scorer, Scorer) else None
        warn_once(
            "novelty not measured",
            "novelty of a run was not measured, and is 0.5, because its model is still loading%s. "
            "kp-langchain doctor says whether it can be loaded, and from where",
            "" if loading is None else f": {loading}",
        )
    key = task_key_of(run)
    task_run = None if key is None else task_run_of(run, decisive)

    def decide_on(pairs: Sequence[Pair]) -> ScoredTrace:
        agreement = agreement_of(pairs)
        compared = replace(breakdown, agreement=agreement)
        if model is not None or (policy.gate == "worth" and window.goes_by_agreement(agreement)):
            worth = window.estimate(model, features, agreement)
            compared = with_worth(compared, run, verdicts, worth)
        return judge(
            run,
            trace,
            compared,
            check_in(window, domain, policy, model, compared),
            entry=entry,
            verdict=decisive,
            features=features,
            is_remembered=not run.withheld and windows.is_remembered_by(context.scorer),
        )

    if key is None or task_run is None:
        scored = decide_on(())
    else:
        scored = decide_on(window.compare(task_run, key))
        if scored.gate == "worth" and scored.decision == "kept":
            # Before it is kept, with what verdicts and deletions have changed since.
            scored = decide_on(window.compare(task_run, key, is_fresh=True))
        scored = replace(scored, digest=task_run.digest, is_planted=task_run.is_planted)
    return scored


def _verdicts(context: HandlerContext, run: Run, ask_outcome: AskOutcome | None) -> list[Verdict]:
    """Return the verdicts reported earlier, the outcome function's, and verifiers', best first.

    Verifiers are only asked if nobody else has called the run a success or a failure.
    """
    verdicts = _verdicts_before_verifiers(context, run, ask_outcome)
    # A run that could not be redacted has no text left to judge.
    if not run.withheld and first_decisive(verdicts) is None:
        verdicts += _ask_verifiers(context, run)
    return verdicts


def _verdicts_before_verifiers(
    context: HandlerContext, run: Run, ask_outcome: AskOutcome | None
) -> list[Verdict]:
    """Return the verdicts reported earlier and the outcome function's, best first."""
    earlier = [] if run.reported is None else [run.reported]
    if ask_outcome is None:
        return earlier
    try:
        # What it returns may be a mapping of its own kind, which takes its time, too.
        verdict = context.call(lambda: read_verdict(ask_outcome(), OUTCOME_FUNCTION))
    except BaseException as error:  # noqa: BLE001 - the user's function
        what = f"the outcome function ({name_of(context.options.outcome)}) failed"
        if isinstance(error, VerdictError):
            what = f"the verdict of the {OUTCOME_FUNCTION} is invalid"
        context.counters.report_failure("outcome_errors", what, error)
        return earlier
    if verdict is None:
        return earlier
    # `report_outcome` outranks the function, whether it is called before or after the end.
    if run.reported is not None and run.reported.source != OUTCOME_EVENT:
        return [run.reported, verdict]
    return [verdict, *earlier]


def _ask_verifiers(context: HandlerContext, judged: Run) -> list[Verdict]:
    """Ask one after the other, until one says whether the run succeeded; from a lane's job.

    Args:
        context: Has the verifiers, calls each with the time limit of one, and counts what fails.
        judged: The redacted run; verifiers receive its `looked_successful` as `success`.

    Returns:
        The verdicts of those that were asked, in order; their notes are not redacted.
    """
    verdicts: list[Verdict] = []
    for verifier in context.options.verifiers:
        source, counter = f"verifier {name_of(verifier)}", "verifier_errors"
        run = _finished_run(judged)
        try:
            verdict = context.call(
                partial(_ask, verifier, run, source, context.settings.function_timeout_s)
            )
        except BaseException as error:  # noqa: BLE001 - the caller's function
            if isinstance(error, (BusyError, TimeoutError)):
                is_busy = isinstance(error, BusyError)
                counter = "verifiers_skipped" if is_busy else "verifier_timeouts"
            context.counters.report_failure(counter, f"{source} cannot be used", error)
            continue
        if verdict is not None:
            verdicts.append(verdict)
            if verdict.success is not None:
                break
    return verdicts


def _ask(function: Verifier, run: FinishedRun, source: str, limit_s: float) -> Verdict | None:
    """Call a verifier and read its verdict.

    Raises:
        VerdictError: Its answer cannot be used.
        BaseException: What it raises.
    """
    inside_verifier.set(True)
    answer: object = function(run)
    if isawaitable(answer):
        answer = asyncio.run(asyncio.wait_for(answer, limit_s))
    if isinstance(answer, Mapping):
        answer = dict(islice(answer.items(), 4))  # a mapping of a foreign class may be endless
    return read_verdict(answer, source)


def _finished_run(run: Run) -> FinishedRun:
    trace = run.trace
    result = trace.outcome.result_summary
    return FinishedRun(
        run_id=run.run_id,
        domain=trace.metadata.task_domain,
        objective=trace.task.objective,
        # Copies, because a late verifier still has its steps when the trace is stored.
        steps=tuple(step.model_copy(deep=True) for step in trace.steps),
        answer="" if run.failed else result,
        output=None,
        error=result if run.failed else "",
        success=run.looked_successful,
        metadata={},
    )


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
        return context.call(both)
    except BaseException as error:  # noqa: BLE001 - the caller's scorer or embedder
        what = f"the scorer ({name_of(scorer)}) failed"
        context.counters.report_failure("scorer_errors", what, error)
        breakdown = Scorer(embedder=None).score(trace, weights=run.policy.weights)
        source = f"{SCORER_FAILED}: {type(error).__name__}"
        return breakdown.with_unmeasured_novelty(source), None


def _breakdown_and_entry(
    assess: Callable[[], object], scorer: object, trace: ReasoningTrace
) -> tuple[ScoreBreakdown, MemoryEntry]:
    """Score a trace, and return its text and vector as others are compared with it.

    Both on one thread: of a `Scorer` the vector that it has just made. One that is no `Scorer` has
    no vector that is known to be usable, so only the same text is recognised.
    """
    breakdown = assess()
    if not isinstance(breakdown, ScoreBreakdown):
        raise ScorerError(
            f"it returned a {type(breakdown).__name__}; return a ScoreBreakdown, as "
            "Scorer.evaluate does"
        )
    json.dumps(breakdown.to_dict())  # as the store will write it
    if isinstance(scorer, Scorer):
        return breakdown, scorer.entry(trace)
    return breakdown, MemoryEntry(trace.id, fingerprint(embedded_text(trace)))
