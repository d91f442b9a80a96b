"""From the spans of a file to runs, whatever convention their attributes follow."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final
from uuid import UUID

from kp_langchain.gate.run import ExternalTrace
from kp_langchain.importing.call_values import set_tool_call_ids
from kp_langchain.importing.errors import error_in_text, error_of
from kp_langchain.importing.ids import span_uuid
from kp_langchain.importing.lost_parents import join_lost
from kp_langchain.importing.otlp_json import Span, spans_in
from kp_langchain.importing.recorded_run import (
    RecordedCall,
    RecordedError,
    RecordedRun,
    Unusable,
    in_order,
)
from kp_langchain.importing.requested_inputs import set_requested_inputs

_ASSOCIATION = "traceloop.association.properties."
_KEY_NAMES: Final = {
    "gen_ai.conversation.id": "conversation_id",
    "session.id": "session_id",
    "enduser.id": "user_id",
    "user.id": "user_id",
}


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
    run_id_of: Callable[[Span], UUID | None]


@dataclass(slots=True)
class SpanRuns:
    """Collects the spans of some files, which may come in any order and in several batches.

    Attributes:
        conventions: What their attributes may mean; the first that describes a span counts.
    """

    conventions: tuple[Convention, ...]
    _spans: dict[tuple[str, str], Span] = field(default_factory=dict)
    _places: dict[tuple[str, str], str] = field(default_factory=dict)
    _nearest: dict[tuple[str, str], Span | None] = field(default_factory=dict)

    def add(self, value: Mapping[str, Any], place: str) -> Iterator[Unusable]:
        """Add the spans of a document; yield those that cannot be used."""
        for span in spans_in(value):
            if isinstance(span, str):
                yield Unusable(place, span)
                continue
            key = (span.trace_id, span.span_id)
            known = self._spans.get(key)
            if known is None or (known.end_ns is None and span.end_ns is not None):
                self._spans[key] = span
                self._places.setdefault(key, place)

    def conclude(self) -> Iterator[RecordedRun | Unusable]:
        """Yield the runs by the time at which they began."""
        spans: dict[UUID, Span] = {}
        calls: list[RecordedCall] = []
        for span in self._spans.values():
            if (convention := self._convention(span)) is not None:
                call = self._call(span, convention)
                spans[call.id] = span
                calls.append(call)
        join_lost(calls)
        groups, cyclic = in_order(calls)
        for group in groups:
            span = spans[group[0].id]
            convention = self._convention(span)
            if convention is not None:
                yield self._run(group, span, convention)
        for call in cyclic:
            span = spans[call.id]
            place = self._places[span.trace_id, span.span_id]
            yield Unusable(place, f"span {span.span_id} is part of itself")

    def _call(self, span: Span, convention: Convention) -> RecordedCall:
        parent = self._parent(span)
        call = RecordedCall(
            kind="chain",
            id=span_uuid(span.trace_id, span.span_id),
            parent_id=None if parent is None else span_uuid(parent.trace_id, parent.span_id),
            name=span.name,
            started_ns=span.start_ns,
            ended_ns=span.end_ns,
        )
        convention.set_call(span, call)
        call.metadata = {**_run_keys(span, call.metadata), **call.metadata}
        return call

    def _parent(self, span: Span) -> Span | None:
        """Return the nearest span around a span that is a part of an agent's run as well."""
        path: dict[tuple[str, str], None] = {}  # of plain spans
        key, found = (span.trace_id, span.parent_id), None
        while key not in self._nearest:
            around = self._spans.get(key)
            if around is None:
                break
            if self._convention(around) is not None:
                found = around
                break
            if key in path:
                return span  # it is part of itself
            path[key] = None
            key = (around.trace_id, around.parent_id)
        else:
            found = self._nearest[key]
        self._nearest |= dict.fromkeys(path, found)
        return found

    def _convention(self, span: Span) -> Convention | None:
        return next((one for one in self.conventions if one.describes(span)), None)

    def _run(self, calls: list[RecordedCall], span: Span, convention: Convention) -> RecordedRun:
        root = calls[0]
        run_id = convention.run_id_of(span)
        if run_id is not None:
            for call in calls:
                if call.parent_id == root.id:
                    call.parent_id = run_id
            root.id = run_id
        set_tool_call_ids(calls)
        set_requested_inputs(calls)
        return RecordedRun(
            root.id,
            self._places[span.trace_id, span.span_id],
            calls,
            external_traces={convention.tool: ExternalTrace(span.trace_id, span.span_id)},
        )


def _run_keys(span: Span, metadata: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the attributes that may be keys of a run, by the names that metadata have for them."""
    keys = {name.removeprefix(_ASSOCIATION): value for name, value in span.attributes.items()}
    # LangChain's instrumentation writes a thread into the session's attribute as well.
    own = [value for value in metadata.values() if isinstance(value, str)]
    renamed = {
        name: value
        for attribute, name in _KEY_NAMES.items()
        if (value := span.attributes.get(attribute)) is not None and value not in own
    }
    return keys | renamed


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


def unflatten(attributes: Mapping[str, Any], prefix: str) -> Any:
    """Return the structure whose parts are attributes of their own, such as `prefix.0.role`.

    Mappings of numbers become lists. Returns None if there is none.
    """
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
    return _with_lists(tree, 0) if tree else None


def _with_lists(tree: Any, depth: int) -> Any:
    if not isinstance(tree, dict) or depth > 20:
        return tree
    values = {key: _with_lists(value, depth + 1) for key, value in tree.items()}
    if values and all(key.isascii() and key.isdigit() and len(key) < 7 for key in values):
        return [values[key] for key in sorted(values, key=int)]
    return values
