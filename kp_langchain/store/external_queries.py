"""Queries on the table `external_traces`. Loads SQLAlchemy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import sqlalchemy as sa

from kp_langchain.gate.external_trace import ExternalTrace
from kp_langchain.store.inserts import insert_or_replace
from kp_langchain.store.rows import clean_name
from kp_langchain.store.tables import external_traces, runs

_e = external_traces.c
_PLACE = (_e.external_id, _e.span_id, _e.project, _e.is_part)


def write(
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


def of_trace(connection: sa.Connection, trace_id: str) -> dict[str, ExternalTrace]:
    """Return where other tracers recorded a run, by the names of the tools."""
    rows = connection.execute(sa.select(_e.tool, *_PLACE).where(_e.trace_id == trace_id))
    return {row[0]: ExternalTrace(*row[1:]) for row in rows}


def in_trace(
    connection: sa.Connection, tool: str, external_id: str
) -> list[tuple[str, ExternalTrace]]:
    """Return the runs that a tool recorded in one trace: trace id and external trace."""
    select = sa.select(_e.trace_id, *_PLACE).where(
        _e.tool == tool, _e.external_id == clean_name(external_id)
    )
    rows = connection.execute(select.order_by(_e.trace_id))
    return [(row[0], ExternalTrace(*row[1:])) for row in rows]


def has(connection: sa.Connection, tool: str, external: ExternalTrace) -> bool:
    """Return whether there is a run that a tool recorded as this trace and span."""
    select = sa.select(_e.trace_id).where(
        _e.tool == tool,
        _e.external_id == clean_name(external.trace_id),
        _e.span_id == (external.span_id and clean_name(external.span_id)),
    )
    return connection.execute(select.limit(1)).first() is not None


def page(
    connection: sa.Connection, tool: str, *, after: str, limit: int
) -> list[tuple[str, ExternalTrace]]:
    """Return runs that a tool recorded: trace id and external trace, in order of trace ids.

    Args:
        connection: A connection to read with.
        tool: The name of the tool.
        after: Only those with greater trace ids.
        limit: At most so many.
    """
    select = sa.select(_e.trace_id, *_PLACE).where(_e.tool == tool, _e.trace_id > after)
    rows = connection.execute(select.order_by(_e.trace_id).limit(limit))
    return [(row[0], ExternalTrace(*row[1:])) for row in rows]


def page_of_run_ids(connection: sa.Connection, *, after: str, limit: int) -> list[tuple[str, str]]:
    """Return trace id and run id of runs, in order of trace ids; the arguments as for `page`."""
    columns = (runs.c.trace_id, runs.c.run_id)
    select = sa.select(*columns).where(runs.c.trace_id > after, runs.c.state == "judged")
    rows = connection.execute(select.order_by(runs.c.trace_id).limit(limit))
    return [(row[0], row[1]) for row in rows]
