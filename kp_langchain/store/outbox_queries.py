"""What is asked of the tables `outbox` and `registries`. Loads SQLAlchemy."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite

from kp_langchain.store.outbox import fresh_text
from kp_langchain.store.rows import clean_json, clean_text, trace_key
from kp_langchain.store.run_queries import begins, possible_ids
from kp_langchain.store.tables import outbox, registries

_MATCHES_SHOWN = 10
_c = outbox.c
_listed = [column for column in outbox.columns if column is not _c.body]
# What a verdict changes of a contribution, whoever sends it.
_TOLD_BY_VERDICTS = ("state", "body", "withdraw_asked")


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
    select = sa.select(outbox).order_by(_c.queued_at.desc()).limit(_MATCHES_SHOWN)
    ids = possible_ids(wanted)
    of_registry = _c.registry_id == clean_text(wanted.strip())
    exactly = [sa.or_(_c.trace_id == trace_key(one), of_registry) for one in ids]
    beginning = [begins(_c.trace_id, clean_text(one)) for one in ids]
    for condition in (*exactly, *beginning):
        found = _dicts(connection.execute(select.where(condition)))
        if found:
            return found
    return []


def _to_be_withdrawn() -> sa.ColumnElement[bool]:
    return sa.and_(_c.state == "sent", _c.withdraw_asked)


def _hold(connection: sa.Connection, trace_id: str) -> None:
    """Have nobody else change a contribution between the statements of this transaction."""
    select = sa.select(_c.trace_id).where(_c.trace_id == trace_id)
    connection.execute(select.with_for_update())


def _held(connection: sa.Connection, trace_id: str) -> dict[str, Any] | None:
    """Return a contribution that nobody else changes until the transaction ends."""
    select = sa.select(outbox).where(_c.trace_id == trace_id).with_for_update()
    found = _dicts(connection.execute(select))
    return found[0] if found else None


def ask_withdrawal(connection: sa.Connection, trace_id: str, now: datetime) -> None:
    """Have a contribution withdrawn: at once if the registry has not got it, else by the sender."""
    _hold(connection, trace_id)
    untried = sa.and_(_c.state == "pending", _c.first_attempt_at.is_(None))
    at_home = sa.and_(_c.registry_id.is_(None), sa.or_(untried, _c.state == "dead"))
    this = sa.update(outbox).where(_c.trace_id == trace_id)
    gone = {"state": "withdrawn", "withdraw_asked": True, "body": None, "changed_at": now}
    connection.execute(this.where(at_home).values(gone))
    # Of a dead one the registry still has what was sent before.
    out = this.where(_c.state.in_(("pending", "sent", "dead")))
    state = sa.case((_c.state == "dead", "sent"), else_=_c.state)
    connection.execute(out.values(state=state, withdraw_asked=True, due_at=now, changed_at=now))


def take_back_withdrawal(connection: sa.Connection, trace_id: str, body: str) -> None:
    """Let a contribution go after all; what a person withdrew stays withdrawn."""
    row = _held(connection, trace_id)
    if row is None or not row["withdraw_asked"]:
        return
    there = row["registry_id"]
    if row["state"] == "withdrawn":
        there = None
    elif row["state"] != "dead":  # it may still be there, or be deleted without our knowing
        there = there or trace_id
    anew = _anew(row, body) | {"registry_id": there, "withdraw_asked": False}
    connection.execute(sa.update(outbox).where(_c.trace_id == trace_id).values(anew))


def renew(connection: sa.Connection, trace_id: str, body: str) -> None:
    """Put another body in the place of the one that is sent, or was; a sent one is sent again."""
    row = _held(connection, trace_id)
    if row is None or row["state"] == "withdrawn":
        return
    this = sa.update(outbox).where(_c.trace_id == trace_id)
    if row["state"] == "pending" or row["registry_id"] is None:
        # If it is not known whether the registry has the other one, that is asked first.
        values = {"body": fresh_text(body, row["attempts"]), "changed_at": datetime.now(UTC)}
        connection.execute(this.values(values))
    else:
        connection.execute(this.values(_anew(row, body)))


def _anew(row: dict[str, Any], body: str) -> dict[str, Any]:
    """What has a contribution sent that was sent, refused or withdrawn before."""
    now = datetime.now(UTC)
    return {
        "state": "pending",
        "body": fresh_text(body, row["attempts"]),
        "first_attempt_at": None,
        "reason": None,
        "issues": None,
        "due_at": now,
        "changed_at": now,
    }


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


def begin(connection: sa.Connection, row: dict[str, Any], read: dict[str, Any]) -> bool:
    """Write down an attempt; False if the contribution is other than it was read."""
    same = [_c[name].is_not_distinct_from(read[name]) for name in _TOLD_BY_VERDICTS]
    this = sa.update(outbox).where(_c.trace_id == row["trace_id"], *same)
    tried = {name: row[name] for name in ("attempts", "first_attempt_at", "changed_at")}
    return connection.execute(this.values(tried)).rowcount > 0


def settle(connection: sa.Connection, row: dict[str, Any], read: dict[str, Any]) -> None:
    """Write what came of an attempt; a verdict that came since it was read counts more."""
    there = _held(connection, row["trace_id"])
    if there is None:
        return
    this = sa.update(outbox).where(_c.trace_id == row["trace_id"])
    row = _clean(row)
    asked_before, asked = read["withdraw_asked"], there["withdraw_asked"]
    del row["withdraw_asked"]
    if asked_before and not asked:
        # Taken back while the registry was asked to delete it: pending again, as another text.
        row = {"registry_id": None} if row["state"] == "withdrawn" else {}
    elif not asked and there["state"] == "pending" and there["body"] != read["body"]:
        # A verdict changed it on its way. What is known of the earlier text stays known.
        is_known = row["state"] != "pending" or row["first_attempt_at"] is None
        row = {
            "registry_id": row["registry_id"],
            "first_attempt_at": None if is_known else row["first_attempt_at"],
        }
    elif asked and row["state"] == "dead" and row["registry_id"] is not None:
        row |= {"state": "sent", "body": None}  # an earlier text of it is there, to be withdrawn
    if row:
        connection.execute(this.values(row))


def set_right(connection: sa.Connection, registry: str, now: datetime) -> int:
    """Make due what waits because the clock was set back since; return how many."""
    waits = sa.or_(_c.state == "pending", _to_be_withdrawn())
    this = sa.update(outbox).where(
        _c.registry == registry, waits, _c.due_at > now, _c.changed_at > now
    )
    return connection.execute(this.values(due_at=now, changed_at=now)).rowcount


def to_withdraw(connection: sa.Connection) -> list[dict[str, Any]]:
    """Return the contributions that the sender is still to withdraw, without bodies."""
    asked = sa.and_(_c.withdraw_asked, _c.state.in_(("pending", "sent")))
    return _dicts(connection.execute(sa.select(*_listed).where(asked).order_by(_c.due_at)))


def update(connection: sa.Connection, row: dict[str, Any]) -> None:
    """Write a contribution that is there, whatever happened to it since it was read."""
    _hold(connection, row["trace_id"])
    row = _clean(row)
    if row["state"] != "withdrawn" or row["withdraw_asked"]:  # only by hand is it taken back here
        del row["withdraw_asked"]
    connection.execute(sa.update(outbox).where(_c.trace_id == row["trace_id"]).values(row))


def _clean(row: dict[str, Any]) -> dict[str, Any]:
    row = dict(row)
    if isinstance(row["reason"], str):
        row["reason"] = clean_text(row["reason"])
    if row["issues"] is not None:
        row["issues"] = clean_json(list(row["issues"]))
    return row


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
