"""The formulas of a score: four dimensions, their weighted sum, and three rules.

The formulas are those of the KnowledgePulse scoring documents. A dimension is a row of `DIMENSIONS`
and a field of the same name in `ScoringWeights` and in `ScoreBreakdown`.

Each formula is written once, for the numbers of one trace and for columns of numbers with a row for
each trace (see `kp_langchain.scoring.columns`). What differs between the two is in `_at_most`,
`_at_least` and `choose`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Any, Generic, NamedTuple, TypeAlias, TypeVar, overload

from pydantic import Field

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from kp_langchain.schema import ReasoningTrace

    Column: TypeAlias = NDArray[np.float64]

Count = TypeVar("Count")
Number = TypeVar("Number", float, "Column")

FiniteNumber = Annotated[float, Field(allow_inf_nan=False)]

TRACE_SOURCE = "trace"
"""The `ScoreBreakdown.confidence_source` of a confidence that the trace alone states."""

NEUTRAL_NOVELTY = 0.5
"""Neutral: a run whose novelty was not measured is neither rewarded nor punished for it."""

DEFAULT_CONFIDENCE: Mapping[bool, float] = MappingProxyType({True: 0.8, False: 0.2})
"""The confidence in an outcome that was not reported, by success."""


# ------------------------------------------------------------------ what is counted


@dataclass(frozen=True, slots=True)
class Shape(Generic[Count]):
    """Five counts that the formulas and rules use, of one trace or as columns.

    Attributes:
        steps: Number of steps.
        step_types: Number of distinct step types.
        thoughts: Number of `thought` steps.
        error_recoveries: Number of `error_recovery` steps.
        distinct_tools: Number of distinct tool names, in steps of any type.
    """

    steps: Count
    step_types: Count
    thoughts: Count
    error_recoveries: Count
    distinct_tools: Count


class TraceShape(Shape[int]):
    """The shape of a trace."""

    __slots__ = ()

    @classmethod
    def of(cls, trace: ReasoningTrace) -> TraceShape:
        """Return the shape of `trace`."""
        return cls(*trace_counts(trace))

    @classmethod
    def from_counts(cls, counts: Mapping[str, float]) -> TraceShape:
        """Return the shape with these counts by name; a missing count is 0."""
        return cls(*[int(counts.get(name, 0)) for name in Shape.__slots__])


def trace_counts(trace: ReasoningTrace) -> tuple[int, int, int, int, int]:
    """Return the counts of the shape of `trace`, in the order of `Shape`."""
    types = [step.type for step in trace.steps]
    tools = {tool.name for step in trace.steps if (tool := step.tool) is not None}
    return (
        len(types),
        len(set(types)),
        types.count("thought"),
        types.count("error_recovery"),
        len(tools),
    )


# ------------------------------------------------------------------ formulas


def _at_most(limit: float, value: Any) -> Any:
    return min(limit, value) if isinstance(value, int | float) else value.clip(max=limit)


def _at_least(limit: float, value: Any) -> Any:
    return max(limit, value) if isinstance(value, int | float) else value.clip(min=limit)


def choose(condition: Any, yes: Any, no: Any) -> Any:
    """Return `yes` where a condition holds, else `no`: of two numbers, or row by row of columns."""
    if isinstance(condition, bool):
        return yes if condition else no
    import numpy as np

    return np.where(condition, yes, no)


@overload
def complexity(shape: Shape[int], *, step_cap: int | None = None) -> float: ...
@overload
def complexity(shape: Shape[NDArray[np.int64]], *, step_cap: int | None = None) -> Column: ...
def complexity(shape: Shape[Any], *, step_cap: int | None = None) -> Any:
    """Return how varied and long the run was, 0 to 1.

    `min(1, distinct_step_types / 4 * 0.5 + (0.3 if any error_recovery else 0) + n / 20 * 0.2)`

    Args:
        shape: The trace's shape.
        step_cap: Count at most this many steps in the last term; None counts all.
    """
    steps = shape.steps if step_cap is None else _at_most(step_cap, shape.steps)
    recovery = choose(shape.error_recoveries > 0, 0.3, 0.0)
    return _at_most(1.0, shape.step_types / 4 * 0.5 + recovery + steps / 20 * 0.2)


def novelty(similarity: Number | None, baseline: Number | float = 0.0) -> Number | float:
    """Return how unlike all remembered traces the trace is, 0 to 1.

    `(1 - similarity) / (1 - baseline)`, clamped, because the similarity can be below the baseline;
    0.5 for None.

    Args:
        similarity: Highest cosine similarity with a remembered trace, or None if there is none.
        baseline: Cosine similarity of unrelated texts to the embedder, 0 to below 1.
    """
    if similarity is None:
        return NEUTRAL_NOVELTY
    distance: Number = _at_most(1.0, _at_least(0.0, (1.0 - similarity) / (1.0 - baseline)))
    return distance


@overload
def tool_diversity(shape: Shape[int]) -> float: ...
@overload
def tool_diversity(shape: Shape[NDArray[np.int64]]) -> Column: ...
def tool_diversity(shape: Shape[Any]) -> Any:
    """Return how many different tools were used for the number of steps, 0 to 1.

    `min(1, distinct_tool_names / max(1, n) * 3)`
    """
    return _at_most(1.0, shape.distinct_tools / _at_least(1, shape.steps) * 3)


def outcome_confidence(confidence: float, *, success: bool) -> float:
    """Return how far the outcome can be trusted, 0 to 1: `confidence * (1.0 if success else 0.3)`.

    Raises:
        ValueError: `confidence` is not within 0..1.
    """
    check_confidence(confidence)
    return trusted_confidence(confidence, success)


def check_confidence(confidence: float) -> None:
    """Raise a `ValueError` unless a confidence is within 0..1."""
    if not 0.0 <= confidence <= 1.0:  # true of NaN as well, in a trace built without validation
        raise ValueError(f"outcome.confidence is {confidence!r}; it must be within 0..1")


def trusted_confidence(confidence: Number, success: bool | NDArray[np.bool_]) -> Number:
    """Return what `outcome_confidence` does, of confidences that have been checked."""
    trust: Number = choose(success, 1.0, 0.3)
    return confidence * trust


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


@dataclass(frozen=True, slots=True)
class Rule:
    """A rule of the scoring documents, for one score or a column of them.

    Attributes:
        name: Its name.
        reason: Why it applies, in words.
        applies: Whether it applies to a shape and a success.
        change: From the score before it to the score after it.
    """

    name: str
    reason: str
    applies: Callable[[Shape[Any], Any], Any]
    change: Callable[[Any], Any]


RULES = (
    Rule(
        SINGLE_THOUGHT,
        "the run is one thought and nothing else",
        lambda shape, _success: (shape.steps == 1) & (shape.thoughts == 1),
        lambda _score: 0.1,
    ),
    Rule(
        RECOVERED_ERRORS,
        "it succeeded after more than 2 recovered errors",
        lambda shape, success: (shape.error_recoveries > 2) & success,
        lambda score: _at_most(1.0, score + 0.1),
    ),
    Rule(
        SINGLE_TOOL,
        "all its tool calls went to the same tool",
        lambda shape, _success: shape.distinct_tools == 1,
        lambda score: _at_least(0.0, score - 0.1),
    ),
)
"""The rules, in the order in which they apply."""

REASONS = {rule.name: rule.reason for rule in RULES}
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
    fired: list[RuleFired] = []
    for rule in RULES:
        if rule.applies(shape, success):
            before, score = score, rule.change(score)
            fired.append(RuleFired(rule.name, before, score))
    return score, tuple(fired)


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
    weighted_sum = sum_in_order(contributions)
    total, rules = apply_rules(clamped_sum(weighted_sum), shape, success=success)
    return CombinedScore(weighted_sum, total, rules)


def sum_in_order(contributions: Iterable[Number]) -> Number:
    """Return the sum of the contributions of the dimensions."""
    total: Any = 0.0
    for contribution in contributions:  # `sum` rounds in another way from Python 3.12 on
        total = total + contribution
    weighted_sum: Number = total
    return weighted_sum


def clamped_sum(weighted_sum: Number) -> Number:
    """Return a weighted sum as a score: weights may exceed a sum of 1 by their tolerance."""
    score: Number = _at_most(1.0, weighted_sum)
    return score
