"""Queries on the table `paused_runs`. Loads SQLAlchemy."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

import sqlalchemy as sa

from kp_langchain.store.inserts import insert_or_replace
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
        connection.execute(insert_or_replace(paused_runs, connection.dialect.name), in_order)


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
    """Delete the rows that have expired; return the number of deleted rows."""
    return connection.execute(sa.delete(paused_runs).where(_c.expires_at <= now)).rowcount


def drop_oldest(connection: sa.Connection, max_rows: int) -> int:
    """Delete the oldest rows beyond `max_rows`; return the number of deleted rows."""
    if count(connection) <= max_rows:
        return 0
    newest = sa.select(_c.place).order_by(_c.paused_at.desc(), _c.place).limit(max_rows)
    return connection.execute(sa.delete(paused_runs).where(_c.place.not_in(newest))).rowcount
