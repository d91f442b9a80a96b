"""What is asked of the tables `outbox` and `registries`. Loads SQLAlchemy."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite

from kp_langchain.store.queries import begins, exactly_or_beginning
from kp_langchain.store.rows import clean_json, clean_text, json_text
from kp_langchain.store.tables import outbox, registries, runs

_MATCHES_SHOWN = 10
_c = outbox.c
_listed = [column for column in outbox.columns if column is not _c.body]


def enter(connection: sa.Connection, rows: Sequence[dict[str, Any]]) -> None:
    """Insert contributions; one whose trace is there already stays as it is."""
    insert = _dialect(connection).insert(outbox)
    insert = insert.on_conflict_do_nothing(index_elements=[_c.trace_id])
    connection.execute(insert, sorted(rows, key=lambda row: row["trace_id"]))


def counts(connection: sa.Connection) -> dict[str, int]:
    """Return the number of contributions in each state that has any."""
    rows = connection.execute(sa.select(_c.state, sa.func.count()).group_by(_c.state))
    return {row[0]: row[1] for row in rows}


def entries(
    connection: sa.Connection, state: str | None, limit: int | None, offset: int
) -> list[dict[str, Any]]:
    """Return contributions without bodies, the newest first."""
    select = sa.select(*_listed).order_by(_c.queued_at.desc(), _c.trace_id.desc())
    if state is not None:
        select = select.where(_c.state == state)
    return _dicts(connection.execute(select.limit(limit).offset(offset)))


def find(connection: sa.Connection, wanted: str) -> list[dict[str, Any]]:
    """Return up to ten contributions that `wanted` may mean, with bodies: exact ids first."""
    uuid, prefix = exactly_or_beginning(wanted)
    select = sa.select(outbox).order_by(_c.queued_at.desc()).limit(_MATCHES_SHOWN)
    exact = sa.or_(_c.trace_id == f"kp:trace:{uuid}", _c.registry_id == clean_text(wanted.strip()))
    found = _dicts(connection.execute(select.where(exact)))
    if not found and prefix:
        begin = begins(_c.trace_id, f"kp:trace:{uuid}")
        found = _dicts(connection.execute(select.where(begin)))
    return found


def _to_be_withdrawn() -> sa.ColumnElement[bool]:
    return sa.and_(_c.state == "sent", _c.withdraw_asked)


def _hold(connection: sa.Connection, trace_id: str) -> None:
    """Have nobody else change a contribution between the statements of this transaction."""
    select = sa.select(_c.trace_id).where(_c.trace_id == trace_id)
    connection.execute(select.with_for_update())


def ask_withdrawal(connection: sa.Connection, trace_id: str, now: datetime) -> None:
    """Have a contribution withdrawn: at once if the registry has not got it, else by the sender."""
    _hold(connection, trace_id)
    at_home = sa.or_(sa.and_(_c.state == "pending", _c.attempts == 0), _c.state == "dead")
    this = sa.update(outbox).where(_c.trace_id == trace_id)
    gone = {"state": "withdrawn", "withdraw_asked": True, "body": None, "changed_at": now}
    connection.execute(this.where(at_home).values(gone))
    out = this.where(_c.state.in_(("pending", "sent")))
    connection.execute(out.values(withdraw_asked=True, due_at=now, changed_at=now))


def take_back_withdrawal(connection: sa.Connection, trace_id: str, body: str) -> None:
    """Let a contribution go after all; what a person withdrew stays withdrawn."""
    _hold(connection, trace_id)
    this = sa.update(outbox).where(_c.trace_id == trace_id, _c.withdraw_asked)
    anew = _anew(body)
    connection.execute(this.where(_c.state == "withdrawn").values(anew))
    # The registry may have deleted it without our knowing, so it is asked before it is sent.
    there = {"attempts": _c.attempts, "registry_id": sa.func.coalesce(_c.registry_id, _c.trace_id)}
    connection.execute(this.where(_c.state.in_(("pending", "sent"))).values(anew | there))
    connection.execute(this.values(withdraw_asked=False))


def _anew(body: str) -> dict[str, Any]:
    """What makes of a withdrawn contribution one that was never tried."""
    now = datetime.now(UTC)
    return {
        "state": "pending",
        "body": body,
        "attempts": 0,
        "first_attempt_at": None,
        "registry_id": None,
        "due_at": now,
        "changed_at": now,
        "withdraw_asked": False,
    }


def renew_body(connection: sa.Connection, trace_id: str, body: str) -> None:
    """Put another body in the place of one that was never tried."""
    untried = sa.and_(_c.state == "pending", _c.attempts == 0)
    this = sa.update(outbox).where(_c.trace_id == trace_id, untried)
    connection.execute(this.values(body=body, changed_at=datetime.now(UTC)))


def next_pending(connection: sa.Connection, registry: str) -> dict[str, Any] | None:
    """Return the contribution to `registry` that is to be sent, or withdrawn, first."""
    select = (
        sa.select(outbox)
        .where(_c.registry == registry, sa.or_(_c.state == "pending", _to_be_withdrawn()))
        .order_by(_c.due_at, _c.trace_id)
        .limit(1)
    )
    found = _dicts(connection.execute(select))
    return found[0] if found else None


def begin(connection: sa.Connection, row: dict[str, Any], unchanged_since: datetime) -> bool:
    """Write down an attempt; False if the contribution changed meanwhile."""
    this = sa.update(outbox).where(_c.trace_id == row["trace_id"], _c.changed_at == unchanged_since)
    tried = {name: row[name] for name in ("attempts", "first_attempt_at", "changed_at")}
    return connection.execute(this.values(tried)).rowcount > 0


def update(connection: sa.Connection, row: dict[str, Any]) -> None:
    """Write a contribution that is there."""
    if isinstance(row["reason"], str):
        row["reason"] = clean_text(row["reason"])
    if row["issues"] is not None:
        row["issues"] = clean_json(list(row["issues"]))
    _hold(connection, row["trace_id"])
    asked = row.pop("withdraw_asked")
    this = sa.update(outbox).where(_c.trace_id == row["trace_id"])
    if not asked:
        by_hand = row["state"] == "withdrawn"  # no verdict overrules a person
        connection.execute(this.values(row | {"withdraw_asked": False} if by_hand else row))
    elif connection.execute(this.where(_c.withdraw_asked).values(row)).rowcount:
        pass
    elif row["state"] == "withdrawn":  # a verdict took that back while the registry deleted it
        kept = connection.scalar(sa.select(runs.c.body).where(runs.c.trace_id == row["trace_id"]))
        connection.execute(this.values(_anew(json_text(kept))))


def remove(connection: sa.Connection, trace_id: str) -> None:
    """Delete a contribution."""
    connection.execute(sa.delete(outbox).where(_c.trace_id == trace_id))


def standing(connection: sa.Connection, registry: str, key_id: str) -> dict[str, Any] | None:
    """Return the standing with `registry` under `key_id`, if there is one."""
    select = sa.select(registries).where(
        registries.c.registry == registry, registries.c.key_id == key_id
    )
    found = _dicts(connection.execute(select))
    return found[0] if found else None


def write_standing(connection: sa.Connection, row: dict[str, Any]) -> None:
    """Insert or replace a standing."""
    row["throttled_at"] = list(row["throttled_at"])
    insert = _dialect(connection).insert(registries)
    keys = [registries.c.registry, registries.c.key_id]
    others = [column.name for column in registries.columns if column not in keys]
    insert = insert.on_conflict_do_update(
        index_elements=keys, set_={name: insert.excluded[name] for name in others}
    )
    connection.execute(insert, [row])


def _dialect(connection: sa.Connection) -> Any:
    return postgresql if connection.dialect.name == "postgresql" else sqlite


def _dicts(rows: sa.CursorResult[Any]) -> list[dict[str, Any]]:
    return [dict(row._mapping) for row in rows]  # noqa: SLF001 - SQLAlchemy's documented name
