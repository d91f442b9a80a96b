"""How much memory a span takes, estimated from its attributes and events."""

from __future__ import annotations

from collections.abc import Mapping
from sys import getsizeof
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import ReadableSpan

_SPAN_BYTES, _EVENT_BYTES, _VALUE_BYTES = 3200, 700, 100


def span_bytes_of(span: ReadableSpan) -> int:
    """Estimate the memory that a span takes; cheap rather than exact."""
    try:
        size = _SPAN_BYTES + _values_bytes(span.attributes)
        for event in span.events:
            size += _EVENT_BYTES + _values_bytes(event.attributes)
    except Exception:  # noqa: BLE001 - nothing of it may reach the agent
        return _SPAN_BYTES
    return size


def _values_bytes(attributes: Any) -> int:
    if not attributes:
        return 0
    # The SDK's mapping takes a lock for each value that is read, and none for a copy.
    values = attributes.copy().values()
    size = _VALUE_BYTES * len(values)
    for value in values:
        size += getsizeof(value) if type(value) is str else _nested_bytes(value)
    return size


def _nested_bytes(value: object) -> int:
    size = getsizeof(value)
    if isinstance(value, tuple | list):
        size += sum(map(_nested_bytes, value))
    elif isinstance(value, Mapping):
        size += sum(map(_nested_bytes, value)) + sum(map(_nested_bytes, value.values()))
    return size
