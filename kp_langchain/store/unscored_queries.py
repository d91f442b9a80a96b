"""Queries on the table `unscored`. Loads SQLAlchemy."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import datetime
from typing import Any

import sqlalchemy as sa

from kp_langchain.store.inserts import insert_or_ignore
from kp_langchain.store.tables import unscored

_c = unscored.c
# Built once, because building it takes longer than executing it.
_DELETE = sa.delete(unscored).where(_c.trace_id == sa.bindparam("trace_id_to_delete"))


def count(connection: sa.Connection) -> int:
    """Return the number of rows."""
    return connection.scalar(sa.select(sa.func.count()).select_from(unscored)) or 0


def add(connection: sa.Connection, rows: Sequence[dict[str, Any]]) -> None:
    """Insert rows; one whose trace has a row already is ignored."""
    in_order = sorted(rows, key=lambda row: str(row["trace_id"]))
    connection.execute(insert_or_ignore(unscored, connection.dialect.name), in_order)


def owners(connection: sa.Connection) -> list[str]:
    """Return the processes that own any rows."""
    return list(connection.scalars(sa.select(_c.owner).distinct()))


def claim(
    connection: sa.Connection,
    *,
    dead_owners: Sequence[str],
    unknown_owners: Sequence[str],
    older_than: datetime,
    owner: str,
    now: datetime,
    max_rows: int,
) -> list[tuple[str, dict[str, Any]]]:
    """Transfer rows of dead owners, and old rows of unknown ones, to `owner`.

    Args:
        connection: A write transaction.
        dead_owners: Processes that have ended.
        unknown_owners: Processes that may have ended.
        older_than: Their rows are transferred if they were queued before this time.
        owner: The process that takes them over.
        now: The present time, in UTC.
        max_rows: The largest number of rows to transfer.

    Returns:
        Trace ids and bodies, the oldest first.
    """
    is_free = sa.or_(
        _c.owner.in_(dead_owners),
        sa.and_(_c.owner.in_(unknown_owners), _c.queued_at < older_than),
    )
    select = sa.select(_c.trace_id, _c.body).where(is_free).order_by(_c.queued_at, _c.trace_id)
    rows = connection.execute(select.limit(max_rows).with_for_update(skip_locked=True)).all()
    update = sa.update(unscored).where(_c.trace_id.in_([row[0] for row in rows]))
    connection.execute(update.values(owner=owner, queued_at=now))
    return [(row[0], row[1]) for row in rows]


def existing(connection: sa.Connection, trace_ids: Collection[str]) -> set[str]:
    """Return those of the traces that have a row."""
    return set(connection.scalars(sa.select(_c.trace_id).where(_c.trace_id.in_(trace_ids))))


def remove(connection: sa.Connection, trace_ids: Sequence[str]) -> None:
    """Delete the rows of these traces."""
    connection.execute(_DELETE, [{"trace_id_to_delete": trace_id} for trace_id in trace_ids])
