"""Domains and thresholds: the same run in three domains, of which the store keeps two.

    python examples/domains_and_thresholds.py

A domain chooses the weights of a score and the threshold that it must reach. The handler has a
domain of its own; `metadata={"kp_domain": ...}` in a run's config comes before it. The same
policies can stand in `kp.toml`:

    [domains.legal]
    threshold = 0.5
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from langchain.agents import create_agent
from langchain_core.tools import tool

from kp_langchain import DomainPolicy, KPCallbackHandler, Scorer, ScoringWeights, TraceStore
from kp_langchain.demo.scripted import ScriptedChatModel, call, say

POLICIES = {
    "legal": DomainPolicy(threshold=0.5),  # with the weights of the domain `default`
    "support_desk": DomainPolicy(
        threshold=0.6,
        weights=ScoringWeights(
            complexity=0.1, novelty=0.1, tool_diversity=0.2, outcome_confidence=0.6
        ),
    ),
}


@tool
def find_contract(customer: str) -> str:
    """Return the terms of a customer's contract."""
    return f"{customer} may cancel with a notice of 30 days."


def main() -> None:
    """Run the agent once in each domain; print each decision, and what the store kept."""
    with tempfile.TemporaryDirectory() as folder, TraceStore(Path(folder, "runs.db")) as store:
        handler = KPCallbackHandler(policy=POLICIES, scorer=Scorer(embedder=None), store=store)
        for domain in ("finance", "legal", "support_desk"):
            answers = [say("", call("find_contract", customer="ACME")), say("Yes, within 30 days.")]
            agent = create_agent(ScriptedChatModel(answers), [find_contract])
            question = {"messages": [("user", f"May ACME cancel its {domain} contract?")]}
            agent.invoke(question, {"callbacks": [handler], "metadata": {"kp_domain": domain}})
        handler.flush()
        for run in store.runs(newest_first=False):
            print(f"{run.domain:<13} {run.score:.3f} of {run.threshold:.2f}  {run.decision}")
        print(f"{len(list(store.traces()))} of {store.count()} traces are kept for good")


if __name__ == "__main__":
    main()
