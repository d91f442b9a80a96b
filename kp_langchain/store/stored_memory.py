"""`StoredMemory`: a novelty memory that outlives the process, in a store."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence, Set
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any

from kp_langchain._forksafe import ForkSafeLock
from kp_langchain._logging import describe_error, warn_once
from kp_langchain.scoring.in_process_memory import InProcessMemory
from kp_langchain.scoring.repeats import DEFAULT_MAX_ELEMENTS
from kp_langchain.store import sql
from kp_langchain.store.backoff import Backoff
from kp_langchain.store.rows import short_key, trace_key
from kp_langchain.store.vectors import Follower, Page, content_of, embedder_columns

if TYPE_CHECKING:
    import sqlalchemy as sa

    from kp_langchain.embedding.identity import EmbedderIdentity
    from kp_langchain.scoring.novelty_memory import Match, MemoryEntry
    from kp_langchain.store.database import Database
    from kp_langchain.store.vector_queries import Space

# The most rows of one transaction.
_MAX_BATCH = 256
# For the store of a service that is down for a while; a row takes about 2 KB.
_MAX_UNWRITTEN = 1000
# Pruning waits until there are so many more than the memory holds, one for each of this number.
_SLACK = 10
_READ_AGAIN_S = 60.0


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
        database: The database of the store.
        scope: A domain; empty for all domains.
        max_elements: How many traces of one embedder are kept.
        ttl_ms: Milliseconds after which a trace is forgotten; None for when newer ones come.
        may_read: Says whether the store can be read; by default it always can.
        write: Has a memory written, perhaps later; by default it is written at once.
    """

    def __init__(
        self,
        database: Database,
        scope: str = "",
        max_elements: int = DEFAULT_MAX_ELEMENTS,
        ttl_ms: float | None = None,
        *,
        may_read: Callable[[], bool] = lambda: True,
        write: Callable[[StoredMemory], None] | None = None,
    ) -> None:
        self._database = database
        self._scope = short_key(scope)
        self._max_elements = max_elements
        self._ttl_ms = ttl_ms
        self._may_read = may_read
        self._write = write or StoredMemory.write
        self._window = InProcessMemory(max_elements, ttl_ms)
        self._lock = ForkSafeLock()
        self._identity: EmbedderIdentity | None = None  # of the vectors in the window
        self._dimensions = 0
        self._vectors: Follower[Any] | None = None
        self._fingerprints = self._follow("fingerprint", {})
        self._due_at = self._resting_until = float("-inf")
        self._unwritten: deque[dict[str, Any]] = deque()
        self._write_lock = ForkSafeLock()
        self._backoff = Backoff()
        self._until_pruning = 0  # so that a process that writes little prunes as well

    def __repr__(self) -> str:
        return f"StoredMemory({str(self._database.location)!r})"

    def __reduce__(self) -> tuple[partial[StoredMemory], tuple[()]]:
        # What reads and writes belongs to this process, and so does the window.
        bounds = (self._scope, self._max_elements, self._ttl_ms)
        return (partial(type(self), self._database, *bounds), ())

    @property
    def max_elements(self) -> int:
        """How many traces it remembers at most."""
        return self._max_elements

    @property
    def unwritten(self) -> int:
        """How many traces wait to be written."""
        return len(self._unwritten)

    def compare(self, entry: MemoryEntry, *, ignore: Set[str] = frozenset()) -> Match:
        """Compare an entry with the remembered ones; see `NoveltyMemory`."""
        self._update([entry])
        return self._window.compare(entry, ignore=ignore)

    def compare_then_add(
        self, entries: Sequence[MemoryEntry], *, ignore: Set[str] = frozenset()
    ) -> list[Match]:
        """Compare entries with the remembered ones, and remember them; see `NoveltyMemory`."""
        self._update(entries)
        entries = [_with_stored_id(entry) for entry in entries]
        matches = self._window.compare_then_add(entries, ignore=ignore)
        self._remember(entries)
        return matches

    def add(self, entry: MemoryEntry) -> None:
        """Remember an entry, without a look at the store."""
        entry = _with_stored_id(entry)
        with self._lock:
            self._note_embedder([entry])
        self._window.add(entry)
        self._remember([entry])

    def count(self) -> int:
        """Return the number of remembered traces in the store, of any scope and embedder.

        Raises:
            StoreError: The database cannot be read.
        """
        with self._database.reading() as connection:
            return sql.vector_queries.count_remembered(connection)

    def prune_all(self) -> int:
        """Delete what is too old or beyond `max_elements` in any scope; return how many rows.

        Raises:
            StoreError: The database cannot be written.
        """
        with self._database.writing() as connection:
            return self._prune(connection, sql.vector_queries.memories(connection))

    # ------------------------------------------------------------------ reading

    def _follow(self, content: str, embedder: dict[str, Any]) -> Follower[Any]:
        def read(connection: sa.Connection, since: int | None) -> Iterable[Sequence[Any]]:
            return sql.vector_queries.remembered(
                connection,
                sql.vector_queries.Space("memory", self._scope, **embedder),
                content,
                since=since,
                newest=self._max_elements,
                oldest=self._oldest(),
            )

        # Traces may be remembered before anything is read.
        return Follower(self._database, read, deletions=0)

    def _note_embedder(self, entries: Sequence[MemoryEntry]) -> None:
        """Follow the vectors of the embedder of some entries."""
        for entry in entries:
            if entry.vector is not None and entry.identity != self._identity:
                self._identity, self._dimensions = entry.identity, len(entry.vector)
                columns = embedder_columns(entry.identity)
                self._vectors = None if columns is None else self._follow("vector", columns)
                self._due_at = float("-inf")
                return

    def _update(self, entries: Sequence[MemoryEntry]) -> None:
        """Fill the window from the store, if it is time to."""
        with self._lock:
            now = time.monotonic()
            self._note_embedder(entries)
            if now < max(self._due_at, self._resting_until) or not self._may_read():
                return
            try:
                self._fingerprints.read(self._take_fingerprints)
                if self._vectors is not None:
                    self._vectors.read(self._take_vectors)
                self._due_at = time.monotonic() + _READ_AGAIN_S
            except Exception as error:  # noqa: BLE001 - a full disk, a dead server
                self._resting_until = now + _READ_AGAIN_S
                location = self._database.location
                warn_once(
                    f"memory:{location}:{type(error).__name__}",
                    "what %s remembers for novelty cannot be read now (%s); novelty is measured "
                    "against what this process remembers",
                    location,
                    describe_error(error),
                )

    def _take_fingerprints(self, page: Page[Any]) -> None:
        if page.is_after_deletion:
            self._window.clear()
            if self._vectors is not None:
                self._vectors.restart()
        rows = self._usable(page.rows)
        ages_s = _ages_s(rows)
        self._window.insert_repeats(
            (row.content, row.trace_id, age_s) for row, age_s in zip(rows, ages_s, strict=True)
        )

    def _take_vectors(self, page: Page[Any]) -> None:
        import numpy as np

        if self._identity is None:
            return
        rows = self._usable(page.rows, 4 * self._dimensions)
        joined = b"".join(row.content for row in rows)
        matrix = np.frombuffer(joined, dtype="<f4").reshape(len(rows), self._dimensions)
        matrix = matrix.astype(np.float32, copy=False)
        ids = [row.trace_id for row in rows]
        self._window.insert_vectors(self._identity, matrix, ids, _ages_s(rows))

    def _usable(self, rows: Sequence[Any], n_bytes: int | None = None) -> Sequence[Any]:
        """Return the rows that are not damaged, and warn of the others."""
        # SQLite takes values of any type in any column.
        usable = [
            row
            for row in rows
            if isinstance(row.content, bytes)
            and isinstance(row.trace_id, str)
            and (n_bytes is None or (len(row.content) == n_bytes and _is_finite(row.content)))
        ]
        if damaged := len(rows) - len(usable):
            location = self._database.location
            warn_once(
                f"damaged memory:{location}",
                "%d traces that %s remembers for novelty are damaged or of another length, and do "
                "not count",
                damaged,
                location,
            )
        return usable

    # ------------------------------------------------------------------ writing

    def write(self) -> None:
        """Write what waits, a batch at a time, unless the store failed a moment ago."""
        if self._backoff.is_pausing:
            return
        with self._write_lock:
            while batch := list(islice(self._unwritten, _MAX_BATCH)):
                try:
                    self._write_batch(batch)
                except Exception as error:  # noqa: BLE001 - a full disk, a dead server
                    self._backoff.note_failure()
                    location = self._database.location
                    warn_once(
                        f"remember:{location}:{type(error).__name__}",
                        "what is remembered for novelty cannot be kept in %s now (%s); it waits in "
                        "memory and is tried again",
                        location,
                        describe_error(error),
                    )
                    return
                self._backoff.note_success()
                with self._lock:  # some of them may have been dropped meanwhile
                    for row in batch:
                        if self._unwritten and self._unwritten[0] is row:
                            self._unwritten.popleft()

    def _remember(self, entries: Sequence[MemoryEntry]) -> None:
        """Have entries written."""
        now = datetime.now(UTC)
        for start in range(0, len(entries), _MAX_BATCH):
            batch = entries[start : start + _MAX_BATCH]
            rows = [row for entry in batch if (row := self._row(entry, now)) is not None]
            with self._lock:
                self._unwritten.extend(rows)
                excess = len(self._unwritten) - _MAX_UNWRITTEN
                for _ in range(excess):
                    self._unwritten.popleft()
            if excess > 0:
                warn_once(
                    f"forgotten:{self._database.location}",
                    "more than %d traces wait to be remembered in %s, so the oldest of them are "
                    "not; novelty is measured without them after a restart",
                    _MAX_UNWRITTEN,
                    self._database.location,
                )
            self._write(self)

    def _row(self, entry: MemoryEntry, now: datetime) -> dict[str, Any] | None:
        """Return the row of an entry; None if its embedder's identity cannot be stored."""
        embedder = embedder_columns(entry.identity)
        if embedder is None:
            warn_once(
                "embedder identity",
                "what is remembered for novelty is not kept in %s: the embedder's identity is not "
                "made of two texts and a finite number",
                self._database.location,
            )
            return None
        return {
            "kind": "memory",
            "trace_id": entry.trace_id,
            "scope": self._scope,
            "fingerprint": entry.fingerprint,
            "vector": content_of(entry.vector),
            "at": now,
            **embedder,
        }

    def _write_batch(self, batch: Sequence[dict[str, Any]]) -> None:
        with self._database.writing() as connection:
            queries = sql.vector_queries
            queries.write(connection, batch, only_complete=True)
            if prune := self._until_pruning <= 0:
                spaces = {
                    queries.Space(**{name: row[name] for name in queries.Space._fields})
                    for row in batch
                }
                self._prune(connection, sorted(spaces))
        if prune:
            self._until_pruning = max(1, self._max_elements // _SLACK)
        self._until_pruning -= len(batch)

    def _prune(self, connection: sa.Connection, spaces: Iterable[Space]) -> int:
        keep, until = self._max_elements, self._oldest()
        return sum(
            sql.vector_queries.prune(connection, space, keep=keep, until=until) for space in spaces
        )

    def _oldest(self) -> datetime | None:
        """Return the time at which a trace would be just too old now; None if it never is."""
        if self._ttl_ms is None:
            return None
        try:
            return datetime.now(UTC) - timedelta(milliseconds=self._ttl_ms)
        except OverflowError:  # before the first day of the calendar
            return None


def _is_finite(content: bytes) -> bool:
    import numpy as np

    return bool(np.isfinite(np.frombuffer(content, dtype="<f4")).all())


def _ages_s(rows: Sequence[Any]) -> list[float]:
    """Return the ages of rows in seconds; of a clock that is ahead, 0."""
    now = datetime.now(UTC)
    return [max(0.0, (now - row.at).total_seconds()) for row in rows]


def _with_stored_id(entry: MemoryEntry) -> MemoryEntry:
    """Return the entry with its trace's id as the store has it, so that it is known again."""
    key = trace_key(entry.trace_id)
    return entry if key == entry.trace_id else entry._replace(trace_id=key)
