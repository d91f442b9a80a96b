"""Human approval: a LangGraph agent pauses for a human, and the run is scored once, at its end.

    python examples/human_approval.py

The store keeps what it recorded before the pause, redacted, so that another process may resume it
as well. Both halves count in `runs`, and the first one in `paused`.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from langchain.agents import create_agent
from langchain_core.tools import tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.types import Command, interrupt

from kp_langchain import KPCallbackHandler, Scorer, TraceStore
from kp_langchain.demo.scripted import ScriptedChatModel, call, say


@tool
def refund(order: str, amount: float) -> str:
    """Refund an order once a human approved it."""
    if interrupt(f"Refund {amount} for {order}?") != "yes":
        return "A human refused the refund."
    return f"Refunded {amount} for {order}."


def main() -> None:
    """Pause a run, resume it, and print what was counted and recorded."""
    model = ScriptedChatModel(
        [say("I need approval.", call("refund", order="A-7", amount=39.9)), say("Refunded 39.90.")]
    )
    agent = create_agent(model, [refund], checkpointer=InMemorySaver())
    with tempfile.TemporaryDirectory() as folder, TraceStore(Path(folder, "runs.db")) as store:
        handler = KPCallbackHandler(
            domain="customer_service", store=store, scorer=Scorer(embedder=None)
        )
        config = {"callbacks": [handler], "configurable": {"thread_id": "chat-17"}}

        state = agent.invoke({"messages": [("user", "My kettle is broken.")]}, config)
        print("asked:", state["__interrupt__"][0].value)
        print_counts(handler)

        agent.invoke(Command(resume="yes"), config)
        for step in handler.last().trace.steps:
            print(f"  {step.type:<12} {step.content or step.tool.name}")
        print_counts(handler)


def print_counts(handler: KPCallbackHandler) -> None:
    """Print how many runs began, how many of them paused for a human, and how many are scored."""
    handler.flush()
    print({name: handler.stats()[name] for name in ("runs", "paused", "scored")})


if __name__ == "__main__":
    main()
