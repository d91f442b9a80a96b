"""One trace in the five built-in domains, and in a domain of your own.

    python examples/five_domains.py

The values of the four dimensions are the same every time; their weights differ.
"""

from __future__ import annotations

from kp_langchain import ReasoningTrace, Scorer, ScoringWeights
from kp_langchain.scoring import PROFILES


def answer_a_question(domain: str) -> ReasoningTrace:
    """Return a run with two tools, one recovered error and a fairly sure answer."""
    return ReasoningTrace.model_validate(
        {
            "metadata": {"task_domain": domain, "success": True},
            "task": {"objective": "Find out whether the two orders were shipped together"},
            "steps": [
                {"step_id": 0, "type": "thought", "content": "Look up both orders first."},
                {"step_id": 1, "type": "tool_call", "tool": {"name": "find_order"}},
                {"step_id": 2, "type": "observation", "content": "Both left the same warehouse."},
                {"step_id": 3, "type": "tool_call", "tool": {"name": "track_parcel"}},
                {
                    "step_id": 4,
                    "type": "error_recovery",
                    "content": "The carrier did not answer in time; asked again.",
                },
                {"step_id": 5, "type": "observation", "content": "One parcel number for both."},
            ],
            "outcome": {"result_summary": "Yes, in one parcel.", "confidence": 0.7},
        }
    )


def main() -> None:
    """Print one line per domain, then one explanation in full."""
    support_desk = ScoringWeights(
        complexity=0.1, novelty=0.1, tool_diversity=0.2, outcome_confidence=0.6
    )
    scorer = Scorer(embedder=None, profiles={"support_desk": support_desk})
    for domain in [*PROFILES, "support_desk"]:
        print(f"{domain:<17} {scorer.score(answer_a_question(domain)).line()}")
    print("\nThe last one in full")
    print(scorer.score(answer_a_question("support_desk")).text())


if __name__ == "__main__":
    main()
