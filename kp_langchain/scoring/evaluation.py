"""`Evaluation`: a trace while it is scored, and the breakdown that comes of it."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from kp_langchain.novelty_sources import EMPTY_CACHE, LEFT_OUT, NEAREST, REPEAT
from kp_langchain.scoring.breakdown import Dimension, Nearest, ScoreBreakdown
from kp_langchain.scoring.dimensions import (
    DIMENSIONS,
    Evidence,
    TraceShape,
    check_confidence,
    combine,
)

if TYPE_CHECKING:
    from kp_langchain.embedding.embedder import Embedding
    from kp_langchain.policy import ScoringWeights
    from kp_langchain.schema import ReasoningTrace
    from kp_langchain.scoring.novelty_memory import Match

_SAME = 1 - 1e-6  # similarity of two embeddings of one text, but for rounding


class Comparison(NamedTuple):
    """How a trace compares with the remembered ones.

    Attributes:
        nearest: The most similar remembered trace; None if the trace could not be compared.
        source: Where novelty comes from, as in `ScoreBreakdown.novelty_source`.
        unreadable_share: As in `ScoreBreakdown`.
        baseline: Cosine similarity of unrelated texts to the embedder, 0 to below 1.
    """

    nearest: Nearest | None
    source: str
    unreadable_share: float | None = None
    baseline: float = 0.0

    @classmethod
    def of(
        cls, embedding: Embedding, match: Match, baseline: float, *, left_out: bool = False
    ) -> Comparison:
        """Return the comparison of a trace.

        Args:
            embedding: The embedding of the trace's text.
            match: What the memory has that is similar.
            baseline: Cosine similarity of unrelated texts to the embedder, 0 to below 1.
            left_out: Whether there is only what was not to be compared.
        """
        share, nearest = embedding.unreadable_share, match.nearest
        if match.repeat is not None:
            is_nearest = nearest is not None and nearest.similarity > _SAME
            return cls(match.repeat, NEAREST if is_nearest else REPEAT, share)
        if embedding.problem:
            return cls(None, embedding.problem, share)
        if nearest is None:
            return cls(None, LEFT_OUT if left_out else EMPTY_CACHE, share)
        return cls(nearest, NEAREST, share, baseline)


@dataclass(slots=True)
class Evaluation:
    """All that the score of one trace needs, except novelty.

    Attributes:
        trace: The trace.
        profile: Name of the weight profile.
        weights: The weights of that profile.
        shape: The trace's shape.
    """

    trace: ReasoningTrace
    profile: str
    weights: ScoringWeights
    shape: TraceShape

    @classmethod
    def of(cls, trace: ReasoningTrace, profile: str, weights: ScoringWeights) -> Evaluation:
        """Return the evaluation of `trace` with these weights.

        Raises:
            ValueError: The confidence is out of range (in a trace built without validation).
        """
        check_confidence(trace.outcome.confidence)
        return cls(trace, profile, weights, TraceShape.of(trace))

    def breakdown(
        self,
        comparison: Comparison,
        *,
        step_cap: int | None,
        started: float,
        budget_ms: float | None,
    ) -> ScoreBreakdown:
        """Return the breakdown of the trace's score.

        Args:
            comparison: How the trace compares with the remembered ones.
            step_cap: As for `dimensions.complexity`.
            started: When scoring began, in seconds of `time.perf_counter`.
            budget_ms: Milliseconds that scoring may take; None for no limit.
        """
        nearest, weights = comparison.nearest, self.weights
        success = self.trace.metadata.success
        evidence = Evidence(
            self.shape,
            success,
            self.trace.outcome.confidence,
            None if nearest is None else nearest.similarity,
            comparison.source,
            comparison.baseline,
            step_cap,
        )
        dimensions: dict[str, Any] = {}
        contributions = []
        for row in DIMENSIONS:
            value, weight = row.formula(evidence), getattr(weights, row.name)
            contribution = value * weight
            contributions.append(contribution)
            dimensions[row.name] = Dimension(value, weight, contribution, row.why(evidence))
        weighted_sum, total, rules = combine(contributions, self.shape, success=success)
        return ScoreBreakdown(
            total=total,
            **dimensions,
            weighted_sum=weighted_sum,
            profile=self.profile,
            rules=rules,
            novelty_source=comparison.source,
            nearest=nearest,
            elapsed_ms=(time.perf_counter() - started) * 1000,
            latency_budget_ms=budget_ms,
            unreadable_share=comparison.unreadable_share,
        )
