"""`Journal`: writes runs as they come, and again when they are judged; leases what is left over.

A run is written when it has ended, with a job to judge it. The process that wrote it has the job's
lease, and judges the run. When that process ends first, the lease expires, and another one judges
the run by the policy that is written with it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any
from uuid import UUID

from kp_langchain._logging import describe_error, warn_once
from kp_langchain.gate.run import Run, ScoredTrace, may_contribute
from kp_langchain.schema import ReasoningTrace
from kp_langchain.store import sql
from kp_langchain.store.jobs import JUDGE, Jobs
from kp_langchain.store.rows import (
    body_of,
    contribution_of,
    json_text,
    trace_key,
)
from kp_langchain.store.run_columns import judged_columns, keys_of, recorded_row
from kp_langchain.store.vectors import memory_row, replace_kept, run_row
from kp_langchain.store.verdicts import redact_note, rejudge_stored
from kp_langchain.verdict import Verdict, counting

if TYPE_CHECKING:
    import sqlalchemy as sa

    from kp_langchain.store.database import Database


class Journal:
    """The writes of one process into one store.

    Every method raises `StoreError` when the database cannot be opened, read or written; nothing is
    written then.

    Args:
        database: The database of the store.

    Attributes:
        jobs: The jobs of that store, as this process does them.
    """

    def __init__(self, database: Database) -> None:
        self._database = database
        self.jobs = Jobs(database)

    def record(self, runs: Sequence[Run]) -> None:
        """Write runs that are not judged yet, each with a leased job; one transaction."""
        jobs = [
            self.jobs.leased_row(JUDGE, trace_key(run.trace.id), json_text(run.evidence()))
            for run in runs
        ]
        rows = _rows_of(runs)
        with self._database.writing() as connection:
            sql.run_queries.record(connection, *rows, jobs)
            sql.run_links.write(connection, {trace_key(one.trace.id): one for one in runs})

    def settle(
        self, judged: Sequence[ScoredTrace], tools: Collection[str] = ()
    ) -> list[tuple[ScoredTrace, ScoredTrace | None]]:
        """Write what was decided on recorded runs; one transaction.

        Runs that were deleted meanwhile, or whose lease another process has taken, are left out.

        Args:
            judged: The runs.
            tools: The names of the tools that this process sends their scores to.

        Returns:
            The runs that were written, each with the same run as it is after a verdict that came
            before it was judged; None without one that counts.
        """
        by_key = {trace_key(one.trace.id): one for one in judged}
        with self._database.writing() as connection:
            mine = sql.job_queries.end(connection, JUDGE, sorted(by_key), self.jobs.owner)
            runs = [by_key[key] for key in by_key if key in mine]
            if not runs:
                return []
            self._settle(connection, runs, tools)
            with_verdict = [key for key, has_verdict in mine.items() if has_verdict]
            earlier = sql.run_queries.verdicts_on(connection, with_verdict)
            return [(one, _apply_earlier(connection, one, earlier)) for one in runs]

    def add(self, scored: Sequence[ScoredTrace], tools: Collection[str] = ()) -> None:
        """Write judged runs, each in place of an earlier one with its id; one transaction.

        Args:
            scored: The runs.
            tools: As for `settle`.
        """
        by_key = {trace_key(one.trace.id): one for one in scored}
        runs = [by_key[key] for key in sorted(by_key)]  # in one order, so that no two deadlock
        if not runs:
            return
        rows = _rows_of(runs)
        with self._database.writing() as connection:
            sql.run_queries.lock_kept(connection, {id_ for one in runs for id_ in one.replaces})
            sql.run_queries.record(connection, *rows, replaces=True)
            sql.job_queries.forget(connection, JUDGE, list(by_key))
            sql.vector_queries.remove(connection, "run", list(by_key))
            sql.run_links.write(connection, {trace_key(one.trace.id): one for one in runs})
            self._settle(connection, runs, tools)

    def _settle(
        self, connection: sa.Connection, runs: Sequence[ScoredTrace], tools: Collection[str]
    ) -> None:
        sql.run_queries.settle(
            connection, [_judged_row(one) for one in runs], [_breakdown_row(one) for one in runs]
        )
        _write_consequences(connection, runs)
        if jobs := self.jobs.score_rows(runs, tools):
            sql.job_queries.replace(connection, jobs)

    def take_over(self) -> list[Run]:
        """Lease the runs of processes that ended before they judged them; at most 200.

        A run that cannot be read is deleted, with a warning.
        """
        evidence = {job["key"]: job["body"] for job in self.jobs.take(JUDGE)}
        if not evidence:
            return []
        with self._database.writing() as connection:
            shown = sql.run_links.shown_of(connection, list(evidence))
            runs = []
            for row in sql.run_queries.whole_rows(connection, list(evidence), "recorded"):
                trace_id = row["trace_id"]
                row["external_traces"] = sql.run_links.external_of(connection, trace_id)
                row["shown"] = tuple(shown.get(trace_id, ()))
                run = _read_run(evidence.pop(trace_id), row)
                if run is not None:
                    runs.append(run)
                else:
                    sql.deletion.delete(connection, [trace_id])
            sql.job_queries.forget(connection, JUDGE, list(evidence))  # of runs that are judged
        return runs

    def has_run(self, run_id: UUID) -> bool:
        """Return whether a run is stored, judged or not.

        Args:
            run_id: LangChain's id of the root run.
        """
        with self._database.reading() as connection:
            return sql.run_queries.has_run(connection, str(run_id))

    def waiting(self) -> int:
        """Return the number of runs, of any process, that are not judged yet."""
        with self._database.reading() as connection:
            return sql.job_queries.count(connection, JUDGE)


def _rows_of(
    runs: Sequence[Run] | Sequence[ScoredTrace],
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Return the rows of `runs` and `bodies` that runs have from their first write on."""
    rows, bodies = [], []
    for run in runs:
        body = body_of(run.trace) if isinstance(run, Run) or _has_body(run) else None
        rows.append(row := recorded_row(run, body))
        if body is not None:
            bodies.append({"trace_id": row["trace_id"], "trace": body})
    return rows, bodies


def _has_body(scored: ScoredTrace) -> bool:
    # Only a trace that was built without validation has no steps; it is not a knowledge unit.
    return scored.keep_body and bool(scored.trace.steps)


def _judged_row(scored: ScoredTrace) -> dict[str, Any]:
    row = {"key": trace_key(scored.trace.id), "state": "judged", "has_body": _has_body(scored)}
    return row | judged_columns(scored)


def _breakdown_row(scored: ScoredTrace) -> dict[str, Any]:
    features = scored.features
    return {
        "trace_id": trace_key(scored.trace.id),
        "breakdown": json_text(scored.breakdown.to_dict()),
        "features": None if features is None else json_text(dict(features)),
    }


def _write_consequences(connection: sa.Connection, runs: Sequence[ScoredTrace]) -> None:
    """Write what follows from the decisions on runs that were just written."""
    by_key = {trace_key(one.trace.id): one for one in runs}
    sql.vector_queries.write(
        connection,
        [run_row(one) for one in by_key.values() if _has_body(one)],
    )
    sql.vector_queries.write(
        connection,
        [
            memory_row(one.memory_scope, one.entry)
            for one in runs
            if one.memory_scope is not None and one.entry is not None
        ],
    )
    sql.run_queries.add_verdicts(
        connection,
        [
            (key, redact_note(one.verdict, level=one.trace.metadata.privacy_level))
            for key, one in by_key.items()
            if one.verdict is not None
        ],
    )
    now = datetime.now(UTC)
    leaving = [
        contribution_of(key, body_of(one.trace), one.registry, now)
        for key, one in by_key.items()
        if one.registry is not None and one.keep_body and one.trace.steps and may_contribute(one)
    ]
    if leaving:
        sql.outbox_queries.enter(connection, leaving)
    for key, one in by_key.items():
        replace_kept(connection, one.replaces, key, is_stated=one.is_stated)


def _apply_earlier(
    connection: sa.Connection, run: ScoredTrace, earlier: Mapping[str, list[Verdict]]
) -> ScoredTrace | None:
    """Judge a run again by a verdict that came before it was judged.

    Args:
        connection: A write transaction.
        run: The run.
        earlier: The verdicts that came before, by trace id.
    """
    key = trace_key(run.trace.id)
    verdict = counting(earlier.get(key, ()))
    if verdict is None or (run.verdict is not None and verdict.weight < run.verdict.weight):
        return None
    (row,) = sql.run_queries.whole_rows(connection, [key])
    return rejudge_stored(connection, row, verdict, run.registry)


def _read_run(evidence: Any, row: Mapping[str, Any]) -> Run | None:
    """Return the run of a process that has ended; None, and warn, if it cannot be read."""
    try:
        return Run.from_evidence(
            evidence,
            trace=ReasoningTrace.model_validate(row["trace"]),
            run_id=UUID(row["run_id"]),
            keys=keys_of(row),
            dropped=row["dropped"] or {},
            **{name: row[name] for name in ("task", "withheld", "external_traces", "shown")},
        )
    except (ValueError, TypeError, LookupError) as error:
        warn_once(
            "taken over",
            "a run of an earlier process cannot be read (%s) and is dropped",
            describe_error(error),
        )
        return None
