"""Writes a verdict on a stored run, and the decision of the gate that follows from it.

The run is loaded, judged again by the gate, and saved; the outbox follows its decision.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, cast
from uuid import UUID

from kp_langchain.calibration.features import complete_features
from kp_langchain.errors import UnknownRunError
from kp_langchain.gate import ScoredTrace, rejudge
from kp_langchain.gate.decision import may_leave
from kp_langchain.gate.twins import OFF
from kp_langchain.run_keys import RunKeys
from kp_langchain.schema import Metadata, Outcome, ReasoningTrace, Task
from kp_langchain.store import sql
from kp_langchain.store.kept_traces import (
    candidate_of,
    entry_row,
    hold_stored_against_twins,
    replace_kept,
)
from kp_langchain.store.rows import (
    columns_of_outcome,
    contribution_of,
    expiry_after,
    json_text,
    trace_key,
)
from kp_langchain.store.stored_run import breakdown_of, trace_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    import sqlalchemy as sa

    from kp_langchain.store.database import Database
    from kp_langchain.verdict import Verdict

_LONGEST_ID_CHARS = 100
_MATCHES_SHOWN = 10


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
        None if another verdict counts. A run that is not judged yet is left out: the verdict is
        written, and counts when it is judged.

    Raises:
        UnknownRunError: There is no such run, or more than one; the message lists them.
        StoreError: The database cannot be read or written.
    """
    with database.writing() as connection:
        names = sql.run_queries.find_names(connection, id_)
        if not names:
            raise unknown_run(id_, str(database.location))
        if len({row["run_id"] for row in names}) > 1:
            raise ambiguous_id(id_, names[:_MATCHES_SHOWN])
        sql.run_queries.lock_domains(connection, {row["domain"] for row in names})
        # Without those that were deleted since.
        trace_ids = sql.run_queries.lock(connection, [row["trace_id"] for row in names])
        if not trace_ids:
            raise unknown_run(id_, str(database.location))
        rows = sql.run_queries.whole_rows(connection, trace_ids, lock=True)
        counting = {id_: sql.verdict_queries.counting(connection, id_) for id_ in trace_ids}
        sql.verdict_queries.add(connection, [(trace_id, verdict) for trace_id in trace_ids])
        return [
            rejudge_stored(connection, row, verdict, registry, counting[row["trace_id"]])
            for row in rows
        ]


def rejudge_stored(
    connection: sa.Connection,
    row: dict[str, Any],
    verdict: Verdict,
    registry: str | None,
    counting: Verdict | None = None,
) -> ScoredTrace:
    """Judge a run again by a verdict that is written, and save what changed.

    Args:
        connection: A write transaction.
        row: The run's whole row, read and locked within it.
        verdict: The verdict.
        registry: URL of the registry to contribute to, if any.
        counting: The verdict on the run that counted before. If it counts more, the run stays as
            it is.

    Returns:
        The run as it is now; `previous` is the run as it was, or None if it stays so.

    Raises:
        StoreError: The stored trace cannot be read.
    """
    run = replace(
        load_run(row),
        external_traces=sql.external_queries.of_trace(connection, row["trace_id"]),
    )
    if counting is not None and verdict.weight < counting.weight:
        return run
    run = _decide(connection, row, rejudge(run, verdict))
    trace_id = row["trace_id"]
    sql.run_queries.update(connection, trace_id, _changes(row, run))
    sql.run_queries.write_breakdown(
        connection, trace_id, json_text(run.breakdown.to_dict()), _features(run)
    )
    if not run.keep_body:
        sql.run_queries.delete_bodies(connection, [trace_id])
    if "kept" in (run.decision, row["decision"]):
        sql.entry_queries.note_change(connection, [trace_id])
    if run.decision != row["decision"] or run.keep_body:
        _update_outbox(connection, row, run, registry)
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
    if row["decision"] == "kept":  # what is kept stays kept, whatever it repeats
        return run
    run = hold_stored_against_twins(connection, run, candidate)
    replace_kept(connection, run.replaces, trace_id, is_stated=candidate.is_stated)
    return run


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
        row: The whole row. Without a trace, that has what the columns hold, and no steps.

    Raises:
        StoreError: The body is not a trace, or the breakdown none.
    """
    body = row["trace"]
    return ScoredTrace(
        trace=_trace_without_steps(row) if body is None else trace_of(body, row["trace_id"]),
        breakdown=breakdown_of(row["breakdown"], row["trace_id"]),
        decision=row["decision"],
        threshold=row["threshold"],
        run_id=_run_id(row["run_id"]),
        keep_body=body is not None,
        keep_days=row["keep_days"],
        features=row["features"] if isinstance(row["features"], dict) else None,
        task=row["task"],
        withheld=row["withheld"],
        keys=keys_of(row),
        stored_id=row["trace_id"],
        gate=row["gate"] or "score",
        twin_similarity=OFF if row["twin_similarity"] is None else row["twin_similarity"],
        twin_of=row["twin_of"],
        similarity_to_twin=row["similarity_to_twin"],
        dropped=row["dropped"] or {},
        is_taken_over=bool(row["is_taken_over"]),
    )


def keys_of(row: Mapping[str, Any]) -> RunKeys:
    """Return the keys that a row of the table `runs` holds."""
    return RunKeys(
        session=row["session"],
        thread=row["thread"],
        user=row["user_hash"],
        namespace=row["namespace"],
        name=row["run_name"],
        tags=tuple(row["tags"] or ()),
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
    """Return the columns of `runs` that a verdict changes, with their new values."""
    changes = columns_of_outcome(run) | {"has_body": run.keep_body}
    if run.decision == "kept":
        return changes | {"body_expires_at": None, "replaced_by": None}
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
        sql.outbox_queries.ask_withdrawal(connection, trace_id, datetime.now(UTC))
    elif may_leave(row["visibility"], row["privacy_level"]):
        body = json_text(run.trace.model_dump(warnings=False))
        if row["decision"] != "kept":
            sql.outbox_queries.take_back_withdrawal(connection, trace_id, body)
            if registry is not None:
                contribution = contribution_of(trace_id, body, registry, datetime.now(UTC))
                sql.outbox_queries.enter(connection, [contribution])
        elif run.previous is not None and run.trace != run.previous.trace:
            # The registry's copy is outdated although the run still passes: replace it.
            sql.outbox_queries.renew(connection, trace_id, body)


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
