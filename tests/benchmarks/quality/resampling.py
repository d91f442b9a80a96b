"""What a selection of runs gains, with intervals: tasks, not runs, are what was sampled."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

SEED = 1
RESAMPLES = 1000

Estimate = dict[str, float]  # value, and low and high of its 95 % confidence interval
Array = NDArray[np.float64]


@dataclass(frozen=True)
class Sampled:
    """A figure, and what it is among tasks that were drawn anew.

    Args:
        value: The figure; NaN if it is not defined.
        samples: The same figure with each of `RESAMPLES` samples of the tasks.
    """

    value: float
    samples: Array

    def __sub__(self, other: Sampled) -> Sampled:
        return Sampled(self.value - other.value, self.samples - other.samples)

    @property
    def estimate(self) -> Estimate | None:
        """The figure with its interval; None if it is not defined."""
        samples = self.samples[np.isfinite(self.samples)]
        if not np.isfinite(self.value) or not len(samples):
            return None
        low, high = np.percentile(samples, [2.5, 97.5])
        return {"value": self.value, "low": float(low), "high": float(high)}


def mean(figures: Iterable[Sampled]) -> Sampled:
    """The mean of figures, of those that are defined."""
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
        """How often each sample has the task of each run, shape (`RESAMPLES`, runs)."""
        return self._times[:, [self._columns[task] for task in tasks]]


@dataclass(frozen=True)
class Selection:
    """Runs of one source, and which of them are kept.

    Args:
        successes: Whether each run succeeded.
        tasks: Their tasks.
        shares: 1 for a run that is kept, 0 for one that is not, or anything between.
        resamples: The source's tasks.
    """

    successes: Sequence[bool]
    tasks: Sequence[str]
    shares: Sequence[float]
    resamples: TaskResamples

    def lift(self) -> Sampled:
        """The share of successes among the kept runs, of the share among all."""
        good, kept = np.asarray(self.successes, dtype=float), np.asarray(self.shares, dtype=float)
        times = self.resamples.times(self.tasks)
        return Sampled(
            float(_ratio(_ratio(kept @ good, kept.sum()), good.mean())),
            _ratio(_ratio(times @ (kept * good), times @ kept), _ratio(times @ good, times.sum(1))),
        )

    def solved_per_run(self) -> Sampled:
        """How many different tasks the kept runs solve, for each run kept."""
        solved: dict[str, int] = {}
        for at, (task, success) in enumerate(zip(self.tasks, self.successes, strict=True)):
            if success and self.shares[at]:
                solved.setdefault(task, at)
        first = np.zeros(len(self.tasks))
        first[list(solved.values())] = 1.0
        kept = np.asarray(self.shares, dtype=float)
        times = self.resamples.times(self.tasks)
        return Sampled(float(_ratio(first.sum(), kept.sum())), _ratio(times @ first, times @ kept))


def _ratio(above: Array | float, below: Array | float) -> Array:
    """Their ratio; NaN where that is not defined."""
    above, below = np.asarray(above, dtype=float), np.asarray(below, dtype=float)
    ratio = np.full(np.broadcast(above, below).shape, np.nan)
    np.divide(above, below, out=ratio, where=below > 0)
    return ratio
