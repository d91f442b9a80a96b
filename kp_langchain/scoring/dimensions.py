"""The formulas of a score: four dimensions, their weighted sum, and three rules.

The formulas are those of the KnowledgePulse scoring documents. A dimension is a row of `DIMENSIONS`
and a field of the same name in `ScoringWeights` and in `ScoreBreakdown`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, NamedTuple

from pydantic import Field

from kp_langchain.novelty_sources import REPEAT, why_neutral
from kp_langchain.text import count_text

if TYPE_CHECKING:
    from kp_langchain.schema import ReasoningTrace

FiniteNumber = Annotated[float, Field(allow_inf_nan=False)]

TRACE_SOURCE = "trace"
"""The `ScoreBreakdown.confidence_source` of a confidence that the trace alone states."""

NEUTRAL_NOVELTY = 0.5
"""Neutral: a run whose novelty was not measured is neither rewarded nor punished for it."""

DEFAULT_CONFIDENCE: Mapping[bool, float] = MappingProxyType({True: 0.8, False: 0.2})
"""The confidence in an outcome that was not reported, by success."""


@dataclass(frozen=True, slots=True)
class TraceShape:
    """The shape of a trace: five counts that the formulas and rules use.

    Attributes:
        steps: Number of steps.
        step_types: Number of distinct step types.
        thoughts: Number of `thought` steps.
        error_recoveries: Number of `error_recovery` steps.
        distinct_tools: Number of distinct tool names, in steps of any type.
    """

    steps: int
    step_types: int
    thoughts: int
    error_recoveries: int
    distinct_tools: int

    @classmethod
    def of(cls, trace: ReasoningTrace) -> TraceShape:
        """Return the shape of `trace`."""
        types = [step.type for step in trace.steps]
        tools = {tool.name for step in trace.steps if (tool := step.tool) is not None}
        return cls(
            steps=len(types),
            step_types=len(set(types)),
            thoughts=types.count("thought"),
            error_recoveries=types.count("error_recovery"),
            distinct_tools=len(tools),
        )

    @classmethod
    def from_counts(cls, counts: Mapping[str, float]) -> TraceShape:
        """Return the shape with these counts by name; a missing count is 0."""
        return cls(*[int(counts.get(name, 0)) for name in cls.__slots__])


def complexity(shape: TraceShape, *, step_cap: int | None = None) -> float:
    """Return how varied and long the run was, 0 to 1.

    `min(1, distinct_step_types / 4 * 0.5 + (0.3 if any error_recovery else 0) + n / 20 * 0.2)`

    Args:
        shape: The trace's shape.
        step_cap: Count at most this many steps in the last term; None counts all.
    """
    steps = shape.steps if step_cap is None else min(shape.steps, step_cap)
    recovery = 0.3 if shape.error_recoveries else 0.0
    return min(1.0, shape.step_types / 4 * 0.5 + recovery + steps / 20 * 0.2)


def novelty(similarity: float | None, baseline: float = 0.0) -> float:
    """Return how unlike all remembered traces the trace is, 0 to 1.

    `(1 - similarity) / (1 - baseline)`, clamped, because the similarity can be below the baseline;
    0.5 for None.

    Args:
        similarity: Highest cosine similarity with a remembered trace, or None if there is none.
        baseline: Cosine similarity of unrelated texts to the embedder, 0 to below 1.
    """
    if similarity is None:
        return NEUTRAL_NOVELTY
    return min(1.0, max(0.0, (1.0 - similarity) / (1.0 - baseline)))


def tool_diversity(shape: TraceShape) -> float:
    """Return how many different tools were used for the number of steps, 0 to 1.

    `min(1, distinct_tool_names / max(1, n) * 3)`
    """
    return min(1.0, shape.distinct_tools / max(1, shape.steps) * 3)


def outcome_confidence(confidence: float, *, success: bool) -> float:
    """Return how far the outcome can be trusted, 0 to 1: `confidence * (1.0 if success else 0.3)`.

    Raises:
        ValueError: `confidence` is not within 0..1.
    """
    if not 0.0 <= confidence <= 1.0:  # true of NaN as well, in a trace built without validation
        raise ValueError(f"outcome.confidence is {confidence!r}; it must be within 0..1")
    return confidence * (1.0 if success else 0.3)


def estimated_success(confidence: float, *, looked_successful: bool, proves_failure: bool) -> bool:
    """Return whether a run counts as a success whose confidence a model has estimated.

    Args:
        confidence: The estimate, 0 to 1.
        looked_successful: Whether the run looks successful by itself.
        proves_failure: Whether the run itself proves that it failed.
    """
    return not proves_failure and (looked_successful or confidence >= 0.5)


def why_outcome(
    confidence: float, source: str, *, success: bool, lowers_confidence: bool = True
) -> str:
    """Return in words what the dimension outcome confidence rests on.

    Args:
        confidence: The outcome's confidence, 0 to 1.
        source: Where it comes from.
        success: Whether the run succeeded.
        lowers_confidence: Whether a failure lowers the confidence.
    """
    ending = "failed, so x 0.3" if lowers_confidence else "looked like a failure"
    if success:
        ending = "succeeded"
    origin = f" ({source})" if source != TRACE_SOURCE else ""
    return f"confidence {confidence:.2f}{origin}, {ending}"


def why_complexity(shape: TraceShape) -> str:
    """Return in words what the dimension complexity rests on."""
    steps = count_text(shape.steps, "step")
    recoveries = count_text(shape.error_recoveries, "error recovery", "error recoveries")
    return f"{shape.step_types} of 4 step types, {steps}, {recoveries}"


def why_novelty(similarity: float | None, source: str, baseline: float) -> str:
    """Return in words what the dimension novelty rests on.

    Args:
        similarity: As for `novelty`.
        source: Where novelty came from, as in `ScoreBreakdown.novelty_source`.
        baseline: As for `novelty`.
    """
    if similarity is None:
        return why_neutral(source)
    if source == REPEAT:
        return "exact repeat of a remembered trace"
    why = f"similarity {similarity:.3f} to the {source}"
    return f"{why}, counted from the embedder's baseline {baseline:.3g}" if baseline else why


def why_tool_diversity(shape: TraceShape) -> str:
    """Return in words what the dimension tool diversity rests on."""
    tools = count_text(shape.distinct_tools, "distinct tool")
    return f"{tools} in {count_text(shape.steps, 'step')}"


@dataclass(frozen=True, slots=True)
class DimensionDefinition:
    """A dimension and its names for people.

    Attributes:
        name: Its field in `ScoringWeights` and in `ScoreBreakdown`.
        label: Its name in the lines of `ScoreBreakdown.text`.
        short_label: Its name in the one line of `ScoreBreakdown.line`.
    """

    name: str
    label: str
    short_label: str


DIMENSIONS = (
    DimensionDefinition("complexity", "complexity", "complexity"),
    DimensionDefinition("novelty", "novelty", "novelty"),
    DimensionDefinition("tool_diversity", "tool diversity", "tools"),
    DimensionDefinition("outcome_confidence", "outcome confidence", "outcome"),
)
"""The dimensions, in the order in which the weighted sum adds them."""

DIMENSION_NAMES = tuple(dimension.name for dimension in DIMENSIONS)


# ------------------------------------------------------------------ rules

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


class CombinedScore(NamedTuple):
    """A score, and how it follows from the contributions of the dimensions.

    Attributes:
        weighted_sum: The sum of the contributions.
        total: The score, 0 to 1: the sum, clamped to 1, after the rules.
        rules: The rules that applied, in order.
    """

    weighted_sum: float
    total: float
    rules: tuple[RuleFired, ...]


def combine(contributions: Iterable[float], shape: TraceShape, *, success: bool) -> CombinedScore:
    """Return the score of a run.

    Args:
        contributions: Value times weight of each dimension, in the order of `DIMENSIONS`.
        shape: The trace's shape.
        success: Whether the run succeeded.
    """
    weighted_sum = 0.0
    for contribution in contributions:  # `sum` rounds in another way from Python 3.12 on
        weighted_sum += contribution
    # Weights may exceed a sum of 1 by their tolerance.
    total, rules = apply_rules(min(1.0, weighted_sum), shape, success=success)
    return CombinedScore(weighted_sum, total, rules)
