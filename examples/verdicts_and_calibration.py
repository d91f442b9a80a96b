"""Verdicts and calibration: verdicts on past runs change the confidence of later ones.

    python examples/verdicts_and_calibration.py

It needs the extra `calibrate`. By default a run that looks successful gets the confidence 0.80.
Here the agent is right where it looks an order up and wrong where it guesses, and 20 verdicts say
so. From them `kp-langchain calibrate` learns a confidence model. Real runs are less clear-cut.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

from langchain.agents import create_agent
from langchain_core.tools import tool

from kp_langchain import KPCallbackHandler, ScoredTrace, Scorer, TraceStore
from kp_langchain.demo.scripted import ScriptedChatModel, call, say


@tool
def find_order(order: str) -> str:
    """Return where an order is."""
    return f"{order} was delivered on Monday."


def answer(order: str, store: TraceStore, *, guesses: bool) -> ScoredTrace:
    """Ask the agent where an order is; return the scored run."""
    lookup = [say("", call("find_order", order=order)), say("It was delivered on Monday.")]
    model = ScriptedChatModel([say("Perhaps it is lost; I am not sure.")] if guesses else lookup)
    handler = KPCallbackHandler("customer_service", store=store, scorer=Scorer(embedder=None))
    question = {"messages": [("user", f"Where is order {order}?")]}
    create_agent(model, [find_order]).invoke(question, {"callbacks": [handler]})
    return handler.last()


def main() -> None:
    """Give verdicts on 20 runs, calibrate, and print the confidence before and after."""
    with tempfile.TemporaryDirectory() as folder:
        database = Path(folder, "runs.db")
        with TraceStore(database) as store:
            for number in range(20):
                guesses = number % 2 == 0
                scored = answer(f"A-{number}", store, guesses=guesses)
                store.report_outcome(str(scored.run_id), success=not guesses)
        print("before:", scored.breakdown.outcome_confidence.why, flush=True)

        command = [sys.executable, "-m", "kp_langchain", "calibrate", "--database", database]
        subprocess.run(command, check=True)
        with TraceStore(database) as store:  # a store opened earlier uses the model in a minute
            for guesses in (False, True):
                scored = answer("B-1", store, guesses=guesses)
                print("after: ", scored.breakdown.outcome_confidence.why)


if __name__ == "__main__":
    main()
