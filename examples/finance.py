"""A finance trace: what a sure and an unsure outcome are worth, and what failing costs.

In finance nearly half of the score is how far the outcome can be trusted, so the same work scores
very differently with another ending.
"""

from __future__ import annotations

from dataclasses import replace

from kp_langchain import ReasoningTrace, Scorer


def quarterly_review(*, success: bool, confidence: float) -> ReasoningTrace:
    """Return the trace of an analysis of quarterly figures that ended as said."""
    return ReasoningTrace.model_validate(
        {
            "metadata": {"task_domain": "finance", "success": success},
            "task": {"objective": "Explain the fall of the gross margin in the third quarter"},
            "steps": [
                {
                    "step_id": 0,
                    "type": "thought",
                    "content": "Split the change of the margin into price, volume and cost.",
                },
                {
                    "step_id": 1,
                    "type": "tool_call",
                    "tool": {"name": "query_ledger"},
                    "input": {"account": "cost of sales", "quarters": ["Q2", "Q3"]},
                },
                {
                    "step_id": 2,
                    "type": "observation",
                    "content": "Freight rose from 4.1 to 6.3 percent of revenue.",
                    "latency_ms": 180.0,
                },
                {
                    "step_id": 3,
                    "type": "tool_call",
                    "tool": {"name": "exchange_rates"},
                    "input": {"pair": "EUR/USD", "quarter": "Q3"},
                },
                {
                    "step_id": 4,
                    "type": "observation",
                    "content": "The euro gained 2 percent; that explains a fifth of the change.",
                },
                {"step_id": 5, "type": "thought", "content": "Freight explains most of the rest."},
            ],
            "outcome": {
                "result_summary": "Freight costs explain about three quarters of the fall.",
                "confidence": confidence,
            },
        }
    )


def main() -> None:
    """Print the explained scores of one analysis with three endings."""
    scorer = Scorer(embedder=None)  # novelty is not what this example is about
    for title, success, confidence in [
        ("Sure of the result", True, 0.95),
        ("Less sure", True, 0.5),
        ("The figures did not add up", False, 0.95),
    ]:
        breakdown = scorer.score(quarterly_review(success=success, confidence=confidence))
        # Whoever knows where the confidence came from says so; it is kept with the score.
        breakdown = replace(breakdown, confidence_source="the analyst's own estimate")
        print(f"{title}\n{breakdown.text()}\n")


if __name__ == "__main__":
    main()
