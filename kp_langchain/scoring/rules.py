"""The three rules that correct a weighted sum, applied in order."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kp_langchain.scoring.dimensions import TraceShape

SINGLE_THOUGHT = "single_thought"
RECOVERED_ERRORS = "recovered_errors"
SINGLE_TOOL = "single_tool"

REASONS = {
    SINGLE_THOUGHT: "the run is one thought and nothing else",
    RECOVERED_ERRORS: "it succeeded after more than 2 recovered errors",
    SINGLE_TOOL: "all its tool calls went to the same tool",
}
"""Why a rule applied, in words, by its name."""


@dataclass(frozen=True, slots=True)
class RuleFired:
    """A rule that applied.

    Attributes:
        name: The rule: `single_thought`, `recovered_errors` or `single_tool`.
        before: The score before it, 0 to 1.
        after: The score after it, 0 to 1.
    """

    name: str
    before: float
    after: float


def apply_rules(
    score: float, shape: TraceShape, *, success: bool
) -> tuple[float, tuple[RuleFired, ...]]:
    """Apply the rules of the scoring documents to a weighted sum.

    1. Exactly one step, a thought: the score is 0.1.
    2. More than 2 error recoveries and success: 0.1 more, at most 1.
    3. Exactly one distinct tool: 0.1 less, at least 0.

    Args:
        score: The weighted sum, 0 to 1.
        shape: The trace's shape.
        success: Whether the run succeeded.

    Returns:
        The score, 0 to 1, and the rules that applied, in order.
    """
    rules: list[RuleFired] = []

    def change(name: str, after: float) -> float:
        rules.append(RuleFired(name, score, after))
        return after

    if shape.steps == shape.thoughts == 1:
        score = change(SINGLE_THOUGHT, 0.1)
    if shape.error_recoveries > 2 and success:
        score = change(RECOVERED_ERRORS, min(1.0, score + 0.1))
    if shape.distinct_tools == 1:
        score = change(SINGLE_TOOL, max(0.0, score - 0.1))
    return score, tuple(rules)
