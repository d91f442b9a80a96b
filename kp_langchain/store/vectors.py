"""What is compared of runs: a follower of the table `vectors`, and what is read with it.

`StoredMemory` is the novelty memory that outlives the process; the kept runs are what others may
repeat.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence, Set
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from kp_langchain._forksafe import ForkSafeLock
from kp_langchain._logging import describe_error, warn_once
from kp_langchain.embedding.embedder import NO_IDENTITY, EmbedderIdentity
from kp_langchain.gate.judge import OFF, KeptTrace, drop_repeats
from kp_langchain.gate.run import may_leave
from kp_langchain.scoring.novelty_memory import InProcessMemory, Match, MemoryEntry, Window
from kp_langchain.scoring.repeats import DEFAULT_MAX_ELEMENTS, embedded_text, fingerprint
from kp_langchain.store import outbox_queries, run_queries, vector_queries
from kp_langchain.store.rows import expiry_after, short_key, trace_key

if TYPE_CHECKING:
    import numpy as np
    import sqlalchemy as sa
    from numpy.typing import NDArray

    from kp_langchain.gate import ScoredTrace
    from kp_langchain.store.database import Database
    from kp_langchain.store.vector_queries import FollowerMark

MOST_COMPARED = 1000
"""A run is compared with at most so many kept ones of its domain, the newest."""

# Pruning waits until there are so many more than the memory holds, one for each of this number.
_SLACK = 10
_READ_AGAIN_S = 60.0

Row = TypeVar("Row")


# ------------------------------------------------------------------ following


@dataclass(frozen=True, slots=True)
class Page(Generic[Row]):
    """Some of the rows that a follower reads.

    Attributes:
        rows: The rows.
        is_anew: Whether nothing that was read before holds any more: runs were deleted, or another
            database took the place of this one. All rows come again, from this page on.
    """

    rows: Sequence[Row]
    is_anew: bool


class Follower(Generic[Row]):
    """Reads rows of the table `vectors`, and later what changed of them.

    It is not safe to use from several threads.

    Args:
        database: The database.
        read: Returns the rows on a connection, a page at a time; or those that may have changed
            since the change with a number.
        with_pulled: Whether all rows are also read anew when units of registries changed.
    """

    def __init__(
        self,
        database: Database,
        read: Callable[[sa.Connection, int | None], Iterable[Sequence[Row]]],
        *,
        with_pulled: bool = False,
    ) -> None:
        self._database = database
        self._read = read
        self._with_pulled = with_pulled
        self._mark: FollowerMark | None = None
        self._reads_all = True

    def read(self, take: Callable[[Page[Row]], None]) -> None:
        """Read what is new, and hand it over. A row may come more than once.

        Args:
            take: Called with each page, and not at all if nothing is new.

        Raises:
            StoreError: The database cannot be opened or read. The next call reads the same again.
        """
        with self._database.reading() as connection:
            mark, before = vector_queries.mark(connection), self._mark
            if mark == before and not self._reads_all:
                return
            is_anew = before is not None and (
                mark.deletions != before.deletions
                or mark.change < before.change  # another database took its place
                or (self._with_pulled and mark.pulled != before.pulled)
            )
            is_all = self._reads_all or is_anew or before is None
            for rows in self._read(connection, None if is_all or before is None else before.change):
                take(Page(rows, is_anew))
                is_anew = False
            self._mark, self._reads_all = mark, False

    def restart(self) -> None:
        """Have the next read return all rows again."""
        self._reads_all = True


# ------------------------------------------------------------------ columns


def embedder_columns(identity: EmbedderIdentity) -> dict[str, Any]:
    """Return the columns of an identity."""
    return {
        "model": short_key(identity.model),
        "revision": short_key(identity.revision),
        "baseline": identity.baseline,
    }


def content_of(vector: NDArray[np.float32] | None) -> bytes | None:
    """Return what a column holds of a vector: float32, little-endian."""
    import numpy as np

    return None if vector is None else np.asarray(vector, dtype="<f4").tobytes()


def vector_of(content: bytes | None) -> NDArray[np.float32] | None:
    """Return the vector that a column holds; None if it holds none."""
    if content is None:
        return None
    import numpy as np

    return np.frombuffer(content, dtype="<f4").astype(np.float32, copy=False)


def memory_row(entry: MemoryEntry) -> dict[str, Any]:
    """Return the row of a trace that novelty is measured against."""
    return {
        "kind": "memory",
        "trace_id": trace_key(entry.trace_id),
        "scope": "",
        "fingerprint": entry.fingerprint,
        "vector": content_of(entry.vector),
        "at": datetime.now(UTC),
        **embedder_columns(entry.identity),
    }


# ------------------------------------------------------------------ kept runs


def follow_kept(database: Database, domain: str) -> Follower[sa.Row[Any]]:
    """Return a follower of the kept runs of a domain; of what changed, some may not be kept.

    Args:
        database: The database.
        domain: The domain's exact name.
    """

    def read(connection: sa.Connection, since: int | None) -> list[Sequence[sa.Row[Any]]]:
        return [vector_queries.kept_rows(connection, domain, since, MOST_COMPARED)]

    return Follower(database, read)


def kept_trace(row: sa.Row[Any]) -> KeptTrace:
    """Return a kept run as others are compared with it."""
    identity = EmbedderIdentity(row.model, row.revision, row.baseline)
    return KeptTrace(
        MemoryEntry(row.trace_id, row.fingerprint, vector_of(row.vector), identity),
        row.run_id,
        row.confidence,
        row.is_stated,
        may_leave(row.visibility, row.privacy_level),
        row.namespace,
    )


def run_row(run: ScoredTrace, candidate: KeptTrace | None = None) -> dict[str, Any]:
    """Return the row of a run whose body is kept.

    Args:
        run: The run.
        candidate: The run as others are compared with it, if it is known.
    """
    candidate = candidate or KeptTrace.of(run, run.entry or MemoryEntry(run.trace.id, None))
    entry = candidate.entry
    return {
        "kind": "run",
        "trace_id": trace_key(entry.trace_id),
        "scope": vector_queries.scope_of(run.trace.metadata.task_domain),
        "fingerprint": entry.fingerprint,
        "vector": content_of(entry.vector),
        "confidence": candidate.confidence,
        "is_stated": candidate.is_stated,
        **embedder_columns(entry.identity),
    }


def candidate_of(connection: sa.Connection, trace_id: str, run: ScoredTrace) -> KeptTrace:
    """Return a stored run that was judged again as others are compared with it.

    Args:
        connection: A connection to read with.
        trace_id: Its id in the table `runs`.
        run: The run, with its body and the verdict.
    """
    row = vector_queries.of_run(connection, trace_id)
    stored_trace = None if row is None else kept_trace(row)
    if stored_trace is None or stored_trace.entry.fingerprint is None:  # added by hand
        text_hash = fingerprint(embedded_text(run.trace))
        return KeptTrace.of(run, MemoryEntry(trace_id, text_hash))
    candidate = KeptTrace.of(run, stored_trace.entry)
    return replace(candidate, is_stated=candidate.is_stated or stored_trace.is_stated)


def drop_stored_repeats(
    connection: sa.Connection, run: ScoredTrace, candidate: KeptTrace
) -> ScoredTrace:
    """Return a run that passes since a verdict as it is decided on beside those that it repeats.

    Args:
        connection: A connection to read with.
        run: The run.
        candidate: The same run as others would be compared with it.
    """
    if run.decision != "kept" or run.twin_similarity >= OFF:
        return run
    domain = run.trace.metadata.task_domain
    rows = vector_queries.kept_rows(connection, domain, None, MOST_COMPARED)
    window = Window[KeptTrace](MOST_COMPARED)
    window.put((trace.entry, trace) for trace in map(kept_trace, rows))
    return drop_repeats(run, candidate, window)


def replace_kept(
    connection: sa.Connection, trace_ids: Sequence[str], by: str, *, is_stated: bool
) -> None:
    """Stop contributing kept runs whose place another one takes, and withdraw them.

    Args:
        connection: A write transaction.
        trace_ids: Ids of the kept traces. One that is no longer kept stays as it is, and so does
            one whose success a verdict has stated meanwhile, if none states that of the other.
        by: Id of the other trace.
        is_stated: Whether a verdict states the success of the other one.
    """
    rows = run_queries.lock_kept(connection, trace_ids)
    # Also of one that stays: who took it for replaced is to read that it is not.
    vector_queries.note_change(connection, [row["trace_id"] for row in rows])
    for row in rows:
        trace_id, keep_days = row["trace_id"], row["keep_days"]
        if row["is_stated"] and not is_stated:
            continue
        changes: dict[str, Any] = {
            "decision": "twin",
            "replaced_by": by,
            "body_expires_at": expiry_after(keep_days),
        }
        if keep_days == 0:
            changes |= {"has_body": False, "body_expires_at": None}
            run_queries.delete_bodies(connection, [trace_id])
            vector_queries.forget(connection, [trace_id])
        run_queries.update(connection, trace_id, changes)
        outbox_queries.ask_withdrawal(connection, trace_id, datetime.now(UTC))


# ------------------------------------------------------------------ novelty


class StoredMemory:
    """A novelty memory in a store. Got from `TraceStore.novelty_memory`.

    It compares with a window in this process. That is filled from the store when the first trace
    comes, and again when vectors of another embedder come. What other processes have remembered
    since is added once a minute; after a deletion from the store, the window is emptied and filled
    again then. What this process remembers is written at once.

    While the store fails or does not answer, novelty is measured in the window alone, with one
    warning per kind of error, and the store is asked again after a minute. What cannot be written
    is remembered in this process alone.

    Args:
        database: The database of the store.
        max_elements: How many traces of one embedder are kept.
        ttl_ms: Milliseconds after which a trace is forgotten; None for when newer ones come.
        may_read: Says whether the store can be read; by default it always can.
        writes: Whether it writes what it remembers; a handler's is written with its runs.
    """

    def __init__(
        self,
        database: Database,
        max_elements: int = DEFAULT_MAX_ELEMENTS,
        ttl_ms: float | None = None,
        *,
        may_read: Callable[[], bool] = lambda: True,
        writes: bool = True,
    ) -> None:
        self._database = database
        self._max_elements = max_elements
        self._ttl_ms = ttl_ms
        self._may_read = may_read
        self._writes = writes
        self._window = InProcessMemory(max_elements, ttl_ms)
        self._lock = ForkSafeLock()
        self._identity = NO_IDENTITY  # of the vectors in the window
        self._dimensions = 0
        self._follower: Follower[Any] = Follower(database, self._read)
        self._due_at = float("-inf")
        self._until_pruning = 0  # so that a process that writes little prunes as well

    def __repr__(self) -> str:
        return f"StoredMemory({str(self._database.location)!r})"

    def __reduce__(self) -> tuple[partial[StoredMemory], tuple[()]]:
        # What reads and writes belongs to this process, and so does the window.
        bounds = (self._max_elements, self._ttl_ms)
        return (partial(type(self), self._database, *bounds), ())

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

    def count(self) -> int:
        """Return the number of remembered traces in the store, of any embedder.

        Raises:
            StoreError: The database cannot be read.
        """
        with self._database.reading() as connection:
            return vector_queries.count_remembered(connection)

    def prune_all(self) -> int:
        """Delete what is too old or beyond `max_elements` of an embedder; return how many rows.

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
                self._follower.read(self._take)
            except Exception as error:  # noqa: BLE001 - a full disk, a dead server
                self._warn("cannot be read now", error)

    def _read(
        self, connection: sa.Connection, since: int | None
    ) -> Iterable[Sequence[sa.Row[Any]]]:
        return vector_queries.memory_rows(
            connection,
            vector_queries.Space("memory", "", **embedder_columns(self._identity)),
            since=since,
            newest=self._max_elements,
            oldest=self._oldest(),
        )

    def _take(self, page: Page[Any]) -> None:
        if page.is_anew:
            self._window.clear()
        now = datetime.now(UTC)
        # Of a clock that is ahead, 0.
        ages_s = [max(0.0, (now - row.at).total_seconds()) for row in page.rows]
        entries = []
        for row in page.rows:
            vector = vector_of(row.vector)
            # An embedder may change its vectors, and keep its name.
            if vector is not None and len(vector) != self._dimensions:
                vector = None
            entries.append(MemoryEntry(row.trace_id, row.fingerprint, vector, self._identity))
        self._window.insert(entries, ages_s)

    def _remember(self, entry: MemoryEntry) -> None:
        """Write an entry, and prune now and then."""
        self._until_pruning -= 1
        is_full = self._until_pruning <= 0
        if not (self._writes or is_full) or not self._may_read():
            return
        try:
            with self._database.writing() as connection:
                if self._writes:
                    vector_queries.write(connection, [memory_row(entry)])
                if is_full:
                    self._prune(connection)
                    self._until_pruning = max(1, self._max_elements // _SLACK)
        except Exception as error:  # noqa: BLE001 - a full disk, a dead server
            self._warn("cannot be written", error)

    def _prune(self, connection: sa.Connection) -> int:
        keep, until = self._max_elements, self._oldest()
        return vector_queries.prune(connection, keep=keep, until=until)

    def _oldest(self) -> datetime | None:
        """Return the time at which a trace would be just too old now; None if it never is."""
        if self._ttl_ms is None:
            return None
        try:
            return datetime.now(UTC) - timedelta(milliseconds=self._ttl_ms)
        except OverflowError:  # before the first day of the calendar
            return None

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
