"""`StoredMemory`: the novelty memory that outlives the process."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence, Set
from functools import partial
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa

from kp_langchain._forksafe import ForkSafeLock
from kp_langchain._logging import describe_error, warn_once
from kp_langchain.embedding.embedder import NO_IDENTITY
from kp_langchain.scoring.novelty_memory import InProcessMemory, Match, MemoryEntry, check_count
from kp_langchain.scoring.repeats import DEFAULT_MAX_ELEMENTS
from kp_langchain.store.rows import trace_key
from kp_langchain.store.tables import vectors
from kp_langchain.store.vectors import (
    Follower,
    Mark,
    Page,
    content_of,
    embedder_columns,
    is_of_embedder,
    vector_of,
    write,
)

if TYPE_CHECKING:
    from kp_langchain.store.database import Database

# A process prunes once it has written a tenth of what the memory holds.
_PRUNE_DIVISOR = 10
_READ_AGAIN_S = 0.25
_READ_ANEW_S = 60.0
# A page of vectors of 384 takes 8 MB; a memory may have a million.
_PAGE_SIZE = 5000
_c = vectors.c


class StoredMemory:
    """A novelty memory in a store. Got from `TraceStore.novelty_memory`.

    It compares with a window in this process. That is filled from the store when the first trace
    comes, and again when vectors of another embedder come. What other processes have remembered
    since is added before a trace is compared, every quarter of a second at most; after a deletion
    from the store, the window is emptied and filled again, once a minute at most. What this process
    remembers is written at once.

    While the store fails, novelty is measured in the window alone. There is one warning per kind of
    error, and the store is asked again after a while. What cannot be written is remembered in this
    process alone.

    Args:
        database: The database of the store.
        max_remembered: How many traces are kept; 1,000 by default.
        may_read: Says whether the store can be read; by default it always can.
        writes: Whether it writes what it remembers; a handler's is written with its runs.

    Raises:
        ConfigError: `max_remembered` is unusable.
    """

    def __init__(
        self,
        database: Database,
        max_remembered: int | None = None,
        *,
        may_read: Callable[[], bool] = lambda: True,
        writes: bool = True,
    ) -> None:
        check_count("max_remembered", max_remembered)
        self._database = database
        self._max_elements = max_remembered or DEFAULT_MAX_ELEMENTS
        self._may_read = may_read
        self._writes = writes
        self._window = InProcessMemory(self._max_elements)
        self._lock = ForkSafeLock()
        self._identity = NO_IDENTITY  # of the vectors in the window
        self._dimensions = 0
        self._follower: Follower[Any] = Follower(database, self._read, _READ_ANEW_S)
        self._due_at = float("-inf")
        self._writes_until_pruning = 0  # so that a process that writes little prunes as well

    def __reduce__(self) -> tuple[partial[StoredMemory], tuple[()]]:
        # What reads and writes belongs to this process, and so does the window.
        return (partial(type(self), self._database, self._max_elements), ())

    @property
    def max_elements(self) -> int:
        """How many traces it remembers at most."""
        return self._max_elements

    def compare(self, entry: MemoryEntry, *, ignore: Set[str] = frozenset()) -> Match:
        """Compare an entry with the remembered ones; see `NoveltyMemory`."""
        self._update(entry)
        return self._window.compare(entry, ignore=ignore)

    def compare_then_add(self, entry: MemoryEntry, *, ignore: Set[str] = frozenset()) -> Match:
        """Compare an entry with the remembered ones, and remember it; see `NoveltyMemory`."""
        self._update(entry)
        # With the id as the store has it, so that it is known again.
        entry = entry._replace(trace_id=trace_key(entry.trace_id))
        match = self._window.compare_then_add(entry, ignore=ignore)
        self._remember(entry)
        return match

    def add(self, entry: MemoryEntry) -> None:
        """Remember an entry."""
        self.compare_then_add(entry)

    def prune_all(self) -> int:
        """Delete what is beyond `max_elements`; return how many rows.

        Raises:
            StoreError: The database cannot be written.
        """
        with self._database.writing() as connection:
            return self._prune(connection)

    def _update(self, entry: MemoryEntry) -> None:
        """Fill the window from the store, if it is time to."""
        with self._lock:
            if entry.vector is not None:
                self._dimensions = len(entry.vector)
                if entry.identity != self._identity:
                    self._identity = entry.identity
                    self._follower.restart()
                    self._due_at = float("-inf")
            if time.monotonic() < self._due_at or not self._may_read():
                return
            self._due_at = time.monotonic() + _READ_AGAIN_S
            try:
                self._follower.read(self._apply_page)
            except Exception as error:  # noqa: BLE001 - a full disk, a dead server
                self._warn("cannot be read now", error)

    def _read(
        self, connection: sa.Connection, since: Mark | None
    ) -> Iterator[Sequence[sa.Row[Any]]]:
        """Yield the newest rows, the oldest of them first; the vectors of this embedder alone."""
        vector = sa.case((is_of_embedder(self._identity), _c.vector)).label("vector")
        select: sa.Select[Any] = sa.select(_c.number, _c.trace_id, _c.fingerprint, vector).where(
            _c.kind == "memory"
        )
        if since is not None:
            select = select.where(since.unseen(_c.change))
        last = connection.scalar(self._newest_superfluous()) or 0
        while True:
            page = select.where(_c.number > last).order_by(_c.number).limit(_PAGE_SIZE)
            rows = connection.execute(page).all()
            yield rows
            if len(rows) < _PAGE_SIZE:
                return
            last = rows[-1].number

    def _apply_page(self, page: Page[Any]) -> None:
        if page.is_anew:
            self._window.clear()
        entries = []
        for row in page.rows:
            vector = vector_of(row.vector)
            # An embedder may change its vectors, and keep its name.
            if vector is not None and len(vector) != self._dimensions:
                vector = None
            entries.append(MemoryEntry(row.trace_id, row.fingerprint, vector, self._identity))
        self._window.insert(entries)

    def _remember(self, entry: MemoryEntry) -> None:
        """Write an entry, and prune now and then."""
        self._writes_until_pruning -= 1
        is_full = self._writes_until_pruning <= 0
        if not (self._writes or is_full) or not self._may_read():
            return
        try:
            with self._database.writing() as connection:
                if self._writes:
                    write(connection, [memory_row(entry)])
                if is_full:
                    self._prune(connection)
                    self._writes_until_pruning = max(1, self._max_elements // _PRUNE_DIVISOR)
        except Exception as error:  # noqa: BLE001 - a full disk, a dead server
            self._warn("cannot be written", error)

    def _prune(self, connection: sa.Connection) -> int:
        last = connection.scalar(self._newest_superfluous()) or 0
        delete = sa.delete(vectors).where(_c.kind == "memory", _c.number <= last)
        return connection.execute(delete).rowcount

    def _newest_superfluous(self) -> sa.Select[tuple[int]]:
        """Return the query for the number of the newest row that the memory has no room for."""
        select: sa.Select[Any] = (
            sa.select(_c.number).where(_c.kind == "memory").order_by(_c.number.desc())
        )
        return select.offset(self._max_elements).limit(1)

    def _warn(self, what: str, error: Exception) -> None:
        location = self._database.location
        warn_once(
            f"memory:{what}:{location}:{type(error).__name__}",
            "what is remembered for novelty %s in %s (%s); novelty is measured against what this "
            "process remembers",
            what,
            location,
            describe_error(error),
        )


def memory_row(entry: MemoryEntry) -> dict[str, Any]:
    """Return the row of the table `vectors` of a trace that novelty is measured against."""
    return {
        "kind": "memory",
        "trace_id": trace_key(entry.trace_id),
        "fingerprint": entry.fingerprint,
        "vector": content_of(entry.vector),
        **embedder_columns(entry.identity),
    }
