"""The OpenTelemetry span that an instrumentor made of a root run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from uuid import UUID

from kp_langchain.integrations.current_handlers import current_handlers
from kp_langchain.integrations.phoenix import openinference_span

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
    span: Any = openinference_span(root_id)
    for module, class_name, spans, attribute in _HANDLERS:
        if span is not None:
            break
        for handler in current_handlers(module, class_name):
            span = getattr(getattr(handler, spans).get(root_id), attribute, None)
    if span is None:
        return None
    context: SpanContext = span.get_span_context()
    return context if context.is_valid else None
