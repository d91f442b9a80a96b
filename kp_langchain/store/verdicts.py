"""Writes a verdict on a stored run, and the decision of the gate that follows from it.

The run is loaded, judged again by the gate, and saved; the outbox follows its decision. The notes
of verdicts that reach the store directly are redacted here, too; handlers redact their own.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any
from uuid import UUID

import sqlalchemy as sa

from kp_langchain.calibration.features import complete_features
from kp_langchain.config import Settings
from kp_langchain.gate import Rescored, ScoredTrace, rejudge
from kp_langchain.gate.run import may_leave
from kp_langchain.redaction import redact
from kp_langchain.schema import Metadata, Outcome, ReasoningTrace, Task
from kp_langchain.scoring.breakdown import ScoreBreakdown
from kp_langchain.store import run_queries, side_tables, vectors
from kp_langchain.store.jobs import Jobs, replace_jobs
from kp_langchain.store.kept_runs import (
    candidate_of,
    drop_stored_repeats,
    replace_kept,
    run_row,
)
from kp_langchain.store.outbox import (
    add_contributions,
    ask_withdrawal,
    replace_body,
    take_back_withdrawal,
)
from kp_langchain.store.rows import (
    expiry_after,
    json_text,
)
from kp_langchain.store.run_columns import keys_of, outcome_columns, trace_of, usage_in
from kp_langchain.store.run_days import note_days_of
from kp_langchain.store.selection import ambiguous_id, unknown_run
from kp_langchain.store.tables import scores
from kp_langchain.verdict import LONGEST_NOTE_CHARS, Verdict, counting

if TYPE_CHECKING:
    from kp_langchain.gate.run import ExternalTrace
    from kp_langchain.store.database import Database


# What a row and `ScoredTrace` call by one name.
_SAME_IN_BOTH = (
    "decision", "threshold", "keep_days", "features", "task", "withheld", "gate", "pass_rate",
    "veto", "twin_similarity", "twin_of", "similarity_to_twin",
    "is_taken_over",
)  # fmt: skip


def judge_stored(
    database: Database,
    id_: str,
    verdict: Verdict,
    *,
    jobs: Jobs,
    registry: str | None = None,
    tools: Collection[str] = (),
) -> list[ScoredTrace]:
    """Write a verdict, and what the gate decides on its runs. Redact and log nothing.

    Args:
        database: The database with the runs.
        id_: A trace id, a run id, or the first 4 characters or more.
        verdict: The verdict; its note is redacted already.
        jobs: The jobs of the store.
        registry: URL of the registry to contribute to, if any.
        tools: The names of the tools that are sent scores.

    Returns:
        For each trace that the id means, the run as it is now; `previous` is the run as it was, or
        None if another verdict counts. A run that is not judged yet is left out: the verdict is
        written, and counts when it is judged.

    Raises:
        UnknownRunError: There is no such run, or more than one; the message lists them.
        StoreError: The database cannot be read or written.
    """
    with database.writing() as connection:
        names = run_queries.find_names(connection, id_)
        if not names:
            raise unknown_run(id_, database.location)
        if len({row["run_id"] for row in names}) > 1:
            raise ambiguous_id(id_, names)
        # Of two repeats that are confirmed at the same time, the later one sees the earlier one.
        run_queries.lock_names(connection, {row["domain"] for row in names})
        # Without those that were deleted since.
        trace_ids = run_queries.lock(connection, [row["trace_id"] for row in names])
        if not trace_ids:
            raise unknown_run(id_, database.location)
        rows = run_queries.whole_rows(connection, trace_ids)
        earlier_verdicts = run_queries.verdicts_on(connection, trace_ids)
        run_queries.add_verdicts(connection, [(trace_id, verdict) for trace_id in trace_ids])
        note_days_of(connection, trace_ids)
        runs = [
            rejudge_stored(
                connection,
                row,
                verdict,
                registry,
                counting(earlier_verdicts.get(row["trace_id"], ())),
            )
            for row in rows
        ]
        changed_runs = [run for run in runs if Rescored.of(run).changed]
        replace_jobs(connection, jobs.score_rows(changed_runs, tools))
    return runs


def rejudge_stored(
    connection: sa.Connection,
    row: dict[str, Any],
    verdict: Verdict,
    registry: str | None,
    before: Verdict | None = None,
) -> ScoredTrace:
    """Judge a run again by a verdict that is written, and save what changed.

    Args:
        connection: A write transaction.
        row: The run's whole row, read within it and locked.
        verdict: The verdict.
        registry: URL of the registry to contribute to, if any.
        before: The verdict on the run that counted before. If it counts more, the run stays as
            it is.

    Returns:
        The run as it is now; `previous` is the run as it was, or None if it stays so.

    Raises:
        StoreError: The run cannot be read back.
    """
    run = load_run(row, side_tables.external_of(connection, row["trace_id"]))
    if before is not None and verdict.weight < before.weight:
        return run
    return save_rejudged(connection, row, rejudge(run, verdict), registry)


def save_rejudged(
    connection: sa.Connection, row: dict[str, Any], run: ScoredTrace, registry: str | None
) -> ScoredTrace:
    """Apply the twin rule to a run that was judged again, save what changed, and return it.

    Args:
        connection: A write transaction.
        row: The run's whole row, read within it and locked.
        run: The run, judged again.
        registry: URL of the registry to contribute to, if any.
    """
    run = _decide(connection, row, run)
    trace_id = row["trace_id"]
    run_queries.update(connection, trace_id, _changes(row, run))
    breakdown = {"breakdown": json_text(run.breakdown.to_dict()), "features": _features(run)}
    statement = sa.update(scores).where(scores.c.trace_id == trace_id)
    connection.execute(statement.values(**breakdown))
    if not run.keep_body:
        run_queries.delete_bodies(connection, [trace_id])
    if run.decision != row["decision"] or run.keep_body:
        _update_outbox(connection, row, run, registry)
    return run


def _decide(connection: sa.Connection, row: dict[str, Any], run: ScoredTrace) -> ScoredTrace:
    """Apply the twin rule to a run that was judged again, and return it.

    Update its row in `vectors`, and the rows of the runs that it replaces.
    """
    trace_id = row["trace_id"]
    if not run.keep_body:
        vectors.forget(connection, [trace_id])
        return run
    candidate = candidate_of(connection, trace_id, run)
    vectors.write(connection, [run_row(run, candidate)])
    if row["decision"] == "kept":  # what is kept stays kept, whatever it repeats
        return run
    run = drop_stored_repeats(connection, run, candidate)
    replace_kept(connection, run.replaces, trace_id, is_stated=candidate.is_stated)
    return run


def load_run(row: dict[str, Any], external_traces: Mapping[str, ExternalTrace]) -> ScoredTrace:
    """Return the scored run that a row of the table `runs` holds.

    Args:
        row: The whole row. Without a trace, that has what the columns hold, and no steps.
        external_traces: Where other tracers recorded it.

    Raises:
        StoreError: The body is not a trace, or the breakdown none.
    """
    body = row["trace"]
    return ScoredTrace(
        trace=_trace_without_steps(row) if body is None else trace_of(body, row["trace_id"]),
        breakdown=ScoreBreakdown.from_dict(row["breakdown"]),
        run_id=UUID(row["run_id"]),
        keep_body=body is not None,
        keys=keys_of(row),
        usage=usage_in(row),
        stored_id=row["trace_id"],
        dropped=row["dropped"] or {},
        external_traces=external_traces,
        **{name: row[name] for name in _SAME_IN_BOTH},
    )


def _trace_without_steps(row: dict[str, Any]) -> ReasoningTrace:
    # Built without validation, because a trace has at least one step: this one is never sent.
    return ReasoningTrace.model_construct(
        id=row["trace_id"],
        metadata=Metadata.model_construct(
            created_at=row["created_at"],
            agent_id=row["agent_id"],
            framework=row["framework"],
            task_domain=row["domain"],
            success=row["success"],
            quality_score=row["score"],
            visibility=row["visibility"],
            privacy_level=row["privacy_level"],
        ),
        task=Task.model_construct(objective=row["objective"]),
        steps=[],
        outcome=Outcome.model_construct(result_summary="", confidence=row["confidence"]),
    )


def _changes(row: dict[str, Any], run: ScoredTrace) -> dict[str, Any]:
    """Return the columns of `runs` that a verdict changes, with their new values."""
    changes = outcome_columns(run) | {"has_body": run.keep_body, "threshold": run.threshold}
    if run.decision == "kept":
        return changes | {"body_expires_at": None}
    if row["decision"] == "kept":
        changes["body_expires_at"] = expiry_after(run.keep_days) if run.keep_body else None
    return changes


def _features(run: ScoredTrace) -> Mapping[str, float] | None:
    """Return what a confidence model reads of a run, of which a verdict states the success."""
    trace = run.previous.trace if run.previous is not None else run.trace
    return complete_features(run.features, trace if trace.steps else None)


def _update_outbox(
    connection: sa.Connection, row: dict[str, Any], run: ScoredTrace, registry: str | None
) -> None:
    """Update the outbox to the new decision."""
    trace_id = row["trace_id"]
    if run.decision != "kept":
        ask_withdrawal(connection, trace_id)
    elif may_leave(row["visibility"], row["privacy_level"]):
        body = json_text(run.trace.model_dump(warnings=False))
        if row["decision"] != "kept":
            take_back_withdrawal(connection, trace_id, body)
            if registry is not None:
                add_contributions(connection, [(trace_id, registry, body)])
        elif run.previous is not None and run.trace != run.previous.trace:
            # The registry's copy is outdated although the run still passes: replace it.
            replace_body(connection, trace_id, body)


# ------------------------------------------------------------------ notes


def redact_note(verdict: Verdict) -> Verdict:
    """Return the verdict with a note of at most 4,000 characters and a source that may be written.

    Both are redacted by the settings at the strictest level, whatever run it is for: the source
    leaves with a trace that it confirms, and may be somebody's address.

    Args:
        verdict: The verdict.

    Raises:
        ConfigError: The settings cannot be read, or the redactor that they name cannot be imported.
    """
    note, source = redact_words(verdict.note, verdict.source)
    return replace(verdict, note=note, source=source)


def redact_words(note: str | None, source: str) -> tuple[str | None, str]:
    """Return a person's note and who gave it as they may be written; see `redact_note`.

    Args:
        note: The note; None for none.
        source: Who gave it.

    Raises:
        ConfigError: As for `redact_note`.
    """
    rules = Settings.current().redaction
    redactor = rules.load_redactor()

    def clean(text: str) -> str:
        return str(redact(text, level="aggregated", rules=rules, redactor=redactor).value)

    return None if note is None else clean(note)[:LONGEST_NOTE_CHARS], clean(source)
