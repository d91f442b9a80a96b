"""A score again, after somebody said how the run really ended."""

from __future__ import annotations

from dataclasses import replace

from kp_langchain.scoring import dimensions, rules
from kp_langchain.scoring.breakdown import ScoreBreakdown


def with_outcome(
    breakdown: ScoreBreakdown,
    *,
    success: bool,
    confidence: float,
    source: str,
    error_recoveries: int,
) -> ScoreBreakdown:
    """Return the breakdown that the same run would have had with another outcome.

    Everything but the outcome stays as it was when the run happened: novelty, weights, and
    whatever else the score rests on.

    Args:
        breakdown: The breakdown so far.
        success: Whether the run succeeded.
        confidence: How sure one can be of its result, 0 to 1.
        source: Where that is known from.
        error_recoveries: How many of the run's steps are error recoveries.
    """
    before = breakdown.outcome_confidence
    value = dimensions.outcome_confidence(confidence, success=success)
    outcome = replace(before, value=value, contribution=value * before.weight)
    parts = (breakdown.complexity, breakdown.novelty, breakdown.tool_diversity, outcome)
    weighted_sum = sum(part.contribution for part in parts)
    fired = {rule.name for rule in breakdown.rules}
    total, now_fired = rules.apply_named(
        min(1.0, weighted_sum),
        single_thought=rules.SINGLE_THOUGHT in fired,
        recovered_errors=error_recoveries > rules.MOST_RECOVERIES_WITHOUT_REWARD and success,
        single_tool=rules.SINGLE_TOOL in fired,
    )
    return replace(
        breakdown,
        total=total,
        outcome_confidence=outcome,
        weighted_sum=weighted_sum,
        rules=now_fired,
    ).with_confidence_from(source, confidence, success=success)
