"""Queries on the table `run_entries`. Loads SQLAlchemy."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import sqlalchemy as sa

from kp_langchain.store.inserts import insert_or_replace
from kp_langchain.store.rows import clean_name
from kp_langchain.store.tables import run_entries, runs, verdicts

_c = run_entries.c
# Without the columns' types, which would raise for a value of another type; SQLite takes any.
_columns = [sa.type_coerce(column, sa.types.NULLTYPE).label(column.name) for column in _c]
_REMOVE = sa.delete(run_entries).where(_c.trace_id == sa.bindparam("entry_of"))
_NEWEST_VERDICT = sa.select(sa.func.max(verdicts.c.number))


def write(connection: sa.Connection, rows: Sequence[dict[str, Any]]) -> None:
    """Insert entries; each replaces an earlier one of its trace."""
    if rows:
        in_order = sorted(rows, key=lambda row: str(row["trace_id"]))
        connection.execute(insert_or_replace(run_entries, connection.dialect.name), in_order)


def remove(connection: sa.Connection, trace_ids: Iterable[str]) -> None:
    """Delete the entries of traces."""
    if parameters := [{"entry_of": trace_id} for trace_id in sorted(trace_ids)]:
        connection.execute(_REMOVE, parameters)


def of_trace(connection: sa.Connection, trace_id: str) -> dict[str, Any] | None:
    """Return the entry of a trace; None if it has none."""
    row = connection.execute(sa.select(*_columns).where(_c.trace_id == trace_id)).mappings().first()
    return None if row is None else dict(row)


def kept(connection: sa.Connection, domain: str, limit: int) -> list[dict[str, Any]]:
    """Return the entries of a domain's newest kept runs, the newest first.

    Each row also has the run's id, visibility and privacy level.
    """
    select = (
        sa.select(*_columns, runs.c.run_id, runs.c.visibility, runs.c.privacy_level)
        .join(runs, runs.c.trace_id == _c.trace_id)
        .where(runs.c.domain == clean_name(domain), runs.c.decision == "contributed")
        .order_by(runs.c.created_at.desc(), runs.c.trace_id.desc())
        .limit(limit)
    )
    return [dict(row) for row in connection.execute(select).mappings()]


def newest_verdict(connection: sa.Connection) -> int:
    """Return the number of the newest verdict on any run; 0 if there is none."""
    return connection.scalar(_NEWEST_VERDICT) or 0
