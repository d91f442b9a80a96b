"""From the contributions of the dimensions to a score: the weighted sum, then the rules."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from kp_langchain.scoring.dimensions import TraceShape
from kp_langchain.scoring.rules import RuleFired, apply_rules


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
