"""`Outbox`: what passed the gate and goes to a registry, and how far each has come.

A contribution enters in the transaction that writes its run (`TraceStore.add`). After that only
whoever holds `sending` changes it, so that one sender at a time works on a store.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Literal

from kp_langchain.errors import ConfigError, StoreError

if TYPE_CHECKING:
    from kp_langchain.store.trace_store import TraceStore

State = Literal["pending", "sent", "dead", "withdrawn"]
STATES: tuple[State, ...] = ("pending", "sent", "dead", "withdrawn")

_PATIENCE_S = 30.0


@dataclass(frozen=True, slots=True)
class Contribution:
    """One trace on its way to a registry.

    Args:
        trace_id: The trace's id, as `StoredRun` has it.
        registry: URL of the registry it is meant for.
        state: `pending`, `sent`, `dead` (the registry will never take it) or `withdrawn`.
        queued_at: When it entered the outbox, in UTC.
        changed_at: When it last changed, in UTC.
        due_at: When it is next to be tried, in UTC; only of use while it is pending.
        attempts: How often the registry was asked about it, in all.
        first_attempt_at: When this text of it was first tried, in UTC; None, too, once it is known
            that the registry did not take it. While it is pending with one, the registry may have
            it, and is asked before it is sent again.
        registry_id: The registry's id for it, once sent. One that is pending with an id replaces
            what the registry has.
        reason: What came of the last attempt, if it was no success.
        issues: The registry's complaints, each with `path` and `message`.
        body: The JSON text to send; None once it was sent or withdrawn.
        withdraw_asked: Whether a verdict wants it withdrawn, which the sender does.
    """

    trace_id: str
    registry: str
    state: State
    queued_at: datetime
    changed_at: datetime
    due_at: datetime
    attempts: int = 0
    first_attempt_at: datetime | None = None
    registry_id: str | None = None
    reason: str | None = None
    issues: Sequence[dict[str, str]] | None = None
    body: str | None = None
    withdraw_asked: bool = False

    @property
    def standing_in_words(self) -> str:
        """The state, or that the registry's copy is still to be withdrawn or replaced."""
        if self.withdraw_asked and self.state in ("pending", "sent"):
            return "to withdraw"
        return "to replace" if self.state == "pending" and self.registry_id else self.state

    @property
    def unit_id(self) -> str:
        """What the registry knows it by: the registry's own id, once sent; else the trace's id.

        Where the two differ, that is the one in the body and not the store's `trace_id`.
        """
        if self.registry_id is not None:
            return self.registry_id
        try:
            in_body = json.loads(self.body or "")["id"]
        except (ValueError, TypeError, KeyError, RecursionError):
            return self.trace_id
        return in_body if isinstance(in_body, str) else self.trace_id

    @property
    def idempotency_key(self) -> str:
        """SHA-256 of the body in hexadecimal: the same for every attempt, in every process."""
        return sha256((self.body or "").encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class Standing:
    """How matters stand with one registry under one key, for all processes on a store.

    Args:
        registry: The registry's URL.
        key_id: Which key, without telling it.
        quiet_until: Nothing is sent before this time (UTC).
        quiet_s: How long that silence was when it began, in seconds.
        quiet_reason: Why it is kept.
        stopped: Whether that is because the key, or the URL, was refused.
        failures: Attempts in a row that failed for want of a usable answer.
        remaining: Requests left in the registry's present window, by its own count.
        window_limit: Requests it allows per window.
        window_ends_at: When its present window ends (UTC).
        throttled_at: When it answered 429 within the last hour (UTC, ISO 8601).
    """

    registry: str
    key_id: str
    quiet_until: datetime | None = None
    quiet_s: float = 0.0
    quiet_reason: str | None = None
    stopped: bool = False
    failures: int = 0
    remaining: int | None = None
    window_limit: int | None = None
    window_ends_at: datetime | None = None
    throttled_at: Sequence[str] = ()


class Outbox:
    """The contributions of one store. Got from `TraceStore.outbox`.

    Every method raises `StoreError` when the database cannot be opened, read or written.
    """

    def __init__(self, store: TraceStore) -> None:
        self._store = store

    def __repr__(self) -> str:
        return f"Outbox({self._store.location!r})"

    def counts(self) -> dict[State, int]:
        """Return how many contributions there are in each state."""
        from kp_langchain.store import outbox_queries

        with self._store._reading() as connection:  # noqa: SLF001 - one room
            found = outbox_queries.counts(connection)
        return {state: found.get(state, 0) for state in STATES}

    def entries(
        self, *, state: State | None = None, limit: int | None = 50, offset: int = 0
    ) -> list[Contribution]:
        """Return contributions, the newest first, without their bodies.

        Args:
            state: Only those in this state.
            limit: At most so many; None for all.
            offset: Leave out so many at the beginning.

        Raises:
            ConfigError: `limit` or `offset` is negative, or there is no such state.
        """
        if offset < 0 or (limit is not None and limit < 0):
            raise ConfigError(f"limit={limit} and offset={offset} must not be negative")
        if state is not None and state not in STATES:
            raise ConfigError(f"{state!r} is no state; give one of {', '.join(STATES)}")
        from kp_langchain.store import outbox_queries

        with self._store._reading() as connection:  # noqa: SLF001
            found = outbox_queries.entries(connection, state, limit, offset)
        return [Contribution(**row) for row in found]

    def get(self, id: str) -> Contribution | None:  # noqa: A002 - as TraceStore.get
        """Return the contribution that `id` means, or None.

        Args:
            id: A trace id, the registry's id, or the first characters of a trace id.

        Raises:
            StoreError: More than one is meant; the message lists them.
        """
        from kp_langchain.store import outbox_queries

        with self._store._reading() as connection:  # noqa: SLF001
            found = outbox_queries.find(connection, str(id))
        if len(found) > 1:
            lines = "".join(f"\n  {row['trace_id']}  {row['state']}" for row in found)
            raise StoreError(f"{str(id)!r} may mean several; give more of one's id:{lines}")
        return Contribution(**found[0]) if found else None

    def next_pending(self, registry: str) -> Contribution | None:
        """Return what is to be sent to `registry`, or withdrawn from it, first; with its body."""
        from kp_langchain.store import outbox_queries

        with self._store._reading() as connection:  # noqa: SLF001
            row = outbox_queries.next_pending(connection, registry)
        return Contribution(**row) if row else None

    def standing(self, registry: str, key_id: str) -> Standing:
        """Return how matters stand with `registry` under the key `key_id`."""
        from kp_langchain.store import outbox_queries

        with self._store._reading() as connection:  # noqa: SLF001
            row = outbox_queries.standing(connection, registry, key_id)
        if row is None:
            return Standing(registry, key_id)
        return Standing(**row | {"throttled_at": tuple(row["throttled_at"])})

    def save(self, *changes: Contribution | Standing) -> None:
        """Write contributions and standings in one transaction. Hold `sending` meanwhile.

        What a verdict changed of a contribution since it was read is overwritten; see `settle`.
        """
        from kp_langchain.store import outbox_queries

        with self._store._writing() as connection:  # noqa: SLF001
            for change in changes:
                if isinstance(change, Contribution):
                    outbox_queries.update(connection, _fields(change))
                else:
                    outbox_queries.write_standing(connection, _fields(change))

    def begin(self, unit: Contribution, standing: Standing, *, read: Contribution) -> bool:
        """Write down that a contribution is tried now. Hold `sending` meanwhile.

        Args:
            unit: The contribution as the attempt leaves it.
            standing: The standing as the attempt leaves it.
            read: The contribution as it was read.

        Returns:
            False, and nothing is written, if a verdict changed it since it was read.
        """
        from kp_langchain.store import outbox_queries

        with self._store._writing() as connection:  # noqa: SLF001
            same = outbox_queries.begin(connection, _fields(unit), _fields(read))
            if same:
                outbox_queries.write_standing(connection, _fields(standing))
        return same

    def settle(self, unit: Contribution, *standings: Standing, read: Contribution) -> None:
        """Write what came of an attempt, unless a verdict that came meanwhile counts more.

        Hold `sending` meanwhile.

        Args:
            unit: The contribution as the answer leaves it.
            standings: The standing as the answer leaves it.
            read: The contribution as it was read before the attempt.
        """
        from kp_langchain.store import outbox_queries

        with self._store._writing() as connection:  # noqa: SLF001
            outbox_queries.settle(connection, _fields(unit), _fields(read))
            for standing in standings:
                outbox_queries.write_standing(connection, _fields(standing))

    def set_right(self, registry: str, now: datetime) -> int:
        """Make due what waits only because the clock was set back. Hold `sending` meanwhile.

        Args:
            registry: Of what is meant for this registry.
            now: The time, in UTC.

        Returns:
            How many contributions that was.
        """
        from kp_langchain.store import outbox_queries

        with self._store._writing() as connection:  # noqa: SLF001
            return outbox_queries.set_right(connection, registry, now)

    def to_withdraw(self) -> list[Contribution]:
        """Return the contributions that are still to be withdrawn, without their bodies."""
        from kp_langchain.store import outbox_queries

        with self._store._reading() as connection:  # noqa: SLF001
            rows = outbox_queries.to_withdraw(connection)
        return [Contribution(**row) for row in rows]

    def remove(self, trace_id: str) -> None:
        """Take a contribution out of the outbox. Hold `sending` meanwhile."""
        from kp_langchain.store import outbox_queries

        with self._store._writing() as connection:  # noqa: SLF001
            outbox_queries.remove(connection, trace_id)

    @contextmanager
    def sending(self, timeout_s: float = 0.0) -> Iterator[bool]:
        """Be the only sender of this store inside the block.

        What holds it is an open transaction, not an entry with an expiry: when its process dies it
        is free at once, and no clock has a say.

        Args:
            timeout_s: Seconds to wait for another sender to end.

        Yields:
            Whether this is the only sender; if False, another one is at work.
        """
        with self._store._sending(timeout_s) as held:  # noqa: SLF001
            yield held

    @contextmanager
    def changing(self) -> Iterator[None]:
        """Like `sending`, for a person's command: waits up to 30 s.

        Raises:
            StoreError: Another process kept sending all the while.
        """
        with self.sending(_PATIENCE_S) as held:
            if not held:
                raise StoreError(
                    f"another process has been sending from {self._store.location} for "
                    f"{_PATIENCE_S:.0f} s; try again when it has ended"
                )
            yield


def fresh_text(body: str, attempts: int) -> str:
    """Return the same JSON as another text than was sent in any attempt so far.

    A registry answers a text that it knows as it did before, for a day: with a refusal whose cause
    was mended, or with a success although the unit was deleted since.
    """
    return body.rstrip(" ") + " " * attempts


def _fields(record: Contribution | Standing) -> dict[str, Any]:
    return {name: getattr(record, name) for name in record.__slots__}
