"""`Journal`: writes runs as they come, and again when they are judged; leases what is left over.

A run is written when it has ended, with a job to judge it. The process that wrote it has the job's
lease, and judges the run. When that process ends first, the lease expires, and another one judges
the run by the policy that is written with it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import cache
from hashlib import sha256
from typing import TYPE_CHECKING, Any
from uuid import UUID

import sqlalchemy as sa

from kp_langchain._logging import describe_error, warn_once
from kp_langchain.gate.run import Run, ScoredTrace, may_contribute
from kp_langchain.schema import ReasoningTrace
from kp_langchain.store import deletion, run_queries, side_tables, vectors
from kp_langchain.store.jobs import JUDGE, Jobs, end_jobs, forget_jobs, replace_jobs
from kp_langchain.store.kept_runs import lock_kept, replace_kept, run_row
from kp_langchain.store.novelty import memory_row
from kp_langchain.store.outbox import add_contributions
from kp_langchain.store.rows import (
    body_of,
    json_text,
    trace_key,
)
from kp_langchain.store.run_columns import judged_columns, keys_of, recorded_row, usage_in
from kp_langchain.store.run_days import Day, merge_changes, note_days, note_days_of
from kp_langchain.store.tables import (
    bodies,
    execute_rows,
    insert_or_ignore,
    insert_or_replace,
    scores,
    tool_sets,
)
from kp_langchain.store.tables import jobs as jobs_table
from kp_langchain.store.tables import runs as runs_table
from kp_langchain.store.verdicts import rejudge_stored
from kp_langchain.verdict import Verdict, counting

if TYPE_CHECKING:
    from kp_langchain.store.database import Database

Admit = Callable[[ScoredTrace, sa.Connection], ScoredTrace]

_MOST_PROCESSES = 5  # that leave a run
_DROP_EXPIRED_EVERY_S = 600.0


class Journal:
    """The writes of one process into one store.

    Every ten minutes it also deletes expired traces. Every method raises `StoreError` when the
    database cannot be opened, read or written; nothing is written then, except that `take_over` may
    have leased jobs.

    Args:
        database: The database of the store.

    Attributes:
        jobs: The jobs of that store, as this process does them.
    """

    def __init__(self, database: Database) -> None:
        self._database = database
        self.jobs = Jobs(database)
        self._drop_expired_at = float("-inf")

    def record(self, runs: Sequence[Run]) -> None:
        """Write runs that are not judged yet, each with a leased job; one transaction."""
        jobs = [
            self.jobs.leased_row(JUDGE, trace_key(run.trace.id), json_text(run.evidence()))
            for run in runs
        ]
        with self._database.writing() as connection:
            _insert(connection, runs)
            execute_rows(connection, insert_or_ignore(jobs_table, connection.dialect.name), jobs)

    def write_judged(
        self,
        judged_runs: Sequence[ScoredTrace],
        tools: Collection[str] = (),
        admit: Admit | None = None,
    ) -> list[tuple[ScoredTrace, ScoredTrace | None]]:
        """Write what was decided on recorded runs; one transaction.

        Runs that were deleted meanwhile, or whose lease another process has taken, are left out.

        Args:
            judged_runs: The runs.
            tools: The names of the tools that this process sends their scores to.
            admit: Compares a kept run, within the transaction, with those that other processes have
                kept meanwhile. None to write runs as they are.

        Returns:
            The runs that were written, as they were. Beside each stands the run as a verdict
            changed it that came before it was judged; None without one that counts.
        """
        by_key = {trace_key(one.trace.id): one for one in judged_runs}
        with self._database.writing() as connection:
            ended = end_jobs(connection, JUDGE, sorted(by_key), self.jobs.owner)
            runs = [by_key[key] for key in by_key if key in ended]
            if not runs:
                return []
            # One with a verdict may be kept by that.
            verdicts = run_queries.verdicts_on(connection, ended)
            self._lock_domains(connection, runs, verdicts)
            run_queries.lock(connection, ended)
            verdicts = run_queries.verdicts_on(connection, ended)  # none comes after the lock
            if admit is not None:
                runs = [admit(one, connection) for one in runs]
            self._write_judged(connection, runs, tools)
            return [(one, _apply_earlier(connection, one, verdicts)) for one in runs]

    def judged(self, trace_ids: Collection[str]) -> list[str]:
        """Return which of some traces are stored as judged.

        Args:
            trace_ids: Ids of traces.
        """
        if not trace_ids:
            return []
        with self._database.reading() as connection:
            rows = run_queries.judged_ids(connection, [trace_key(id_) for id_ in trace_ids])
        return [id_ for id_ in trace_ids if trace_key(id_) in rows]

    def add(
        self,
        scored: Sequence[ScoredTrace],
        tools: Collection[str] = (),
        admit: Admit | None = None,
    ) -> list[ScoredTrace]:
        """Write judged runs, each in place of an earlier one with its id; one transaction.

        Args:
            scored: The runs.
            tools: As for `write_judged`.
            admit: As for `write_judged`.

        Returns:
            The runs as they were written.
        """
        by_key = {trace_key(one.trace.id): one for one in scored}
        runs = [by_key[key] for key in sorted(by_key)]  # in one order, so that no two deadlock
        if not runs:
            return []
        with self._database.writing() as connection:
            self._lock_domains(connection, runs)
            if admit is not None:
                runs = [admit(one, connection) for one in runs]
            lock_kept(connection, {id_ for one in runs for id_ in one.replaces})
            note_days_of(connection, list(by_key))  # where an earlier one has another domain or day
            _insert(connection, runs, replaces=True)
            forget_jobs(connection, JUDGE, list(by_key))
            vectors.remove(connection, "run", list(by_key))
            self._write_judged(connection, runs, tools)
            return runs

    def _lock_domains(
        self,
        connection: sa.Connection,
        runs: Sequence[ScoredTrace],
        verdicts: Collection[str] = (),
    ) -> None:
        """Have kept runs of a domain written one after the other, so that each sees those before.

        Before rows of `runs` are locked, as verdicts have it.

        Args:
            connection: A write transaction.
            runs: The runs.
            verdicts: Ids of those on which there are verdicts.
        """
        may_be_kept = (
            one for one in runs if one.decision == "kept" or trace_key(one.trace.id) in verdicts
        )
        domains = {one.trace.metadata.task_domain for one in may_be_kept}
        run_queries.lock_names(connection, domains)

    def _write_judged(
        self, connection: sa.Connection, runs: Sequence[ScoredTrace], tools: Collection[str]
    ) -> None:
        dialect = connection.dialect.name
        rows = [_judged_row(one) for one in runs]
        execute_rows(connection, _update_of(tuple(rows[0])), rows)
        breakdowns = [_breakdown_row(one) for one in runs]
        execute_rows(connection, insert_or_replace(scores, dialect), breakdowns)
        run_queries.delete_bodies(connection, [row["key"] for row in rows if not row["has_body"]])
        _write_consequences(connection, runs)
        replace_jobs(connection, self.jobs.score_rows(runs, tools))
        if time.monotonic() >= self._drop_expired_at:
            self._drop_expired_at = time.monotonic() + _DROP_EXPIRED_EVERY_S
            run_queries.drop_expired_bodies(connection)
            merge_changes(connection)

    def take_over(self) -> list[Run]:
        """Lease the runs of processes that ended before they judged them; at most 200.

        With a warning it deletes a run that cannot be read, and one that five processes left, as it
        may have crashed them.
        """
        jobs = self.jobs.take(JUDGE)
        if not jobs:
            return []
        jobs_by_key = {one["key"]: one for one in jobs}
        with self._database.writing() as connection:
            shown_by_trace = side_tables.shown_of(connection, list(jobs_by_key))
            runs, unusable = [], []
            for row in run_queries.whole_rows(connection, list(jobs_by_key), "recorded"):
                trace_id = row["trace_id"]
                row["external_traces"] = side_tables.external_of(connection, trace_id)
                row["shown"] = tuple(shown_by_trace.get(trace_id, ()))
                run = _read_run(jobs_by_key.pop(trace_id), row)
                if run is not None:
                    runs.append(run)
                else:
                    unusable.append(trace_id)
            if unusable:
                deletion.delete(connection, unusable)
            forget_jobs(connection, JUDGE, list(jobs_by_key))  # what is left is judged already
        return runs

    def has_run(self, run_id: UUID) -> bool:
        """Return whether a run is stored, judged or not.

        Args:
            run_id: LangChain's id of the root run.
        """
        select = sa.select(runs_table.c.trace_id).where(runs_table.c.run_id == str(run_id)).limit(1)
        with self._database.reading() as connection:
            return connection.scalar(select) is not None

    def waiting(self) -> int:
        """Return the number of runs, of any process, that are not judged yet."""
        return self.jobs.count(JUDGE)


def _insert(
    connection: sa.Connection,
    runs: Sequence[Run] | Sequence[ScoredTrace],
    *,
    replaces: bool = False,
) -> None:
    """Insert what runs have from their first write on.

    Args:
        connection: A write transaction.
        runs: The runs; where they replace others, in the order of their ids, so that no two
            transactions wait for each other.
        replaces: Whether a run replaces an earlier one with its id, and is not ignored.
    """
    rows, texts = [], []
    definitions_by_digest: dict[str, str] = {}
    for run in runs:
        body = body_of(run.trace) if isinstance(run, Run) or _has_body(run) else None
        digest = None
        if run.tools and body is not None:
            definitions = json_text(run.tools)
            digest = sha256(definitions.encode()).hexdigest()
            definitions_by_digest[digest] = definitions
        rows.append(row := recorded_row(run, body) | {"tool_set": digest})
        if body is not None:
            calls = json_text([call.to_list() for call in run.model_calls])
            texts.append({"trace_id": row["trace_id"], "trace": body, "model_calls": calls})
    dialect = connection.dialect.name
    insert = insert_or_replace if replaces else insert_or_ignore
    execute_rows(connection, insert(runs_table, dialect), rows)
    execute_rows(connection, insert(bodies, dialect), texts)
    tool_rows = [
        {"digest": digest, "definitions": definitions_by_digest[digest]}
        for digest in sorted(definitions_by_digest)  # in one order, so that no two deadlock
    ]
    execute_rows(connection, insert_or_ignore(tool_sets, dialect), tool_rows)
    side_tables.write(connection, {trace_key(one.trace.id): one for one in runs})


@cache  # building it takes longer than executing it
def _update_of(names: tuple[str, ...]) -> sa.Update:
    values: dict[str, Any] = {name: sa.bindparam(name) for name in names if name != "key"}
    return sa.update(runs_table).where(runs_table.c.trace_id == sa.bindparam("key")).values(values)


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
        "digest": scored.digest,
    }


def _write_consequences(connection: sa.Connection, runs: Sequence[ScoredTrace]) -> None:
    """Write what follows from the decisions on runs that were just written."""
    by_key = {trace_key(one.trace.id): one for one in runs}
    # Others are compared with kept runs alone.
    for is_kept in (True, False):
        rows = [
            run_row(one)
            for one in by_key.values()
            if _has_body(one) and (one.decision == "kept") is is_kept
        ]
        vectors.write(connection, rows, is_change=is_kept)
    note_days(
        connection,
        [Day.of(one.task_domain, one.created_at) for one in (run.trace.metadata for run in runs)],
    )
    vectors.write(
        connection,
        [memory_row(one.entry) for one in runs if one.is_remembered and one.entry is not None],
    )
    run_queries.add_verdicts(
        connection,
        [(key, one.verdict) for key, one in by_key.items() if one.verdict is not None],
    )
    contributions = [
        (key, one.registry, body_of(one.trace))
        for key, one in by_key.items()
        if one.registry is not None and one.keep_body and one.trace.steps and may_contribute(one)
    ]
    add_contributions(connection, contributions)
    for key, one in by_key.items():
        replace_kept(connection, one.replaces, key, is_stated=one.is_stated)


def _apply_earlier(
    connection: sa.Connection, run: ScoredTrace, earlier_verdicts: Mapping[str, list[Verdict]]
) -> ScoredTrace | None:
    """Judge a run again by a verdict that came before it was judged.

    Args:
        connection: A write transaction.
        run: The run.
        earlier_verdicts: The verdicts that came before, by trace id.
    """
    key = trace_key(run.trace.id)
    verdict = counting(earlier_verdicts.get(key, ()))
    if verdict is None or (run.verdict is not None and verdict.weight < run.verdict.weight):
        return None
    (row,) = run_queries.whole_rows(connection, [key])
    return rejudge_stored(connection, row, verdict, run.registry)


def _read_run(job: dict[str, Any], row: Mapping[str, Any]) -> Run | None:
    """Return the run of a process that has ended; None, and warn, if it cannot be judged."""
    if job["attempts"] + 1 >= _MOST_PROCESSES:  # the first one had it without an attempt
        warn_once("given up", "a run is deleted: %d processes left it unjudged", _MOST_PROCESSES)
        return None
    try:
        return Run.from_evidence(
            job["body"],
            trace=ReasoningTrace.model_validate(row["trace"]),
            run_id=UUID(row["run_id"]),
            keys=keys_of(row),
            usage=usage_in(row),
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
