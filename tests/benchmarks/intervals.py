"""Figures of selected runs, with intervals: tasks, not runs, are what was sampled."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
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


def _ratio(above: Array | float, below: Array | float) -> Array:
    """Return their ratio; NaN where that is not defined."""
    above, below = np.asarray(above, dtype=float), np.asarray(below, dtype=float)
    ratio = np.full(np.broadcast(above, below).shape, np.nan)
    np.divide(above, below, out=ratio, where=below > 0)
    return ratio
