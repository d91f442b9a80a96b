"""The handler on an agent: one run is recorded, scored and explained.

    python examples/quickstart.py

Where tasks repeat, put this into kp.toml: defaults = { gate = "worth", pass_rate = 0.1 }

A script answers in place of a chat model, so no key is needed. To ask a real model, name it:

    CHAT_MODEL=openai:gpt-5 python examples/quickstart.py
"""

from __future__ import annotations

import os

from langchain.agents import create_agent
from langchain.chat_models import init_chat_model
from langchain_core.language_models import BaseChatModel
from langchain_core.tools import tool

from kp_langchain import KPCallbackHandler
from kp_langchain.demo.scripted import ScriptedChatModel, call, say


@tool
def open_position(currency: str) -> str:
    """Return how much of a currency ACME holds."""
    return f"ACME holds 1,200,000 {currency}."


@tool
def value_at_risk(currency: str, amount: int) -> str:
    """Return what a position may lose in ten days, at 95 % confidence."""
    return f"{amount:,} {currency}: 30,000 USD"


def chat_model() -> BaseChatModel:
    """Return the model that CHAT_MODEL names, or else the script."""
    if name := os.environ.get("CHAT_MODEL"):
        return init_chat_model(name)
    position = call("open_position", currency="EUR")
    risk = call("value_at_risk", currency="EUR", amount=1_200_000)
    calls = (say("First the position.", position), say("Now its risk.", risk))
    return ScriptedChatModel([*calls, say("Hedge 700,000 EUR.")])


def main() -> None:
    """Run the agent once and print the decision and the breakdown of the score."""
    handler = KPCallbackHandler("finance", store=None)  # by default SQLite
    agent = create_agent(chat_model(), [open_position, value_at_risk])
    question = {"messages": [("user", "How much of its euros should ACME hedge?")]}
    agent.invoke(question, {"callbacks": [handler]})

    if scored := handler.last():  # waits for the scoring; the agent did not
        print(f"{scored.decision} (threshold {scored.threshold})")
        print(scored.breakdown.text())


if __name__ == "__main__":
    main()
