"""Tail sampling: a span processor that exports the traces of the runs that are worth it."""

from __future__ import annotations

import math
import threading
import time
import weakref
from collections import Counter, deque
from collections.abc import Callable
from contextlib import suppress
from numbers import Real
from typing import TYPE_CHECKING, Any, ClassVar, Literal
from uuid import UUID

from opentelemetry.context import Context
from opentelemetry.sdk.trace import ReadableSpan, Span, SpanProcessor
from opentelemetry.trace import StatusCode

from kp_langchain._forksafe import ForkSafeLock, leave_in_child
from kp_langchain._logging import describe_error, warn_once
from kp_langchain.errors import ConfigError
from kp_langchain.gate.run import ExternalTrace
from kp_langchain.integrations.opentelemetry.root_span import root_span
from kp_langchain.integrations.opentelemetry.span_size import span_bytes_of
from kp_langchain.integrations.opentelemetry.trace_share import EVERY_TRACE, spread

if TYPE_CHECKING:
    from kp_langchain.gate import ScoredTrace

__all__ = ["KeepWorthy"]

_Fate = Literal[
    "kept",
    "failed",
    "sampled",
    "no_run",
    "undecided_limit",
    "undecided_timeout",
    "undecided_flush",
    "undecided_shutdown",
    "undecided_error",
]
_FATES: tuple[_Fate, ...] = _Fate.__args__  # type: ignore[attr-defined]
_WARNINGS = {
    "undecided_limit": "max_spans or max_bytes was reached",
    "undecided_timeout": "no decision came within max_wait_s",
    "undecided_flush": "force_flush was called before their decision came",
    "undecided_shutdown": "the tracer provider was shut down before their decision came",
    "undecided_error": "KeepWorthy failed",
}
_MOST_DECISIONS = 10_000  # of traces that are no longer held, for their late spans
# As many spans as a BatchSpanProcessor exports at once. Its queue drops what comes faster than it
# exports, and a released trace comes all at once.
_BURST_SPANS = 512
_LONGEST_PERIOD_S = 5.0
_FLUSH_MS = 30_000
_DECISION_WAIT_S = 5.0
_LONGEST_LOOK_S = 0.05
_HANDING_WAIT_S = 5.0


class KeepWorthy(SpanProcessor):
    """A span processor that holds the spans of a run until it is decided whether to keep it.

    Wrap the processor that exports, and add this one to the tracer provider in its place:

        exporter = BatchSpanProcessor(OTLPSpanExporter())
        keep_worthy = KeepWorthy(exporter, share_of_rest=0.05)
        tracer_provider.add_span_processor(keep_worthy)
        handler = KPCallbackHandler(send_scores_to=[keep_worthy])

    The handler announces each run, and tells what became of it.

    Spans are held by trace, from the first one that starts in this process until no local root is
    open: a span without a parent, with a parent in another process, or the first one seen of its
    trace. What happens then depends on the trace:

    - No run was announced: its spans are exported at once, such as those of a web
      request without an agent.
    - All announced runs are decided, and none is to be kept: its spans are dropped when none is
      open any more, except for the share `share_of_rest`.
    - A run is undecided: its spans wait.

    A trace is exported as soon as one of its runs is to be kept or did not succeed, or one of its
    spans has the status error. Later spans of a trace follow its decision, as long as it is among
    the newest 10,000. A trace is kept as a whole: many runs under one root span are kept together
    or not at all. If a span fails after its trace was dropped, that span is exported and so are
    those after it.

    A trace that belongs to the share is exported as its spans end. Whether it does is a function of
    its id, so all processes agree. The function is not that of `TraceIdRatioBased`, because the
    share would otherwise be taken from what a sampler of that kind left over, which is all of it.
    Spans that a sampler left out are passed on unchanged.

    Nothing is lost: undecided spans are exported, the oldest trace first, when a limit is reached,
    after `max_wait_s` without any span or decision, in `force_flush`, in `shutdown`, and when
    something fails here. `counts` counts them by reason, and each reason is logged once. Call
    `KPCallbackHandler.send` before the tracer provider is shut down, so that decisions come first.
    No decision comes for runs that are not scored, such as cancelled, paused or empty ones.

    The agent's thread never waits for an export, if the wrapped processor exports on a thread of
    its own, as `BatchSpanProcessor` does and `SimpleSpanProcessor` does not. Released spans are
    passed to the wrapped processor by the thread that released them, and beyond 512 by a thread of
    this processor. That thread flushes the wrapped processor between batches, because its queue
    would drop what comes faster than it exports. The same thread finds the traces that have waited
    too long; a check when a span ends would not release them in an idle process. In a forked child
    nothing is held: the parent exports what it holds.

    Args:
        processor: The processor that exports. It is told of the start of every span.
        share_of_rest: The share of traces exported whatever their runs' decision, 0 to 1.
        max_spans: How many spans are held at most, and of how many traces spans may be open.
        max_bytes: How many bytes the held spans take at most. A span's size is an estimate, from
            the number of its attributes and events and the sizes of their strings.
        max_wait_s: How long a trace is held without any span or decision, in seconds. It may be a
            tenth longer.
        keep_failed: Whether a trace is exported if one of its spans has the status error, or one of
            its runs did not succeed.

    Raises:
        ConfigError: An argument is invalid.
    """

    name: ClassVar[str] = "keep_worthy"

    _deciding_thread: int | None
    _handing: int
    _is_watched: bool

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
        _check_number("share_of_rest", share_of_rest, 0, 1)
        _check_number("max_spans", max_spans, 1)
        _check_number("max_bytes", max_bytes, 1)
        _check_number("max_wait_s", max_wait_s, 0.001)
        self._processor = processor
        self._sampled_below = round(share_of_rest * EVERY_TRACE)
        self._max_spans, self._max_bytes = max_spans, max_bytes
        self._max_wait_s = max_wait_s
        self._keep_failed = keep_failed
        self._clock: Callable[[], float] = time.monotonic
        self._lock = ForkSafeLock()
        self._is_shut_down = False
        self.leave_to_parent()
        leave_in_child(self)

    def on_start(self, span: Span, parent_context: Context | None = None) -> None:
        """Pass the start of a span on, and note that it is open."""
        self._call(self._processor.on_start, span, parent_context)
        if _is_sampled(span):
            self._submit(self._start, span)

    def _on_ending(self, span: Span) -> None:
        hook = getattr(self._processor, "_on_ending", None)
        if hook is not None:
            self._call(hook, span)

    def on_end(self, span: ReadableSpan) -> None:
        """Hold, pass on or drop a span that ended."""
        if _is_sampled(span):
            self._submit(self._end, span)
            self._hand_over()
            self._ensure_watched()
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
        fate: _Fate | None = "kept" if scored.decision == "kept" else None
        if fate is None and self._keep_failed and scored.trace.metadata.success is False:
            fate = "failed"
        # Not the run's id, under which several handlers may each record and decide it.
        run_id = scored.stored_id or scored.trace.id
        self._submit_decision(int(external.trace_id, 16), fate, run_id)

    def expect(self, trace_id: int) -> None:
        """Announce a run, once, so that its trace waits for its decision.

        Call it while a span of the trace is open. It takes microseconds and never raises. Spans of
        the trace that were passed on before stay passed on.

        Args:
            trace_id: OpenTelemetry's id of the trace that the run is in.
        """
        self._submit(self._expect, trace_id)

    def decide(self, trace_id: int, *, keep: bool, run_id: str | None = None) -> None:
        """Decide a run, before or after its spans ended.

        If a trace has several runs, one that is kept is enough. A decision to keep a trace is also
        followed after one not to, by what is still held of the trace and what comes later.

        Args:
            trace_id: OpenTelemetry's id of the trace that the run is in.
            keep: Whether the trace is exported.
            run_id: Any id of the run. With it, deciding the same run again decides no other one.
        """
        self._submit_decision(trace_id, "kept" if keep else None, run_id)

    def _submit_decision(self, trace_id: int, fate: _Fate | None, run_id: str | None) -> None:
        self._deciding_thread = threading.get_ident()
        self._submit(self._decide, (trace_id, fate, run_id))
        self._has_news.set()
        self._hand_over()
        self._ensure_watched()

    def counts(self) -> dict[str, int]:
        """Return how many spans had which fate, in this process.

        Returns:
            Of exported spans: `kept`, `failed`, `sampled` (in the share), `no_run` (of traces
            without a run), and `undecided_limit`, `undecided_timeout`, `undecided_flush`,
            `undecided_shutdown` and `undecided_error`. Then `dropped`; `held` and `held_bytes` now;
            `open_traces`, of which a span is open or held; and `errors` of the wrapped processor.
        """
        with self._lock:
            return {
                **{fate: self._counts[fate] for fate in _FATES},
                "dropped": self._counts["dropped"],
                "held": self._held,
                "held_bytes": self._held_bytes,
                "open_traces": len(self._traces),
                "errors": self._counts["errors"],
            }

    def force_flush(self, timeout_millis: int = _FLUSH_MS) -> bool:
        """Export what is decided, and traces that ended in this process without a decision.

        Waits for the decisions on traces that ended, for half of the time and no longer than five
        seconds, unless the calling thread is the one that decides. Traces with an open local root
        stay held.

        Args:
            timeout_millis: The longest time to take, in milliseconds.

        Returns:
            False if the time was not enough.
        """
        began_s = time.monotonic()
        timeout_s = timeout_millis / 1000
        self._await_decisions(began_s + min(timeout_s / 2, _DECISION_WAIT_S))
        self._submit(self._release_ended, None)
        is_complete = self._drain(began_s + timeout_s)
        left_ms = max(1, int((began_s + timeout_s - time.monotonic()) * 1000))
        return self._flush_processor(left_ms) and is_complete

    def shutdown(self) -> None:
        """Export everything that is held, and shut the wrapped processor down.

        Waits up to five seconds for decisions on traces that ended, as `force_flush` does.
        """
        if not self._is_shut_down:
            self._await_decisions(time.monotonic() + _DECISION_WAIT_S)
        with self._lock:
            if self._is_shut_down:
                return
            self._is_shut_down = True  # what ends from here on is passed on
        self._submit(self._release_all, None)
        self._drain(time.monotonic() + _FLUSH_MS / 1000)
        self._wake.set()
        self._call(self._processor.shutdown)

    # Events. Each is handled under the lock, by the thread that finds it first.

    def _submit(self, handle: Callable[[Any], None], subject: Any) -> None:
        try:
            self._events.append((handle, subject))
            self._handle_events()
        except Exception as error:  # noqa: BLE001 - nothing of it may reach the agent
            warn_once("keep-worthy failed", "KeepWorthy failed: %s", describe_error(error))

    def _handle_events(self) -> None:
        """Handle all events, unless this thread is already doing so.

        The garbage collector may end a span in the middle of it; the outer call handles that one.
        """
        while self._events and not self._lock.is_held_here:
            with self._lock:
                if self._events:
                    self._handle(*self._events.popleft())

    def _handle(self, handle: Callable[[Any], None], subject: Any) -> None:
        try:
            handle(subject)
        except BaseException as error:
            if handle == self._end and not self._holds(subject):
                self._pass_on(subject, "undecided_error")
            if not isinstance(error, Exception):
                raise
            warn_once("keep-worthy failed", "KeepWorthy failed: %s", describe_error(error))

    def _start(self, span: Span) -> None:
        context = span.get_span_context()
        if context is None or self._is_shut_down or self._is_in_share(context.trace_id):
            return
        trace = self._trace(context.trace_id)
        if trace is None:
            return
        trace.open.add(context.span_id)
        if span.parent is None or span.parent.is_remote or not trace.roots:
            trace.roots.add(context.span_id)
        if len(self._traces) > self._max_spans:
            self._release_early(next(iter(self._traces)), "undecided_limit")

    def _end(self, span: ReadableSpan) -> None:
        context = span.context
        if context is None or self._is_shut_down:
            self._immediate.append(span)
            return
        trace_id = context.trace_id
        if self._is_in_share(trace_id):
            self._pass_on(span, "sampled")
            return
        is_failed = self._keep_failed and span.status.status_code is StatusCode.ERROR
        trace = self._traces.get(trace_id)
        if trace is None:
            self._end_late(span, trace_id, is_failed)
            return
        span_bytes = span_bytes_of(span)
        self._held += 1
        self._held_bytes += span_bytes
        trace.spans.append((span, span_bytes))
        if len(trace.spans) == 1:
            self._holding[trace_id] = trace
        trace.active_s = self._clock()
        trace.open.discard(context.span_id)
        trace.roots.discard(context.span_id)
        if is_failed:
            self._release(trace_id, "failed")
        else:
            self._settle(trace_id, trace)
        while self._is_over_limits():
            if self._released:
                self._overflow()
            else:
                self._release_early(next(iter(self._holding)), "undecided_limit")

    def _end_late(self, span: ReadableSpan, trace_id: int, is_failed: bool) -> None:
        fate = self._decisions.get(trace_id, "no_run")
        if fate == "dropped" and is_failed:
            fate = "failed"
            self._remember(trace_id, fate)
        if fate == "dropped":
            self._counts[fate] += 1
        else:
            self._pass_on(span, fate)

    def _expect(self, trace_id: int) -> None:
        if self._is_shut_down or self._is_in_share(trace_id):
            return
        trace = self._trace(trace_id)
        if trace is not None:
            trace.undecided_runs += 1

    def _decide(self, decision: tuple[int, _Fate | None, str | None]) -> None:
        trace_id, fate, run_id = decision
        trace = self._traces.get(trace_id)
        if trace is None:
            if not self._is_in_share(trace_id):
                former = self._decisions.get(trace_id, "dropped")
                self._remember(trace_id, fate or former)
        elif fate is not None:
            self._release(trace_id, fate)
        else:
            if run_id is None or run_id not in trace.rejected:
                trace.rejected.add(run_id)
                trace.undecided_runs = max(0, trace.undecided_runs - 1)
            trace.has_rejected_runs = True
            trace.active_s = self._clock()
            self._settle(trace_id, trace)

    def _release_overdue(self, _: None) -> None:
        latest_s = self._clock() - self._max_wait_s
        overdue = [key for key, trace in self._traces.items() if trace.active_s <= latest_s]
        for trace_id in overdue:
            self._release_early(trace_id, "undecided_timeout")

    def _release_ended(self, _: None) -> None:
        for trace_id in self._ended_undecided():
            self._release_early(trace_id, "undecided_flush")

    def _release_all(self, _: None) -> None:
        for trace_id in list(self._traces):
            self._release_early(trace_id, "undecided_shutdown")

    # The state of a trace

    def _trace(self, trace_id: int) -> _Trace | None:
        """Return the trace, a new one if it is not held; None if its spans are passed on."""
        trace = self._traces.get(trace_id)
        if trace is None:
            fate = self._decisions.get(trace_id)
            if fate not in (None, "dropped"):
                return None
            trace = self._traces[trace_id] = _Trace(has_rejected_runs=fate == "dropped")
        trace.active_s = self._clock()
        return trace

    def _settle(self, trace_id: int, trace: _Trace) -> None:
        """Release or drop a trace if nothing can change its fate any more."""
        if trace.roots or trace.undecided_runs:
            return
        if not trace.has_rejected_runs:
            self._release(trace_id, "no_run", is_remembered=False)
        elif not trace.open:
            self._drop(trace_id)

    def _release_early(self, trace_id: int, fate: _Fate) -> None:
        """Release a trace, or drop it if it ended and only spans without an end are missing."""
        trace = self._traces[trace_id]
        if trace.undecided_runs or (trace.has_rejected_runs and trace.roots):
            self._release(trace_id, fate)
        elif trace.has_rejected_runs:
            self._drop(trace_id)
        elif fate == "undecided_limit":
            self._release(trace_id, fate)
        else:
            self._release(trace_id, "no_run", is_remembered=False)
            if fate == "undecided_timeout":  # a run that begins later decides what comes from here
                trace.spans = []
                trace.active_s = self._clock()
                self._traces[trace_id] = trace

    def _release(self, trace_id: int, fate: _Fate, *, is_remembered: bool = True) -> None:
        trace = self._traces.pop(trace_id)
        self._holding.pop(trace_id, None)
        if is_remembered:
            self._remember(trace_id, fate)
        self._released.extend(trace.spans)
        self._count(fate, len(trace.spans))

    def _drop(self, trace_id: int) -> None:
        trace = self._traces.pop(trace_id)
        self._holding.pop(trace_id, None)
        self._remember(trace_id, "dropped")
        self._held -= len(trace.spans)
        self._held_bytes -= sum(size for _, size in trace.spans)
        self._counts["dropped"] += len(trace.spans)

    def _remember(self, trace_id: int, fate: _Fate | Literal["dropped"]) -> None:
        self._decisions.pop(trace_id, None)  # so that the newest are last
        self._decisions[trace_id] = fate
        if len(self._decisions) > _MOST_DECISIONS:
            del self._decisions[next(iter(self._decisions))]

    def _ended_undecided(self) -> list[int]:
        return [
            trace_id
            for trace_id, trace in self._traces.items()
            if trace.undecided_runs and not trace.roots
        ]

    def _is_in_share(self, trace_id: int) -> bool:
        if self._sampled_below in (0, EVERY_TRACE):
            return self._sampled_below != 0
        return spread(trace_id) < self._sampled_below

    def _is_over_limits(self) -> bool:
        return self._held > self._max_spans or self._held_bytes > self._max_bytes

    def _holds(self, span: ReadableSpan) -> bool:
        trace = span.context and self._traces.get(span.context.trace_id)
        return trace is not None and any(span is held for held, _ in trace.spans)

    def _pass_on(self, span: ReadableSpan, fate: _Fate) -> None:
        self._immediate.append(span)
        self._count(fate, 1)

    def _count(self, fate: _Fate, spans: int) -> None:
        self._counts[fate] += spans
        if spans and fate in _WARNINGS and fate not in self._warned:
            self._warned.add(fate)
            self._warnings.append(fate)

    # The way out. A span is taken from a queue under the lock, and passed on without it, because
    # the wrapped processor may wait for locks of its own.

    def _hand_over(self, *, is_paced: bool = True) -> None:
        if self._lock.is_held_here or not (self._immediate or self._released or self._warnings):
            return
        is_handing = False
        try:
            while True:
                with self._lock:
                    if is_handing:
                        self._handing = max(0, self._handing - 1)  # 0 in a child forked meanwhile
                    span = self._next_span(is_paced)
                    is_handing = span is not None
                    self._handing += is_handing
                if span is not None:
                    self._call(self._processor.on_end, span)
                elif self._events:  # ended by the garbage collector meanwhile
                    self._handle_events()
                else:
                    break
        finally:
            if is_handing:
                with self._lock:
                    self._handing = max(0, self._handing - 1)
        while self._warnings:
            with suppress(IndexError):
                self._warn(self._warnings.popleft())

    def _next_span(self, is_paced: bool) -> ReadableSpan | None:
        if self._immediate:
            return self._immediate.popleft()
        if not self._released:
            return None
        if is_paced and self._burst >= _BURST_SPANS:
            self._wake.set()
            return None
        span, span_bytes = self._released.popleft()
        self._held -= 1
        self._held_bytes -= span_bytes
        self._burst += 1
        return span

    def _overflow(self) -> None:
        """Have the next released span passed on at once, to make room for held ones."""
        span, span_bytes = self._released.popleft()
        self._held -= 1
        self._held_bytes -= span_bytes
        self._immediate.append(span)

    def _drain(self, deadline_s: float) -> bool:
        """Pass on all released spans; return whether they were passed on by the deadline."""
        self._hand_over()
        while self._released and time.monotonic() < deadline_s:
            self._flush_processor(max(1, int((deadline_s - time.monotonic()) * 1000)))
            self._burst = 0
            self._hand_over()
        is_complete = not self._released
        self._hand_over(is_paced=False)
        handing_deadline_s = min(deadline_s, time.monotonic() + _HANDING_WAIT_S)
        while self._handing and time.monotonic() < handing_deadline_s:
            time.sleep(0.001)
        return is_complete and not self._handing

    def _flush_processor(self, timeout_ms: int) -> bool:
        return self._call(self._processor.force_flush, timeout_ms) is not False

    def _call(self, method: Callable[..., Any], *args: Any) -> Any:
        try:
            return method(*args)
        except Exception as error:  # noqa: BLE001 - nothing of it may reach the agent
            with self._lock:
                self._counts["errors"] += 1
            name = getattr(method, "__qualname__", "the wrapped processor")
            kind = type(error).__name__
            warn_once(f"keep-worthy {name} {kind}", "%s raised %s", name, kind)
            return False

    def _warn(self, fate: str) -> None:
        warn_once(
            f"keep-worthy {fate}",
            "spans of undecided traces are exported, because %s",
            _WARNINGS[fate],
        )

    # Time

    def _await_decisions(self, deadline_s: float) -> None:
        while self._deciding_thread != threading.get_ident():
            self._has_news.clear()
            with self._lock:
                is_waiting = bool(self._ended_undecided())
            left_s = deadline_s - time.monotonic()
            if not is_waiting or left_s <= 0:
                break
            self._has_news.wait(min(left_s, _LONGEST_LOOK_S))  # another flush may clear it

    def _ensure_watched(self) -> None:
        if not self._needs_watching():
            return
        with self._lock:
            if not self._needs_watching():
                return
            self._is_watched = True
        period_s = min(self._max_wait_s / 10, _LONGEST_PERIOD_S)
        thread = threading.Thread(
            target=_watch,
            args=(weakref.ref(self), self._wake, period_s),
            name="kp_langchain-keep-worthy",
            daemon=True,
        )
        try:
            thread.start()
        except RuntimeError:  # no more threads, or the interpreter is ending
            self._is_watched = False
            self._submit(self._release_overdue, None)
            self._hand_over(is_paced=False)

    def _needs_watching(self) -> bool:
        is_idle = not (self._traces or self._released)
        return not (self._is_watched or self._is_shut_down or is_idle)

    def _tend(self) -> None:
        """Release what has waited too long, and pass on what came too fast."""
        self._submit(self._release_overdue, None)
        self._hand_over()
        while self._released or self._burst >= _BURST_SPANS:
            self._flush_processor(_FLUSH_MS)
            self._burst = 0
            self._hand_over()

    def leave_to_parent(self) -> None:
        """Forget everything, in a forked child."""
        self._events: deque[tuple[Callable[[Any], None], Any]] = deque()
        self._traces: dict[int, _Trace] = {}
        self._holding: dict[int, _Trace] = {}  # those with spans, the oldest first
        self._released: deque[tuple[ReadableSpan, int]] = deque()  # still held
        self._immediate: deque[ReadableSpan] = deque()
        self._decisions: dict[int, _Fate | Literal["dropped"]] = {}
        self._counts: Counter[str] = Counter()
        self._held = self._held_bytes = 0
        self._burst = 0  # released spans passed on since the wrapped processor was flushed
        self._handing = 0  # spans being passed on
        self._warned: set[str] = set()
        self._warnings: deque[str] = deque()
        self._deciding_thread = None
        self._has_news, self._wake = threading.Event(), threading.Event()
        self._is_watched = False


class _Trace:
    """A trace in this process."""

    __slots__ = (
        "active_s",
        "has_rejected_runs",
        "open",
        "rejected",
        "roots",
        "spans",
        "undecided_runs",
    )

    def __init__(self, *, has_rejected_runs: bool) -> None:
        self.open: set[int] = set()  # ids of spans
        self.roots: set[int] = set()  # those of local roots
        self.spans: list[tuple[ReadableSpan, int]] = []  # that ended, with their bytes
        self.undecided_runs = 0
        self.rejected: set[str | None] = set()  # ids of runs that were decided, and are not kept
        self.has_rejected_runs = has_rejected_runs
        self.active_s = 0.0


def _watch(reference: weakref.ref[KeepWorthy], wake: threading.Event, period_s: float) -> None:
    while True:
        wake.wait(period_s)
        wake.clear()
        processor = reference()
        if processor is None or processor._is_shut_down:  # noqa: SLF001 - same module
            return
        processor._tend()  # noqa: SLF001 - same module
        del processor


def _is_sampled(span: ReadableSpan) -> bool:
    context = span.context
    return context is not None and context.trace_flags.sampled


def _check_number(name: str, value: object, least: float, most: float = math.inf) -> None:
    is_number = isinstance(value, Real) and not isinstance(value, bool)
    if not (is_number and least <= value <= most):  # type: ignore[operator]
        limits = f"from {least} to {most}" if most < math.inf else f"of at least {least}"
        raise ConfigError(f"{name} is {value!r}; give a number {limits}")
