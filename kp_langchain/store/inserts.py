"""Insert statements that replace or ignore rows with the same primary key. Loads SQLAlchemy.

Each is built once, because building one takes longer than executing it.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite


@cache
def insert_or_replace(table: sa.Table, dialect: str, *, but: str | None = None) -> Any:
    """Return the statement that inserts rows; each replaces an earlier row with its primary key.

    Args:
        table: The table.
        dialect: The database's dialect, `sqlite` or `postgresql`.
        but: Name of a column that keeps the value of the earlier row.
    """
    insert = insert_into(table, dialect)
    keys = table.primary_key.columns
    stay = {*keys.keys(), but}
    return insert.on_conflict_do_update(
        index_elements=list(keys),
        set_={c.name: insert.excluded[c.name] for c in table.columns if c.name not in stay},
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
    return (postgresql if dialect == "postgresql" else sqlite).insert(table)
