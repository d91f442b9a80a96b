"""What KeepWorthy exports of many agent runs, what it holds, and what it costs a span.

    python -m tests.benchmarks.tail_sampling [--runs 400] [--share-of-rest 0.05]

1. A process plays scripted agents, of which every fifth ends with an error, under OpenInference's
   instrumentation. A `KPCallbackHandler` scores the runs, of which about a tenth are to pass, and
   the gate's decision keeps or drops their traces. The process ends while runs are undecided. Files
   that it wrote say which spans ended, which were exported, and what was decided.
2. A thousand traces are open at once, each with 30 spans that ended.
3. Spans of traces of 20 are ended with and without KeepWorthy, in turns, within one process. One
   trace in ten is kept. CPU of the agent's thread, and of the process with the encoding for OTLP.
"""

from __future__ import annotations

import argparse
import gc
import json
import logging
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any
from uuid import UUID

from langchain_core.callbacks import BaseCallbackHandler
from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import (
    BatchSpanProcessor,
    SimpleSpanProcessor,
    SpanExporter,
    SpanExportResult,
)
from opentelemetry.trace import StatusCode, set_span_in_context

from kp_langchain import DomainPolicy, KPCallbackHandler, ScoredTrace, Scorer
from kp_langchain.integrations.opentelemetry import KeepWorthy
from tests import agents
from tests.benchmarks.memory import used_bytes

_FAILS_EVERY = 5
_LEFT_UNDECIDED = 20
_PASS_RATE = 0.1
_OPEN_TRACES, _SPANS_OF_ONE = 1000, 30
_ROUNDS, _TRACES_A_ROUND, _SPANS_A_TRACE = 15, 100, 20
_ANSWER = "The ledger says so: " + "an entry of the ledger, " * 20


class _Written(SpanExporter):
    """Appends ids and status to a file, one span a line."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        with self._path.open("a") as file:
            for span in spans:
                assert span.context is not None
                is_failed = span.status.status_code is StatusCode.ERROR
                file.write(
                    f"{json.dumps([span.context.trace_id, span.context.span_id, is_failed])}\n"
                )
        return SpanExportResult.SUCCESS


class _Encoding(SpanExporter):
    """Encodes as an OTLP exporter does, and sends nothing."""

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        encode_spans(spans).SerializeToString()
        return SpanExportResult.SUCCESS


class _Expecting(BaseCallbackHandler):
    """Announces each run at its first model call, and knows the trace of each."""

    run_inline = True

    def __init__(self, keep_worthy: KeepWorthy, get_span: Any) -> None:
        self._keep_worthy, self._get_span = keep_worthy, get_span
        self._roots: dict[UUID, UUID] = {}
        self.trace_ids: dict[UUID, int] = {}

    def on_chain_start(self, *_: Any, run_id: UUID, parent_run_id: UUID | None, **__: Any) -> None:
        self._roots[run_id] = self._roots.get(parent_run_id or run_id, run_id)

    def on_chat_model_start(self, *_: Any, parent_run_id: UUID, **__: Any) -> None:
        root = self._roots[parent_run_id]
        if root not in self.trace_ids:
            self.trace_ids[root] = self._get_span(root).get_span_context().trace_id
            self._keep_worthy.expect(self.trace_ids[root])


def _play(number: int, callbacks: list[Any]) -> None:
    calls = [
        agents.say("I look it up.", agents.call("search", q=f"{number} {turn}"))
        if turn % 2
        else agents.say("I add.", agents.call("add", a=number, b=turn))
        for turn in range(number % 7)
    ]
    if number % _FAILS_EVERY == 0:
        calls.append(agents.say("I try.", agents.call("broken", x=f"{number}")))
    agent = agents.agent(*calls, agents.say(f"{_ANSWER} {number}"))
    try:
        agent.invoke({"messages": [("user", f"question {number}?")]}, {"callbacks": callbacks})
    except ValueError:
        assert number % _FAILS_EVERY == 0


def _play_all(folder: Path, runs: int, share_of_rest: float) -> None:
    """Play the agents and let the process end."""
    from openinference.instrumentation.langchain import LangChainInstrumentor

    provider = TracerProvider()
    keep_worthy = KeepWorthy(
        BatchSpanProcessor(_Written(folder / "exported")), share_of_rest=share_of_rest
    )
    provider.add_span_processor(SimpleSpanProcessor(_Written(folder / "ended")))
    provider.add_span_processor(keep_worthy)
    instrumentor = LangChainInstrumentor()
    instrumentor.instrument(tracer_provider=provider, skip_dep_check=True)
    expecting = _Expecting(keep_worthy, instrumentor.get_span)

    def decide(scored: ScoredTrace) -> None:
        trace_id = expecting.trace_ids[scored.run_id]
        keep = scored.decision == "contributed"
        with (folder / "decided").open("a") as file:
            file.write(f"{json.dumps([trace_id, keep])}\n")
        keep_worthy.decide(trace_id, keep=keep)

    handler = KPCallbackHandler(
        policy=DomainPolicy(pass_rate=_PASS_RATE),
        scorer=Scorer(embedder=None),
        store=None,
        on_scored=decide,
    )
    for number in range(runs):
        _play(number, [expecting, handler])
        if number % 50 == 0:
            handler.flush()
    handler.flush()
    (folder / "counts").write_text(json.dumps(keep_worthy.counts()))
    for number in range(_LEFT_UNDECIDED):
        _play(runs + number, [expecting])  # recorded by no handler, so without a decision


def _run_part(*options: str, **environment: str) -> None:
    subprocess.run(
        [sys.executable, "-m", __spec__.name, *options],
        check=True,
        cwd=Path(__file__).parents[2],
        env=os.environ | environment,
    )


def _lines(path: Path) -> list[Any]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def _report_exports(runs: int, share_of_rest: float) -> None:
    with TemporaryDirectory() as name:
        folder = Path(name)
        options = ["--into", name, "--runs", str(runs), "--share-of-rest", str(share_of_rest)]
        _run_part(*options, XDG_DATA_HOME=name)
        ended, exported = _lines(folder / "ended"), _lines(folder / "exported")
        decisions = dict(_lines(folder / "decided"))
        counts = json.loads((folder / "counts").read_text())
    spans_of: dict[int, int] = {}
    exported_of: dict[int, int] = {}
    for trace_id, *_ in ended:
        spans_of[trace_id] = spans_of.get(trace_id, 0) + 1
    for trace_id, *_ in exported:
        exported_of[trace_id] = exported_of.get(trace_id, 0) + 1

    def whole(traces: set[int]) -> str:
        complete = sum(exported_of.get(trace) == spans_of[trace] for trace in traces)
        return f"{complete} of {len(traces)} exported whole"

    failed = {trace_id for trace_id, _, is_failed in ended if is_failed}
    kept = {trace_id for trace_id, keep in decisions.items() if keep}
    undecided = spans_of.keys() - decisions.keys()
    rest = spans_of.keys() - failed - kept - undecided
    of_decided = [len([one for one in spans if one[0] in decisions]) for spans in (exported, ended)]
    lost = [
        trace
        for trace, spans in spans_of.items()
        if exported_of.get(trace, 0) not in ((0, spans) if trace in rest else (spans,))
    ]
    twice = len(exported) - len({(trace, span) for trace, span, _ in exported})
    print(f"{runs} runs with a decision, {len(undecided)} without one when the process ended")
    print(
        f"spans exported  {of_decided[0]} of {of_decided[1]}, {of_decided[0] / of_decided[1]:.1%}"
    )
    print(f"kept runs       {whole(kept)}")
    print(f"failed runs     {whole(failed)}")
    print(f"undecided runs  {whole(undecided)}")
    in_share = len(rest & exported_of.keys())
    print(f"the rest        {in_share} of {len(rest)} in the share, {in_share / len(rest):.1%}")
    print(f"traces that lost spans {len(lost)}, spans exported twice {twice}")
    print("counts before the end:", {fate: spans for fate, spans in counts.items() if spans})
    assert not lost
    assert not twice


def _end_spans(tracer: Any, keep_worthy: KeepWorthy | None, spans: int, chars: int) -> int:
    """End spans below a root; return the trace's id. The root is left open without `spans`."""
    root = tracer.start_span("root", Context())
    trace_id: int = root.get_span_context().trace_id
    if keep_worthy is not None:
        keep_worthy.expect(trace_id)
    parent = set_span_in_context(root)
    for number in range(spans - 1):
        span = tracer.start_span("model", parent)
        for field in range(8):
            span.set_attribute(f"llm.input_messages.{field}", f"{number}{field}" * (chars // 16))
        span.end()
    root.end()
    return trace_id


def _report_memory() -> None:
    """Print what is in use; called in a process whose memory is all from the system's allocator."""
    logging.disable(logging.CRITICAL)
    for limit_mib in (256, 32, 8):
        keep_worthy = KeepWorthy(
            SimpleSpanProcessor(_Encoding()), max_bytes=limit_mib * 1024 * 1024
        )
        provider = TracerProvider(shutdown_on_exit=False)
        provider.add_span_processor(keep_worthy)
        tracer = provider.get_tracer("benchmark")
        _end_spans(tracer, None, _SPANS_OF_ONE, chars=2000)  # warms up, and is passed on
        before = used_bytes()
        for _ in range(_OPEN_TRACES):
            _end_spans(tracer, keep_worthy, _SPANS_OF_ONE, chars=2000)
        grown = used_bytes() - before
        counts = keep_worthy.counts()
        assert counts["held_bytes"] <= limit_mib * 1024 * 1024
        print(
            f"limit {limit_mib:3d} MiB: {counts['open_traces']:4d} of {_OPEN_TRACES} traces and "
            f"{counts['held']:5d} of {_OPEN_TRACES * _SPANS_OF_ONE} spans held, "
            f"estimated {counts['held_bytes'] / 2**20:.1f} MiB, in use {grown / 2**20:.1f} MiB"
        )
        provider.shutdown()


def _time_round(is_wrapped: bool, exporter: SpanExporter) -> tuple[float, float]:
    """Return CPU of the agent's thread and of the process, in microseconds a span."""
    processor: Any = BatchSpanProcessor(exporter)
    keep_worthy = processor = KeepWorthy(processor) if is_wrapped else processor
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(processor)
    tracer = provider.get_tracer("benchmark")
    gc.collect()
    thread_s, process_s = 0.0, time.process_time()
    for number in range(_TRACES_A_ROUND):
        began_s = time.thread_time()
        trace_id = _end_spans(tracer, keep_worthy if is_wrapped else None, _SPANS_A_TRACE, 400)
        thread_s += time.thread_time() - began_s
        if is_wrapped:  # the scoring thread's work, not the agent's
            keep_worthy.decide(trace_id, keep=number % 10 == 0)
    provider.force_flush()
    process_s = time.process_time() - process_s
    provider.shutdown()
    spans = _TRACES_A_ROUND * _SPANS_A_TRACE
    return thread_s / spans * 1e6, process_s / spans * 1e6


def _report_cost() -> None:
    rounds = [
        (_time_round(False, _Encoding()), _time_round(True, _Encoding())) for _ in range(_ROUNDS)
    ]
    for name, at in (("agent's thread", 0), ("process, with OTLP encoding", 1)):
        without = median(plain[at] for plain, _ in rounds)
        with_it = median(wrapped[at] for _, wrapped in rounds)
        ratios = sorted(wrapped[at] / plain[at] for plain, wrapped in rounds)
        print(
            f"{name}: {without:.1f} us a span without, {with_it:.1f} with; "
            f"ratio {median(ratios):.2f} (from {ratios[0]:.2f} to {ratios[-1]:.2f})"
        )


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=400)
    parser.add_argument("--share-of-rest", type=float, default=0.05)
    parser.add_argument("--into", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--memory", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.memory:
        _report_memory()
        return
    if options.into:
        _play_all(options.into, options.runs, options.share_of_rest)
        return
    print("Exports")
    _report_exports(options.runs, options.share_of_rest)
    print(f"\n{_OPEN_TRACES} open traces")
    sys.stdout.flush()
    _run_part("--memory", PYTHONMALLOC="malloc")
    print("\nCPU")
    logging.disable(logging.CRITICAL)
    _report_cost()


if __name__ == "__main__":
    main()
