"""`Remembered`: the traces of one store that novelty is measured against."""

from __future__ import annotations

import math
from collections.abc import Sequence
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


@dataclass(frozen=True, slots=True)
class RememberedPage:
    """What one read of the store returned.

    Attributes:
        newest_number: The highest number in the table.
        repeats: Fingerprints, each with its trace's id and its age in seconds, the oldest first.
        vectors: Vectors; None if none were asked for.
    """

    newest_number: int
    repeats: list[tuple[bytes, str, float]]
    vectors: Vectors | None


class Remembered:
    """The remembered traces of one scope of a store.

    `add` and `read` raise `StoreError` when the database cannot be opened, read or written.

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

    def read(
        self,
        *,
        repeats_above: int | None,
        identity: EmbedderIdentity | None,
        dimensions: int,
        vectors_above: int,
    ) -> RememberedPage:
        """Return the newest traces, at most `max_elements`; damaged ones are left out.

        If the table was made anew since a number was seen, all its rows count as above that number.

        Args:
            repeats_above: Only fingerprints of rows above this number; None for no fingerprints.
            identity: The embedder whose vectors are read; None for no vectors.
            dimensions: The length of its vectors.
            vectors_above: Only vectors of rows above this number.
        """
        oldest = self._oldest(datetime.now(UTC))
        bounds: dict[str, Any] = {"since": oldest, "limit": self.max_elements}
        repeats: list[RememberedRow] = []
        of_embedder: list[RememberedRow] = []
        embedder = None if identity is None else _embedder_of(identity)
        with self._database.reading() as connection:
            newest = sql.remembered_queries.newest_number(connection)
            if repeats_above is not None:
                above = repeats_above if repeats_above <= newest else 0
                repeats = sql.remembered_queries.fingerprints(
                    connection, self._scope, above=above, **bounds
                )
            if embedder is not None:
                above = vectors_above if vectors_above <= newest else 0
                of_embedder = sql.remembered_queries.vectors(
                    connection, self._scope, embedder, above=above, **bounds
                )
        now = datetime.now(UTC)
        return RememberedPage(
            newest,
            self._repeats(repeats, now),
            None if embedder is None else self._vectors(of_embedder, dimensions, now),
        )

    def count(self) -> int:
        """Return the number of remembered traces, those of other scopes and embedders included."""
        with self._database.reading() as connection:
            return sql.remembered_queries.count(connection)

    def _row(self, one: TimedEntry) -> dict[str, Any] | None:
        """Return the row of an entry; None if its embedder's identity cannot be stored."""
        entry, at = one
        embedder = _embedder_of(entry.identity)
        if embedder is None:
            warn_once(
                "embedder identity",
                "what is remembered for novelty is not kept in %s: the embedder's identity is not "
                "made of two texts and a finite number",
                self.location,
            )
            return None
        vector = None
        if entry.vector is not None:
            import numpy as np

            vector = np.asarray(entry.vector, dtype="<f4").tobytes()
        return {
            "trace_id": trace_key(entry.trace_id),
            "scope": self._scope,
            **embedder._asdict(),
            "fingerprint": entry.fingerprint,
            "vector": vector,
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

    def _repeats(
        self, rows: Sequence[RememberedRow], now: datetime
    ) -> list[tuple[bytes, str, float]]:
        usable = [row for row in rows if _has_content(row)]
        self._warn_of_damage(len(rows) - len(usable))
        usable.reverse()
        return [
            (row.content, row.trace_id, age_s)
            for row, age_s in zip(usable, _ages_s(usable, now), strict=True)
        ]

    def _vectors(self, rows: Sequence[RememberedRow], dimensions: int, now: datetime) -> Vectors:
        import numpy as np

        usable = [row for row in rows if _has_content(row) and len(row.content) == 4 * dimensions]
        usable.reverse()
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


def _embedder_of(identity: EmbedderIdentity) -> Embedder | None:
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
