"""`RecallTasks`: the tasks of a store's kept runs, as recall compares them with a new task."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from kp_langchain.store import pulled_queries, vector_queries
from kp_langchain.store.database import StorePart
from kp_langchain.store.vectors import Follower, content_of, embedder_columns, vector_of

if TYPE_CHECKING:
    import numpy as np
    import sqlalchemy as sa
    from numpy.typing import NDArray

    from kp_langchain.embedding.embedder import EmbedderIdentity
    from kp_langchain.store.vector_queries import Eligibility, Space

MOST_TASKS = 10_000
"""Recall knows at most so many kept runs of a domain, the newest of each namespace."""

UNREADABLE = "the trace cannot be read"
"""Stands in `TaskVector.planted` for a trace that could not be searched; it is never shown."""


@dataclass(frozen=True, slots=True)
class TaskVector:
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
    """The task of a run, or of an admitted unit of a registry.

    Attributes:
        trace_id: The id of its trace.
        objective: The task in words.
        namespace: Whose it is; None if every run of the domain may be shown it.
        is_open: Whether it is kept and not withheld.
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
    is_open: bool
    stays_local: bool
    is_own: bool
    is_stated: bool
    success: bool
    confidence: float
    worth: float
    entry: TaskVector | None


class RecallTasks(StorePart):
    """The tasks of the kept runs of one store. Got from `TraceStore.recall_tasks`."""

    def follow(
        self, domain: str, embedder: EmbedderIdentity, scan_version: int
    ) -> Follower[StoredTask]:
        """Return a follower of the tasks of a domain; of what changed, some may not be open.

        Args:
            domain: The domain's exact name.
            embedder: The embedder whose vectors to read.
            scan_version: The version of the scan for planted instructions.
        """
        read = partial(_read_tasks, domain, embedder, scan_version)
        return Follower(self._database, read, with_pulled=True)

    def bodies(self, trace_ids: Collection[str]) -> dict[str, str]:
        """Return the traces of those that may be shown now, as the text of their JSON, by id.

        One that was deleted, rejected, replaced or expired meanwhile is left out.

        Args:
            trace_ids: Ids of traces.
        """
        with self._database.reading() as connection:
            run_bodies = vector_queries.bodies_to_show(connection, trace_ids)
            others = [trace_id for trace_id in trace_ids if trace_id not in run_bodies]
            unit_bodies = pulled_queries.bodies_of(connection, others) if others else {}
        return run_bodies | unit_bodies

    def eligibility(self, trace_ids: Collection[str]) -> dict[str, Eligibility]:
        """Return by id whether recall may show traces, as the store has them now.

        Args:
            trace_ids: Ids of kept runs, or of units of a registry. One that the store does not have
                is left out.
        """
        with self._database.reading() as connection:
            return vector_queries.eligibility(connection, trace_ids)

    def planted(self, trace_ids: Collection[str]) -> dict[str, str]:
        """Return by id what looks like planted instructions, of those of the traces with any.

        A trace that recall has not looked at yet is left out.

        Args:
            trace_ids: Ids of traces.
        """
        with self._database.reading() as connection:
            return vector_queries.planted_kinds(connection, trace_ids)

    def write(
        self, vectors: Mapping[str, TaskVector], embedder: EmbedderIdentity, scan_version: int
    ) -> None:
        """Write task vectors by trace id; each replaces an earlier one of the same embedder.

        Those of traces that were deleted meanwhile are left out.

        Args:
            vectors: The task vectors.
            embedder: The embedder of their vectors.
            scan_version: The version of the scan that looked for planted instructions.
        """
        space = _space_of(embedder)._asdict()
        rows = [
            {
                **space,
                "trace_id": trace_id,
                "vector": content_of(task.vector),
                "plan": dict(task.plan),
                "planted": task.planted,
                "scan_version": scan_version,
            }
            for trace_id, task in vectors.items()
        ]
        with self._database.writing() as connection:
            vector_queries.write_tasks(connection, rows)


def _read_tasks(
    domain: str,
    embedder: EmbedderIdentity,
    scan_version: int,
    connection: sa.Connection,
    since: int | None,
) -> Iterator[list[StoredTask]]:
    space = _space_of(embedder)
    if since is None:  # units first: a run that was stored since counts, and not a unit
        units = vector_queries.admitted_tasks(
            connection, domain, space, scan_version, limit=MOST_TASKS
        )
        yield list(map(_stored_task, units))
    runs = vector_queries.tasks(
        connection, domain, space, scan_version, since=since, limit=MOST_TASKS
    )
    yield list(map(_stored_task, runs))


def _stored_task(row: sa.Row[Any]) -> StoredTask:
    return StoredTask(
        trace_id=row.trace_id,
        objective=row.objective,
        namespace=row.namespace,
        is_open=row.is_open,
        stays_local=row.privacy_level == "private",
        is_own=row.is_own,
        is_stated=bool(row.is_stated),
        success=row.success,
        confidence=row.confidence,
        worth=row.worth,
        entry=TaskVector(vector_of(row.vector), row.planted, row.plan) if row.is_embedded else None,
    )


def _space_of(embedder: EmbedderIdentity) -> Space:
    return vector_queries.Space("task", "", **embedder_columns(embedder))
