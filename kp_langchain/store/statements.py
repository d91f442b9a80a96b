"""What several files of queries need. Loads SQLAlchemy."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import AbstractContextManager
from functools import cache
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import sqlalchemy as sa
from sqlalchemy.dialects import sqlite

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


def batches(keys: Collection[Key]) -> Iterator[list[Key]]:
    """Yield keys in lists that are short enough for one statement.

    Args:
        keys: The keys.
    """
    in_order = list(keys)
    for start in range(0, len(in_order), _BATCH_SIZE):
        yield in_order[start : start + _BATCH_SIZE]


def untyped(column: sa.ColumnElement[object]) -> sa.ColumnElement[object]:
    """Return a column whose values come as the driver gives them.

    SQLite takes values of any type, and a column's own type would raise for another one.

    Args:
        column: The column.
    """
    return sa.type_coerce(column, sa.types.NULLTYPE)
