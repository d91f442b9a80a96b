"""`RecentValues`: what the gate saw of the last runs, and the threshold that holds a pass rate."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable

from kp_langchain._forksafe import ForkSafeLock

WINDOW = 300
"""So many of the last runs count."""

# Below this, a quantile says little.
_FEWEST_VALUES = 30
# A surplus or deficit of passes is made up for within about so many runs. Of 20, 30, 40 and 100, 20
# kept the share of each 100 recorded runs closest to the promised one, and what was kept was as
# often right.
_CATCH_UP_RUNS = 20


class RecentValues:
    """The scores or worths of a domain's last runs, and which of them passed.

    Values drift: as the novelty memory fills, novelty falls, and a fixed threshold lets fewer and
    fewer runs pass. So the threshold is the quantile of the last runs that lets a given share pass.
    If more or fewer runs passed than that, it rises or falls until the share is right again.

    Safe to use from several threads, and after a fork.

    Args:
        values: Values of runs that the gate never judged, to begin with, such as the held-out ones
            of the runs that a model was fitted to.
        judged: Value and fate of earlier runs, the oldest first.
    """

    def __init__(
        self, values: Iterable[float] = (), judged: Iterable[tuple[float, bool]] = ()
    ) -> None:
        self._lock = ForkSafeLock()
        self._values = deque(values, maxlen=WINDOW)
        self._passes: deque[bool] = deque(maxlen=WINDOW)
        for value, passes in judged:
            self.add(value, passes=passes)

    def add(self, value: float, *, passes: bool) -> None:
        """Add a run that the gate has judged.

        Args:
            value: Its score or worth, 0 to 1.
            passes: Whether it passed.
        """
        with self._lock:
            self._values.append(value)
            self._passes.append(passes)

    def threshold(self, pass_rate: float) -> float | None:
        """Return the threshold, 0 to 1, at which a share of the next runs should pass.

        Args:
            pass_rate: The share, above 0, at most 1.

        Returns:
            The threshold; None while too few runs are known.
        """
        with self._lock:
            if len(self._values) < _FEWEST_VALUES:
                return None
            deficit = pass_rate * len(self._passes) - sum(self._passes)
            share = min(1.0, max(0.0, pass_rate + deficit / _CATCH_UP_RUNS))
            passing = round(share * len(self._values))
            highest = sorted(self._values, reverse=True)
        return highest[passing - 1] if passing else math.nextafter(highest[0], 2.0)
