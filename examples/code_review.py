"""A code-review trace, scored, remembered, and met again.

The first review has nothing to be compared with, so its novelty is the neutral 0.5. The same review
a second time is no news. A review of something else is. (Novelty needs the extra
`sentence-transformers` or `embeddings`; without one of them all three get 0.5, and the explanation
says so.)
"""

from __future__ import annotations

from kp_langchain import ReasoningTrace, Scorer


def review(objective: str, findings: list[str]) -> ReasoningTrace:
    """Return the trace of a review that reads, analyses and, where it can, runs the tests."""
    opened, noticed, verdict = findings
    return ReasoningTrace.model_validate(
        {
            "metadata": {"task_domain": "code", "success": True, "framework": "langchain"},
            "task": {"objective": objective},
            "steps": [
                {"step_id": 0, "type": "thought", "content": "Read the change before judging it."},
                {
                    "step_id": 1,
                    "type": "tool_call",
                    "tool": {"name": "read_diff", "mcp_server": "git"},
                    "input": {"pull_request": 128},
                },
                {"step_id": 2, "type": "observation", "content": opened},
                {"step_id": 3, "type": "tool_call", "tool": {"name": "static_analysis"}},
                {"step_id": 4, "type": "observation", "content": noticed},
                {"step_id": 5, "type": "tool_call", "tool": {"name": "run_tests"}},
                {
                    "step_id": 6,
                    "type": "error_recovery",
                    "content": "The test database was not up; started it and ran the tests again.",
                },
                {"step_id": 7, "type": "thought", "content": verdict},
            ],
            "outcome": {"result_summary": verdict, "confidence": 0.9},
        }
    )


def main() -> None:
    """Print why each of three reviews scores what it scores."""
    tokens = review(
        "Review the pull request that rotates refresh tokens",
        [
            "The diff stores the new refresh token before the old one is revoked.",
            "No lock is taken: two requests can rotate the same token at once.",
            "Ask for one transaction around rotation; the rest can be merged.",
        ],
    )
    layout = review(
        "Review the new print layout of the invoice page",
        [
            "The style sheet gains a page-break rule and a narrow column for totals.",
            "Two colours miss the contrast that the guideline asks for.",
            "Darken both greys, then merge.",
        ],
    )
    scorer = Scorer(latency_budget_ms=None)  # waits for the model to load
    for title, trace in [
        ("A first review", tokens),
        ("The same review again", tokens),
        ("A review of something else", layout),
    ]:
        print(f"{title}\n{scorer.evaluate(trace).text()}\n")


if __name__ == "__main__":
    main()
