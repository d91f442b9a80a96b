"""Spans from OTLP JSON: one document, or the lines that the collector's file exporter writes."""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

_HEX = re.compile(r"[0-9a-f]+\Z")
_TRACE_BYTES, _SPAN_BYTES = 16, 8
_MAX_DEPTH = 30
_MAX_NS = 1 << 63


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
        value = self.attributes.get(name)
        return value if isinstance(value, str) else ""


def is_otlp(document: object) -> bool:
    """Return whether a JSON value holds spans in OTLP's form."""
    return isinstance(document, dict) and ("resourceSpans" in document or _OLD_NAME in document)


_OLD_NAME = "resource_spans"


def spans_in(document: Mapping[str, Any]) -> Iterator[Span | str]:
    """Yield the spans of an OTLP document; for one that cannot be used, why."""
    for resource in _dicts(document, "resourceSpans", _OLD_NAME):
        for scope in _dicts(resource, "scopeSpans", "scope_spans", "instrumentationLibrarySpans"):
            for span in _items(scope, "spans"):
                yield _span(span)


def _span(span: Any) -> Span | str:
    if not isinstance(span, dict):
        return f"a span is {type(span).__name__}, not an object"
    trace_id = _id(_get(span, "traceId", "trace_id"), _TRACE_BYTES)
    span_id = _id(_get(span, "spanId", "span_id"), _SPAN_BYTES)
    if not trace_id or not span_id:
        return "a span without a traceId of 32 or a spanId of 16 hexadecimal digits"
    start_ns = _time(_get(span, "startTimeUnixNano", "start_time_unix_nano"))
    if start_ns is None:
        return f"span {span_id} has no startTimeUnixNano"
    name, status = span.get("name"), span.get("status")
    status = status if isinstance(status, dict) else {}
    message = status.get("message")
    return Span(
        trace_id=trace_id,
        span_id=span_id,
        parent_id=_id(_get(span, "parentSpanId", "parent_span_id"), _SPAN_BYTES),
        name=name if isinstance(name, str) else "",
        start_ns=start_ns,
        end_ns=_time(_get(span, "endTimeUnixNano", "end_time_unix_nano")),
        attributes=_attributes(span),
        events=tuple(
            (event["name"], _attributes(event))
            for event in _dicts(span, "events")
            if isinstance(event.get("name"), str)
        ),
        has_failed=status.get("code") in (2, "2", "STATUS_CODE_ERROR"),
        status_message=message if isinstance(message, str) else "",
    )


def _attributes(holder: Mapping[str, Any]) -> dict[str, Any]:
    return {
        pair["key"]: _value(pair.get("value"), 0)
        for pair in _dicts(holder, "attributes")
        if isinstance(pair.get("key"), str)
    }


def _value(value: Any, depth: int) -> Any:
    """Return the plain value of OTLP's `AnyValue`."""
    if not isinstance(value, dict) or not value or depth >= _MAX_DEPTH:
        return None
    kind, content = next(iter(value.items()))
    match kind.replace("_v", "V"):
        case "intValue":
            return _integer(content)
        case "doubleValue":
            return _number(content)
        case "arrayValue" if isinstance(content, dict):
            return [_value(item, depth + 1) for item in _items(content, "values")]
        case "kvlistValue" if isinstance(content, dict):
            return {
                pair["key"]: _value(pair.get("value"), depth + 1)
                for pair in _dicts(content, "values")
                if isinstance(pair.get("key"), str)
            }
        case "stringValue" | "boolValue" | "bytesValue":
            return content if isinstance(content, str | bool) else None
    return None


def _integer(value: Any) -> int | None:
    try:
        return int(value) if isinstance(value, str | int | float) else None
    except (ValueError, OverflowError):
        return None


def _number(value: Any) -> float | None:
    try:
        return float(value) if isinstance(value, str | int | float) else None
    except (ValueError, OverflowError):
        return None


def _time(value: Any) -> int | None:
    """Return a time in nanoseconds; None for 0, which stands for none."""
    time_ns = _integer(value)
    return time_ns if time_ns is not None and 0 < time_ns < _MAX_NS else None


def _id(value: Any, size: int) -> str:
    """Return an id in hexadecimal digits; "" if it is none, or all zeros.

    OTLP says hexadecimal; protobuf's own JSON has base64.
    """
    if not isinstance(value, str):
        return ""
    text = value.strip().lower()
    if len(text) != 2 * size or not _HEX.match(text):
        try:
            content = base64.b64decode(value.strip(), validate=True)
        except (binascii.Error, ValueError):
            return ""
        text = content.hex() if len(content) == size else ""
    return text if text.strip("0") else ""


def _get(holder: Mapping[str, Any], *names: str) -> Any:
    return next((holder[name] for name in names if name in holder), None)


def _items(holder: Mapping[str, Any], *names: str) -> list[Any]:
    items = _get(holder, *names)
    return items if isinstance(items, list) else []


def _dicts(holder: Mapping[str, Any], *names: str) -> Iterator[dict[str, Any]]:
    return (item for item in _items(holder, *names) if isinstance(item, dict))
