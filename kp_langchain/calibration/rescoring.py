"""The score that a labelled run would have with other weights, confidence or success."""

from __future__ import annotations

from kp_langchain.calibration.labelled_run import LabelledRun
from kp_langchain.scoring.dimensions import DEFAULT_CONFIDENCE, TraceShape, outcome_confidence
from kp_langchain.scoring.rules import apply_rules
from kp_langchain.weights import ScoringWeights


def total(
    run: LabelledRun,
    weights: ScoringWeights,
    confidence: float | None = None,
    success: bool | None = None,
) -> float:
    """Return the score that the run would have.

    The formulas and rules are those of `kp_langchain.scoring`; complexity, novelty and tool
    diversity stay what they were when the run was scored.

    Args:
        run: The run; its features hold the counts that the rules ask for.
        weights: The weights to use.
        confidence: 0 to 1; by default 0.8 or 0.2 according to success.
        success: Whether to count it as a success; by default whether it looked like one.

    Returns:
        The score, 0 to 1.

    Raises:
        ValueError: `confidence` is not within 0..1.
    """
    if success is None:
        success = run.looked_successful
    if confidence is None:
        confidence = DEFAULT_CONFIDENCE[success]
    weighted_sum = (
        run.complexity * weights.complexity
        + run.novelty * weights.novelty
        + run.tool_diversity * weights.tool_diversity
        + outcome_confidence(confidence, success=success) * weights.outcome_confidence
    )
    shape = TraceShape.from_counts(run.features)
    score, _ = apply_rules(min(1.0, weighted_sum), shape, success=success)
    return score
