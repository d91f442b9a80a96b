"""`StoredMemory`: a novelty memory that outlives the process, in a store."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence, Set
from functools import partial
from typing import TYPE_CHECKING

from kp_langchain._forksafe import ForkSafeLock
from kp_langchain._logging import describe_error, warn_once
from kp_langchain.scoring.in_process_memory import InProcessMemory
from kp_langchain.store.pending_entries import MAX_BATCH, PendingEntries
from kp_langchain.store.rows import trace_key

if TYPE_CHECKING:
    from kp_langchain.embedding.identity import EmbedderIdentity
    from kp_langchain.scoring.novelty_memory import Match, MemoryEntry
    from kp_langchain.store.remembered import Remembered

Job = Callable[[], None]

_READ_AGAIN_S = 60.0


def _run_here(job: Job) -> None:
    job()


class StoredMemory:
    """A novelty memory in a store. Got from `TraceStore.novelty_memory`.

    It compares with a window in this process. That is filled from the store when the first trace
    comes, and again when vectors of another embedder come. What other processes have remembered
    since is added once a minute; after a deletion from the store, the window is emptied and filled
    again then. What this process remembers is written at once.

    While the store fails or does not answer, novelty is measured in the window alone, with one
    warning per kind of error, and the store is asked again after a minute. What could not be
    written waits in memory.

    Args:
        remembered: The traces in the store.
        read: Runs a job that reads from the store. It may do so on another thread, and raise if
            that takes too long; the job may finish later. By default it calls the job.
        write: Runs a job that writes into the store, perhaps later. By default it calls the job.
    """

    def __init__(
        self,
        remembered: Remembered,
        *,
        read: Callable[[Job], None] = _run_here,
        write: Callable[[PendingEntries], None] = PendingEntries.write,
    ) -> None:
        self._remembered = remembered
        self._window = InProcessMemory(remembered.max_elements, remembered.ttl_ms)
        self._pending = PendingEntries(remembered)
        self._read_job = read
        self._write_job = write
        self._lock = ForkSafeLock()
        self._identity: EmbedderIdentity | None = None  # of the vectors in the window
        # The highest number in the store when vectors, or fingerprints, were last read.
        self._vectors_seen: int | None = None
        self._repeats_seen = 0
        self._deletions_seen = 0
        self._due_at = self._resting_until = self._may_load_at = float("-inf")

    def __repr__(self) -> str:
        return f"StoredMemory({self._remembered.location!r})"

    def __reduce__(self) -> tuple[partial[StoredMemory], tuple[()]]:
        # What reads and writes belongs to this process, and so does the window.
        return (partial(type(self), self._remembered), ())

    @property
    def max_elements(self) -> int:
        """How many traces it remembers at most."""
        return self._remembered.max_elements

    def compare(self, entry: MemoryEntry, *, ignore: Set[str] = frozenset()) -> Match:
        """Compare an entry with the remembered ones; see `NoveltyMemory`."""
        self._read([entry])
        return self._window.compare(entry, ignore=ignore)

    def compare_then_add(
        self, entries: Sequence[MemoryEntry], *, ignore: Set[str] = frozenset()
    ) -> list[Match]:
        """Compare entries with the remembered ones, and remember them; see `NoveltyMemory`."""
        self._read(entries)
        entries = [_with_stored_id(entry) for entry in entries]
        matches = self._window.compare_then_add(entries, ignore=ignore)
        self._write(entries)
        return matches

    def add(self, entry: MemoryEntry) -> None:
        """Remember an entry, without a look at the store."""
        entry = _with_stored_id(entry)
        self._note_identity([entry])
        self._window.add(entry)
        self._write([entry])

    def _write(self, entries: Sequence[MemoryEntry]) -> None:
        for start in range(0, len(entries), MAX_BATCH):
            self._pending.put(entries[start : start + MAX_BATCH])
            self._write_job(self._pending)

    def _note_identity(self, entries: Sequence[MemoryEntry]) -> tuple[EmbedderIdentity, int] | None:
        """Note the embedder of the entries; return it with the length of its vectors."""
        for entry in entries:
            if entry.vector is not None:
                with self._lock:
                    if entry.identity != self._identity:  # the window starts again
                        self._identity, self._vectors_seen = entry.identity, None
                return entry.identity, len(entry.vector)
        return None

    def _read(self, entries: Sequence[MemoryEntry]) -> None:
        """Fill the window from the store, if it is time to."""
        now, embedder = time.monotonic(), self._note_identity(entries)
        jobs: list[Job] = []
        with self._lock:
            if now < self._resting_until:
                return
            is_due, is_loaded = now >= self._due_at, self._vectors_seen is not None
            if is_due:
                jobs += [self._forget_deleted, self._fill_repeats]
            # An embedder that keeps changing its identity is not followed each time.
            if embedder and (is_due if is_loaded else now >= self._may_load_at):
                jobs.append(partial(self._fill_vectors, *embedder))
        if not jobs:
            return
        try:
            self._read_job(lambda: _run_all(jobs))
        except Exception as error:  # noqa: BLE001 - a full disk, a dead server
            self._resting_until = now + _READ_AGAIN_S
            location = self._remembered.location
            warn_once(
                f"memory:{location}:{type(error).__name__}",
                "what %s remembers for novelty cannot be read now (%s); novelty is measured "
                "against what this process remembers",
                location,
                describe_error(error),
            )

    # ---------------------------------------------------------------- perhaps on another thread

    def _forget_deleted(self) -> None:
        """Empty the window if runs were deleted from the store since it was filled."""
        deletions = self._remembered.deletions()
        with self._lock:
            if self._deletions_seen != deletions:
                self._window.clear()
                self._vectors_seen, self._repeats_seen = None, 0
                self._may_load_at = float("-inf")
            self._deletions_seen = deletions

    def _fill_repeats(self) -> None:
        with self._lock:
            deletions, seen = self._deletions_seen, self._repeats_seen
        newest = self._remembered.newest_number()
        for entries in self._remembered.repeats(_above(seen, newest)):
            with self._lock:
                if deletions != self._deletions_seen:  # this page may have what was deleted
                    return
                self._window.insert_repeats(entries)
        with self._lock:
            if deletions == self._deletions_seen:
                self._repeats_seen, self._due_at = newest, time.monotonic() + _READ_AGAIN_S

    def _fill_vectors(self, identity: EmbedderIdentity, dimensions: int) -> None:
        with self._lock:
            filled, seen = (identity, self._deletions_seen), self._vectors_seen
        newest = self._remembered.newest_number()
        for page in self._remembered.vectors(identity, dimensions, _above(seen, newest)):
            with self._lock:
                if filled != (self._identity, self._deletions_seen):
                    return
                self._window.insert_vectors(identity, page.rows, page.trace_ids, page.ages_s)
        with self._lock:
            if filled == (self._identity, self._deletions_seen):
                self._vectors_seen = newest
                if seen is None:
                    self._may_load_at = time.monotonic() + _READ_AGAIN_S


def _run_all(jobs: Sequence[Job]) -> None:
    for job in jobs:
        job()


def _above(seen: int | None, newest: int) -> int:
    """Return above which number rows are new; 0 if the table was made anew since."""
    return 0 if seen is None or seen > newest else seen


def _with_stored_id(entry: MemoryEntry) -> MemoryEntry:
    """Return the entry with its trace's id as the store has it, so that it is known again."""
    key = trace_key(entry.trace_id)
    return entry if key == entry.trace_id else entry._replace(trace_id=key)
