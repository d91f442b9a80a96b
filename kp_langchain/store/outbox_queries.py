"""What verdicts, deletions and the sender change in the tables `outbox` and `registries`.

Whatever changes a contribution, `change` locks it first: a verdict and an answer of the registry
may meet.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from datetime import UTC, datetime
from typing import Any

import sqlalchemy as sa

from kp_langchain.store.registry_units import Contribution, Standing, with_new_idempotency_key
from kp_langchain.store.tables import insert_or_ignore, insert_or_replace, outbox, registries, runs
from kp_langchain.values import clean_text

_c = outbox.c


def registry_has_nothing() -> sa.ColumnElement[bool]:
    """Return the condition that no registry has a contribution, as far as its row can tell."""
    is_untried = sa.and_(_c.state == "pending", _c.first_attempt_at.is_(None))
    was_never_received = sa.and_(_c.registry_id.is_(None), sa.or_(is_untried, _c.state == "dead"))
    return sa.or_(_c.state == "withdrawn", was_never_received)


def enter(connection: sa.Connection, rows: Sequence[dict[str, Any]]) -> None:
    """Insert contributions; one whose trace has one already stays as it is."""
    in_order = sorted(rows, key=lambda row: str(row["trace_id"]))
    connection.execute(insert_or_ignore(outbox, connection.dialect.name), in_order)


def ask_withdrawal(connection: sa.Connection, trace_id: str, now: datetime) -> None:
    """Withdraw a contribution: at once if the registry does not have it, else by the sender."""

    def changed(one: Contribution) -> Contribution:
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

    change(connection, trace_id, changed)


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

    change(connection, trace_id, changed)


def renew(connection: sa.Connection, trace_id: str, body: str) -> None:
    """Replace the body of a contribution; one that was sent is sent again."""

    def changed(one: Contribution) -> Contribution:
        if one.state == "withdrawn":
            return one
        if one.state == "pending" or one.registry_id is None:
            # If the registry may have the earlier body, the sender asks before it sends.
            new_body = with_new_idempotency_key(body, one.attempts)
            return replace(one, body=new_body, changed_at=datetime.now(UTC))
        return _pending_again(one, body)

    change(connection, trace_id, changed)


def forget(connection: sa.Connection, trace_ids: Sequence[str], due_at: datetime | None) -> None:
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
            after = replace(after, reason=None, issues=None)  # which may quote the text sent
        _write(connection, one, after)


def remove_finished_of_deleted(connection: sa.Connection) -> int:
    """Delete contributions of deleted runs that no registry has; return their number."""
    has_run = sa.exists(sa.select(runs.c.trace_id).where(runs.c.trace_id == _c.trace_id))
    delete = sa.delete(outbox).where(~has_run, registry_has_nothing())
    return connection.execute(delete).rowcount


def overwrite(connection: sa.Connection, unit: Contribution) -> None:
    """Overwrite a contribution, whatever happened to it since it was read."""

    def changed(one: Contribution) -> Contribution:
        # Only a withdrawal by hand clears it here.
        is_by_hand = unit.state == "withdrawn" and not unit.withdraw_asked
        return replace(unit, withdraw_asked=one.withdraw_asked and not is_by_hand)

    change(connection, unit.trace_id, changed)
    if unit.state == "withdrawn":
        forget_if_deleted(connection, unit.trace_id)


def write_standing(connection: sa.Connection, standing: Standing) -> None:
    """Insert or replace a standing."""
    connection.execute(insert_or_replace(registries, connection.dialect.name), [asdict(standing)])


def forget_if_deleted(connection: sa.Connection, trace_id: str) -> None:
    """Have no more of a contribution than `forget` leaves, if its run was deleted."""
    if connection.scalar(sa.select(runs.c.trace_id).where(runs.c.trace_id == trace_id)) is None:
        forget(connection, [trace_id], due_at=None)


def _pending_again(one: Contribution, body: str) -> Contribution:
    """Return a contribution as the sender sends it again, with this body."""
    now, body = datetime.now(UTC), with_new_idempotency_key(body, one.attempts)
    one = replace(one, state="pending", body=body, first_attempt_at=None)
    return replace(one, reason=None, issues=None, due_at=now, changed_at=now)


def change(
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
    select = sa.select(outbox).where(condition).order_by(_c.trace_id)
    return contributions(connection, select.with_for_update())


def contributions(connection: sa.Connection, select: sa.Select[Any]) -> list[Contribution]:
    """Return the contributions that a statement selects."""
    return [Contribution(**row) for row in connection.execute(select).mappings()]
