"""Find the size or count that alone separates successes from failures best."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from kp_langchain.calibration.feature_meanings import is_surface
from kp_langchain.calibration.feature_table import FeatureTable
from kp_langchain.calibration.measures import auc_value
from kp_langchain.calibration.surface import SurfaceFeature


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
