"""What several files of queries need. Loads SQLAlchemy."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from datetime import UTC, datetime
from functools import cache
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import sqlalchemy as sa
from sqlalchemy.dialects import sqlite

from kp_langchain.store.rows import dumps

if TYPE_CHECKING:
    from kp_langchain.store.location import Location

Key = TypeVar("Key")

_BATCH_SIZE = 500  # the keys of one statement


class Transactions(Protocol):
    """What opens transactions on a store: a `Database`."""

    @property
    def location(self) -> Location:
        """Where the database is."""

    def reading(self) -> AbstractContextManager[sa.Connection]:
        """Return a connection to read with."""

    def writing(self) -> AbstractContextManager[sa.Connection]:
        """Return a connection in a write transaction."""


@cache  # building one takes longer than executing it
def insert_or_replace(table: sa.Table, dialect: str) -> Any:
    """Return the statement that inserts rows; each replaces an earlier row with its primary key.

    Args:
        table: The table.
        dialect: The database's dialect, `sqlite` or `postgresql`.
    """
    insert = insert_into(table, dialect)
    keys = table.primary_key.columns
    return insert.on_conflict_do_update(
        index_elements=list(keys),
        set_={c.name: insert.excluded[c.name] for c in table.columns if c not in keys.values()},
    )


@cache
def insert_or_ignore(table: sa.Table, dialect: str) -> Any:
    """Return the statement that inserts rows; one whose primary key exists already is ignored.

    Args:
        table: The table.
        dialect: The database's dialect, `sqlite` or `postgresql`.
    """
    return insert_into(table, dialect).on_conflict_do_nothing(
        index_elements=list(table.primary_key.columns)
    )


def insert_into(table: sa.Table, dialect: str) -> Any:
    """Return the dialect's insert statement for a table, with no rule for conflicts yet."""
    if dialect == "postgresql":
        from sqlalchemy.dialects import postgresql  # long to load, and SQLite needs nothing of it

        return postgresql.insert(table)
    return sqlite.insert(table)


def execute_rows(
    connection: sa.Connection, statement: Any, rows: Sequence[Mapping[str, Any]]
) -> None:
    """Execute a statement for rows, in half the time that SQLAlchemy takes for it.

    Args:
        connection: A write transaction.
        statement: The statement, which must be one that was built once.
        rows: Rows of the same columns.
    """
    if not rows:
        return
    dialect: Any = type(connection.dialect)
    text, order, constants = _text_of(statement, dialect, tuple(rows[0]))
    values: Any = [{**constants, **row} for row in rows]
    if order:
        values = [tuple(_as_sqlite(row[name]) for name in order) for row in values]
    else:
        values = [{name: _plain(one) for name, one in row.items()} for row in values]
    connection.exec_driver_sql(text, values)


@cache
def _text_of(
    statement: Any, dialect: type[sa.Dialect], names: tuple[str, ...]
) -> tuple[str, Sequence[str], dict[str, Any]]:
    """Return the text of a statement, the order of its parameters, and those that are constant.

    The order is empty where parameters have names.
    """
    compiled = statement.compile(dialect=dialect(), column_keys=names)
    constants = {name: one for name, one in compiled.params.items() if name not in names}
    return str(compiled), compiled.positiontup or (), constants


def _plain(value: Any) -> Any:
    return dumps(value) if isinstance(value, dict | list) else value


def _as_sqlite(value: Any) -> Any:
    if isinstance(value, datetime):
        return value.astimezone(UTC).replace(tzinfo=None).isoformat(" ", "microseconds")
    return _plain(value)


def batches(keys: Collection[Key]) -> Iterator[list[Key]]:
    """Yield keys in lists that are short enough for one statement.

    Args:
        keys: The keys.
    """
    in_order = list(keys)
    for start in range(0, len(in_order), _BATCH_SIZE):
        yield in_order[start : start + _BATCH_SIZE]
