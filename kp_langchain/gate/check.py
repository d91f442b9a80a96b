"""Holds a scored run against its domain's threshold: that of the score, or that of the worth."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from kp_langchain.gate.thresholds import threshold_of
from kp_langchain.scoring.rules import SINGLE_THOUGHT
from kp_langchain.scoring.worth import novelty_factor

if TYPE_CHECKING:
    from kp_langchain.domain_policy import DomainPolicy, Gate
    from kp_langchain.gate.recent_values import RecentValues
    from kp_langchain.scoring.breakdown import ScoreBreakdown

DEFAULT_PASS_RATE = 0.1
"""The share of runs that passes in a domain with a model whose policy states neither a pass rate
nor a threshold: that of the built-in thresholds, which are made for confidences without a model."""


class GateCheck(NamedTuple):
    """What a run is held against.

    Attributes:
        gate: Whether it is gated by its score or by its worth.
        value: That score or worth, 0 to 1.
        threshold: The least value that passes.
        pass_rate: The share of runs that is to pass; None for a fixed threshold.
    """

    gate: Gate
    value: float
    threshold: float
    pass_rate: float | None = None


def pass_rate_of(policy: DomainPolicy, gate: Gate, *, has_model: bool) -> float | None:
    """Return the share of a domain's runs that is to pass; None if a fixed threshold applies.

    Args:
        policy: The policy of the domain.
        gate: By what its runs are gated.
        has_model: Whether it has a confidence model.
    """
    fixed = policy.worth_threshold if gate == "worth" else policy.threshold
    if policy.pass_rate is None and fixed is None and has_model:
        return DEFAULT_PASS_RATE
    return policy.pass_rate


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
    policy says. So is one whose policy states no threshold of the worth, while too few runs are
    known to hold a pass rate.

    Args:
        breakdown: The run's score.
        domain: Its domain.
        policy: The policy of that domain.
        recent: Returns what the gate saw of the domain's last runs.
        base_rate: The share of successes among the runs that the domain's model was fitted to. With
            a pass rate, no run passes whose confidence is lower: keeping it would be worse than
            keeping any. By worth, that is the calibrated confidence; by the score, the one that
            the score has counted.
    """
    has_model = breakdown.worth is not None
    if policy.gate == "worth" and breakdown.worth is not None:
        value = breakdown.worth.value
        if (pass_rate := pass_rate_of(policy, "worth", has_model=True)) is not None:
            rate_threshold = recent("worth").threshold(pass_rate)
            if rate_threshold is not None:
                floor = base_rate * novelty_factor(breakdown.novelty.value)
                return GateCheck("worth", value, max(rate_threshold, floor), pass_rate)
        if policy.worth_threshold is not None:
            return GateCheck("worth", value, policy.worth_threshold)
    if (pass_rate := pass_rate_of(policy, "score", has_model=has_model)) is not None:
        rate_threshold = recent("score").threshold(pass_rate)
        if rate_threshold is not None:
            floor = _least_score(breakdown, base_rate)
            return GateCheck("score", breakdown.total, max(rate_threshold, floor), pass_rate)
    fixed = threshold_of(domain, policy.threshold).for_score(breakdown)
    return GateCheck("score", breakdown.total, fixed)


def _least_score(breakdown: ScoreBreakdown, base_rate: float) -> float:
    """Return the score that the run would have if its outcome's confidence were the base rate.

    The score reaches it if the confidence does. Where the confidence does not count, because its
    weight is 0 or the run is a single thought, every score reaches it.
    """
    outcome = breakdown.outcome_confidence
    if breakdown.worth is None or any(rule.name == SINGLE_THOUGHT for rule in breakdown.rules):
        return 0.0
    return breakdown.total + outcome.weight * (base_rate - outcome.value)
