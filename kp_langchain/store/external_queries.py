"""Queries on the table `external_traces`. Loads SQLAlchemy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import sqlalchemy as sa

from kp_langchain.gate.external_trace import ExternalTrace
from kp_langchain.store.inserts import insert_or_replace
from kp_langchain.store.rows import clean_name
from kp_langchain.store.tables import external_traces

_e = external_traces.c
_MOST_IDS_AT_ONCE = 500


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
        }
        for trace_id, by_tool in traces
        for tool, external in by_tool.items()
    ]
    if rows:
        connection.execute(insert_or_replace(external_traces, connection.dialect.name), rows)


def of_trace(connection: sa.Connection, trace_id: str) -> dict[str, ExternalTrace]:
    """Return where other tracers recorded a run, by the names of the tools."""
    columns = (_e.tool, _e.external_id, _e.span_id, _e.project)
    rows = connection.execute(sa.select(*columns).where(_e.trace_id == trace_id))
    return {row[0]: ExternalTrace(row[1], row[2], row[3]) for row in rows}


def find(connection: sa.Connection, tool: str, external_ids: Sequence[str]) -> dict[str, list[str]]:
    """Return the trace ids of the runs that a tool recorded under some of its own ids.

    Args:
        connection: A connection to read with.
        tool: The name of the tool.
        external_ids: Its ids of traces.

    Returns:
        By the tool's id; ids that no run has are left out.
    """
    found: dict[str, list[str]] = {}
    for start in range(0, len(external_ids), _MOST_IDS_AT_ONCE):
        some = external_ids[start : start + _MOST_IDS_AT_ONCE]
        select = sa.select(_e.external_id, _e.trace_id).order_by(_e.trace_id)
        for row in connection.execute(select.where(_e.tool == tool, _e.external_id.in_(some))):
            found.setdefault(row[0], []).append(row[1])
    return found
