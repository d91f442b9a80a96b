"""The first half of a run that waits for a human, as redacted JSON-like values, and back.

What is kept is the timeline of calls, not the steps: whether an error recovered, and which attempts
are those of one call, is known only when the run has ended.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, cast
from uuid import UUID

from kp_langchain.recording.messages import as_input
from kp_langchain.recording.requested_calls import RequestedCall
from kp_langchain.recording.run_record import Before, Call, RunRecord, Start
from kp_langchain.run_keys import RunKeys
from kp_langchain.verdict import Verdict

if TYPE_CHECKING:
    from kp_langchain.recording.recorder import Recorder
    from kp_langchain.recording.redactor import Redactor
    from kp_langchain.recording.run_record import Mark

# Of this process, or written in a form of its own.
_NOT_COPIED = frozenset({"kind", "key", "started_s", "tool_call_id"})
_FIELDS = {field.name for field in dataclasses.fields(Call)} - _NOT_COPIED


def half_of(
    record: RunRecord,
    redaction: Redactor,
    level: str,
    *,
    domain: str,
    before: Before,
    reported: Verdict | None,
) -> dict[str, Any]:
    """Return what a paused run recorded; every text is redacted.

    Args:
        record: The run, its structures written out.
        redaction: Redacts.
        level: The privacy level of the run's domain.
        domain: The domain that the run's metadata name, redacted; "" if they name none.
        before: What is known of it besides; already fit to be written.
        reported: What was reported of it; redacted.
    """
    calls: dict[Call, int] = {}
    marks = [
        (mark, calls.setdefault(call, len(calls)))
        for mark, call in record.timeline()
        if not call.void  # it is made again when the run goes on
    ]
    keys: dict[object, int] = {}
    half = {
        "run_id": str(record.run_id),
        "name": redaction.text(record.name, level),
        "started_at": record.started_at.isoformat(),
        "domain": domain,
        "langgraph": record.langgraph,
        "objective": redaction.text(record.objective, level),
        "fallback_objective": redaction.text(record.fallback_objective, level),
        "dropped_steps": record.dropped_steps,
        "dropped_texts": record.dropped_texts,
        "requested": _requested(record, redaction, level),
        "paused_calls": [
            [call_id, redaction.text(name, level)]
            for call_id, name in record.requested.paused.items()
            if redaction.text(call_id, level) == call_id
        ],
        "calls": [
            _written(call, keys.setdefault(call.key, len(keys)), redaction, level) for call in calls
        ],
        "marks": marks,
        "reported": reported and reported.to_list(),
        "keys": before.keys and before.keys.to_dict(),
        "task": before.task,
    }
    # Last, when everything has been redacted, or not.
    return half | {"withheld": before.withheld or redaction.failed}


def record_of(half: Mapping[str, Any], recorder: Recorder) -> RunRecord:
    """Return the record of a paused run that `half_of` wrote.

    Raises:
        ValueError, TypeError, KeyError, LookupError: It is none.
    """
    record = RunRecord(recorder, Start(UUID(half["run_id"]), None, half["name"]))
    record.started_at = datetime.fromisoformat(half["started_at"]).astimezone(UTC)
    for name in ("domain", "langgraph", "objective", "fallback_objective"):
        if type(half[name]) is not type(getattr(record, name)):
            raise TypeError(f"{name} is a {type(half[name]).__name__}")
        setattr(record, name, half[name])
    for call_id, name, arguments in half["requested"]:
        record.requested.add(RequestedCall(call_id, name, arguments))
    for call_id, name in half.get("paused_calls", ()):
        record.requested.add_paused(call_id, name)
    calls = [_read(call, record.run_id) for call in half["calls"]]
    for mark, at in half["marks"]:
        record.mark(cast("Mark", mark), calls[at])
    record.dropped_steps += half["dropped_steps"]
    record.dropped_texts = half["dropped_texts"]
    reported, keys = half["reported"], half["keys"]
    record.reported = reported and Verdict.from_list(reported)
    record.before = Before(keys and RunKeys.from_dict(keys), half["task"], half["withheld"])
    return record


def _requested(record: RunRecord, redaction: Redactor, level: str) -> list[list[Any]]:
    limit = record.recorder.bounds.text_chars
    return [
        [
            request.call_id,
            redaction.text(request.name, level),
            redaction.mapping(as_input(request.arguments, limit), level),
        ]
        for request in record.requested
        if redaction.text(request.call_id, level) == request.call_id
    ]


def _written(call: Call, key: int, redaction: Redactor, level: str) -> dict[str, Any]:
    out: dict[str, Any] = {"kind": call.kind, "key": key, "tool_call_id": None}
    for name in _FIELDS:
        value = getattr(call, name)
        if isinstance(value, str):
            out[name] = redaction.text(value, level)
        elif isinstance(value, Mapping):
            out[name] = redaction.mapping(value, level)
        elif value is None or isinstance(value, (bool, int, float)):
            out[name] = value
    call_id = call.tool_call_id
    if call_id is not None and redaction.text(call_id, level) == call_id:
        out["tool_call_id"] = call_id
    return out


def _read(written: Mapping[str, Any], run_id: UUID) -> Call:
    call_id = written["tool_call_id"]
    # The attempts of one call have one key; across the pause only the call's own id tells.
    key = ("tool", call_id) if call_id else ("half", run_id, written["key"])
    fields = {name: value for name, value in written.items() if name in _FIELDS}
    return Call(kind=written["kind"], key=key, tool_call_id=call_id, **fields)
