"""What is asked of the table `unscored`. Loads SQLAlchemy."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from functools import cache
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite

from kp_langchain.store.tables import unscored

_c = unscored.c
# Building it anew would take longer than executing it.
_REMOVE = sa.delete(unscored).where(_c.trace_id == sa.bindparam("gone"))


def count(connection: sa.Connection) -> int:
    """Return the number of rows."""
    return connection.scalar(sa.select(sa.func.count()).select_from(unscored)) or 0


def add(connection: sa.Connection, rows: Sequence[dict[str, Any]]) -> None:
    """Insert rows; one whose trace is there already stays as it is."""
    ordered = sorted(rows, key=lambda row: str(row["trace_id"]))
    connection.execute(_insert(connection.dialect.name), ordered)


@cache
def _insert(dialect: str) -> Any:
    """The statement of `add`, which takes longer to build than to execute."""
    insert: Any = (postgresql if dialect == "postgresql" else sqlite).insert(unscored)
    return insert.on_conflict_do_nothing(index_elements=[_c.trace_id])


def owners(connection: sa.Connection) -> list[str]:
    """Return the processes that have any."""
    return list(connection.scalars(sa.select(_c.owner).distinct()))


def claim(
    connection: sa.Connection,
    gone: Sequence[str],
    older_than: datetime,
    owner: str,
    now: datetime,
    most: int,
) -> list[tuple[str, dict[str, Any]]]:
    """Give `owner` the rows of processes that are `gone`, and those `older_than` a time."""
    free = sa.or_(_c.owner.in_(gone), sa.and_(_c.queued_at < older_than, _c.owner != owner))
    select = sa.select(_c.trace_id, _c.body).where(free).order_by(_c.queued_at, _c.trace_id)
    rows = connection.execute(select.limit(most).with_for_update(skip_locked=True)).all()
    ids = [row[0] for row in rows]
    this = sa.update(unscored).where(_c.trace_id.in_(ids))
    connection.execute(this.values(owner=owner, queued_at=now))
    return [(row[0], row[1]) for row in rows]


def remove(connection: sa.Connection, trace_ids: Sequence[str]) -> None:
    """Delete the rows of these traces."""
    connection.execute(_REMOVE, [{"gone": trace_id} for trace_id in trace_ids])
