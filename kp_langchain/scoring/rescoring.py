"""A score again, after somebody said how the run really ended."""

from __future__ import annotations

from dataclasses import replace

from kp_langchain.scoring import dimensions
from kp_langchain.scoring.breakdown import ScoreBreakdown
from kp_langchain.scoring.rules import apply_rules


def with_outcome(
    breakdown: ScoreBreakdown,
    *,
    success: bool,
    confidence: float,
    source: str,
    shape: dimensions.TraceShape,
) -> ScoreBreakdown:
    """Return the breakdown that the same run would have had with another outcome.

    Everything but the outcome stays as it was when the run happened: novelty, weights, and
    whatever else the score rests on.

    Args:
        breakdown: The breakdown so far.
        success: Whether the run succeeded.
        confidence: How sure one can be of its result, 0 to 1.
        source: Where that is known from.
        shape: The shape of the run's steps.
    """
    before = breakdown.outcome_confidence
    value = dimensions.outcome_confidence(confidence, success=success)
    outcome = replace(before, value=value, contribution=value * before.weight)
    parts = (breakdown.complexity, breakdown.novelty, breakdown.tool_diversity, outcome)
    weighted_sum = sum(part.contribution for part in parts)
    total, fired = apply_rules(min(1.0, weighted_sum), shape, success=success)
    return replace(
        breakdown,
        total=total,
        outcome_confidence=outcome,
        weighted_sum=weighted_sum,
        rules=fired,
    ).with_confidence_from(source, confidence, success=success)
