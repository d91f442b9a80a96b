"""Holds a scored run against its domain's threshold: that of the score, or that of the worth."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from kp_langchain.gate.thresholds import threshold_of
from kp_langchain.scoring.worth import novelty_factor

if TYPE_CHECKING:
    from kp_langchain.domain_policy import DomainPolicy, Gate
    from kp_langchain.gate.recent_values import RecentValues
    from kp_langchain.scoring.breakdown import ScoreBreakdown

DEFAULT_PASS_RATE = 0.1
"""The share of runs that the gate by worth lets pass where the policy states neither a share nor a
threshold."""


class GateCheck(NamedTuple):
    """What a run is held against.

    Attributes:
        gate: Whether it is gated by its score or by its worth.
        value: That score or worth, 0 to 1.
        threshold: The least value that passes.
    """

    gate: Gate
    value: float
    threshold: float


def gated_value(breakdown: ScoreBreakdown, gate: Gate) -> float:
    """Return the score of a run, or its worth (0 to 1); the score if it has no worth."""
    if gate == "worth" and breakdown.worth is not None:
        return breakdown.worth.value
    return breakdown.total


def check(
    breakdown: ScoreBreakdown,
    domain: str,
    policy: DomainPolicy,
    *,
    recent: Callable[[Gate], RecentValues],
    base_rate: float = 0.0,
) -> GateCheck:
    """Return what a new run is held against.

    A run that has no worth, because its domain has no model, is gated by its score whatever the
    policy says; so is one whose policy states no threshold of the worth while too few runs are
    known to hold a pass rate.

    Args:
        breakdown: The run's score.
        domain: Its domain.
        policy: The policy of that domain.
        recent: Returns what the gate saw of the domain's last runs.
        base_rate: The share of successes among the runs that the domain's model was fitted to. With
            a pass rate, no run passes whose confidence is lower: keeping it would be worse than
            keeping any.
    """
    if policy.gate == "worth" and breakdown.worth is not None:
        threshold = _worth_threshold(policy, recent)
        if threshold is not None:
            if policy.worth_threshold is None:
                floor = base_rate * novelty_factor(breakdown.novelty.value)
                threshold = max(threshold, floor)
            return GateCheck("worth", breakdown.worth.value, threshold)
    fixed = threshold_of(domain, policy.threshold).for_score(breakdown)
    if policy.gate == "score" and policy.pass_rate is not None:
        following = recent("score").threshold(policy.pass_rate)
        fixed = fixed if following is None else following
    return GateCheck("score", breakdown.total, fixed)


def _worth_threshold(policy: DomainPolicy, recent: Callable[[Gate], RecentValues]) -> float | None:
    """Return the threshold of the worth; None if none is stated, and too few runs are known."""
    if policy.worth_threshold is not None:
        return policy.worth_threshold
    pass_rate = DEFAULT_PASS_RATE if policy.pass_rate is None else policy.pass_rate
    return recent("worth").threshold(pass_rate)
