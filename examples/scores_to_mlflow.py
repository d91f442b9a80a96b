"""Scores in MLflow: the run's score is feedback on the trace that its autologging makes.

    MLFLOW_TRACKING_URI=http://localhost:5000 python examples/scores_to_mlflow.py

What people say of it there comes back as a verdict, if the handler has a store:

    kp-langchain label pull mlflow --key correct

Where nothing answers, MLflow's client tries for minutes, unless MLFLOW_HTTP_REQUEST_MAX_RETRIES=2.
"""

from __future__ import annotations

import mlflow
from langchain.agents import create_agent
from langchain_core.tools import tool

from kp_langchain import KPCallbackHandler
from kp_langchain.demo.scripted import ScriptedChatModel, call, say


@tool
def balance(account: str) -> str:
    """Return the balance of an account."""
    return f"{account} holds 1,200 EUR."


def main() -> None:
    """Run the agent once, and print what became of its score."""
    mlflow.set_experiment("agents")
    mlflow.langchain.autolog()
    model = ScriptedChatModel([say("I look.", call("balance", account="A-7")), say("1,200 EUR.")])
    agent = create_agent(model, [balance])
    handler = KPCallbackHandler(domain="finance", send_scores_to=["mlflow"])
    callbacks = [handler]

    agent.invoke({"messages": [("user", "What is in A-7?")]}, {"callbacks": callbacks})
    mlflow.flush_trace_async_logging()
    handler.send(timeout=30)

    stats = handler.stats()
    print({name: stats[name] for name in ("scores_sent", "scores_failed")})


if __name__ == "__main__":
    main()
