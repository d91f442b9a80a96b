"""What stored runs refer to: traces that they were shown, and where other tracers recorded them.

Loads SQLAlchemy.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

import sqlalchemy as sa

from kp_langchain.gate.run import ExternalTrace, ShownTrace
from kp_langchain.store.rows import clean_name, trace_key
from kp_langchain.store.statements import Transactions, batches, insert_or_replace, untyped
from kp_langchain.store.tables import external_traces, runs, shown_traces, verdicts

Item = TypeVar("Item")

_PAGE = 1000
_shown, _external = shown_traces.c, external_traces.c
_PLACE = (_external.external_id, _external.span_id, _external.project, _external.is_part)
# Whether a verdict states the success of the run that was shown a trace.
_IS_STATED = sa.exists(
    sa.select(verdicts.c.number).where(
        verdicts.c.trace_id == runs.c.trace_id, verdicts.c.success.is_not(None)
    )
)
_IS_OUTCOME = sa.and_(runs.c.trace_id == _shown.trace_id, runs.c.state == "judged")


class OutcomeCount(NamedTuple):
    """How many runs with one outcome were shown a trace, or held out from it.

    Attributes:
        shown_id: The id of the trace.
        held_out: Whether they were held out.
        success: Whether they succeeded.
        is_stated: Whether a verdict says so, and not just the look of the run.
        runs: Their number.
        namespace: Their namespace; None if they have none, or that of the trace.
    """

    shown_id: str
    held_out: bool
    success: bool
    is_stated: bool
    runs: int
    namespace: str | None = None


class ShownTo(NamedTuple):
    """A run that was shown a trace, or held out from it.

    Attributes:
        trace_id: The id of the run's trace.
        held_out: Whether it was held out.
        success: Whether it succeeded.
        is_stated: Whether a verdict says so.
    """

    trace_id: str
    held_out: bool
    success: bool
    is_stated: bool


class ShownTraces:
    """The recall log of one store. Got from `TraceStore.shown`.

    Every method raises `StoreError` when the store cannot be read.

    Args:
        database: The database of the store.
    """

    def __init__(self, database: Transactions) -> None:
        self._database = database

    def of_run(self, trace_id: str) -> list[ShownTrace]:
        """Return what a run was shown or held out from, the best first.

        Args:
            trace_id: The id of its trace.
        """
        key = trace_key(trace_id)
        return self.of_runs([key]).get(key, [])

    def of_runs(self, trace_ids: Collection[str]) -> dict[str, list[ShownTrace]]:
        """Return by trace id what runs were shown or held out from, the best of each first.

        Args:
            trace_ids: The ids as `StoredRun` has them. A run that was shown nothing is left out.
        """
        with self._database.reading() as connection:
            return shown_of(connection, trace_ids)

    def shown_to(self, trace_id: str, *, limit: int = 100) -> list[ShownTo]:
        """Return the runs that a trace was shown to or held out from, the newest first.

        Args:
            trace_id: The id of the kept trace.
            limit: At most so many.
        """
        select = (
            sa.select(_shown.trace_id, _shown.held_out, runs.c.success, _IS_STATED)
            .join(runs, _IS_OUTCOME)
            .where(_shown.shown_id == trace_key(trace_id))
            .order_by(runs.c.created_at.desc(), _shown.trace_id)
        )
        with self._database.reading() as connection:
            return [ShownTo(*row) for row in connection.execute(select.limit(limit))]

    def outcome_counts(self, domain: str) -> list[OutcomeCount]:
        """Return how the runs of a domain ended that were shown each trace, or held out from it.

        Args:
            domain: The domain's exact name.
        """
        grouped = _grouped(_outcomes().where(runs.c.domain == clean_name(domain)))
        with self._database.reading() as connection:
            return [OutcomeCount._make(row[1:]) for row in connection.execute(grouped)]

    def outcome_counts_by_domain(self) -> dict[str, list[OutcomeCount]]:
        """Return what `outcome_counts` returns, of every domain with runs shown something."""
        counts: dict[str, list[OutcomeCount]] = {}
        with self._database.reading() as connection:
            for row in connection.execute(_grouped(_outcomes())):
                counts.setdefault(row[0], []).append(OutcomeCount._make(row[1:]))
        return counts


class ExternalTraces:
    """Where other tracers recorded the runs of a store, as their handlers learned it.

    Every method raises `StoreError` when the store cannot be read.

    Args:
        database: The database of the store.
    """

    def __init__(self, database: Transactions) -> None:
        self._database = database

    def of_tool(self, tool: str) -> Iterator[tuple[str, ExternalTrace]]:
        """Yield trace id and external trace of each run that a tool recorded, in order of ids.

        They are read a page at a time, and no transaction stays open between two of them.

        Args:
            tool: The name of the tool.
        """
        select = sa.select(_external.trace_id, *_PLACE).where(_external.tool == tool)
        return self._paged(select, _external.trace_id, lambda row: ExternalTrace(*row))

    def of_run(self, trace_id: str) -> dict[str, ExternalTrace]:
        """Return where tools recorded a run, by their names.

        Args:
            trace_id: The id of its trace, as `StoredRun` has it.
        """
        with self._database.reading() as connection:
            return external_of(connection, trace_id)

    def in_trace(self, tool: str, external_id: str) -> list[tuple[str, ExternalTrace]]:
        """Return trace id and external trace of each run that a tool recorded in one trace.

        Args:
            tool: The name of the tool.
            external_id: The tool's id of the trace.
        """
        select = sa.select(_external.trace_id, *_PLACE).where(
            _external.tool == tool, _external.external_id == clean_name(external_id)
        )
        with self._database.reading() as connection:
            rows = connection.execute(select.order_by(_external.trace_id))
            return [(row[0], ExternalTrace(*row[1:])) for row in rows]

    def has(self, tool: str, external: ExternalTrace) -> bool:
        """Return whether there is a run that a tool recorded as this trace and span.

        Args:
            tool: The name of the tool.
            external: The trace and the root span of the run there.
        """
        select = sa.select(_external.trace_id).where(
            _external.tool == tool,
            _external.external_id == clean_name(external.trace_id),
            _external.span_id == (external.span_id and clean_name(external.span_id)),
        )
        with self._database.reading() as connection:
            return connection.execute(select.limit(1)).first() is not None

    def run_ids(self) -> Iterator[tuple[str, str]]:
        """Yield trace id and run id of each run, in order of trace ids; paged as `of_tool` is."""
        select = sa.select(runs.c.trace_id, runs.c.run_id).where(runs.c.state == "judged")
        return self._paged(select, runs.c.trace_id, lambda row: str(row[0]))

    def _paged(
        self, select: sa.Select[Any], key: sa.Column[str], item_of: Callable[[Sequence[Any]], Item]
    ) -> Iterator[tuple[str, Item]]:
        """Yield the trace id of each row, and what the rest of it makes, in order of the ids."""
        after = ""
        while True:
            page = select.where(key > after).order_by(key).limit(_PAGE)
            with self._database.reading() as connection:
                rows = connection.execute(page).all()
            if not rows:
                return
            after = rows[-1][0]
            yield from ((row[0], item_of(row[1:])) for row in rows)


# ------------------------------------------------------------------ within a transaction


def write_shown(
    connection: sa.Connection, shown_to: Iterable[tuple[str, Sequence[ShownTrace]]]
) -> None:
    """Write which kept traces runs were shown.

    Args:
        connection: A write transaction.
        shown_to: For each run the id of its trace, and the traces that it was shown.
    """
    rows = [
        {
            "trace_id": trace_id,
            "shown_id": trace_key(one.trace_id),
            "rank": one.rank,
            "similarity": one.similarity,
            "held_out": one.held_out,
        }
        for trace_id, shown in shown_to
        for one in shown
    ]
    if rows:
        connection.execute(insert_or_replace(shown_traces, connection.dialect.name), rows)


def shown_of(connection: sa.Connection, trace_ids: Collection[str]) -> dict[str, list[ShownTrace]]:
    """Return by trace id what runs were shown or held out from, the best of each first.

    Args:
        connection: A connection to read with.
        trace_ids: The ids of the traces of these runs; one that was shown nothing is left out.
    """
    found: dict[str, list[ShownTrace]] = {}
    for batch in batches(trace_ids):
        select = (
            sa.select(
                _shown.trace_id,
                _shown.shown_id,
                untyped(_shown.rank),
                untyped(_shown.similarity),
                _shown.held_out,
            )
            .where(_shown.trace_id.in_(batch))
            .order_by(_shown.trace_id, _shown.rank, _shown.shown_id)
        )
        for trace_id, shown_id, rank, similarity, held_out in connection.execute(select):
            shown = ShownTrace(shown_id, _whole(rank), _similarity(similarity), bool(held_out))
            found.setdefault(trace_id, []).append(shown)
    return found


def _whole(value: object) -> int:
    return value if type(value) is int else 0


def _similarity(value: object) -> float:
    """Return a similarity, 0 to 1; 0 for what another program has damaged."""
    is_number = isinstance(value, int | float) and math.isfinite(value)
    return min(max(float(value), 0.0), 1.0) if is_number else 0.0  # type: ignore[arg-type]


def write_external(
    connection: sa.Connection, traces: Sequence[tuple[str, Mapping[str, ExternalTrace]]]
) -> None:
    """Write where other tracers recorded runs.

    Args:
        connection: A write transaction.
        traces: For each run the id of its trace, and the external traces by the names of the tools.
    """
    rows = [
        {
            "trace_id": trace_id,
            "tool": clean_name(tool),
            "external_id": clean_name(external.trace_id),
            "span_id": external.span_id and clean_name(external.span_id),
            "project": external.project and clean_name(external.project),
            "is_part": external.is_part,
        }
        for trace_id, by_tool in traces
        for tool, external in by_tool.items()
    ]
    if rows:
        connection.execute(insert_or_replace(external_traces, connection.dialect.name), rows)


def external_of(connection: sa.Connection, trace_id: str) -> dict[str, ExternalTrace]:
    """Return where other tracers recorded a run, by the names of the tools."""
    rows = connection.execute(
        sa.select(_external.tool, *_PLACE).where(_external.trace_id == trace_id)
    )
    return {row[0]: ExternalTrace(*row[1:]) for row in rows}


def _grouped(outcomes: sa.Select[Any]) -> sa.Select[Any]:
    """Return the number of equal outcomes, before the namespace."""
    one = outcomes.subquery().c
    *columns, namespace = one
    return sa.select(*columns, sa.func.count(), namespace).group_by(*one)


def _outcomes() -> sa.Select[Any]:
    """Return domain and outcome of each run, with each trace that it was shown or held out from."""
    of_trace = runs.alias()
    is_its_own = runs.c.namespace == of_trace.c.namespace
    return sa.select(
        runs.c.domain,
        _shown.shown_id,
        _shown.held_out,
        runs.c.success,
        _IS_STATED.label("is_stated"),
        sa.case((is_its_own, None), else_=runs.c.namespace).label("namespace"),
    ).select_from(
        shown_traces.join(runs, _IS_OUTCOME).outerjoin(
            of_trace, of_trace.c.trace_id == _shown.shown_id
        )
    )
