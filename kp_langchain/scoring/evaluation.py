"""What of a trace makes its score, and the breakdown that comes of it."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kp_langchain.scoring import dimensions
from kp_langchain.scoring.breakdown import (
    REPEAT,
    UNKNOWN_SOURCE,
    Dimension,
    Nearest,
    ScoreBreakdown,
    why_outcome,
)
from kp_langchain.scoring.rules import apply_rules

if TYPE_CHECKING:
    from kp_langchain.schema import ReasoningTrace
    from kp_langchain.weights import ScoringWeights


@dataclass(frozen=True, slots=True)
class Comparison:
    """What came of comparing a trace with the remembered ones.

    Args:
        nearest: The most similar remembered trace; None if it could not be compared.
        source: Where novelty comes from, as `ScoreBreakdown.novelty_source` says it.
        unreadable_share: As in `ScoreBreakdown`.
        baseline: Cosine similarity of unrelated texts to the embedder, 0 to below 1.
    """

    nearest: Nearest | None
    source: str
    unreadable_share: float | None = None
    baseline: float = 0.0


@dataclass(slots=True)
class Reading:
    """All that the score of one trace needs but novelty.

    Args:
        trace: The trace.
        profile: Name of the weight profile.
        weights: Its weights.
        shape: What the formulas need of the steps.
        confidence: The outcome's confidence, 0 to 1.
        outcome: The dimension outcome confidence, 0 to 1.
        success: Whether the run succeeded.
    """

    trace: ReasoningTrace
    profile: str
    weights: ScoringWeights
    shape: dimensions.TraceShape
    confidence: float
    outcome: float
    success: bool

    @classmethod
    def of(cls, trace: ReasoningTrace, profile: str, weights: ScoringWeights) -> Reading:
        """Read `trace`, to be weighed with `weights`.

        Raises:
            ValueError: The confidence is out of range (in a trace built without validation).
        """
        success, confidence = trace.metadata.success, trace.outcome.confidence
        outcome = dimensions.outcome_confidence(confidence, success=success)
        shape = dimensions.TraceShape.of(trace)
        return cls(trace, profile, weights, shape, confidence, outcome, success)

    def explained(
        self,
        comparison: Comparison,
        *,
        step_cap: int | None,
        started: float,
        budget_ms: float | None,
    ) -> ScoreBreakdown:
        """Return the breakdown.

        Args:
            comparison: What came of comparing the trace with the remembered ones.
            step_cap: As for `dimensions.complexity`.
            started: When scoring began, in seconds of `time.perf_counter`.
            budget_ms: Milliseconds that scoring may take; None for no limit.
        """
        shape, weights, nearest = self.shape, self.weights, comparison.nearest
        steps = _count(shape.steps, "step")
        complexity = _dimension(
            dimensions.complexity(shape, step_cap=step_cap),
            weights.complexity,
            f"{shape.step_types} of 4 step types, {steps}, "
            f"{_count(shape.error_recoveries, 'error recovery', 'error recoveries')}",
        )
        novelty = _dimension(
            dimensions.novelty(
                None if nearest is None else nearest.similarity, comparison.baseline
            ),
            weights.novelty,
            _why_novelty(comparison),
        )
        tool_diversity = _dimension(
            dimensions.tool_diversity(shape),
            weights.tool_diversity,
            f"{_count(shape.distinct_tools, 'distinct tool')} in {steps}",
        )
        outcome = _dimension(
            self.outcome,
            weights.outcome_confidence,
            why_outcome(self.confidence, UNKNOWN_SOURCE, success=self.success),
        )
        weighted_sum = (
            complexity.contribution
            + novelty.contribution
            + tool_diversity.contribution
            + outcome.contribution
        )
        # Weights may exceed a sum of 1 by their tolerance.
        total, rules = apply_rules(min(1.0, weighted_sum), shape, success=self.success)
        return ScoreBreakdown(
            total=total,
            complexity=complexity,
            novelty=novelty,
            tool_diversity=tool_diversity,
            outcome_confidence=outcome,
            weighted_sum=weighted_sum,
            profile=self.profile,
            rules=rules,
            novelty_source=comparison.source,
            nearest=nearest,
            elapsed_ms=(time.perf_counter() - started) * 1000,
            latency_budget_ms=budget_ms,
            unreadable_share=comparison.unreadable_share,
        )


def _dimension(value: float, weight: float, why: str) -> Dimension:
    return Dimension(value, weight, value * weight, why)


def _why_novelty(comparison: Comparison) -> str:
    if comparison.nearest is None:
        return "neutral, nothing to compare with"
    if comparison.source == REPEAT:
        return "exact repeat of a remembered trace"
    why = f"similarity {comparison.nearest.similarity:.3f} to the {comparison.source}"
    if comparison.baseline:
        why += f", counted from the embedder's baseline {comparison.baseline:.3g}"
    return why


def _count(number: int, one: str, many: str = "") -> str:
    return f"{number} {one if number == 1 else many or one + 's'}"
