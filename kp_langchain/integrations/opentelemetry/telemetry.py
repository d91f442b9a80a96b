"""What OpenTelemetry is sent of runs: scores as log records of their root spans, and metrics."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, ClassVar
from uuid import UUID

from opentelemetry import _logs, metrics, trace

from kp_langchain import __version__
from kp_langchain.gate.run import ExternalTrace
from kp_langchain.integrations.phoenix import exported_trace, openinference_span
from kp_langchain.integrations.tools import run_scores
from kp_langchain.recording.langchain_context import current_handlers

if TYPE_CHECKING:
    from opentelemetry._logs import LoggerProvider
    from opentelemetry.metrics import MeterProvider

    from kp_langchain.gate import ScoredTrace
    from kp_langchain.recording.handler import KPCallbackHandler

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
# Of OpenTelemetry's semantic conventions for GenAI, whose stability is "development", so that no
# released package has these names for good.
_EVENT = "gen_ai.evaluation.result"
_NAME = "gen_ai.evaluation.name"
_VALUE = "gen_ai.evaluation.score.value"
_LABEL = "gen_ai.evaluation.score.label"
_EXPLANATION = "gen_ai.evaluation.explanation"
_SCORE_BOUNDARIES = [tenths / 10 for tenths in range(1, 10)]


def root_span(root_id: UUID) -> ExternalTrace | None:
    """Return the ids of the span that stands for a root run; None if none is exported.

    The current span of OpenTelemetry is not asked: in async code it may be that of another run.

    Args:
        root_id: LangChain's id of the root run.
    """
    return next(filter(None, map(exported_trace, _spans_of(root_id))), None)


def _spans_of(root_id: UUID) -> Iterator[Any]:
    span = openinference_span(root_id)
    if span is not None:
        yield span
    for module, class_name, spans, attribute in _HANDLERS:
        for handler in current_handlers(module, class_name):
            holder = getattr(handler, spans).get(root_id)
            if holder is not None:
                yield getattr(holder, attribute)


class OpenTelemetryScores:
    """Sends each score as a log record `gen_ai.evaluation.result` in the context of the root span.

    Args:
        logger_provider: Makes the logger; by default OpenTelemetry's global one.
    """

    name: ClassVar[str] = "opentelemetry"

    def __init__(self, logger_provider: LoggerProvider | None = None) -> None:
        self._provider = logger_provider

    def find_trace(self, root_id: UUID, parent_id: UUID) -> ExternalTrace | None:
        """Return the root span of a run."""
        del parent_id
        return root_span(root_id)

    def send(self, scored: ScoredTrace, external: ExternalTrace) -> None:
        """Emit the log records; the provider exports them."""
        provider = self._provider or _logs.get_logger_provider()
        logger = provider.get_logger("kp_langchain", __version__)
        span = trace.SpanContext(
            trace_id=int(external.trace_id, 16),
            span_id=int(external.span_id or "0", 16),
            is_remote=True,
            trace_flags=trace.TraceFlags(trace.TraceFlags.SAMPLED),
        )
        context = trace.set_span_in_context(trace.NonRecordingSpan(span))
        for score in run_scores(scored):
            attributes: dict[str, Any] = {
                _NAME: score.name,
                _VALUE: score.value,
                _EXPLANATION: score.comment,
                "kp.run_id": str(scored.run_id),
                "kp.score.id": str(score.id),
            }
            if score.label is not None:
                attributes[_LABEL] = score.label
            logger.emit(
                _logs.LogRecord(
                    timestamp=time.time_ns(),
                    context=context,
                    event_name=_EVENT,
                    attributes=attributes,
                )
            )


# ------------------------------------------------------------------ metrics


def observe(handler: KPCallbackHandler, meter_provider: MeterProvider | None = None) -> None:
    """Report a handler's runs as metrics, together with those of other handlers.

    `kp.runs` counts scored runs, `kp.score` is the histogram of their scores. Both have the
    attributes `kp.domain` and `kp.decision`: `kept`, `below_threshold` or `twin`.

    Args:
        handler: The handler; call this once for each.
        meter_provider: Makes the meter; by default OpenTelemetry's global one.
    """
    # Instruments of one name and kind are one instrument to a provider.
    meter = (meter_provider or metrics.get_meter_provider()).get_meter("kp_langchain", __version__)
    runs = meter.create_counter(
        "kp.runs",
        unit="{run}",
        description="Runs that were scored, by decision as it was when the run ended.",
    )
    scores = meter.create_histogram(
        "kp.score",
        unit="1",
        description="Scores of runs, 0 to 1, as they were when the run ended.",
        explicit_bucket_boundaries_advisory=_SCORE_BOUNDARIES,
    )
    domain = handler.domain

    def record(scored: ScoredTrace) -> None:
        if scored.previous is None:
            attributes = {"kp.domain": domain, "kp.decision": scored.decision}
            runs.add(1, attributes)
            scores.record(scored.breakdown.total, attributes)

    handler.add_observer(record)
