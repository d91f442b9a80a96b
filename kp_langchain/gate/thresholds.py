"""The thresholds of the built-in domains, and the one that a score is held against."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from kp_langchain.scoring.breakdown import ScoreBreakdown


class Threshold(NamedTuple):
    """A domain's threshold: by default one for measured novelty and one for unmeasured.

    Attributes:
        measured: For traces whose novelty was measured against remembered ones.
        unmeasured: For traces whose novelty could not be measured and is therefore 0.5. A repeated
            task would get less than 0.5, so this threshold is higher.
    """

    measured: float
    unmeasured: float

    def for_score(self, breakdown: ScoreBreakdown) -> float:
        """Return the threshold, 0 to 1, for a trace by whether its novelty was measured."""
        return self.unmeasured if breakdown.nearest is None else self.measured


DEFAULT_THRESHOLDS: Mapping[str, Threshold] = MappingProxyType(
    {
        "default": Threshold(0.59, 0.65),
        "finance": Threshold(0.61, 0.68),
        "code": Threshold(0.62, 0.71),
        "medical": Threshold(0.67, 0.71),
        "customer_service": Threshold(0.63, 0.74),
    }
)
"""Per domain, the score that about one real run in ten reaches; see tests/benchmarks/README.md."""


def threshold_of(domain: str, configured: float | None) -> Threshold:
    """Return the threshold of a domain.

    Args:
        domain: The run's domain.
        configured: The threshold of the domain's policy, 0 to 1; None for the default.
    """
    if configured is not None:
        return Threshold(configured, configured)
    return DEFAULT_THRESHOLDS.get(domain, DEFAULT_THRESHOLDS["default"])


def default_threshold(domain: str, *, novelty_measured: bool) -> float:
    """Return the threshold (0 to 1) of `domain` where no policy sets one."""
    threshold = threshold_of(domain, None)
    return threshold.measured if novelty_measured else threshold.unmeasured
