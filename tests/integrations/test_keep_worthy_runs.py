"""`KeepWorthy` with the decisions of a handler: real agents, concurrent and async."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from typing import Any

import pytest
from openinference.instrumentation.langchain import LangChainInstrumentor
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from kp_langchain import DomainPolicy, KPCallbackHandler
from kp_langchain.integrations.opentelemetry import KeepWorthy
from tests.agents import agent, asearch, call, say

pytestmark = pytest.mark.filterwarnings("ignore")
RUNS = 16


@pytest.fixture
def exporter() -> InMemorySpanExporter:
    return InMemorySpanExporter()


@pytest.fixture
def keep_worthy(exporter: InMemorySpanExporter) -> Iterator[KeepWorthy]:
    processor = KeepWorthy(BatchSpanProcessor(exporter))
    provider = TracerProvider()
    provider.add_span_processor(processor)
    LangChainInstrumentor().instrument(tracer_provider=provider)
    yield processor
    LangChainInstrumentor().uninstrument()
    provider.shutdown()


def test_a_run_that_did_not_succeed_is_exported(
    exporter: InMemorySpanExporter, keep_worthy: KeepWorthy
) -> None:
    policy = DomainPolicy(threshold=1.0)
    handler = KPCallbackHandler(
        store=None, policy=policy, outcome=lambda _: False, send_scores_to=[keep_worthy]
    )
    asyncio.run(ask(handler, 1))
    assert handler.send(60)
    keep_worthy.force_flush()
    counts = keep_worthy.counts()
    assert counts["failed"] == len(exporter.get_finished_spans()) > 0
    assert handler.stats()["below_threshold"] == 1


def test_a_run_that_one_of_two_handlers_keeps_is_exported(
    exporter: InMemorySpanExporter, keep_worthy: KeepWorthy
) -> None:
    handlers = [
        KPCallbackHandler(
            store=None, policy=DomainPolicy(threshold=threshold), send_scores_to=[keep_worthy]
        )
        for threshold in (1.0, 0.0)
    ]
    runnable = agent(say("I search.", call("asearch", q="a")), say("ok"), tools=(asearch,))
    inputs: Any = {"messages": [("user", "question 1")]}
    asyncio.run(runnable.ainvoke(inputs, {"callbacks": handlers}))
    assert all(handler.send(60) for handler in handlers)
    keep_worthy.force_flush()
    assert exporter.get_finished_spans()
    assert keep_worthy.counts()["dropped"] == 0


async def ask(handler: KPCallbackHandler, number: int) -> None:
    runnable = agent(say("I search.", call("asearch", q=f"q{number}")), say("ok"), tools=(asearch,))
    config: Any = {
        "callbacks": [handler],
        "metadata": {"kp_domain": "kept" if number % 2 else "other"},
    }
    await runnable.ainvoke({"messages": [("user", f"question {number}")]}, config)


def test_only_the_traces_of_kept_runs_are_exported(
    exporter: InMemorySpanExporter, keep_worthy: KeepWorthy
) -> None:
    policies = {
        "kept": DomainPolicy(threshold=0.0, twin_similarity=1.0),
        "other": DomainPolicy(threshold=1.0),
    }
    handler = KPCallbackHandler(store=None, policy=policies, send_scores_to=[keep_worthy])

    async def main() -> None:
        await asyncio.gather(*(ask(handler, number) for number in range(RUNS)))

    asyncio.run(main())
    assert handler.send(60)
    assert keep_worthy.counts()["held"] == 0
    keep_worthy.force_flush()
    stats = handler.stats()
    assert (stats["contributed"], stats["below_threshold"]) == (RUNS // 2, RUNS // 2)
    roots = [span for span in exporter.get_finished_spans() if span.parent is None]
    exported = {
        int(match[1])
        for root in roots
        if (match := re.search(r"question (\d+)", str(dict(root.attributes or {}))))
    }
    assert len(roots) == RUNS // 2
    assert exported == set(range(1, RUNS, 2))
