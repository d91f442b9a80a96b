"""`Outbox`: what passed the gate and goes to a registry, and how far each `Contribution` has come.

A contribution enters in the transaction that judges its run. After that, one process at a time
sends: the one that has the lease of the job `send` (`Outbox.sending`). A verdict, in any process,
may change a contribution meanwhile; `begin` and `record_answer` take that into account.

What changes the state of a contribution, and where that is written:

- The registry's answer, in `registry/sender.py`. The registry took a `pending` one (`sent`), will
  never take it (`dead`), or deleted it as asked (`withdrawn`).
- A verdict, by the functions at the end. A run that no longer passes is `withdrawn` at once if the
  registry never received it. Otherwise `withdraw_asked` is set, and the sender has it deleted
  (`ask_withdrawal`). If the run passes again, it is `pending` (`take_back_withdrawal`). If it still
  passes, it is `pending` with its new text (`replace_body`).
- A person, in `cli/`: `outbox retry` makes a `dead` one `pending`, `withdraw` makes any
  one `withdrawn` for good.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from datetime import UTC, datetime
from typing import Any

import sqlalchemy as sa

from kp_langchain.errors import StoreError
from kp_langchain.store.database import StorePart
from kp_langchain.store.jobs import SEND, Jobs
from kp_langchain.store.registry_units import (
    CONTRIBUTION_STATES,
    Contribution,
    ContributionState,
    Standing,
    with_new_idempotency_key,
)
from kp_langchain.store.selection import (
    MATCHES_SHOWN,
    check_page,
    count_by_state,
    find_by_id,
    only_match,
)
from kp_langchain.store.tables import insert_or_ignore, insert_or_replace, outbox, registries, runs
from kp_langchain.values import clean_text

_PATIENCE_S = 30.0
_POLL_INTERVAL_S = 0.1
_c = outbox.c
_without_body = sa.select(*(column for column in outbox.columns if column is not _c.body))


class Outbox(StorePart):
    """The contributions of one store. Got from `TraceStore.outbox`."""

    def counts(self) -> dict[ContributionState, int]:
        """Return the number of contributions in each state."""
        with self._database.reading() as connection:
            return count_by_state(connection, outbox, CONTRIBUTION_STATES)

    def contributions(
        self, *, state: ContributionState | None = None, limit: int | None = 50
    ) -> list[Contribution]:
        """Return contributions, the newest first, without their bodies.

        Args:
            state: Only those in this state.
            limit: At most so many; None for all.

        Raises:
            ConfigError: `limit` is negative.
        """
        check_page(limit)
        select = _without_body.order_by(_c.queued_at.desc(), _c.trace_id.desc())
        if state is not None:
            select = select.where(_c.state == state)
        return self._select(select.limit(limit))

    def get(self, id: str) -> Contribution | None:  # noqa: A002 - as TraceStore.get
        """Return the contribution that `id` identifies, or None.

        Args:
            id: A trace id, the registry's id, or the first 4 characters or more.

        Raises:
            StoreError: It fits more than one; the message lists them.
        """
        text = str(id)
        select = sa.select(outbox).order_by(_c.queued_at.desc()).limit(MATCHES_SHOWN)
        with self._database.reading() as connection:
            rows = find_by_id(
                connection, select, text, trace_id=_c.trace_id, other_id=_c.registry_id
            )
        match = only_match(rows, text)
        return None if match is None else Contribution(**match)

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
                    _overwrite(connection, change)
                else:
                    _write_standings(connection, [change])

    def begin(self, unit: Contribution, *, read: Contribution, lease: Jobs) -> bool:
        """Record an attempt before it is made.

        Args:
            unit: The contribution as the attempt leaves it.
            read: The contribution as it was read.
            lease: What `sending` yielded; its lease is renewed for the attempt.

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
            lease.renew_within(connection, SEND)
            return _change(connection, unit.trace_id, change)

    def record_answer(
        self,
        unit: Contribution,
        *standings: Standing,
        read: Contribution,
        lease: Jobs | None = None,
    ) -> None:
        """Write the result of an attempt; a verdict given meanwhile prevails.

        Args:
            unit: The contribution as the answer leaves it.
            standings: The standing as the answer leaves it.
            read: The contribution as it was read before the attempt.
            lease: What `sending` yielded.

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
                lease.renew_within(connection, SEND)
            _change(connection, unit.trace_id, change)
            _forget_if_deleted(connection, unit.trace_id)
            _write_standings(connection, standings)

    @contextmanager
    def sending(self, timeout_s: float = 0.0, *, lasts_s: float = 60.0) -> Iterator[Jobs | None]:
        """Be the only sender of this store inside the block: have the lease of its job `send`.

        Args:
            timeout_s: Seconds to wait for another sender to finish.
            lasts_s: Seconds that the lease lasts, from each renewal on. That must be longer than a
                request takes, and is how long others wait for a process that dies meanwhile.

        Yields:
            What has the lease; None if another sender is at work.
        """
        until = time.monotonic() + timeout_s
        jobs = Jobs(self._database, lasts_s)  # of its own: this process may have other senders
        while not (has_lease := jobs.take_only(SEND)) and time.monotonic() < until:
            time.sleep(_POLL_INTERVAL_S)
        try:
            yield jobs if has_lease else None
        finally:
            if has_lease:
                jobs.release(SEND)

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
            return [Contribution(**row) for row in connection.execute(select).mappings()]


# ------------------------------------------------------------------ within a transaction


def registry_has_nothing() -> sa.ColumnElement[bool]:
    """Return the condition that no registry has a contribution, as far as its row can tell."""
    is_untried = sa.and_(_c.state == "pending", _c.first_attempt_at.is_(None))
    was_never_received = sa.and_(_c.registry_id.is_(None), sa.or_(is_untried, _c.state == "dead"))
    return sa.or_(_c.state == "withdrawn", was_never_received)


def add_contributions(
    connection: sa.Connection, contributions: Iterable[tuple[str, str, str]]
) -> None:
    """Insert contributions; one whose trace has one already stays as it is.

    Args:
        connection: A write transaction.
        contributions: For each the id of the trace, the URL of the registry, and the JSON text.
    """
    now = datetime.now(UTC)
    rows = [
        asdict(Contribution(trace_id, registry, "pending", now, now, now, body=body))
        for trace_id, registry, body in sorted(contributions)
    ]
    if rows:
        connection.execute(insert_or_ignore(outbox, connection.dialect.name), rows)


def ask_withdrawal(connection: sa.Connection, trace_id: str) -> None:
    """Withdraw a contribution: at once if the registry does not have it, else by the sender."""
    now = datetime.now(UTC)

    def changed(one: Contribution) -> Contribution:
        if one.state == "withdrawn":
            return one
        is_untried = one.state == "pending" and one.first_attempt_at is None
        if one.registry_id is None and (is_untried or one.state == "dead"):
            one = replace(one, state="withdrawn", body=None)
        elif one.state == "dead":  # the registry still has what was sent earlier
            one = replace(one, state="sent")
        return replace(one, withdraw_asked=True, due_at=now, changed_at=now)

    _change(connection, trace_id, changed)


def take_back_withdrawal(connection: sa.Connection, trace_id: str, body: str) -> None:
    """Contribute a trace after all; one that was withdrawn by hand stays withdrawn."""

    def changed(one: Contribution) -> Contribution:
        if not one.withdraw_asked:
            return one
        registry_id = one.registry_id
        if one.state == "withdrawn":
            registry_id = None
        elif one.state != "dead":  # the registry may have it, or may have deleted it unnoticed
            registry_id = registry_id or trace_id
        return replace(_pending_again(one, body), registry_id=registry_id, withdraw_asked=False)

    _change(connection, trace_id, changed)


def replace_body(connection: sa.Connection, trace_id: str, body: str) -> None:
    """Replace the body of a contribution; one that was sent is sent again."""

    def changed(one: Contribution) -> Contribution:
        if one.state == "withdrawn":
            return one
        if one.state == "pending" or one.registry_id is None:
            # If the registry may have the earlier body, the sender asks before it sends.
            new_body = with_new_idempotency_key(body, one.attempts)
            return replace(one, body=new_body, changed_at=datetime.now(UTC))
        return _pending_again(one, body)

    _change(connection, trace_id, changed)


def withdraw_deleted(
    connection: sa.Connection, trace_ids: Sequence[str], due_at: datetime | None
) -> None:
    """Withdraw the contributions of deleted runs, and keep no text of them.

    What no registry has is deleted. Of the rest only the row stays, until the registry has deleted
    the contribution; then `record_answer` or `save` deletes the row.

    Args:
        connection: A write transaction, in which the runs are deleted already.
        trace_ids: Ids of their traces.
        due_at: When the withdrawal is due, in UTC; None for when the next request was due anyway.
    """
    of_runs = _c.trace_id.in_(trace_ids)
    connection.execute(sa.delete(outbox).where(of_runs, registry_has_nothing()))
    for one in _locked_units(connection, of_runs):
        after = replace(
            one,
            state="sent",
            withdraw_asked=True,
            registry_id=one.unit_id,  # which the body may have
            body=None,
            due_at=due_at or one.due_at,
        )
        if one.state != "sent" or not one.withdraw_asked:
            after = replace(after, reason=None)  # which may quote the text sent
        _write(connection, one, after)


def _overwrite(connection: sa.Connection, unit: Contribution) -> None:
    """Overwrite a contribution, whatever happened to it since it was read."""

    def changed(one: Contribution) -> Contribution:
        # Only a withdrawal by hand clears it here.
        is_by_hand = unit.state == "withdrawn" and not unit.withdraw_asked
        return replace(unit, withdraw_asked=one.withdraw_asked and not is_by_hand)

    _change(connection, unit.trace_id, changed)
    if unit.state == "withdrawn":
        _forget_if_deleted(connection, unit.trace_id)


def _write_standings(connection: sa.Connection, standings: Iterable[Standing]) -> None:
    insert = insert_or_replace(registries, connection.dialect.name)
    for standing in standings:
        connection.execute(insert, [asdict(standing)])


def _forget_if_deleted(connection: sa.Connection, trace_id: str) -> None:
    """Have no more of a contribution than `withdraw_deleted` leaves, if its run was deleted."""
    if connection.scalar(sa.select(runs.c.trace_id).where(runs.c.trace_id == trace_id)) is None:
        withdraw_deleted(connection, [trace_id], due_at=None)


def _pending_again(one: Contribution, body: str) -> Contribution:
    """Return a contribution as the sender sends it again, with this body."""
    now, body = datetime.now(UTC), with_new_idempotency_key(body, one.attempts)
    one = replace(one, state="pending", body=body, first_attempt_at=None)
    return replace(one, reason=None, due_at=now, changed_at=now)


def _change(
    connection: sa.Connection, trace_id: str, changed: Callable[[Contribution], Contribution]
) -> bool:
    """Lock a contribution for this transaction, and change it; return whether it is changed."""
    return any(
        _write(connection, one, changed(one))
        for one in _locked_units(connection, _c.trace_id == trace_id)
    )


def _write(connection: sa.Connection, before: Contribution, after: Contribution) -> bool:
    if after == before:
        return False
    values = asdict(after)
    if after.registry_id is not None:
        values["registry_id"] = clean_text(after.registry_id)
    connection.execute(sa.update(outbox).where(_c.trace_id == after.trace_id).values(values))
    return True


def _locked_units(
    connection: sa.Connection, condition: sa.ColumnElement[bool]
) -> list[Contribution]:
    """Return contributions, locked for this transaction."""
    select = sa.select(outbox).where(condition).order_by(_c.trace_id).with_for_update()
    return [Contribution(**row) for row in connection.execute(select).mappings()]
