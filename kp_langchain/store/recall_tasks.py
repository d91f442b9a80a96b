"""`RecallTasks`: the tasks of a store's kept runs, as recall compares them with a new task."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import sqlalchemy as sa

from kp_langchain.pattern_schema import PATTERN_ID_PREFIX
from kp_langchain.store import run_queries
from kp_langchain.store.database import StorePart
from kp_langchain.store.registry_units import OWN
from kp_langchain.store.rows import clean_name
from kp_langchain.store.tables import batches, pulled_units, runs, vectors
from kp_langchain.store.vectors import (
    Follower,
    Mark,
    content_of,
    embedder_columns,
    is_of_embedder,
    vector_of,
    write,
)

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from kp_langchain.embedding.embedder import EmbedderIdentity

MOST_TASKS = 10_000
"""Recall knows at most so many kept runs of a domain, the newest of each namespace."""

UNREADABLE = "the trace cannot be read"
"""Stands in `TaskVector.planted` for a trace that could not be searched; it is never shown."""


_r, _p = runs.c, pulled_units.c
_run, _task = vectors.alias("of_run"), vectors.alias("of_task")
_v, _t = _run.c, _task.c
_is_admitted = sa.and_(
    _p.state == "admitted",
    # A run that was stored after the unit with its id counts, and not the unit.
    ~sa.exists().where(_r.trace_id == _p.trace_id),
)

_OF_TASK = (
    _t.trace_id.is_not(None).label("is_embedded"),
    _t.vector,
    _t.planted,
    _t.plan,
)


@dataclass(frozen=True, slots=True)
class TaskVector:
    """What recall compares of one kept trace.

    Attributes:
        vector: The embeddings of its task, as it reads and with typical values, one after the
            other, float32, shape (2 * dimensions,); None if the task is unreadable.
        planted: What looks like planted instructions in it; None if nothing does.
        plan: How often it called each tool, by the tool's name.
    """

    vector: NDArray[np.float32] | None
    planted: str | None = None
    plan: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class StoredTask:
    """The task of a run, or of an admitted unit.

    Attributes:
        trace_id: The id of its trace, or of the pattern.
        objective: The task in words.
        namespace: Whose it is; None if every run of the domain may be shown it.
        is_open: Whether it is kept and not withheld.
        stays_local: Whether only its secrets are redacted.
        is_own: Whether it is of this store's runs, and not of a registry.
        is_stated: Whether a verdict states its success.
        success: Whether it reached its goal.
        confidence: How sure that is, 0 to 1.
        worth: Its worth, or the score where its domain has no confidence model, 0 to 1.
        task_vector: What is compared of it; None if that is still to be made.
        members: Of a pattern of this store, the ids of the traces of its members.
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
    task_vector: TaskVector | None
    members: Sequence[str] = ()

    @property
    def is_pattern(self) -> bool:
        """Whether it is a pattern, and no run."""
        return self.trace_id.startswith(PATTERN_ID_PREFIX)

    @property
    def is_own_run(self) -> bool:
        """Whether it is a run of this store, and so says what the tasks of its domain are like."""
        return self.is_own and not self.is_pattern


class Eligibility(NamedTuple):
    """Whether recall may show a trace, as the store has it now.

    Attributes:
        domain: Its domain.
        objective: Its task in words.
        is_open: Whether it is a success that is kept and not withheld; or, of a registry, admitted.
        planted: What looks like planted instructions in it, if recall has looked and found some.
    """

    domain: str
    objective: str
    is_open: bool
    planted: str | None


class RecallTasks(StorePart):
    """The tasks of the kept runs of one store. Got from `TraceStore.recall_tasks`."""

    def follow(
        self, domain: str, embedder: EmbedderIdentity, scan_version: int
    ) -> Follower[StoredTask]:
        """Return a follower of the tasks of a domain; of what changed, some may not be open.

        Args:
            domain: The domain's exact name.
            embedder: The embedder whose vectors to read.
            scan_version: The version of the scan for planted instructions. What an earlier one
                scanned counts as missing.
        """
        is_current = sa.and_(
            _t.kind == "task", _t.scan_version == scan_version, is_of_embedder(embedder, _t)
        )

        def read(connection: sa.Connection, since: Mark | None) -> Iterator[list[StoredTask]]:
            if since is None:  # units first: a run that was stored since counts, and not a unit
                yield _read_tasks(connection, _select_units(domain, is_current))
            yield _read_tasks(connection, _select_runs(domain, is_current, since))

        return Follower(self._database, read)

    def bodies(self, trace_ids: Collection[str]) -> dict[str, str]:
        """Return the traces of those that may be shown now, as the text of their JSON, by id.

        One that was deleted, rejected, replaced or expired meanwhile is left out.

        Args:
            trace_ids: Ids of traces.
        """
        select = sa.select(_p.trace_id, sa.cast(_p.body, sa.Text())).where(_is_admitted)
        texts: dict[str, str] = {}
        with self._database.reading() as connection:
            for batch in batches(trace_ids):
                units = connection.execute(select.where(_p.trace_id.in_(batch)))
                texts |= {row[0]: row[1] for row in units}
            return texts | run_queries.body_texts(connection, trace_ids, _may_be_shown())

    def eligibility(self, trace_ids: Collection[str]) -> dict[str, Eligibility]:
        """Return by id whether recall may show traces, as the store has them now.

        Args:
            trace_ids: Ids of kept runs, or of units of a registry. One that the store does not have
                is left out.
        """
        runs_to_show = sa.select(
            _r.trace_id, _r.domain, _r.objective, sa.and_(_may_be_shown(), _r.success)
        )
        units_to_show = sa.select(
            _p.trace_id, _p.domain, _p.objective, sa.and_(_p.state == "admitted", _p.success)
        )
        eligibility: dict[str, Eligibility] = {}
        with self._database.reading() as connection:
            planted = _planted_kinds(connection, trace_ids)
            for batch in batches(trace_ids):
                # A run of this store counts, and not a unit with its id.
                for select, column in ((units_to_show, _p.trace_id), (runs_to_show, _r.trace_id)):
                    for id_, domain, objective, is_open in connection.execute(
                        select.where(column.in_(batch))
                    ):
                        eligibility[id_] = Eligibility(
                            domain, objective, bool(is_open), planted.get(id_)
                        )
        return eligibility

    def planted(self, trace_ids: Collection[str]) -> dict[str, str]:
        """Return by id what looks like planted instructions, of those of the traces with any.

        A trace that recall has not looked at yet is left out.

        Args:
            trace_ids: Ids of traces.
        """
        with self._database.reading() as connection:
            return _planted_kinds(connection, trace_ids)

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
        stored_ids: set[str] = set()
        with self._database.writing() as connection:
            for column in (_r.trace_id, _p.trace_id):
                # Locked, so that none is deleted meanwhile.
                select = sa.select(column).order_by(column)
                select = select.with_for_update(read=True, key_share=True)
                for batch in batches(sorted(vectors)):
                    stored_ids |= set(connection.scalars(select.where(column.in_(batch))))
            rows = [
                {
                    "kind": "task",
                    "trace_id": trace_id,
                    "vector": content_of(vectors[trace_id].vector),
                    "plan": dict(vectors[trace_id].plan),
                    "planted": vectors[trace_id].planted,
                    "scan_version": scan_version,
                    **embedder_columns(embedder),
                }
                for trace_id in sorted(stored_ids)
            ]
            write(connection, rows)


# ------------------------------------------------------------------ queries


def _may_be_shown() -> sa.ColumnElement[bool]:
    return sa.and_(_r.decision == "kept", _r.withheld.is_(None), run_queries.is_kept())


def _select_runs(
    domain: str, is_current: sa.ColumnElement[bool], since: Mark | None
) -> sa.Select[Any]:
    """Return the statement for the newest kept runs of a domain, with what is compared of them.

    Namespaces share the limit equally; what one does not use goes to others.

    Args:
        domain: The domain's exact name.
        is_current: The condition on the vectors of tasks.
        since: Select the runs, kept or not, that have changed since.
    """
    select: sa.Select[Any] = (
        sa.select(
            *(_r[name] for name in ("trace_id", "namespace", "privacy_level", "objective")),
            _may_be_shown().label("is_open"),
            sa.true().label("is_own"),
            sa.null().label("members"),
            _r.success,
            sa.func.coalesce(_v.confidence, _r.confidence).label("confidence"),
            _v.is_stated,
            sa.func.coalesce(_r.worth, _r.score).label("worth"),
            *_OF_TASK,
        )
        .join_from(_run, runs, _r.trace_id == _v.trace_id)
        .outerjoin(_task, sa.and_(_t.trace_id == _r.trace_id, is_current))
        .where(_v.kind == "run", _r.domain == clean_name(domain))
    )
    if since is not None:
        return select.where(since.unseen(_v.change)).order_by(_v.change, _v.number)
    place = sa.func.row_number().over(partition_by=_r.namespace, order_by=run_queries.newest_first)
    of_domain = sa.select(_r.trace_id).where(_r.domain == clean_name(domain), _may_be_shown())
    newest = of_domain.order_by(place, *run_queries.newest_first).limit(MOST_TASKS).subquery()
    select = select.where(_r.trace_id.in_(sa.select(newest.c.trace_id)))
    return select.order_by(*run_queries.newest_first)


def _select_units(domain: str, is_current: sa.ColumnElement[bool]) -> sa.Select[Any]:
    """Return the statement for the newest admitted units of a domain, without runs of this store.

    Args:
        domain: The domain's exact name.
        is_current: The condition on the vectors of tasks.
    """
    return (
        sa.select(
            *(_p[name] for name in ("trace_id", "objective", "success", "confidence")),
            _p.quality_score.label("worth"),
            _p.namespace,
            _p.members,
            sa.null().label("privacy_level"),
            sa.true().label("is_open"),
            (_p.registry == OWN).label("is_own"),
            sa.false().label("is_stated"),
            *_OF_TASK,
        )
        .join_from(
            pulled_units, _task, sa.and_(_t.trace_id == _p.trace_id, is_current), isouter=True
        )
        .where(_p.domain == clean_name(domain), _is_admitted)
        # However many units a registry has, the patterns of this store come first.
        .order_by((_p.registry != OWN), _p.pulled_at.desc(), _p.trace_id.desc())
        .limit(MOST_TASKS)
    )


def _read_tasks(connection: sa.Connection, select: sa.Select[Any]) -> list[StoredTask]:
    return [
        StoredTask(
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
            task_vector=TaskVector(vector_of(row.vector), row.planted, row.plan)
            if row.is_embedded
            else None,
            members=row.members or (),
        )
        for row in connection.execute(select)
    ]


def _planted_kinds(connection: sa.Connection, trace_ids: Collection[str]) -> dict[str, str]:
    """Return by id what looks like planted instructions, of those of the traces with any."""
    newest: dict[str, str | None] = {}
    select = sa.select(_t.trace_id, _t.planted).where(_t.kind == "task")
    for batch in batches(trace_ids):
        # Of several embedders, the row that the newest rules made; it comes last.
        in_order = select.where(_t.trace_id.in_(batch)).order_by(_t.scan_version)
        newest |= {row[0]: row[1] for row in connection.execute(in_order)}
    return {id_: kinds for id_, kinds in newest.items() if kinds is not None}
