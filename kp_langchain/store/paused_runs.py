"""`PausedRuns`: what runs recorded before they paused for a human, until they are resumed.

There is one row for each place: a thread, as seen by handlers of one domain and agent. A new pause
there replaces an earlier one. Rows are deleted when they are claimed, forgotten, expired, or more
than the store keeps.
"""

from __future__ import annotations

import hashlib
import json
from datetime import UTC, datetime, timedelta
from typing import Any

from kp_langchain.run_keys import RunKeys
from kp_langchain.store import sql
from kp_langchain.store.database import Database
from kp_langchain.store.rows import clean_name, json_text
from kp_langchain.store.run_columns import key_columns


def paused_run_key(thread: str, domain: str, agent_id: str | None) -> str:
    """Return the key under which a paused run waits: a hash, which reveals nothing of the thread.

    Args:
        thread: The thread in the form in which it may be stored; see `run_keys.stored_form`.
        domain: The handler's domain.
        agent_id: The handler's agent id, if it has one.
    """
    text = json.dumps([thread, domain, agent_id])
    return hashlib.sha256(text.encode()).hexdigest()


class PausedRuns:
    """The paused runs of one store. Got from `TraceStore.paused`.

    Every method raises `StoreError` when the database cannot be opened, read or written.

    Args:
        database: The database of the store.
    """

    def __init__(self, database: Database) -> None:
        self._database = database

    def __repr__(self) -> str:
        return f"PausedRuns({str(self._database.location)!r})"

    def count(self) -> int:
        """Return the number of paused runs."""
        with self._database.reading() as connection:
            return sql.paused_queries.count(connection)

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
        with self._database.writing() as connection:
            sql.paused_queries.write(connection, row)
            n_expired = sql.paused_queries.drop_expired(connection, now)
            return n_expired + sql.paused_queries.drop_oldest(connection, most)

    def claim(self, place: str) -> dict[str, Any] | None:
        """Delete what waits in a place and return it; of several claims one succeeds."""
        if not self._has(place):
            return None
        with self._database.writing() as connection:
            return sql.paused_queries.claim(connection, place, datetime.now(UTC))

    def forget(self, place: str, until: datetime) -> None:
        """Delete what waits in a place, if it paused no later than a time in UTC."""
        if self._has(place):
            with self._database.writing() as connection:
                sql.paused_queries.forget(connection, place, until)

    def drop_expired(self) -> int:
        """Delete what has expired, and return the number of runs."""
        now = datetime.now(UTC)
        with self._database.reading() as connection:
            if not sql.paused_queries.has_expired(connection, now):
                return 0
        with self._database.writing() as connection:
            return sql.paused_queries.drop_expired(connection, now)

    def _has(self, place: str) -> bool:
        # Every new question in a thread asks this, and the answer is nearly always no; a read does
        # not wait for other writers of the file.
        with self._database.reading() as connection:
            return sql.paused_queries.has(connection, place)
