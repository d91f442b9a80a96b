"""`PausedRuns`: what runs recorded before they paused for a human, until they are resumed.

There is one row for each place: a thread, as seen by handlers of one domain and agent. A new pause
there replaces an earlier one. Rows are deleted when they are claimed, forgotten, expired, or more
than the store keeps.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from kp_langchain.run_keys import RunKeys
from kp_langchain.store import sql
from kp_langchain.store.database import Database
from kp_langchain.store.rows import clean_name, json_text, key_columns


@dataclass(frozen=True, slots=True)
class FirstHalf:
    """The redacted first half of a run that waits for a human.

    Attributes:
        place: Where it waits; see `paused_run_key`.
        half_id: An id of this half, new with each pause.
        checkpoint_id: LangGraph's id of the checkpoint that it is resumed from, if known.
        paused_at: When the run paused, in UTC.
        body: What was recorded, as JSON-like values.
    """

    place: str
    half_id: str
    checkpoint_id: str | None
    paused_at: datetime
    body: dict[str, Any]


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

    def put(self, halves: Iterable[FirstHalf], *, days: float, most: int) -> int:
        """Write halves, each replacing an earlier one; then delete expired and excess ones.

        Args:
            halves: The halves.
            days: The number of days after which they expire.
            most: The largest number that the store keeps; those that paused first are deleted.

        Returns:
            The number of halves deleted because they expired or were too many.
        """
        now = datetime.now(UTC)
        rows = [_row(half, now + timedelta(days=days)) for half in halves]
        with self._database.writing() as connection:
            sql.paused_queries.write(connection, rows)
            n_expired = sql.paused_queries.drop_expired(connection, now)
            return n_expired + sql.paused_queries.drop_oldest(connection, most)

    def claim(self, place: str) -> FirstHalf | None:
        """Delete the half that waits in a place and return it; of several claims one succeeds."""
        if not self._has_any([place]):
            return None
        with self._database.writing() as connection:
            row = sql.paused_queries.claim(connection, place, datetime.now(UTC))
        return None if row is None else FirstHalf(**row)

    def forget(self, places: Mapping[str, datetime]) -> None:
        """Delete the halves in these places that paused no later than the time given for each.

        Args:
            places: The latest time of a pause, in UTC, by place.
        """
        if self._has_any(list(places)):
            with self._database.writing() as connection:
                for place, until in sorted(places.items()):
                    sql.paused_queries.forget(connection, place, until)

    def drop_expired(self) -> int:
        """Delete expired halves, and return their number."""
        now = datetime.now(UTC)
        with self._database.reading() as connection:
            if not sql.paused_queries.has_expired(connection, now):
                return 0
        with self._database.writing() as connection:
            return sql.paused_queries.drop_expired(connection, now)

    def _has_any(self, places: list[str]) -> bool:
        # Every new question in a thread asks this, and the answer is nearly always no; a read does
        # not wait for other writers of the file.
        with self._database.reading() as connection:
            return sql.paused_queries.has_any(connection, places)


def _row(half: FirstHalf, expires_at: datetime) -> dict[str, Any]:
    body = half.body
    keys = RunKeys() if not body["keys"] else RunKeys.from_dict(body["keys"])
    return {
        "place": half.place,
        "half_id": half.half_id,
        "checkpoint_id": half.checkpoint_id and clean_name(half.checkpoint_id),
        "paused_at": half.paused_at,
        "expires_at": expires_at,
        "body": json_text(body),
        "run_id": clean_name(body["run_id"].lower()),
        "created_at": datetime.fromisoformat(body["started_at"]),
        "domain": clean_name(body["domain"]),
    } | key_columns(keys)
