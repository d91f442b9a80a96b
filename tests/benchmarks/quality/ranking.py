"""How well numbers rank good runs above bad ones."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict
from functools import cached_property

import numpy as np

from kp_langchain.calibration import measures
from tests.benchmarks.quality.resampling import Array, Estimate, Selection, TaskResamples

TOP_SHARE = 0.1


class Ranking:
    """The truth about runs of one source, to hold columns of numbers against.

    Args:
        successes: Whether each run succeeded.
        tasks: The task of each run.
    """

    def __init__(self, successes: Sequence[bool], tasks: Sequence[str]) -> None:
        self._successes = list(successes)
        self._tasks = list(tasks)
        self._good = np.array(successes, dtype=bool)
        members: defaultdict[str, list[int]] = defaultdict(list)
        for at, task in enumerate(tasks):
            members[task].append(at)
        found = [np.array(one) for one in members.values()]
        self._by_task = [(one[self._good[one]], one[~self._good[one]]) for one in found]

    @property
    def base_rate(self) -> float:
        """The share of runs that succeeded."""
        return float(self._good.mean())

    @property
    def _one_sided(self) -> bool:
        return bool(self._good.all() or not self._good.any())

    def auc(self, column: Sequence[float]) -> Estimate | None:
        """The chance that a good run has a higher number than a bad one; ties count half.

        None where there are only good runs, or only bad ones.
        """
        if self._one_sided:
            return None
        return asdict(measures.auc(self._successes, column, self._tasks))

    def gain(self, before: Sequence[float], after: Sequence[float]) -> Estimate | None:
        """By how much the AUC of `after` lies above that of `before`, run by run."""
        if self._one_sided:
            return None
        return asdict(measures.auc_gain(self._successes, after, before, self._tasks))

    def pairs(self) -> int:
        """How many pairs there are of a success and a failure of the same task."""
        return sum(len(good) * len(bad) for good, bad in self._by_task)

    def within_task(self, column: Sequence[float]) -> float | None:
        """The share of those pairs in which the success has the higher number; ties count half.

        None where there are no pairs.
        """
        values = np.asarray(column, dtype=float)
        right = 0.0
        for good, bad in self._by_task:
            above = values[good][:, None] - values[bad][None, :]
            right += float((above > 0).sum() + (above == 0).sum() / 2)
        return right / self.pairs() if self.pairs() else None

    def top(self, column: Sequence[float]) -> float:
        """The share of successes among the tenth of runs with the highest numbers.

        Of runs with equal numbers, of which only some belong to the tenth, each counts in part.
        """
        shares = _top_shares(column)
        return float((self._good * shares).sum() / shares.sum())

    def top_lift(self, column: Sequence[float]) -> Estimate | None:
        """That share, of the share of successes among all runs.

        None where no run succeeded.
        """
        return self._selection(_top_shares(column)).lift().estimate

    def solved_per_run(self, column: Sequence[float]) -> float:
        """How many different tasks the highest tenth solves, for each of its runs."""
        shares = np.zeros(len(self._tasks))
        shares[highest(column)] = 1.0
        return self._selection(shares).solved_per_run().value

    def _selection(self, shares: Array) -> Selection:
        return Selection(self._successes, self._tasks, shares.tolist(), self._resamples)

    @cached_property
    def _resamples(self) -> TaskResamples:
        return TaskResamples(self._tasks)

    def tasks_in_top(self, column: Sequence[float]) -> int:
        """How many different tasks the highest tenth holds; the earlier of equal runs is in it."""
        return len({self._tasks[at] for at in highest(column)})


def highest(column: Sequence[float]) -> list[int]:
    """The indices of the highest tenth of numbers, the highest first; the earlier of equal ones."""
    wanted = max(1, round(TOP_SHARE * len(column)))
    order: list[int] = np.argsort(-np.asarray(column, dtype=float), kind="stable").tolist()
    return order[:wanted]


def _top_shares(column: Sequence[float]) -> Array:
    """How much of each run belongs to the highest tenth, 0 to 1."""
    values = np.asarray(column, dtype=float)
    wanted = max(1.0, TOP_SHARE * len(values))
    edge = np.sort(values)[::-1][int(np.ceil(wanted)) - 1]
    above, level = values > edge, values == edge
    return np.asarray(above + level * ((wanted - above.sum()) / level.sum()), dtype=float)
