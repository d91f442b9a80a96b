"""Changes of paused runs that wait to be written: what one recorded, or that one is over."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from itertools import islice
from typing import TYPE_CHECKING

from kp_langchain._forksafe import ForkSafeLock
from kp_langchain.recording.pending import MAX_BATCH

if TYPE_CHECKING:
    from kp_langchain.recording.run_record import RunRecord
    from kp_langchain.store import TraceStore
    from kp_langchain.store.paused_runs import FirstHalf


@dataclass(frozen=True, slots=True)
class _Pause:
    half: FirstHalf
    record: RunRecord
    days: float
    max_paused: int


class PendingPauses:
    """The newest change for each place in one store. Safe to use from several threads.

    Args:
        store: The store.
        max_waiting: Most changes that wait.
    """

    def __init__(self, store: TraceStore, max_waiting: int) -> None:
        self._store = store
        self._max_waiting = max_waiting
        self._lock = ForkSafeLock()
        # By place: the pause to write, or the time up to which a stored pause is deleted.
        self._changes: dict[str, _Pause | datetime] = {}

    def __len__(self) -> int:
        return len(self._changes)

    @property
    def pauses(self) -> int:
        """Number of paused runs among the changes."""
        return sum(isinstance(change, _Pause) for change in list(self._changes.values()))

    def put(self, half: FirstHalf, record: RunRecord, *, days: float, max_paused: int) -> None:
        """Add what a paused run recorded.

        Args:
            half: What it recorded.
            record: The run; its `is_stored` is set once that is written.
            days: The number of days for which the store keeps it.
            max_paused: The most paused runs that the store keeps.
        """
        with self._lock:
            self._changes.pop(half.place, None)
            self._changes[half.place] = _Pause(half, record, days, max_paused)
            while len(self._changes) > self._max_waiting:
                del self._changes[next(iter(self._changes))]  # it still waits in memory

    def forget(self, place: str, until: datetime) -> None:
        """Delete what waits in a place, if it paused no later than a time.

        Args:
            place: The place.
            until: The time, in UTC.
        """
        with self._lock:
            change = self._changes.get(place)
            if isinstance(change, _Pause):
                if change.half.paused_at > until:
                    return
            elif change is None and len(self._changes) >= self._max_waiting:
                return  # the store deletes it when its days are over
            self._changes[place] = until

    def waiting_in(self, place: str) -> FirstHalf | datetime | None:
        """Return the change for a place: what is to be written, or up to when to delete."""
        change = self._changes.get(place)
        return change.half if isinstance(change, _Pause) else change

    def write(self) -> Iterator[int]:
        """Write all changes into the store, batch by batch.

        Yields:
            How many paused runs the store deleted with a batch, because they are too old or too
            many.

        Raises:
            StoreError: The store cannot be written; what is not written yet still waits.
        """
        while batch := self._next_batch():
            pauses = [change for change in batch.values() if isinstance(change, _Pause)]
            expired = 0
            if pauses:
                newest = pauses[-1]
                halves = [pause.half for pause in pauses]
                expired = self._store.paused.put(halves, days=newest.days, most=newest.max_paused)
            deletions = {
                place: change for place, change in batch.items() if isinstance(change, datetime)
            }
            if deletions:
                self._store.paused.forget(deletions)
            with self._lock:
                for place, change in batch.items():
                    if self._changes.get(place) is change:
                        del self._changes[place]
            for pause in pauses:
                pause.record.is_stored = True
            yield expired

    def _next_batch(self) -> dict[str, _Pause | datetime]:
        with self._lock:
            return dict(islice(self._changes.items(), MAX_BATCH))
