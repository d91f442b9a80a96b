"""Queries on the table `paused_runs`. Loads SQLAlchemy."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import sqlalchemy as sa

from kp_langchain.store.statements import insert_or_replace
from kp_langchain.store.tables import paused_runs

_c = paused_runs.c


def count(connection: sa.Connection) -> int:
    """Return the number of rows."""
    return connection.scalar(sa.select(sa.func.count()).select_from(paused_runs)) or 0


def write(connection: sa.Connection, row: dict[str, Any]) -> None:
    """Insert a row; it replaces an earlier row with its `place`."""
    connection.execute(insert_or_replace(paused_runs, connection.dialect.name), [row])


def has(connection: sa.Connection, place: str) -> bool:
    """Return whether a run waits in a place."""
    return connection.scalar(sa.select(_c.place).where(_c.place == place)) is not None


def has_expired(connection: sa.Connection, now: datetime) -> bool:
    """Return whether any row has expired."""
    return connection.scalar(sa.select(_c.place).where(_c.expires_at <= now).limit(1)) is not None


def claim(connection: sa.Connection, place: str, now: datetime) -> dict[str, Any] | None:
    """Delete the row of a place and return its body; None if there is none, or it has expired."""
    select = sa.select(_c.body).where(_c.place == place, _c.expires_at > now)
    body: dict[str, Any] | None = connection.scalar(select.with_for_update())
    if body is not None:
        connection.execute(sa.delete(paused_runs).where(_c.place == place))
    return body


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
