"""Queries on the table `paused_runs`. Loads SQLAlchemy."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from functools import cache
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite

from kp_langchain.store.tables import paused_runs

_c = paused_runs.c
_half_columns = (_c.place, _c.half_id, _c.checkpoint_id, _c.paused_at, _c.body)


def count(connection: sa.Connection) -> int:
    """Return the number of rows."""
    return connection.scalar(sa.select(sa.func.count()).select_from(paused_runs)) or 0


def write(connection: sa.Connection, rows: Sequence[dict[str, Any]]) -> None:
    """Insert rows; each replaces an earlier row with its `place`."""
    if rows:
        in_order = sorted(rows, key=lambda row: str(row["place"]))
        connection.execute(_insert(connection.dialect.name), in_order)


@cache
def _insert(dialect: str) -> Any:
    """Return the statement of `write`, which takes longer to build than to execute."""
    insert: Any = (postgresql if dialect == "postgresql" else sqlite).insert(paused_runs)
    return insert.on_conflict_do_update(
        index_elements=[_c.place],
        set_={c.name: insert.excluded[c.name] for c in paused_runs.columns if c is not _c.place},
    )


def has_any(connection: sa.Connection, places: Sequence[str]) -> bool:
    """Return whether a run waits in any of these places."""
    return connection.scalar(sa.select(_c.place).where(_c.place.in_(places)).limit(1)) is not None


def has_expired(connection: sa.Connection, now: datetime) -> bool:
    """Return whether any row has expired."""
    return connection.scalar(sa.select(_c.place).where(_c.expires_at <= now).limit(1)) is not None


def claim(connection: sa.Connection, place: str, now: datetime) -> dict[str, Any] | None:
    """Delete the row of a place and return it; None if there is none, or it has expired."""
    select = sa.select(*_half_columns).where(_c.place == place, _c.expires_at > now)
    row = connection.execute(select.with_for_update()).mappings().first()
    if row is None:
        return None
    connection.execute(sa.delete(paused_runs).where(_c.place == place))
    return dict(row)


def forget(connection: sa.Connection, place: str, until: datetime) -> None:
    """Delete the row of a place if its run paused no later than `until`."""
    connection.execute(sa.delete(paused_runs).where(_c.place == place, _c.paused_at <= until))


def drop_expired(connection: sa.Connection, now: datetime) -> int:
    """Delete the rows that have expired, and return their number."""
    return connection.execute(sa.delete(paused_runs).where(_c.expires_at <= now)).rowcount


def drop_oldest(connection: sa.Connection, most: int) -> int:
    """Delete all rows but the `most` newest, and return their number."""
    if count(connection) <= most:
        return 0
    newest = sa.select(_c.place).order_by(_c.paused_at.desc(), _c.place).limit(most)
    return connection.execute(sa.delete(paused_runs).where(_c.place.not_in(newest))).rowcount
