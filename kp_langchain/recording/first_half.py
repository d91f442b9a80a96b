"""The first half of a run that is paused, as redacted JSON-like values, and back.

The timeline of calls is kept and not the steps: whether an error recovered, and which attempts
belong to one call, is known only when the run has ended.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, cast
from uuid import UUID

from kp_langchain.gate.run import ShownTrace
from kp_langchain.recording.calls import Call, RequestedCall
from kp_langchain.recording.langchain_context import Start
from kp_langchain.recording.run_record import EarlierPart, RunRecord
from kp_langchain.recording.values import as_input
from kp_langchain.run_keys import RunKeys
from kp_langchain.verdict import Verdict

if TYPE_CHECKING:
    from kp_langchain.recording.bounds import RecordOwner
    from kp_langchain.recording.calls import Mark
    from kp_langchain.recording.redactor import Redactor

# Fields of a call that are not stored, or not as they are.
_NOT_STORED = ("kind", "key", "tool_call_id", "started_s", "has_tags", "returns_examples")
_CALL_FIELDS = tuple(one.name for one in fields(Call) if one.name not in _NOT_STORED)
_NAMES = ("name", "mcp_server")


def first_half_body(
    record: RunRecord,
    redaction: Redactor,
    level: str,
    *,
    domain: str,
    earlier_part: EarlierPart,
    verdict: Verdict | None,
) -> dict[str, Any]:
    """Return what a paused run recorded as JSON-like values, with every text redacted.

    Args:
        record: The run, its structures written out as text.
        redaction: Redacts the run.
        level: The privacy level of the run's domain.
        domain: The domain that the run's metadata name, redacted; "" if they name none.
        earlier_part: What else is known of it, fit to be stored.
        verdict: What was said of its outcome while it was under way, redacted.
    """
    body = {
        "run_id": str(record.run_id),
        "name": redaction.name(record.name, level),
        "started_at": record.started_at.isoformat(),
        "domain": domain,
        "is_langgraph": record.is_langgraph,
        "objective": redaction.task(record.objective, level),
        "fallback_objective": redaction.task(record.fallback_objective, level),
        "question": redaction.text(record.human.question, level),
        "dropped_steps": record.timeline.dropped,
        "dropped_texts": record.dropped_texts,
        "requested": _requests_body(record, redaction, level),
        "paused_calls": _paused_calls_body(record, redaction, level),
        **_timeline_body(record, redaction, level),
        "reported": verdict and verdict.to_list(),
        "keys": earlier_part.keys and earlier_part.keys.to_dict(),
        "task": earlier_part.task,
        "shown": [one.to_list() for one in record.shown.values()],
    }
    # Last, because only now everything has been redacted, or has failed to be.
    return body | {"withheld": earlier_part.withheld or redaction.has_failed}


def _requests_body(record: RunRecord, redaction: Redactor, level: str) -> list[list[Any]]:
    limit = record.owner.bounds.text_chars
    numbers = _call_numbers(record)
    return [
        [
            request.call_id,
            redaction.name(request.name, level),
            redaction.mapping(as_input(request.arguments, limit), level),
            # What the last answer asks for may still begin when the run is resumed.
            None if request.model in (None, record.state.last_call) else numbers.get(request.model),
        ]
        for request in record.requested_calls.decisions
        if redaction.text(request.call_id, level) == request.call_id
    ]


def _paused_calls_body(record: RunRecord, redaction: Redactor, level: str) -> list[list[str]]:
    return [
        [call_id, redaction.name(name, level)]
        for call_id, name in record.requested_calls.names_of_paused.items()
        if redaction.text(call_id, level) == call_id
    ]


def _timeline_body(record: RunRecord, redaction: Redactor, level: str) -> dict[str, Any]:
    calls = _call_numbers(record)
    marks = [(mark, calls[call]) for mark, call in record.timeline if call in calls]
    key_numbers: dict[object, int] = {}
    return {
        "calls": [
            _call_body(call, key_numbers.setdefault(call.key, len(key_numbers)), redaction, level)
            for call in calls
        ],
        "marks": marks,
    }


def _call_numbers(record: RunRecord) -> dict[Call, int]:
    """Return the calls of a run that are stored, numbered in order."""
    calls: dict[Call, int] = {}
    for _, call in record.timeline:
        if not call.is_void or call.tool_call_id is not None:  # that is made again, in its place
            calls.setdefault(call, len(calls))
    return calls


def _call_body(call: Call, key_number: int, redaction: Redactor, level: str) -> dict[str, Any]:
    body: dict[str, Any] = {"kind": call.kind, "key": key_number, "tool_call_id": None}
    for name in _CALL_FIELDS:
        value = getattr(call, name)
        if isinstance(value, Mapping):
            value = redaction.mapping(value, level)
        elif isinstance(value, str) and name in _NAMES:
            value = redaction.name(value, level)
        elif isinstance(value, str):
            value = redaction.text(redaction.secrets.clean_answer(value, is_step=True), level)
        body[name] = value
    call_id = call.tool_call_id
    if call_id is not None and redaction.text(call_id, level) == call_id:
        body["tool_call_id"] = call_id
    return body


def first_half_record(body: Mapping[str, Any], owner: RecordOwner) -> RunRecord:
    """Return the record of a paused run from what `first_half_body` returned.

    Args:
        body: The first half, as it was stored.
        owner: The owner of the run that resumes it.

    Raises:
        ValueError, TypeError, LookupError, AttributeError: The body is malformed.
    """
    record = RunRecord(owner, Start(UUID(body["run_id"]), None, body["name"]))
    record.started_at = datetime.fromisoformat(body["started_at"]).astimezone(UTC)
    record.domain, record.is_langgraph = body["domain"], body["is_langgraph"]
    record.objective = body["objective"]
    record.fallback_objective = body["fallback_objective"]
    record.human.question = body["question"]
    calls = [_call(call, record.run_id) for call in body["calls"]]
    for call_id, name, arguments, of_model in body["requested"]:
        model = None if of_model is None else calls[of_model]
        record.requested_calls.add(RequestedCall(call_id, name, arguments, model))
    for call_id, name in body["paused_calls"]:
        record.requested_calls.add_paused(call_id, name)
    for mark, at in body["marks"]:
        record.timeline.add(cast("Mark", mark), calls[at])
    record.timeline.dropped += body["dropped_steps"]
    record.dropped_texts = body["dropped_texts"]
    verdict, keys = body["reported"], body["keys"]
    record.verdict = verdict and Verdict.from_list(verdict)
    record.shown = {one.trace_id: one for one in map(ShownTrace.from_list, body["shown"])}
    record.earlier_part = EarlierPart(
        keys and RunKeys.from_dict(keys), body["task"], body["withheld"]
    )
    return record


def _call(body: Mapping[str, Any], run_id: UUID) -> Call:
    call_id = body["tool_call_id"]
    # All attempts of one call have one key; those after the pause are known by the call's id alone.
    key = ("tool", call_id) if call_id else ("first half", run_id, body["key"])
    stored = {name: body[name] for name in _CALL_FIELDS}
    return Call(kind=body["kind"], key=key, tool_call_id=call_id, **stored)
