"""`Remembered`: the traces of one store that novelty is measured against."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, NamedTuple

from kp_langchain._logging import warn_once
from kp_langchain.embedding.identity import EmbedderIdentity
from kp_langchain.scoring.repeats import DEFAULT_MAX_ELEMENTS
from kp_langchain.store import sql
from kp_langchain.store.database import Database
from kp_langchain.store.rows import clean_name, short_key, trace_key

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from kp_langchain.scoring.novelty_memory import MemoryEntry
    from kp_langchain.store.remembered_queries import Embedder, RememberedRow


# A page of vectors of 384 takes 8 MB; a memory may have a million.
_PAGE_SIZE = 5000


class TimedEntry(NamedTuple):
    """An entry of a novelty memory, and when it was remembered, in UTC."""

    entry: MemoryEntry
    at: datetime


@dataclass(frozen=True, slots=True)
class Vectors:
    """Vectors of one embedder, the oldest first.

    Attributes:
        rows: float32, shape (n, dimensions).
        trace_ids: Ids of their traces.
        ages_s: Their ages in seconds.
    """

    rows: NDArray[np.float32]
    trace_ids: list[str]
    ages_s: list[float]


class Remembered:
    """The remembered traces of one scope of a store.

    Every method that reads or writes raises `StoreError` when the database cannot be opened, read
    or written.

    Args:
        database: The database of the store.
        scope: A domain; empty for all domains.
        max_elements: How many traces of one embedder are kept.
        ttl_ms: Milliseconds after which a trace is forgotten; None for when newer ones come.
    """

    def __init__(
        self,
        database: Database,
        scope: str = "",
        max_elements: int = DEFAULT_MAX_ELEMENTS,
        ttl_ms: float | None = None,
    ) -> None:
        self._database = database
        self._scope = short_key(scope)
        self.max_elements = max_elements
        self.ttl_ms = ttl_ms

    @property
    def location(self) -> str:
        """Where the store is, without a password."""
        return str(self._database.location)

    def add(self, entries: Sequence[TimedEntry], *, prune: bool) -> None:
        """Write entries in one transaction; a trace that is remembered already stays as it is.

        Args:
            entries: The entries, the oldest first. One that no database takes is left out.
            prune: Whether to delete what is too old or beyond `max_elements`.
        """
        rows = [row for one in entries if (row := self._row(one)) is not None]
        if not rows:
            return
        with self._database.writing() as connection:
            sql.remembered_queries.add(connection, rows)
            if not prune:
                return
            make = sql.remembered_queries.Embedder
            embedders = {make(row["model"], row["revision"], row["baseline"]) for row in rows}
            for embedder in sorted(embedders):
                sql.remembered_queries.prune(
                    connection,
                    self._scope,
                    embedder,
                    keep=self.max_elements,
                    until=self._oldest(datetime.now(UTC)),
                )

    def prune_all(self) -> int:
        """Delete what is too old or beyond `max_elements` in any scope; return how many rows."""
        queries, until = sql.remembered_queries, self._oldest(datetime.now(UTC))
        with self._database.writing() as connection:
            return sum(
                queries.prune(connection, scope, embedder, keep=self.max_elements, until=until)
                for scope, embedder in sorted(queries.scopes_and_embedders(connection))
            )

    def deletions(self) -> int:
        """Return how often runs were deleted from the store, and with them what is remembered."""
        with self._database.reading() as connection:
            return sql.deletion_queries.deletions(connection)

    def newest_number(self) -> int:
        """Return the highest number in the table, of whatever scope; 0 if it is empty."""
        with self._database.reading() as connection:
            return sql.remembered_queries.newest_number(connection)

    def repeats(self, above: int) -> Iterator[list[tuple[bytes, str, float]]]:
        """Yield the newest fingerprints, the oldest of them first, a page at a time.

        Args:
            above: Only those of rows above this number.

        Yields:
            For each its fingerprint, its trace's id and its age in seconds. Damaged ones are left
            out.
        """
        for rows, now in self._pages(None, above):
            usable = [row for row in rows if _has_content(row)]
            self._warn_of_damage(len(rows) - len(usable))
            yield [
                (row.content, row.trace_id, age_s)
                for row, age_s in zip(usable, _ages_s(usable, now), strict=True)
            ]

    def vectors(self, identity: EmbedderIdentity, dimensions: int, above: int) -> Iterator[Vectors]:
        """Yield the newest vectors of an embedder, the oldest of them first, a page at a time.

        Damaged ones and those of another length are left out.

        Args:
            identity: The embedder.
            dimensions: The length of its vectors.
            above: Only those of rows above this number.
        """
        embedder = embedder_of(identity)
        if embedder is not None:
            for rows, now in self._pages(embedder, above):
                yield self._vectors(rows, dimensions, now)

    def count(self) -> int:
        """Return the number of remembered traces, those of other scopes and embedders included."""
        with self._database.reading() as connection:
            return sql.remembered_queries.count(connection)

    def _row(self, one: TimedEntry) -> dict[str, Any] | None:
        """Return the row of an entry; None if its embedder's identity cannot be stored."""
        entry, at = one
        embedder = embedder_of(entry.identity)
        if embedder is None:
            warn_once(
                "embedder identity",
                "what is remembered for novelty is not kept in %s: the embedder's identity is not "
                "made of two texts and a finite number",
                self.location,
            )
            return None
        return {
            "trace_id": trace_key(entry.trace_id),
            "scope": self._scope,
            **embedder._asdict(),
            "fingerprint": entry.fingerprint,
            "vector": None if entry.vector is None else content_of(entry.vector),
            "at": at,
            "domain": clean_name(entry.domain),
        }

    def _oldest(self, now: datetime) -> datetime | None:
        """Return the time at which a trace would be just too old now; None if it never is."""
        if self.ttl_ms is None:
            return None
        try:
            return now - timedelta(milliseconds=self.ttl_ms)
        except OverflowError:  # before the first day of the calendar
            return None

    def _pages(
        self, embedder: Embedder | None, above: int
    ) -> Iterator[tuple[list[RememberedRow], datetime]]:
        """Yield pages of the newest `max_elements` rows, each with the time when it was read.

        Args:
            embedder: Only rows with a vector of it; None for rows with a fingerprint.
            above: Only rows above this number.
        """
        queries, scope = sql.remembered_queries, self._scope
        bounds: dict[str, Any] = {"since": self._oldest(datetime.now(UTC)), "limit": _PAGE_SIZE}
        with self._database.reading() as connection:
            beyond = queries.last_beyond(connection, scope, embedder, newest=self.max_elements)
        above = max(above, beyond)
        while True:
            with self._database.reading() as connection:
                if embedder is None:
                    rows = queries.fingerprints(connection, scope, above=above, **bounds)
                else:
                    rows = queries.vectors(connection, scope, embedder, above=above, **bounds)
            yield rows, datetime.now(UTC)
            if len(rows) < _PAGE_SIZE:
                return
            above = rows[-1].number

    def _vectors(self, rows: Sequence[RememberedRow], dimensions: int, now: datetime) -> Vectors:
        import numpy as np

        usable = [row for row in rows if _has_content(row) and len(row.content) == 4 * dimensions]
        joined = b"".join(row.content for row in usable)
        matrix = np.frombuffer(joined, dtype="<f4").reshape(len(usable), dimensions)
        is_finite = np.isfinite(matrix).all(axis=1)
        if not is_finite.all():
            usable = [row for row, is_usable in zip(usable, is_finite, strict=True) if is_usable]
            matrix = matrix[is_finite]
        self._warn_of_damage(len(rows) - len(usable))
        ids = [row.trace_id for row in usable]
        return Vectors(matrix.astype(np.float32, copy=False), ids, _ages_s(usable, now))

    def _warn_of_damage(self, count: int) -> None:
        if count:
            warn_once(
                f"damaged memory:{self.location}",
                "%d traces that %s remembers for novelty are damaged or of another length, and do "
                "not count",
                count,
                self.location,
            )


def content_of(vector: NDArray[np.float32]) -> bytes:
    """Return what a column holds of a vector: float32, little-endian."""
    import numpy as np

    return np.asarray(vector, dtype="<f4").tobytes()


def embedder_of(identity: EmbedderIdentity) -> Embedder | None:
    """Return the columns of an identity; None if an embedder made it of other values."""
    values: tuple[object, object, object] = (identity.model, identity.revision, identity.baseline)
    model, revision, baseline = values
    if not (isinstance(model, str) and isinstance(revision, str)):
        return None
    if not (isinstance(baseline, int | float) and math.isfinite(baseline)):
        return None
    return sql.remembered_queries.Embedder(short_key(model), short_key(revision), float(baseline))


def _has_content(row: RememberedRow) -> bool:
    # SQLite takes values of any type in any column.
    return isinstance(row.content, bytes) and isinstance(row.trace_id, str)


def _ages_s(rows: Sequence[RememberedRow], now: datetime) -> list[float]:
    """Return the ages of rows, the oldest first, in seconds.

    Clocks differ and are set. So no age is negative, and no row is older than the one before it.
    """
    ages_s: list[float] = []
    youngest_s = math.inf
    for row in rows:
        youngest_s = min(youngest_s, max(0.0, (now - row.at).total_seconds()))
        ages_s.append(youngest_s)
    return ages_s
