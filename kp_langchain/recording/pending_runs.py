"""Scored runs that wait to be written into one store."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kp_langchain._forksafe import ForkSafeLock
from kp_langchain._logging import describe_error, warn_once
from kp_langchain.recording.pending import MAX_BATCH, count_as_dropped, warn_of_failed_write

if TYPE_CHECKING:
    from kp_langchain.gate import ScoredTrace
    from kp_langchain.recording.counters import Counters
    from kp_langchain.registry.sender import Sender
    from kp_langchain.store import TraceStore


@dataclass(frozen=True, slots=True)
class PendingRun:
    """A scored run to be written.

    Attributes:
        scored: The run.
        sender: Woken when the run is written, if there is a registry.
        counters: Count whether it is stored.
        has_draft: Whether its draft was written. If the store no longer has that, the run was
            deleted meanwhile, and is not written.
    """

    scored: ScoredTrace
    sender: Sender | None
    counters: Counters
    has_draft: bool = False


class PendingRuns:
    """A queue of scored runs. Safe to use from several threads; `write` is for the store's thread.

    Args:
        store: The store.
        max_waiting: Most runs that wait; see `drop_excess`.
        on_written: Called after each batch that was written.
    """

    def __init__(self, store: TraceStore, max_waiting: int, on_written: Callable[[], None]) -> None:
        self._store = store
        self._max_waiting = max_waiting
        self._on_written = on_written
        self._lock = ForkSafeLock()
        self._runs: deque[PendingRun] = deque()
        self._batch_size = MAX_BATCH

    def __len__(self) -> int:
        return len(self._runs)

    def put(self, run: PendingRun) -> None:
        """Add a run."""
        run.counters.add("waiting_to_store")
        with self._lock:
            self._runs.append(run)

    @property
    def are_too_many(self) -> bool:
        """Whether more runs wait than may."""
        return len(self._runs) > self._max_waiting

    def drop_excess(self) -> None:
        """Drop the oldest runs beyond the bound, and count them."""
        with self._lock:
            while self.are_too_many:
                count_as_dropped(self._runs.popleft().counters)

    def leave_to_parent(self) -> None:
        """Stop counting the runs, in a forked child: the parent writes them."""
        for run in self._runs:
            run.counters.add("waiting_to_store", -1)

    def write(self) -> bool:
        """Write the runs that wait now; return False, and warn, if the store fails.

        A run that can never be written, whatever the store's state, is dropped and counted.
        """
        remaining = len(self._runs)
        while remaining > 0 and (batch := self._next_batch(remaining)):
            try:
                registry = batch[0].scored.registry
                drafted = [run.scored.trace.id for run in batch if run.has_draft]
                deleted = self._store.unscored.deleted(drafted)
                runs = [run.scored for run in batch if run.scored.trace.id not in deleted]
                self._store.add_many(runs, registry=registry)
            except BaseException as error:  # noqa: BLE001 - a full disk, a dead server
                if len(batch) > 1:  # perhaps because of only one of them: one by one
                    with self._lock:
                        self._runs.extendleft(reversed(batch))
                        self._batch_size = 1
                    continue
                remaining -= 1
                if not self._put_back_or_drop(batch[0], error):
                    return False
                continue
            remaining -= len(batch)
            self._batch_size = min(2 * self._batch_size, MAX_BATCH)
            self._on_written()
            for run in batch:
                run.counters.add("waiting_to_store", -1)
            for sender in {run.sender for run in batch if run.sender is not None}:
                sender.wake()
        return True

    def _next_batch(self, most: int) -> list[PendingRun]:
        """Take the runs of one transaction: those for the same registry."""
        with self._lock:
            if not self._runs:
                return []
            first = self._runs.popleft()
            batch = [first]
            for _ in range(min(most, self._batch_size) - 1):
                if not self._runs or self._runs[0].scored.registry != first.scored.registry:
                    break
                batch.append(self._runs.popleft())
            return batch

    def _put_back_or_drop(self, run: PendingRun, error: BaseException) -> bool:
        """Queue a failed run again; return True if it was dropped, so that others can go on."""
        location = self._store.location
        if _can_ever_be_written(run.scored):
            warn_of_failed_write(location, "a run", error)
            # To the back, so that one that always fails does not hold the others up.
            with self._lock:
                self._runs.append(run)
            return False
        warn_once(
            f"unwritable:{location}:{type(error).__name__}",
            "a run cannot be written into %s (%s); it is dropped and counted under 'not_stored'",
            location,
            describe_error(error),
        )
        count_as_dropped(run.counters)
        return True


def _can_ever_be_written(scored: ScoredTrace) -> bool:
    from kp_langchain.store.rows import row_of

    try:
        row_of(scored)
    except Exception:  # noqa: BLE001 - whatever it is, it would be the same next time
        return False
    return True
