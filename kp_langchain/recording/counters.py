"""Counts that several threads add to."""

from __future__ import annotations

import weakref
from collections import Counter
from typing import Final

from kp_langchain._forksafe import ForkSafeLock

COUNTERS: Final = (
    "runs", "scored", "kept", "below_threshold", "twin", "cancelled", "abandoned",
    "handed_over", "empty", "dropped", "failed", "not_stored", "callback_errors",
    "outcome_errors", "redaction_errors", "on_scored_errors", "dropped_steps",
    "dropped_texts", "queued", "waiting_to_store", "over_budget", "verifier_errors",
    "verifier_timeouts", "verifiers_skipped", "by_verifiers", "rescored", "verdict_errors",
    "scorer_errors", "adopted", "continued", "scores_sent", "scores_failed", "scores_dropped",
    "scores_without_trace", "scores_queued",
)  # fmt: skip
"""The names of the counters that `KPCallbackHandler.stats` explains."""


class Counters:
    """A count per name; `add` is exact under threads, and may be re-entered."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()
        self._lock = ForkSafeLock()
        with _all_lock:
            _all_counters.add(self)

    def add(self, name: str, n: int = 1) -> None:
        """Add `n`, which may be negative, to the count called `name`."""
        with self._lock:
            self._counts[name] += n

    def counts(self) -> dict[str, int]:
        """Return a copy of all counts."""
        with self._lock:
            return dict(self._counts)


def total(name: str) -> int:
    """Return the sum of the counts called `name` in this process."""
    with _all_lock:
        all_counters = list(_all_counters)
    return sum(counters.counts().get(name, 0) for counters in all_counters)


_all_counters: weakref.WeakSet[Counters] = weakref.WeakSet()
_all_lock = ForkSafeLock()
