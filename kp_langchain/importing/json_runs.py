"""Runs in JSON that is no OTLP: runs of LangSmith, and conversations of one line each.

LangSmith's are objects of its API, one a line, in a list or in `{"runs": []}`. Their inputs and
outputs may be JSON texts, as in a bulk export. A conversation is `{"messages": [...]}`, or the list
alone.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from hashlib import sha256
from typing import Any
from uuid import UUID

from langchain_core.messages import AIMessage

from kp_langchain.gate.run import ExternalTrace
from kp_langchain.importing.langchain_values import restore, set_values
from kp_langchain.importing.recorded_run import (
    ModelAnswer,
    RecordedCall,
    RecordedRun,
    Unusable,
    error_in_text,
    id_from,
    kind_of,
    list_of,
    mapping_of,
    text_of,
    uuid_of,
)
from kp_langchain.recording.from_messages import read_messages
from kp_langchain.recording.outcome import read_verdict
from kp_langchain.run_keys import NAMESPACE_NAME, id_text, namespace_text
from kp_langchain.text import json_or_text

# ------------------------------------------------------------------ LangSmith

_FRACTION = re.compile(r"\.(\d{6})\d+")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MAX_MS = (1 << 63) // 1_000_000


def is_langsmith_run(value: object) -> bool:
    """Return whether a JSON value looks like a run of LangSmith's."""
    return isinstance(value, dict) and "run_type" in value and "id" in value


def runs_of_value(value: object) -> list[Any] | None:
    """Return the runs that a document holds; None if it is no export of LangSmith's."""
    if isinstance(value, dict) and isinstance(value.get("runs"), list) and "run_type" not in value:
        value = value["runs"]
    if isinstance(value, list) and value and all(isinstance(one, dict) for one in value):
        return value if any(map(is_langsmith_run, value)) else None
    return [value] if is_langsmith_run(value) else None


def calls_of_run(value: object, place: str) -> Iterator[RecordedCall | Unusable]:
    """Yield the call that a run is, and those in its `child_runs`; or why one cannot be used."""
    waiting: list[tuple[Any, UUID | None]] = [(value, None)]
    while waiting:
        fields, parent_id = waiting.pop()
        call = _call(fields, parent_id, place)
        if isinstance(call, str):
            yield Unusable(place, call)
        else:
            yield call
            waiting.extend((child, call.id) for child in list_of(fields.get("child_runs")))


def _call(fields: Any, parent_id: UUID | None, place: str) -> RecordedCall | str:
    if not isinstance(fields, dict):
        return f"a run is {type(fields).__name__}, not an object"
    call_id = uuid_of(fields.get("id"))
    if call_id is None:
        return f"the id of a run is {_quote(fields.get('id'))}; a UUID is needed"
    started_ns = _time_ns(fields.get("start_time"))
    if started_ns is None:
        return f"run {call_id} has the start_time {_quote(fields.get('start_time'))}; give a time"
    extra = mapping_of(fields.get("extra"))
    error = text_of(fields.get("error"))
    trace_id = uuid_of(fields.get("trace_id")) or call_id
    session = text_of(fields.get("session_name")) or None
    call = RecordedCall(
        kind=kind_of(fields.get("run_type")),
        id=call_id,
        parent_id=uuid_of(fields.get("parent_run_id")) or parent_id,
        name=text_of(fields.get("name")),
        started_ns=started_ns,
        ended_ns=_time_ns(fields.get("end_time")),
        place=place,
        external_traces={"langsmith": ExternalTrace(str(trace_id), str(call_id), session)},
        error=error_in_text(error) if error else None,
        metadata=mapping_of(fields.get("metadata")) | mapping_of(extra.get("metadata")),
        tags=[tag for tag in list_of(fields.get("tags")) if isinstance(tag, str)],
        tool_call_id=text_of(extra.get("tool_call_id")) or None,
        tools=list_of(mapping_of(extra.get("invocation_params")).get("tools")),
    )
    set_values(call, json_or_text(fields.get("inputs")), json_or_text(fields.get("outputs")))
    if isinstance(call.output, ModelAnswer) and "usage_metadata" in call.metadata:
        usage = {"token_usage": call.metadata["usage_metadata"]}
        call.output = replace(call.output, details={**usage, **call.output.details})
    return call


def _time_ns(value: Any) -> int | None:
    """Return a time in nanoseconds since 1970.

    Args:
        value: A text in ISO 8601, in UTC if it names no zone; or milliseconds since 1970, as pandas
            writes it.
    """
    if isinstance(value, int | float) and not isinstance(value, bool):
        return int(value * 1_000_000) if 0 < value < _MAX_MS else None
    try:
        time = datetime.fromisoformat(_FRACTION.sub(r".\1", text_of(value)))
        since = (time if time.tzinfo is not None else time.replace(tzinfo=UTC)) - _EPOCH
    except (ValueError, OverflowError):
        return None
    time_us = (since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds
    return time_us * 1000 if time_us > 0 else None


def _quote(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:60]}..."


# ------------------------------------------------------------------ conversations

_IDS = ("run_id", "id", "trace_id")
_SOURCE = "import"


def is_conversation(value: object) -> bool:
    """Return whether a JSON value looks like a line of messages."""
    if isinstance(value, dict):
        return isinstance(value.get("messages"), list) and "run_type" not in value
    return isinstance(value, list) and bool(value) and all(map(_is_message, value))


def _is_message(value: object) -> bool:
    if isinstance(value, list):
        return len(value) == 2 and all(isinstance(part, str) for part in value)
    return isinstance(value, dict) and bool({"role", "type", "lc"} & set(value))


def run_of_conversation(value: Any, place: str) -> RecordedRun:
    """Return the run that a line of messages describes.

    Args:
        value: What the line holds.
        place: Where it stands.

    Raises:
        ValueError: The line describes no run; the message says why.
    """
    fields = value if isinstance(value, dict) else {"messages": value}
    messages = read_messages(restore(fields["messages"]))
    if not any(isinstance(message, AIMessage) for message in messages):
        raise ValueError(
            f"{len(messages)} messages hold no model answer and no tool call: nothing to trace"
        )
    metadata = _metadata(fields)
    return RecordedRun(
        run_id=_run_id(fields, namespace_text(metadata)),
        place=place,
        messages=messages,
        metadata=metadata,
        tags=list_of(metadata.get("tags")),
        name=text_of(metadata.get("name")),
        domain=_text(fields, "domain") or _text(fields, "kp_domain"),
        objective=_text(fields, "objective"),
        verdict=read_verdict(
            {name: fields.get(name) for name in ("success", "confidence")}, _SOURCE
        ),
    )


def _text(fields: dict[str, Any], name: str) -> str:
    value = fields.get(name)
    if value is None or isinstance(value, str):
        return (value or "").strip()
    raise ValueError(f"{name} is of type {type(value).__name__}; give a text")


def _metadata(fields: dict[str, Any]) -> dict[str, Any]:
    """Return the run's metadata: those in `metadata`, and the other fields of the line."""
    inner = mapping_of(fields.get("metadata"))
    inner = {name: value for name, value in inner.items() if value is not None}
    outer, name = fields.get(NAMESPACE_NAME), NAMESPACE_NAME
    if outer is not None and name in inner and id_text(inner[name]) != id_text(outer):
        raise ValueError(f"{name} differs from the one in metadata")
    return {name: fields[name] for name in fields if name not in ("messages", "metadata")} | inner


def _run_id(fields: dict[str, Any], namespace: str | None) -> UUID:
    # The same id in two namespaces is that of two runs, unless it is a UUID.
    scope = "messages:" if namespace is None else f"messages:{json.dumps(namespace)}:"
    for value in map(fields.get, _IDS):
        if uuid := uuid_of(value):
            return uuid
        if isinstance(value, int) or text_of(value).strip():
            return id_from(f"{scope}{json.dumps(value)}")
    content = json.dumps(fields, sort_keys=True)
    return id_from(f"line:{sha256(content.encode()).hexdigest()}")
