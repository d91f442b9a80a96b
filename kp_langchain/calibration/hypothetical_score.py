"""The score and the worth that a labelled run would have in other circumstances."""

from __future__ import annotations

from kp_langchain.calibration.labelled_run import LabelledRun
from kp_langchain.scoring.dimensions import (
    DEFAULT_CONFIDENCE,
    DIMENSION_NAMES,
    NEUTRAL_NOVELTY,
    TraceShape,
    outcome_confidence,
)
from kp_langchain.scoring.weighted_sum import combine
from kp_langchain.scoring.worth import Worth
from kp_langchain.weights import ScoringWeights


def hypothetical_score(
    run: LabelledRun,
    weights: ScoringWeights,
    confidence: float | None = None,
    success: bool | None = None,
) -> float:
    """Return the score that the run would have.

    The formulas and rules are those of `kp_langchain.scoring`; all dimensions but outcome
    confidence keep the values that they had when the run was scored.

    Args:
        run: The run; its features hold the counts that the rules need.
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
    outcome = outcome_confidence(confidence, success=success)
    values = {**run.values, "outcome_confidence": outcome}
    contributions = [values.get(name, 0.0) * getattr(weights, name) for name in DIMENSION_NAMES]
    return combine(contributions, TraceShape.from_counts(run.features), success=success).total


def hypothetical_worth(run: LabelledRun, confidence: float) -> float:
    """Return the worth (0 to 1) that the run would have if nobody had judged it.

    Args:
        run: The run; its novelty is that of the time when it was scored.
        confidence: The confidence of a model, 0 to 1.
    """
    calibrated = outcome_confidence(confidence, success=not run.proves_failure)
    return Worth.of(calibrated, run.values.get("novelty", NEUTRAL_NOVELTY)).value
