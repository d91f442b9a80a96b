"""Scores in Phoenix: the run's score annotates the root span that OpenInference makes.

    PHOENIX_COLLECTOR_ENDPOINT=http://localhost:6006 python examples/scores_to_phoenix.py

What people say of it there comes back as a verdict, if the handler has a store:

    kp-langchain label pull phoenix --key correct
"""

from __future__ import annotations

import os

from langchain.agents import create_agent
from langchain_core.tools import tool
from openinference.instrumentation.langchain import LangChainInstrumentor
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor

from kp_langchain import KPCallbackHandler
from kp_langchain.demo.scripted import ScriptedChatModel, call, say


@tool
def balance(account: str) -> str:
    """Return the balance of an account."""
    return f"{account} holds 1,200 EUR."


def main() -> None:
    """Run the agent once, and print what became of its score."""
    endpoint = os.environ.get("PHOENIX_COLLECTOR_ENDPOINT", "http://localhost:6006")
    provider = TracerProvider()
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(f"{endpoint}/v1/traces")))
    LangChainInstrumentor().instrument(tracer_provider=provider)

    model = ScriptedChatModel([say("I look.", call("balance", account="A-7")), say("1,200 EUR.")])
    agent = create_agent(model, [balance])
    handler = KPCallbackHandler(domain="finance", send_scores_to=["phoenix"])
    callbacks = [handler]

    agent.invoke({"messages": [("user", "What is in A-7?")]}, {"callbacks": callbacks})
    provider.force_flush(10_000)
    handler.send(timeout=30)

    stats = handler.stats()
    print({name: stats[name] for name in ("scores_sent", "scores_failed")})


if __name__ == "__main__":
    main()
