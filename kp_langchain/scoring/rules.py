"""The three rules that correct a weighted sum, applied in order."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kp_langchain.scoring.dimensions import TraceShape

SINGLE_THOUGHT = "single_thought"
RECOVERED_ERRORS = "recovered_errors"
SINGLE_TOOL = "single_tool"
MOST_RECOVERIES_WITHOUT_REWARD = 2

REASONS = {
    SINGLE_THOUGHT: "the run is one thought and nothing else",
    RECOVERED_ERRORS: "it succeeded after more than 2 recovered errors",
    SINGLE_TOOL: "all its tool calls went to the same tool",
}
"""Why each rule exists, in words, by its name."""


@dataclass(frozen=True, slots=True)
class RuleFired:
    """A rule that applied.

    Args:
        name: The rule: `single_thought`, `recovered_errors` or `single_tool`.
        before: The score before it.
        after: The score after it.
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
    3. A tool was used, but only one: 0.1 less, at least 0.

    Args:
        score: The weighted sum, 0 to 1.
        shape: The trace's shape.
        success: Whether the run succeeded.

    Returns:
        The score, 0 to 1, and the rules that applied, in order.
    """
    return apply_named(
        score,
        single_thought=shape.steps == 1 and "thought" in shape.step_types,
        recovered_errors=shape.error_recoveries > MOST_RECOVERIES_WITHOUT_REWARD and success,
        single_tool=len(shape.tool_names) == 1,
    )


def apply_named(
    score: float, *, single_thought: bool, recovered_errors: bool, single_tool: bool
) -> tuple[float, tuple[RuleFired, ...]]:
    """Apply those of the rules that are known to hold; what is returned is as for `apply_rules`."""
    fired: list[RuleFired] = []

    def set_to(name: str, after: float) -> float:
        fired.append(RuleFired(name, score, after))
        return after

    if single_thought:
        score = set_to(SINGLE_THOUGHT, 0.1)
    if recovered_errors:
        score = set_to(RECOVERED_ERRORS, min(1.0, score + 0.1))
    if single_tool:
        score = set_to(SINGLE_TOOL, max(0.0, score - 0.1))
    return score, tuple(fired)
