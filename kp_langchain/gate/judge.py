"""The judge of a run: its outcome, its score with what is known of that, and the decision.

Pure functions: no database, no threads. `judge` is for a new run, `rejudge` for one on which a
verdict came later.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from kp_langchain.gate.scored_trace import ScoredTrace, decide
from kp_langchain.scoring.changed_outcome import with_outcome
from kp_langchain.scoring.dimensions import (
    DEFAULT_CONFIDENCE,
    TraceShape,
    estimated_success,
    outcome_confidence,
)
from kp_langchain.verdict import CERTAINTY, Verdict, first_decisive

if TYPE_CHECKING:
    from kp_langchain.gate.check import GateCheck
    from kp_langchain.gate.run import Run
    from kp_langchain.schema import ReasoningTrace
    from kp_langchain.scoring.breakdown import ScoreBreakdown
    from kp_langchain.scoring.novelty_memory import MemoryEntry


def choose_outcome(
    success: bool,
    *,
    verdicts: Iterable[Verdict] = (),
    structured: float | None = None,
    token_probability: float | None = None,
    model_verdict: Verdict | None = None,
    proves_failure: bool = False,
) -> Verdict:
    """Choose success and confidence, each from the first source that states it.

    In order: what was reported, a `confidence` in structured output, the mean token probability of
    the last model answer, the domain's model, and the defaults 0.8 for a success and 0.2 for a
    failure.

    Args:
        success: Whether the run looks successful by itself.
        verdicts: What is stated about the run, best first.
        structured: The `confidence` of the structured output, 0 to 1.
        token_probability: Mean probability of the tokens of the last model answer, 0 to 1.
        model_verdict: The confidence by the domain's model. Not used if success or failure is
            stated. A run that only looks like a failure counts as a success if the model finds one
            likelier.
        proves_failure: Whether the run itself proves that it failed; see `Run.proves_failure`.

    Returns:
        A verdict that states both; its source is that of the confidence.
    """
    sources = list(verdicts)
    decisive = first_decisive(sources)
    success = success if decisive is None else bool(decisive.success)
    if structured is not None:
        sources.append(Verdict(confidence=structured, source="structured output"))
    if token_probability is not None:
        sources.append(Verdict(confidence=token_probability, source="token probabilities"))
    if model_verdict is not None and decisive is None:
        sources.append(model_verdict)
    sources.append(Verdict(confidence=DEFAULT_CONFIDENCE[success], source="default"))
    best = next(verdict for verdict in sources if verdict.confidence is not None)
    if best is model_verdict and best.confidence is not None:
        success = estimated_success(
            best.confidence, looked_successful=success, proves_failure=proves_failure
        )
    return Verdict(success, best.confidence, source=best.source)


def outcome_of(run: Run, verdicts: Sequence[Verdict], estimate: Verdict | None) -> Verdict:
    """Return success and confidence of a run.

    Args:
        run: The run.
        verdicts: What is stated about it, best first.
        estimate: The confidence by the domain's model; None without one.
    """
    return choose_outcome(
        run.looked_successful,
        verdicts=verdicts,
        structured=run.structured,
        token_probability=run.token_probability,
        model_verdict=estimate,
        proves_failure=run.proves_failure,
    )


def trace_with_outcome(trace: ReasoningTrace, outcome: Verdict) -> ReasoningTrace:
    """Return a copy of a trace with an outcome, in which the score can be set."""
    metadata = trace.metadata.model_copy(update={"success": bool(outcome.success)})
    update = {"confidence": outcome.confidence or 0.0}
    parts = {"metadata": metadata, "outcome": trace.outcome.model_copy(update=update)}
    return trace.model_copy(update=parts)


def explain_outcome(
    breakdown: ScoreBreakdown,
    run: Run,
    outcome: Verdict,
    verdicts: Sequence[Verdict],
    estimate: Verdict | None,
) -> ScoreBreakdown:
    """Return the score of a run with the source of its confidence, and its worth if it has one.

    Args:
        breakdown: The score of the trace with this outcome.
        run: The run.
        outcome: As `outcome_of` returned it.
        verdicts: What is stated about the run.
        estimate: The confidence by the domain's model; None without one.
    """
    success, confidence = bool(outcome.success), outcome.confidence or 0.0
    if success or run.proves_failure or estimate is None or outcome.source != estimate.source:
        breakdown = breakdown.with_confidence_from(outcome.source, confidence, success=success)
    else:  # it looks like a failure, and its confidence is an estimate of that
        breakdown = with_outcome(
            breakdown,
            success=False,
            confidence=confidence,
            source=outcome.source,
            shape=TraceShape.of(run.trace),
            lowers_confidence=False,
        )
    if estimate is None or estimate.confidence is None:
        return breakdown
    if verdicts:
        return breakdown.with_worth(breakdown.outcome_confidence.value)
    # The run may state a confidence of its own, which nothing has tested.
    tested = outcome_confidence(estimate.confidence, success=not run.proves_failure)
    return breakdown.with_worth(tested)


def judge(
    run: Run,
    trace: ReasoningTrace,
    breakdown: ScoreBreakdown,
    check: GateCheck,
    *,
    entry: MemoryEntry | None,
    verdict: Verdict | None,
    features: Mapping[str, float],
) -> ScoredTrace:
    """Return a run as it is decided on, before it is held against the kept ones; see `twins`.

    Args:
        run: The run.
        trace: Its trace, with the outcome and the score.
        breakdown: Its score.
        check: What it is held against.
        entry: What others are compared with of it; None if its scorer failed, so that it never
            passes.
        verdict: The verdict that calls it a success or a failure, its note redacted.
        features: What a confidence model reads of it.
    """
    policy = run.policy
    may_pass = not run.withheld and entry is not None
    decision = decide(check.value, check.threshold) if may_pass else "below_threshold"
    return ScoredTrace(
        trace=trace,
        breakdown=breakdown,
        decision=decision,
        threshold=check.threshold,
        run_id=run.run_id,
        # A withheld trace can never be contributed, so it is not kept to await a verdict.
        keep_body=policy.keep == "all"
        or decision == "kept"
        or (policy.keep_days > 0 and not run.withheld),
        keep_days=None if policy.keep == "all" else policy.keep_days,
        features=features,
        verdict=verdict,
        gate=check.gate,
        pass_rate=check.pass_rate,
        twin_similarity=policy.twin_similarity,
        entry=entry,
        **run.facts(),
    )


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
    features = run.features
    shape = TraceShape.of(trace) if features is None else TraceShape.from_counts(features)
    breakdown = with_outcome(
        run.breakdown,
        success=success,
        confidence=confidence,
        source=verdict.source,
        shape=shape,
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
