"""Writes a verdict on a stored run, and the decision of the gate that follows from it.

The run is loaded, judged again by the gate, and saved; the outbox follows its decision.
"""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, cast
from uuid import UUID

from kp_langchain.errors import StoreError, UnknownRunError
from kp_langchain.gate import ScoredTrace, rejudge
from kp_langchain.gate.decision import may_leave
from kp_langchain.gate.twins import OFF
from kp_langchain.run_keys import RunKeys
from kp_langchain.schema import Metadata, Outcome, ReasoningTrace, Task
from kp_langchain.scoring.breakdown import ScoreBreakdown
from kp_langchain.store import sql
from kp_langchain.store.kept_traces import (
    candidate_of,
    entry_row,
    hold_stored_against_twins,
    replace_kept,
)
from kp_langchain.store.rows import (
    clean_text,
    contribution_of,
    expiry_after,
    json_text,
    trace_key,
)
from kp_langchain.store.stored_run import trace_of
from kp_langchain.store.summaries import changed_by_verdict, summary_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    import sqlalchemy as sa

    from kp_langchain.store.database import Database
    from kp_langchain.verdict import Verdict

_LONGEST_ID_CHARS = 100
_SUMMARIES_AT_ONCE = 200


def judge_stored(
    database: Database, id_: str, verdict: Verdict, *, registry: str | None = None
) -> list[ScoredTrace]:
    """Write a verdict, and what the gate decides on its runs. Redact and log nothing.

    Args:
        database: The database with the runs.
        id_: A trace id, a run id, or the first characters of either.
        verdict: The verdict; its note is redacted already.
        registry: URL of the registry to contribute to, if any.

    Returns:
        For each trace that the id means, the run as it is now; `previous` is the run as it was, or
        None if another verdict counts.

    Raises:
        UnknownRunError: There is no such run, or more than one; the message lists them.
        StoreError: The database cannot be read or written.
    """
    with database.writing() as connection:
        rows = sql.run_queries.find_to_judge(connection, id_)
        if not rows:
            raise unknown_run(id_, str(database.location))
        if len({row["run_id"] for row in rows}) > 1:
            raise ambiguous_id(id_, rows)
        return [write_verdict(connection, row, verdict, registry) for row in rows]


def write_verdict(
    connection: sa.Connection, row: dict[str, Any], verdict: Verdict, registry: str | None
) -> ScoredTrace:
    """Write a verdict on a run, judge the run again, and save what changed.

    Args:
        connection: A write transaction.
        row: The run's row, read and locked within it.
        verdict: The verdict; its note is redacted already. If another one on the run counts more,
            it is written, and the run stays as it is.
        registry: URL of the registry to contribute to, if any.

    Returns:
        The run as it is now; `previous` is the run as it was, or None if it stays so.

    Raises:
        StoreError: The stored trace cannot be read.
    """
    counting = sql.verdict_queries.counting(connection, row["trace_id"])
    sql.verdict_queries.add(connection, [(row["trace_id"], verdict)])
    run = replace(
        load_run(row),
        external_traces=sql.external_queries.of_trace(connection, row["trace_id"]),
    )
    if counting is not None and verdict.weight < counting.weight:
        return run
    run = _decide(connection, row, rejudge(run, verdict))
    changes = _changes(row, run)
    sql.run_queries.update(connection, row["trace_id"], changes)
    summary = changed_by_verdict(row | changes, run.breakdown)
    sql.summary_queries.update(connection, row["trace_id"], summary)
    if "contributed" in (run.decision, row["decision"]):
        sql.entry_queries.note_change(connection, row["domain"], [row["trace_id"]])
    if run.decision != row["decision"] or run.keep_body:
        _update_outbox(connection, row, row | changes, registry)
    return run


def _decide(connection: sa.Connection, row: dict[str, Any], run: ScoredTrace) -> ScoredTrace:
    """Return a run that was judged again as it is decided on beside those that it repeats.

    Their rows, and what others are compared with of its own, are brought up to date.
    """
    trace_id = row["trace_id"]
    if not run.keep_body:
        sql.entry_queries.remove(connection, [trace_id])
        return run
    candidate = candidate_of(connection, trace_id, run)
    sql.entry_queries.write(connection, [entry_row(candidate)])
    if row["decision"] == "contributed":  # what is kept stays kept, whatever it repeats
        return run
    run = hold_stored_against_twins(connection, run, candidate)
    replace_kept(connection, run.replaces, trace_id, is_stated=candidate.is_stated)
    return run


def complete_summaries(database: Database) -> int:
    """Write the summaries of runs that a process of an earlier version wrote; return their number.

    Such a process may have had the database open while it was upgraded.

    Raises:
        StoreError: The database cannot be read or written.
    """
    with database.reading() as connection:
        if not sql.summary_queries.runs_without(connection, 1):
            return 0
    number = 0
    while True:
        with database.writing() as connection:
            rows = sql.summary_queries.runs_without(connection, _SUMMARIES_AT_ONCE)
            if not rows:
                return number
            sql.summary_queries.write(connection, [_summary_of_row(row) for row in rows])
        number += len(rows)


def _summary_of_row(row: dict[str, Any]) -> dict[str, Any]:
    try:
        run = load_run(row)
    except StoreError:  # its body was changed outside this package
        run, row = load_run(row | {"body": None}), row | {"body": None}
    return summary_of(run, row | {"body": row["body"] and json_text(row["body"])})


def stored_as_scored(database: Database, trace_id: str) -> ScoredTrace | None:
    """Return a run, with where other tracers recorded it; None if there is no such run.

    Raises:
        StoreError: The database or the run's body cannot be read.
    """
    with database.reading() as connection:
        row = sql.run_queries.whole_row(connection, trace_key(trace_id))
        if row is None:
            return None
        external_traces = sql.external_queries.of_trace(connection, row["trace_id"])
    return replace(load_run(row), external_traces=external_traces)


def load_run(row: dict[str, Any]) -> ScoredTrace:
    """Return the scored run that a row of the table `runs` holds.

    Args:
        row: The whole row. Without a body, the trace has what the columns hold, and no steps.

    Raises:
        StoreError: The body is not a trace.
    """
    body = row["body"]
    return ScoredTrace(
        trace=_trace_without_steps(row) if body is None else trace_of(body, row["trace_id"]),
        breakdown=ScoreBreakdown.from_dict(row["breakdown"]),
        decision=row["decision"],
        threshold=row["threshold"],
        run_id=_run_id(row["run_id"]),
        keep_body=body is not None,
        keep_days=row["keep_days"],
        features=row["features"],
        task=row["task"],
        withheld=row["withheld"],
        keys=RunKeys(
            session=row["session"],
            thread=row["thread"],
            user=row["user_hash"],
            namespace=row["namespace"],
            name=row["run_name"],
            tags=tuple(row["tags"] or ()),
        ),
        stored_id=row["trace_id"],
        gate=row["gate"] or "score",
        twin_similarity=OFF if row["twin_similarity"] is None else row["twin_similarity"],
        twin_of=row["twin_of"],
        similarity_to_twin=row["similarity_to_twin"],
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


def _run_id(text: str) -> UUID:
    try:
        return UUID(text)
    except ValueError:  # whoever called `add` gave an id of another form
        return cast("UUID", text)


def _changes(row: dict[str, Any], run: ScoredTrace) -> dict[str, Any]:
    """Return the columns that a verdict changes, with their new values."""
    changes: dict[str, Any] = {
        "success": run.trace.metadata.success,
        "confidence": run.trace.outcome.confidence,
        "confidence_source": clean_text(run.breakdown.confidence_source),
        "score": run.breakdown.total,
        "worth": run.worth,
        "breakdown": json_text(run.breakdown.to_dict()),
        "decision": run.decision,
        "twin_of": run.twin_of,
        "similarity_to_twin": run.similarity_to_twin,
        "body": json_text(run.trace.model_dump(warnings=False)) if run.keep_body else None,
    }
    if run.decision == "contributed":
        changes |= {"body_expires_at": None, "replaced_by": None}
    elif row["decision"] == "contributed":
        changes["body_expires_at"] = expiry_after(run.keep_days)
    return changes


def _update_outbox(
    connection: sa.Connection, before: dict[str, Any], after: dict[str, Any], registry: str | None
) -> None:
    """Update the outbox to the new decision."""
    trace_id = after["trace_id"]
    if after["decision"] == "below_threshold":
        sql.outbox_queries.ask_withdrawal(connection, trace_id, datetime.now(UTC))
    elif may_leave(after["visibility"], after["privacy_level"]):
        if before["decision"] == "below_threshold":
            sql.outbox_queries.take_back_withdrawal(connection, trace_id, after["body"])
            if registry is not None:
                now = datetime.now(UTC)
                sql.outbox_queries.enter(connection, [contribution_of(after, registry, now)])
        elif json.loads(after["body"]) != before["body"]:
            # The registry's copy is outdated although the run still passes: replace it.
            sql.outbox_queries.renew(connection, trace_id, after["body"])


def unknown_run(id_: str, location: str) -> UnknownRunError:
    """Return the error for an id that no run has."""
    return UnknownRunError(
        f"no run {id_[:_LONGEST_ID_CHARS]!r} in {location}; "
        "list them: kp-langchain review, or flush the handler first"
    )


def ambiguous_id(id_: str, matches: Sequence[dict[str, Any]]) -> UnknownRunError:
    """Return the error for an id that several runs have, or that begins the ids of several."""
    lines = "".join(
        f"\n  {run['trace_id']}  {run['created_at']:%Y-%m-%d %H:%M} UTC  {run['domain']}"
        for run in matches
    )
    if len({run["run_id"] for run in matches}) == 1:
        return UnknownRunError(f"{id_!r} is a run with several traces; give a trace id:{lines}")
    return UnknownRunError(f"{id_!r} may mean several runs; give more characters of the id:{lines}")
