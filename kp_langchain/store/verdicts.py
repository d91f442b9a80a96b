"""Verdicts: what somebody says of a run, and what that changes. Loads SQLAlchemy when one is given.

A verdict scores the run again: outcome confidence and the rules anew, everything else as it was.
What passes now is contributed now, and what does not is taken back.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from kp_langchain._logging import log_event
from kp_langchain.errors import UnknownRunError
from kp_langchain.gate import Decision, decide, decision_word, may_leave
from kp_langchain.scoring.breakdown import ScoreBreakdown
from kp_langchain.scoring.dimensions import TraceShape
from kp_langchain.scoring.rescoring import with_outcome
from kp_langchain.store.rows import clean_text, contribution_of, json_text
from kp_langchain.store.stored_run import trace_of
from kp_langchain.verdict import CERTAIN, LONGEST_NOTE_CHARS, Verdict

if TYPE_CHECKING:
    import sqlalchemy as sa

_LONGEST_ID_CHARS = 100


@dataclass(frozen=True, slots=True)
class Rescored:
    """What a verdict changed of one run.

    Attributes:
        trace_id: The trace's id, as `StoredRun` has it.
        run_id: LangChain's id of the root run.
        domain: The run's domain.
        threshold: What its score is held against, 0 to 1.
        kept: Whether the trace itself is in the store; one that is not cannot be contributed.
        success_before: Whether it counted as a success before the verdict.
        success: Whether it counts as a success now.
        confidence_before: The outcome's confidence before the verdict, 0 to 1.
        confidence: The outcome's confidence now, 0 to 1.
        score_before: The score before the verdict, 0 to 1.
        score: The score now, 0 to 1.
        decision_before: The decision before the verdict, `contributed` or `below_threshold`.
        decision: The decision now, one of the same two.
    """

    trace_id: str
    run_id: str
    domain: str
    threshold: float
    kept: bool
    success_before: bool
    success: bool
    confidence_before: float
    confidence: float
    score_before: float
    score: float
    decision_before: Decision
    decision: Decision

    @property
    def changed(self) -> bool:
        """Whether anything is other than before."""
        return any(
            getattr(self, name) != getattr(self, f"{name}_before")
            for name in ("success", "confidence", "score", "decision")
        )


def rescore(
    connection: sa.Connection, row: dict[str, Any], verdict: Verdict, registry: str | None
) -> Rescored:
    """Write a verdict on a run and whatever follows from it.

    Args:
        connection: A write transaction.
        row: The run, read within it.
        verdict: The verdict; its note is redacted already. One that is older than another that is
            there is written down, and changes nothing.
        registry: URL of the registry to contribute to, if any.
    """
    from kp_langchain.store import run_queries, verdict_queries

    newest = verdict_queries.newest(connection, row["trace_id"])
    verdict_queries.add(connection, [(row["trace_id"], verdict)])
    after = row
    if newest is None or newest["at"] <= verdict.at:
        after = _judged(row, verdict)
        run_queries.write(connection, [after])
        if after["decision"] != row["decision"] or after["body"] is not None:
            _settle(connection, row, after, registry)
    return Rescored(
        trace_id=row["trace_id"],
        run_id=row["run_id"],
        domain=row["domain"],
        threshold=row["threshold"],
        kept=after["body"] is not None,
        success_before=row["success"],
        success=after["success"],
        confidence_before=row["confidence"],
        confidence=after["confidence"],
        score_before=row["score"],
        score=after["score"],
        decision_before=row["decision"],
        decision=after["decision"],
    )


def _judged(row: dict[str, Any], verdict: Verdict) -> dict[str, Any]:
    """The row of a run as it is after a verdict."""
    success = row["success"] if verdict.success is None else verdict.success
    confidence = CERTAIN[success] if verdict.confidence is None else float(verdict.confidence)
    breakdown = with_outcome(
        ScoreBreakdown.from_dict(row["breakdown"]),
        success=success,
        confidence=confidence,
        source=verdict.source,
        shape=_shape(row),
    )
    passed = (
        row["body"] is not None
        and row["withheld"] is None
        and decide(breakdown.total, row["threshold"]) == "contributed"
    )
    after = row | {
        "success": success,
        "confidence": confidence,
        "confidence_source": clean_text(verdict.source),
        "score": breakdown.total,
        "breakdown": json_text(breakdown.to_dict()),
        "decision": "contributed" if passed else "below_threshold",
        "body": _judged_body(row, success, confidence, breakdown.total, verdict),
    }
    if passed:
        after["body_expires_at"] = None
    elif row["decision"] == "contributed" and row["keep_days"] is not None:
        keep = timedelta(days=row["keep_days"])
        after["body_expires_at"] = datetime.now(UTC) + keep
        after["body"] = after["body"] if keep else None
    return after


def _judged_body(
    row: dict[str, Any], success: bool, confidence: float, score: float, verdict: Verdict
) -> Any:
    if row["body"] is None:
        return None
    trace = trace_of(row["body"], row["trace_id"])
    metadata = trace.metadata
    metadata.success = success
    metadata.quality_score = score
    confirmed = [*(metadata.validated_by or []), verdict.source]
    metadata.validated_by = list(dict.fromkeys(confirmed))
    trace.outcome.confidence = confidence
    return json_text(trace.model_dump(warnings=False))


def _shape(row: dict[str, Any]) -> TraceShape:
    if row["features"] is not None:
        return TraceShape.from_counts(row["features"])
    if row["body"] is not None:
        return TraceShape.of(trace_of(row["body"], row["trace_id"]))
    # Of a run that an earlier version stored without its body, the rules that applied tell enough.
    fired = {rule["name"] for rule in row["breakdown"]["rules"]}
    return TraceShape(
        steps=row["n_steps"],
        step_types=1,
        thoughts=int("single_thought" in fired),
        error_recoveries=3 if "recovered_errors" in fired else 0,
        distinct_tools=1 if "single_tool" in fired else 2,
    )


def _settle(
    connection: sa.Connection, before: dict[str, Any], after: dict[str, Any], registry: str | None
) -> None:
    """Have the outbox agree with a run's decision."""
    from kp_langchain.store import outbox_queries

    trace_id = after["trace_id"]
    if after["decision"] == "below_threshold":
        outbox_queries.ask_withdrawal(connection, trace_id, datetime.now(UTC))
    elif may_leave(after["visibility"], after["privacy_level"]):
        if before["decision"] == "below_threshold":
            outbox_queries.take_back_withdrawal(connection, trace_id, after["body"])
            if registry is not None:
                now = datetime.now(UTC)
                outbox_queries.enter(connection, [contribution_of(after, registry, now)])
        elif json.loads(after["body"]) != before["body"]:
            # What the registry has of it no longer holds, also where the run still passes.
            outbox_queries.renew(connection, trace_id, after["body"])


def log_rescored(changes: list[Rescored], verdict: Verdict, *, has_registry: bool) -> None:
    """Write one INFO record for each run of which a verdict changed anything."""
    for change in changes:
        if not change.changed:
            continue
        log_event(
            "kp.trace_rescored %s %s -> %s, score %.3f -> %.3f (threshold %.2f; %s) | %s",
            change.domain,
            decision_word(change.decision_before, has_registry=has_registry),
            decision_word(change.decision, has_registry=has_registry),
            change.score_before,
            change.score,
            change.threshold,
            verdict.source,
            change.trace_id,
            fields=asdict(change) | {"event": "kp.trace_rescored", "source": verdict.source},
        )


def redacted(verdict: Verdict, privacy_level: str) -> Verdict:
    """Return the verdict without what may not be written of its note."""
    if verdict.note is None:
        return verdict
    from kp_langchain.config import Settings
    from kp_langchain.redaction import redact

    rules = Settings.current().redaction
    note = redact(clean_text(verdict.note), level=privacy_level, rules=rules).value
    return replace(verdict, note=str(note)[:LONGEST_NOTE_CHARS])


def unknown(id_: str, location: str) -> UnknownRunError:
    """Return the error for an id that no run has."""
    return UnknownRunError(
        f"no run {id_[:_LONGEST_ID_CHARS]!r} in {location}; "
        "list them: kp-langchain review, or flush the handler first"
    )
