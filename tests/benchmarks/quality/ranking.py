"""How well numbers rank good runs above bad ones."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict

import numpy as np

from kp_langchain.calibration import measures

TOP_SHARE = 0.1

Estimate = dict[str, float]  # value, and low and high of its 95 % confidence interval


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
        values = np.asarray(column, dtype=float)
        wanted = max(1.0, TOP_SHARE * len(values))
        edge = np.sort(values)[::-1][int(np.ceil(wanted)) - 1]
        above, level = values > edge, values == edge
        share = (wanted - above.sum()) / level.sum()
        return float((self._good[above].sum() + share * self._good[level].sum()) / wanted)

    def tasks_in_top(self, column: Sequence[float]) -> int:
        """How many different tasks the highest tenth holds; the earlier of equal runs is in it."""
        wanted = max(1, round(TOP_SHARE * len(self._tasks)))
        best = np.argsort(-np.asarray(column, dtype=float), kind="stable")[:wanted]
        return len({self._tasks[at] for at in best})
