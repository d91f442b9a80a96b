"""Tail sampling: a span processor that exports the traces of the runs that are worth it."""

from __future__ import annotations

import time
from collections import Counter, OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
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

_FATES: Final = ("kept", "failed", "sampled", "no_run", "undecided", "dropped")
_MOST_DECISIONS = 10_000  # of traces that are no longer held, for their late spans
# As many spans as a BatchSpanProcessor exports at once. Its queue drops what comes faster than it
# exports, and a released trace comes all at once.
_BURST_SPANS = 512
_FLUSH_MS = 30_000


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

    A trace is exported as soon as one of its runs is to be kept or did not succeed, or one of its
    spans has the status error. Later spans of a trace follow its decision, as long as it is among
    the newest 10,000. A trace is kept as a whole: many runs under one root span are kept together
    or not at all. A span that fails after its trace was dropped is exported, and so are those after
    it.

    A trace that belongs to the share is exported as its spans end. Whether it does is a function of
    its id, so all processes agree. The function is not that of `TraceIdRatioBased`: after a sampler
    of that kind, all traces that are left would be in the share. Spans that a sampler left out are
    passed on unchanged.

    Undecided spans are exported in `shutdown`, when there are more than `max_spans`, and after
    `max_wait_s` without any span or decision; a warning says so once. Limits are checked whenever a
    span ends or a trace begins; the trace that was idle for longest goes first. No decision comes
    for runs that are not scored, such as cancelled, paused or empty ones. Call
    `KPCallbackHandler.send` before the tracer provider is shut down, so that decisions come first.

    Released spans are passed to the wrapped processor by the thread that released them. The thread
    that decides, and `shutdown`, flush it after every 512 spans, because its queue would drop what
    comes faster than it exports. An agent's thread never waits for an export. In a forked
    child nothing is held: the parent exports what it holds.

    Args:
        processor: The processor that exports. Every start of a span is passed on to it.
        share_of_rest: The share of traces exported whatever their runs' decision, 0 to 1.
        max_spans: How many spans are held at most, and of how many traces spans may be open.
        max_wait_s: How long a trace is held without any span or decision, in seconds.

    Raises:
        ConfigError: An argument is invalid.
    """

    name: ClassVar[str] = "keep_worthy"

    def __init__(
        self,
        processor: SpanProcessor,
        *,
        share_of_rest: float = 0.0,
        max_spans: int = 10_000,
        max_wait_s: float = 300.0,
    ) -> None:
        if not callable(getattr(processor, "on_end", None)):
            raise ConfigError(
                f"processor is {processor!r}; give a span processor such as BatchSpanProcessor"
            )
        if not 0 <= share_of_rest <= 1:
            raise ConfigError(f"share_of_rest is {share_of_rest!r}; give a number from 0 to 1")
        for name, value in (("max_spans", max_spans), ("max_wait_s", max_wait_s)):
            if not value > 0:
                raise ConfigError(f"{name} is {value!r}; give a number above 0")
        self._processor = processor
        self._new_traces = partial(_Traces, share_of_rest, max_spans, max_wait_s)
        self._lock = ForkSafeLock()
        self._is_shut_down = False
        self.leave_to_parent()
        leave_in_child(self)

    def leave_to_parent(self) -> None:
        """Forget everything, in a forked child."""
        self._traces = self._new_traces()
        self._changes: deque[tuple[Callable[..., None], tuple[Any, ...]]] = deque()
        self._burst = 0  # spans of threads that may wait, since the wrapped processor was flushed

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
        external = root_span(root_id)
        if external is not None:
            self.expect(int(external.trace_id, 16))
        return external

    def send(self, scored: ScoredTrace, external: ExternalTrace) -> None:
        """Decide a run; called by the handler, again after each verdict."""
        has_failed = scored.trace.metadata.success is False
        fate = "kept" if scored.decision == "kept" else "failed" if has_failed else "dropped"
        # Not the run's id, under which several handlers may each record and decide it.
        run_id = scored.stored_id or scored.trace.id
        self._change(self._traces.decide, int(external.trace_id, 16), fate, run_id, may_wait=True)

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
        fate = "kept" if keep else "dropped"
        self._change(self._traces.decide, trace_id, fate, run_id, may_wait=True)

    def counts(self) -> dict[str, int]:
        """Return how many spans had which fate, in this process.

        Returns:
            Of exported spans: `kept`, `failed`, `sampled` (in the share), `no_run` (of traces
            without a run) and `undecided`. Then `dropped`; `held` now; and `open_traces`, of which
            a span is open or held.
        """
        with self._lock:
            return {
                **{fate: self._traces.counts[fate] for fate in _FATES},
                "held": self._traces.held_spans,
                "open_traces": len(self._traces.by_id),
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
        self._change(self._traces.close, may_wait=True)
        self._call(self._processor.shutdown)

    def _change(self, change: Callable[..., None], *args: Any, may_wait: bool = False) -> None:
        """Change the state of the traces, and pass on what that releases.

        The garbage collector may end a span in the middle of a change. That one is made behind it,
        by the outer call.

        Args:
            change: A method of the state.
            args: Its arguments.
            may_wait: Whether this thread may wait for the wrapped processor's exports.
        """
        self._changes.append((change, args))
        while self._changes and not self._lock.is_held_here:
            with self._lock:
                self._make_changes()
                spans, self._traces.released_spans = self._traces.released_spans, []
            for span in spans:
                self._call(self._processor.on_end, span)
                self._burst += may_wait
                if self._burst >= _BURST_SPANS:
                    self._burst = 0
                    self._call(self._processor.force_flush, _FLUSH_MS)

    def _make_changes(self) -> None:
        while self._changes:
            change, args = self._changes.popleft()
            try:
                change(*args)
            except Exception as error:  # noqa: BLE001 - nothing of it may reach the agent
                warn_once("keep-worthy failed", "KeepWorthy failed: %s", describe_error(error))

    def _call(self, method: Callable[..., Any], *args: Any) -> Any:
        try:
            return method(*args)
        except Exception as error:  # noqa: BLE001 - nothing of it may reach the agent
            name = getattr(method, "__qualname__", "the wrapped processor")
            kind = type(error).__name__
            warn_once(f"keep-worthy {name} {kind}", "%s raised %s", name, kind)
            return False


@dataclass(slots=True)
class _Trace:
    """A trace of which a span is open or held.

    Attributes:
        open_ids: The ids of the open spans.
        spans: Those that ended.
        runs: The number of runs that were announced.
        rejected_ids: The ids of the runs that are not to be kept.
        active_s: When something last happened to it, by the monotonic clock.
    """

    open_ids: set[int] = field(default_factory=set)
    spans: list[ReadableSpan] = field(default_factory=list)
    runs: int = 0
    rejected_ids: set[object] = field(default_factory=set)
    active_s: float = 0.0

    @property
    def fate(self) -> str:
        """Its fate, once no span of it is open."""
        if self.runs > len(self.rejected_ids):
            return "undecided"
        return "dropped" if self.rejected_ids else "no_run"


class _Traces:
    """The state of a `KeepWorthy`: the traces that wait, and the decisions on earlier ones.

    Args:
        share: The share of traces that are exported whatever their decision, 0 to 1.
        max_spans: How many spans, and how many traces, are held at most.
        max_wait_s: How long an idle trace is held, in seconds.

    Attributes:
        by_id: The traces of which a span is open or held; that idle for longest first.
        released_spans: The spans to be passed on.
        counts: How many spans had which fate.
        held_spans: How many spans are held.
    """

    def __init__(self, share: float, max_spans: int, max_wait_s: float) -> None:
        self.by_id: OrderedDict[int, _Trace] = OrderedDict()
        self.released_spans: list[ReadableSpan] = []
        self.counts: Counter[str] = Counter()
        self.held_spans = 0
        self._share, self._max_spans, self._max_wait_s = share, max_spans, max_wait_s
        self._decisions: OrderedDict[int, str] = OrderedDict()
        self._is_closed = False

    def start(self, span: Span) -> None:
        """Note that a span is open."""
        context = span.context
        trace = self._trace(context.trace_id)
        if trace is not None:
            trace.open_ids.add(context.span_id)

    def end(self, span: ReadableSpan) -> None:
        """Hold, release or drop a span that ended."""
        trace_id = span.context.trace_id
        has_failed = span.status.status_code is StatusCode.ERROR
        if trace_id not in self.by_id:
            fate = self._decision_on(trace_id) or "no_run"
            if fate == "dropped" and has_failed:
                fate = "failed"
                self._remember(trace_id, fate)
            self._release_or_drop(span, fate)
            return
        trace = self._touch(trace_id)
        trace.spans.append(span)
        trace.open_ids.discard(span.context.span_id)
        self.held_spans += 1
        if has_failed:
            self._close(trace_id, "failed")
        else:
            self._conclude(trace_id)
        self._keep_within_limits()

    def expect(self, trace_id: int) -> None:
        """Announce a run."""
        trace = self._trace(trace_id)
        if trace is not None:
            trace.runs += 1

    def decide(self, trace_id: int, fate: str, run_id: str | None) -> None:
        """Decide a run: `kept`, `failed` or `dropped`."""
        earlier = self._decision_on(trace_id)
        if earlier == "sampled":
            return
        if trace_id not in self.by_id:
            self._remember(trace_id, fate if fate != "dropped" else earlier or fate)
        elif fate != "dropped":
            self._close(trace_id, fate)
        else:
            self._touch(trace_id).rejected_ids.add(run_id or object())
            self._conclude(trace_id)

    def close(self) -> None:
        """Release everything; what ends from here on is not held."""
        self._is_closed = True
        for trace_id in list(self.by_id):
            self._close(trace_id, self.by_id[trace_id].fate)

    def _trace(self, trace_id: int) -> _Trace | None:
        """Return the trace, a new one if it is not held; None if its spans are not to be held."""
        if trace_id not in self.by_id:
            decision = self._decision_on(trace_id)
            if self._is_closed or decision not in (None, "dropped"):
                return None
            # An earlier run of the trace may have been rejected.
            rejected_ids: set[object] = set() if decision is None else {decision}
            self.by_id[trace_id] = _Trace(runs=len(rejected_ids), rejected_ids=rejected_ids)
            self._touch(trace_id)
            self._keep_within_limits()
        return self._touch(trace_id)

    def _touch(self, trace_id: int) -> _Trace:
        self.by_id.move_to_end(trace_id)
        trace = self.by_id[trace_id]
        trace.active_s = time.monotonic()
        return trace

    def _conclude(self, trace_id: int) -> None:
        """Release or drop a trace if it is decided and no span of it is open."""
        trace = self.by_id[trace_id]
        if not trace.open_ids and trace.fate != "undecided":
            self._close(trace_id, trace.fate)

    def _close(self, trace_id: int, fate: str) -> None:
        """Hold a trace no longer."""
        trace = self.by_id.pop(trace_id)
        self.held_spans -= len(trace.spans)
        if fate != "no_run":  # a run that begins later decides what comes with it
            self._remember(trace_id, fate)
        if fate == "undecided":
            warn_once(
                "keep-worthy undecided",
                "KeepWorthy exports traces that are not decided: max_spans or max_wait_s was "
                "reached, or the tracer provider is shut down before KPCallbackHandler.send",
            )
        for span in trace.spans:
            self._release_or_drop(span, fate)

    def _release_or_drop(self, span: ReadableSpan, fate: str) -> None:
        self.counts[fate] += 1
        if fate != "dropped":
            self.released_spans.append(span)

    def _remember(self, trace_id: int, fate: str) -> None:
        self._decisions[trace_id] = fate
        self._decisions.move_to_end(trace_id)
        if len(self._decisions) > _MOST_DECISIONS:
            self._decisions.popitem(last=False)

    def _keep_within_limits(self) -> None:
        """Close the traces that were idle for longest, if too much is held or for too long."""
        latest_s = time.monotonic() - self._max_wait_s
        while self.by_id:
            trace_id, trace = next(iter(self.by_id.items()))
            is_too_much = max(self.held_spans, len(self.by_id)) > self._max_spans
            if not is_too_much and trace.active_s > latest_s:
                break
            self._close(trace_id, trace.fate)

    def _decision_on(self, trace_id: int) -> str | None:
        """Return the decision on a trace, which is `sampled` for the share of the rest."""
        # A function of the id alone.
        if crc32(trace_id.to_bytes(16)) < self._share * 2**32:
            return "sampled"
        return self._decisions.get(trace_id)


def _is_sampled(span: ReadableSpan) -> bool:
    context = span.context
    return context is not None and context.trace_flags.sampled
