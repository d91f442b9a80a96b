"""Scores in OpenTelemetry: the run's score is log records in the context of its root span.

    python examples/scores_to_opentelemetry.py

It prints the records; with an OTLP exporter in place of the console's, any back end stores them.
"""

from __future__ import annotations

from langchain.agents import create_agent
from langchain_core.tools import tool
from openinference.instrumentation.langchain import LangChainInstrumentor
from opentelemetry._logs import set_logger_provider
from opentelemetry.sdk._logs import LoggerProvider
from opentelemetry.sdk._logs.export import BatchLogRecordProcessor, ConsoleLogRecordExporter
from opentelemetry.sdk.trace import TracerProvider

from kp_langchain import KPCallbackHandler
from kp_langchain.demo.scripted import ScriptedChatModel, call, say


@tool
def balance(account: str) -> str:
    """Return the balance of an account."""
    return f"{account} holds 1,200 EUR."


def main() -> None:
    """Run the agent once, and print what became of its score."""
    logs = LoggerProvider()
    logs.add_log_record_processor(BatchLogRecordProcessor(ConsoleLogRecordExporter()))
    set_logger_provider(logs)
    LangChainInstrumentor().instrument(tracer_provider=TracerProvider())

    model = ScriptedChatModel([say("I look.", call("balance", account="A-7")), say("1,200 EUR.")])
    agent = create_agent(model, [balance])
    handler = KPCallbackHandler(domain="finance", send_scores_to=["opentelemetry"])
    callbacks = [handler]

    agent.invoke({"messages": [("user", "What is in A-7?")]}, {"callbacks": callbacks})
    handler.send(timeout=30)
    logs.shutdown()

    stats = handler.stats()
    print({name: stats[name] for name in ("scores_sent", "scores_failed")})


if __name__ == "__main__":
    main()
