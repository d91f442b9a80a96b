"""The scorer of the handlers of one store, whose novelty memory is in that store."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING

from kp_langchain._forksafe import ForkSafeLock, allow_forks
from kp_langchain.errors import LateError
from kp_langchain.recording.store_writer import StoreWriter, writer_of
from kp_langchain.scoring.process_scorer import default_scorer_with
from kp_langchain.store.remembered import Remembered
from kp_langchain.store.stored_memory import StoredMemory

if TYPE_CHECKING:
    from kp_langchain.scoring.scorer import Scorer
    from kp_langchain.store import TraceStore
    from kp_langchain.store.pending_entries import PendingEntries
    from kp_langchain.store.stored_memory import Job


def scorer_of(store: TraceStore, max_waiting: int) -> Scorer:
    """Return the process's default scorer with its memory in `store`: one for each store.

    Args:
        store: The store.
        max_waiting: As for `StoreWriter`.

    Raises:
        ConfigError: A setting cannot be read or used.
    """
    with _lock:
        scorer = _scorers.get(store)
        if scorer is None:
            database, thread = store.database, _StoreThread(store, max_waiting)

            def memory_of(scope: str, max_remembered: int, ttl_ms: float | None) -> StoredMemory:
                remembered = Remembered(database, scope, max_remembered, ttl_ms)
                return StoredMemory(remembered, read=thread.read, write=thread.write)

            scorer = _scorers[store] = default_scorer_with(memory_of)
        return scorer


class _StoreThread:
    """Reads and writes for a memory on the thread of a store's writer."""

    def __init__(self, store: TraceStore, max_waiting: int) -> None:
        # The store's scorer has the memory, which must not keep the store.
        self._store = weakref.ref(store)
        self._max_waiting = max_waiting

    def read(self, job: Job) -> None:
        """Run a job, and wait for it as long as scoring waits for the store.

        Raises:
            LateError: It is not done yet, and may be done later.
            Exception: Whatever the job raises.
        """
        with allow_forks():
            self._writer().read_on_thread(job)

    def write(self, pending: PendingEntries) -> None:
        """Have the entries written with the next write."""
        self._writer().remember(pending)

    def _writer(self) -> StoreWriter:
        store = self._store()
        if store is None:
            raise LateError("the store was released")
        return writer_of(store, self._max_waiting)


_scorers: weakref.WeakKeyDictionary[TraceStore, Scorer] = weakref.WeakKeyDictionary()
_lock = ForkSafeLock()
