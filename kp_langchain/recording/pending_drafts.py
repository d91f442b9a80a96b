"""Redacted drafts of finished runs that wait to be written into one store."""

from __future__ import annotations

import threading
from itertools import islice
from typing import TYPE_CHECKING

from kp_langchain._forksafe import ForkSafeLock
from kp_langchain.recording.pending import MAX_BATCH, warn_of_failed_write

if TYPE_CHECKING:
    from kp_langchain.recording.draft import Draft
    from kp_langchain.store import TraceStore

# Scoring without a model takes less, and such a run is written once instead of twice.
_DRAFT_AFTER_S = 0.005


class PendingDrafts:
    """The drafts of runs that are not scored yet. Safe to use from several threads.

    Args:
        store: The store.
        max_waiting: Most drafts that wait; further ones are not written.
    """

    def __init__(self, store: TraceStore, max_waiting: int) -> None:
        self._store = store
        self._max_waiting = max_waiting
        self._lock = ForkSafeLock()
        self._drafts: dict[str, Draft] = {}  # by trace id
        self._written: dict[str, None] = {}  # of runs that are not scored yet, the oldest first
        self._is_scored = threading.Event()  # set once a run is scored, until the next write

    def __len__(self) -> int:
        return len(self._drafts)

    def put(self, draft: Draft) -> None:
        """Add a draft."""
        with self._lock:
            if len(self._drafts) < self._max_waiting:
                self._drafts[draft.trace.id] = draft

    def discard(self, trace_id: str) -> bool:
        """Remove the draft of a run that is scored; the run itself is written instead.

        Returns:
            Whether the draft was written.
        """
        with self._lock:
            self._drafts.pop(trace_id, None)
            was_written = trace_id in self._written
            self._written.pop(trace_id, None)
        self._is_scored.set()
        return was_written

    def note_adopted(self, trace_id: str) -> None:
        """Note that another process wrote the draft of a run that this one scores."""
        with self._lock:
            self._note_written(trace_id)

    def _note_written(self, trace_id: str) -> None:
        self._written[trace_id] = None
        while len(self._written) > self._max_waiting:  # some can never be scored
            del self._written[next(iter(self._written))]

    def write(self, *, may_wait: bool) -> bool:
        """Write all drafts, batch by batch; return False, and warn, if the store fails.

        Args:
            may_wait: Whether to wait a moment first, in case a run is scored meanwhile.
        """
        self._is_scored.clear()
        if self._drafts and may_wait:
            self._is_scored.wait(_DRAFT_AFTER_S)
        while batch := self._next_batch():
            try:
                self._store.unscored.add(
                    (draft.trace.id, str(draft.run_id), draft.to_dict()) for draft in batch
                )
            except BaseException as error:  # noqa: BLE001 - a full disk, a dead server
                warn_of_failed_write(self._store.location, "the draft of a run", error)
                return False
            with self._lock:
                for draft in batch:
                    if self._drafts.pop(draft.trace.id, None) is not None:
                        self._note_written(draft.trace.id)
        return True

    def _next_batch(self) -> list[Draft]:
        with self._lock:
            return list(islice(self._drafts.values(), MAX_BATCH))
