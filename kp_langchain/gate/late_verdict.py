"""`rejudge`: a run and a late verdict in, the run with its new score and decision out."""

from __future__ import annotations

from dataclasses import replace

from kp_langchain.gate.decision import decide
from kp_langchain.gate.scored_trace import ScoredTrace
from kp_langchain.scoring.changed_outcome import with_outcome
from kp_langchain.scoring.dimensions import TraceShape
from kp_langchain.scoring.rules import RECOVERED_ERRORS, SINGLE_THOUGHT, SINGLE_TOOL
from kp_langchain.verdict import CERTAINTY, Verdict


def rejudge(run: ScoredTrace, verdict: Verdict) -> ScoredTrace:
    """Score a run again after a verdict, and decide again.

    Everything but the outcome stays as it was when the run happened: novelty, weights, gate,
    threshold.

    Args:
        run: The run as the store has it; `keep_body` says whether it still has the trace itself.
        verdict: The verdict; its note is redacted already.

    Returns:
        The run with the new outcome, score and decision, and `previous`, the run as given. A trace
        that the store no longer has, or that is withheld, does not pass. One that passes now is
        still to be held against the kept traces that it repeats; see `twins`.
    """
    trace = run.trace
    success = trace.metadata.success if verdict.success is None else verdict.success
    confidence = CERTAINTY[success] if verdict.confidence is None else float(verdict.confidence)
    breakdown = with_outcome(
        run.breakdown,
        success=success,
        confidence=confidence,
        source=verdict.source,
        shape=_shape(run),
    )
    passes = (
        run.keep_body
        and run.withheld is None
        and decide(replace(run, breakdown=breakdown).gated_value, run.threshold) == "kept"
    )
    # With keep_days 0, a run that no longer passes is not kept for another verdict.
    keep_body = run.keep_body and (passes or run.decision != "kept" or run.keep_days != 0)
    confirmed_by = [*(trace.metadata.validated_by or []), verdict.source]
    metadata = trace.metadata.model_copy(
        update={
            "success": success,
            "quality_score": breakdown.total,
            "validated_by": list(dict.fromkeys(confirmed_by)),
        }
    )
    outcome = trace.outcome.model_copy(update={"confidence": confidence})
    return replace(
        run,
        trace=trace.model_copy(update={"metadata": metadata, "outcome": outcome}),
        breakdown=breakdown,
        decision="kept" if passes else "below_threshold",
        keep_body=keep_body,
        verdict=verdict,
        previous=run,
        twin_of=None,
        similarity_to_twin=None,
        replaces=(),
    )


def _shape(run: ScoredTrace) -> TraceShape:
    if run.features is not None:
        return TraceShape.from_counts(run.features)
    if run.trace.steps:
        return TraceShape.of(run.trace)
    # An earlier version stored it without its trace: the rules that applied tell enough.
    applied = {rule.name for rule in run.breakdown.rules}
    is_one_thought = SINGLE_THOUGHT in applied
    return TraceShape(
        steps=1 if is_one_thought else 2,
        step_types=1,
        thoughts=int(is_one_thought),
        error_recoveries=3 if RECOVERED_ERRORS in applied else 0,
        distinct_tools=1 if SINGLE_TOOL in applied else 2,
    )
