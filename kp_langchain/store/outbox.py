"""`Outbox`: what passed the gate and goes to a registry, and how far each trace has come.

A contribution enters in the transaction that writes its run (`TraceStore.add`). After that, one
process at a time sends: the one that holds `sending`. A verdict, in any process, may change a
contribution meanwhile; `begin` and `settle` take that into account.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields
from typing import Any

from kp_langchain.errors import ConfigError, StoreError
from kp_langchain.store import sql
from kp_langchain.store.contribution import STATES, Contribution, Standing, State
from kp_langchain.store.database import Database

_PATIENCE_S = 30.0


class Outbox:
    """The contributions of one store. Got from `TraceStore.outbox`.

    Every method raises `StoreError` when the database cannot be opened, read or written.

    Args:
        database: The database of the store.
    """

    def __init__(self, database: Database) -> None:
        self._database = database

    def __repr__(self) -> str:
        return f"Outbox({str(self._database.location)!r})"

    def counts(self) -> dict[State, int]:
        """Return the number of contributions in each state."""
        with self._database.reading() as connection:
            counts = sql.outbox_queries.counts(connection)
        return {state: counts.get(state, 0) for state in STATES}

    def entries(
        self, *, state: State | None = None, limit: int | None = 50, offset: int = 0
    ) -> list[Contribution]:
        """Return contributions, the newest first, without their bodies.

        Args:
            state: Only those in this state.
            limit: At most so many; None for all.
            offset: Skip so many at the beginning.

        Raises:
            ConfigError: `limit` or `offset` is negative, or there is no such state.
        """
        if offset < 0 or (limit is not None and limit < 0):
            raise ConfigError(f"limit={limit} and offset={offset} must not be negative")
        if state is not None and state not in STATES:
            raise ConfigError(f"{state!r} is not a state; give one of {', '.join(STATES)}")
        with self._database.reading() as connection:
            rows = sql.outbox_queries.entries(connection, state, limit, offset)
        return [Contribution(**row) for row in rows]

    def get(self, id: str) -> Contribution | None:  # noqa: A002 - as TraceStore.get
        """Return the contribution that `id` identifies, or None.

        Args:
            id: A trace id, the registry's id, or the first characters of a trace id.

        Raises:
            StoreError: It fits more than one; the message lists them.
        """
        with self._database.reading() as connection:
            rows = sql.outbox_queries.find(connection, str(id))
        if len(rows) > 1:
            lines = "".join(f"\n  {row['trace_id']}  {row['state']}" for row in rows)
            raise StoreError(
                f"{str(id)!r} may mean several; give more characters of the id:{lines}"
            )
        return Contribution(**rows[0]) if rows else None

    def next_pending(self, registry: str) -> Contribution | None:
        """Return the contribution to send to `registry`, or withdraw from it, next; with body."""
        with self._database.reading() as connection:
            row = sql.outbox_queries.next_pending(connection, registry)
        return Contribution(**row) if row else None

    def to_withdraw(self) -> list[Contribution]:
        """Return the contributions that are still to be withdrawn, without their bodies."""
        with self._database.reading() as connection:
            rows = sql.outbox_queries.to_withdraw(connection)
        return [Contribution(**row) for row in rows]

    def standing(self, registry: str, key_id: str) -> Standing:
        """Return the limits and failures of `registry` under the key `key_id`."""
        with self._database.reading() as connection:
            row = sql.outbox_queries.standing(connection, registry, key_id)
        if row is None:
            return Standing(registry, key_id)
        return Standing(**row | {"throttled_at": tuple(row["throttled_at"])})

    def save(self, *changes: Contribution | Standing) -> None:
        """Write contributions and standings in one transaction. Requires `sending`.

        This overwrites what a verdict changed of a contribution since it was read; `settle` does
        not.
        """
        with self._database.writing() as connection:
            for change in changes:
                if isinstance(change, Contribution):
                    sql.outbox_queries.overwrite(connection, _columns(change))
                else:
                    sql.outbox_queries.write_standing(connection, _columns(change))

    def begin(self, unit: Contribution, standing: Standing, *, read: Contribution) -> bool:
        """Record an attempt before it is made. Requires `sending`.

        Args:
            unit: The contribution as the attempt leaves it.
            standing: The standing as the attempt leaves it.
            read: The contribution as it was read.

        Returns:
            False, and nothing is written, if a verdict changed the contribution since it was read.
        """
        with self._database.writing() as connection:
            is_unchanged = sql.outbox_queries.begin(connection, _columns(unit), _columns(read))
            if is_unchanged:
                sql.outbox_queries.write_standing(connection, _columns(standing))
        return is_unchanged

    def settle(self, unit: Contribution, *standings: Standing, read: Contribution) -> None:
        """Write the result of an attempt; a verdict given meanwhile prevails. Requires `sending`.

        Args:
            unit: The contribution as the answer leaves it.
            standings: The standing as the answer leaves it.
            read: The contribution as it was read before the attempt.
        """
        with self._database.writing() as connection:
            sql.outbox_queries.settle(connection, _columns(unit), _columns(read))
            for standing in standings:
                sql.outbox_queries.write_standing(connection, _columns(standing))

    def remove(self, trace_id: str) -> None:
        """Delete a contribution. Requires `sending`."""
        with self._database.writing() as connection:
            sql.outbox_queries.remove(connection, trace_id)

    @contextmanager
    def sending(self, timeout_s: float = 0.0) -> Iterator[bool]:
        """Be the only sender of this store inside the block.

        The lock is an open transaction, not an entry with an expiry: when its process dies it is
        released at once, and clocks do not matter.

        Args:
            timeout_s: Seconds to wait for another sender to finish.

        Yields:
            Whether this is the only sender; if False, another one is at work.
        """
        with self._database.sending(timeout_s) as is_held:
            yield is_held

    @contextmanager
    def changing(self) -> Iterator[None]:
        """Be the only sender, as in `sending`, after waiting up to 30 s for another one to finish.

        Raises:
            StoreError: Another process kept sending for that long.
        """
        with self.sending(_PATIENCE_S) as is_held:
            if not is_held:
                raise StoreError(
                    f"another process has been sending from {self._database.location} for "
                    f"{_PATIENCE_S:.0f} s; try again when it has ended"
                )
            yield


def _columns(record: Contribution | Standing) -> dict[str, Any]:
    return {field.name: getattr(record, field.name) for field in fields(record)}
