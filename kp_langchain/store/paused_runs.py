"""`PausedRuns`: what runs recorded before they paused for a human, for whoever resumes one.

One row a place: a thread, as seen by handlers of one domain and agent. A new pause there takes the
place of an earlier one. Rows go when they are claimed, forgotten, too old, or too many.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from kp_langchain.store.rows import clean_name, json_text

if TYPE_CHECKING:
    from kp_langchain.store.trace_store import TraceStore


@dataclass(frozen=True, slots=True)
class Half:
    """The redacted first half of a run that waits for a human.

    Args:
        place: Where it waits; see `place_of`.
        half_id: Its own id.
        checkpoint_id: LangGraph's id of the checkpoint that it is resumed from, if known.
        paused_at: When it paused.
        body: What was recorded, as JSON-like values.
    """

    place: str
    half_id: str
    checkpoint_id: str | None
    paused_at: datetime
    body: dict[str, Any]


def place_of(thread: str, domain: str, agent_id: str | None) -> str:
    """Return what a run that is resumed in a thread is looked for by; nothing to be read.

    Args:
        thread: The thread in the form in which it may be kept; see `run_keys.stored_form`.
        domain: The handler's domain.
        agent_id: The handler's agent.
    """
    text = json.dumps([thread, domain, agent_id])
    return hashlib.sha256(text.encode()).hexdigest()


class PausedRuns:
    """The paused runs of one store. Got from `TraceStore.paused`.

    Every method raises `StoreError` when the database cannot be opened, read or written.
    """

    def __init__(self, store: TraceStore) -> None:
        self._store = store

    def __repr__(self) -> str:
        return f"PausedRuns({self._store.location!r})"

    def count(self) -> int:
        """Return how many there are."""
        from kp_langchain.store import paused_queries

        with self._store._reading() as connection:  # noqa: SLF001 - one room
            return paused_queries.count(connection)

    def put(self, halves: Iterable[Half], *, days: float, most: int) -> int:
        """Write halves, each in place of what waits there, and delete what is to go.

        Args:
            halves: The halves.
            days: For how long they are kept.
            most: How many the store keeps at most; the longest waiting go.

        Returns:
            How many others were deleted because they are too old or too many.
        """
        from kp_langchain.store import paused_queries

        now = datetime.now(UTC)
        rows = [
            {
                "place": half.place,
                "half_id": half.half_id,
                "checkpoint_id": half.checkpoint_id and clean_name(half.checkpoint_id),
                "paused_at": half.paused_at,
                "expires_at": now + timedelta(days=days),
                "body": json_text(half.body),
            }
            for half in halves
        ]
        with self._store._writing() as connection:  # noqa: SLF001
            paused_queries.put(connection, rows)
            return paused_queries.drop_expired(connection, now) + paused_queries.drop_oldest(
                connection, most
            )

    def claim(self, place: str) -> Half | None:
        """Take out the half that waits in a place; of several who ask at once, one gets it."""
        from kp_langchain.store import paused_queries

        if not self._any([place]):
            return None
        with self._store._writing() as connection:  # noqa: SLF001
            row = paused_queries.claim(connection, place, datetime.now(UTC))
        return None if row is None else Half(**row)

    def forget(self, places: Mapping[str, datetime]) -> None:
        """Delete what waits in these places and paused no later than the time of each."""
        from kp_langchain.store import paused_queries

        if self._any(list(places)):
            with self._store._writing() as connection:  # noqa: SLF001
                for place, until in sorted(places.items()):
                    paused_queries.forget(connection, place, until)

    def drop_expired(self) -> int:
        """Delete what is too old, and return how many that were."""
        from kp_langchain.store import paused_queries

        now = datetime.now(UTC)
        with self._store._reading() as connection:  # noqa: SLF001
            if not paused_queries.any_expired(connection, now):
                return 0
        with self._store._writing() as connection:  # noqa: SLF001
            return paused_queries.drop_expired(connection, now)

    def _any(self, places: list[str]) -> bool:
        # Asked with every question in a thread, and hardly ever so: nobody is to wait for the file.
        from kp_langchain.store import paused_queries

        with self._store._reading() as connection:  # noqa: SLF001
            return paused_queries.any_in(connection, places)
