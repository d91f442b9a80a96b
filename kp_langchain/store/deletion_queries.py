"""Queries that select runs to delete, and delete them from every table. Loads SQLAlchemy."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Any

import sqlalchemy as sa

from kp_langchain.store import outbox_queries
from kp_langchain.store.inserts import insert_into
from kp_langchain.store.run_queries import lock_domains
from kp_langchain.store.summary_queries import Filter, order
from kp_langchain.store.tables import (
    counts,
    external_traces,
    outbox,
    paused_runs,
    pulled_units,
    recall_entries,
    remembered,
    run_entries,
    run_summaries,
    run_tags,
    runs,
    shown_traces,
    unscored,
    verdicts,
)

_DELETIONS = "deletions"
# What belongs to a run, by its trace id; `outbox` has rules of its own.
_WRITTEN_WITH_RUNS = (
    run_tags, run_summaries, run_entries, verdicts, external_traces, shown_traces,
)  # fmt: skip
_TABLES = (*_WRITTEN_WITH_RUNS, recall_entries, unscored, remembered, runs)
_COUNT = sa.select(counts.c.number).where(counts.c.name == _DELETIONS)
_s = run_summaries.c


def deletions(connection: sa.Connection) -> int:
    """Return how often runs were deleted; a higher number than before means that some were."""
    return connection.scalar(_COUNT) or 0


def matching(connection: sa.Connection, run_filter: Filter, *, skip: int) -> dict[str, str]:
    """Return the domains of the matching runs by their trace ids, the newest first.

    Args:
        connection: A connection to read with.
        run_filter: Only matching runs.
        skip: Leave out so many of the newest.
    """
    select = sa.select(_s.trace_id, _s.domain).where(*run_filter.conditions())
    # SQLite takes no offset without a limit, and -1 for none; SQLAlchemy writes that.
    rows = connection.execute(select.order_by(*order()).offset(skip or None))
    return {row[0]: row[1] for row in rows}


def unscored_bodies(connection: sa.Connection) -> Iterator[tuple[str, str]]:
    """Yield the trace ids of unscored runs, each with its body as text, which may be damaged."""
    return _keys_and_bodies(connection, unscored.c.trace_id, unscored.c.body)


def paused_bodies(connection: sa.Connection) -> Iterator[tuple[str, str]]:
    """Yield the places of paused runs, each with its body as text, which may be damaged."""
    return _keys_and_bodies(connection, paused_runs.c.place, paused_runs.c.body)


def _keys_and_bodies(
    connection: sa.Connection, key: sa.Column[str], body: sa.Column[Any]
) -> Iterator[tuple[str, str]]:
    for row in connection.execute(sa.select(key, sa.cast(body, sa.Text()))):
        yield row[0], row[1]


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
    # In the order in which others lock: domains, runs, what belongs to them.
    are_runs = runs.c.trace_id.in_(trace_ids)
    domains = connection.scalars(sa.select(runs.c.domain).where(are_runs).distinct())
    lock_domains(connection, domains.all())
    rows = sa.select(runs.c.trace_id).where(are_runs).order_by(runs.c.trace_id)
    connection.execute(rows.with_for_update())
    for table in _TABLES:
        connection.execute(sa.delete(table).where(table.c.trace_id.in_(trace_ids)))
    connection.execute(sa.delete(shown_traces).where(shown_traces.c.shown_id.in_(trace_ids)))
    outbox_queries.forget(connection, trace_ids, now)
    note_deletion(connection)


def delete_leftovers(connection: sa.Connection) -> int:
    """Delete what belongs to traces that the store no longer has; return the number of rows."""
    of_runs = [(table, ~_has(runs, table.c.trace_id)) for table in _WRITTEN_WITH_RUNS]
    # Units of registries are recalled as well.
    of_traces = [
        (table, ~_has(runs, column) & ~_has(pulled_units, column))
        for table, column in (
            (recall_entries, recall_entries.c.trace_id),
            (shown_traces, shown_traces.c.shown_id),
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
    insert = insert_into(counts, connection.dialect.name)
    add_one = insert.on_conflict_do_update(
        index_elements=[counts.c.name], set_={"number": counts.c.number + 1}
    )
    connection.execute(add_one, [{"name": _DELETIONS, "number": 1}])
