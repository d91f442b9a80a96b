"""Queries on the table `remembered`. Loads SQLAlchemy."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from functools import cache
from typing import Any, NamedTuple

import sqlalchemy as sa

from kp_langchain.store.inserts import insert_into
from kp_langchain.store.tables import remembered

_POSTGRES_LOCK = 0x6B705F6E6D  # any number, the same in every version of this package
_c = remembered.c
_NUMBER = sa.select(sa.func.max(_c.number))


class Embedder(NamedTuple):
    """The columns that say which embedder a vector comes from.

    Attributes:
        model: Name of the model; empty if there was none.
        revision: Version of the model; empty if it has none.
        baseline: Similarity of unrelated texts.
    """

    model: str
    revision: str
    baseline: float


class RememberedRow(NamedTuple):
    """A row of the table; the content is its fingerprint or its vector, as the driver gives it."""

    number: int
    trace_id: str
    content: Any
    at: datetime


def add(connection: sa.Connection, rows: Sequence[dict[str, Any]]) -> None:
    """Insert rows; one whose trace is remembered adds to its row what that lacks."""
    if connection.dialect.name == "postgresql":
        # One writer at a time, as in SQLite: so rows appear in the order of their numbers, and
        # whoever asks for those above a number misses none.
        connection.execute(sa.select(sa.func.pg_advisory_xact_lock(_POSTGRES_LOCK)))
    connection.execute(_insert_or_complete(connection.dialect.name), rows)


def newest_number(connection: sa.Connection) -> int:
    """Return the highest number; 0 if there is no row."""
    return connection.scalar(_NUMBER) or 0


def fingerprints(
    connection: sa.Connection, scope: str, *, above: int, since: datetime | None, limit: int
) -> list[RememberedRow]:
    """Return rows of a scope that have a fingerprint, the oldest first.

    Args:
        connection: A connection to read with.
        scope: The scope.
        above: Only rows with a higher number.
        since: Only rows of a later time, in UTC; None for all.
        limit: At most so many.
    """
    return _rows(connection, _c.fingerprint, _c.scope == scope, above, since, limit)


def vectors(
    connection: sa.Connection,
    scope: str,
    embedder: Embedder,
    *,
    above: int,
    since: datetime | None,
    limit: int,
) -> list[RememberedRow]:
    """Return rows of a scope that have a vector of an embedder; as `fingerprints`."""
    return _rows(connection, _c.vector, _is_of(scope, embedder), above, since, limit)


def last_beyond(
    connection: sa.Connection, scope: str, embedder: Embedder | None, *, newest: int
) -> int:
    """Return the highest number of the rows that are older than the newest; 0 if there is none.

    Args:
        connection: A connection to read with.
        scope: The scope.
        embedder: Only rows with a vector of this embedder; None for those with a fingerprint.
        newest: How many rows are newest.
    """
    condition = sa.and_(_c.scope == scope, _c.fingerprint.is_not(None))
    if embedder is not None:
        condition = sa.and_(_is_of(scope, embedder), _c.vector.is_not(None))
    return connection.scalar(_nth_newest(condition, newest)) or 0


def prune(
    connection: sa.Connection,
    scope: str,
    embedder: Embedder,
    *,
    keep: int,
    until: datetime | None,
) -> int:
    """Delete the rows of a scope and an embedder that are too many or too old.

    Args:
        connection: A write transaction.
        scope: The scope.
        embedder: The embedder.
        keep: The newest that stay.
        until: Rows of this time or an earlier one are deleted, too; None for none.

    Returns:
        The number of deleted rows.
    """
    is_of = _is_of(scope, embedder)
    is_superfluous = _c.number <= _nth_newest(is_of, keep).scalar_subquery()
    if until is not None:
        is_superfluous = sa.or_(is_superfluous, _c.at <= until)
    return connection.execute(sa.delete(remembered).where(is_of, is_superfluous)).rowcount


def scopes_and_embedders(connection: sa.Connection) -> list[tuple[str, Embedder]]:
    """Return every scope with each embedder that has rows in it."""
    select = sa.select(_c.scope, _c.model, _c.revision, _c.baseline).distinct()
    return [(row[0], Embedder(*row[1:])) for row in connection.execute(select)]


def count(connection: sa.Connection) -> int:
    """Return the number of rows."""
    return connection.scalar(sa.select(sa.func.count()).select_from(remembered)) or 0


def _is_of(scope: str, embedder: Embedder) -> sa.ColumnElement[bool]:
    return sa.and_(
        _c.scope == scope,
        _c.model == embedder.model,
        _c.revision == embedder.revision,
        _c.baseline == embedder.baseline,
    )


def _nth_newest(condition: sa.ColumnElement[bool], count: int) -> sa.Select[tuple[int]]:
    """Return the query for the number of the row that so many newer ones precede."""
    return sa.select(_c.number).where(condition).order_by(_c.number.desc()).offset(count).limit(1)


def _rows(
    connection: sa.Connection,
    content: sa.Column[Any],
    condition: sa.ColumnElement[bool],
    above: int,
    since: datetime | None,
    limit: int,
) -> list[RememberedRow]:
    # Without the column's type, which would raise for a value that is no bytes.
    columns = (_c.number, _c.trace_id, sa.type_coerce(content, sa.types.NULLTYPE), _c.at)
    select = sa.select(*columns).where(condition, content.is_not(None), _c.number > above)
    if since is not None:
        select = select.where(_c.at > since)
    rows = connection.execute(select.order_by(_c.number).limit(limit))
    return [RememberedRow(*row) for row in rows]


@cache
def _insert_or_complete(dialect: str) -> Any:
    insert = insert_into(remembered, dialect)
    return insert.on_conflict_do_update(
        index_elements=[_c.trace_id, _c.scope, _c.model, _c.revision, _c.baseline],
        set_={
            column.name: sa.func.coalesce(column, insert.excluded[column.name])
            for column in (_c.fingerprint, _c.vector)
        },
    )
