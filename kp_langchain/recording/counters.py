"""Counts that several threads add to."""

from __future__ import annotations

import weakref
from collections import Counter

from kp_langchain._forksafe import ForkSafeLock


class Counters:
    """A counter per name; `add` loses nothing under threads, and may be re-entered."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()
        self._lock = ForkSafeLock()
        with _all_lock:
            _all.add(self)

    def add(self, name: str, n: int = 1) -> None:
        """Add `n` to the count called `name`."""
        with self._lock:
            self._counts[name] += n

    def counts(self) -> dict[str, int]:
        """A copy of all counts."""
        with self._lock:
            return dict(self._counts)


def total(name: str) -> int:
    """Return the sum of the counts called `name` in this process."""
    with _all_lock:
        everyone = list(_all)
    return sum(counters.counts().get(name, 0) for counters in everyone)


_all: weakref.WeakSet[Counters] = weakref.WeakSet()
_all_lock = ForkSafeLock()
