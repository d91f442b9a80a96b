"""The small tables beside `runs`, and the parts of a store that read and write them.

They say which traces runs were shown, where other tracers recorded them, and what paused runs
recorded.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, NamedTuple

import sqlalchemy as sa

from kp_langchain.gate.run import ExternalTrace, Run, ShownTrace
from kp_langchain.run_keys import RunKeys
from kp_langchain.store.database import StorePart
from kp_langchain.store.rows import clean_name, json_text, trace_key
from kp_langchain.store.run_columns import key_columns
from kp_langchain.store.tables import (
    batches,
    external_traces,
    insert_or_replace,
    paused_runs,
    pulled_units,
    runs,
    shown_traces,
    verdicts,
)

if TYPE_CHECKING:
    from kp_langchain.gate import ScoredTrace

_shown, _external = shown_traces.c, external_traces.c
_PLACE = (_external.external_id, _external.span_id, _external.project, _external.is_part)
IS_STATED = sa.exists(
    sa.select(verdicts.c.number).where(
        verdicts.c.trace_id == runs.c.trace_id, verdicts.c.success.is_not(None)
    )
)
"""Whether a verdict states the success of a run."""

IS_OUTCOME = sa.and_(runs.c.trace_id == _shown.trace_id, runs.c.state == "judged")
"""Joins what a run was shown with the run, once it is judged."""


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


class ShownTraces(StorePart):
    """The recall log of one store. Got from `TraceStore.shown`."""

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

    def is_shown(self, trace_id: str) -> bool:
        """Return whether a trace was shown to a judged run, or held out from one.

        Args:
            trace_id: The id of the kept trace.
        """
        select = sa.select(_shown.trace_id).join(runs, IS_OUTCOME)
        with self._database.reading() as connection:
            select = select.where(_shown.shown_id == trace_key(trace_id)).limit(1)
            return connection.scalar(select) is not None

    def runs_with_examples(self, domain: str) -> set[str]:
        """Return the ids of the judged runs of a domain that were shown something.

        Args:
            domain: The domain's exact name.
        """
        select = sa.select(_shown.trace_id).distinct().join(runs, IS_OUTCOME)
        select = select.where(runs.c.domain == clean_name(domain), _shown.held_out.is_(False))
        with self._database.reading() as connection:
            return set(connection.scalars(select))

    def outcome_counts(self, domain: str) -> list[OutcomeCount]:
        """Return how the runs of a domain ended that were shown each trace, or held out from it.

        Args:
            domain: The domain's exact name.
        """
        name = clean_name(domain)
        return self._count(_outcomes().where(runs.c.domain == name)).get(name, [])

    def outcome_counts_by_domain(self) -> dict[str, list[OutcomeCount]]:
        """Return what `outcome_counts` returns, of every domain with runs shown something."""
        return self._count(_outcomes())

    def _count(self, outcomes: sa.Select[Any]) -> dict[str, list[OutcomeCount]]:
        *columns, namespace = outcomes.subquery().c
        outcome_groups = sa.select(*columns, sa.func.count(), namespace).group_by(
            *columns, namespace
        )
        counts: dict[str, list[OutcomeCount]] = {}
        with self._database.reading() as connection:
            for row in connection.execute(outcome_groups):
                counts.setdefault(row[0], []).append(OutcomeCount._make(row[1:]))
        return counts


class ExternalTraces(StorePart):
    """Where other tracers recorded the runs of a store, as their handlers learned it."""

    def of_tool(self, tool: str) -> list[tuple[str, ExternalTrace]]:
        """Return trace id and external trace of each run that a tool recorded, in order of ids.

        Args:
            tool: The name of the tool.
        """
        select = sa.select(_external.trace_id, *_PLACE).where(_external.tool == tool)
        with self._database.reading() as connection:
            rows = connection.execute(select.order_by(_external.trace_id))
            return [(row[0], ExternalTrace(*row[1:])) for row in rows]

    def has(self, tool: str, external: ExternalTrace) -> bool:
        """Return whether there is a run that a tool recorded as this trace and span.

        Args:
            tool: The name of the tool.
            external: The trace and the root span of the run there.
        """
        span_id = external.span_id and clean_name(external.span_id)
        select = sa.select(_external.trace_id).where(
            _external.tool == tool,
            _external.external_id == clean_name(external.trace_id),
            _external.span_id.is_(None) if span_id is None else _external.span_id == span_id,
        )
        with self._database.reading() as connection:
            return connection.scalar(select.limit(1)) is not None


# ------------------------------------------------------------------ within a transaction


def write(connection: sa.Connection, linked_runs: Mapping[str, Run | ScoredTrace]) -> None:
    """Write where other tracers recorded runs, and which kept traces they were shown.

    Args:
        connection: A write transaction.
        linked_runs: The runs by the ids of their traces.
    """
    shown_rows = [
        asdict(one) | {"trace_id": trace_id, "shown_id": trace_key(one.trace_id)}
        for trace_id, run in linked_runs.items()
        for one in run.shown
    ]
    external = [
        {
            "trace_id": trace_id,
            "tool": clean_name(tool),
            "external_id": clean_name(one.trace_id),
            "span_id": one.span_id and clean_name(one.span_id),
            "project": one.project and clean_name(one.project),
            "is_part": one.is_part,
        }
        for trace_id, run in linked_runs.items()
        for tool, one in run.external_traces.items()
    ]
    for table, rows in ((shown_traces, shown_rows), (external_traces, external)):
        if rows:
            connection.execute(insert_or_replace(table, connection.dialect.name), rows)


def shown_of(connection: sa.Connection, trace_ids: Collection[str]) -> dict[str, list[ShownTrace]]:
    """Return by trace id what runs were shown or held out from, the best of each first.

    Args:
        connection: A connection to read with.
        trace_ids: The ids of the traces of these runs; one that was shown nothing is left out.
    """
    shown_by_run: dict[str, list[ShownTrace]] = {}
    for batch in batches(trace_ids):
        select = (
            sa.select(
                _shown.trace_id,
                _shown.shown_id,
                _shown.rank,
                _shown.similarity,
                _shown.held_out,
                _shown.is_drawn,
            )
            .where(_shown.trace_id.in_(batch))
            .order_by(_shown.trace_id, _shown.rank, _shown.shown_id)
        )
        for trace_id, *values in connection.execute(select):
            shown_by_run.setdefault(trace_id, []).append(ShownTrace(*values))
    return shown_by_run


def external_of(connection: sa.Connection, trace_id: str) -> dict[str, ExternalTrace]:
    """Return where other tracers recorded a run, by the names of the tools."""
    rows = connection.execute(
        sa.select(_external.tool, *_PLACE).where(_external.trace_id == trace_id)
    )
    return {row[0]: ExternalTrace(*row[1:]) for row in rows}


def _outcomes() -> sa.Select[Any]:
    """Return domain and outcome of each run, with each trace that it was shown or held out from."""
    of_trace = runs.alias()
    own_namespace = sa.func.coalesce(of_trace.c.namespace, pulled_units.c.namespace)
    is_its_own = runs.c.namespace == own_namespace
    return sa.select(
        runs.c.domain,
        _shown.shown_id,
        _shown.held_out,
        runs.c.success,
        IS_STATED.label("is_stated"),
        sa.case((is_its_own, None), else_=runs.c.namespace).label("namespace"),
    ).select_from(
        shown_traces.join(runs, IS_OUTCOME)
        .outerjoin(of_trace, of_trace.c.trace_id == _shown.shown_id)
        .outerjoin(pulled_units, pulled_units.c.trace_id == _shown.shown_id)
    )


# ------------------------------------------------------------------ paused runs

_paused = paused_runs.c
_PAUSED_COUNT = sa.select(sa.func.count()).select_from(paused_runs)


class PausedRuns(StorePart):
    """What runs recorded before they paused for a human. Got from `TraceStore.paused`.

    There is one row for each thread, as handlers of one domain and agent see it. A new pause there
    replaces an earlier one. Rows are deleted when they are claimed, expired, or too
    many.
    """

    def count(self) -> int:
        """Return the number of paused runs."""
        with self._database.reading() as connection:
            return connection.scalar(_PAUSED_COUNT) or 0

    def put(
        self, key: str, body: dict[str, Any], *, paused_at: datetime, days: float, most: int
    ) -> int:
        """Write what a paused run recorded, in place of what waits there; then make room.

        Args:
            key: The key under which it waits; see `paused_run_key`.
            body: What was recorded, redacted, as JSON-like values.
            paused_at: When the run paused, in UTC.
            days: The number of days after which it expires.
            most: The largest number that the store keeps; those that paused first are deleted.

        Returns:
            The number of others deleted because they expired or were too many.
        """
        now = datetime.now(UTC)
        keys = RunKeys() if not body["keys"] else RunKeys.from_dict(body["keys"])
        row = {
            "key": key,
            "paused_at": paused_at,
            "expires_at": now + timedelta(days=days),
            "body": json_text(body),
            "run_id": clean_name(body["run_id"].lower()),
            "created_at": datetime.fromisoformat(body["started_at"]),
            "domain": clean_name(body["domain"]),
            **key_columns(keys),
        }
        newest = sa.select(_paused.key).order_by(_paused.paused_at.desc(), _paused.key).limit(most)
        with self._database.writing() as connection:
            insert = insert_or_replace(paused_runs, connection.dialect.name)
            connection.execute(insert, [row])
            n_dropped = _delete(connection, _paused.expires_at <= now)
            if (connection.scalar(_PAUSED_COUNT) or 0) > most:
                n_dropped += _delete(connection, _paused.key.not_in(newest))
        return n_dropped

    def claim(self, key: str) -> dict[str, Any] | None:
        """Delete what waits under a key and return it; of several claims one succeeds."""
        if not self._has(_paused.key == key):
            return None
        select = sa.select(_paused.body).where(
            _paused.key == key, _paused.expires_at > datetime.now(UTC)
        )
        with self._database.writing() as connection:
            body: dict[str, Any] | None = connection.scalar(select.with_for_update())
            if body is not None:
                _delete(connection, _paused.key == key)
        return body

    def drop_expired(self) -> int:
        """Delete what has expired, and return the number of runs."""
        is_expired = _paused.expires_at <= datetime.now(UTC)
        if not self._has(is_expired):
            return 0
        with self._database.writing() as connection:
            return _delete(connection, is_expired)

    def _has(self, condition: sa.ColumnElement[bool]) -> bool:
        # A read does not wait for other writers of the file.
        with self._database.reading() as connection:
            return connection.scalar(sa.select(_paused.key).where(condition).limit(1)) is not None


def _delete(connection: sa.Connection, condition: sa.ColumnElement[bool]) -> int:
    return connection.execute(sa.delete(paused_runs).where(condition)).rowcount
