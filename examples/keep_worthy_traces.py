"""Tail sampling: only the traces of runs that are worth keeping are exported.

    python examples/keep_worthy_traces.py

The exporter keeps spans in memory here; with an OTLP exporter, any back end stores what is kept.
"""

from __future__ import annotations

from langchain.agents import create_agent
from langchain_core.tools import tool
from openinference.instrumentation.langchain import LangChainInstrumentor
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from kp_langchain import DomainPolicy, KPCallbackHandler
from kp_langchain.demo.scripted import ScriptedChatModel, call, say
from kp_langchain.integrations.opentelemetry import KeepWorthy


@tool
def balance(account: str) -> str:
    """Return the balance of an account."""
    return f"{account} holds 1,200 EUR."


def main() -> None:
    """Run an agent that works and one that only talks, and print what was exported."""
    exporter = InMemorySpanExporter()
    keep_worthy = KeepWorthy(BatchSpanProcessor(exporter), share_of_rest=0.0)
    provider = TracerProvider()
    provider.add_span_processor(keep_worthy)
    LangChainInstrumentor().instrument(tracer_provider=provider)
    policy = DomainPolicy(threshold=0.5)
    handler = KPCallbackHandler("finance", policy=policy, send_scores_to=[keep_worthy])

    works = [say("I look.", call("balance", account="A-7")), say("1,200 EUR.")]
    for answers in (works, [say("I do not know.")]):
        agent = create_agent(ScriptedChatModel(answers), [balance])
        agent.invoke({"messages": [("user", "What is in A-7?")]}, {"callbacks": [handler]})
    handler.send(timeout=30)
    provider.shutdown()

    roots = [span for span in exporter.get_finished_spans() if span.parent is None]
    counts = keep_worthy.counts()
    print(f"2 runs, {len(roots)} exported")
    print({name: counts[name] for name in ("kept", "dropped", "held")})


if __name__ == "__main__":
    main()
