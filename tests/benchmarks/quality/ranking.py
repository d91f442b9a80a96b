"""How well numbers rank good runs above bad ones, and how sure that is.

Intervals are of 95 % and come from drawing tasks, not runs, with replacement: repeats of a task
are not independent. All draws are seeded, and two columns of one source share them, so that the
difference of two columns has an interval as well.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import TypedDict

import numpy as np

DRAWS = 1000
_LEVELS = (2.5, 97.5)
TOP_SHARE = 0.1


class Estimate(TypedDict):
    """A figure with its 95 % confidence interval."""

    value: float
    low: float
    high: float


class Ranking:
    """The truth about runs of one source, to hold columns of numbers against.

    Args:
        successes: Whether each run succeeded.
        tasks: The task of each run.
    """

    def __init__(self, successes: Sequence[bool], tasks: Sequence[str]) -> None:
        self._good = np.array(successes, dtype=bool)
        _, self._task = np.unique(np.array(tasks, dtype=str), return_inverse=True)
        many = int(self._task.max(initial=-1)) + 1
        rng = np.random.default_rng(0)
        drawn = rng.multinomial(many, [1 / many] * many, size=DRAWS) if many else np.ones((1, 0))
        self._counts = drawn[:, self._task].astype(float)  # how often each run is drawn

    @property
    def base_rate(self) -> float:
        """The share of runs that succeeded."""
        return float(self._good.mean())

    def auc(self, column: Sequence[float]) -> Estimate | None:
        """The chance that a good run has a higher number than a bad one; ties count half.

        None where there are only good runs, or only bad ones.
        """
        values = np.asarray(column, dtype=float)
        if self._good.all() or not self._good.any():
            return None
        (value,) = self._aucs(values, np.ones((1, len(values))))
        return _estimate(value, self._aucs(values, self._counts))

    def gain(self, before: Sequence[float], after: Sequence[float]) -> Estimate | None:
        """By how much the AUC of `after` lies above that of `before`."""
        if self._good.all() or not self._good.any():
            return None
        columns = [np.asarray(column, dtype=float) for column in (before, after)]
        old, new = (self._aucs(values, np.ones((1, len(values))))[0] for values in columns)
        drawn = [self._aucs(values, self._counts) for values in columns]
        return _estimate(new - old, drawn[1] - drawn[0])

    def _aucs(self, values: np.ndarray, counts: np.ndarray) -> np.ndarray:
        """The AUC under each row of counts; NaN where a row holds one class only."""
        order = np.argsort(values, kind="stable")
        starts = np.flatnonzero(np.diff(values[order], prepend=np.nan) != 0)
        good, bad = (
            np.add.reduceat(counts[:, order] * which[order], starts, axis=1)
            for which in (self._good, ~self._good)
        )
        below = np.cumsum(bad, axis=1) - bad / 2
        pairs = good.sum(axis=1) * bad.sum(axis=1)
        with np.errstate(invalid="ignore"):
            return np.asarray((good * below).sum(axis=1) / pairs)

    def pairs(self) -> int:
        """How many pairs there are of a success and a failure of the same task."""
        return sum(len(good) * len(bad) for good, bad in self._by_task())

    def within_task(self, column: Sequence[float]) -> float | None:
        """The share of those pairs in which the success has the higher number; ties count half.

        None where there are no pairs.
        """
        values = np.asarray(column, dtype=float)
        right = 0.0
        for good, bad in self._by_task():
            above = values[good][:, None] - values[bad][None, :]
            right += float((above > 0).sum() + (above == 0).sum() / 2)
        return right / self.pairs() if self.pairs() else None

    def _by_task(self) -> list[tuple[np.ndarray, np.ndarray]]:
        members: defaultdict[int, list[int]] = defaultdict(list)
        for at, task in enumerate(self._task):
            members[int(task)].append(at)
        found = [np.array(one) for one in members.values()]
        return [(one[self._good[one]], one[~self._good[one]]) for one in found]

    def top(self, column: Sequence[float]) -> float:
        """The share of successes among the tenth of runs with the highest numbers.

        Of runs with equal numbers, of which only some belong to the tenth, each counts in part.
        """
        values = np.asarray(column, dtype=float)
        wanted = max(1.0, TOP_SHARE * len(values))
        edge = np.sort(values)[::-1][int(np.ceil(wanted)) - 1]
        above, level = values > edge, values == edge
        share = (wanted - above.sum()) / level.sum()
        return float((self._good[above].sum() + share * self._good[level].sum()) / wanted)

    def tasks_in_top(self, column: Sequence[float]) -> int:
        """How many different tasks the highest tenth holds; the earlier of equal runs is in it."""
        values = np.asarray(column, dtype=float)
        wanted = max(1, round(TOP_SHARE * len(values)))
        best = np.argsort(-values, kind="stable")[:wanted]
        return len(set(self._task[best].tolist()))


def _estimate(value: float, drawn: np.ndarray) -> Estimate:
    low, high = np.nanpercentile(drawn, _LEVELS)
    return {"value": float(value), "low": float(low), "high": float(high)}
