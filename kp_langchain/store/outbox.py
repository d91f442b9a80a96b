"""`Outbox`: what passed the gate and goes to a registry, and how far each `Contribution` has come.

A contribution enters in the transaction that settles its run. After that, one process at a time
sends: the one that has the lease of the job `send` (`Outbox.sending`). A verdict, in any process,
may change a contribution meanwhile; `begin` and `settle` take that into account.

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
from typing import TYPE_CHECKING

from kp_langchain.errors import StoreError
from kp_langchain.store import sql
from kp_langchain.store.jobs import SEND, Jobs, Lease
from kp_langchain.store.location import StorePart
from kp_langchain.store.registry_units import (
    CONTRIBUTION_STATES,
    Contribution,
    ContributionState,
    Standing,
)
from kp_langchain.store.rows import check_page

if TYPE_CHECKING:
    pass

_PATIENCE_S = 30.0
_POLL_INTERVAL_S = 0.1


class Outbox(StorePart):
    """The contributions of one store. Got from `TraceStore.outbox`."""

    def counts(self) -> dict[ContributionState, int]:
        """Return the number of contributions in each state."""
        with self._database.reading() as connection:
            counts = sql.outbox_queries.counts(connection)
        return {state: counts.get(state, 0) for state in CONTRIBUTION_STATES}

    def entries(
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
        with self._database.reading() as connection:
            return sql.outbox_queries.entries(connection, state, limit, offset)

    def get(self, id: str) -> Contribution | None:  # noqa: A002 - as TraceStore.get
        """Return the contribution that `id` identifies, or None.

        Args:
            id: A trace id, the registry's id, or the first characters of a trace id.

        Raises:
            StoreError: It fits more than one; the message lists them.
        """
        with self._database.reading() as connection:
            matches = sql.outbox_queries.find(connection, str(id))
        if len(matches) > 1:
            lines = "".join(f"\n  {one.trace_id}  {one.state}" for one in matches)
            raise StoreError(
                f"{str(id)!r} may mean several; give more characters of the id:{lines}"
            )
        return matches[0] if matches else None

    def next_pending(self, registry: str) -> Contribution | None:
        """Return the contribution to send to `registry`, or withdraw from it, next; with body."""
        with self._database.reading() as connection:
            return sql.outbox_queries.next_pending(connection, registry)

    def to_withdraw(self) -> list[Contribution]:
        """Return the contributions that are still to be withdrawn, without their bodies."""
        with self._database.reading() as connection:
            return sql.outbox_queries.to_withdraw(connection)

    def standing(self, registry: str, key_id: str) -> Standing:
        """Return the limits and failures of `registry` under the key `key_id`."""
        with self._database.reading() as connection:
            return sql.outbox_queries.standing(connection, registry, key_id)

    def save(self, *changes: Contribution | Standing) -> None:
        """Write contributions and standings in one transaction, within `changing`.

        This overwrites what a verdict changed of a contribution since it was read; `settle` does
        not.
        """
        with self._database.writing() as connection:
            for change in changes:
                if isinstance(change, Contribution):
                    sql.outbox_queries.overwrite(connection, change)
                else:
                    sql.outbox_queries.write_standing(connection, change)

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
        with self._database.writing() as connection:
            lease.renew(connection)
            return sql.outbox_queries.begin(connection, unit, read)

    def settle(
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
        with self._database.writing() as connection:
            if lease is not None:
                lease.renew(connection)
            sql.outbox_queries.settle(connection, unit, read)
            for standing in standings:
                sql.outbox_queries.write_standing(connection, standing)

    def remove(self, trace_id: str) -> None:
        """Delete a contribution, within `changing`."""
        with self._database.writing() as connection:
            sql.outbox_queries.remove(connection, trace_id)

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
                jobs.give_back(lease)

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
