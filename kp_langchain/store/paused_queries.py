"""What is asked of the table `paused_runs`. Loads SQLAlchemy."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from functools import cache
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite

from kp_langchain.store.tables import paused_runs

_c = paused_runs.c
_HALF = (_c.place, _c.half_id, _c.checkpoint_id, _c.paused_at, _c.body)


def count(connection: sa.Connection) -> int:
    """Return the number of rows."""
    return connection.scalar(sa.select(sa.func.count()).select_from(paused_runs)) or 0


def put(connection: sa.Connection, rows: Sequence[dict[str, Any]]) -> None:
    """Insert rows, each in place of the one with its place."""
    if rows:
        ordered = sorted(rows, key=lambda row: str(row["place"]))
        connection.execute(_insert(connection.dialect.name), ordered)


@cache
def _insert(dialect: str) -> Any:
    """The statement of `put`, which takes longer to build than to execute."""
    insert: Any = (postgresql if dialect == "postgresql" else sqlite).insert(paused_runs)
    return insert.on_conflict_do_update(
        index_elements=[_c.place],
        set_={c.name: insert.excluded[c.name] for c in paused_runs.columns if c is not _c.place},
    )


def any_in(connection: sa.Connection, places: Sequence[str]) -> bool:
    """Return whether there is a row in one of these places."""
    return connection.scalar(sa.select(_c.place).where(_c.place.in_(places)).limit(1)) is not None


def any_expired(connection: sa.Connection, now: datetime) -> bool:
    """Return whether the time of a row is over."""
    return connection.scalar(sa.select(_c.place).where(_c.expires_at <= now).limit(1)) is not None


def claim(connection: sa.Connection, place: str, now: datetime) -> dict[str, Any] | None:
    """Delete the row in a place and return it, unless its time is over."""
    wanted = sa.select(*_HALF).where(_c.place == place, _c.expires_at > now).with_for_update()
    row = connection.execute(wanted).first()
    if row is None:
        return None
    connection.execute(sa.delete(paused_runs).where(_c.place == place))
    return dict(row._mapping)  # noqa: SLF001  (SQLAlchemy's documented name)


def forget(connection: sa.Connection, place: str, until: datetime) -> None:
    """Delete the row in a place, if it paused no later than `until`."""
    connection.execute(sa.delete(paused_runs).where(_c.place == place, _c.paused_at <= until))


def drop_expired(connection: sa.Connection, now: datetime) -> int:
    """Delete the rows whose time is over, and return their number."""
    return connection.execute(sa.delete(paused_runs).where(_c.expires_at <= now)).rowcount


def drop_oldest(connection: sa.Connection, most: int) -> int:
    """Delete the rows beyond the `most` newest, and return their number."""
    if count(connection) <= most:
        return 0
    kept = sa.select(_c.place).order_by(_c.paused_at.desc(), _c.place).limit(most)
    return connection.execute(sa.delete(paused_runs).where(_c.place.not_in(kept))).rowcount
