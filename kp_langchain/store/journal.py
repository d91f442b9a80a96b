"""`Journal`: writes runs as they come, and again when they are judged; leases what is left over.

A run is written when it has ended, with a job to judge it. The process that wrote it has the job's
lease, and judges the run. When that process ends first, the lease expires, and another one judges
the run by the policy that is written with it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any
from uuid import UUID

from kp_langchain._logging import describe_error, warn_once
from kp_langchain.gate.run import Run
from kp_langchain.gate.scored_trace import ScoredTrace, may_contribute
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
from kp_langchain.store.vectors import replace_kept, run_row
from kp_langchain.store.verdicts import redact_note, rejudge_stored
from kp_langchain.verdict import Verdict, counting

if TYPE_CHECKING:
    import sqlalchemy as sa

    from kp_langchain.gate.run import ExternalTrace, ShownTrace
    from kp_langchain.store.database import Database
    from kp_langchain.store.rows import JsonText


@dataclass(frozen=True, slots=True)
class _Rows:
    """The rows of one judged run."""

    run: dict[str, Any]
    trace: JsonText | None
    breakdown: dict[str, Any]


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
        rows, bodies, jobs = [], [], []
        for run in runs:
            body = body_of(run.trace)
            row = recorded_row(run, body, "recorded")
            trace_id = row["trace_id"]
            rows.append(row)
            if body is not None:
                bodies.append({"trace_id": trace_id, "trace": body})
            jobs.append(self.jobs.leased_row(JUDGE, trace_id, json_text(run.evidence())))
        with self._database.writing() as connection:
            sql.journal_queries.record(connection, rows, bodies, jobs)
            _write_surroundings(connection, runs)

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
            sql.journal_queries.settle(
                connection,
                [
                    {"key": trace_key(one.trace.id), **judged_columns(one)}
                    | ({} if one.keep_body else {"has_body": False})
                    for one in runs
                ],
                [_breakdown_row(one) for one in runs],
            )
            gone = [trace_key(one.trace.id) for one in runs if not one.keep_body]
            sql.run_queries.delete_bodies(connection, gone)
            with_verdict = [key for key, has_verdict in mine.items() if has_verdict]
            earlier = sql.run_queries.verdicts_on(connection, with_verdict)
            _write_consequences(connection, runs)
            self._write_score_jobs(connection, runs, tools)
            return [(one, _apply_earlier(connection, one, earlier)) for one in runs]

    def add(self, scored: Sequence[ScoredTrace], tools: Collection[str] = ()) -> None:
        """Write judged runs, each in place of an earlier one with its id; one transaction.

        Args:
            scored: The runs.
            tools: As for `settle`.
        """
        rows = [_rows_of(one) for one in scored]
        if not rows:
            return
        with self._database.writing() as connection:
            replaced = {trace_id for one in scored for trace_id in one.replaces}
            sql.run_queries.lock_kept(connection, replaced)  # in one order: see `write`
            sql.run_queries.write(
                connection,
                [one.run for one in rows],
                {one.run["trace_id"]: one.trace for one in rows if one.trace is not None},
                [one.breakdown for one in rows],
            )
            trace_ids = [one.run["trace_id"] for one in rows]
            sql.job_queries.forget(connection, JUDGE, trace_ids)
            sql.vector_queries.remove(connection, "run", trace_ids)
            _write_surroundings(connection, scored)
            _write_consequences(connection, scored)
            self._write_score_jobs(connection, scored, tools)

    def _write_score_jobs(
        self, connection: sa.Connection, runs: Sequence[ScoredTrace], tools: Collection[str]
    ) -> None:
        if rows := self.jobs.score_rows(runs, tools):
            sql.job_queries.replace(connection, rows)

    def take_over(self) -> list[Run]:
        """Lease the runs of processes that ended before they judged them; at most 200.

        A run that cannot be read is deleted, with a warning.
        """
        evidence = {job["key"]: job["body"] for job in self.jobs.take(JUDGE)}
        if not evidence:
            return []
        with self._database.writing() as connection:
            rows = sql.journal_queries.recorded(connection, list(evidence))
            shown = sql.run_links.shown_of(connection, list(evidence))
            runs = []
            for row in rows:
                trace_id = row["trace_id"]
                external = sql.run_links.external_of(connection, trace_id)
                run = _read_run(
                    evidence[trace_id], row, external=external, shown=shown.get(trace_id, ())
                )
                if run is not None:
                    runs.append(run)
                    del evidence[trace_id]
            if evidence:
                sql.deletion_queries.delete(connection, list(evidence), datetime.now(UTC))
        return runs

    def has_run(self, run_id: UUID) -> bool:
        """Return whether a run is stored, judged or not.

        Args:
            run_id: LangChain's id of the root run.
        """
        with self._database.reading() as connection:
            return sql.journal_queries.has_run(connection, str(run_id))

    def waiting(self) -> int:
        """Return the number of runs, of any process, that are not judged yet."""
        with self._database.reading() as connection:
            return sql.job_queries.count(connection, JUDGE)


def can_be_written(scored: ScoredTrace) -> bool:
    """Return whether a run can be written at all, whatever the state of the store."""
    try:
        _rows_of(scored)
    except Exception:  # noqa: BLE001 - whatever it is, it would be the same next time
        return False
    return True


def _rows_of(scored: ScoredTrace) -> _Rows:
    # Only a trace that was built without validation has no steps; it is not a knowledge unit.
    body = body_of(scored.trace) if scored.keep_body and scored.trace.steps else None
    row = recorded_row(scored, body, "judged") | judged_columns(scored)
    if body is None:
        row["body_expires_at"] = None
    return _Rows(row, body, _breakdown_row(scored))


def _breakdown_row(scored: ScoredTrace) -> dict[str, Any]:
    features = scored.features
    return {
        "trace_id": trace_key(scored.trace.id),
        "breakdown": json_text(scored.breakdown.to_dict()),
        "features": None if features is None else json_text(dict(features)),
    }


def _write_surroundings(connection: sa.Connection, runs: Sequence[Run | ScoredTrace]) -> None:
    """Write where other tracers recorded runs, and which examples they were shown."""
    keys = [trace_key(one.trace.id) for one in runs]
    sql.run_links.write_external(
        connection,
        [(key, one.external_traces) for key, one in zip(keys, runs, strict=True)],
    )
    sql.run_links.write_shown(
        connection, [(key, one.shown) for key, one in zip(keys, runs, strict=True)]
    )


def _write_consequences(connection: sa.Connection, runs: Sequence[ScoredTrace]) -> None:
    """Write what follows from the decisions on runs that were just written."""
    by_key = {trace_key(one.trace.id): one for one in runs}
    sql.vector_queries.write(
        connection,
        [run_row(one) for one in by_key.values() if one.keep_body and one.trace.steps],
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
        contribution_of(key, body, one.registry, now)
        for key, one in by_key.items()
        if one.registry is not None
        and one.keep_body
        and one.trace.steps
        and may_contribute(one)
        and (body := body_of(one.trace)) is not None
    ]
    if leaving:
        sql.outbox_queries.enter(connection, leaving)
    for key, one in by_key.items():
        replace_kept(connection, one.replaces, key, is_stated=one.is_stated)


def _apply_earlier(
    connection: sa.Connection, run: ScoredTrace, earlier: Mapping[str, list[dict[str, Any]]]
) -> ScoredTrace | None:
    """Judge a run again by a verdict that came before it was judged.

    Args:
        connection: A write transaction.
        run: The run.
        earlier: The verdicts that came before, by trace id.
    """
    key = trace_key(run.trace.id)
    verdict = counting(Verdict(**row) for row in earlier.get(key, ()))
    if verdict is None or (run.verdict is not None and verdict.weight < run.verdict.weight):
        return None
    row = sql.run_queries.whole_row(connection, key)
    return None if row is None else rejudge_stored(connection, row, verdict, run.registry)


def _read_run(
    evidence: Any,
    row: Mapping[str, Any],
    *,
    external: Mapping[str, ExternalTrace],
    shown: Sequence[ShownTrace],
) -> Run | None:
    """Return the run of a process that has ended; None, and warn, if it cannot be read."""
    try:
        return Run.from_evidence(
            evidence,
            trace=ReasoningTrace.model_validate(row["trace"]),
            run_id=UUID(row["run_id"]),
            task=row["task"],
            withheld=row["withheld"],
            keys=keys_of(row),
            dropped=row["dropped"] or {},
            external_traces=external,
            shown=tuple(shown),
        )
    except (ValueError, TypeError, LookupError) as error:
        warn_once(
            "taken over",
            "a run of an earlier process cannot be read (%s) and is dropped",
            describe_error(error),
        )
        return None
