"""Queries on the table `jobs`. Loads SQLAlchemy."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import sqlalchemy as sa

from kp_langchain.store.statements import execute_rows, insert_or_ignore, insert_or_replace
from kp_langchain.store.tables import jobs, verdicts

_j = jobs.c
# Built once, because building it takes longer than executing it.
_END = (
    sa.delete(jobs)
    .where(
        _j.kind == sa.bindparam("the_kind"),
        _j.key.in_(sa.bindparam("the_keys", expanding=True)),
        _j.owner == sa.bindparam("the_owner"),
    )
    .returning(_j.key, sa.exists().where(verdicts.c.trace_id == _j.key).correlate(jobs))
)


def replace(connection: sa.Connection, rows: Sequence[dict[str, Any]]) -> None:
    """Insert jobs, each in place of an earlier one of its kind and key."""
    execute_rows(connection, insert_or_replace(jobs, connection.dialect.name), rows)


def end(connection: sa.Connection, kind: str, keys: Collection[str], owner: str) -> dict[str, bool]:
    """Delete the jobs of a kind that a process has.

    Returns:
        By the keys of those that it had, whether the trace with that id has a verdict.
    """
    parameters = {"the_kind": kind, "the_keys": list(keys), "the_owner": owner}
    return {key: bool(has) for key, has in connection.execute(_END, parameters)}


def forget(connection: sa.Connection, kind: str, keys: Collection[str]) -> None:
    """Delete the jobs of a kind, whoever has them."""
    connection.execute(sa.delete(jobs).where(_j.kind == kind, _j.key.in_(keys)))


def take(
    connection: sa.Connection, kind: str, owner: str, *, now: float, until: float, limit: int
) -> list[dict[str, Any]]:
    """Lease the jobs of a kind that are due and that no process has; the oldest first.

    Args:
        connection: A write transaction.
        kind: The kind.
        owner: Who takes them.
        now: The present time, in seconds since 1970.
        until: The end of the lease.
        limit: At most so many.
    """
    is_free = (_j.kind == kind, _j.due_at <= now, _j.lease_until < now)
    select = sa.select(jobs).where(*is_free).order_by(_j.due_at, _j.key).limit(limit)
    select = select.with_for_update(skip_locked=True)
    rows = [dict(row) for row in connection.execute(select).mappings()]
    if rows:
        keys = [row["key"] for row in rows]
        update = sa.update(jobs).where(_j.kind == kind, _j.key.in_(keys))
        connection.execute(update.values(owner=owner, lease_until=until, attempts=_j.attempts + 1))
    return rows


def add_lasting(connection: sa.Connection, row: dict[str, Any]) -> None:
    """Insert a job that is never ended, unless it is there."""
    connection.execute(insert_or_ignore(jobs, connection.dialect.name), [row])


def extend(connection: sa.Connection, owner: str, until: float, kind: str | None = None) -> bool:
    """Have a process keep its jobs, of a kind or all, until a time; 0 gives them back.

    Returns:
        Whether it has any.
    """
    update = sa.update(jobs).where(_j.owner == owner)
    if kind is not None:
        update = update.where(_j.kind == kind)
    return connection.execute(update.values(lease_until=until)).rowcount > 0


def count(connection: sa.Connection, kind: str) -> int:
    """Return the number of jobs of a kind."""
    select = sa.select(sa.func.count()).select_from(jobs).where(_j.kind == kind)
    return connection.scalar(select) or 0
