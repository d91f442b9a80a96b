"""The table `vectors`, by which traces are compared, and a follower of what changes in it.

In PostgreSQL, transactions commit in another order than they begin in. So a change has the number
of its transaction, and a reader reads those that were not visible to it before: it misses none, and
reads none twice, however long other transactions take. In SQLite, writes are numbered one by one.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

import sqlalchemy as sa

from kp_langchain.store.rows import short_key
from kp_langchain.store.tables import batches, counts, execute_rows, insert_into, vectors

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from kp_langchain.embedding.embedder import EmbedderIdentity
    from kp_langchain.store.database import Database

RESETS = "resets"
"""The count of resets; each invalidates what was read before it."""

_CHANGES = "changes"
_KEY = ("trace_id", "kind", "model", "revision", "baseline")
_c = vectors.c

Row = TypeVar("Row")


# ------------------------------------------------------------------ following


class Mark(NamedTuple):
    """How far a reader has followed the changes of a store.

    Attributes:
        change: The lowest number of a change that it may not have seen.
        snapshot: In PostgreSQL, which transactions it has seen. Without a difference there is
            nothing new.
        own: In PostgreSQL, the number of the transaction that it reads within, -1 for none. What
            that writes later it has not seen, although its snapshot says so.
        resets: How often runs were deleted, or units of registries changed.
    """

    change: int
    snapshot: str
    own: int
    resets: int

    def unseen(self, column: sa.ColumnElement[int]) -> sa.ColumnElement[bool]:
        """Return the condition that the reader has not seen a change.

        Args:
            column: The column with the numbers of changes.
        """
        is_late = column >= self.change
        if not self.snapshot:
            return is_late
        number, snapshot = sa.cast(column, sa.Text()), sa.cast(self.snapshot, sa.Text())
        is_seen = sa.func.pg_visible_in_snapshot(
            sa.func.xid8(number), sa.func.pg_snapshot(snapshot), type_=sa.Boolean()
        )
        return sa.and_(is_late, sa.or_(sa.not_(is_seen), column == self.own))


@dataclass(frozen=True, slots=True)
class Page(Generic[Row]):
    """Some of the rows that a follower reads.

    Attributes:
        rows: The rows.
        is_anew: Whether to discard all rows read before, because runs were deleted, units of
            registries changed, or the database was replaced. This page and those after it have all
            rows again.
    """

    rows: Sequence[Row]
    is_anew: bool


class Follower(Generic[Row]):
    """Reads rows of the table `vectors`, and later what changed of them.

    It is not safe to use from several threads.

    Args:
        database: The database.
        read: Returns the rows on a connection, a page at a time; or those that have changed since
            a mark, None if they are so many that all are to be read anew.
        anew_every_s: After deletions, all rows are read anew at most once in so many seconds, as
            a long deletion would have every process read them all the time.
    """

    def __init__(
        self,
        database: Database,
        read: Callable[[sa.Connection, Mark | None], Iterable[Sequence[Row]] | None],
        anew_every_s: float = 0.0,
    ) -> None:
        self._database = database
        self._read = read
        self._anew_every_s = anew_every_s
        self._anew_at = float("-inf")  # by the monotonic clock
        self._mark: Mark | None = None
        self._reads_all = True

    def read(
        self, take: Callable[[Page[Row]], None], connection: sa.Connection | None = None
    ) -> None:
        """Read what is new, and hand it over. A row may come more than once.

        Args:
            take: Called with each page, and not at all if nothing is new.
            connection: A write transaction to read within; by default a connection of its own.

        Raises:
            StoreError: The database cannot be opened or read. The next call reads the same again.
        """
        reading = self._database.reading() if connection is None else nullcontext(connection)
        with reading as connection:
            mark, before = present_mark(connection), self._mark
            if before is not None and time.monotonic() < self._anew_at:
                mark = mark._replace(resets=before.resets)
            if mark == before and not self._reads_all:
                return
            is_anew = before is not None and (
                mark.resets != before.resets
                or mark.change < before.change  # another database took its place
            )
            if is_anew:
                self._anew_at = time.monotonic() + self._anew_every_s
            is_all = is_anew or self._reads_all
            pages = self._read(connection, None if is_all else before)
            if pages is None:
                is_anew, pages = True, self._read(connection, None)
            for rows in pages or ():
                take(Page(rows, is_anew))
                is_anew = False
            self._mark, self._reads_all = mark, False

    def restart(self) -> None:
        """Have the next read return all rows again."""
        self._reads_all = True


def _count_of(name: str) -> sa.ColumnElement[int]:
    select = sa.select(counts.c.number).where(counts.c.name == name)
    return sa.func.coalesce(select.scalar_subquery(), 0)


_MARKS = {
    "sqlite": sa.select(_count_of(_CHANGES) + 1, sa.literal(""), sa.literal(-1), _count_of(RESETS)),
    "postgresql": sa.select(
        sa.literal_column("pg_snapshot_xmin(pg_current_snapshot())::text::bigint"),
        sa.literal_column("pg_current_snapshot()::text"),
        sa.literal_column("coalesce(pg_current_xact_id_if_assigned()::text::bigint, -1)"),
        _count_of(RESETS),
    ),
}
_THIS_CHANGE: dict[str, sa.ColumnElement[int]] = {
    "sqlite": _count_of(_CHANGES),
    "postgresql": sa.literal_column("pg_current_xact_id()::text::bigint"),
}


def this_change(dialect: str) -> sa.ColumnElement[int]:
    """Return the number of the changes of the present transaction."""
    return _THIS_CHANGE[dialect]


def present_mark(connection: sa.Connection) -> Mark:
    """Return the mark of a reader that reads now, on this connection."""
    # In one statement, so that all of it is of the same moment.
    return Mark(*connection.execute(_MARKS[connection.dialect.name]).one())


def count_up(connection: sa.Connection, name: str) -> None:
    """Add one to a count of the table `counts`."""
    execute_rows(connection, _add_one(connection.dialect.name), [{"name": name, "number": 1}])


@cache
def _add_one(dialect: str) -> Any:
    return insert_into(counts, dialect).on_conflict_do_update(
        index_elements=[counts.c.name], set_={"number": counts.c.number + 1}
    )


# ------------------------------------------------------------------ writing


def write(
    connection: sa.Connection, rows: Sequence[dict[str, Any]], *, is_change: bool = True
) -> None:
    """Insert rows; each replaces an earlier one of its kind, trace and embedder.

    Args:
        connection: A write transaction.
        rows: The rows, which have the same columns.
        is_change: Whether followers are to read them.
    """
    if rows:
        if is_change:
            _begin_change(connection)
        execute_rows(connection, _insert(connection.dialect.name, is_change=is_change), rows)


@cache
def _insert(dialect: str, *, is_change: bool) -> Any:
    change = _THIS_CHANGE[dialect] if is_change else sa.literal_column("0")
    insert = insert_into(vectors, dialect).values(change=change)
    values = {name: insert.excluded[name] for name in set(_c.keys()) - {"number", *_KEY}}
    return insert.on_conflict_do_update(index_elements=list(_KEY), set_=values)


def note_change(connection: sa.Connection, trace_ids: Collection[str], **values: None) -> None:
    """Have other processes read runs again.

    Args:
        connection: A write transaction.
        trace_ids: Runs that are no longer kept, or not replaced after all.
        values: New values of columns.
    """
    if trace_ids:
        _begin_change(connection)
        update = sa.update(vectors).where(_c.kind == "run", _c.trace_id.in_(trace_ids))
        change = _THIS_CHANGE[connection.dialect.name]
        connection.execute(update.values(change=change, **values))


def forget(connection: sa.Connection, trace_ids: Collection[str]) -> None:
    """Clear vector and hash of runs without a body; followers still need the rows."""
    note_change(connection, trace_ids, fingerprint=None, vector=None)


def remove(connection: sa.Connection, kind: str, trace_ids: Collection[str]) -> None:
    """Delete the rows of a kind of traces that are not kept, or are replaced."""
    for batch in batches(trace_ids):
        connection.execute(sa.delete(vectors).where(_c.kind == kind, _c.trace_id.in_(batch)))


def _begin_change(connection: sa.Connection) -> None:
    if connection.dialect.name == "sqlite":  # where one transaction writes at a time
        count_up(connection, _CHANGES)


# ------------------------------------------------------------------ columns


def embedder_columns(identity: EmbedderIdentity) -> dict[str, Any]:
    """Return the columns of an embedder's identity."""
    return {
        "model": short_key(identity.model),
        "revision": short_key(identity.revision),
        "baseline": identity.baseline,
    }


def is_of_embedder(identity: EmbedderIdentity, columns: Any = _c) -> sa.ColumnElement[bool]:
    """Return the condition that the vector of a row comes from an embedder."""
    return sa.and_(*(columns[name] == one for name, one in embedder_columns(identity).items()))


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
