"""`RecallEntries`: the tasks of a store's kept runs, as recall compares them with a new task."""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from kp_langchain.store import sql
from kp_langchain.store.remembered import content_of
from kp_langchain.store.watermark import Watermark

if TYPE_CHECKING:
    import numpy as np
    import sqlalchemy as sa
    from numpy.typing import NDArray

    from kp_langchain.embedding.identity import EmbedderIdentity
    from kp_langchain.store.database import Database
    from kp_langchain.store.recall_queries import Eligibility, RecallRow

UNREADABLE = "the trace cannot be read"
"""Stands in `TaskEntry.planted` for a trace that could not be searched; it is never shown."""

MOST_TASKS = 10_000
"""Recall knows at most so many kept runs of a domain, the newest of each namespace."""


@dataclass(frozen=True, slots=True)
class TaskEntry:
    """What recall compares of one kept trace.

    Attributes:
        vector: Embedding of its task, float32, shape (dimensions,); None if the task is unreadable.
        planted: What looks like planted instructions in it; None if nothing does.
        plan: How often it called each tool, by the tool's name.
    """

    vector: NDArray[np.float32] | None
    planted: str | None = None
    plan: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class StoredTask:
    """The task of a kept run, or of an admitted unit of a registry.

    Attributes:
        trace_id: The id of its trace.
        objective: The task in words.
        namespace: Whose it is; None if every run of the domain may be shown it.
        stays_local: Whether only its secrets are redacted.
        is_own: Whether it is a run of this store, and not of a registry.
        is_stated: Whether a verdict states its success.
        success: Whether it reached its goal.
        confidence: How sure that is, 0 to 1.
        worth: Its worth, or the score where its domain has no confidence model, 0 to 1.
        entry: What is compared of it; None if that is still to be made.
    """

    trace_id: str
    objective: str
    namespace: str | None
    stays_local: bool
    is_own: bool
    is_stated: bool
    success: bool
    confidence: float
    worth: float
    entry: TaskEntry | None


class RecallState(NamedTuple):
    """What a read of a domain's tasks is based on.

    Attributes:
        kept: Up to where the changes to what is kept were read.
        newest_pulled: The number of the newest change to the units of registries.
    """

    kept: Watermark
    newest_pulled: int


@dataclass(frozen=True, slots=True)
class RecallPage:
    """What one read of the store returned.

    Attributes:
        state: The state of the store that it is based on.
        tasks: The tasks of the domain; or those that are new or changed.
        left: Ids of the traces that are no longer kept.
        is_whole: Whether it has all tasks, not just what changed.
    """

    state: RecallState
    tasks: list[StoredTask]
    left: set[str]
    is_whole: bool


class RecallEntries:
    """The tasks of the kept runs of one store. Got from `TraceStore.recall_entries`.

    Every method raises `StoreError` when the store cannot be read or written.

    Args:
        database: The database of the store.
    """

    def __init__(self, database: Database) -> None:
        self._database = database

    def read(
        self,
        domain: str,
        embedder: EmbedderIdentity,
        scan_version: int,
        *,
        since: RecallState | None = None,
    ) -> RecallPage | None:
        """Return the tasks of a domain, or what changed.

        Args:
            domain: The domain's exact name.
            embedder: The embedder whose vectors to read.
            scan_version: The version of the scan for planted instructions.
            since: Return only what changed since this state, and None if nothing did. After a
                deletion, or a change to the units of registries, all are returned.
        """
        key = (embedder.model, embedder.revision)
        with self._database.reading() as connection:
            state = RecallState(
                sql.entry_queries.watermark(connection),
                sql.pulled_queries.newest_change(connection),
            )
            if state == since:
                return None
            rows = None
            if (
                since is not None
                and since.kept.deletions == state.kept.deletions
                and since.newest_pulled == state.newest_pulled
            ):
                rows = sql.recall_queries.rows_of(
                    connection, domain, key, scan_version, since=since.kept, limit=MOST_TASKS
                )
            if rows is not None and len(rows) < MOST_TASKS:
                tasks = [_task(row) for row in rows if row.is_kept]
                left = {row.trace_id for row in rows if not row.is_kept}
                return RecallPage(state, tasks, left, is_whole=False)
            rows = sql.recall_queries.rows_of(
                connection, domain, key, scan_version, since=None, limit=MOST_TASKS
            )
            tasks = [_task(row) for row in rows]
            tasks += _admitted(connection, domain, key, scan_version, but={row[0] for row in rows})
        return RecallPage(state, tasks, set(), is_whole=True)

    def bodies(self, trace_ids: Collection[str]) -> dict[str, str]:
        """Return the traces of those that may be shown now, as the text of their JSON, by id.

        One that was deleted, rejected, replaced or expired meanwhile is left out.

        Args:
            trace_ids: Ids of traces.
        """
        with self._database.reading() as connection:
            own = sql.recall_queries.bodies_to_show(connection, trace_ids)
            others = [trace_id for trace_id in trace_ids if trace_id not in own]
            pulled = sql.pulled_queries.bodies(connection, others) if others else {}
        return own | pulled

    def eligibility(self, trace_ids: Collection[str]) -> dict[str, Eligibility]:
        """Return by id whether recall may show traces, as the store has them now.

        Args:
            trace_ids: Ids of kept runs, or of units of a registry. One that the store does not have
                is left out.
        """
        with self._database.reading() as connection:
            return sql.recall_queries.eligibility(connection, trace_ids)

    def planted(self, trace_ids: Collection[str]) -> dict[str, str]:
        """Return by id what looks like planted instructions, of those of the traces with any.

        A trace that recall has not looked at yet is left out.

        Args:
            trace_ids: Ids of traces.
        """
        with self._database.reading() as connection:
            return sql.recall_queries.planted(connection, trace_ids)

    def write(
        self, entries: Mapping[str, TaskEntry], embedder: EmbedderIdentity, scan_version: int
    ) -> None:
        """Write entries by trace id; each replaces an earlier one of the same embedder.

        Those of traces that were deleted meanwhile are left out.

        Args:
            entries: The entries.
            embedder: The embedder of their vectors.
            scan_version: The version of the scan that looked for planted instructions.
        """
        rows = [
            {
                "trace_id": trace_id,
                "model": embedder.model,
                "revision": embedder.revision,
                "vector": None if entry.vector is None else content_of(entry.vector),
                "plan": dict(entry.plan),
                "planted": entry.planted,
                "scan_version": scan_version,
            }
            for trace_id, entry in entries.items()
        ]
        with self._database.writing() as connection:
            sql.recall_queries.write(connection, rows)


def _admitted(
    connection: sa.Connection,
    domain: str,
    embedder: tuple[str, str],
    scan_version: int,
    *,
    but: Collection[str],
) -> list[StoredTask]:
    """Return the admitted units of a domain, without those that are runs of this store, too."""
    units = [
        unit
        for unit in sql.pulled_queries.admitted(connection, domain)[:MOST_TASKS]
        if unit.trace_id not in but
    ]
    ids = [unit.trace_id for unit in units]
    entries = sql.recall_queries.entries_of(connection, ids, embedder, scan_version)
    return [
        StoredTask(
            trace_id=unit.trace_id,
            objective=unit.objective,
            namespace=None,
            stays_local=False,
            is_own=False,
            is_stated=False,
            success=bool(unit.success),
            confidence=_number(unit.confidence),
            worth=_number(unit.quality_score),
            entry=_entry(*entries[unit.trace_id]) if unit.trace_id in entries else None,
        )
        for unit in units
    ]


def _task(row: RecallRow) -> StoredTask:
    return StoredTask(
        trace_id=row.trace_id,
        objective=row.objective,
        namespace=row.namespace,
        stays_local=row.privacy_level == "private",
        is_own=True,
        is_stated=bool(row.is_stated),
        success=bool(row.success),
        confidence=_number(row.confidence),
        worth=_number(row.worth),
        entry=_entry(row.vector, row.planted, row.plan) if row.has_entry else None,
    )


def _entry(vector: object, planted: object, plan: object) -> TaskEntry:
    return TaskEntry(_vector(vector), None if planted is None else str(planted), _plan(plan))


def _number(value: object) -> float:
    """Return a number from 0 to 1; 0 for what another program has damaged."""
    is_number = isinstance(value, int | float) and math.isfinite(value)
    return min(max(float(value), 0.0), 1.0) if is_number else 0.0  # type: ignore[arg-type]


def _plan(text: object) -> dict[str, int]:
    try:
        values: Any = json.loads(text) if isinstance(text, str) else {}
    except (ValueError, RecursionError):
        values = {}
    if not isinstance(values, dict):
        return {}
    return {name: count for name, count in values.items() if type(count) is int}


def _vector(content: object) -> NDArray[np.float32] | None:
    """Return the vector that a column holds; None if it holds none."""
    if not isinstance(content, bytes) or not content or len(content) % 4:
        return None
    import numpy as np

    vector = np.frombuffer(content, dtype="<f4").astype(np.float32, copy=False)
    return vector if np.isfinite(vector).all() else None


def plan_of(tools: Sequence[str]) -> dict[str, int]:
    """Return how often each tool was called, for at most 100 tools."""
    plan: dict[str, int] = {}
    for name in tools:
        if name in plan or len(plan) < 100:
            plan[name] = plan.get(name, 0) + 1
    return plan
