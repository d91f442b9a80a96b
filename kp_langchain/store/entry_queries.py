"""Queries on the table `run_entries`, and on what is kept in a domain. Loads SQLAlchemy."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Any, NamedTuple

import sqlalchemy as sa

from kp_langchain.store.inserts import insert_or_replace
from kp_langchain.store.rows import clean_name
from kp_langchain.store.tables import counts, run_entries, runs
from kp_langchain.store.watermark import DELETIONS, Watermark

_c = run_entries.c
_REMOVE = sa.delete(run_entries).where(_c.trace_id == sa.bindparam("entry_of"))
_NEWEST_CHANGE = sa.select(sa.func.max(runs.c.change)).where(runs.c.change.is_not(None))
_DELETIONS = sa.select(counts.c.number).where(counts.c.name == DELETIONS)
_OLDEST_UNDER_WAY = sa.text("SELECT pg_snapshot_xmin(pg_current_snapshot())::text::bigint")
_THIS_TRANSACTION = sa.text("pg_current_xact_id()::text::bigint")


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
    runs.c.decision == "kept",
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
        runs.c.decision == "kept",
        _c.trace_id.is_not(None),
    )
    newest_first = (runs.c.created_at.desc(), runs.c.trace_id.desc())
    return _rows(connection, select.order_by(*newest_first).limit(limit))


def watermark(connection: sa.Connection) -> Watermark:
    """Return up to where a reader that reads now has seen what is kept.

    In PostgreSQL, transactions commit in another order than they begin in, so a change has the
    number of its transaction, and the watermark is the oldest one under way: a reader that begins
    there may read a change twice, and misses none. In SQLite, changes are numbered one by one.
    """
    # First the deletions: one that comes now is noticed with the next read.
    deletions = connection.scalar(_DELETIONS) or 0
    is_postgres = connection.dialect.name == "postgresql"
    change = connection.scalar(_OLDEST_UNDER_WAY if is_postgres else _NEWEST_CHANGE)
    return Watermark(deletions, change or 0)


def changed(connection: sa.Connection, domain: str, since: Watermark, limit: int) -> list[EntryRow]:
    """Return the runs of a domain that later changes to what is kept were about, in their order.

    Args:
        connection: A connection to read with.
        domain: The domain's exact name.
        since: The watermark at which to begin.
        limit: At most so many.
    """
    select = _select.where(runs.c.domain == clean_name(domain), is_after(connection, since))
    return _rows(connection, select.order_by(runs.c.change).limit(limit))


def is_after(connection: sa.Connection, since: Watermark) -> sa.ColumnElement[bool]:
    """Return the condition that a change to a run may have come after a watermark."""
    if connection.dialect.name == "postgresql":
        return runs.c.change >= since.change
    return runs.c.change > since.change


def note_change(connection: sa.Connection, trace_ids: Collection[str]) -> None:
    """Number a change to what is kept, so that other processes notice it.

    Args:
        connection: A write transaction.
        trace_ids: The traces that are kept since, or no longer, or with another confidence.
    """
    number: Any = _THIS_TRANSACTION
    if connection.dialect.name != "postgresql":
        number = (connection.scalar(_NEWEST_CHANGE) or 0) + 1
    update = sa.update(runs).where(runs.c.trace_id.in_(trace_ids))
    connection.execute(update.values(change=number))


def _rows(connection: sa.Connection, select: sa.Select[Any]) -> list[EntryRow]:
    return [EntryRow(*row) for row in connection.execute(select)]
