"""`RecentValues`: what the gate saw of the last runs, and the threshold that holds a pass rate."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable
from typing import NamedTuple

from kp_langchain._forksafe import ForkSafeLock

WINDOW = 300
"""So many of the last runs count."""

# Below this, a quantile says little.
_FEWEST_VALUES = 30
# A surplus or deficit of passes is made up for within about so many runs. Of 20, 30, 40 and 100, 20
# kept the share of each 100 recorded runs closest to the promised one, and what was kept was as
# often right.
_CATCH_UP_RUNS = 20
# The share is at most so many times the promised one: otherwise many runs in a row that could not
# pass, such as repeats, would let nearly all that follow pass.
_LARGEST_FACTOR = 4.0


class JudgedRun(NamedTuple):
    """What the gate saw of a run, and decided.

    Attributes:
        value: Its score or worth, 0 to 1.
        passes: Whether one more run was kept because of it.
        pass_rate: The share of runs that was to pass then; None for a fixed threshold.
    """

    value: float
    passes: bool
    pass_rate: float | None


class RecentValues:
    """The scores or worths of a domain's last runs, and which of them passed.

    Values drift: as the novelty memory fills, novelty falls, and a fixed threshold lets fewer and
    fewer runs pass. So the threshold is the quantile of the last runs that lets a given share pass.
    If more or fewer runs passed than that, it rises or falls until the share is right again.

    Safe to use from several threads, and after a fork.

    Args:
        values: Values of runs that the gate never judged, to begin with, such as the held-out ones
            of the runs that a model was fitted to.
        judged: Earlier runs that it judged, the oldest first.
    """

    def __init__(self, values: Iterable[float] = (), judged: Iterable[JudgedRun] = ()) -> None:
        self._lock = ForkSafeLock()
        self._values = deque(values, maxlen=WINDOW)
        # Of each run, the share that was to pass, less 1 if it passed.
        self._deficits: deque[float] = deque(maxlen=WINDOW)
        for run in judged:
            self.add(run)

    def add(self, run: JudgedRun) -> None:
        """Add a run that the gate has judged."""
        with self._lock:
            self._values.append(run.value)
            if run.pass_rate is not None:
                self._deficits.append(run.pass_rate - run.passes)

    def threshold(self, pass_rate: float) -> float | None:
        """Return the threshold at which a share of the next runs should pass.

        Args:
            pass_rate: The share, above 0, at most 1.

        Returns:
            The threshold, 0 to 1, or just above the highest value; None while too few runs are
            known.
        """
        with self._lock:
            if len(self._values) < _FEWEST_VALUES:
                return None
            deficit = math.fsum(self._deficits)
            highest = sorted(self._values, reverse=True)
        share = max(0.0, pass_rate + deficit / _CATCH_UP_RUNS)
        share = min(1.0, pass_rate * _LARGEST_FACTOR, share)
        passing = round(share * len(highest))
        return highest[passing - 1] if passing else math.nextafter(highest[0], 2.0)
