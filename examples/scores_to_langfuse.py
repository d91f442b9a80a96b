"""Scores in Langfuse: the run's score is a score of the trace that its callback handler makes.

    LANGFUSE_PUBLIC_KEY=... LANGFUSE_SECRET_KEY=... python examples/scores_to_langfuse.py

What people say of it there comes back as a verdict, if the handler has a store:

    kp-langchain label pull langfuse --key correct
"""

from __future__ import annotations

import langfuse
from langchain.agents import create_agent
from langchain_core.tools import tool
from langfuse.langchain import CallbackHandler

from kp_langchain import KPCallbackHandler
from kp_langchain.demo.scripted import ScriptedChatModel, call, say


@tool
def balance(account: str) -> str:
    """Return the balance of an account."""
    return f"{account} holds 1,200 EUR."


def main() -> None:
    """Run the agent once, and print what became of its score."""
    model = ScriptedChatModel([say("I look.", call("balance", account="A-7")), say("1,200 EUR.")])
    agent = create_agent(model, [balance])
    handler = KPCallbackHandler(domain="finance", send_scores_to=["langfuse"])
    callbacks = [CallbackHandler(), handler]

    agent.invoke({"messages": [("user", "What is in A-7?")]}, {"callbacks": callbacks})
    langfuse.get_client().flush()
    handler.send(timeout=30)

    stats = handler.stats()
    print({name: stats[name] for name in ("scores_sent", "scores_failed")})


if __name__ == "__main__":
    main()
