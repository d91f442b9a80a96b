"""`PausedRuns`: what runs recorded before they paused for a human, until they are resumed.

There is one row for each place: a thread, as seen by handlers of one domain and agent. A new pause
there replaces an earlier one. Rows are deleted when they are claimed, expired, or too many. Loads
SQLAlchemy.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import sqlalchemy as sa

from kp_langchain.run_keys import RunKeys
from kp_langchain.store.rows import clean_name, json_text
from kp_langchain.store.run_columns import key_columns
from kp_langchain.store.statements import Transactions, insert_or_replace
from kp_langchain.store.tables import paused_runs

_c = paused_runs.c
_count = sa.select(sa.func.count()).select_from(paused_runs)


class PausedRuns:
    """The paused runs of one store. Got from `TraceStore.paused`.

    Every method raises `StoreError` when the database cannot be opened, read or written.

    Args:
        database: The database of the store.
    """

    def __init__(self, database: Transactions) -> None:
        self._database = database

    def __repr__(self) -> str:
        return f"PausedRuns({str(self._database.location)!r})"

    def count(self) -> int:
        """Return the number of paused runs."""
        with self._database.reading() as connection:
            return connection.scalar(_count) or 0

    def put(
        self, place: str, body: dict[str, Any], *, paused_at: datetime, days: float, most: int
    ) -> int:
        """Write what a paused run recorded, in place of what waits there; then make room.

        Args:
            place: Where it waits; see `paused_run_key`.
            body: What was recorded, redacted, as JSON-like values.
            paused_at: When the run paused, in UTC.
            days: The number of days after which it expires.
            most: The largest number that the store keeps; those that paused first are deleted.

        Returns:
            The number of others deleted because they expired or were too many.
        """
        now = datetime.now(UTC)
        keys = RunKeys() if not body["keys"] else RunKeys.from_dict(body["keys"])
        row = {
            "place": place,
            "paused_at": paused_at,
            "expires_at": now + timedelta(days=days),
            "body": json_text(body),
            "run_id": clean_name(body["run_id"].lower()),
            "created_at": datetime.fromisoformat(body["started_at"]),
            "domain": clean_name(body["domain"]),
            **key_columns(keys),
        }
        newest = sa.select(_c.place).order_by(_c.paused_at.desc(), _c.place).limit(most)
        with self._database.writing() as connection:
            insert = insert_or_replace(paused_runs, connection.dialect.name)
            connection.execute(insert, [row])
            n_dropped = _delete(connection, _c.expires_at <= now)
            if (connection.scalar(_count) or 0) > most:
                n_dropped += _delete(connection, _c.place.not_in(newest))
        return n_dropped

    def claim(self, place: str) -> dict[str, Any] | None:
        """Delete what waits in a place and return it; of several claims one succeeds."""
        if not self._has(_c.place == place):
            return None
        select = sa.select(_c.body).where(_c.place == place, _c.expires_at > datetime.now(UTC))
        with self._database.writing() as connection:
            body: dict[str, Any] | None = connection.scalar(select.with_for_update())
            if body is not None:
                _delete(connection, _c.place == place)
        return body

    def drop_expired(self) -> int:
        """Delete what has expired, and return the number of runs."""
        return self._delete_if_any(_c.expires_at <= datetime.now(UTC))

    def _delete_if_any(self, condition: sa.ColumnElement[bool]) -> int:
        if not self._has(condition):
            return 0
        with self._database.writing() as connection:
            return _delete(connection, condition)

    def _has(self, condition: sa.ColumnElement[bool]) -> bool:
        # A read does not wait for other writers of the file.
        with self._database.reading() as connection:
            return connection.scalar(sa.select(_c.place).where(condition).limit(1)) is not None


def _delete(connection: sa.Connection, condition: sa.ColumnElement[bool]) -> int:
    return connection.execute(sa.delete(paused_runs).where(condition)).rowcount
