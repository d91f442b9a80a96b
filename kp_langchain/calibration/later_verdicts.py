"""`LaterVerdicts`: whether a model still does what it promised, by verdicts given since."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kp_langchain.calibration.labelled_run import LabelledRun
from kp_langchain.calibration.measures import auc_value, brier, mean_p_value
from kp_langchain.calibration.model import ConfidenceModel

MOST_RUNS = 50
"""A model is held against at most so many verdicts, the last ones."""
FEWEST_RUNS = 20
"""It is not held against fewer than this."""

# The limit for each of two ways to break a promise: errors that are larger, confidence that is off.
_MOST_CHANCE = 0.01


@dataclass(frozen=True, slots=True)
class LaterVerdicts:
    """A model's promise, and its figures on the last runs that it was not fitted to.

    Runs of tasks that it was fitted to are predicted without them.

    Attributes:
        runs: How many such runs there are, at most 50. The other figures are None below 20.
        promised_brier: Brier score on held-out tasks when it was fitted.
        promised_auc: Area under the ROC curve on the same.
        brier: Brier score on the later runs.
        base_brier: That of always predicting the share of successes among them.
        auc: Area under the ROC curve on them; None if all succeeded or all failed.
        confidence: The mean confidence that it gives them, 0 to 1.
        success_rate: The share of them that succeeded.
        holds: Whether it does as promised. It does not if its Brier score is no better than that of
            the share of successes, and either that score or the mean confidence is further from
            what was promised than chance explains.
    """

    runs: int
    promised_brier: float
    promised_auc: float
    brier: float | None = None
    base_brier: float | None = None
    auc: float | None = None
    confidence: float | None = None
    success_rate: float | None = None
    holds: bool | None = None

    @property
    def is_broken(self) -> bool:
        """Whether enough verdicts show that the model no longer holds."""
        return self.holds is False

    def __str__(self) -> str:
        if self.holds is None:
            return (
                f"{self.runs} verdicts so far on runs that it was not fitted to; it is held "
                f"against them from {FEWEST_RUNS} on"
            )
        beginning = "it no longer holds" if self.is_broken else "it holds"
        areas = "" if self.auc is None else f", AUC {self.auc:.2f}"
        return (
            f"{beginning}: promised Brier score {self.promised_brier:.3f}, "
            f"AUC {self.promised_auc:.2f}; the last {self.runs} verdicts Brier score "
            f"{self.brier:.3f} (always {self.success_rate:.2f}: {self.base_brier:.3f}){areas}, "
            f"mean confidence {self.confidence:.2f} where {self.success_rate:.2f} succeeded"
        )


def later_verdicts(model: ConfidenceModel, runs: Sequence[LabelledRun]) -> LaterVerdicts | None:
    """Hold a model against the verdicts on runs that it was not fitted to.

    Args:
        model: The model.
        runs: The labelled runs of its domain, the oldest first.

    Returns:
        The figures; None for a model of an earlier version of this package, which does not know
        what it was fitted to, or whose features are no longer computed.

    Raises:
        MissingExtraError: scikit-learn is not installed.
    """
    if not model.is_current or not model.folds:
        return None
    later = [run for run in runs if run.trace_id not in model.held_out][-MOST_RUNS:]
    if len(later) < FEWEST_RUNS:
        return LaterVerdicts(len(later), model.brier, model.auc)
    confidences = [
        one for run in later if (one := model.held_out_confidence(run)) is not None
    ]  # a model with folds has one for each run
    truth, tasks = [run.success for run in later], [run.task for run in later]
    rate = sum(truth) / len(truth)
    error, base_error = brier(truth, confidences), rate * (1 - rate)
    return LaterVerdicts(
        runs=len(later),
        promised_brier=model.brier,
        promised_auc=model.auc,
        brier=error,
        base_brier=base_error,
        auc=auc_value(truth, confidences) if 0 < rate < 1 else None,
        confidence=sum(confidences) / len(confidences),
        success_rate=rate,
        holds=error < base_error or not _is_beyond_chance(model, truth, confidences, tasks),
    )


def _is_beyond_chance(
    model: ConfidenceModel,
    truth: Sequence[bool],
    confidences: Sequence[float],
    tasks: Sequence[str],
) -> bool:
    """Return whether errors are larger, or confidences further off, than chance explains."""
    surprises = [y - p for y, p in zip(truth, confidences, strict=True)]
    excess = [surprise**2 - model.brier for surprise in surprises]
    larger = mean_p_value(excess, tasks)
    off = 2 * min(mean_p_value(surprises, tasks), mean_p_value([-one for one in surprises], tasks))
    return min(larger, off) < _MOST_CHANCE
