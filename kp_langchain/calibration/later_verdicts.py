"""Compares what a model promised with the verdicts that were given since it was fitted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kp_langchain.calibration.measures import auc, brier, mean_p_value

if TYPE_CHECKING:
    from kp_langchain.calibration.model import ConfidenceModel, LabelledRun

MOST_LATER_VERDICTS = 50
"""A model is compared with at most so many verdicts, the last ones."""
FEWEST_LATER_VERDICTS = 20
"""It is not compared with fewer than this."""

# The limit for each of two ways to break a promise: errors that are larger, confidence that is off.
_MOST_CHANCE = 0.01


@dataclass(frozen=True, slots=True)
class LaterVerdicts:
    """A model's promise, and its figures on the last runs that were judged after it was fitted.

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
                f"{self.runs} verdicts since it was fitted; it is compared with them from "
                f"{FEWEST_LATER_VERDICTS} on"
            )
        beginning = "it no longer holds" if self.is_broken else "it holds"
        area = "" if self.auc is None else f", AUC {self.auc:.2f}"
        return (
            f"{beginning}: promised Brier score {self.promised_brier:.3f}, "
            f"AUC {self.promised_auc:.2f}; the last {self.runs} verdicts Brier score "
            f"{self.brier:.3f} (always {self.success_rate:.2f}: {self.base_brier:.3f}){area}, "
            f"mean confidence {self.confidence:.2f} where {self.success_rate:.2f} succeeded"
        )


def later_verdicts(model: ConfidenceModel, runs: Sequence[LabelledRun]) -> LaterVerdicts:
    """Compare a model with the verdicts that were given after it was fitted.

    Args:
        model: The model.
        runs: The labelled runs of its domain, the oldest first.

    Raises:
        MissingExtraError: scikit-learn is not installed.
        OutdatedModelError: The model was fitted to features of another version.
    """
    model.check_current()
    later = [run for run in runs if run.judged_at > model.created_at][-MOST_LATER_VERDICTS:]
    if len(later) < FEWEST_LATER_VERDICTS:
        return LaterVerdicts(len(later), model.brier, model.auc)
    confidences = [model.confidence(run.features) for run in later]
    truth, tasks = [run.success for run in later], [run.task for run in later]
    rate = sum(truth) / len(truth)
    error, base_error = brier(truth, confidences), rate * (1 - rate)
    surprises = [y - p for y, p in zip(truth, confidences, strict=True)]
    is_beyond_chance = (
        min(
            mean_p_value([surprise**2 - model.brier for surprise in surprises], tasks),
            2 * mean_p_value(surprises, tasks),
            2 * mean_p_value([-surprise for surprise in surprises], tasks),
        )
        < _MOST_CHANCE
    )
    return LaterVerdicts(
        runs=len(later),
        promised_brier=model.brier,
        promised_auc=model.auc,
        brier=error,
        base_brier=base_error,
        auc=auc(truth, confidences, tasks).value if 0 < rate < 1 else None,
        confidence=sum(confidences) / len(confidences),
        success_rate=rate,
        holds=error < base_error or not is_beyond_chance,
    )
