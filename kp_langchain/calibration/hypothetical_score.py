"""The score and the worth that a labelled run would have in other circumstances."""

from __future__ import annotations

from kp_langchain.calibration.labelled_run import LabelledRun
from kp_langchain.scoring.dimensions import (
    DEFAULT_CONFIDENCE,
    DIMENSION_NAMES,
    NEUTRAL_NOVELTY,
    TraceShape,
    estimated_success,
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
    return _score(run, weights, outcome_confidence(confidence, success=success), success=success)


def estimated_score(run: LabelledRun, weights: ScoringWeights, confidence: float) -> float:
    """Return the score (0 to 1) that the run would have if nobody had judged it but a model.

    Args:
        run: The run.
        weights: The weights to use.
        confidence: The confidence of the model, 0 to 1.
    """
    success = estimated_success(
        confidence, looked_successful=run.looked_successful, proves_failure=run.proves_failure
    )
    return _score(run, weights, calibrated_confidence(run, confidence), success=success)


def hypothetical_worth(run: LabelledRun, confidence: float) -> float:
    """Return the worth (0 to 1) that the run would have if nobody had judged it but a model.

    Args:
        run: The run; its novelty is that of the time when it was scored.
        confidence: The confidence of the model, 0 to 1.
    """
    novelty = run.values.get("novelty", NEUTRAL_NOVELTY)
    return Worth.of(calibrated_confidence(run, confidence), novelty).value


def calibrated_confidence(run: LabelledRun, confidence: float) -> float:
    """Return what a model's confidence (0 to 1) in a run counts: less if the run proves failure."""
    return outcome_confidence(confidence, success=not run.proves_failure)


def _score(run: LabelledRun, weights: ScoringWeights, outcome: float, *, success: bool) -> float:
    values = {**run.values, "outcome_confidence": outcome}
    contributions = [values.get(name, 0.0) * getattr(weights, name) for name in DIMENSION_NAMES]
    return combine(contributions, TraceShape.from_counts(run.features), success=success).total
