"""Tail sampling: a span processor that exports the traces of the runs that are worth it."""

from __future__ import annotations

import time
from collections import Counter, OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from sys import getsizeof
from typing import TYPE_CHECKING, Any, ClassVar, Final
from uuid import UUID
from zlib import crc32

from opentelemetry.context import Context
from opentelemetry.sdk.trace import ReadableSpan, Span, SpanProcessor
from opentelemetry.trace import StatusCode

from kp_langchain._forksafe import ForkSafeLock, leave_in_child
from kp_langchain._logging import describe_error, warn_once
from kp_langchain.errors import ConfigError
from kp_langchain.gate.run import ExternalTrace
from kp_langchain.integrations.opentelemetry.telemetry import root_span

if TYPE_CHECKING:
    from kp_langchain.gate import ScoredTrace

__all__ = ["KeepWorthy"]

_UNDECIDED: Final = {
    "undecided_limit": "max_spans or max_bytes was reached",
    "undecided_timeout": "no decision came within max_wait_s",
    "undecided_shutdown": "the tracer provider was shut down before their decision came",
}
_EXPORTED: Final = ("kept", "failed", "sampled", "no_run", *_UNDECIDED)
_MOST_DECISIONS = 10_000  # of traces that are no longer held, for their late spans
# As many spans as a BatchSpanProcessor exports at once. Its queue drops what comes faster than it
# exports, and a released trace comes all at once.
_BURST_SPANS = 512
_FLUSH_MS = 30_000
_SPAN_BYTES, _EVENT_BYTES, _VALUE_BYTES = 3200, 700, 100  # of a span without texts


class KeepWorthy(SpanProcessor):
    """A span processor that holds the spans of a run until it is decided whether to keep it.

    Wrap the processor that exports, and add this one to the tracer provider in its place:

        exporter = BatchSpanProcessor(OTLPSpanExporter())
        keep_worthy = KeepWorthy(exporter, share_of_rest=0.05)
        tracer_provider.add_span_processor(keep_worthy)
        handler = KPCallbackHandler(send_scores_to=[keep_worthy])

    The handler announces each run, and reports what became of it.

    Spans are held by trace, from the first one that starts in this process until none is open. What
    happens then depends on the trace:

    - No run was announced, such as in a web request without an agent: its spans are exported.
    - All announced runs are decided, and none is to be kept: its spans are dropped. A share
      `share_of_rest` of such traces is exported all the same.
    - A run is undecided: its spans wait.

    A trace is exported as soon as one of its runs is to be kept or did not succeed. It is also
    exported as soon as one of its spans has the status error. Later spans of a trace follow its
    decision, as long as it is among the newest 10,000. A trace is kept as a whole: many runs under
    one root span are kept together or not at all. If a span fails after its trace was dropped, that
    span is exported and so are those after it.

    A trace that belongs to the share is exported as its spans end. Whether it does is a function of
    its id, so all processes agree. The function is not that of `TraceIdRatioBased`: after a sampler
    of that kind, all traces that are left would be in the share. Spans that a sampler left out are
    passed on unchanged.

    Undecided spans are exported in `shutdown`, when a limit is reached, and after `max_wait_s`
    without any span or decision. Limits and times are checked whenever a span ends or a trace
    begins; the trace that was idle for longest goes first. `counts` counts them by reason, and each
    reason is logged once. Call `KPCallbackHandler.send` before the tracer provider is shut down, so
    that decisions come first. No decision comes for runs that are not scored, such as cancelled,
    paused or empty ones.

    Released spans are passed to the wrapped processor by the thread that released them. The thread
    that decides, and `shutdown`, flush it after every 512 spans, because its queue would drop what
    comes faster than it exports. An agent's thread never waits for an export of a processor that
    has a thread of its own, such as `BatchSpanProcessor`. In a forked child nothing is held: the
    parent exports what it holds.

    Args:
        processor: The processor that exports. Every start of a span is passed on to it.
        share_of_rest: The share of traces exported whatever their runs' decision, 0 to 1.
        max_spans: How many spans are held at most, and of how many traces spans may be open.
        max_bytes: How many bytes the held spans take at most. A span's size is an estimate, from
            the number of its attributes and events and the sizes of their strings.
        max_wait_s: How long a trace is held without any span or decision, in seconds.
        keep_failed: Whether a trace is exported if one of its spans has the status error, or one of
            its runs did not succeed.

    Raises:
        ConfigError: An argument is invalid.
    """

    name: ClassVar[str] = "keep_worthy"

    def __init__(
        self,
        processor: SpanProcessor,
        *,
        share_of_rest: float = 0.0,
        max_spans: int = 50_000,
        max_bytes: int = 128 * 1024 * 1024,
        max_wait_s: float = 300.0,
        keep_failed: bool = True,
    ) -> None:
        if not callable(getattr(processor, "on_end", None)):
            raise ConfigError(
                f"processor is {processor!r}; give a span processor such as BatchSpanProcessor"
            )
        if not 0 <= share_of_rest <= 1:
            raise ConfigError(f"share_of_rest is {share_of_rest!r}; give a number from 0 to 1")
        for name, value in (
            ("max_spans", max_spans),
            ("max_bytes", max_bytes),
            ("max_wait_s", max_wait_s),
        ):
            if not value > 0:
                raise ConfigError(f"{name} is {value!r}; give a number above 0")
        self._processor = processor
        self._limits = _Limits(share_of_rest, max_spans, max_bytes, max_wait_s, keep_failed)
        self._lock, self._pacing_lock = ForkSafeLock(), ForkSafeLock()
        self._is_shut_down = False
        self.leave_to_parent()
        leave_in_child(self)

    def leave_to_parent(self) -> None:
        """Forget everything, in a forked child."""
        self._traces = _Traces(self._limits)
        self._changes: deque[tuple[Callable[..., None], tuple[Any, ...]]] = deque()
        self._burst = 0  # released spans passed on since the wrapped processor was flushed

    def on_start(self, span: Span, parent_context: Context | None = None) -> None:
        """Pass the start of a span on, and note that it is open."""
        self._call(self._processor.on_start, span, parent_context)
        if _is_sampled(span):
            self._change(self._traces.start, span)

    def on_end(self, span: ReadableSpan) -> None:
        """Hold, pass on or drop a span that ended."""
        if _is_sampled(span):
            self._change(self._traces.end, span)
        else:
            self._call(self._processor.on_end, span)

    def find_trace(self, root_id: UUID, parent_id: UUID) -> ExternalTrace | None:
        """Announce a run, whose root span an instrumentor made; called by the handler."""
        del parent_id
        span = root_span(root_id)
        if span is None:
            return None
        self.expect(span.trace_id)
        return ExternalTrace(f"{span.trace_id:032x}", f"{span.span_id:016x}")

    def send(self, scored: ScoredTrace, external: ExternalTrace) -> None:
        """Decide a run; called by the handler, again after each verdict."""
        has_failed = self._limits.keep_failed and scored.trace.metadata.success is False
        fate = "kept" if scored.decision == "kept" else "failed" if has_failed else None
        # Not the run's id, under which several handlers may each record and decide it.
        run_id = scored.stored_id or scored.trace.id
        self._change(self._traces.decide, int(external.trace_id, 16), fate, run_id, is_paced=True)

    def expect(self, trace_id: int) -> None:
        """Announce a run, once, so that its trace waits for its decision.

        Call it while a span of the trace is open. It takes microseconds and never raises. Spans of
        the trace that were passed on before stay passed on.

        Args:
            trace_id: OpenTelemetry's id of the trace that the run is in.
        """
        self._change(self._traces.expect, trace_id)

    def decide(self, trace_id: int, *, keep: bool, run_id: str | None = None) -> None:
        """Decide a run, before or after its spans ended; may wait for an export.

        If a trace has several runs, one that is kept is enough. A decision to keep a trace is also
        followed after one not to, by what is still held of the trace and what comes later.

        Args:
            trace_id: OpenTelemetry's id of the trace that the run is in.
            keep: Whether the trace is exported.
            run_id: Any id of the run. With it, deciding the same run again decides no other one.
        """
        fate = "kept" if keep else None
        self._change(self._traces.decide, trace_id, fate, run_id, is_paced=True)

    def counts(self) -> dict[str, int]:
        """Return how many spans had which fate, in this process.

        Returns:
            Of exported spans: `kept`, `failed`, `sampled` (in the share), `no_run` (of traces
            without a run), `undecided_limit`, `undecided_timeout` and `undecided_shutdown`. Then
            `dropped`; `held` and `held_bytes` now; and `open_traces`, of which a span is open or
            held.
        """
        with self._lock:
            traces = self._traces
            return {
                **{fate: traces.counts[fate] for fate in (*_EXPORTED, "dropped")},
                "held": traces.held_spans,
                "held_bytes": traces.held_bytes,
                "open_traces": len(traces.by_id),
            }

    def force_flush(self, timeout_millis: int = _FLUSH_MS) -> bool:
        """Have the wrapped processor export what is decided; undecided traces stay held.

        Args:
            timeout_millis: The longest time to take, in milliseconds.

        Returns:
            False if the time was not enough.
        """
        return self._call(self._processor.force_flush, timeout_millis) is not False

    def shutdown(self) -> None:
        """Export everything that is held, and shut the wrapped processor down."""
        if self._is_shut_down:
            return
        self._is_shut_down = True
        self._change(self._traces.close, is_paced=True)
        with self._pacing_lock:  # until another thread has passed on what it released
            self._call(self._processor.shutdown)

    def _change(self, change: Callable[..., None], *args: Any, is_paced: bool = False) -> None:
        """Change the state of the traces, and pass on what that releases.

        The garbage collector may end a span in the middle of a change. That one is made behind it,
        by the outer call.

        Args:
            change: A method of the state.
            args: Its arguments.
            is_paced: Whether this thread may wait for the wrapped processor's exports.
        """
        self._changes.append((change, args))
        while self._changes and not self._lock.is_held_here:
            with self._lock:
                self._make_changes()
                spans, self._traces.released_spans = self._traces.released_spans, []
            if is_paced:
                self._pass_on_paced(spans)
            else:
                for span, fate in spans:
                    self._pass_on(span, fate)

    def _make_changes(self) -> None:
        while self._changes:
            change, args = self._changes.popleft()
            try:
                change(*args)
            except Exception as error:  # noqa: BLE001 - nothing of it may reach the agent
                warn_once("keep-worthy failed", "KeepWorthy failed: %s", describe_error(error))

    def _pass_on_paced(self, spans: list[tuple[ReadableSpan, str]]) -> None:
        with self._pacing_lock:
            for span, fate in spans:
                self._pass_on(span, fate)
                self._burst += 1
                if self._burst >= _BURST_SPANS:
                    self._call(self._processor.force_flush, _FLUSH_MS)
                    self._burst = 0

    def _pass_on(self, span: ReadableSpan, fate: str) -> None:
        self._call(self._processor.on_end, span)
        if fate in _UNDECIDED:
            warn_once(
                f"keep-worthy {fate}",
                "spans of undecided traces are exported, because %s",
                _UNDECIDED[fate],
            )

    def _call(self, method: Callable[..., Any], *args: Any) -> Any:
        try:
            return method(*args)
        except Exception as error:  # noqa: BLE001 - nothing of it may reach the agent
            name = getattr(method, "__qualname__", "the wrapped processor")
            kind = type(error).__name__
            warn_once(f"keep-worthy {name} {kind}", "%s raised %s", name, kind)
            return False


@dataclass(frozen=True, slots=True)
class _Limits:
    """The arguments of `KeepWorthy`."""

    share_of_rest: float
    max_spans: int
    max_bytes: int
    max_wait_s: float
    keep_failed: bool


@dataclass(slots=True)
class _Trace:
    """A trace of which a span is open or held.

    Attributes:
        open: The ids of the open spans.
        spans: Those that ended, with their bytes.
        runs: The number of runs that were announced.
        rejected_ids: The ids of the runs that are not to be kept.
        active_s: When something last happened to it, by the monotonic clock.
    """

    open: set[int] = field(default_factory=set)
    spans: list[tuple[ReadableSpan, int]] = field(default_factory=list)
    runs: int = 0
    rejected_ids: set[object] = field(default_factory=set)
    active_s: float = 0.0

    @property
    def is_undecided(self) -> bool:
        return self.runs > len(self.rejected_ids)


class _Traces:
    """The state of a `KeepWorthy`: the traces that wait, and the decisions on earlier ones.

    Args:
        limits: What is held at most.

    Attributes:
        by_id: The traces of which a span is open or held; that idle for longest first.
        released_spans: The spans to be passed on, with their fates.
        counts: How many spans had which fate.
        held_spans: How many spans are held.
        held_bytes: Their bytes.
    """

    def __init__(self, limits: _Limits) -> None:
        self.by_id: OrderedDict[int, _Trace] = OrderedDict()
        self.released_spans: list[tuple[ReadableSpan, str]] = []
        self.counts: Counter[str] = Counter()
        self.held_spans = self.held_bytes = 0
        self._limits = limits
        self._decisions: OrderedDict[int, str] = OrderedDict()
        self._is_closed = False
        self._now_s = 0.0  # when something last happened

    def start(self, span: Span) -> None:
        """Note that a span is open."""
        context = span.get_span_context()
        trace = context and self._trace(context.trace_id)
        if context and trace:
            trace.open.add(context.span_id)

    def end(self, span: ReadableSpan) -> None:
        """Hold, release or drop a span that ended."""
        trace_id = span.context.trace_id
        has_failed = self._limits.keep_failed and span.status.status_code is StatusCode.ERROR
        if trace_id not in self.by_id:
            self._end_late(span, trace_id, has_failed)
            return
        trace = self._touch(trace_id)
        span_bytes = _bytes_of(span)
        trace.spans.append((span, span_bytes))
        trace.open.discard(span.context.span_id)
        self.held_spans += 1
        self.held_bytes += span_bytes
        if has_failed:
            self._close(trace_id, "failed")
        else:
            self._conclude(trace_id, trace)
        self._keep_within_limits()

    def expect(self, trace_id: int) -> None:
        """Announce a run."""
        trace = self._trace(trace_id)
        if trace is not None:
            trace.runs += 1

    def decide(self, trace_id: int, fate: str | None, run_id: str | None) -> None:
        """Decide a run; `fate` is None for one that is not to be kept."""
        if self._is_in_share(trace_id):
            return
        if trace_id not in self.by_id:
            self._remember(trace_id, fate or self._decisions.get(trace_id, "dropped"))
            return
        trace = self._touch(trace_id)
        if fate is not None:
            self._close(trace_id, fate)
        else:
            trace.rejected_ids.add(run_id or object())
            self._conclude(trace_id, trace)

    def close(self) -> None:
        """Release everything; what ends from here on is not held."""
        self._is_closed = True
        for trace_id in list(self.by_id):
            self._give_up(trace_id, "undecided_shutdown")

    def _trace(self, trace_id: int) -> _Trace | None:
        """Return the trace, a new one if it is not held; None if its spans are not to be held."""
        if trace_id in self.by_id:
            return self._touch(trace_id)
        fate = self._decisions.get(trace_id, "dropped")
        if self._is_closed or fate != "dropped" or self._is_in_share(trace_id):
            return None
        self.by_id[trace_id] = _Trace()
        trace = self._touch(trace_id)
        if trace_id in self._decisions:
            trace.runs, trace.rejected_ids = 1, {"an earlier run"}
        self._keep_within_limits()
        return trace

    def _touch(self, trace_id: int) -> _Trace:
        self.by_id.move_to_end(trace_id)
        trace = self.by_id[trace_id]
        trace.active_s = self._now_s = time.monotonic()
        return trace

    def _end_late(self, span: ReadableSpan, trace_id: int, has_failed: bool) -> None:
        """Release or drop a span whose trace is not held."""
        is_sampled = self._is_in_share(trace_id)
        fate = "sampled" if is_sampled else self._decisions.get(trace_id, "no_run")
        if fate == "dropped" and has_failed:
            fate = "failed"
            self._remember(trace_id, fate)
        self._let_go(span, fate)

    def _conclude(self, trace_id: int, trace: _Trace) -> None:
        """Release or drop a trace if it is decided and no span of it is open."""
        if not (trace.open or trace.is_undecided):
            self._give_up(trace_id, "")

    def _give_up(self, trace_id: int, undecided_fate: str) -> None:
        """Hold a trace no longer; `undecided_fate` is its fate if it is undecided."""
        trace = self.by_id[trace_id]
        fate = "dropped" if trace.rejected_ids else "no_run"
        self._close(trace_id, undecided_fate if trace.is_undecided else fate)

    def _close(self, trace_id: int, fate: str) -> None:
        trace = self.by_id.pop(trace_id)
        if fate != "no_run":  # a run that begins later decides what comes with it
            self._remember(trace_id, fate)
        for span, span_bytes in trace.spans:
            self.held_spans -= 1
            self.held_bytes -= span_bytes
            self._let_go(span, fate)

    def _let_go(self, span: ReadableSpan, fate: str) -> None:
        self.counts[fate] += 1
        if fate != "dropped":
            self.released_spans.append((span, fate))

    def _remember(self, trace_id: int, fate: str) -> None:
        self._decisions[trace_id] = fate
        self._decisions.move_to_end(trace_id)
        if len(self._decisions) > _MOST_DECISIONS:
            self._decisions.popitem(last=False)

    def _keep_within_limits(self) -> None:
        """Give up the traces that were idle for longest, if too much is held or for too long."""
        limits = self._limits
        latest_s = self._now_s - limits.max_wait_s
        while self.by_id:
            trace_id = next(iter(self.by_id))
            if self.by_id[trace_id].active_s <= latest_s:
                self._give_up(trace_id, "undecided_timeout")
            elif (
                self.held_spans > limits.max_spans
                or self.held_bytes > limits.max_bytes
                or len(self.by_id) > limits.max_spans
            ):
                self._give_up(trace_id, "undecided_limit")
            else:
                break

    def _is_in_share(self, trace_id: int) -> bool:
        """Return whether a trace is in the share of the rest: a function of its id alone."""
        return crc32(trace_id.to_bytes(16)) < self._limits.share_of_rest * 2**32


def _bytes_of(span: ReadableSpan) -> int:
    """Estimate the memory that a span takes; cheap rather than exact."""
    size = _SPAN_BYTES + _EVENT_BYTES * len(span.events)
    holders: list[Any] = [span.attributes, *(event.attributes for event in span.events)]
    for attributes in filter(None, holders):
        # The SDK's mapping takes a lock for each value that is read, and none for a copy.
        values = attributes.copy().values()
        size += _VALUE_BYTES * len(values)
        for value in values:
            size += getsizeof(value if type(value) is str else str(value))
    return size


def _is_sampled(span: ReadableSpan) -> bool:
    context = span.context
    return context is not None and context.trace_flags.sampled
