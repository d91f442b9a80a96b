"""Novelty: a code review is scored and remembered, and then meets its own repeat.

    python examples/code_review.py

The first review has nothing to be compared with, so its novelty is the neutral 0.5. The same review
again is not novel; a review of something else is. Novelty needs the extra `embeddings` or
`sentence-transformers`. Without them novelty is 0.5, and 0 for an exact repeat.
"""

from __future__ import annotations

from kp_langchain import ReasoningTrace, Scorer


def review(objective: str, change: str, finding: str, verdict: str) -> ReasoningTrace:
    """Return the trace of a review that reads, analyses and runs the tests."""
    retry = "The test database was not up; started it and ran the tests again."
    steps = [
        {"type": "thought", "content": "Read the change before judging it."},
        {"type": "tool_call", "tool": {"name": "read_diff", "mcp_server": "git"}},
        {"type": "observation", "content": change},
        {"type": "tool_call", "tool": {"name": "static_analysis"}},
        {"type": "observation", "content": finding},
        {"type": "tool_call", "tool": {"name": "run_tests"}},
        {"type": "error_recovery", "content": retry},
        {"type": "thought", "content": verdict},
    ]
    return ReasoningTrace.model_validate(
        {
            "metadata": {"task_domain": "code", "success": True, "framework": "langchain"},
            "task": {"objective": objective},
            "steps": [{"step_id": number, **step} for number, step in enumerate(steps)],
            "outcome": {"result_summary": verdict, "confidence": 0.9},
        }
    )


TOKENS = review(
    "Review the pull request that rotates refresh tokens",
    "The diff stores the new refresh token before the old one is revoked.",
    "No lock is taken: two requests can rotate the same token at once.",
    "Ask for one transaction around rotation; the rest can be merged.",
)
LAYOUT = review(
    "Review the new print layout of the invoice page",
    "The style sheet gains a page-break rule and a narrow column for totals.",
    "Two colours miss the contrast that the guideline asks for.",
    "Darken both greys, then merge.",
)


if __name__ == "__main__":
    scorer = Scorer()  # without a latency budget it waits for the model to load
    for title, trace in [
        ("A first review", TOKENS),
        ("The same review again", TOKENS),
        ("A review of something else", LAYOUT),
    ]:
        print(f"{title}\n{scorer.evaluate(trace).text()}\n")
