"""Queries that write runs, as they come and once they are judged. Loads SQLAlchemy."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import sqlalchemy as sa

from kp_langchain.store.statements import insert_or_ignore
from kp_langchain.store.tables import bodies, jobs, runs, scores

_INSERT_SCORES = sa.insert(scores)


def record(
    connection: sa.Connection,
    rows: Sequence[dict[str, Any]],
    texts: Sequence[dict[str, Any]],
    job_rows: Sequence[dict[str, Any]],
) -> None:
    """Insert runs that are not judged yet; one whose trace is there already is ignored.

    Args:
        connection: A write transaction.
        rows: The rows of `runs`.
        texts: The rows of `bodies`.
        job_rows: The rows of `jobs`.
    """
    dialect = connection.dialect.name
    for table, of_table in ((runs, rows), (bodies, texts), (jobs, job_rows)):
        if of_table:
            connection.execute(insert_or_ignore(table, dialect), of_table)


def settle(
    connection: sa.Connection,
    judged: Sequence[dict[str, Any]],
    breakdowns: Sequence[dict[str, Any]],
) -> None:
    """Write what was decided on recorded runs.

    Args:
        connection: A write transaction that has ended their jobs.
        judged: The new values of columns of `runs`, each with the `key` of the row.
        breakdowns: The rows of `scores`.
    """
    for names in {tuple(values) for values in judged}:
        same = [values for values in judged if tuple(values) == names]
        connection.execute(_update_of(names), same)
    connection.execute(_INSERT_SCORES, list(breakdowns))


_updates: dict[tuple[str, ...], sa.Update] = {}


def _update_of(names: tuple[str, ...]) -> sa.Update:
    # Built once, because building it takes longer than executing it.
    if names not in _updates:
        values: dict[str, Any] = {name: sa.bindparam(name) for name in names if name != "key"}
        update = sa.update(runs).where(runs.c.trace_id == sa.bindparam("key"))
        _updates[names] = update.values(state="judged", **values)
    return _updates[names]


def recorded(connection: sa.Connection, trace_ids: Collection[str]) -> list[dict[str, Any]]:
    """Return what the columns hold of runs that are not judged yet, each with its `trace`.

    That is None where it was too large to be written.
    """
    # No times, whose reading fails for all rows if one was changed outside.
    names = (
        "trace_id", "run_id", "task", "withheld", "dropped",
        "session", "thread", "user_hash", "namespace", "run_name", "tags",
    )  # fmt: skip
    select = (
        sa.select(*(runs.c[name] for name in names), bodies.c.trace)
        .outerjoin(bodies, bodies.c.trace_id == runs.c.trace_id)
        .where(runs.c.trace_id.in_(trace_ids), runs.c.state == "recorded")
    )
    return [dict(row) for row in connection.execute(select).mappings()]


def has_run(connection: sa.Connection, run_id: str) -> bool:
    """Return whether there is a run with this id of LangChain's, in whatever state."""
    select = sa.select(runs.c.trace_id).where(runs.c.run_id == run_id).limit(1)
    return connection.scalar(select) is not None
