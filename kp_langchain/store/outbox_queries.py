"""Queries on the tables `outbox` and `registries`. Loads SQLAlchemy."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import sqlalchemy as sa

from kp_langchain.store.contribution import Contribution, with_new_idempotency_key
from kp_langchain.store.inserts import insert_or_ignore, insert_or_replace
from kp_langchain.store.rows import clean_json, clean_text, trace_key
from kp_langchain.store.run_queries import begins, possible_ids
from kp_langchain.store.tables import outbox, registries, runs

_MATCHES_SHOWN = 10
_c = outbox.c
_columns_without_body = [column for column in outbox.columns if column is not _c.body]
# The columns that verdicts change, whoever sends meanwhile.
_COLUMNS_OF_VERDICTS = ("state", "body", "withdraw_asked")


def enter(connection: sa.Connection, rows: Sequence[dict[str, Any]]) -> None:
    """Insert contributions; one whose trace has an entry already stays as it is."""
    in_order = sorted(rows, key=lambda row: str(row["trace_id"]))
    connection.execute(insert_or_ignore(outbox, connection.dialect.name), in_order)


def counts(connection: sa.Connection) -> dict[str, int]:
    """Return the number of contributions in each state that has any."""
    rows = connection.execute(sa.select(_c.state, sa.func.count()).group_by(_c.state))
    return {row[0]: row[1] for row in rows}


def entries(
    connection: sa.Connection, state: str | None, limit: int | None, offset: int
) -> list[dict[str, Any]]:
    """Return contributions without bodies, the newest first."""
    select = sa.select(*_columns_without_body).order_by(_c.queued_at.desc(), _c.trace_id.desc())
    if state is not None:
        select = select.where(_c.state == state)
    return _dicts(connection.execute(select.limit(limit).offset(offset)))


def find(connection: sa.Connection, id_prefix: str) -> list[dict[str, Any]]:
    """Return up to ten contributions, with bodies, whose id is, or begins with, `id_prefix`."""
    select = sa.select(outbox).order_by(_c.queued_at.desc()).limit(_MATCHES_SHOWN)
    ids = possible_ids(id_prefix)
    has_registry_id = _c.registry_id == clean_text(id_prefix.strip())
    exact = [sa.or_(_c.trace_id == trace_key(id_), has_registry_id) for id_ in ids]
    by_prefix = [begins(_c.trace_id, clean_text(id_)) for id_ in ids]
    for condition in (*exact, *by_prefix):
        matches = _dicts(connection.execute(select.where(condition)))
        if matches:
            return matches
    return []


def registry_has_nothing() -> sa.ColumnElement[bool]:
    """Return the condition that no registry has a contribution, as far as its row can tell."""
    return sa.or_(_c.state == "withdrawn", _was_never_received())


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
    select = sa.select(outbox).where(of_runs).order_by(_c.trace_id).with_for_update()
    for row in _dicts(connection.execute(select)):
        values: dict[str, Any] = {
            "state": "sent",
            "withdraw_asked": True,
            "registry_id": clean_text(Contribution(**row).unit_id),  # which the body may have
            "body": None,
            "due_at": due_at or row["due_at"],
        }
        if row["state"] != "sent" or not row["withdraw_asked"]:
            values |= {"reason": None, "issues": None}  # which may quote the text that was sent
        connection.execute(_update(row["trace_id"]).values(values))


def remove_finished_of_deleted(connection: sa.Connection) -> int:
    """Delete contributions of deleted runs that no registry has; return their number."""
    has_run = sa.exists(sa.select(runs.c.trace_id).where(runs.c.trace_id == _c.trace_id))
    delete = sa.delete(outbox).where(~has_run, registry_has_nothing())
    return connection.execute(delete).rowcount


def ask_withdrawal(connection: sa.Connection, trace_id: str, now: datetime) -> None:
    """Withdraw a contribution: at once if the registry does not have it, else by the sender."""
    _lock(connection, trace_id)
    update = _update(trace_id)
    connection.execute(
        update.where(_was_never_received()).values(
            state="withdrawn", withdraw_asked=True, body=None, changed_at=now
        )
    )
    # The registry still has what was sent earlier of a dead one with an id.
    is_remote = _c.state.in_(("pending", "sent", "dead"))
    state = sa.case((_c.state == "dead", "sent"), else_=_c.state)
    connection.execute(
        update.where(is_remote).values(state=state, withdraw_asked=True, due_at=now, changed_at=now)
    )


def take_back_withdrawal(connection: sa.Connection, trace_id: str, body: str) -> None:
    """Contribute a trace after all; one that was withdrawn by hand stays withdrawn."""
    row = _locked_row(connection, trace_id)
    if row is None or not row["withdraw_asked"]:
        return
    registry_id = row["registry_id"]
    if row["state"] == "withdrawn":
        registry_id = None
    elif row["state"] != "dead":  # the registry may have it, or may have deleted it unnoticed
        registry_id = registry_id or trace_id
    values = _pending_again(row, body) | {"registry_id": registry_id, "withdraw_asked": False}
    connection.execute(_update(trace_id).values(values))


def renew(connection: sa.Connection, trace_id: str, body: str) -> None:
    """Replace the body of a contribution; one that was sent is sent again."""
    row = _locked_row(connection, trace_id)
    if row is None or row["state"] == "withdrawn":
        return
    if row["state"] == "pending" or row["registry_id"] is None:
        # If the registry may have the earlier body, the sender asks before it sends.
        values = {
            "body": with_new_idempotency_key(body, row["attempts"]),
            "changed_at": datetime.now(UTC),
        }
    else:
        values = _pending_again(row, body)
    connection.execute(_update(trace_id).values(values))


def next_pending(connection: sa.Connection, registry: str) -> dict[str, Any] | None:
    """Return the contribution to send to `registry`, or withdraw from it, next; with body."""
    select = (
        sa.select(outbox)
        .where(_c.registry == registry, _awaits_sender())
        .order_by(_c.due_at, _c.trace_id)
        .limit(1)
    )
    return _first(connection.execute(select))


def begin(connection: sa.Connection, row: dict[str, Any], as_read: dict[str, Any]) -> bool:
    """Record an attempt; return False if a verdict changed the contribution since it was read."""
    is_unchanged = [_c[name].is_not_distinct_from(as_read[name]) for name in _COLUMNS_OF_VERDICTS]
    update = _update(row["trace_id"]).where(*is_unchanged)
    values = {name: row[name] for name in ("attempts", "first_attempt_at", "changed_at")}
    return connection.execute(update.values(values)).rowcount > 0


def settle(connection: sa.Connection, row: dict[str, Any], as_read: dict[str, Any]) -> None:
    """Write the result of an attempt; a verdict given since the contribution was read prevails."""
    present = _locked_row(connection, row["trace_id"])
    if present is None:
        return
    values = _clean(row)
    del values["withdraw_asked"]  # an attempt never changes it
    if as_read["withdraw_asked"] and not present["withdraw_asked"]:
        # Taken back during the request to withdraw it: pending again, with another body.
        values = {"registry_id": None} if row["state"] == "withdrawn" else {}
    elif (
        not present["withdraw_asked"]
        and present["state"] == "pending"
        and present["body"] != as_read["body"]
    ):
        # A verdict changed it during the attempt: keep only what the answer says of the body sent.
        is_known = row["state"] != "pending" or row["first_attempt_at"] is None
        values = {
            "registry_id": row["registry_id"],
            "first_attempt_at": None if is_known else row["first_attempt_at"],
        }
    elif present["withdraw_asked"] and row["state"] == "dead" and row["registry_id"] is not None:
        values |= {"state": "sent", "body": None}  # the registry has an earlier body to withdraw
    if values:
        connection.execute(_update(row["trace_id"]).values(values))
    if present["withdraw_asked"]:
        _forget_if_deleted(connection, row["trace_id"])


def to_withdraw(connection: sa.Connection) -> list[dict[str, Any]]:
    """Return the contributions that the sender is still to withdraw, without bodies."""
    condition = sa.and_(_c.withdraw_asked, _c.state.in_(("pending", "sent")))
    select = sa.select(*_columns_without_body).where(condition).order_by(_c.due_at)
    return _dicts(connection.execute(select))


def overwrite(connection: sa.Connection, row: dict[str, Any]) -> None:
    """Overwrite a contribution, whatever happened to it since it was read."""
    _lock(connection, row["trace_id"])
    values = _clean(row)
    if row["state"] != "withdrawn" or row["withdraw_asked"]:
        del values["withdraw_asked"]  # here only a withdrawal by hand clears it
    connection.execute(_update(row["trace_id"]).values(values))
    if row["state"] == "withdrawn":
        _forget_if_deleted(connection, row["trace_id"])


def remove(connection: sa.Connection, trace_id: str) -> None:
    """Delete a contribution."""
    connection.execute(sa.delete(outbox).where(_c.trace_id == trace_id))


def standing(connection: sa.Connection, registry: str, key_id: str) -> dict[str, Any] | None:
    """Return the standing of `registry` under `key_id`, if there is one."""
    select = sa.select(registries).where(
        registries.c.registry == registry, registries.c.key_id == key_id
    )
    return _first(connection.execute(select))


def write_standing(connection: sa.Connection, row: dict[str, Any]) -> None:
    """Insert or replace a standing."""
    connection.execute(insert_or_replace(registries, connection.dialect.name), [row])


def _forget_if_deleted(connection: sa.Connection, trace_id: str) -> None:
    """Have no more of a contribution than `forget` leaves, if its run was deleted."""
    if connection.scalar(sa.select(runs.c.trace_id).where(runs.c.trace_id == trace_id)) is None:
        forget(connection, [trace_id], due_at=None)


def _was_never_received() -> sa.ColumnElement[bool]:
    is_untried = sa.and_(_c.state == "pending", _c.first_attempt_at.is_(None))
    return sa.and_(_c.registry_id.is_(None), sa.or_(is_untried, _c.state == "dead"))


def _awaits_sender() -> sa.ColumnElement[bool]:
    return sa.or_(_c.state == "pending", sa.and_(_c.state == "sent", _c.withdraw_asked))


def _lock(connection: sa.Connection, trace_id: str) -> None:
    """Lock the row of a contribution for this transaction."""
    select = sa.select(_c.trace_id).where(_c.trace_id == trace_id)
    connection.execute(select.with_for_update())


def _locked_row(connection: sa.Connection, trace_id: str) -> dict[str, Any] | None:
    """Return the row of a contribution, locked for this transaction."""
    select = sa.select(outbox).where(_c.trace_id == trace_id).with_for_update()
    return _first(connection.execute(select))


def _update(trace_id: str) -> sa.Update:
    return sa.update(outbox).where(_c.trace_id == trace_id)


def _pending_again(row: dict[str, Any], body: str) -> dict[str, Any]:
    """Return the values that make the sender send a contribution again, with this body."""
    now = datetime.now(UTC)
    return {
        "state": "pending",
        "body": with_new_idempotency_key(body, row["attempts"]),
        "first_attempt_at": None,
        "reason": None,
        "issues": None,
        "due_at": now,
        "changed_at": now,
    }


def _clean(row: dict[str, Any]) -> dict[str, Any]:
    row = dict(row)
    if isinstance(row["reason"], str):
        row["reason"] = clean_text(row["reason"])
    if row["issues"] is not None:
        row["issues"] = clean_json(list(row["issues"]))
    return row


def _dicts(rows: sa.CursorResult[Any]) -> list[dict[str, Any]]:
    return [dict(row) for row in rows.mappings()]


def _first(rows: sa.CursorResult[Any]) -> dict[str, Any] | None:
    row = rows.mappings().first()
    return None if row is None else dict(row)
