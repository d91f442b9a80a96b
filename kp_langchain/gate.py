"""The gate: a scored trace against the threshold of its domain."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Literal, NamedTuple

if TYPE_CHECKING:
    from uuid import UUID

    from kp_langchain.run_keys import RunKeys
    from kp_langchain.schema import ReasoningTrace
    from kp_langchain.scoring.breakdown import ScoreBreakdown
    from kp_langchain.verdict import Verdict

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
        keep_days: For how many days it keeps a trace that did not pass, so that a later verdict can
            still contribute it; None for good.
        features: What a confidence model reads of the trace, by name.
        task: What tells repeats of the run's task, other than its objective; nothing to be read.
        verdict: What somebody said of the run by the time it was scored.
        withheld: Why the trace must never be contributed, if so.
        keys: What the run is found by. They stay in the store and the log.
    """

    trace: ReasoningTrace
    breakdown: ScoreBreakdown
    decision: Decision
    threshold: float
    run_id: UUID
    keep_body: bool = True
    keep_days: float | None = None
    features: Mapping[str, float] | None = None
    task: str | None = None
    verdict: Verdict | None = None
    withheld: str | None = None
    keys: RunKeys | None = None


class Threshold(NamedTuple):
    """Where the gate stands by default: two places, because novelty is not always measured.

    Args:
        measured: For traces whose novelty was measured against remembered ones.
        unmeasured: For traces that got 0.5 for want of an embedder or of anything remembered:
            more than a repeated task would get, so the gate stands higher.
    """

    measured: float
    unmeasured: float


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


def default_threshold(domain: str, *, novelty_measured: bool) -> float:
    """Return the threshold (0 to 1) of `domain` where no policy sets one."""
    found = DEFAULT_THRESHOLDS.get(domain, DEFAULT_THRESHOLDS["default"])
    return found.measured if novelty_measured else found.unmeasured


def decide(score: float, threshold: float) -> Decision:
    """Return `contributed` when `score` reaches `threshold` (both 0 to 1)."""
    return "contributed" if score >= threshold else "below_threshold"


def decision_word(decision: str, *, has_registry: bool) -> str:
    """Return the word for a decision that people read; data has the decision itself.

    Args:
        decision: `contributed` or `below_threshold`.
        has_registry: Whether there is a registry. Without one, what passes is kept here, and
            contributed to nobody.
    """
    return "kept" if decision == "contributed" and not has_registry else decision


def leaves(scored: ScoredTrace) -> bool:
    """Return whether a trace may go to a registry: it passed and is private in neither sense."""
    metadata = scored.trace.metadata
    return scored.decision == "contributed" and may_leave(
        metadata.visibility, metadata.privacy_level
    )


def may_leave(visibility: str, privacy_level: str) -> bool:
    """Return whether runs may leave this machine at all.

    At the privacy level `private` only secrets are redacted, so such runs stay local. `org` is no
    less public than `network`: a registry need not know who belongs to an organisation.
    """
    return visibility != "private" and privacy_level != "private"
