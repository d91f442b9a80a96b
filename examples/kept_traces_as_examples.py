"""Few-shot from kept traces: what an agent did well is shown to its next runs.

    python examples/kept_traces_as_examples.py

The model is scripted, all else is real: it prints what the model was asked, what the agent's state
kept of that, and what the recall log says.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from langchain.agents import create_agent
from langchain_core.tools import tool

from kp_langchain import DomainPolicy, KPCallbackHandler, KPMiddleware, TraceStore
from kp_langchain.demo.scripted import ScriptedChatModel, call, say


@tool
def rate(pair: str) -> str:
    """Return the rate of a pair of currencies."""
    return {"GBPUSD": "1.27", "EURUSD": "1.09"}[pair]


class PrintingModel(ScriptedChatModel):
    """A scripted model that prints what it is asked first."""

    def _generate(self, messages: Any, *args: Any, **options: Any) -> Any:
        if messages[-1].type == "human":
            print("\n".join(f"  {message.type}: {message.text}" for message in messages))
        return super()._generate(messages, *args, **options)


def main() -> None:
    """Record a run, and show it to the next one."""
    with tempfile.TemporaryDirectory() as folder, TraceStore(Path(folder, "runs.db")) as store:
        policy = DomainPolicy(threshold=0.5)
        handler = KPCallbackHandler("finance", store=store, policy=policy)
        examples = KPMiddleware("finance", store=store, held_out=0.0)
        examples.load()  # a service does this before it serves; otherwise the first runs go without
        for pair, task in (
            ("GBPUSD", "How many dollars is one pound today?"),
            ("EURUSD", "How many dollars is one euro today?"),
        ):
            print("the model is asked:")
            model = PrintingModel([say("", call("rate", pair=pair)), say("See the rate.")])
            agent = create_agent(model, [rate], middleware=[examples])
            state = agent.invoke({"messages": [("user", task)]}, {"callbacks": [handler]})
            print("the state keeps:", [message.type for message in state["messages"]])
            scored = handler.last()
            for one in store.shown.of_run(scored.trace.id):
                print(f"the log: shown {one.trace_id[:17]}..., similarity {one.similarity:.2f}")


if __name__ == "__main__":
    main()
