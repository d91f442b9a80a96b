"""Send scores as OpenTelemetry log records, the events of GenAI evaluations."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, ClassVar
from uuid import UUID

from kp_langchain import __version__
from kp_langchain.gate.run import ExternalTrace
from kp_langchain.integrations.opentelemetry.root_span import root_span
from kp_langchain.integrations.packages import import_package
from kp_langchain.integrations.run_scores import run_scores

if TYPE_CHECKING:
    from opentelemetry._logs import LoggerProvider

    from kp_langchain.gate import ScoredTrace

# Of OpenTelemetry's semantic conventions for GenAI, whose stability is "development", so that no
# released package has these names for good.
_EVENT = "gen_ai.evaluation.result"
_NAME = "gen_ai.evaluation.name"
_VALUE = "gen_ai.evaluation.score.value"
_LABEL = "gen_ai.evaluation.score.label"
_EXPLANATION = "gen_ai.evaluation.explanation"


class OpenTelemetryScores:
    """Sends each score as a log record `gen_ai.evaluation.result` in the context of the root span.

    Args:
        logger_provider: Makes the logger; by default OpenTelemetry's global one.

    Raises:
        MissingExtraError: The package opentelemetry-api is not installed.
    """

    name: ClassVar[str] = "opentelemetry"

    def __init__(self, logger_provider: LoggerProvider | None = None) -> None:
        self._logs = import_package("opentelemetry._logs", extra="opentelemetry")
        self._provider = logger_provider

    def find_trace(self, root_id: UUID, parent_id: UUID) -> ExternalTrace | None:
        """Return the root span of a run."""
        del parent_id
        context = root_span(root_id)
        if context is None:
            return None
        return ExternalTrace(f"{context.trace_id:032x}", f"{context.span_id:016x}")

    def send(self, scored: ScoredTrace, external: ExternalTrace) -> None:
        """Emit the log records; the provider exports them."""
        from opentelemetry import trace

        provider = self._provider or self._logs.get_logger_provider()
        logger = provider.get_logger("kp_langchain", __version__)
        span = trace.SpanContext(
            trace_id=int(external.trace_id, 16),
            span_id=int(external.span_id or "0", 16),
            is_remote=True,
            trace_flags=trace.TraceFlags(trace.TraceFlags.SAMPLED),
        )
        context = trace.set_span_in_context(trace.NonRecordingSpan(span))
        for score in run_scores(scored):
            attributes = {
                _NAME: score.name,
                _VALUE: score.value,
                _EXPLANATION: score.comment,
                "kp.run_id": str(scored.run_id),
                "kp.score.id": str(score.id),
            }
            if score.label is not None:
                attributes[_LABEL] = score.label
            logger.emit(
                self._logs.LogRecord(
                    timestamp=time.time_ns(),
                    context=context,
                    event_name=_EVENT,
                    attributes=attributes,
                )
            )
