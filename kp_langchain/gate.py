"""The gate: a scored trace against the threshold of its domain."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from uuid import UUID

    from kp_langchain.schema import ReasoningTrace
    from kp_langchain.scoring.breakdown import ScoreBreakdown

Decision = Literal["contributed", "below_threshold"]


@dataclass(frozen=True, slots=True)
class ScoredTrace:
    """A finished run after scoring.

    Args:
        trace: The redacted trace, its `metadata.quality_score` set.
        breakdown: How the score came about.
        decision: `contributed` if the score reached the threshold, else `below_threshold`.
        threshold: The threshold it was held against, 0 to 1.
        run_id: LangChain's id of the root run.
        keep_body: Whether the store keeps the trace itself, or only its figures.
    """

    trace: ReasoningTrace
    breakdown: ScoreBreakdown
    decision: Decision
    threshold: float
    run_id: UUID
    keep_body: bool = True


def decide(score: float, threshold: float) -> Decision:
    """Return `contributed` when `score` reaches `threshold` (both 0 to 1)."""
    return "contributed" if score >= threshold else "below_threshold"
