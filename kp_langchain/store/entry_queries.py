"""Queries on the table `run_entries`, and on what is kept in a domain. Loads SQLAlchemy."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Any, NamedTuple

import sqlalchemy as sa

from kp_langchain.store.inserts import insert_or_replace
from kp_langchain.store.rows import clean_name
from kp_langchain.store.tables import run_entries, runs

_c = run_entries.c
_REMOVE = sa.delete(run_entries).where(_c.trace_id == sa.bindparam("entry_of"))
_NEWEST_CHANGE = sa.select(sa.func.max(runs.c.kept_change)).where(
    runs.c.domain == sa.bindparam("in_domain"), runs.c.kept_change.is_not(None)
)


class EntryRow(NamedTuple):
    """A run with its entry, as the driver gives it; without an entry, its columns are None."""

    trace_id: str
    run_id: str
    visibility: str
    privacy_level: str
    namespace: str | None
    is_kept: bool
    entry_of: Any
    fingerprint: Any
    vector: Any
    model: Any
    revision: Any
    baseline: Any
    confidence: Any
    is_stated: Any


# Without the columns' types, which would raise for a value of another type; SQLite takes any.
_select = sa.select(
    *(runs.c[name] for name in ("trace_id", "run_id", "visibility", "privacy_level", "namespace")),
    runs.c.decision == "contributed",
    *(sa.type_coerce(column, sa.types.NULLTYPE) for column in _c),
).select_from(runs.outerjoin(run_entries, runs.c.trace_id == _c.trace_id))


def write(connection: sa.Connection, rows: Sequence[dict[str, Any]]) -> None:
    """Insert entries; each replaces an earlier one of its trace."""
    if rows:
        in_order = sorted(rows, key=lambda row: str(row["trace_id"]))
        connection.execute(insert_or_replace(run_entries, connection.dialect.name), in_order)


def remove(connection: sa.Connection, trace_ids: Iterable[str]) -> None:
    """Delete the entries of traces."""
    if parameters := [{"entry_of": trace_id} for trace_id in sorted(trace_ids)]:
        connection.execute(_REMOVE, parameters)


def of_trace(connection: sa.Connection, trace_id: str) -> EntryRow | None:
    """Return the run of a trace with its entry; None if it has none."""
    rows = _rows(connection, _select.where(_c.trace_id == trace_id))
    return rows[0] if rows else None


def kept(connection: sa.Connection, domain: str, limit: int) -> list[EntryRow]:
    """Return the newest kept runs of a domain that have an entry, the newest first."""
    select = _select.where(
        runs.c.domain == clean_name(domain),
        runs.c.decision == "contributed",
        _c.trace_id.is_not(None),
    )
    newest_first = (runs.c.created_at.desc(), runs.c.trace_id.desc())
    return _rows(connection, select.order_by(*newest_first).limit(limit))


def changed(connection: sa.Connection, domain: str, since: int, limit: int) -> list[EntryRow]:
    """Return the runs that later changes to what is kept in a domain were about, in their order.

    Args:
        connection: A connection to read with.
        domain: The domain's exact name.
        since: The number of the change after which to begin.
        limit: At most so many.
    """
    select = _select.where(runs.c.domain == clean_name(domain), runs.c.kept_change > since)
    return _rows(connection, select.order_by(runs.c.kept_change).limit(limit))


def newest_change(connection: sa.Connection, domain: str) -> int:
    """Return the number of the newest change to what is kept in a domain; 0 if there is none."""
    return connection.scalar(_NEWEST_CHANGE, {"in_domain": clean_name(domain)}) or 0


def note_change(connection: sa.Connection, domain: str, trace_ids: Collection[str]) -> None:
    """Number a change to what is kept in a domain, so that other processes notice it.

    Args:
        connection: A write transaction that has locked the domain.
        domain: The domain's exact name.
        trace_ids: The traces that are kept since, or no longer, or with another confidence.
    """
    number = newest_change(connection, domain) + 1
    update = sa.update(runs).where(runs.c.trace_id.in_(trace_ids))
    connection.execute(update.values(kept_change=number))


def _rows(connection: sa.Connection, select: sa.Select[Any]) -> list[EntryRow]:
    return [EntryRow(*row) for row in connection.execute(select)]
