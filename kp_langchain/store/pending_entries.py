"""Entries of a novelty memory that wait to be written into one store."""

from __future__ import annotations

import os
import weakref
from collections import deque
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from kp_langchain._forksafe import ForkSafeLock
from kp_langchain._logging import describe_error, warn_once
from kp_langchain.store.backoff import Backoff
from kp_langchain.store.remembered import Remembered, TimedEntry

if TYPE_CHECKING:
    from kp_langchain.scoring.novelty_memory import MemoryEntry

MAX_BATCH = 256
"""The most entries of one transaction, and the most to put at once."""
# For the store of a service that is down for a while; an entry takes about 2 KB.
_MAX_WAITING = 1000
# Pruning waits until there are so many more than the memory holds, one for each of this number.
_SLACK = 10


class PendingEntries:
    """A queue of remembered traces. Safe to use from several threads.

    A write that fails is tried again with the next one, after growing pauses. A forked child starts
    with an empty queue: what waits is the parent's to write.

    Args:
        remembered: Where they are written.
    """

    def __init__(self, remembered: Remembered) -> None:
        self._remembered = remembered
        self._lock = ForkSafeLock()
        self._entries: deque[TimedEntry] = deque()
        self._in_flight = 0
        self._backoff = Backoff()
        self._until_pruning = 0  # so that a process that writes little prunes as well
        _queues.add(self)

    def __len__(self) -> int:
        return len(self._entries) + self._in_flight

    def put(self, entries: Iterable[MemoryEntry]) -> None:
        """Add up to `MAX_BATCH` entries; of more than 1,000 that wait, the oldest are dropped."""
        now = datetime.now(UTC)
        with self._lock:
            self._entries.extend(TimedEntry(entry, now) for entry in entries)
            excess = len(self._entries) - _MAX_WAITING
            for _ in range(excess):
                self._entries.popleft()
        if excess > 0:
            warn_once(
                f"forgotten:{self._remembered.location}",
                "more than %d traces wait to be remembered in %s, so the oldest of them are not; "
                "novelty is measured without them after a restart",
                _MAX_WAITING,
                self._remembered.location,
            )

    def write(self) -> None:
        """Write the entries, batch by batch, unless the store failed a moment ago."""
        if self._backoff.is_pausing:
            return
        while batch := self._next_batch():
            prune = self._until_pruning <= 0
            try:
                self._remembered.add(batch, prune=prune)
            except BaseException as error:
                with self._lock:
                    self._in_flight = 0
                    self._entries.extendleft(reversed(batch))
                if not isinstance(error, Exception):  # such as Ctrl-C in the caller's thread
                    raise
                self._backoff.note_failure()
                self._warn_of_failure(error)
                return
            self._in_flight = 0
            self._backoff.note_success()
            if prune:
                self._until_pruning = max(1, self._remembered.max_elements // _SLACK)
            self._until_pruning -= len(batch)

    def end_pause(self) -> None:
        """Have the next write try again, however little time has passed since the last failure."""
        self._backoff.end_pause()

    def leave_to_parent(self) -> None:
        """Drop what waits, in a forked child."""
        self._entries.clear()
        self._in_flight = 0

    def _next_batch(self) -> list[TimedEntry]:
        with self._lock:
            count = self._in_flight = min(len(self._entries), MAX_BATCH)
            return [self._entries.popleft() for _ in range(count)]

    def _warn_of_failure(self, error: BaseException) -> None:
        location = self._remembered.location
        warn_once(
            f"remember:{location}:{type(error).__name__}",
            "what is remembered for novelty cannot be kept in %s now (%s); it waits in memory and "
            "is tried again",
            location,
            describe_error(error),
        )


_queues: weakref.WeakSet[PendingEntries] = weakref.WeakSet()


def _after_fork() -> None:
    for queue in list(_queues):
        queue.leave_to_parent()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
