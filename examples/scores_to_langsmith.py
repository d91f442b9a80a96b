"""Scores in LangSmith: the run's score is feedback on the run that LangSmith's tracer records.

    LANGSMITH_API_KEY=... python examples/scores_to_langsmith.py

What people say of it there comes back as a verdict, if the handler has a store:

    kp-langchain label pull langsmith --key correct
"""

from __future__ import annotations

from langchain.agents import create_agent
from langchain_core.tools import tool
from langchain_core.tracers.langchain import LangChainTracer, wait_for_all_tracers

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
    handler = KPCallbackHandler(domain="finance", send_scores_to=["langsmith"])
    callbacks = [LangChainTracer(project_name="agents"), handler]

    agent.invoke({"messages": [("user", "What is in A-7?")]}, {"callbacks": callbacks})
    wait_for_all_tracers()
    handler.send(timeout=30)

    stats = handler.stats()
    print({name: stats[name] for name in ("scores_sent", "scores_failed")})


if __name__ == "__main__":
    main()
