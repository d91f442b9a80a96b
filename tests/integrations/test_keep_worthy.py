"""Which spans a KeepWorthy exports, when, and that none is lost or exported twice."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading
import tracemalloc
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any
from unittest.mock import ANY
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from langchain_core.callbacks import BaseCallbackHandler

pytest.importorskip("opentelemetry.sdk", reason="needs opentelemetry-sdk")

from opentelemetry.context import Context
from opentelemetry.sdk.trace import ReadableSpan, Span, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import (
    BatchSpanProcessor,
    SimpleSpanProcessor,
    SpanExporter,
    SpanExportResult,
)
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, TraceIdRatioBased
from opentelemetry.trace import (
    NonRecordingSpan,
    SpanContext,
    StatusCode,
    TraceFlags,
    set_span_in_context,
)

from kp_langchain import DomainPolicy, ScoredTrace
from kp_langchain.errors import ConfigError
from kp_langchain.integrations.opentelemetry import KeepWorthy, keep_worthy
from tests import agents

FOREVER_S = 120


@pytest.fixture(scope="module", autouse=True)
def _short_waits() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(keep_worthy, "_DECISION_WAIT_S", 0.05)
        yield


class Rig:
    """A tracer provider with a KeepWorthy, and the names of the exported spans."""

    def __init__(self, processor: SpanProcessor | None = None, **options: Any) -> None:
        self.exporter = InMemorySpanExporter()
        self.keep = KeepWorthy(processor or SimpleSpanProcessor(self.exporter), **options)
        self.now_s = 0.0
        self.keep._clock = lambda: self.now_s
        self.provider = TracerProvider(shutdown_on_exit=False)
        self.provider.add_span_processor(self.keep)
        self.tracer = self.provider.get_tracer("test")

    def start(self, name: str, parent: Any = None) -> Any:
        return self.tracer.start_span(name, set_span_in_context(parent) if parent else Context())

    def trace(self, *names: str, runs: int = 1) -> int:
        """End spans of the names below a root, which ends last; return the trace's id."""
        root = self.start("root")
        for _ in range(runs):
            self.keep.expect(trace_of(root))
        for name in names:
            self.start(name, root).end()
        root.end()
        return trace_of(root)

    @property
    def exported(self) -> list[str]:
        return [span.name for span in self.exporter.get_finished_spans()]

    def fates(self) -> dict[str, int]:
        """The counts that are not 0."""
        return {fate: spans for fate, spans in self.keep.counts().items() if spans}


def trace_of(span: Any) -> int:
    trace_id: int = span.get_span_context().trace_id
    return trace_id


@pytest.fixture
def rig() -> Iterator[Rig]:
    rig = Rig()
    yield rig
    rig.provider.shutdown()


class Counting(SpanExporter):
    """Counts spans by name and keeps none."""

    def __init__(self) -> None:
        self.names: Counter[str] = Counter()

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        self.names.update(span.name for span in spans)
        return SpanExportResult.SUCCESS


# What becomes of a trace


def test_the_spans_of_a_run_wait_for_its_decision(rig: Rig) -> None:
    trace_id = rig.trace("model", "tool")
    assert rig.exported == []
    rig.keep.decide(trace_id, keep=True)
    assert rig.exported == ["model", "tool", "root"]
    assert rig.fates() == {"kept": 3}


def test_a_run_that_is_not_kept_leaves_no_span(rig: Rig) -> None:
    rig.keep.decide(rig.trace("model"), keep=False)
    assert rig.exported == []
    assert rig.fates() == {"dropped": 2}


def test_a_trace_without_a_run_is_exported_when_its_local_root_ends(rig: Rig) -> None:
    root = rig.start("request")
    query = rig.start("query", root)
    query.end()
    assert rig.exported == []
    root.end()
    assert rig.exported == ["query", "request"]
    assert rig.fates() == {"no_run": 2}


def test_a_span_with_a_remote_parent_is_a_local_root(rig: Rig) -> None:
    parent = NonRecordingSpan(SpanContext(5, 6, is_remote=True, trace_flags=TraceFlags(1)))
    rig.start("request", parent).end()
    assert rig.exported == ["request"]


def test_two_requests_of_one_trace_each_wait_for_their_own_runs(rig: Rig) -> None:
    parent = NonRecordingSpan(SpanContext(5, 6, is_remote=True, trace_flags=TraceFlags(1)))
    rig.start("first", parent).end()
    second = rig.start("second", parent)
    rig.keep.expect(5)
    rig.start("model", second).end()
    second.end()
    assert rig.exported == ["first"]
    rig.keep.decide(5, keep=False)
    assert rig.fates() == {"no_run": 1, "dropped": 2}


def test_a_failed_trace_is_exported_at_once_and_whole(rig: Rig) -> None:
    root = rig.start("root")
    rig.keep.expect(trace_of(root))
    rig.start("model", root).end()
    tool = rig.start("tool", root)
    tool.set_status(StatusCode.ERROR)
    tool.end()
    assert rig.exported == ["model", "tool"]
    root.end()
    rig.keep.decide(trace_of(root), keep=False)
    assert rig.exported == ["model", "tool", "root"]


def test_deciding_a_run_again_decides_no_other_run_of_its_trace(rig: Rig) -> None:
    root = rig.start("request")
    for _ in range(2):
        rig.keep.expect(trace_of(root))
    for _ in range(3):  # scored, and twice after a verdict
        rig.keep.decide(trace_of(root), keep=False, run_id="first")
    root.end()
    assert rig.fates() == {"held": 1, "held_bytes": ANY, "open_traces": 1}
    rig.keep.decide(trace_of(root), keep=True, run_id="second")
    assert rig.exported == ["request"]


def test_a_shutdown_waits_for_decisions_that_are_under_way(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(keep_worthy, "_DECISION_WAIT_S", 300.0)
    rig = Rig()
    trace_id = rig.trace("model")
    is_waiting = threading.Event()

    class News(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            is_waiting.set()
            return super().wait(timeout)

    rig.keep._has_news = News()
    shutdown = threading.Thread(target=rig.provider.shutdown)
    shutdown.start()
    assert is_waiting.wait(FOREVER_S)
    rig.keep.decide(trace_id, keep=False)
    shutdown.join(300)
    assert rig.fates() == {"dropped": 2}


def test_failed_traces_can_be_left_to_the_decision() -> None:
    rig = Rig(keep_failed=False)
    root = rig.start("root")
    rig.keep.expect(trace_of(root))
    root.set_status(StatusCode.ERROR)
    root.end()
    rig.keep.decide(trace_of(root), keep=False)
    assert rig.fates() == {"dropped": 1}


@pytest.mark.parametrize("keep", [True, False])
def test_a_decision_may_come_before_the_spans_end_and_before_they_start(
    rig: Rig, keep: bool
) -> None:
    root = rig.start("root")
    model = rig.start("model", root)
    rig.keep.expect(trace_of(root))
    rig.keep.decide(trace_of(root), keep=keep)
    model.end()
    root.end()
    rig.keep.decide(7, keep=keep)
    parent = NonRecordingSpan(SpanContext(7, 6, is_remote=True, trace_flags=TraceFlags(1)))
    rig.start("later", parent).end()
    assert rig.exported == (["model", "root", "later"] if keep else [])
    assert rig.keep.counts()["open_traces"] == 0


@pytest.mark.parametrize("first", [True, False])
def test_one_kept_run_is_enough_for_a_trace_with_several(rig: Rig, first: bool) -> None:
    trace_id = rig.trace("model", runs=2)
    rig.keep.decide(trace_id, keep=first)
    rig.keep.decide(trace_id, keep=not first)
    assert rig.exported == ["model", "root"]


def test_a_trace_with_two_runs_is_dropped_after_both_decisions(rig: Rig) -> None:
    trace_id = rig.trace("model", runs=2)
    rig.keep.decide(trace_id, keep=False)
    assert rig.keep.counts()["held"] == 2
    rig.keep.decide(trace_id, keep=False)
    assert rig.fates() == {"dropped": 2}


@pytest.mark.parametrize("keep", [True, False])
def test_a_late_span_follows_the_decision(rig: Rig, keep: bool) -> None:
    root = rig.start("root")
    rig.keep.expect(trace_of(root))
    root.end()
    rig.keep.decide(trace_of(root), keep=keep)
    rig.start("late", root).end()
    assert rig.exported == (["root", "late"] if keep else [])


def test_a_late_run_that_is_kept_keeps_what_comes_with_it(rig: Rig) -> None:
    root = rig.start("root")
    rig.keep.expect(trace_of(root))
    root.end()
    rig.keep.decide(trace_of(root), keep=False)
    again = rig.start("again", root)
    rig.keep.expect(trace_of(root))
    rig.start("model", again).end()
    again.end()
    rig.keep.decide(trace_of(root), keep=True)
    assert rig.exported == ["model", "again"]


def test_a_dropped_trace_waits_for_its_open_spans_and_is_kept_if_one_fails(rig: Rig) -> None:
    root = rig.start("root")
    rig.keep.expect(trace_of(root))
    background = rig.start("background", root)
    root.end()
    rig.keep.decide(trace_of(root), keep=False)
    assert rig.keep.counts()["held"] == 1
    background.set_status(StatusCode.ERROR)
    background.end()
    assert rig.exported == ["root", "background"]


def test_a_span_that_fails_after_its_trace_was_dropped_is_exported(rig: Rig) -> None:
    root = rig.start("root")
    rig.keep.expect(trace_of(root))
    late = rig.start("late", root)
    root.end()
    rig.keep.decide(trace_of(root), keep=False)
    rig.now_s = 301
    rig.keep._tend()
    late.set_status(StatusCode.ERROR)
    late.end()
    rig.start("later", root).end()
    assert rig.exported == ["late", "later"]


def test_spans_whose_start_was_not_seen_are_passed_on() -> None:
    rig = Rig()
    provider = TracerProvider(shutdown_on_exit=False)
    span = provider.get_tracer("test").start_span("early", Context())
    provider.add_span_processor(rig.keep)
    span.end()
    assert rig.exported == ["early"]


def test_only_the_newest_decisions_are_remembered(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keep_worthy, "_MOST_DECISIONS", 2)
    for trace_id in (1, 2, 3):
        rig.keep.decide(trace_id, keep=False)
    assert list(rig.keep._decisions) == [2, 3]


# The share of the rest


def test_the_share_is_a_function_of_the_trace_id_and_about_as_large_as_stated() -> None:
    rigs = Rig(share_of_rest=0.2), Rig(share_of_rest=0.2)
    ids = [rigs[0].provider.id_generator.generate_trace_id() for _ in range(5000)]
    chosen = [[one for one in ids if rig.keep._is_in_share(one)] for rig in rigs]
    assert chosen[0] == chosen[1]
    assert 800 < len(chosen[0]) < 1200


def test_the_share_is_taken_evenly_from_what_a_sampler_of_the_start_left() -> None:
    sampler = TraceIdRatioBased(0.1)
    rig = Rig(share_of_rest=0.1)
    ids = [rig.provider.id_generator.generate_trace_id() for _ in range(50_000)]
    left = [one for one in ids if sampler.should_sample(None, one, "name").decision.is_sampled()]
    in_share = sum(map(rig.keep._is_in_share, left))
    assert 0.05 < in_share / len(left) < 0.15


@pytest.mark.parametrize("share", [0.0, 1.0, 0.5])
def test_the_share_is_exported_as_it_ends_and_the_rest_is_dropped(share: float) -> None:
    rig = Rig(share_of_rest=share)
    ids = [rig.trace("model") for _ in range(64)]
    in_share = 2 * sum(map(rig.keep._is_in_share, ids))
    assert len(rig.exported) == in_share
    for trace_id in ids:
        rig.keep.decide(trace_id, keep=False)
    assert rig.keep.counts()["sampled"] == in_share == len(rig.exported)
    assert rig.keep.counts()["dropped"] == 128 - in_share


def test_spans_that_the_sampler_left_out_are_passed_on_as_they_come() -> None:
    seen = Watching()
    keep = KeepWorthy(seen)
    context = SpanContext(1, 2, is_remote=False, trace_flags=TraceFlags(0))
    keep.on_end(ReadableSpan("left out", context))
    assert seen.calls == ["end left out"]
    provider = TracerProvider(sampler=ALWAYS_OFF, shutdown_on_exit=False)
    provider.add_span_processor(keep)
    provider.get_tracer("test").start_span("root").end()
    assert keep.counts()["open_traces"] == 0


# Limits


def test_the_oldest_trace_is_exported_when_there_are_too_many_spans(
    caplog: pytest.LogCaptureFixture,
) -> None:
    rig = Rig(max_spans=5)
    first = rig.trace("a", "b")
    rig.trace("c", "d")
    assert rig.exported == ["a", "b", "root"]
    rig.trace("e", "f")
    assert rig.exported == ["a", "b", "root", "c", "d", "root"]
    assert rig.fates() == {"undecided_limit": 6, "held": 3, "held_bytes": 9600, "open_traces": 1}
    rig.keep.decide(first, keep=False)  # comes too late
    assert [record.getMessage() for record in caplog.records] == [
        "spans of undecided traces are exported, because max_spans or max_bytes was reached"
    ]


def test_a_trace_that_is_exported_early_goes_on_to_be_exported() -> None:
    rig = Rig(max_spans=2)
    root = rig.start("root")
    rig.keep.expect(trace_of(root))
    for name in "abcd":
        rig.start(name, root).end()
    root.end()
    rig.keep.decide(trace_of(root), keep=False)
    assert rig.exported == ["a", "b", "c", "d", "root"]
    assert rig.keep.counts()["held"] == 0


def test_a_span_larger_than_all_memory_allowed_is_passed_on() -> None:
    rig = Rig(max_bytes=10_000)
    root = rig.start("root")
    rig.keep.expect(trace_of(root))
    root.set_attribute("text", "x" * 20_000)
    root.end()
    assert rig.exported == ["root"]
    assert rig.keep.counts()["held_bytes"] == 0


def test_traces_with_open_spans_alone_are_bounded_in_number() -> None:
    rig = Rig(max_spans=10)
    spans = [rig.start(f"{number}") for number in range(30)]
    assert rig.keep.counts()["open_traces"] == 10
    for span in spans:
        span.end()
    assert sorted(rig.exported, key=int) == [f"{number}" for number in range(30)]


def test_an_undecided_trace_is_exported_after_max_wait_s() -> None:
    rig = Rig(max_wait_s=60)
    rig.trace("model")
    rig.now_s = 59
    rig.keep._tend()
    assert rig.exported == []
    rig.now_s = 60
    rig.keep._tend()
    assert rig.exported == ["model", "root"]
    assert rig.fates() == {"undecided_timeout": 2}


def test_a_long_run_is_held_as_long_as_its_spans_come() -> None:
    rig = Rig(max_wait_s=60)
    root = rig.start("root")
    rig.keep.expect(trace_of(root))
    for number in range(10):
        rig.now_s += 50
        rig.start(f"{number}", root).end()
        rig.keep._tend()
    assert rig.exported == []
    assert rig.keep.counts()["held"] == 10


def test_a_dropped_trace_does_not_wait_for_ever_for_a_span_without_an_end() -> None:
    rig = Rig(max_wait_s=60)
    root = rig.start("root")
    rig.keep.expect(trace_of(root))
    leaked = rig.start("leaked", root)
    root.end()
    rig.keep.decide(trace_of(root), keep=False)
    rig.now_s = 60
    rig.keep._tend()
    assert rig.fates() == {"dropped": 1}
    leaked.end()
    assert rig.fates() == {"dropped": 2}


def test_a_long_request_without_a_run_does_not_keep_later_runs() -> None:
    rig = Rig(max_wait_s=60)
    root = rig.start("request")
    rig.start("query", root).end()
    rig.now_s = 60
    rig.keep._tend()
    assert rig.exported == ["query"]
    chain = rig.start("chain", root)
    rig.keep.expect(trace_of(root))
    chain.end()
    rig.keep.decide(trace_of(root), keep=False)
    root.end()
    assert rig.fates() == {"no_run": 1, "dropped": 2}


def test_an_open_trace_beyond_the_limit_is_exported_whole() -> None:
    rig = Rig(max_spans=1)
    root, other = rig.start("root"), rig.start("other")
    rig.keep.expect(trace_of(root))
    rig.keep.decide(trace_of(root), keep=False)
    rig.start("model", root).end()
    root.end()
    other.end()
    assert rig.fates() == {"undecided_limit": 2, "no_run": 1}


def test_an_idle_process_still_exports_after_max_wait_s() -> None:
    exported = threading.Event()

    class Telling(SpanProcessor):
        def on_end(self, span: ReadableSpan) -> None:
            exported.set()

    rig = Rig(Telling(), max_wait_s=0.01)
    rig.keep._clock = keep_worthy.time.monotonic
    rig.trace()
    assert exported.wait(FOREVER_S)
    rig.provider.shutdown()


def test_a_thousand_open_traces_stay_within_max_bytes() -> None:
    counting = Counting()
    rig = Rig(SimpleSpanProcessor(counting), max_bytes=8_000_000)
    gc.collect()
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        roots = [rig.start("root") for _ in range(1000)]
        for root in roots:
            rig.keep.expect(trace_of(root))
            for number in range(10):
                rig.start("model", root).set_attribute(f"text.{number}", "x" * 1000)
                child = rig.start("model", root)
                child.set_attribute("text", f"{number}" * 1000)
                child.end()
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    counts = rig.keep.counts()
    assert 7_000_000 < counts["held_bytes"] <= 8_000_000
    assert counts["held"] + counts["undecided_limit"] + counts["kept"] == 10_000
    assert sum(counting.names.values()) == 10_000 - counts["held"]
    # Beside the held spans, a thousand traces with ten open spans each
    assert held - before < 20_000_000
    rig.provider.shutdown()


def test_the_size_of_a_span_is_of_the_order_of_what_it_takes() -> None:
    rig = Rig(max_bytes=10**9)
    root = rig.start("root")
    rig.keep.expect(trace_of(root))
    gc.collect()
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        for number in range(500):
            span = rig.start("model", root)
            for field in range(20):
                span.set_attribute(f"llm.messages.{field}", f"{number} {field} " * 30)
            span.add_event("event", {"text": f"{number}" * 50})
            span.end()
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert 0.6 < rig.keep.counts()["held_bytes"] / (after - before) < 1.7


@pytest.mark.parametrize(
    "value",
    ["x" * 10_000, ["x" * 5000, "y" * 5000], {"a": [{"b": "x" * 10_000}]}],
    ids=["text", "sequence", "nested"],
)
def test_a_size_counts_strings_wherever_they_are(rig: Rig, value: Any) -> None:
    root = rig.start("root")
    rig.keep.expect(trace_of(root))
    root.set_attribute("value", value)
    root.end()
    assert 13_000 < rig.keep.counts()["held_bytes"] < 15_000


# Nothing lost, nothing twice


def test_shutdown_exports_what_is_held_and_then_shuts_the_processor_down() -> None:
    exporter = Counting()
    rig = Rig(BatchSpanProcessor(exporter))
    for _ in range(100):
        rig.trace("model")
    root = rig.start("open")
    rig.keep.expect(trace_of(root))
    rig.start("child", root).end()
    rig.provider.shutdown()
    assert exporter.names == {"model": 100, "root": 100, "child": 1}
    assert rig.fates() == {"undecided_shutdown": 201}
    root.end()
    rig.keep.expect(1)
    rig.keep.decide(1, keep=True)
    rig.keep.shutdown()
    assert rig.keep.counts()["held"] == 0


def test_a_trace_larger_than_the_queue_of_the_batch_processor_is_exported_whole() -> None:
    exporter = Counting()
    rig = Rig(BatchSpanProcessor(exporter))
    trace_ids = [rig.trace(*["model"] * 6000), rig.trace(*["tool"] * 6000)]
    for trace_id in trace_ids:
        rig.keep.decide(trace_id, keep=True)
    assert rig.provider.force_flush()
    assert exporter.names == {"model": 6000, "tool": 6000, "root": 2}
    rig.provider.shutdown()


def test_a_limit_makes_no_agent_wait_for_the_exporter() -> None:
    """Released spans that wait for a slow exporter are passed on, too, when there are too many."""
    stuck, release = threading.Event(), threading.Event()

    class Slow(SpanProcessor):
        passed = 0

        def on_end(self, span: ReadableSpan) -> None:
            self.passed += 1

        def force_flush(self, timeout_millis: int = 0) -> bool:
            stuck.set()
            return release.wait(FOREVER_S)

    slow = Slow()
    rig = Rig(slow, max_spans=2000)
    rig.keep.decide(rig.trace(*["model"] * 1500), keep=True)
    assert stuck.wait(FOREVER_S)
    assert slow.passed == 512
    rig.trace(*["model"] * 1500)
    assert rig.keep.counts()["held"] == 2000
    assert slow.passed == 3002 - 2000
    release.set()
    rig.provider.shutdown()
    assert slow.passed == 3002


def test_force_flush_waits_for_the_decision_of_another_thread(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keep_worthy, "_DECISION_WAIT_S", 300.0)
    trace_id = rig.trace("model")
    thread = threading.Thread(target=rig.keep.decide, args=(trace_id,), kwargs={"keep": False})
    thread.start()
    assert rig.provider.force_flush(600_000)
    thread.join()
    assert rig.exported == []


def test_force_flush_exports_what_ended_undecided_and_holds_what_goes_on(rig: Rig) -> None:
    rig.trace("model")
    root = rig.start("open")
    rig.keep.expect(trace_of(root))
    rig.start("child", root).end()
    assert rig.provider.force_flush(10)
    assert rig.exported == ["model", "root"]
    assert rig.keep.counts()["undecided_flush"] == 2
    assert rig.keep.counts()["held"] == 1


def test_force_flush_does_not_wait_for_its_own_thread_to_decide(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig.keep.decide(rig.trace("model"), keep=False)
    rig.trace("undecided")
    monkeypatch.setattr(rig.keep._has_news, "wait", lambda _: pytest.fail("waits"))
    assert rig.provider.force_flush()
    assert rig.exported == ["undecided", "root"]


def test_force_flush_reports_a_processor_that_fails_to_flush() -> None:
    class Failing(SpanProcessor):
        def force_flush(self, timeout_millis: int = 0) -> bool:
            return False

    assert not Rig(Failing()).keep.force_flush(100)


class Watching(SpanProcessor):
    def __init__(self) -> None:
        self.calls: list[str] = []

    def on_start(self, span: Span, parent_context: Context | None = None) -> None:
        span.set_attribute("stamped", True)
        self.calls.append(f"start {span.name}")

    def on_end(self, span: ReadableSpan) -> None:
        self.calls.append(f"end {span.name}")

    def shutdown(self) -> None:
        self.calls.append("shutdown")


def test_the_processor_is_told_of_every_start_and_may_set_attributes() -> None:
    watching = Watching()
    rig = Rig(watching)
    trace_id = rig.trace("model")
    assert watching.calls == ["start root", "start model"]
    assert all(span.attributes["stamped"] for span, _ in rig.keep._traces[trace_id].spans)
    rig.keep.decide(trace_id, keep=True)
    rig.provider.shutdown()
    assert watching.calls[2:] == ["end model", "end root", "shutdown"]


class Raising(SpanProcessor):
    def on_start(self, span: Span, parent_context: Context | None = None) -> None:
        raise ValueError("secret")

    def on_end(self, span: ReadableSpan) -> None:
        raise ValueError("secret")

    def force_flush(self, timeout_millis: int = 0) -> bool:
        raise ValueError("secret")

    def shutdown(self) -> None:
        raise ValueError("secret")


def test_a_processor_that_raises_reaches_neither_the_agent_nor_the_log_with_its_words(
    caplog: pytest.LogCaptureFixture,
) -> None:
    rig = Rig(Raising())
    rig.keep.decide(rig.trace("model"), keep=True)
    assert not rig.provider.force_flush()
    rig.provider.shutdown()
    assert rig.keep.counts()["errors"] == 6
    assert "Raising.on_end raised ValueError" in caplog.text
    assert "secret" not in caplog.text


@pytest.mark.parametrize("part", ["_settle", "_is_in_share", "_clock"])
def test_a_failure_of_its_own_exports_the_spans_once(
    rig: Rig, part: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError

    with monkeypatch.context() as patch:
        patch.setattr(rig.keep, part, fail)
        trace_id = rig.trace("model")
    rig.keep.decide(trace_id, keep=True)
    rig.provider.shutdown()
    assert sorted(rig.exported) == ["model", "root"]
    assert "KeepWorthy failed: RuntimeError" in caplog.text


def test_an_interrupt_in_the_middle_of_an_end_loses_no_span(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(_: object) -> int:
        raise KeyboardInterrupt

    root = rig.start("root")
    with monkeypatch.context() as patch:
        patch.setattr(keep_worthy, "span_bytes_of", interrupt)
        with pytest.raises(KeyboardInterrupt):
            root.end()
    rig.provider.shutdown()
    assert rig.exported == ["root"]


def test_a_span_that_ends_in_the_middle_of_another_end_is_held_like_others(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when the garbage collector finalises a stream while the lock is held."""
    root = rig.start("root")
    rig.keep.expect(trace_of(root))
    collected = [rig.start("collected", root)]
    measure = keep_worthy.span_bytes_of

    def collect(span: ReadableSpan) -> int:
        assert rig.keep._lock.is_held_here
        if collected:
            collected.pop().end()
        return measure(span)

    monkeypatch.setattr(keep_worthy, "span_bytes_of", collect)
    rig.start("model", root).end()
    assert rig.keep.counts()["held"] == 2
    root.end()
    rig.keep.decide(trace_of(root), keep=True)
    assert rig.exported == ["model", "collected", "root"]


def test_a_span_that_ends_while_the_processor_is_called_is_exported() -> None:
    """As when the garbage collector finalises a stream while a span is passed on."""

    class Collecting(SpanProcessor):
        def __init__(self) -> None:
            self.names: list[str] = []

        def on_end(self, span: ReadableSpan) -> None:
            if span.name == "root":
                rig.start("collected").end()
            self.names.append(span.name)

    collecting = Collecting()
    rig = Rig(collecting)
    rig.trace(runs=0)
    assert sorted(collecting.names) == ["collected", "root"]


def test_eight_threads_lose_nothing_and_export_nothing_twice() -> None:
    exporter = InMemorySpanExporter()
    rig = Rig(SimpleSpanProcessor(exporter), max_spans=300)
    ended, wanted = [], set()
    most_held = 0
    lock = threading.Lock()

    def work(seed: int) -> None:
        nonlocal most_held
        for number in range(100):
            root = rig.start(f"{seed} {number} root")
            is_run, keep, fails = number % 5 > 0, number % 3 == 0, number % 11 == 0
            if is_run:
                rig.keep.expect(trace_of(root))
            names = [f"{seed} {number} {child}" for child in range(5)]
            for name in names:
                rig.start(name, root).end()
            if fails:
                root.set_status(StatusCode.ERROR)
            root.end()
            names.append(f"{seed} {number} root")
            if is_run and number % 7:
                rig.keep.decide(trace_of(root), keep=keep)
            held = rig.keep.counts()["held"]
            with lock:
                ended.extend(names)
                most_held = max(most_held, held)
                if not is_run or fails or (keep and number % 7):
                    wanted.update(names)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    rig.provider.shutdown()
    counts = rig.keep.counts()
    exported = Counter(span.name for span in exporter.get_finished_spans())
    assert set(exported.values()) == {1}
    assert wanted <= exported.keys()
    assert len(exported) + counts["dropped"] == len(ended) == 4800
    assert most_held <= 300
    assert counts["held"] == counts["held_bytes"] == 0


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
def test_a_forked_child_exports_its_own_spans_and_none_of_its_parent() -> None:
    script = """
import os, threading
from opentelemetry.context import Context
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, ConsoleSpanExporter
from kp_langchain.integrations.opentelemetry import KeepWorthy, keep_worthy

def say(span):
    return f"{os.getpid() == parent} {span.name}\\n"

keep_worthy._DECISION_WAIT_S = 0.05
parent = os.getpid()
provider = TracerProvider()
keep = KeepWorthy(BatchSpanProcessor(ConsoleSpanExporter(formatter=say)))
provider.add_span_processor(keep)
tracer = provider.get_tracer("test")

def run(name):
    span = tracer.start_span(name, Context())
    trace_id = span.get_span_context().trace_id
    keep.expect(trace_id)
    span.end()
    return trace_id

first = run("first")
holder, held, done = keep._lock, threading.Event(), threading.Event()
def hold():
    with holder:
        held.set()
        done.wait()
thread = threading.Thread(target=hold)
thread.start()
held.wait()
child = os.fork()
done.set()
if child == 0:
    keep.decide(first, keep=True)
    keep.decide(run("of the child"), keep=True)
    run("undecided in the child")
    assert keep.counts()["kept"] == 1, keep.counts()
    raise SystemExit  # with the atexit of the tracer provider
thread.join()
assert os.waitpid(child, 0)[1] == 0
run("second")
"""
    done = subprocess.run(
        [sys.executable, "-W", "ignore::DeprecationWarning", "-c", script],
        capture_output=True, text=True, timeout=FOREVER_S,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == [
        "False of the child",
        "False undecided in the child",
        "True first",
        "True second",
    ]


def test_a_process_that_ends_exports_what_it_holds() -> None:
    script = """
from opentelemetry.context import Context
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, ConsoleSpanExporter
from opentelemetry.trace import set_span_in_context
from kp_langchain.integrations.opentelemetry import KeepWorthy, keep_worthy

keep_worthy._DECISION_WAIT_S = 0.05
provider = TracerProvider()
exporter = ConsoleSpanExporter(formatter=lambda span: span.name + "\\n")
keep = KeepWorthy(BatchSpanProcessor(exporter))
provider.add_span_processor(keep)
tracer = provider.get_tracer("test")
for number in range(1000):
    root = tracer.start_span("root", Context())
    keep.expect(root.get_span_context().trace_id)
    for _ in range(4):
        tracer.start_span("child", set_span_in_context(root)).end()
    if number % 2:
        root.end()
"""
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=FOREVER_S
    )
    assert done.returncode == 0, done.stderr
    assert Counter(done.stdout.splitlines()) == {"child": 4000, "root": 500}


# Any order

KINDS = ("start", "end", "fail", "expect", "keep", "drop", "wait", "tend", "flush")


@given(
    st.lists(st.tuples(st.sampled_from(KINDS), st.integers(0, 3), st.integers(0, 3)), max_size=60),
    st.integers(1, 12),
    st.integers(3000, 30_000),
    st.sampled_from([0.0, 0.5]),
)
def test_in_any_order_each_span_is_exported_or_dropped_once_within_the_limits(
    operations: list[tuple[str, int, int]], max_spans: int, max_bytes: int, share: float
) -> None:
    rig = Rig(max_spans=max_spans, max_bytes=max_bytes, max_wait_s=10, share_of_rest=share)
    rig.keep._deciding_thread = threading.get_ident()  # so that a flush does not wait
    open_spans: dict[int, list[Any]] = {trace: [] for trace in range(4)}
    ids = dict.fromkeys(range(4), 0)
    ended = 0
    for kind, trace, number in operations:
        spans = open_spans[trace]
        if kind == "start":
            spans.append(rig.start("span", spans[number % len(spans)] if spans else None))
            ids[trace] = trace_of(spans[-1])
        elif kind in ("end", "fail") and spans:
            span = spans.pop(number % len(spans))
            if kind == "fail":
                span.set_status(StatusCode.ERROR)
            span.end()
            ended += 1
        elif kind == "expect":
            rig.keep.expect(ids[trace])
        elif kind in ("keep", "drop"):
            rig.keep.decide(ids[trace], keep=kind == "keep")
        elif kind == "wait":
            rig.now_s += number * 4
        elif kind == "tend":
            rig.keep._tend()
        elif kind == "flush":
            assert rig.keep.force_flush(1000)
        counts = rig.keep.counts()
        assert counts["held"] <= max_spans
        assert counts["held_bytes"] <= max_bytes
        assert counts["open_traces"] <= max_spans + 4
        exported = [span.context.span_id for span in rig.exporter.get_finished_spans()]
        assert len(exported) == len(set(exported))
        assert len(exported) + counts["dropped"] + counts["held"] == ended
        assert sum(counts[fate] for fate in keep_worthy._FATES) == len(exported)
    rig.provider.shutdown()
    counts = rig.keep.counts()
    assert counts["held"] == counts["held_bytes"] == counts["open_traces"] == 0
    assert len(rig.exporter.get_finished_spans()) + counts["dropped"] == ended


@st.composite
def stories(draw: st.DrawFn) -> list[tuple[int, str]]:
    """Steps of some traces, interleaved: each with a root, children, runs and their decisions."""
    traces = []
    for trace in range(draw(st.integers(1, 4))):
        children = draw(st.integers(0, 4))
        runs = draw(st.lists(st.sampled_from(["keep", "drop", "never"]), max_size=3))
        inside = ["child"] * children + ["fail"] * draw(st.integers(0, 1))
        steps = ["root", *["expect"] * len(runs), *draw(st.permutations(inside)), "end"]
        for decision in runs:
            if decision != "never":
                steps.insert(draw(st.integers(1 + len(runs), len(steps))), decision)
        traces.append([(trace, step) for step in steps])
    story = []
    while traces:
        steps = traces[draw(st.integers(0, len(traces) - 1))]
        story.append(steps.pop(0))
        traces = [steps for steps in traces if steps]
    return story


@given(stories(), st.integers(1, 12), st.booleans())
def test_whatever_the_order_kept_and_failed_traces_are_exported_whole(
    story: list[tuple[int, str]], max_spans: int, waits: bool
) -> None:
    rig = Rig(max_spans=max_spans, max_wait_s=10)
    roots: dict[int, Any] = {}
    steps: dict[int, list[str]] = {}
    for trace, step in story:
        steps.setdefault(trace, []).append(step)
        if step == "root":
            roots[trace] = rig.start(f"{trace}")
        elif step == "expect":
            rig.keep.expect(trace_of(roots[trace]))
        elif step in ("keep", "drop"):
            rig.keep.decide(trace_of(roots[trace]), keep=step == "keep")
        elif step == "end":
            roots[trace].end()
        else:
            span = rig.start(f"{trace}", roots[trace])
            if step == "fail":
                span.set_status(StatusCode.ERROR)
            span.end()
        if waits:
            rig.now_s += 3
            rig.keep._tend()
    rig.provider.shutdown()
    exported = Counter(rig.exported)
    is_early = rig.keep.counts()["undecided_limit"] + rig.keep.counts()["undecided_timeout"]
    for trace, done in steps.items():
        spans = done.count("child") + done.count("fail") + done.count("end")
        must_go = {"keep", "fail"} & set(done) or done.count("drop") < done.count("expect")
        if must_go or "expect" not in done:
            assert exported[f"{trace}"] == spans
        elif not is_early:
            assert exported[f"{trace}"] == 0


# With LangChain


class Expecting(BaseCallbackHandler):
    """Announces a run at its first model or tool call."""

    run_inline = True

    def __init__(self, keep: KeepWorthy, get_span: Any) -> None:
        self.keep, self.get_span = keep, get_span
        self.trace_ids: dict[UUID, int] = {}
        self._roots: dict[UUID, UUID] = {}

    def on_chain_start(self, *_: Any, run_id: UUID, parent_run_id: UUID | None, **__: Any) -> None:
        self._roots[run_id] = self._roots.get(parent_run_id or run_id, run_id)

    def on_chat_model_start(self, *_: Any, parent_run_id: UUID | None, **__: Any) -> None:
        root = self._roots[parent_run_id] if parent_run_id else None
        if root is not None and root not in self.trace_ids:
            self.trace_ids[root] = trace_of(self.get_span(root))
            self.keep.expect(self.trace_ids[root])


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_agents_are_kept_by_what_became_of_their_runs() -> None:
    instrumentation = pytest.importorskip("openinference.instrumentation.langchain")
    exporter = InMemorySpanExporter()
    rig = Rig(BatchSpanProcessor(exporter))
    instrumentor = instrumentation.LangChainInstrumentor()
    instrumentor.instrument(tracer_provider=rig.provider, skip_dep_check=True)
    try:
        expecting = Expecting(rig.keep, instrumentor.get_span)
        keeping: dict[UUID, bool] = {}

        def decide(scored: ScoredTrace) -> None:
            keeping[scored.run_id] = scored.decision == "contributed"
            rig.keep.decide(expecting.trace_ids[scored.run_id], keep=keeping[scored.run_id])

        for threshold in (0.0, 1.0):
            recording = agents.handler(on_scored=decide, policy=DomainPolicy(threshold=threshold))
            config = {"callbacks": [expecting, recording]}
            agents.searching().invoke(agents.ASK, config)
            failing = agents.agent(agents.say("I try.", agents.call("broken", x="a")))
            with pytest.raises(ValueError, match="bad x=a"):
                failing.invoke(agents.ASK, config)
            assert recording.flush(FOREVER_S)
            recording.close()
    finally:
        instrumentor.uninstrument()
    rig.provider.shutdown()
    spans = exporter.get_finished_spans()
    exported = {span.context.trace_id for span in spans}
    kept = {expecting.trace_ids[run] for run, keep in keeping.items() if keep}
    failed = {span.context.trace_id for span in spans if not span.status.is_ok}
    assert len(expecting.trace_ids) == len(keeping) == 4
    assert len(failed) == 2
    assert exported == kept | failed
    assert len(exported) == 3
    counts = rig.keep.counts()
    assert counts["dropped"] > 3
    assert len(spans) == counts["kept"] + counts["failed"]


# Arguments


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("share_of_rest", 1.1),
        ("share_of_rest", float("nan")),
        ("share_of_rest", True),
        ("max_spans", 0),
        ("max_bytes", -1),
        ("max_wait_s", 0),
        ("max_wait_s", "long"),
    ],
)
def test_an_unusable_argument_is_named(name: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=f"{name} is"):
        KeepWorthy(SimpleSpanProcessor(InMemorySpanExporter()), **{name: value})


def test_a_processor_is_needed() -> None:
    with pytest.raises(ConfigError, match="give a span processor"):
        KeepWorthy(InMemorySpanExporter())  # type: ignore[arg-type]


def test_without_the_sdk_the_extra_is_named() -> None:
    script = """
import sys
sys.modules["opentelemetry.sdk.trace"] = None
from kp_langchain.errors import MissingExtraError
try:
    import kp_langchain.integrations.opentelemetry
except MissingExtraError as error:
    print(error)
"""
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=FOREVER_S
    )
    assert "pip install 'kp-langchain[opentelemetry]'" in done.stdout, done.stderr
