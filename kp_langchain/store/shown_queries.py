"""Queries on the table `shown_traces`. Loads SQLAlchemy."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Sequence
from typing import Any, NamedTuple

import sqlalchemy as sa

from kp_langchain.gate.shown_trace import ShownTrace
from kp_langchain.store.inserts import insert_or_replace
from kp_langchain.store.rows import clean_name, trace_key
from kp_langchain.store.statements import batches, untyped
from kp_langchain.store.tables import runs, shown_traces, verdicts

_c = shown_traces.c
# Whether a verdict states the success of the run that was shown a trace.
_IS_STATED = sa.exists(
    sa.select(verdicts.c.number).where(
        verdicts.c.trace_id == runs.c.trace_id, verdicts.c.success.is_not(None)
    )
)
_IS_OUTCOME = sa.and_(runs.c.trace_id == _c.trace_id, runs.c.state == "judged")


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


def write(connection: sa.Connection, shown_to: Iterable[tuple[str, Sequence[ShownTrace]]]) -> None:
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


def of_runs(connection: sa.Connection, trace_ids: Collection[str]) -> dict[str, list[ShownTrace]]:
    """Return by trace id what runs were shown or held out from, the best of each first.

    Args:
        connection: A connection to read with.
        trace_ids: The ids of the traces of these runs; one that was shown nothing is left out.
    """
    found: dict[str, list[ShownTrace]] = {}
    for batch in batches(trace_ids):
        select = (
            sa.select(
                _c.trace_id, _c.shown_id, untyped(_c.rank), untyped(_c.similarity), _c.held_out
            )
            .where(_c.trace_id.in_(batch))
            .order_by(_c.trace_id, _c.rank, _c.shown_id)
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


def shown_to(connection: sa.Connection, shown_id: str, limit: int) -> list[ShownTo]:
    """Return the runs that a trace was shown to or held out from, the newest first."""
    select = (
        sa.select(_c.trace_id, _c.held_out, runs.c.success, _IS_STATED)
        .join(runs, _IS_OUTCOME)
        .where(_c.shown_id == shown_id)
        .order_by(runs.c.created_at.desc(), _c.trace_id)
    )
    return [ShownTo(*row) for row in connection.execute(select.limit(limit))]


def outcome_counts(connection: sa.Connection, domain: str) -> list[OutcomeCount]:
    """Return the outcomes of a domain's runs by the traces that they were shown or held out from.

    Args:
        connection: A connection to read with.
        domain: The domain's exact name.
    """
    grouped = _grouped(_outcomes().where(runs.c.domain == clean_name(domain)))
    return [OutcomeCount._make(row[1:]) for row in connection.execute(grouped)]


def outcome_counts_by_domain(connection: sa.Connection) -> dict[str, list[OutcomeCount]]:
    """Return what `outcome_counts` returns, of every domain with runs that were shown something."""
    found: dict[str, list[OutcomeCount]] = {}
    for row in connection.execute(_grouped(_outcomes())):
        found.setdefault(row[0], []).append(OutcomeCount._make(row[1:]))
    return found


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
        _c.shown_id,
        _c.held_out,
        runs.c.success,
        _IS_STATED.label("is_stated"),
        sa.case((is_its_own, None), else_=runs.c.namespace).label("namespace"),
    ).select_from(
        shown_traces.join(runs, _IS_OUTCOME).outerjoin(of_trace, of_trace.c.trace_id == _c.shown_id)
    )
