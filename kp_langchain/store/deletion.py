"""Deletes runs with all that belongs to them, and what a store no longer needs."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from kp_langchain.errors import ConfigError
from kp_langchain.store import sql
from kp_langchain.store.paused_runs import PausedRuns
from kp_langchain.store.verdicts import ambiguous_id, unknown_run

if TYPE_CHECKING:
    import sqlalchemy as sa

    from kp_langchain.store.database import Database
    from kp_langchain.store.run_filters import RunFilters
    from kp_langchain.store.stored_memory import StoredMemory

# The traces of one transaction, which other writers wait for, and their turn after it.
_BATCH_SIZE = 250
_OTHERS_TURN_S = 0.03
_MATCHES_SHOWN = 10


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
        contributions: Contributions of deleted runs that no registry has.
        remembered: Traces beyond those that novelty is measured against.
        leftovers: Tags, verdicts and the like of runs that another program deleted, and what recall
            noted of traces that are gone.
    """

    expired_traces: int
    expired_pauses: int
    contributions: int
    remembered: int
    leftovers: int


def plan(database: Database, filters: RunFilters, *, keep: int = 0) -> Deletion:
    """Return what filters select, without deleting it.

    Args:
        database: The database with the runs.
        filters: They select the runs. Runs that are not judged yet match by domain, time and keys
            alone.
        keep: The newest so many of the matching runs are not selected.

    Raises:
        ConfigError: There is neither a condition nor `keep`.
        StoreError: The database cannot be read.
    """
    if keep < 0:
        raise ConfigError(f"keep={keep} must not be negative")
    if not keep and not sql.run_lists.selecting(filters):
        raise ConfigError(
            "a deletion needs ids or conditions; to delete every run: until=datetime.now(UTC)"
        )
    queries, conditions = sql.deletion_queries, sql.run_lists
    with database.reading() as connection:
        domains = queries.matching(connection, conditions.conditions_of(filters), skip=keep)
        unscored, paused = [], []
        if not keep:
            early = conditions.conditions_before_judging
            unscored = list(queries.matching(connection, early(filters, sql.tables.runs)))
            paused = queries.matching_paused(connection, early(filters, sql.tables.paused_runs))
        return _deletion(connection, domains, unscored, paused)


def plan_by_ids(database: Database, ids: Sequence[str]) -> Deletion:
    """Return the runs that ids identify, without deleting them.

    Args:
        database: The database with the runs.
        ids: Trace ids, run ids, or the first characters of either. The id of a run that several
            handlers recorded identifies all its traces.

    Raises:
        UnknownRunError: An id fits no run, or several.
        StoreError: The database cannot be read.
    """
    domains: dict[str, str] = {}
    unscored: dict[str, None] = {}
    paused: dict[str, None] = {}
    with database.reading() as connection:
        for id_ in ids:
            rows = sql.run_queries.find_names(connection, id_)
            pauses = sql.deletion_queries.find_paused(connection, id_)
            run_ids = {row["run_id"] for row in rows} or {run_id for _, run_id in pauses}
            if rows and len(run_ids) > 1:
                raise ambiguous_id(id_, rows[:_MATCHES_SHOWN])
            if len(run_ids) != 1:
                raise unknown_run(id_, str(database.location))
            for row in rows:
                if row["state"] == "judged":
                    domains[row["trace_id"]] = row["domain"]
                else:
                    unscored[row["trace_id"]] = None
            paused |= dict.fromkeys(place for place, run_id in pauses if run_id in run_ids)
        return _deletion(connection, domains, list(unscored), list(paused))


def carry_out(database: Database, deletion: Deletion) -> None:
    """Delete runs, some hundreds in each transaction.

    Raises:
        StoreError: The database cannot be written; the runs of earlier transactions are deleted.
    """
    now = datetime.now(UTC)
    trace_ids = [*deletion.trace_ids, *deletion.unscored]
    for batch in _batches(trace_ids):
        with database.writing() as connection:
            sql.deletion_queries.delete(connection, batch, now)
        _let_others_write()
    for batch in _batches(deletion.paused):
        with database.writing() as connection:
            sql.deletion_queries.delete_paused(connection, batch)


def prune(database: Database, memory: StoredMemory) -> Pruning:
    """Remove what a store no longer needs.

    Args:
        database: The database of the store.
        memory: A novelty memory with the bounds that are in force.

    Raises:
        StoreError: The database cannot be read or written.
    """
    expired_traces = _drop_expired_traces(database)
    with database.writing() as connection:
        contributions = sql.outbox_queries.remove_finished_of_deleted(connection)
    with database.writing() as connection:
        leftovers = sql.deletion_queries.delete_leftovers(connection)
    return Pruning(
        expired_traces,
        PausedRuns(database).drop_expired(),
        contributions,
        memory.prune_all(),
        leftovers,
    )


def _deletion(
    connection: sa.Connection,
    domains: Mapping[str, str],
    unscored: Sequence[str],
    paused: Sequence[str],
) -> Deletion:
    trace_ids = list(domains)
    at_registry = sum(
        sql.deletion_queries.count_at_registry(connection, batch) for batch in _batches(trace_ids)
    )
    by_domain = dict(Counter(domains.values()).most_common())
    return Deletion(by_domain, at_registry, trace_ids, unscored, paused)


def _batches(keys: Sequence[str]) -> Iterator[Sequence[str]]:
    for start in range(0, len(keys), _BATCH_SIZE):
        yield keys[start : start + _BATCH_SIZE]


def _let_others_write() -> None:
    # Who waits for the file polls: without a pause it would hardly ever find it free.
    time.sleep(_OTHERS_TURN_S)


def _drop_expired_traces(database: Database) -> int:
    number = 0
    while True:
        with database.writing() as connection:
            dropped = sql.run_queries.drop_expired_bodies(connection)
        number += dropped
        if dropped < sql.run_queries.MOST_EXPIRED_AT_ONCE:
            return number
