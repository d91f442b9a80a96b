"""From the figures of one trace to the breakdown of its score."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kp_langchain.novelty_sources import EMPTY_CACHE, NEAREST, REPEAT, why_neutral
from kp_langchain.scoring.breakdown import Dimension, Nearest, ScoreBreakdown
from kp_langchain.scoring.dimensions import (
    DIMENSION_NAMES,
    TRACE_SOURCE,
    TraceShape,
    combine,
    complexity,
    novelty,
    outcome_confidence,
    tool_diversity,
    why_outcome,
)
from kp_langchain.text import count_text

if TYPE_CHECKING:
    from kp_langchain.policy import ScoringWeights

_SAME = 1 - 1e-6  # similarity of two embeddings of one text, but for rounding


@dataclass(frozen=True, slots=True)
class NoveltyMeasure:
    """What the novelty of one trace rests on.

    Attributes:
        nearest: The most similar remembered trace, if any was compared.
        source: Where novelty comes from, as in `ScoreBreakdown.novelty_source`.
        baseline: Cosine similarity of unrelated texts to the embedder, 0 to below 1.
        unreadable_share: As in `ScoreBreakdown`.
    """

    nearest: Nearest | None
    source: str
    baseline: float = 0.0
    unreadable_share: float | None = None


def source_of(similarity: float | None, *, is_repeat: bool, problem: str) -> str:
    """Return where the novelty of a trace comes from, that was compared with all remembered ones.

    Args:
        similarity: The highest cosine similarity with a remembered vector; None if none was
            compared.
        is_repeat: Whether a remembered trace has the same text.
        problem: Why the trace has no vector; empty if it has one.
    """
    if is_repeat:
        return NEAREST if similarity is not None and similarity > _SAME else REPEAT
    return problem or (EMPTY_CACHE if similarity is None else NEAREST)


def explain_score(
    shape: TraceShape,
    measure: NoveltyMeasure,
    *,
    confidence: float,
    success: bool,
    profile: str,
    weights: ScoringWeights,
    step_cap: int | None,
    elapsed_ms: float,
    latency_budget_ms: float | None,
) -> ScoreBreakdown:
    """Return the score of one trace with all that it follows from.

    Args:
        shape: The trace's shape.
        measure: Its novelty.
        confidence: Its outcome's confidence, 0 to 1.
        success: Whether the run succeeded.
        profile: Name of the weights.
        weights: The weights.
        step_cap: As for `complexity`.
        elapsed_ms: Milliseconds that scoring took.
        latency_budget_ms: Milliseconds that it was allowed to take; None for no limit.
    """
    similarity = None if measure.nearest is None else measure.nearest.similarity
    baseline = measure.baseline
    values = {
        "complexity": (complexity(shape, step_cap=step_cap), why_complexity(shape)),
        "novelty": (
            novelty(similarity, baseline),
            why_novelty(similarity, measure.source, baseline),
        ),
        "tool_diversity": (tool_diversity(shape), why_tool_diversity(shape)),
        "outcome_confidence": (
            outcome_confidence(confidence, success=success),
            why_outcome(confidence, TRACE_SOURCE, success=success),
        ),
    }
    dimensions: dict[str, Any] = {}
    for name in DIMENSION_NAMES:
        (value, why), weight = values[name], getattr(weights, name)
        dimensions[name] = Dimension(value, weight, value * weight, why)
    contributions = [dimension.contribution for dimension in dimensions.values()]
    weighted_sum, total, rules = combine(contributions, shape, success=success)
    return ScoreBreakdown(
        total=total,
        **dimensions,
        weighted_sum=weighted_sum,
        profile=profile,
        rules=rules,
        novelty_source=measure.source,
        nearest=measure.nearest,
        elapsed_ms=elapsed_ms,
        latency_budget_ms=latency_budget_ms,
        unreadable_share=measure.unreadable_share,
    )


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
