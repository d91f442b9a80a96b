"""Parts of statements that several queries need. Loads SQLAlchemy."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import TypeVar

import sqlalchemy as sa

Key = TypeVar("Key")

_BATCH_SIZE = 500  # the keys of one statement


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
