"""Queries on the table `shown_traces`. Loads SQLAlchemy."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import sqlalchemy as sa

from kp_langchain.gate.shown_trace import ShownTrace
from kp_langchain.store.inserts import insert_or_replace
from kp_langchain.store.rows import clean_name, trace_key
from kp_langchain.store.tables import runs, shown_traces, verdicts

_c = shown_traces.c
_SHOWN = (_c.shown_id, _c.rank, _c.similarity, _c.held_out)
# Whether a verdict states the success of the run that was shown a trace.
_IS_STATED = sa.exists(
    sa.select(verdicts.c.number).where(
        verdicts.c.trace_id == runs.c.trace_id, verdicts.c.success.is_not(None)
    )
)


class OutcomeCount(NamedTuple):
    """How many runs with one outcome were shown a trace, or held out from it.

    Attributes:
        shown_id: The id of the trace.
        held_out: Whether they were held out.
        success: Whether they succeeded.
        is_stated: Whether a verdict says so, and not just the look of the run.
        runs: Their number.
    """

    shown_id: str
    held_out: bool
    success: bool
    is_stated: bool
    runs: int


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


def of_run(connection: sa.Connection, trace_id: str) -> list[ShownTrace]:
    """Return what a run was shown, the best first."""
    rows = connection.execute(
        sa.select(*_SHOWN).where(_c.trace_id == trace_id).order_by(_c.rank, _c.shown_id)
    )
    return [ShownTrace(*row) for row in rows]


def shown_to(connection: sa.Connection, shown_id: str, limit: int) -> list[ShownTo]:
    """Return the runs that a trace was shown to or held out from, the newest first."""
    select = (
        sa.select(_c.trace_id, _c.held_out, runs.c.success, _IS_STATED)
        .join(runs, runs.c.trace_id == _c.trace_id)
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
    stated = _IS_STATED.label("is_stated")
    select = (
        sa.select(_c.shown_id, _c.held_out, runs.c.success, stated)
        .join(runs, runs.c.trace_id == _c.trace_id)
        .where(runs.c.domain == clean_name(domain))
        .subquery()
    )
    grouped = sa.select(*select.c, sa.func.count()).group_by(*select.c)
    return [OutcomeCount._make(row) for row in connection.execute(grouped)]
