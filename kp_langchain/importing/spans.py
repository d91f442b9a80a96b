"""From spans in OTLP JSON to runs, whatever convention their attributes follow.

OTLP JSON is what the OpenTelemetry Collector's file exporter writes: a document, or one a line.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final
from uuid import UUID

from kp_langchain.gate.run import ExternalTrace
from kp_langchain.importing.recorded_run import (
    ModelAnswer,
    RecordedCall,
    RecordedError,
    RecordedRun,
    Unusable,
    error_in_text,
    error_of,
    id_from,
    list_of,
    mapping_of,
    runs_of_calls,
    text_of,
)

_TRACE_ID, _SPAN_ID = re.compile(r"[0-9a-f]{32}"), re.compile(r"[0-9a-f]{16}")
_MAX_DEPTH = 30
_MAX_NS = 1 << 63
_ASSOCIATION = "traceloop.association.properties."
_KEY_NAMES: Final = {
    "gen_ai.conversation.id": "conversation_id",
    "session.id": "session_id",
    "enduser.id": "user_id",
    "user.id": "user_id",
}
_NODE, _EXECUTION = "langgraph_node", "langgraph_checkpoint_ns"


# ------------------------------------------------------------------ spans of a document


@dataclass(frozen=True, slots=True)
class Span:
    """A span of OpenTelemetry.

    Attributes:
        trace_id: 32 hexadecimal digits.
        span_id: 16 hexadecimal digits.
        parent_id: The span that it is part of; "" for none.
        name: Its name.
        place: Where it was read, for messages.
        start_ns: When it began, in nanoseconds since 1970.
        end_ns: When it ended; None if that was not recorded.
        attributes: Its attributes as plain values.
        exception: The attributes of the event that records an exception; empty if none does.
        has_failed: Whether its status is an error.
        status_message: What its status says of the error.
    """

    trace_id: str
    span_id: str
    parent_id: str
    name: str
    place: str
    start_ns: int
    end_ns: int | None
    attributes: Mapping[str, Any]
    exception: Mapping[str, Any]
    has_failed: bool
    status_message: str

    @property
    def key(self) -> _Key:
        """What it is known by."""
        return self.trace_id, self.span_id

    @property
    def parent_key(self) -> _Key:
        """What the span around it is known by."""
        return self.trace_id, self.parent_id

    @property
    def call_id(self) -> UUID:
        """The id of the call that it stands for."""
        return id_from(f"span:{self.trace_id}:{self.span_id}")

    def text(self, *names: str) -> str:
        """Return the first of some attributes that is a text and not empty; "" if none is."""
        return next(filter(None, (text_of(self.attributes.get(name)) for name in names)), "")

    def error(self, *, has_output: bool) -> RecordedError | None:
        """Return why it failed; None if it did not.

        Args:
            has_output: Whether it says what was returned: LangGraph's exceptions for control flow
                are recorded in spans that did not fail.
        """
        if self.exception and (self.has_failed or not has_output):
            kind, message = (
                text_of(self.exception.get(f"exception.{name}")) for name in ("type", "message")
            )
            return error_of(kind, message)
        if not self.has_failed:
            return None
        kind = self.text("error.type")
        return error_of(kind, self.status_message) if kind else error_in_text(self.status_message)


_Key = tuple[str, str]  # a trace and a span in it


def is_otlp(document: object) -> bool:
    """Return whether a JSON value holds spans in OTLP's form."""
    return isinstance(document, dict) and "resourceSpans" in document


def _spans_in(document: Mapping[str, Any], place: str) -> Iterator[Span | Unusable]:
    """Yield the spans of an OTLP document; for one that cannot be used, why."""
    for resource in _objects(document, "resourceSpans"):
        for scope in _objects(resource, "scopeSpans"):
            for fields in _objects(scope, "spans"):
                span = _span(fields, place)
                yield Unusable(place, span) if isinstance(span, str) else span


def _span(fields: Mapping[str, Any], place: str) -> Span | str:
    trace_id, span_id = _id(fields, "traceId", _TRACE_ID), _id(fields, "spanId", _SPAN_ID)
    if not trace_id or not span_id:
        return "a span without a traceId of 32 or a spanId of 16 hexadecimal digits"
    start_ns = _time(fields.get("startTimeUnixNano"))
    if start_ns is None:
        return f"span {span_id} has no startTimeUnixNano"
    status = mapping_of(fields.get("status"))
    exceptions = (
        _pairs(event, "attributes")
        for event in _objects(fields, "events")
        if event.get("name") == "exception"
    )
    return Span(
        trace_id=trace_id,
        span_id=span_id,
        parent_id=_id(fields, "parentSpanId", _SPAN_ID),
        name=text_of(fields.get("name")),
        place=place,
        start_ns=start_ns,
        end_ns=_time(fields.get("endTimeUnixNano")),
        attributes=_pairs(fields, "attributes"),
        exception=next(exceptions, {}),
        has_failed=status.get("code") in (2, "2", "STATUS_CODE_ERROR"),
        status_message=text_of(status.get("message")),
    )


def _pairs(holder: Mapping[str, Any], name: str, depth: int = 0) -> dict[str, Any]:
    """Return the plain values of a list of keys and values, as attributes are."""
    return {
        pair["key"]: _value(pair.get("value"), depth)
        for pair in _objects(holder, name)
        if isinstance(pair.get("key"), str)
    }


def _value(value: Any, depth: int) -> Any:
    """Return the plain value of OTLP's `AnyValue`."""
    if not isinstance(value, dict) or not value or depth >= _MAX_DEPTH:
        return None
    kind, content = next(iter(value.items()))
    if kind == "intValue":
        return _integer(content)
    if kind == "arrayValue" and isinstance(content, dict):
        return [_value(one, depth + 1) for one in list_of(content.get("values"))]
    if kind == "kvlistValue" and isinstance(content, dict):
        return _pairs(content, "values", depth + 1)
    return content if isinstance(content, str | bool | int | float) else None


def _integer(value: Any) -> int | None:
    try:
        return int(value) if isinstance(value, str | int | float) else None
    except (ValueError, OverflowError):
        return None


def _time(value: Any) -> int | None:
    """Return a time in nanoseconds; None for 0, which stands for none."""
    time_ns = _integer(value)
    return time_ns if time_ns is not None and 0 < time_ns < _MAX_NS else None


def _id(span: Mapping[str, Any], name: str, form: re.Pattern[str]) -> str:
    """Return an id in hexadecimal digits; "" if it is none, or all zeros."""
    text = text_of(span.get(name)).lower()
    return text if form.fullmatch(text) and text.strip("0") else ""


def _objects(holder: Mapping[str, Any], name: str) -> Iterator[dict[str, Any]]:
    return (one for one in list_of(holder.get(name)) if isinstance(one, dict))


# ------------------------------------------------------------------ runs of spans


@dataclass(frozen=True, slots=True)
class Convention:
    """How the attributes of spans say what an agent did.

    Attributes:
        tool: The name under which external traces of it are kept.
        markers: The attributes by which a span describes a part of an agent's run.
        set_call: Sets what a span says of a call, given the call without it.
        run_id_of: The run id that a root span names; None if it names none.
    """

    tool: str
    markers: tuple[str, ...]
    set_call: Callable[[Span, RecordedCall], None]
    run_id_of: Callable[[Span], UUID | None] = lambda _: None


@dataclass(slots=True)
class SpanRuns:
    """Collects the spans of some files, which may come in any order and in several batches.

    Attributes:
        conventions: What their attributes may mean; the first that describes a span counts.
    """

    conventions: tuple[Convention, ...]
    _spans: dict[_Key, Span] = field(default_factory=dict)

    def add(self, value: Mapping[str, Any], place: str) -> Iterator[Unusable]:
        """Add the spans of a document; yield those that cannot be used."""
        for span in _spans_in(value, place):
            if isinstance(span, Unusable):
                yield span
                continue
            earlier = self._spans.get(span.key)
            if earlier is None or (earlier.end_ns is None and span.end_ns is not None):
                self._spans[span.key] = span

    def conclude(self) -> Iterator[RecordedRun | Unusable]:
        """Yield the runs by the time at which they began."""
        calls: list[RecordedCall] = []
        run_ids: dict[UUID, UUID] = {}  # by the ids of the calls that stand for their roots
        for span in self._spans.values():
            if (convention := self._convention(span)) is not None:
                call = self._call(span, convention)
                calls.append(call)
                if call.parent_id is None and (run_id := convention.run_id_of(span)) is not None:
                    run_ids[call.id] = run_id
        _join_lost(calls)
        for run in runs_of_calls(calls):
            if isinstance(run, RecordedRun):
                _set_requested_inputs(run.calls)
                yield _with_run_id(run, run_ids.get(run.run_id, run.run_id))
            else:
                yield run

    def _convention(self, span: Span) -> Convention | None:
        return next((one for one in self.conventions if span.text(*one.markers)), None)

    def _call(self, span: Span, convention: Convention) -> RecordedCall:
        parent = self._nearest_call(span.parent_key)
        call = RecordedCall(
            kind="chain",
            id=span.call_id,
            parent_id=None if parent is None else parent.call_id,
            name=span.name,
            started_ns=span.start_ns,
            ended_ns=span.end_ns,
            place=span.place,
            external_traces={convention.tool: ExternalTrace(span.trace_id, span.span_id)},
        )
        convention.set_call(span, call)
        call.metadata = {**_run_keys(span, call.metadata), **call.metadata}
        return call

    def _nearest_call(self, key: _Key) -> Span | None:
        """Return the span, or the nearest one around it, that is a part of an agent's run."""
        seen: set[_Key] = set()
        while key in self._spans and key not in seen:
            seen.add(key)
            span = self._spans[key]
            if self._convention(span) is not None:
                return span
            key = span.parent_key
        return None


def _with_run_id(run: RecordedRun, run_id: UUID) -> RecordedRun:
    """Return a run whose root has the id of the run that it was."""
    root, *others = run.calls
    for call in others:
        if call.parent_id == root.id:
            call.parent_id = run_id
    root.id = run_id
    return replace(run, run_id=run_id)


def _run_keys(span: Span, metadata: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the attributes that may be keys of a run, by the names that metadata have for them."""
    keys = {name.removeprefix(_ASSOCIATION): value for name, value in span.attributes.items()}
    # LangChain's instrumentation writes a thread into the session's attribute as well.
    own = [value for value in metadata.values() if isinstance(value, str)]
    for attribute, name in _KEY_NAMES.items():
        value = span.attributes.get(attribute)
        if value is not None and value not in own:
            keys[name] = value
    return keys


def _join_lost(calls: Sequence[RecordedCall]) -> None:
    """Make calls without a parent part of the execution of a node that their metadata name.

    LangChain does not always name the parent of a tool that middleware calls. The metadata of both
    name the execution of the node.

    Args:
        calls: The calls of all files; changed.
    """
    nodes: dict[object, list[RecordedCall]] = {}
    for call in calls:
        # The node itself, and not what runs inside it.
        if call.kind == "chain" and call.parent_id and call.name == call.metadata.get(_NODE):
            nodes.setdefault(str(call.metadata.get(_EXECUTION)), []).append(call)
    for call in calls:
        if call.parent_id is not None or _EXECUTION not in call.metadata:
            continue
        # A node that paused is executed again under the same name.
        around = [
            node
            for node in nodes.get(str(call.metadata[_EXECUTION]), ())
            if node.started_ns <= call.started_ns <= (node.ended_ns or _MAX_NS)
        ]
        if len(around) == 1:
            call.parent_id = around[0].id


def _set_requested_inputs(calls: Sequence[RecordedCall]) -> None:
    """Give tool calls the ids, and where names are missing the arguments, of their requests.

    A span of OpenInference holds the value of a tool's only argument, without its name. The request
    of the model has both.

    Args:
        calls: The calls of one run; changed.
    """
    requests = [
        request
        for call in calls
        if isinstance(call.output, ModelAnswer)
        for request in getattr(call.output.message, "tool_calls", None) or ()
        if request.get("id")
    ]
    answered_ids = {call.tool_call_id for call in calls}
    for call in sorted(calls, key=lambda call: call.started_ns):
        if call.kind != "tool":
            continue
        matches = [
            one
            for one in requests
            if call.tool_call_id in (None, one["id"])
            and one["name"] == call.name
            and _fits(one["args"], call.inputs)
        ]
        # A call that failed may be made again.
        matches.sort(key=lambda one: one["id"] in answered_ids)
        if matches:
            call.tool_call_id = matches[0]["id"]
            answered_ids.add(call.tool_call_id)
            if not isinstance(call.inputs, dict):
                call.inputs = matches[0]["args"]


def _fits(arguments: Mapping[str, Any], inputs: Any) -> bool:
    """Return whether the input of a tool may be that of a request."""
    if isinstance(inputs, dict):
        return bool(inputs == arguments)
    if len(arguments) != 1:
        return not arguments and inputs in (None, "")
    value = next(iter(arguments.values()))
    return inputs == value or (isinstance(inputs, str) and inputs == json.dumps(value))
