"""Figures of selected runs, with intervals: tasks, not runs, are what was sampled."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

SEED = 1
RESAMPLES = 1000

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Sampled:
    """A figure, and what it is among tasks that were drawn anew.

    Attributes:
        value: The figure; NaN if it is not defined.
        samples: The same figure with each of `RESAMPLES` samples of the tasks.
    """

    value: float
    samples: Array

    def __sub__(self, other: Sampled) -> Sampled:
        return Sampled(self.value - other.value, self.samples - other.samples)

    @property
    def interval(self) -> tuple[float, float] | None:
        """The interval of 95 %; None if the figure is not defined."""
        samples = self.samples[np.isfinite(self.samples)]
        if not np.isfinite(self.value) or not len(samples):
            return None
        low, high = np.percentile(samples, [2.5, 97.5])
        return float(low), float(high)

    def text(self, form: str = ".2f") -> str:
        """Return the figure with its interval, or `-`."""
        if self.interval is None:
            return "-"
        low, high = self.interval
        return f"{self.value:{form}} ({low:{form}} to {high:{form}})"


def mean(figures: Iterable[Sampled]) -> Sampled:
    """Return the mean of figures, of those that are defined."""
    defined = [one for one in figures if np.isfinite(one.value)]
    if not defined:
        return Sampled(float("nan"), np.full(RESAMPLES, np.nan))
    samples = np.stack([one.samples for one in defined])
    known = np.isfinite(samples)
    sums, counts = np.where(known, samples, 0.0).sum(axis=0), known.sum(axis=0)
    return Sampled(float(np.mean([one.value for one in defined])), _ratio(sums, counts))


def mean_of_families(families: Mapping[str, Sequence[Sampled]]) -> Sampled:
    """Return the mean over families of the means of their sources.

    Both are drawn anew: in each sample the tasks of every source, and as many families as there
    are, with replacement.

    Args:
        families: The figures of the sources of each family; those that are not defined are left
            out.
    """
    means = [mean(figures) for figures in families.values()]
    means = [one for one in means if np.isfinite(one.value)]
    if not means:
        return mean([])
    drawn = np.random.default_rng(SEED).integers(len(means), size=(RESAMPLES, len(means)))
    samples = np.stack([one.samples for one in means], axis=1)
    return Sampled(
        float(np.mean([one.value for one in means])),
        np.take_along_axis(samples, drawn, axis=1).mean(axis=1),
    )


class TaskResamples:
    """The tasks of one source, drawn anew with replacement, again and again.

    Figures of several draws of its runs that rest on the same of these share what is by chance in
    the tasks, as they should.

    Args:
        tasks: The tasks of all its runs.
    """

    def __init__(self, tasks: Iterable[str]) -> None:
        self._columns = {task: at for at, task in enumerate(sorted(set(tasks)))}
        number = len(self._columns)
        drawn = np.random.default_rng(SEED).multinomial(
            number, np.full(number, 1 / number), size=RESAMPLES
        )
        self._times = drawn.astype(float)

    def times(self, tasks: Sequence[str]) -> Array:
        """Return how often each sample has the task of each run, shape (`RESAMPLES`, runs)."""
        return self._times[:, [self._columns[task] for task in tasks]]

    def mean_of_runs(self, tasks: Sequence[str], values: Sequence[float]) -> Sampled:
        """Return the mean over runs."""
        times, of_runs = self.times(tasks), np.asarray(values, dtype=float)
        return Sampled(float(of_runs.mean()), _ratio(times @ of_runs, times.sum(axis=1)))

    def mean_of_tasks(self, tasks: Sequence[str], values: Sequence[float]) -> Sampled:
        """Return the mean over tasks of the mean over their runs."""
        counts: dict[str, int] = {}
        for task in tasks:
            counts[task] = counts.get(task, 0) + 1
        weights = np.array([1 / counts[task] for task in tasks])
        times, of_runs = self.times(tasks), np.asarray(values, dtype=float)
        return Sampled(
            float(weights @ of_runs / weights.sum()),
            _ratio(times @ (weights * of_runs), times @ weights),
        )


@dataclass(frozen=True)
class Selection:
    """Runs of one source, and which of them are kept.

    Attributes:
        successes: Whether each run succeeded.
        tasks: Their tasks.
        kept: Which runs are kept.
        resamples: The source's tasks.
    """

    successes: Sequence[bool]
    tasks: Sequence[str]
    kept: Sequence[bool]
    resamples: TaskResamples

    @property
    def share(self) -> float:
        """The share of runs that are kept."""
        return float(np.mean(self.kept))

    def lift(self) -> Sampled:
        """Return the share of successes among the kept runs, of the share among all."""
        good, kept = np.asarray(self.successes, dtype=float), np.asarray(self.kept, dtype=float)
        times = self.resamples.times(self.tasks)
        return Sampled(
            float(_ratio(_ratio(kept @ good, kept.sum()), good.mean())),
            _ratio(_ratio(times @ (kept * good), times @ kept), _ratio(times @ good, times.sum(1))),
        )

    @property
    def tasks_per_run(self) -> float:
        """The number of different tasks of the kept runs, for each of them; NaN without any."""
        tasks = [task for task, is_kept in zip(self.tasks, self.kept, strict=True) if is_kept]
        return float(_ratio(len(set(tasks)), len(tasks)))

    def solved_per_run(self) -> Sampled:
        """Return how many different tasks the kept runs solve, for each run kept."""
        solved: dict[str, int] = {}
        for at, (task, success) in enumerate(zip(self.tasks, self.successes, strict=True)):
            if success and self.kept[at]:
                solved.setdefault(task, at)
        first = np.zeros(len(self.tasks))
        first[list(solved.values())] = 1.0
        kept = np.asarray(self.kept, dtype=float)
        times = self.resamples.times(self.tasks)
        return Sampled(float(_ratio(first.sum(), kept.sum())), _ratio(times @ first, times @ kept))


@dataclass(frozen=True)
class Ranking:
    """Runs of one source in the order of a number.

    Attributes:
        successes: Whether each run succeeded.
        tasks: Their tasks.
        values: The number of each; the highest comes first.
        resamples: The source's tasks.
    """

    successes: Sequence[bool]
    tasks: Sequence[str]
    values: Sequence[float]
    resamples: TaskResamples

    def first(self, share: float) -> Selection:
        """Return the first runs: a share of all, at least one. Of equal ones, the first given."""
        number = max(1, round(share * len(self.values)))
        order = sorted(range(len(self.values)), key=lambda at: -self.values[at])
        kept = set(order[:number])
        places = range(len(self.values))
        return Selection(self.successes, self.tasks, [at in kept for at in places], self.resamples)

    def auc(self) -> Sampled:
        """Return the share of pairs of a good and a bad run in which the good one comes first."""
        is_right, good, bad = self._pairs()
        pairs = np.ones_like(is_right)
        return Sampled(
            float(_ratio(is_right.sum(), pairs.sum())),
            _ratio(((good @ is_right) * bad).sum(axis=1), ((good @ pairs) * bad).sum(axis=1)),
        )

    def auc_within_tasks(self) -> Sampled:
        """Return the same of the pairs of runs of one task."""
        is_right, good, _ = self._pairs()
        tasks, success = np.asarray(self.tasks), np.asarray(self.successes, dtype=bool)
        pairs = (tasks[success][:, None] == tasks[~success][None, :]).astype(float)
        right_of, pairs_of = (is_right * pairs).sum(axis=1), pairs.sum(axis=1)
        return Sampled(
            float(_ratio(right_of.sum(), pairs_of.sum())), _ratio(good @ right_of, good @ pairs_of)
        )

    def _pairs(self) -> tuple[Array, Array, Array]:
        """Return whether each good run comes before each bad one, and how often samples have both.

        A tie is half. The latter two have the shape (`RESAMPLES`, runs).
        """
        success, values = np.asarray(self.successes, dtype=bool), np.asarray(self.values)
        good, bad = values[success][:, None], values[~success][None, :]
        times = self.resamples.times(self.tasks)
        return (good > bad) + 0.5 * (good == bad), times[:, success], times[:, ~success]


def _ratio(above: Array | float, below: Array | float) -> Array:
    """Return their ratio; NaN where that is not defined."""
    above, below = np.asarray(above, dtype=float), np.asarray(below, dtype=float)
    ratio = np.full(np.broadcast(above, below).shape, np.nan)
    np.divide(above, below, out=ratio, where=below > 0)
    return ratio
