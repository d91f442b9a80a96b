"""Figures of what is shown, each a mean over tasks with an interval."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tests.benchmarks.quality.resampling import Array, Sampled, TaskResamples


class TaskMeans:
    """Means over the tasks of some queries of one source.

    Args:
        tasks: The task of each query.
    """

    def __init__(self, tasks: Sequence[str]) -> None:
        self._distinct = sorted(set(tasks))
        place = {task: at for at, task in enumerate(self._distinct)}
        self._places = np.array([place[task] for task in tasks])
        self._counts = np.bincount(self._places, minlength=len(self._distinct))
        self._times = TaskResamples(self._distinct).times(self._distinct)

    def of_tasks(self, values: Array) -> Array:
        """The mean of the values of each task's queries; NaN where one of them is NaN."""
        sums = np.bincount(self._places, weights=values, minlength=len(self._distinct))
        return np.asarray(sums / self._counts)

    def mean(self, values: Array) -> Sampled:
        """The mean over tasks of the mean over their queries, of those that have a value.

        Args:
            values: One for each query; NaN for none.
        """
        known = np.isfinite(values)
        sums = np.bincount(
            self._places, weights=np.where(known, values, 0.0), minlength=len(self._distinct)
        )
        counts = np.bincount(self._places, weights=known, minlength=len(self._distinct))
        has_value = counts > 0
        means = np.divide(sums, counts, out=np.zeros_like(sums), where=has_value)
        if not has_value.any():
            return Sampled(float("nan"), np.full(len(self._times), np.nan))
        weights = self._times @ has_value
        sampled = np.divide(
            self._times @ means, weights, out=np.full_like(weights, np.nan), where=weights > 0
        )
        return Sampled(float(means[has_value].mean()), sampled)
