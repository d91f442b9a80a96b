"""Queries that select runs to delete, and delete them from every table. Loads SQLAlchemy."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

import sqlalchemy as sa

from kp_langchain.schema import TRACE_ID_PREFIX
from kp_langchain.store import outbox_queries
from kp_langchain.store.rows import clean_name
from kp_langchain.store.run_lists import Conditions, order
from kp_langchain.store.run_queries import begins
from kp_langchain.store.tables import (
    bodies,
    external_traces,
    jobs,
    outbox,
    paused_runs,
    pulled_units,
    runs,
    scores,
    shown_traces,
    vectors,
    verdicts,
)
from kp_langchain.store.vector_queries import DELETIONS, count_up

# What belongs to a run, by its trace id; `outbox` has rules of its own.
_WRITTEN_WITH_RUNS = (bodies, scores, verdicts, external_traces, shown_traces)
_TABLES = (*_WRITTEN_WITH_RUNS, vectors, runs)
_c = runs.c


def matching(connection: sa.Connection, conditions: Conditions, *, skip: int = 0) -> dict[str, str]:
    """Return the domains of the matching runs by their trace ids, the newest first.

    Args:
        connection: A connection to read with.
        conditions: Only matching runs.
        skip: Leave out so many of the newest.
    """
    select = sa.select(_c.trace_id, _c.domain).where(*conditions)
    # SQLite takes no offset without a limit, and -1 for none; SQLAlchemy writes that.
    rows = connection.execute(select.order_by(*order()).offset(skip or None))
    return {row[0]: row[1] for row in rows}


def matching_paused(connection: sa.Connection, conditions: Conditions) -> list[str]:
    """Return the places of the matching paused runs."""
    return list(connection.scalars(sa.select(paused_runs.c.place).where(*conditions)))


def find_paused(connection: sa.Connection, id_prefix: str) -> list[tuple[str, str]]:
    """Return place and run id of the paused runs whose run id begins with `id_prefix`."""
    run_id = id_prefix.strip().lower().removeprefix(TRACE_ID_PREFIX)
    if not run_id:
        return []
    select = sa.select(paused_runs.c.place, paused_runs.c.run_id)
    rows = connection.execute(select.where(begins(paused_runs.c.run_id, clean_name(run_id))))
    return [(row[0], row[1]) for row in rows]


def count_at_registry(connection: sa.Connection, trace_ids: Sequence[str]) -> int:
    """Return how many of the traces a registry has, or may have."""
    select = sa.select(sa.func.count()).select_from(outbox)
    is_remote = sa.not_(outbox_queries.registry_has_nothing())
    return connection.scalar(select.where(outbox.c.trace_id.in_(trace_ids), is_remote)) or 0


def delete(connection: sa.Connection, trace_ids: Sequence[str], now: datetime) -> None:
    """Delete runs, and what belongs to them, from every table; count the deletion.

    Args:
        connection: A write transaction.
        trace_ids: Ids of their traces.
        now: The present time, in UTC.
    """
    # In the order in which others lock: runs, what belongs to them.
    rows = sa.select(_c.trace_id).where(_c.trace_id.in_(trace_ids)).order_by(_c.trace_id)
    connection.execute(rows.with_for_update())
    for table in _TABLES:
        connection.execute(sa.delete(table).where(table.c.trace_id.in_(trace_ids)))
    connection.execute(sa.delete(shown_traces).where(shown_traces.c.shown_id.in_(trace_ids)))
    connection.execute(sa.delete(jobs).where(jobs.c.key.in_(trace_ids)))
    outbox_queries.forget(connection, trace_ids, now)
    note_deletion(connection)


def delete_leftovers(connection: sa.Connection) -> int:
    """Delete what belongs to traces that the store no longer has; return the number of rows."""
    of_runs = [(table, ~_has(runs, table.c.trace_id)) for table in _WRITTEN_WITH_RUNS]
    of_runs.append((vectors, (vectors.c.kind == "run") & ~_has(runs, vectors.c.trace_id)))
    # Units of registries are recalled as well.
    of_traces = [
        (table, is_meant & ~_has(runs, column) & ~_has(pulled_units, column))
        for table, column, is_meant in (
            (vectors, vectors.c.trace_id, vectors.c.kind == "task"),
            (shown_traces, shown_traces.c.shown_id, sa.true()),
        )
    ]
    return sum(
        connection.execute(sa.delete(table).where(is_left_over)).rowcount
        for table, is_left_over in (*of_runs, *of_traces)
    )


def _has(table: sa.Table, trace_id: sa.Column[str]) -> sa.ColumnElement[bool]:
    return sa.exists(sa.select(table.c.trace_id).where(table.c.trace_id == trace_id))


def delete_paused(connection: sa.Connection, places: Sequence[str]) -> None:
    """Delete what paused runs recorded."""
    connection.execute(sa.delete(paused_runs).where(paused_runs.c.place.in_(places)))


def note_deletion(connection: sa.Connection) -> None:
    """Count a deletion, so that other processes forget what was deleted."""
    count_up(connection, DELETIONS)
