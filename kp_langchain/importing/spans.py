"""From spans in OTLP JSON to runs, whatever convention their attributes follow.

OTLP JSON is what the OpenTelemetry Collector's file exporter writes: a document, or one a line.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
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
    in_order,
    list_of,
    mapping_of,
    set_tool_call_ids,
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
        start_ns: When it began, in nanoseconds since 1970.
        end_ns: When it ended; None if that was not recorded.
        attributes: Its attributes as plain values.
        events: Name and attributes of its events.
        has_failed: Whether its status is an error.
        status_message: The status in words.
    """

    trace_id: str
    span_id: str
    parent_id: str
    name: str
    start_ns: int
    end_ns: int | None
    attributes: Mapping[str, Any] = field(default_factory=dict)
    events: tuple[tuple[str, Mapping[str, Any]], ...] = ()
    has_failed: bool = False
    status_message: str = ""

    def text(self, name: str) -> str:
        """Return an attribute that is a text; "" if it is missing or something else."""
        return text_of(self.attributes.get(name))


def is_otlp(document: object) -> bool:
    """Return whether a JSON value holds spans in OTLP's form."""
    return isinstance(document, dict) and "resourceSpans" in document


def _spans_in(document: Mapping[str, Any]) -> Iterator[Span | str]:
    """Yield the spans of an OTLP document; for one that cannot be used, why."""
    for resource in _objects(document, "resourceSpans"):
        for scope in _objects(resource, "scopeSpans"):
            for span in _objects(scope, "spans"):
                yield _span(span)


def _span(span: Mapping[str, Any]) -> Span | str:
    trace_id, span_id = _id(span, "traceId", _TRACE_ID), _id(span, "spanId", _SPAN_ID)
    if not trace_id or not span_id:
        return "a span without a traceId of 32 or a spanId of 16 hexadecimal digits"
    start_ns = _time(span.get("startTimeUnixNano"))
    if start_ns is None:
        return f"span {span_id} has no startTimeUnixNano"
    status = mapping_of(span.get("status"))
    return Span(
        trace_id=trace_id,
        span_id=span_id,
        parent_id=_id(span, "parentSpanId", _SPAN_ID),
        name=text_of(span.get("name")),
        start_ns=start_ns,
        end_ns=_time(span.get("endTimeUnixNano")),
        attributes=_pairs(span, "attributes"),
        events=tuple(
            (text_of(event.get("name")), _pairs(event, "attributes"))
            for event in _objects(span, "events")
        ),
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
    match kind:
        case "intValue":
            return _integer(content)
        case "arrayValue" if isinstance(content, dict):
            return [_value(one, depth + 1) for one in list_of(content.get("values"))]
        case "kvlistValue" if isinstance(content, dict):
            return _pairs(content, "values", depth + 1)
        case "stringValue" | "boolValue" | "doubleValue":
            return content if isinstance(content, str | bool | int | float) else None
    return None


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
        describes: Whether a span describes a part of an agent's run.
        set_call: Sets what a span says of a call, given the call without it.
        run_id_of: The run id that a root span names; None if it names none.
    """

    tool: str
    describes: Callable[[Span], bool]
    set_call: Callable[[Span, RecordedCall], None]
    run_id_of: Callable[[Span], UUID | None] = lambda _: None


_Key = tuple[str, str]  # a trace and a span in it


@dataclass(slots=True)
class SpanRuns:
    """Collects the spans of some files, which may come in any order and in several batches.

    Attributes:
        conventions: What their attributes may mean; the first that describes a span counts.
    """

    conventions: tuple[Convention, ...]
    _spans: dict[_Key, Span] = field(default_factory=dict)
    _places: dict[_Key, str] = field(default_factory=dict)

    def add(self, value: Mapping[str, Any], place: str) -> Iterator[Unusable]:
        """Add the spans of a document; yield those that cannot be used."""
        for span in _spans_in(value):
            if isinstance(span, str):
                yield Unusable(place, span)
                continue
            key = (span.trace_id, span.span_id)
            earlier = self._spans.get(key)
            if earlier is None or (earlier.end_ns is None and span.end_ns is not None):
                self._spans[key] = span
                self._places.setdefault(key, place)

    def conclude(self) -> Iterator[RecordedRun | Unusable]:
        """Yield the runs by the time at which they began."""
        spans: dict[UUID, tuple[Span, Convention]] = {}
        calls: list[RecordedCall] = []
        for span in self._spans.values():
            convention = self._convention(span)
            if convention is not None:
                calls.append(self._call(span, convention))
                spans[calls[-1].id] = span, convention
        _join_lost(calls)
        groups, cyclic = in_order(calls)
        for group in groups:
            yield self._run(group, *spans[group[0].id])
        for call in cyclic:
            span, _ = spans[call.id]
            place = self._places[span.trace_id, span.span_id]
            yield Unusable(place, f"span {span.span_id} is part of itself")

    def _convention(self, span: Span) -> Convention | None:
        return next((one for one in self.conventions if one.describes(span)), None)

    def _call(self, span: Span, convention: Convention) -> RecordedCall:
        parent = self._nearest_call((span.trace_id, span.parent_id))
        call = RecordedCall(
            kind="chain",
            id=_call_id(span),
            parent_id=None if parent is None else _call_id(parent),
            name=span.name,
            started_ns=span.start_ns,
            ended_ns=span.end_ns,
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
            key = (span.trace_id, span.parent_id)
        return None

    def _run(self, calls: list[RecordedCall], span: Span, convention: Convention) -> RecordedRun:
        root = calls[0]
        run_id = convention.run_id_of(span)
        if run_id is not None:
            for call in calls:
                if call.parent_id == root.id:
                    call.parent_id = run_id
            root.id = run_id
        set_tool_call_ids(calls)
        _set_requested_inputs(calls)
        return RecordedRun(
            root.id,
            self._places[span.trace_id, span.span_id],
            calls,
            external_traces={convention.tool: ExternalTrace(span.trace_id, span.span_id)},
        )


def _call_id(span: Span) -> UUID:
    return id_from(f"span:{span.trace_id}:{span.span_id}")


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
    ids = {call.id for call in calls}
    nodes: dict[object, list[RecordedCall]] = {}
    for call in calls:
        execution = call.metadata.get(_EXECUTION)
        # The node itself, and not what runs inside it.
        is_node = call.kind == "chain" and call.name == call.metadata.get(_NODE)
        if is_node and call.parent_id in ids and isinstance(execution, str):
            nodes.setdefault(execution, []).append(call)
    for call in calls:
        execution = call.metadata.get(_EXECUTION)
        if call.parent_id in ids or not isinstance(execution, str):
            continue
        # A node that paused is executed again under the same name.
        around = [
            node
            for node in nodes.get(execution, ())
            if node.started_ns <= call.started_ns <= (node.ended_ns or _MAX_NS)
        ]
        if len(around) == 1 and around[0] is not call:
            call.parent_id = around[0].id


def _set_requested_inputs(calls: Sequence[RecordedCall]) -> None:
    """Give tool calls the ids, and where names are missing the arguments, of their requests.

    A span of OpenInference holds the value of a tool's only argument, without its name. The request
    of the model, or the input of the node around the tool, has both.

    Args:
        calls: The calls of one run; changed.
    """
    by_id = {call.id: call for call in calls}
    requests: dict[str, Mapping[str, Any]] = {}  # by their ids
    for call in calls:
        message = call.output.message if isinstance(call.output, ModelAnswer) else None
        for request in getattr(message, "tool_calls", None) or ():
            if isinstance(request.get("id"), str) and request["id"]:
                requests.setdefault(request["id"], request)
    answered_ids = {call.tool_call_id for call in calls if call.tool_call_id}
    for call in sorted(calls, key=lambda call: call.started_ns):
        if call.kind != "tool":
            continue
        parent = by_id.get(call.parent_id) if call.parent_id is not None else None
        nearby = [] if parent is None else list(_tool_calls(parent.inputs))
        candidates = [*nearby, *requests.values()]
        if call.tool_call_id is not None:
            candidates = [one for one in candidates if one["id"] == call.tool_call_id]
        elif len(nearby) != 1:  # a node of one call may make it again
            candidates = [one for one in candidates if one["id"] not in answered_ids]
        match = next((one for one in candidates if _fits(one, call)), None)
        if match is None:
            continue
        call.tool_call_id = match["id"]
        answered_ids.add(match["id"])
        if not isinstance(call.inputs, dict):
            call.inputs = match["args"]


def _tool_calls(value: Any) -> Iterator[Mapping[str, Any]]:
    """Yield the tool calls that a node's input holds."""
    for item in value if isinstance(value, list) else [value]:
        one = item.get("tool_call", item) if isinstance(item, dict) else None
        if (
            isinstance(one, dict)
            and one.get("type") == "tool_call"
            and isinstance(one.get("id"), str)
            and isinstance(one.get("args"), dict)
        ):
            yield {"name": one.get("name"), "id": one["id"], "args": one["args"]}


def _fits(request: Mapping[str, Any], call: RecordedCall) -> bool:
    """Return whether the input of a tool may be that of a request."""
    arguments, inputs = request["args"], call.inputs
    if request["name"] != call.name:
        return False
    if isinstance(inputs, dict):
        return bool(inputs == arguments)
    if len(arguments) != 1:
        return not arguments and inputs in (None, "")
    value = next(iter(arguments.values()))
    return inputs == value or (isinstance(inputs, str) and inputs == json.dumps(value))


# ------------------------------------------------------------------ for all conventions


def error_of_span(span: Span, *, has_output: bool) -> RecordedError | None:
    """Return why a span failed; None if it did not.

    Args:
        span: The span.
        has_output: Whether it says what was returned.
    """
    for name, attributes in span.events:
        # LangGraph's exceptions for control flow are recorded in spans that did not fail.
        if name == "exception" and (span.has_failed or not has_output):
            text = {key: value for key, value in attributes.items() if isinstance(value, str)}
            return error_of(
                text.get("exception.type", ""),
                text.get("exception.message"),
                text.get("exception.stacktrace", ""),
            )
    if not span.has_failed:
        return None
    kind = span.text("error.type")
    if kind:
        return error_of(kind, span.status_message, "")
    return error_in_text(span.status_message)


def unflatten(attributes: Mapping[str, Any], prefix: str) -> list[dict[str, Any]]:
    """Return the objects whose parts are attributes of their own, such as `prefix.0.role`."""
    tree: dict[str, Any] = {}
    for name, value in attributes.items():
        if not name.startswith(f"{prefix}."):
            continue
        branch = tree
        *path, last = name[len(prefix) + 1 :].split(".")
        for part in path:
            inner = branch.setdefault(part, {})
            if not isinstance(inner, dict):
                break
            branch = inner
        else:
            branch[last] = value
    return [one for one in list_of(_with_lists(tree, 0)) if isinstance(one, dict)]


def _with_lists(tree: Any, depth: int) -> Any:
    """Return a tree in which mappings of numbers are lists."""
    if not isinstance(tree, dict) or depth > _MAX_DEPTH:
        return tree
    values = {key: _with_lists(value, depth + 1) for key, value in tree.items()}
    if values and all(key.isascii() and key.isdigit() and len(key) < 7 for key in values):
        return [values[key] for key in sorted(values, key=int)]
    return values
