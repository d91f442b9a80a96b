"""Queries on the tables `outbox` and `registries`. Loads SQLAlchemy.

Whatever changes a contribution, `_change` locks it first: a verdict and an answer of the registry
may meet.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from datetime import UTC, datetime
from typing import Any

import sqlalchemy as sa

from kp_langchain.store.registry_units import Contribution, Standing, with_new_idempotency_key
from kp_langchain.store.rows import MATCHES_SHOWN, trace_key
from kp_langchain.store.run_queries import begins, possible_ids
from kp_langchain.store.tables import insert_or_ignore, insert_or_replace, outbox, registries, runs
from kp_langchain.values import clean_text

_c = outbox.c
_without_body = sa.select(*(column for column in outbox.columns if column is not _c.body))


# ------------------------------------------------------------------ reading


def counts(connection: sa.Connection) -> dict[str, int]:
    """Return the number of contributions in each state that has any."""
    rows = connection.execute(sa.select(_c.state, sa.func.count()).group_by(_c.state))
    return {row[0]: row[1] for row in rows}


def entries(
    connection: sa.Connection, state: str | None, limit: int | None, offset: int
) -> list[Contribution]:
    """Return contributions without bodies, the newest first."""
    select = _without_body.order_by(_c.queued_at.desc(), _c.trace_id.desc())
    if state is not None:
        select = select.where(_c.state == state)
    return _contributions(connection, select.limit(limit).offset(offset))


def find(connection: sa.Connection, id_prefix: str) -> list[Contribution]:
    """Return up to ten contributions, with bodies, whose id is, or begins with, `id_prefix`."""
    select = sa.select(outbox).order_by(_c.queued_at.desc()).limit(MATCHES_SHOWN)
    ids = possible_ids(id_prefix)
    has_registry_id = _c.registry_id == clean_text(id_prefix.strip())
    exact = [sa.or_(_c.trace_id == trace_key(id_), has_registry_id) for id_ in ids]
    by_prefix = [begins(_c.trace_id, clean_text(id_)) for id_ in ids]
    for condition in (*exact, *by_prefix):
        matches = _contributions(connection, select.where(condition))
        if matches:
            return matches
    return []


def next_pending(connection: sa.Connection, registry: str) -> Contribution | None:
    """Return the contribution to send to `registry`, or withdraw from it, next; with body."""
    awaits_sender = sa.or_(_c.state == "pending", sa.and_(_c.state == "sent", _c.withdraw_asked))
    select = sa.select(outbox).where(_c.registry == registry, awaits_sender)
    first = _contributions(connection, select.order_by(_c.due_at, _c.trace_id).limit(1))
    return first[0] if first else None


def to_withdraw(connection: sa.Connection) -> list[Contribution]:
    """Return the contributions that the sender is still to withdraw, without bodies."""
    condition = sa.and_(_c.withdraw_asked, _c.state.in_(("pending", "sent")))
    return _contributions(connection, _without_body.where(condition).order_by(_c.due_at))


def registry_has_nothing() -> sa.ColumnElement[bool]:
    """Return the condition that no registry has a contribution, as far as its row can tell."""
    is_untried = sa.and_(_c.state == "pending", _c.first_attempt_at.is_(None))
    was_never_received = sa.and_(_c.registry_id.is_(None), sa.or_(is_untried, _c.state == "dead"))
    return sa.or_(_c.state == "withdrawn", was_never_received)


def standing(connection: sa.Connection, registry: str, key_id: str) -> Standing:
    """Return the standing of `registry` under `key_id`."""
    select = sa.select(registries).where(
        registries.c.registry == registry, registries.c.key_id == key_id
    )
    row = connection.execute(select).mappings().first()
    if row is None:
        return Standing(registry, key_id)
    return Standing(**{**row, "throttled_at": tuple(row["throttled_at"])})


# ------------------------------------------------------------------ verdicts and deletions


def enter(connection: sa.Connection, rows: Sequence[dict[str, Any]]) -> None:
    """Insert contributions; one whose trace has an entry already stays as it is."""
    in_order = sorted(rows, key=lambda row: str(row["trace_id"]))
    connection.execute(insert_or_ignore(outbox, connection.dialect.name), in_order)


def ask_withdrawal(connection: sa.Connection, trace_id: str, now: datetime) -> None:
    """Withdraw a contribution: at once if the registry does not have it, else by the sender."""

    def change(one: Contribution) -> Contribution:
        if one.state == "withdrawn":
            return one
        is_untried = one.state == "pending" and one.first_attempt_at is None
        if one.registry_id is None and (is_untried or one.state == "dead"):
            one = replace(one, state="withdrawn", body=None)
        elif one.state == "dead":  # the registry still has what was sent earlier
            one = replace(one, state="sent", due_at=now)
        else:
            one = replace(one, due_at=now)
        return replace(one, withdraw_asked=True, changed_at=now)

    _change(connection, trace_id, change)


def take_back_withdrawal(connection: sa.Connection, trace_id: str, body: str) -> None:
    """Contribute a trace after all; one that was withdrawn by hand stays withdrawn."""

    def change(one: Contribution) -> Contribution:
        if not one.withdraw_asked:
            return one
        registry_id = one.registry_id
        if one.state == "withdrawn":
            registry_id = None
        elif one.state != "dead":  # the registry may have it, or may have deleted it unnoticed
            registry_id = registry_id or trace_id
        return replace(_pending_again(one, body), registry_id=registry_id, withdraw_asked=False)

    _change(connection, trace_id, change)


def renew(connection: sa.Connection, trace_id: str, body: str) -> None:
    """Replace the body of a contribution; one that was sent is sent again."""

    def change(one: Contribution) -> Contribution:
        if one.state == "withdrawn":
            return one
        if one.state == "pending" or one.registry_id is None:
            # If the registry may have the earlier body, the sender asks before it sends.
            new_body = with_new_idempotency_key(body, one.attempts)
            return replace(one, body=new_body, changed_at=datetime.now(UTC))
        return _pending_again(one, body)

    _change(connection, trace_id, change)


def forget(connection: sa.Connection, trace_ids: Sequence[str], due_at: datetime | None) -> None:
    """Withdraw the contributions of deleted runs, and keep no text of them.

    What no registry has is deleted. Of the rest only the row stays, until the registry has deleted
    the contribution; then `settle` or `overwrite` deletes the row.

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
            after = replace(after, reason=None, issues=None)  # which may quote the text sent
        _write(connection, one, after)


def remove_finished_of_deleted(connection: sa.Connection) -> int:
    """Delete contributions of deleted runs that no registry has; return their number."""
    has_run = sa.exists(sa.select(runs.c.trace_id).where(runs.c.trace_id == _c.trace_id))
    delete = sa.delete(outbox).where(~has_run, registry_has_nothing())
    return connection.execute(delete).rowcount


# ------------------------------------------------------------------ the sender, and people


def begin(connection: sa.Connection, unit: Contribution, read: Contribution) -> bool:
    """Record an attempt; return False if a verdict changed the contribution since it was read."""

    def change(one: Contribution) -> Contribution:
        if one != read:
            return one
        attempts, first_at = unit.attempts, unit.first_attempt_at
        return replace(
            one, attempts=attempts, first_attempt_at=first_at, changed_at=unit.changed_at
        )

    return _change(connection, unit.trace_id, change)


def settle(connection: sa.Connection, unit: Contribution, read: Contribution) -> None:
    """Write the result of an attempt; a verdict given since the contribution was read prevails."""

    def change(one: Contribution) -> Contribution:
        if read.withdraw_asked and not one.withdraw_asked:
            # Taken back during the request to withdraw it: pending again, with another body.
            return replace(one, registry_id=None) if unit.state == "withdrawn" else one
        if not one.withdraw_asked and one.state == "pending" and one.body != read.body:
            # A verdict changed it during the attempt: keep only what the answer says of the body
            # that was sent.
            is_known = unit.state != "pending" or unit.first_attempt_at is None
            first_attempt_at = None if is_known else unit.first_attempt_at
            return replace(one, registry_id=unit.registry_id, first_attempt_at=first_attempt_at)
        after = replace(unit, withdraw_asked=one.withdraw_asked)
        if one.withdraw_asked and unit.state == "dead" and unit.registry_id is not None:
            return replace(after, state="sent", body=None)  # an earlier body is to be withdrawn
        return after

    _change(connection, unit.trace_id, change)
    _forget_if_deleted(connection, unit.trace_id)


def overwrite(connection: sa.Connection, unit: Contribution) -> None:
    """Overwrite a contribution, whatever happened to it since it was read."""

    def change(one: Contribution) -> Contribution:
        # Only a withdrawal by hand clears it here.
        is_by_hand = unit.state == "withdrawn" and not unit.withdraw_asked
        return replace(unit, withdraw_asked=one.withdraw_asked and not is_by_hand)

    _change(connection, unit.trace_id, change)
    if unit.state == "withdrawn":
        _forget_if_deleted(connection, unit.trace_id)


def remove(connection: sa.Connection, trace_id: str) -> None:
    """Delete a contribution."""
    connection.execute(sa.delete(outbox).where(_c.trace_id == trace_id))


def write_standing(connection: sa.Connection, record: Standing) -> None:
    """Insert or replace a standing."""
    connection.execute(insert_or_replace(registries, connection.dialect.name), [asdict(record)])


def _forget_if_deleted(connection: sa.Connection, trace_id: str) -> None:
    """Have no more of a contribution than `forget` leaves, if its run was deleted."""
    if connection.scalar(sa.select(runs.c.trace_id).where(runs.c.trace_id == trace_id)) is None:
        forget(connection, [trace_id], due_at=None)


def _pending_again(one: Contribution, body: str) -> Contribution:
    """Return a contribution as the sender sends it again, with this body."""
    now, body = datetime.now(UTC), with_new_idempotency_key(body, one.attempts)
    one = replace(one, state="pending", body=body, first_attempt_at=None)
    return replace(one, reason=None, issues=None, due_at=now, changed_at=now)


def _change(
    connection: sa.Connection, trace_id: str, change: Callable[[Contribution], Contribution]
) -> bool:
    """Lock a contribution for this transaction, and change it; return whether it is changed."""
    return any(
        _write(connection, one, change(one))
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
    select = sa.select(outbox).where(condition).order_by(_c.trace_id)
    return _contributions(connection, select.with_for_update())


def _contributions(connection: sa.Connection, select: sa.Select[Any]) -> list[Contribution]:
    return [Contribution(**row) for row in connection.execute(select).mappings()]
