"""The score of a run with another outcome: of a verdict on it, or of a model's estimate."""

from __future__ import annotations

from dataclasses import replace

from kp_langchain.scoring.breakdown import ScoreBreakdown
from kp_langchain.scoring.dimensions import TraceShape, outcome_confidence
from kp_langchain.scoring.weighted_sum import combine


def with_outcome(
    breakdown: ScoreBreakdown,
    *,
    success: bool,
    confidence: float,
    source: str,
    shape: TraceShape,
    lowers_confidence: bool = True,
) -> ScoreBreakdown:
    """Return the breakdown that the same run would have had with another outcome.

    All but outcome confidence, the rules and the worth stays as it was when the run was scored.

    Args:
        breakdown: The breakdown so far.
        success: Whether the run succeeded.
        confidence: The outcome's confidence, 0 to 1.
        source: Where the verdict comes from.
        shape: The shape of the run's trace.
        lowers_confidence: Whether a failure lowers the confidence. A model has seen already that a
            run looks like one.

    Raises:
        ValueError: `confidence` is not within 0..1.
    """
    value = outcome_confidence(confidence, success=success or not lowers_confidence)
    weight = breakdown.outcome_confidence.weight
    outcome = replace(breakdown.outcome_confidence, value=value, contribution=value * weight)
    dimensions = breakdown.dimensions | {"outcome_confidence": outcome}
    contributions = [dimension.contribution for dimension in dimensions.values()]
    weighted_sum, total, rules = combine(contributions, shape, success=success)
    changed = replace(
        breakdown,
        outcome_confidence=outcome,
        weighted_sum=weighted_sum,
        total=total,
        rules=rules,
    ).with_confidence_from(source, confidence, success=success, lowers_confidence=lowers_confidence)
    return changed if breakdown.worth is None else changed.with_worth(value)
