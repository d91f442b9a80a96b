"""Selects runs to delete, and deletes them from every table."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime

import sqlalchemy as sa

from kp_langchain.schema import TRACE_ID_PREFIX
from kp_langchain.store import outbox_queries, run_queries
from kp_langchain.store.database import Database
from kp_langchain.store.rows import ambiguous_id, clean_name, unknown_run
from kp_langchain.store.run_columns import Deletion, RunFilters
from kp_langchain.store.run_queries import (
    Conditions,
    conditions_before_judging,
    conditions_of,
    order,
)
from kp_langchain.store.tables import (
    batches,
    bodies,
    external_traces,
    jobs,
    outbox,
    paused_runs,
    runs,
    scores,
    shown_traces,
    vectors,
    verdicts,
)
from kp_langchain.store.vectors import RESETS, count_up

# The traces of one transaction, which other writers wait for, and their turn after it.
_BATCH_SIZE = 250
_OTHERS_TURN_S = 0.03
# What belongs to a run, by its trace id; `outbox` has rules of its own.
_TABLES = (bodies, scores, verdicts, external_traces, shown_traces, vectors, runs)
_c = runs.c


def plan(connection: sa.Connection, filters: RunFilters, *, keep: int = 0) -> Deletion:
    """Return what filters select, without deleting it.

    Args:
        connection: A connection to read with.
        filters: They select the runs. Runs that are not judged yet match by domain, time and keys
            alone.
        keep: The newest so many of the matching runs are not selected, and no others than judged
            ones.
    """
    domains = _matching(connection, conditions_of(filters), skip=keep)
    if keep:
        return _deletion(connection, domains)
    unscored = _matching(connection, conditions_before_judging(filters, runs))
    select = sa.select(paused_runs.c.key)
    paused = connection.scalars(select.where(*conditions_before_judging(filters, paused_runs)))
    return _deletion(connection, domains, list(unscored), list(paused))


def plan_by_ids(connection: sa.Connection, ids: Iterable[str], location: str) -> Deletion:
    """Return the runs that ids identify, without deleting them.

    Args:
        connection: A connection to read with.
        ids: Trace ids, run ids, or the first characters of either. The id of a run that several
            handlers recorded identifies all its traces.
        location: Where the database is, for messages.

    Raises:
        UnknownRunError: An id fits no run, or several.
    """
    domains: dict[str, str] = {}
    unscored: dict[str, None] = {}
    paused: dict[str, None] = {}
    for id_ in ids:
        rows = run_queries.find_names(connection, id_)
        pauses = _find_paused(connection, id_)
        run_ids = {row["run_id"] for row in rows} or {run_id for _, run_id in pauses}
        if rows and len(run_ids) > 1:
            raise ambiguous_id(id_, rows)
        if len(run_ids) != 1:
            raise unknown_run(id_, location)
        domains |= {row["trace_id"]: row["domain"] for row in rows if row["state"] == "judged"}
        unscored |= {row["trace_id"]: None for row in rows if row["state"] != "judged"}
        paused |= dict.fromkeys(key for key, run_id in pauses if run_id in run_ids)
    return _deletion(connection, domains, list(unscored), list(paused))


def carry_out(database: Database, deletion: Deletion) -> None:
    """Delete runs, some hundreds in each transaction.

    Raises:
        StoreError: The database cannot be written; the runs of earlier transactions are deleted.
    """
    for batch in batches([*deletion.trace_ids, *deletion.unscored], _BATCH_SIZE):
        with database.writing() as connection:
            delete(connection, batch)
        # Who waits for the file polls: without a pause it would hardly ever find it free.
        time.sleep(_OTHERS_TURN_S)
    for batch in batches(deletion.paused, _BATCH_SIZE):
        with database.writing() as connection:
            connection.execute(sa.delete(paused_runs).where(paused_runs.c.key.in_(batch)))


def delete(connection: sa.Connection, trace_ids: Sequence[str]) -> None:
    """Delete runs, and what belongs to them, from every table; count the deletion.

    Args:
        connection: A write transaction.
        trace_ids: Ids of their traces.
    """
    run_queries.lock(connection, trace_ids)  # in the order in which others lock
    for table in _TABLES:
        connection.execute(sa.delete(table).where(table.c.trace_id.in_(trace_ids)))
    connection.execute(sa.delete(shown_traces).where(shown_traces.c.shown_id.in_(trace_ids)))
    connection.execute(sa.delete(jobs).where(jobs.c.key.in_(trace_ids)))
    outbox_queries.forget(connection, trace_ids, datetime.now(UTC))
    count_up(connection, RESETS)  # so that other processes forget what was deleted


def drop_expired_traces(database: Database) -> int:
    """Delete the expired traces of runs that did not pass; return their number."""
    total, n_dropped = 0, -1
    while n_dropped:
        with database.writing() as connection:
            n_dropped = run_queries.drop_expired_bodies(connection)
        total += n_dropped
    return total


def drop_finished_contributions(database: Database) -> int:
    """Delete the contributions of deleted runs that no registry has; return their number."""
    with database.writing() as connection:
        return outbox_queries.remove_finished_of_deleted(connection)


# ------------------------------------------------------------------ selecting


def _matching(
    connection: sa.Connection, conditions: Conditions, *, skip: int = 0
) -> dict[str, str]:
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


def _find_paused(connection: sa.Connection, id_prefix: str) -> list[tuple[str, str]]:
    """Return key and run id of the paused runs whose run id begins with `id_prefix`."""
    run_id = id_prefix.strip().lower().removeprefix(TRACE_ID_PREFIX)
    if not run_id:
        return []
    of_run = run_queries.begins(paused_runs.c.run_id, clean_name(run_id))
    rows = connection.execute(sa.select(paused_runs.c.key, paused_runs.c.run_id).where(of_run))
    return [(row[0], row[1]) for row in rows]


def _deletion(
    connection: sa.Connection,
    domains: Mapping[str, str],
    unscored: Sequence[str] = (),
    paused: Sequence[str] = (),
) -> Deletion:
    is_remote = sa.not_(outbox_queries.registry_has_nothing())
    at_registry = sa.select(sa.func.count()).select_from(outbox).where(is_remote)
    trace_ids = list(domains)
    return Deletion(
        dict(Counter(domains.values()).most_common()),
        sum(
            connection.scalar(at_registry.where(outbox.c.trace_id.in_(batch))) or 0
            for batch in batches(trace_ids, _BATCH_SIZE)
        ),
        trace_ids,
        unscored,
        paused,
    )
