"""Deletes runs, with all that belongs to them, from a store."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from kp_langchain._forksafe import allow_forks
from kp_langchain.errors import ConfigError
from kp_langchain.schema import TRACE_ID_PREFIX
from kp_langchain.store import sql
from kp_langchain.store.verdicts import ambiguous_id, unknown_run

if TYPE_CHECKING:
    import sqlalchemy as sa

    from kp_langchain.store.database import Database
    from kp_langchain.store.summary_queries import Filter

# The traces of one transaction, which other writers wait for, and their turn after it.
_BATCH_SIZE = 250
_OTHERS_TURN_S = 0.03
_MATCHES_SHOWN = 10
# What a damaged body raises.
_UNREADABLE = (AttributeError, KeyError, OverflowError, RecursionError, TypeError, ValueError)


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


def plan(database: Database, run_filter: Filter, *, keep: int = 0) -> Deletion:
    """Return what a filter selects, without deleting it.

    Args:
        database: The database with the runs.
        run_filter: Selects the runs. Unscored and paused runs match by domain, time and keys alone.
        keep: The newest so many of the matching runs are not selected.

    Raises:
        ConfigError: There is neither a condition nor `keep`.
        StoreError: The database cannot be read.
    """
    if keep < 0:
        raise ConfigError(f"keep={keep} must not be negative")
    if not keep and not run_filter.has_conditions:
        raise ConfigError(
            "a deletion needs ids or conditions; to delete every run: until=datetime.now(UTC)"
        )
    with database.reading() as connection:
        domains = sql.deletion_queries.matching(connection, run_filter, skip=keep)
        waiting = [] if keep else [one for one in _waiting(connection) if one.matches(run_filter)]
        return _deletion(connection, domains, waiting)


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
    waiting: dict[str, _Waiting] = {}
    with database.reading() as connection:
        all_waiting = list(_waiting(connection))
        for id_ in ids:
            rows = sql.run_queries.find_names(connection, id_)
            run_ids = {row["run_id"] for row in rows}
            if len(run_ids) > 1:
                raise ambiguous_id(id_, rows[:_MATCHES_SHOWN])
            domains |= {row["trace_id"]: row["domain"] for row in rows}
            if not rows:
                run_ids = {one.run_id for one in all_waiting if one.is_called(id_)}
                if len(run_ids) != 1:
                    raise unknown_run(id_, str(database.location))
            if id_.strip().lower() in run_ids or not rows:
                waiting |= {one.key: one for one in all_waiting if one.run_id in run_ids}
        return _deletion(connection, domains, waiting.values())


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


def _deletion(
    connection: sa.Connection, domains: Mapping[str, str], waiting: Iterable[_Waiting]
) -> Deletion:
    trace_ids = list(domains)
    waiting = list(waiting)
    at_registry = sum(
        sql.deletion_queries.count_at_registry(connection, batch) for batch in _batches(trace_ids)
    )
    return Deletion(
        dict(Counter(domains.values()).most_common()),
        at_registry,
        trace_ids,
        [one.key for one in waiting if not one.is_paused],
        [one.key for one in waiting if one.is_paused],
    )


def _batches(keys: Sequence[str]) -> Iterator[Sequence[str]]:
    for start in range(0, len(keys), _BATCH_SIZE):
        yield keys[start : start + _BATCH_SIZE]


@dataclass(frozen=True, slots=True)
class _Waiting:
    """A run that waits for its score or for a human.

    Attributes:
        key: Its key in the table: a trace id, or the place of a paused run.
        is_paused: Whether it waits for a human.
        run_id: LangChain's id of it.
        domain: Its domain; empty for a paused run that does not name one itself.
        began_at: When it began.
        keys: Its keys, as `RunKeys.to_dict` returns them.
    """

    key: str
    is_paused: bool
    run_id: str
    domain: str
    began_at: datetime
    keys: Mapping[str, Any]

    def is_called(self, id_: str) -> bool:
        """Return whether an id is its trace id, its run id, or the beginning of either."""
        beginning = id_.strip().lower().removeprefix(TRACE_ID_PREFIX)
        ids = [self.run_id] if self.is_paused else [self.run_id, self.key]
        names = (one.lower().removeprefix(TRACE_ID_PREFIX) for one in ids)
        return bool(beginning) and any(name.startswith(beginning) for name in names)

    def matches(self, run_filter: Filter) -> bool:
        """Return whether a filter selects it."""
        return run_filter.matches_unscored(self.domain, self.began_at, self.keys)


def _waiting(connection: sa.Connection) -> Iterator[_Waiting]:
    """Yield the unscored and paused runs whose bodies can be read."""
    for key, body in sql.deletion_queries.unscored_bodies(connection):
        with suppress(*_UNREADABLE):
            values = json.loads(body)
            metadata, keys = values["trace"]["metadata"], dict(values.get("keys") or {})
            began_at = datetime.fromisoformat(metadata["created_at"]).astimezone(UTC)
            run_id, domain = str(values["run_id"]), str(metadata["task_domain"])
            yield _Waiting(key, False, run_id, domain, began_at, keys)
    for key, body in sql.deletion_queries.paused_bodies(connection):
        with suppress(*_UNREADABLE):
            values = json.loads(body)
            keys = dict(values.get("keys") or {})
            began_at = datetime.fromisoformat(values["started_at"]).astimezone(UTC)
            yield _Waiting(key, True, str(values["run_id"]), str(values["domain"]), began_at, keys)


def _let_others_write() -> None:
    # Who waits for the file polls: without a pause it would hardly ever find it free.
    with allow_forks():
        time.sleep(_OTHERS_TURN_S)
