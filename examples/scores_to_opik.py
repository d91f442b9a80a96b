"""Scores in Opik: the run's score is a feedback score of the trace that its tracer makes.

    OPIK_URL_OVERRIDE=http://localhost:5173/api python examples/scores_to_opik.py

What people say of it there comes back as a verdict, if the handler has a store:

    kp-langchain label pull opik --key correct
"""

from __future__ import annotations

from langchain.agents import create_agent
from langchain_core.tools import tool
from opik.integrations.langchain import OpikTracer

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
    tracer = OpikTracer(project_name="agents")
    handler = KPCallbackHandler(domain="finance", send_scores_to=["opik"])
    callbacks = [tracer, handler]

    agent.invoke({"messages": [("user", "What is in A-7?")]}, {"callbacks": callbacks})
    tracer.flush()
    handler.send(timeout=30)

    stats = handler.stats()
    print({name: stats[name] for name in ("scores_sent", "scores_failed")})


if __name__ == "__main__":
    main()
