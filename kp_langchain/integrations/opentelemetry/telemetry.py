"""What OpenTelemetry is sent of runs: scores as log records of their root spans, and metrics."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, ClassVar
from uuid import UUID
from weakref import WeakKeyDictionary

from opentelemetry import _logs, metrics, trace

from kp_langchain import __version__
from kp_langchain._forksafe import ForkSafeLock
from kp_langchain.gate.run import ExternalTrace
from kp_langchain.integrations.phoenix import openinference_span
from kp_langchain.integrations.tools import run_scores
from kp_langchain.recording.langchain_context import current_handlers

if TYPE_CHECKING:
    from opentelemetry._logs import LoggerProvider
    from opentelemetry.metrics import CallbackOptions, MeterProvider, Observation

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
_DROPS = ("dropped", "not_stored", "scores_dropped", "scores_failed", "scores_without_trace")


def root_span(root_id: UUID) -> trace.SpanContext | None:
    """Return the context of the span that stands for a root run; None if nobody made one.

    The current span of OpenTelemetry is not asked: in async code it may be that of another run.

    Args:
        root_id: LangChain's id of the root run.
    """
    for span in _spans_of(root_id):
        context: trace.SpanContext = span.get_span_context()
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
        context = root_span(root_id)
        if context is None:
            return None
        return ExternalTrace(f"{context.trace_id:032x}", f"{context.span_id:016x}")

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

    `kp.runs` counts scored runs, with the attribute `kp.decision`: `kept`, `below_threshold` or
    `twin`. `kp.score` is the histogram of their scores. `kp.runs.queued` is how many wait to be
    scored; `kp.runs.dropped` counts runs and scores that were lost, with the attribute `kp.reason`,
    which is a counter of `KPCallbackHandler.stats`. Each has the attribute `kp.domain`.

    Args:
        handler: The handler. It is observed once, and kept as long as the provider.
        meter_provider: Makes the meter; by default OpenTelemetry's global one.
    """
    provider = meter_provider or metrics.get_meter_provider()
    with _lock:
        instruments = _instruments.get(provider)
        if instruments is None:
            instruments = _instruments[provider] = _Instruments(provider)
        instruments.add(handler)


class _Instruments:
    """The instruments of one meter provider; two of one name would conflict."""

    def __init__(self, provider: MeterProvider) -> None:
        self._handlers: list[KPCallbackHandler] = []
        meter = provider.get_meter("kp_langchain", __version__)
        self._runs = meter.create_counter(
            "kp.runs",
            unit="{run}",
            description="Runs that were scored, by decision as it was when the run ended.",
        )
        self._scores = meter.create_histogram(
            "kp.score",
            unit="1",
            description="Scores of runs, 0 to 1, as they were when the run ended.",
            explicit_bucket_boundaries_advisory=_SCORE_BOUNDARIES,
        )
        meter.create_observable_up_down_counter(
            "kp.runs.queued",
            [self._queue_sizes],
            unit="{run}",
            description="Runs that wait to be scored.",
        )
        meter.create_observable_counter(
            "kp.runs.dropped",
            [self._drops],
            unit="{run}",
            description="Runs and scores that were dropped.",
        )

    def add(self, handler: KPCallbackHandler) -> None:
        if any(handler is one for one in self._handlers):
            return
        self._handlers.append(handler)
        domain = handler.domain

        def record(scored: ScoredTrace) -> None:
            if scored.previous is None:
                attributes = {"kp.domain": domain, "kp.decision": scored.decision}
                self._runs.add(1, attributes)
                self._scores.record(scored.breakdown.total, attributes)

        handler.add_observer(record)

    def _queue_sizes(self, _: CallbackOptions) -> Iterable[Observation]:
        for (domain, _name), number in self._sums(("queued",)).items():
            yield metrics.Observation(number, {"kp.domain": domain})

    def _drops(self, _: CallbackOptions) -> Iterable[Observation]:
        for (domain, name), number in self._sums(_DROPS).items():
            yield metrics.Observation(number, {"kp.domain": domain, "kp.reason": name})

    def _sums(self, names: Iterable[str]) -> Counter[tuple[str, str]]:
        """Return the counts of all handlers, by domain and name."""
        sums: Counter[tuple[str, str]] = Counter()
        for handler in list(self._handlers):
            stats = handler.stats()
            for name in names:
                sums[handler.domain, name] += stats[name]
        return sums


_instruments: WeakKeyDictionary[MeterProvider, _Instruments] = WeakKeyDictionary()
_lock = ForkSafeLock()
