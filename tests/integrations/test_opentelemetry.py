"""`KeepWorthy`: which spans it exports, when, and that none is lost or exported twice; metrics."""

from __future__ import annotations

import asyncio
import re
import threading
import tomllib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("opentelemetry.sdk", reason="needs opentelemetry-sdk")

from opentelemetry.context import Context
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, Span, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import (
    BatchSpanProcessor,
    SimpleSpanProcessor,
    SpanExporter,
    SpanExportResult,
)
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF
from opentelemetry.trace import (
    NonRecordingSpan,
    SpanContext,
    StatusCode,
    TraceFlags,
    set_span_in_context,
)

from kp_langchain import ConfigError, DomainPolicy, KPCallbackHandler
from kp_langchain.integrations.opentelemetry import KeepWorthy, keep_worthy, observe
from tests.agents import ASK, agent, asearch, call, handler, say, searching
from tests.programs import Done


class Rig:
    """A tracer provider with a KeepWorthy, and the names of the exported spans."""

    def __init__(self, processor: SpanProcessor | None = None, **options: Any) -> None:
        sampler = options.pop("sampler", None)
        self.exporter = InMemorySpanExporter()
        self.keep = KeepWorthy(processor or SimpleSpanProcessor(self.exporter), **options)
        self.provider = TracerProvider(shutdown_on_exit=False, sampler=sampler)
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

    def wait(self, seconds: float) -> None:
        """Let time pass; that is noticed when a span starts or ends."""
        for trace in self.keep._traces.by_id.values():
            trace.active_s -= seconds

    @property
    def exported(self) -> list[str]:
        return [span.name for span in self.exporter.get_finished_spans()]

    def fates(self) -> dict[str, int]:
        """The counts of spans that are not 0."""
        counts = self.keep.counts()
        del counts["open_traces"]
        return {fate: spans for fate, spans in counts.items() if spans}


def trace_of(span: Any) -> int:
    trace_id: int = span.get_span_context().trace_id
    return trace_id


def remote_parent(trace_id: int) -> NonRecordingSpan:
    context = SpanContext(trace_id, 6, is_remote=True, trace_flags=TraceFlags(1))
    return NonRecordingSpan(context)


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


# ------------------------------------------------------------------ what becomes of a trace

STORIES = tomllib.loads(Path(__file__).with_name("traces.toml").read_text())


@pytest.mark.parametrize("story", STORIES)
def test_what_becomes_of_a_trace(story: str) -> None:
    row = STORIES[story]
    rig, spans, seen = Rig(**row.get("options", {})), dict[str, Any](), list[str]()
    for step in row["steps"].split():
        root = spans.get("root")
        word, _, run_id = step.partition(":")
        if step == "|":
            seen.append(" ".join(rig.exported))
        elif step == "expect":
            rig.keep.expect(trace_of(root))
        elif word in ("keep", "drop"):
            rig.keep.decide(trace_of(root), keep=word == "keep", run_id=run_id or None)
        elif re.fullmatch(r"\d+s", step):
            rig.wait(int(step[:-1]))
        elif step == "tick":
            rig.start("tick").end()
        else:
            name = step.rstrip("+-!")
            if name == step or step.endswith("+"):
                spans[name] = rig.start(name, root)
            if step.endswith("!"):
                spans[name].set_status(StatusCode.ERROR)
            if not step.endswith("+"):
                spans[name].end()
    assert [*seen, " ".join(rig.exported)] == [part.strip() for part in row["exported"].split("|")]
    assert rig.fates() == row["fates"]
    rig.provider.shutdown()


def test_each_request_of_a_trace_that_began_elsewhere_waits_for_its_own_runs(rig: Rig) -> None:
    rig.start("first", remote_parent(5)).end()
    second = rig.start("second", remote_parent(5))
    rig.keep.expect(5)
    rig.start("model", second).end()
    second.end()
    assert rig.exported == ["first"]
    rig.keep.decide(5, keep=False)
    assert rig.fates() == {"no_run": 1, "dropped": 2}
    for trace_id, keep in ((7, True), (8, False)):  # a decision before anything starts
        rig.keep.decide(trace_id, keep=keep)
        rig.start(f"{trace_id}", remote_parent(trace_id)).end()
    assert rig.exported == ["first", "7"]
    assert rig.keep.counts()["open_traces"] == 0


def test_only_the_newest_decisions_are_remembered(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keep_worthy, "_MOST_DECISIONS", 2)
    for trace_id in (1, 2, 3):
        rig.keep.decide(trace_id, keep=False)
    for trace_id in (1, 2, 3):
        rig.start(f"{trace_id}", remote_parent(trace_id)).end()
    assert rig.exported == ["1"]


def test_spans_of_which_nothing_is_decided_are_passed_on_as_they_come() -> None:
    seen = Watching()
    keep = KeepWorthy(seen)
    context = SpanContext(1, 2, is_remote=False, trace_flags=TraceFlags(0))
    keep.on_end(ReadableSpan("the sampler left it out", context))
    provider = TracerProvider(sampler=ALWAYS_OFF, shutdown_on_exit=False)
    provider.add_span_processor(keep)
    provider.get_tracer("test").start_span("root").end()
    assert keep.counts()["open_traces"] == 0
    other = TracerProvider(shutdown_on_exit=False)
    early = other.get_tracer("test").start_span("began before it was added", Context())
    other.add_span_processor(keep)
    early.end()
    assert seen.calls == ["end the sampler left it out", "end began before it was added"]


# ------------------------------------------------------------------ the share of the rest


@pytest.mark.parametrize("share", [0.0, 0.2, 1.0])
def test_the_share_is_a_function_of_the_trace_id_and_about_as_large_as_stated(
    share: float,
) -> None:
    rigs = Rig(share_of_rest=share), Rig(share_of_rest=share)
    ids = [rigs[0].provider.id_generator.generate_trace_id() for _ in range(500)]
    for rig in rigs:
        for number, trace_id in enumerate(ids):
            span = rig.start(f"{number}", remote_parent(trace_id))
            rig.keep.expect(trace_id)
            span.end()
        assert rig.keep.counts()["sampled"] == len(rig.exported)  # as they end
        for trace_id in ids:
            rig.keep.decide(trace_id, keep=False)
        assert len(rig.exported) + rig.keep.counts()["dropped"] == len(ids)
    assert rigs[0].exported == rigs[1].exported
    assert 0.6 * share <= len(rigs[0].exported) / len(ids) <= 1.4 * share


# ------------------------------------------------------------------ limits


def test_the_oldest_trace_is_exported_when_there_are_too_many_spans(
    caplog: pytest.LogCaptureFixture,
) -> None:
    rig = Rig(max_spans=5)
    first = rig.trace("a", "b")
    rig.trace("c", "d")
    assert rig.exported == ["a", "b", "root"]
    rig.trace("e", "f")
    assert rig.exported == ["a", "b", "root", "c", "d", "root"]
    assert rig.fates() == {"undecided": 6, "held": 3}
    rig.keep.decide(first, keep=False)  # comes too late
    assert [one.getMessage() for one in caplog.records if one.name == "kp_langchain"] == [
        "KeepWorthy exports traces that are not decided: max_spans or max_wait_s was reached, or "
        "the tracer provider is shut down before KPCallbackHandler.send"
    ]


# ------------------------------------------------------------------ nothing lost, nothing twice


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
    assert rig.fates() == {"undecided": 201}
    root.end()
    rig.keep.expect(1)
    rig.keep.decide(1, keep=True)
    rig.keep.shutdown()
    assert rig.keep.counts()["held"] == 0


def test_a_trace_larger_than_the_queue_of_the_batch_processor_is_exported_whole() -> None:
    exporter = Counting()
    rig = Rig(BatchSpanProcessor(exporter))
    for trace_id in [rig.trace(*["model"] * 3000), rig.trace(*["tool"] * 3000)]:
        rig.keep.decide(trace_id, keep=True)
    assert rig.provider.force_flush()
    assert exporter.names == {"model": 3000, "tool": 3000, "root": 2}
    rig.provider.shutdown()


def test_only_who_decides_waits_for_the_exporter() -> None:
    class Slow(SpanProcessor):
        passed = flushes = 0

        def on_end(self, span: ReadableSpan) -> None:
            self.passed += 1

        def force_flush(self, timeout_millis: int = 0) -> bool:
            self.flushes += 1
            return True

    slow = Slow()
    rig = Rig(slow, max_spans=2000)
    rig.trace(*["model"] * 3000)
    assert (slow.passed, slow.flushes) == (3001, 0)
    rig.keep.decide(rig.trace(*["model"] * 1500), keep=True)
    assert (slow.passed, slow.flushes) == (4502, 2)
    rig.provider.shutdown()


class Watching(SpanProcessor):
    def __init__(self) -> None:
        self.calls: list[str] = []
        self.stamped: list[bool] = []

    def on_start(self, span: Span, parent_context: Context | None = None) -> None:
        span.set_attribute("stamped", True)
        self.calls += [f"start {span.name}"] if span.is_recording() else []

    def on_end(self, span: ReadableSpan) -> None:
        self.calls.append(f"end {span.name}")
        self.stamped.append("stamped" in (span.attributes or {}))

    def force_flush(self, timeout_millis: int = 0) -> bool:
        return False

    def shutdown(self) -> None:
        self.calls.append("shutdown")


def test_the_processor_is_told_of_every_start_and_may_set_attributes() -> None:
    watching = Watching()
    rig = Rig(watching)
    trace_id = rig.trace("model")
    assert watching.calls == ["start root", "start model"]
    rig.keep.decide(trace_id, keep=True)
    assert not rig.keep.force_flush(100)  # it fails to flush
    rig.provider.shutdown()
    assert watching.calls[2:] == ["end model", "end root", "shutdown"]
    assert watching.stamped == [True, True]


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
    assert "Raising.on_end raised ValueError" in caplog.text
    assert "secret" not in caplog.text


def test_a_failure_of_its_own_reaches_no_agent(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(rig.keep._traces, "_touch", lambda _: 1 / 0)
    rig.trace("model")
    assert "KeepWorthy failed: ZeroDivisionError" in caplog.text


def test_spans_that_the_garbage_collector_ends_meanwhile_are_held_and_exported_like_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As when it finalises a stream while the lock is held, or while a span is passed on."""

    class Collecting(SimpleSpanProcessor):
        def on_end(self, span: ReadableSpan) -> None:
            if span.name == "root":
                rig.start("while passed on").end()
            super().on_end(span)

    exporter = InMemorySpanExporter()
    rig = Rig(Collecting(exporter))
    root = rig.start("root")
    rig.keep.expect(trace_of(root))
    collected = [rig.start("while held", root)]
    touch = rig.keep._traces._touch

    def collect(trace_id: int) -> Any:
        if collected:
            collected.pop().end()
        return touch(trace_id)

    monkeypatch.setattr(rig.keep._traces, "_touch", collect)
    rig.start("model", root).end()
    assert rig.keep.counts()["held"] == 2
    root.end()
    rig.keep.decide(trace_of(root), keep=True)
    names = [span.name for span in exporter.get_finished_spans()]
    assert sorted(names) == ["model", "root", "while held", "while passed on"]


def test_eight_threads_lose_nothing_and_export_nothing_twice() -> None:
    rig = Rig(max_spans=300)
    ended, wanted, most_held, lock = list[str](), set[str](), [0], threading.Lock()

    def work(seed: int) -> None:
        for number in range(60):
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
                most_held.append(held)
                if not is_run or fails or (keep and number % 7):
                    wanted.update(names)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    rig.provider.shutdown()
    counts, exported = rig.keep.counts(), Counter(rig.exported)
    assert set(exported.values()) == {1}
    assert wanted <= exported.keys()
    assert len(exported) + counts["dropped"] == len(ended) == 2880
    assert max(most_held) <= 300
    assert counts["held"] == 0


PROCESS = """
import os
from opentelemetry.context import Context
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, ConsoleSpanExporter
from kp_langchain.integrations.opentelemetry import KeepWorthy

parent, provider = os.getpid(), TracerProvider()
say = lambda span: f"{os.getpid() == parent} {span.name}\\n"
keep = KeepWorthy(BatchSpanProcessor(ConsoleSpanExporter(formatter=say)))
provider.add_span_processor(keep)

def run(name):
    span = provider.get_tracer("test").start_span(name, Context())
    keep.expect(span.get_span_context().trace_id)
    span.end()
    return span.get_span_context().trace_id

first = run("first")
"""
FORK = """
import threading
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
"""


@pytest.mark.parametrize("forks", [False, True])
def test_a_process_exports_what_it_holds_as_it_ends_and_a_forked_child_its_own_spans(
    forks: bool, run_python: Callable[..., Done]
) -> None:
    done = run_python(PROCESS + (FORK if forks else "") + 'run("second")')
    of_child = ["False of the child", "False undecided in the child"] if forks else []
    assert sorted(done.stdout.splitlines()) == [*of_child, "True first", "True second"]


# ------------------------------------------------------------------ any order


@st.composite
def interleaved_traces(draw: st.DrawFn) -> list[tuple[int, str]]:
    """Steps of some traces, interleaved: each with a root, children, runs and their decisions."""
    traces = []
    for trace in range(draw(st.integers(1, 4))):
        runs = draw(st.lists(st.sampled_from(["keep", "drop", "never"]), max_size=3))
        inside = draw(st.lists(st.sampled_from(["child", "open", "close"]), max_size=6))
        inside += ["fail"] * draw(st.integers(0, 1)) + ["flush"] * draw(st.integers(0, 1))
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


LOOSE = {"max_spans": 1000, "max_wait_s": 1000}


@given(
    interleaved_traces(),
    st.just(LOOSE)
    | st.fixed_dictionaries(
        {"max_spans": st.integers(1, 12), "max_wait_s": st.sampled_from([1, 10])}
    ),
    st.sampled_from([0, 0.5]),
)
def test_in_any_order_each_span_is_exported_or_dropped_once_and_what_is_worth_it_whole(
    story: list[tuple[int, str]], limits: dict[str, Any], share: float
) -> None:
    rig = Rig(share_of_rest=share, **limits)
    roots, spans, ended = dict[int, Any](), dict[int, list[Any]](), Counter[str]()
    for trace, step in story:
        root, name = roots.get(trace), f"{trace}"
        if step == "root":
            roots[trace], spans[trace] = rig.start(name), []
        elif step == "expect":
            rig.keep.expect(trace_of(root))
        elif step in ("keep", "drop"):
            rig.keep.decide(trace_of(root), keep=step == "keep")
        elif step == "flush":
            assert rig.keep.force_flush(60_000)
        elif step != "close" or spans[trace]:
            span = root if step == "end" else None
            span = spans[trace].pop() if step == "close" else span or rig.start(name, root)
            if step == "open":
                spans[trace].append(span)
                continue
            if step == "fail":
                span.set_status(StatusCode.ERROR)
            span.end()
            ended[name] += 1
        rig.wait(3)
        counts = rig.keep.counts()
        assert counts["held"] <= limits["max_spans"]
        assert counts["open_traces"] <= limits["max_spans"]
        assert len(rig.exported) + counts["dropped"] + counts["held"] == sum(ended.values())
    rig.provider.shutdown()
    counts, exported = rig.keep.counts(), Counter(rig.exported)
    assert counts["held"] == counts["open_traces"] == 0
    assert exported.total() + counts["dropped"] == ended.total()
    ids = {span.context.span_id for span in rig.exporter.get_finished_spans()}
    assert len(ids) == exported.total()
    for trace in roots if limits is LOOSE else ():
        steps = [step for each, step in story if each == trace]
        must_go = {"keep", "fail"} & set(steps) or steps.count("drop") < steps.count("expect")
        if must_go or "expect" not in steps:
            assert exported[f"{trace}"] == ended[f"{trace}"]
        elif not counts["sampled"]:
            assert exported[f"{trace}"] == 0


# ------------------------------------------------------------------ with the handler's decisions


@pytest.fixture
def traced() -> Iterator[tuple[KeepWorthy, InMemorySpanExporter]]:
    """A KeepWorthy that gets the spans of LangChain's runs."""
    instrumentation = pytest.importorskip("openinference.instrumentation.langchain")
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    processor = KeepWorthy(BatchSpanProcessor(exporter))
    provider.add_span_processor(processor)
    instrumentor = instrumentation.LangChainInstrumentor()
    instrumentor.instrument(tracer_provider=provider, skip_dep_check=True)
    yield processor, exporter
    instrumentor.uninstrument()
    provider.shutdown()


async def ask(handlers: list[KPCallbackHandler], number: int) -> None:
    runnable = agent(say("I search.", call("asearch", q=f"q{number}")), say("ok"), tools=(asearch,))
    domain = "kept" if number % 2 else "other"
    config: Any = {"callbacks": handlers, "metadata": {"kp_domain": domain}}
    await runnable.ainvoke({"messages": [("user", f"question {number}")]}, config)


@pytest.mark.filterwarnings("ignore")
class TestRuns:
    def test_only_the_traces_of_kept_runs_are_exported(self, traced: Any) -> None:
        processor, exporter = traced
        policies = {
            "kept": DomainPolicy(threshold=0.0, twin_similarity=1.0),
            "other": DomainPolicy(threshold=1.0),
        }
        watching = handler(policy=policies, send_scores_to=[processor])

        async def main() -> None:
            await asyncio.gather(*(ask([watching], number) for number in range(8)))

        asyncio.run(main())
        assert watching.send(60)
        assert processor.counts()["held"] == 0
        processor.force_flush()
        stats = watching.stats()
        assert (stats["kept"], stats["below_threshold"]) == (4, 4)
        roots = [span for span in exporter.get_finished_spans() if span.parent is None]
        texts = [str(dict(root.attributes or {})) for root in roots]
        assert sorted(re.findall(r"question (\d+)", text)[0] for text in texts) == list("1357")

    def test_a_run_that_one_of_two_handlers_keeps_is_exported(self, traced: Any) -> None:
        processor, exporter = traced
        handlers = [
            handler(policy=DomainPolicy(threshold=limit), send_scores_to=[processor])
            for limit in (1.0, 0.0)
        ]
        asyncio.run(ask(handlers, 1))
        assert all(one.send(60) for one in handlers)
        processor.force_flush()
        assert exporter.get_finished_spans()
        assert processor.counts()["dropped"] == 0


# ------------------------------------------------------------------ arguments


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("share_of_rest", 1.1), ("share_of_rest", float("nan")), ("max_spans", 0),
        ("max_wait_s", 0),
    ],
)  # fmt: skip
def test_an_unusable_argument_is_named(name: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=f"{name} is"):
        KeepWorthy(SimpleSpanProcessor(InMemorySpanExporter()), **{name: value})
    with pytest.raises(ConfigError, match="give a span processor"):
        KeepWorthy(InMemorySpanExporter())  # type: ignore[arg-type]


def test_without_the_sdk_the_extra_is_named(run_python: Callable[..., Done]) -> None:
    script = """
import sys
sys.modules["opentelemetry.sdk.trace"] = None
from kp_langchain.errors import MissingExtraError
try:
    import kp_langchain.integrations.opentelemetry
except MissingExtraError as error:
    print(error)
"""
    assert "pip install 'kp-langchain[opentelemetry]'" in run_python(script).stdout


# ------------------------------------------------------------------ metrics


def metrics(reader: InMemoryMetricReader) -> dict[tuple[str, str], Any]:
    data = reader.get_metrics_data()
    assert data is not None
    found = {}
    for resource in data.resource_metrics:
        for scope in resource.scope_metrics:
            for metric in scope.metrics:
                for point in metric.data.data_points:
                    attributes = dict(point.attributes or {})
                    assert attributes.pop("kp.domain") == "finance"
                    value = getattr(point, "value", None)
                    if value is None:  # a histogram
                        value = (point.count, round(point.sum, 6), point.explicit_bounds)
                    found[metric.name, str(next(iter(attributes.values()), ""))] = value
    return found


def test_a_reader_collects_the_runs_of_all_handlers_of_a_domain() -> None:
    reader = InMemoryMetricReader()
    provider = MeterProvider([reader])
    handlers = [handler("finance") for _ in "ab"]
    scores = []
    for one in handlers:
        observe(one, provider)
        searching().invoke(ASK, {"callbacks": [one]})
        scored = one.last()
        assert scored is not None
        scores.append(scored.breakdown.total)
    tenths = tuple(number / 10 for number in range(1, 10))
    assert metrics(reader) == {
        ("kp.runs", scored.decision): 2,
        ("kp.score", scored.decision): (2, round(sum(scores), 6), tenths),
    }
    provider.shutdown()
