"""`Outbox`: what passed the gate and goes to a registry, and how far each `Contribution` has come.

A contribution enters in the transaction that judges its run. After that, one process at a time
sends: the one that has the lease of the job `send` (`Outbox.sending`). A verdict, in any process,
may change a contribution meanwhile; `begin` and `record_answer` take that into account.

What changes the state of a contribution, and where that is written:

- The registry's answer, in `registry/sender.py`: it took a `pending` one (`sent`),
  will never take it (`dead`), or deleted one whose withdrawal was asked (`withdrawn`).
- A verdict, in `store/outbox_queries.py`. If the run no longer passes, and the registry never
  received it, it is `withdrawn`; else `withdraw_asked` is set, and the sender has the registry
  delete it (`ask_withdrawal`). If the run passes again, it is `pending` (`take_back_withdrawal`).
  If the run still passes, it is `pending` with its new text (`renew`).
- A person, in `cli/`: `outbox retry` makes a `dead` one `pending`, `withdraw` makes any
  one `withdrawn` for good, `outbox drop` removes one.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import sqlalchemy as sa

from kp_langchain.errors import StoreError
from kp_langchain.store import outbox_queries
from kp_langchain.store.database import StorePart
from kp_langchain.store.jobs import SEND, Jobs, Lease
from kp_langchain.store.registry_units import (
    CONTRIBUTION_STATES,
    Contribution,
    ContributionState,
    Standing,
)
from kp_langchain.store.rows import MATCHES_SHOWN, check_page, trace_key
from kp_langchain.store.run_queries import begins, first_matches, possible_ids
from kp_langchain.store.tables import outbox, registries
from kp_langchain.values import clean_text

_PATIENCE_S = 30.0
_POLL_INTERVAL_S = 0.1
_c = outbox.c
_without_body = sa.select(*(column for column in outbox.columns if column is not _c.body))


class Outbox(StorePart):
    """The contributions of one store. Got from `TraceStore.outbox`."""

    def counts(self) -> dict[ContributionState, int]:
        """Return the number of contributions in each state."""
        select = sa.select(_c.state, sa.func.count()).group_by(_c.state)
        with self._database.reading() as connection:
            counts = {row[0]: row[1] for row in connection.execute(select)}
        return {state: counts.get(state, 0) for state in CONTRIBUTION_STATES}

    def contributions(
        self, *, state: ContributionState | None = None, limit: int | None = 50, offset: int = 0
    ) -> list[Contribution]:
        """Return contributions, the newest first, without their bodies.

        Args:
            state: Only those in this state.
            limit: At most so many; None for all.
            offset: Skip so many at the beginning.

        Raises:
            ConfigError: `limit` or `offset` is negative.
        """
        check_page(limit, offset)
        select = _without_body.order_by(_c.queued_at.desc(), _c.trace_id.desc())
        if state is not None:
            select = select.where(_c.state == state)
        return self._select(select.limit(limit).offset(offset))

    def get(self, id: str) -> Contribution | None:  # noqa: A002 - as TraceStore.get
        """Return the contribution that `id` identifies, or None.

        Args:
            id: A trace id, the registry's id, or the first characters of a trace id.

        Raises:
            StoreError: It fits more than one; the message lists them.
        """
        text, ids = str(id), possible_ids(str(id))
        has_registry_id = _c.registry_id == clean_text(text.strip())
        conditions = [sa.or_(_c.trace_id == trace_key(id_), has_registry_id) for id_ in ids]
        conditions += [begins(_c.trace_id, clean_text(id_)) for id_ in ids]
        select = sa.select(outbox).order_by(_c.queued_at.desc()).limit(MATCHES_SHOWN)
        with self._database.reading() as connection:
            rows = first_matches(connection, select, conditions)
        matches = [Contribution(**row) for row in rows]
        if len(matches) > 1:
            lines = "".join(f"\n  {one.trace_id}  {one.state}" for one in matches)
            raise StoreError(f"{text!r} may mean several; give more characters of the id:{lines}")
        return matches[0] if matches else None

    def next_pending(self, registry: str) -> Contribution | None:
        """Return the contribution to send to `registry`, or withdraw from it, next; with body."""
        is_asked = sa.and_(_c.state == "sent", _c.withdraw_asked)
        awaits_sender = sa.or_(_c.state == "pending", is_asked)
        select = sa.select(outbox).where(_c.registry == registry, awaits_sender)
        return next(iter(self._select(select.order_by(_c.due_at, _c.trace_id).limit(1))), None)

    def to_withdraw(self) -> list[Contribution]:
        """Return the contributions that are still to be withdrawn, without their bodies."""
        condition = sa.and_(_c.withdraw_asked, _c.state.in_(("pending", "sent")))
        return self._select(_without_body.where(condition).order_by(_c.due_at))

    def standing(self, registry: str, key_id: str) -> Standing:
        """Return the limits and failures of `registry` under the key `key_id`."""
        select = sa.select(registries).where(
            registries.c.registry == registry, registries.c.key_id == key_id
        )
        with self._database.reading() as connection:
            row = connection.execute(select).mappings().first()
        if row is None:
            return Standing(registry, key_id)
        return Standing(**{**row, "throttled_at": tuple(row["throttled_at"])})

    def save(self, *changes: Contribution | Standing) -> None:
        """Write contributions and standings in one transaction, within `changing`.

        This overwrites what a verdict changed of a contribution since it was read;
        `record_answer` does not.
        """
        with self._database.writing() as connection:
            for change in changes:
                if isinstance(change, Contribution):
                    outbox_queries.overwrite(connection, change)
                else:
                    outbox_queries.write_standing(connection, change)

    def begin(self, unit: Contribution, *, read: Contribution, lease: Lease) -> bool:
        """Record an attempt before it is made.

        Args:
            unit: The contribution as the attempt leaves it.
            read: The contribution as it was read.
            lease: The lease of `sending`, which is renewed for the attempt.

        Returns:
            False, and nothing is written, if a verdict changed the contribution since it was read.

        Raises:
            StoreError: The lease expired, and another process sends now.
        """

        def change(one: Contribution) -> Contribution:
            if one != read:
                return one
            attempts, first_at = unit.attempts, unit.first_attempt_at
            return replace(
                one, attempts=attempts, first_attempt_at=first_at, changed_at=unit.changed_at
            )

        with self._database.writing() as connection:
            lease.renew(connection)
            return outbox_queries.change(connection, unit.trace_id, change)

    def record_answer(
        self,
        unit: Contribution,
        *standings: Standing,
        read: Contribution,
        lease: Lease | None = None,
    ) -> None:
        """Write the result of an attempt; a verdict given meanwhile prevails.

        Args:
            unit: The contribution as the answer leaves it.
            standings: The standing as the answer leaves it.
            read: The contribution as it was read before the attempt.
            lease: The lease of `sending`.

        Raises:
            StoreError: The lease expired. The process that has it now asks the registry what came
                of the attempt, and the result is not written.
        """

        def change(one: Contribution) -> Contribution:
            if read.withdraw_asked and not one.withdraw_asked:
                # Taken back during the request to withdraw it: pending again, with another body.
                return replace(one, registry_id=None) if unit.state == "withdrawn" else one
            if not one.withdraw_asked and one.state == "pending" and one.body != read.body:
                # A verdict changed it during the attempt: keep only what the answer says of the
                # body that was sent.
                is_known = unit.state != "pending" or unit.first_attempt_at is None
                first_attempt_at = None if is_known else unit.first_attempt_at
                return replace(one, registry_id=unit.registry_id, first_attempt_at=first_attempt_at)
            after = replace(unit, withdraw_asked=one.withdraw_asked)
            if one.withdraw_asked and unit.state == "dead" and unit.registry_id is not None:
                return replace(after, state="sent", body=None)  # an earlier body is withdrawn
            return after

        with self._database.writing() as connection:
            if lease is not None:
                lease.renew(connection)
            outbox_queries.change(connection, unit.trace_id, change)
            outbox_queries.forget_if_deleted(connection, unit.trace_id)
            for standing in standings:
                outbox_queries.write_standing(connection, standing)

    def remove(self, trace_id: str) -> None:
        """Delete a contribution, within `changing`."""
        with self._database.writing() as connection:
            connection.execute(sa.delete(outbox).where(_c.trace_id == trace_id))

    @contextmanager
    def sending(self, timeout_s: float = 0.0, *, lasts_s: float = 60.0) -> Iterator[Lease | None]:
        """Be the only sender of this store inside the block: have the lease of its job `send`.

        Args:
            timeout_s: Seconds to wait for another sender to finish.
            lasts_s: Seconds that the lease lasts, from each renewal on. That must be longer than a
                request takes, and is how long others wait for a process that dies meanwhile.

        Yields:
            The lease; None if another sender is at work.
        """
        until = time.monotonic() + timeout_s
        jobs = Jobs(self._database)
        while (lease := jobs.lease_lasting(SEND, lasts_s)) is None and time.monotonic() < until:
            time.sleep(_POLL_INTERVAL_S)
        try:
            yield lease
        finally:
            if lease is not None:
                jobs.release(SEND, lease)

    @contextmanager
    def changing(self) -> Iterator[None]:
        """Be the only sender, as in `sending`, after waiting up to 30 s for another one to finish.

        Raises:
            StoreError: Another process kept sending for that long.
        """
        with self.sending(_PATIENCE_S) as lease:
            if lease is None:
                raise StoreError(
                    f"another process has been sending from {self._database.location} for "
                    f"{_PATIENCE_S:.0f} s; try again when it has ended"
                )
            yield

    def _select(self, select: sa.Select[Any]) -> list[Contribution]:
        with self._database.reading() as connection:
            return outbox_queries.contributions(connection, select)
