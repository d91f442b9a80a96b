"""The OpenTelemetry span that an instrumentor made of a root run."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any
from uuid import UUID

from kp_langchain.integrations.phoenix import openinference_span
from kp_langchain.recording.langchain_context import current_handlers

if TYPE_CHECKING:
    from opentelemetry.trace import SpanContext

# Module and class of the handlers that keep their spans by run id, and where they keep them. None
# of them has a public way.
_HANDLERS = (
    ("langfuse.langchain", "CallbackHandler", "_runs", "_otel_span"),
    (
        "opentelemetry.instrumentation.langchain.callback_handler",
        "TraceloopCallbackHandler",
        "spans",
        "span",
    ),
)


def root_span(root_id: UUID) -> SpanContext | None:
    """Return the context of the span that stands for a root run; None if nobody made one.

    The current span of OpenTelemetry is not asked: in async code it may be that of another run.

    Args:
        root_id: LangChain's id of the root run.
    """
    for span in _spans_of(root_id):
        context: SpanContext = span.get_span_context()
        # Otherwise nothing is exported: the trace is not in the sample.
        if context.is_valid and context.trace_flags.sampled:
            return context
    return None


def _spans_of(root_id: UUID) -> Iterator[Any]:
    span = openinference_span(root_id)
    if span is not None:
        yield span
    for module, class_name, spans, attribute in _HANDLERS:
        for handler in current_handlers(module, class_name):
            holder = getattr(handler, spans).get(root_id)
            if holder is not None:
                yield getattr(holder, attribute)
