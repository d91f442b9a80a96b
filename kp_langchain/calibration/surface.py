"""Whether one size or count alone separates successes from failures about as well as the model."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from pydantic import Field

from kp_langchain.calibration.feature_meanings import is_surface, meaning_of
from kp_langchain.calibration.measures import auc_value

if TYPE_CHECKING:
    from kp_langchain.calibration.feature_table import FeatureTable

# Chosen on recorded runs. With labels that follow one size, or follow it but for a tenth, 0.99 and
# 0.94 of the models are warned of; with the true labels 0.07.
_MARGIN = 0.05
_LEAST_AUC = 0.75


@dataclass(frozen=True, slots=True)
class SurfaceFeature:
    """The size or count that alone separates successes from failures best.

    Attributes:
        feature: Its name.
        auc: Area under the ROC curve of it alone, chosen without the tasks that it is judged on.
        model_auc: That of the model, on the same runs.
    """

    feature: str
    auc: Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]
    model_auc: Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]

    @property
    def warning(self) -> str | None:
        """What to say if it alone explains what the model knows; None if it does not."""
        if self.auc < max(_LEAST_AUC, self.model_auc - _MARGIN):
            return None
        return (
            f"one figure alone, {meaning_of(self.feature)}, reaches AUC {self.auc:.2f}, the model "
            f"{self.model_auc:.2f}: it may have learned little else; check that the verdicts do "
            "not simply follow that figure"
        )


def best_surface_feature(
    table: FeatureTable, splits: Sequence[tuple[Sequence[int], Sequence[int]]], model_auc: float
) -> SurfaceFeature | None:
    """Return the best single size or count, chosen anew in each fold; None if none of them varies.

    Args:
        table: The labelled runs.
        splits: The folds: the indices of training runs, and of test runs.
        model_auc: Area under the ROC curve of the model, on held-out tasks, 0 to 1.
    """
    columns = [number for number, term in enumerate(table.terms) if is_surface(term.feature)]
    if not columns:
        return None
    scores = [0.0] * len(table.truth)
    choices: Counter[str] = Counter()
    for training, test in splits:
        column, sign = _best(table, columns, training)
        choices[table.terms[column].feature] += 1
        for index in test:
            scores[index] = sign * float(table.positions[index, column])
    area = auc_value(table.truth.tolist(), scores)
    return SurfaceFeature(choices.most_common(1)[0][0], area, model_auc)


def _best(
    table: FeatureTable, columns: Sequence[int], training: Sequence[int]
) -> tuple[int, float]:
    """Return the column that separates these runs best, and the sign that it has for success."""
    truth = table.truth[training].tolist()
    areas = {
        column: auc_value(truth, table.positions[training, column].tolist()) for column in columns
    }
    column = max(areas, key=lambda one: abs(areas[one] - 0.5))
    return column, 1.0 if areas[column] >= 0.5 else -1.0
