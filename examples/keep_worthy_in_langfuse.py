"""Tail sampling where a tool adds its own span processor: Langfuse stores what is worth it.

    LANGFUSE_PUBLIC_KEY=... LANGFUSE_SECRET_KEY=... python examples/keep_worthy_in_langfuse.py

Its client adds a processor to the tracer provider, which puts it behind `KeepWorthy`.
"""

from __future__ import annotations

from langchain.agents import create_agent
from langchain_core.tools import tool
from langfuse import Langfuse
from langfuse.langchain import CallbackHandler
from opentelemetry.sdk.trace import SpanProcessor, SynchronousMultiSpanProcessor, TracerProvider

from kp_langchain import DomainPolicy, KPCallbackHandler
from kp_langchain.demo.scripted import ScriptedChatModel, call, say
from kp_langchain.integrations.opentelemetry import KeepWorthy


class WorthyProvider(TracerProvider):
    """Has `KeepWorthy` hold the spans of every processor that is added."""

    def __init__(self) -> None:
        super().__init__()
        self._processors = SynchronousMultiSpanProcessor()
        self.keep_worthy = KeepWorthy(self._processors, share_of_rest=0.0)
        super().add_span_processor(self.keep_worthy)

    def add_span_processor(self, span_processor: SpanProcessor) -> None:
        """Add a processor that receives what is exported."""
        self._processors.add_span_processor(span_processor)


@tool
def balance(account: str) -> str:
    """Return the balance of an account."""
    return f"{account} holds 1,200 EUR."


def main() -> None:
    """Run an agent that works and one that only talks, and print what was sent to Langfuse."""
    provider = WorthyProvider()
    client = Langfuse(tracer_provider=provider)
    policy, receivers = DomainPolicy(threshold=0.5), [provider.keep_worthy, "langfuse"]
    handler = KPCallbackHandler("finance", policy=policy, send_scores_to=receivers)
    callbacks = [CallbackHandler(), handler]

    works = [say("I look.", call("balance", account="A-7")), say("1,200 EUR.")]
    for answers in (works, [say("I do not know.")]):
        agent = create_agent(ScriptedChatModel(answers), [balance])
        agent.invoke({"messages": [("user", "What is in A-7?")]}, {"callbacks": callbacks})
    handler.send(timeout=30)
    client.flush()
    counts = provider.keep_worthy.counts()
    print({name: counts[name] for name in ("kept", "dropped", "held")})


if __name__ == "__main__":
    main()
