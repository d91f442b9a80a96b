"""`FeatureTable`: labelled runs as a table of numbers, and the logistic regressions on its rows."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kp_langchain.calibration.folds import import_calibrate_extra, task_numbers
from kp_langchain.calibration.labelled_run import LabelledRun
from kp_langchain.calibration.model import LARGEST_DEVIATION, Term, log_value

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

# A feature is used only if it differs from its commonest value in at least this many tasks.
_FEWEST_VARYING_TASKS = 5
# Standard deviation of the prior on a weight: normal around 0, in log-odds for each standard
# deviation of the feature. It is fixed rather than searched for: from a third to three times its
# square the AUC of recorded runs is the same to 0.005, and searching uses up verdicts.
_PRIOR_SD = 0.14
_SMALLEST_SCALE = 1e-9


@dataclass(frozen=True, slots=True)
class FeatureTable:
    """Runs as rows and features as columns, in standard deviations from the mean.

    Means and deviations are of all the runs; they contain nothing of the verdicts.

    Attributes:
        terms: The features, one a column; their weights are 0.
        positions: What `Term.position` is for each run and feature, (runs, features).
        truth: Whether each run succeeded.
    """

    terms: tuple[Term, ...]
    positions: NDArray[np.float64]
    truth: NDArray[np.bool_]

    @classmethod
    def of(cls, runs: Sequence[LabelledRun]) -> FeatureTable:
        """Return the table of these runs, with the features that vary among them."""
        import numpy as np

        columns = list(_columns(runs))
        return cls(
            tuple(term for term, _ in columns),
            np.column_stack([positions for _, positions in columns])
            if columns
            else np.empty((len(runs), 0)),
            np.array([run.success for run in runs], dtype=bool),
        )

    def fit(self, indices: Sequence[int]) -> tuple[float, tuple[float, ...]]:
        """Fit a logistic regression to the runs at these indices; both outcomes must occur.

        Returns:
            The intercept, and the weight of each term.

        Raises:
            MissingExtraError: scikit-learn is not installed.
        """
        truth = self.truth[indices]
        if not self.terms:
            return math.log(truth.mean() / (1 - truth.mean())), ()
        logistic = import_calibrate_extra("sklearn.linear_model").LogisticRegression(
            C=_PRIOR_SD**2, solver="newton-cholesky"
        )
        logistic.fit(self.positions[indices], truth)
        return float(logistic.intercept_[0]), tuple(logistic.coef_[0].tolist())


def _columns(runs: Sequence[LabelledRun]) -> Iterator[tuple[Term, NDArray[np.float64]]]:
    """Yield the features that vary, each with the positions of all runs."""
    import numpy as np

    tasks = np.array(task_numbers([run.task for run in runs]))
    for name in sorted({name for run in runs for name in run.features}):
        values = [log_value(run.features, name) for run in runs]
        column = np.array(values, dtype=np.float64)
        is_present = ~np.isnan(column)
        distinct, counts = np.unique(column[is_present], return_counts=True)
        if not len(distinct):
            continue
        varies = is_present & (column != distinct[counts.argmax()])
        mean, scale = float(column[is_present].mean()), float(column[is_present].std())
        if len(np.unique(tasks[varies])) < _FEWEST_VARYING_TASKS or scale < _SMALLEST_SCALE:
            continue
        positions = np.where(is_present, (column - mean) / scale, 0.0)
        yield (
            Term(name, mean, scale, weight=0.0),
            positions.clip(-LARGEST_DEVIATION, LARGEST_DEVIATION),
        )
