"""The four dimensions of a score, and the text whose embedding stands for a trace.

The formulas are those of the KnowledgePulse scoring documents.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kp_langchain.schema import ReasoningTrace

NEUTRAL_NOVELTY = 0.5
"""Novelty where nothing can be compared: no embedder, or nothing remembered yet."""

DEFAULT_CONFIDENCE: Mapping[bool, float] = MappingProxyType({True: 0.8, False: 0.2})
"""The confidence in an outcome for which nobody and nothing vouches, by success."""


@dataclass(frozen=True, slots=True)
class TraceShape:
    """What the formulas and rules need to know of a trace's steps: five counts.

    Args:
        steps: Number of steps.
        step_types: How many distinct step types.
        thoughts: Number of `thought` steps.
        error_recoveries: Number of `error_recovery` steps.
        distinct_tools: How many distinct names of tools, of steps of any type.
    """

    steps: int
    step_types: int
    thoughts: int
    error_recoveries: int
    distinct_tools: int

    @classmethod
    def of(cls, trace: ReasoningTrace) -> TraceShape:
        """Read the shape of `trace` in one pass."""
        types: list[str] = []
        tools: set[str] = set()
        for step in trace.steps:
            types.append(step.type)
            if step.tool is not None:
                tools.add(step.tool.name)
        return cls(
            steps=len(types),
            step_types=len(set(types)),
            thoughts=types.count("thought"),
            error_recoveries=types.count("error_recovery"),
            distinct_tools=len(tools),
        )

    @classmethod
    def from_counts(cls, counts: Mapping[str, float]) -> TraceShape:
        """Return the shape that a mapping of the five counts, and perhaps more, describes."""
        return cls(**{name: int(counts.get(name, 0)) for name in cls.__slots__})


def complexity(shape: TraceShape, *, step_cap: int | None = None) -> float:
    """Return how varied and long the run was, 0 to 1.

    `min(1, distinct_step_types / 4 * 0.5 + (0.3 if any error_recovery else 0) + n / 20 * 0.2)`

    Args:
        shape: The trace's shape.
        step_cap: Count at most this many steps in the last term; None counts all.
    """
    counted = shape.steps if step_cap is None else min(shape.steps, step_cap)
    recovery = 0.3 if shape.error_recoveries else 0.0
    return min(1.0, shape.step_types / 4 * 0.5 + recovery + counted / 20 * 0.2)


def novelty(similarity: float | None, baseline: float = 0.0) -> float:
    """Return how unlike everything remembered the trace is, 0 to 1.

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
        ValueError: `confidence` is not within 0..1 (possible in a trace built without validation).
    """
    if not 0.0 <= confidence <= 1.0:  # true of NaN as well
        raise ValueError(f"outcome.confidence is {confidence!r}; it must be within 0..1")
    return confidence * (1.0 if success else 0.3)


def embedded_text(trace: ReasoningTrace) -> str:
    """Return the text whose embedding stands for the trace.

    The objective, one space, then the contents of all steps joined by one space; a step without
    content counts as an empty text.
    """
    return f"{trace.task.objective} {' '.join(step.content or '' for step in trace.steps)}"
