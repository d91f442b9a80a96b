"""`Deletions`: selects runs to delete, and deletes them from every table."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Unpack

import sqlalchemy as sa

from kp_langchain.errors import ConfigError
from kp_langchain.store import run_queries
from kp_langchain.store.database import StorePart
from kp_langchain.store.location import Location
from kp_langchain.store.novelty import StoredMemory
from kp_langchain.store.outbox import registry_has_nothing, withdraw_deleted
from kp_langchain.store.own_patterns import drop_patterns_without_runs, withdraw_patterns_of
from kp_langchain.store.recall_effects import drop_decisions_without_runs
from kp_langchain.store.run_days import note_days_of
from kp_langchain.store.selection import (
    Conditions,
    RunFilters,
    ambiguous_id,
    beyond,
    conditions_before_judging,
    conditions_of,
    find_by_id,
    order_by,
    selecting,
    unknown_run,
)
from kp_langchain.store.side_tables import PausedRuns
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
    tool_sets,
    vectors,
    verdicts,
)
from kp_langchain.store.vectors import RESETS, count_up

# How many traces a transaction deletes, and the pause that lets other writers in.
_BATCH_SIZE = 250
_PAUSE_FOR_WRITERS_S = 0.03
_PAGE_SIZE = 50_000  # of ids
# What belongs to a run, by its trace id; `outbox` has rules of its own.
_TABLES = (bodies, scores, verdicts, external_traces, shown_traces, vectors, runs)
_c = runs.c


@dataclass(frozen=True, slots=True)
class Deletion:
    """Runs that were deleted, or are to be.

    Attributes:
        by_domain: How many runs of each domain, the domain with most first.
        at_registry: How many of them a registry has, or may have. These are withdrawn.
        trace_ids: Ids of their traces.
        unscored: Trace ids of runs that have ended and wait for their score.
        paused: Keys of runs that wait for a human; see `paused_run_key`.
    """

    by_domain: Mapping[str, int] = field(default_factory=dict)
    at_registry: int = 0
    trace_ids: Sequence[str] = field(default=(), repr=False)
    unscored: Sequence[str] = field(default=(), repr=False)
    paused: Sequence[str] = field(default=(), repr=False)

    def __len__(self) -> int:
        """Return the number of runs, unscored and paused ones included."""
        return len(self.trace_ids) + len(self.unscored) + len(self.paused)


@dataclass(frozen=True, slots=True)
class Pruning:
    """What a store no longer needed, and no longer has.

    Attributes:
        expired_traces: Traces of runs that did not pass, after their `keep_days`.
        expired_pauses: What runs recorded that waited too long for a human.
        remembered: Traces beyond those that novelty is measured against.
    """

    expired_traces: int
    expired_pauses: int
    remembered: int


class Deletions(StorePart):
    """What deletes from a store. Got from `TraceStore.deletions`."""

    def plan(self, *ids: str, keep: int = 0, **filters: Unpack[RunFilters]) -> Deletion:
        """Return what `TraceStore.delete` would delete, for `carry_out`. Delete nothing.

        Args:
            ids: As for `TraceStore.delete`.
            keep: The newest so many of the matching runs stay; no others than judged ones go then.
            filters: As for `TraceStore.delete`.

        Raises:
            ConfigError: There are neither ids nor conditions, or both.
            UnknownRunError: An id fits no run, or several.
        """
        if keep < 0:
            raise ConfigError(f"keep={keep} must not be negative")
        if bool(ids) == bool(keep or selecting(filters)):
            raise ConfigError(
                "a deletion needs either ids or conditions; "
                "to delete every run: until=datetime.now(UTC)"
            )
        with self._database.reading() as connection:
            if ids:
                return _plan_by_ids(connection, map(str, ids), self._database.location)
            domains = _matching(connection, conditions_of(filters), skip=keep)
            if keep:
                return _deletion(connection, domains)
            unscored = _matching(connection, conditions_before_judging(filters, runs))
            is_paused = conditions_before_judging(filters, paused_runs)
            paused = connection.scalars(sa.select(paused_runs.c.key).where(*is_paused))
            return _deletion(connection, domains, list(unscored), list(paused))

    def carry_out(self, plan: Deletion) -> None:
        """Delete runs for good, some hundreds in each transaction; see `TraceStore.delete`.

        Args:
            plan: The runs.

        Raises:
            StoreError: The database cannot be written; the runs of earlier transactions are
                deleted.
        """
        for batch in batches([*plan.trace_ids, *plan.unscored], _BATCH_SIZE):
            with self._database.writing() as connection:
                delete(connection, batch)
            # Writers that wait for the file poll: without a pause they would starve.
            time.sleep(_PAUSE_FOR_WRITERS_S)
        for batch in batches(plan.paused, _BATCH_SIZE):
            with self._database.writing() as connection:
                connection.execute(sa.delete(paused_runs).where(paused_runs.c.key.in_(batch)))
        with self._database.writing() as connection:
            _drop_unused_tools(connection)
            drop_decisions_without_runs(connection)
            drop_patterns_without_runs(connection)

    def prune(self, *, max_remembered: int | None = None) -> Pruning:
        """Remove what the store no longer needs: expired traces and pauses, and forgotten traces.

        Args:
            max_remembered: How many traces novelty is measured against; 1,000 by default. Those
                beyond that are forgotten.

        Raises:
            ConfigError: `max_remembered` is unusable.
        """
        memory = StoredMemory(self._database, max_remembered)
        n_expired, n_dropped = 0, -1
        while n_dropped:
            with self._database.writing() as connection:
                n_dropped = run_queries.drop_expired_bodies(connection)
            n_expired += n_dropped
        pauses = PausedRuns(self._database).drop_expired()
        return Pruning(n_expired, pauses, memory.prune_all())


def _drop_unused_tools(connection: sa.Connection) -> None:
    """Delete the definitions of tools that no run had."""
    is_used = sa.exists(sa.select(_c.trace_id).where(_c.tool_set == tool_sets.c.digest))
    connection.execute(sa.delete(tool_sets).where(~is_used))


def delete(connection: sa.Connection, trace_ids: Sequence[str]) -> None:
    """Delete runs, and what belongs to them, from every table; count the deletion.

    So is the text of admitted patterns that they are members of.

    Args:
        connection: A write transaction.
        trace_ids: Ids of their traces.
    """
    # In the order in which others lock.
    connection.execute(sa.delete(jobs).where(jobs.c.key.in_(trace_ids)))
    run_queries.lock(connection, trace_ids)
    note_days_of(connection, trace_ids)
    for table in _TABLES:
        connection.execute(sa.delete(table).where(table.c.trace_id.in_(trace_ids)))
    connection.execute(sa.delete(shown_traces).where(shown_traces.c.shown_id.in_(trace_ids)))
    withdraw_deleted(connection, trace_ids, datetime.now(UTC))
    withdraw_patterns_of(connection, trace_ids)
    count_up(connection, RESETS)  # so that other processes forget what was deleted


# ------------------------------------------------------------------ selecting


def _plan_by_ids(connection: sa.Connection, ids: Iterable[str], location: Location) -> Deletion:
    """Return the runs that ids identify, without deleting them.

    Raises:
        UnknownRunError: An id fits no run, or several.
    """
    domains: dict[str, str] = {}
    unscored: dict[str, None] = {}
    paused: dict[str, None] = {}
    select_paused = sa.select(paused_runs.c.key, paused_runs.c.run_id)
    for id_ in ids:
        rows = run_queries.find_names(connection, id_)
        pauses = find_by_id(connection, select_paused, id_, other_id=paused_runs.c.run_id)
        run_ids = {row["run_id"] for row in rows or pauses}
        if rows and len(run_ids) > 1:
            raise ambiguous_id(id_, rows)
        if len(run_ids) != 1:
            raise unknown_run(id_, location)
        domains |= {row["trace_id"]: row["domain"] for row in rows if row["state"] == "judged"}
        unscored |= {row["trace_id"]: None for row in rows if row["state"] != "judged"}
        paused |= {row["key"]: None for row in pauses if row["run_id"] in run_ids}
    return _deletion(connection, domains, list(unscored), list(paused))


def _matching(
    connection: sa.Connection, conditions: Conditions, *, skip: int = 0
) -> dict[str, str]:
    """Return the domains of the matching runs by their trace ids, the newest first.

    Args:
        connection: A connection to read with.
        conditions: Only matching runs.
        skip: Leave out so many of the newest.
    """
    select = sa.select(_c.trace_id, _c.domain, _c.created_at).where(*conditions)
    page = select = select.order_by(*order_by()).limit(_PAGE_SIZE)
    domains: dict[str, str] = {}
    page = page.offset(skip or None)
    while rows := connection.execute(page).all():  # so many that a statement ends in time
        domains |= {row.trace_id: row.domain for row in rows}
        page = select.where(beyond(rows[-1].created_at, rows[-1].trace_id))
    return domains


def _deletion(
    connection: sa.Connection,
    domains: Mapping[str, str],
    unscored: Sequence[str] = (),
    paused: Sequence[str] = (),
) -> Deletion:
    is_remote = sa.not_(registry_has_nothing())
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
