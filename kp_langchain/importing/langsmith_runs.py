"""Runs as LangSmith exports them: objects of its API, a line each, in a list or in `{"runs": []}`.

Inputs and outputs may be JSON texts, as in a bulk export.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final
from uuid import UUID

from kp_langchain.gate.run import ExternalTrace
from kp_langchain.importing.langchain_values import set_values
from kp_langchain.importing.recorded_run import (
    RecordedCall,
    RecordedKind,
    RecordedRun,
    Unusable,
    error_in_text,
    in_order,
    list_of,
    mapping_of,
    set_tool_call_ids,
    text_of,
)
from kp_langchain.text import json_or_text

_KINDS: Final[Mapping[str, RecordedKind]] = {
    "llm": "model",
    "chat_model": "model",
    "tool": "tool",
    "retriever": "retriever",
}
_FRACTION = re.compile(r"\.(\d{6})\d+")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_UNITS_NS = (1_000_000_000, 1_000_000, 1_000, 1)
_MAX_NS = 1 << 63


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


@dataclass(slots=True)
class LangSmithRuns:
    """Collects the runs of a file, which may come in any order."""

    _calls: list[RecordedCall] = field(default_factory=list)
    _roots: dict[UUID, tuple[str, str | None, UUID]] = field(default_factory=dict)

    def add(self, value: object, place: str) -> Iterator[Unusable]:
        """Add a run, with the runs in its `child_runs`; yield what cannot be used."""
        waiting: list[tuple[Any, UUID | None]] = [(value, None)]
        while waiting:
            fields, parent_id = waiting.pop()
            call = _call(fields, parent_id)
            if isinstance(call, str):
                yield Unusable(place, call)
                continue
            self._calls.append(call)
            session = text_of(fields.get("session_name")) or None
            trace_id = _uuid(fields.get("trace_id")) or call.id
            self._roots.setdefault(call.id, (place, session, trace_id))
            waiting.extend((child, call.id) for child in list_of(fields.get("child_runs")))

    def conclude(self) -> Iterator[RecordedRun | Unusable]:
        """Yield the collected runs by the time at which they began."""
        groups, cyclic = in_order(self._calls)
        for calls in groups:
            root = calls[0]
            set_tool_call_ids(calls)
            place, session, trace_id = self._roots[root.id]
            external = ExternalTrace(str(trace_id), str(root.id), session)
            yield RecordedRun(
                root.id,
                place,
                calls,
                external_traces={"langsmith": external},
                is_incomplete=root.parent_id is not None,
            )
        for call in cyclic:
            yield Unusable(self._roots[call.id][0], f"run {call.id} is part of itself")


def _call(fields: Any, parent_id: UUID | None) -> RecordedCall | str:
    if not isinstance(fields, dict):
        return f"a run is {type(fields).__name__}, not an object"
    call_id = _uuid(fields.get("id"))
    if call_id is None:
        return f"the id of a run is {_quote(fields.get('id'))}; a UUID is needed"
    started_ns = _time_ns(fields.get("start_time"))
    if started_ns is None:
        return f"run {call_id} has the start_time {_quote(fields.get('start_time'))}; give a time"
    extra = mapping_of(fields.get("extra"))
    error = text_of(fields.get("error"))
    call = RecordedCall(
        kind=_KINDS.get(text_of(fields.get("run_type")), "chain"),
        id=call_id,
        parent_id=_uuid(fields.get("parent_run_id")) or parent_id,
        name=text_of(fields.get("name")),
        started_ns=started_ns,
        ended_ns=_time_ns(fields.get("end_time")),
        error=error_in_text(error) if error else None,
        metadata=mapping_of(fields.get("metadata")) | mapping_of(extra.get("metadata")),
        tags=[tag for tag in list_of(fields.get("tags")) if isinstance(tag, str)],
        tool_call_id=text_of(extra.get("tool_call_id")) or None,
    )
    set_values(call, json_or_text(fields.get("inputs")), json_or_text(fields.get("outputs")))
    return call


def _uuid(value: Any) -> UUID | None:
    try:
        return UUID(text_of(value))
    except ValueError:
        return None


def _time_ns(value: Any) -> int | None:
    """Return a time in nanoseconds since 1970.

    Args:
        value: A text in ISO 8601, in UTC if it names no zone; or a number since 1970, as data
            frames write it: of seconds, milliseconds, microseconds or nanoseconds, by its size.
    """
    if isinstance(value, int | float) and not isinstance(value, bool):
        size = next((size for size in _UNITS_NS if 0 < value * size < _MAX_NS), None)
        return None if size is None else int(value * size)
    if not isinstance(value, str):
        return None
    try:
        time = datetime.fromisoformat(_FRACTION.sub(r".\1", value))
        since = (time if time.tzinfo is not None else time.replace(tzinfo=UTC)) - _EPOCH
    except (ValueError, OverflowError):
        return None
    time_us = (since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds
    return time_us * 1000 if time_us > 0 else None


def _quote(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:60]}..."
