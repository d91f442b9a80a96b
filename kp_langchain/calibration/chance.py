"""How likely chance alone explains that verdicts follow what their runs look like."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from kp_langchain.calibration.feature_table import FeatureTable
from kp_langchain.calibration.folds import task_numbers
from kp_langchain.calibration.labelled_run import LabelledRun

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

# The smallest share that so many shuffles can show is a tenth of the strictest limit set to it.
_SHUFFLES = 999
_SEED = 0
_ROUNDING = 1e-9


def chance(runs: Sequence[LabelledRun], table: FeatureTable) -> float:
    """Return the share of shuffles of the verdicts that the features fit at least as closely.

    How closely is measured by the pairs of runs of different tasks: whether runs with alike
    features have alike verdicts (the global test of Goeman et al. 2004, Bioinformatics 20:93, as a
    permutation test). It needs no folds, so nothing of it depends on how they fall.

    What the default confidence knows already does not count: verdicts are shuffled only among runs
    that looked successful, and among those that did not. The verdicts on repeats of a task stay
    together, because they are often alike.

    Args:
        runs: The labelled runs.
        table: Their features.

    Returns:
        The share, above 0, at most 1; the same for the same runs.
    """
    import numpy as np

    # Sorted by task, so that the runs of a task can be summed up in one go.
    numbers = np.array(task_numbers([run.task for run in runs]))
    order = np.argsort(numbers, kind="stable")
    tasks, positions = numbers[order], table.positions[order]
    looked = np.array([run.looked_successful for run in runs], dtype=bool)[order]
    truth = table.truth[order].astype(np.float64)
    residuals = truth.copy()
    for group in (looked, ~looked):
        if group.any():
            residuals[group] -= truth[group].mean()
    positions = positions - positions.mean(axis=0)
    starts = np.flatnonzero(np.diff(tasks, prepend=-1))

    observed = _closeness(positions, residuals, starts)
    limit = observed - _ROUNDING * (1.0 + abs(observed))
    _, blocks = np.unique(2 * tasks + looked, return_inverse=True)
    places = np.lexsort((blocks, looked))
    random = np.random.default_rng(_SEED)
    shuffled, reached = np.empty_like(residuals), 1
    for _ in range(_SHUFFLES):
        rank = random.permutation(blocks.max() + 1)
        shuffled[places] = residuals[np.lexsort((rank[blocks], looked))]
        reached += _closeness(positions, shuffled, starts) >= limit
    return reached / (1 + _SHUFFLES)


def _closeness(
    positions: NDArray[np.float64], residuals: NDArray[np.float64], starts: NDArray[np.intp]
) -> float:
    """Return the sum, over pairs of runs of different tasks, of likeness times agreement.

    Likeness is the inner product of two runs' positions, agreement that of their residuals.
    """
    import numpy as np

    by_task = np.add.reduceat(positions * residuals[:, None], starts)
    total = by_task.sum(axis=0)
    return float(total @ total - (by_task**2).sum())
