"""A finance trace: the value of a sure and an unsure outcome, and the cost of failure.

    python examples/finance.py

In finance nearly half of the score is the confidence in the outcome, so the same work scores very
differently with another ending. The trace is written by hand here, without an agent.
"""

from __future__ import annotations

from dataclasses import replace

from kp_langchain import ReasoningTrace, Scorer

THOUGHT = "Split the change of the margin into price, volume and cost."
FREIGHT = "Freight rose from 4.1 to 6.3 percent of revenue."
EURO = "The euro gained 2 percent; that explains a fifth of the change."
STEPS = [
    {"type": "thought", "content": THOUGHT},
    {"type": "tool_call", "tool": {"name": "query_ledger"}, "input": {"account": "cost of sales"}},
    {"type": "observation", "content": FREIGHT, "latency_ms": 180.0},
    {"type": "tool_call", "tool": {"name": "exchange_rates"}, "input": {"pair": "EUR/USD"}},
    {"type": "observation", "content": EURO},
    {"type": "thought", "content": "Freight explains most of the rest."},
]


def quarterly_review(*, success: bool, confidence: float) -> ReasoningTrace:
    """Return the trace of an analysis of quarterly figures with the given ending."""
    return ReasoningTrace.model_validate(
        {
            "metadata": {"task_domain": "finance", "success": success},
            "task": {"objective": "Explain the fall of the gross margin in the third quarter"},
            "steps": [{"step_id": number, **step} for number, step in enumerate(STEPS)],
            "outcome": {
                "result_summary": "Freight costs explain about three quarters of the fall.",
                "confidence": confidence,
            },
        }
    )


def main() -> None:
    """Print the explained scores of one analysis with three endings."""
    scorer = Scorer(embedder=None)  # this example is not about novelty
    for title, success, confidence in [
        ("Sure of the result", True, 0.95),
        ("Less sure", True, 0.5),
        ("The figures did not add up", False, 0.95),
    ]:
        breakdown = scorer.score(quarterly_review(success=success, confidence=confidence))
        # A caller that knows the source of the confidence names it; it is kept with the score.
        breakdown = replace(breakdown, confidence_source="the analyst's own estimate")
        print(f"{title}\n{breakdown.text()}\n")


if __name__ == "__main__":
    main()
