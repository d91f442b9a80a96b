"""The gate: decides for a new run and for a late verdict alike whether a trace passes.

It knows no database: runs and verdicts in, `ScoredTrace` out.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Literal, NamedTuple

from kp_langchain.scoring.changed_outcome import with_outcome
from kp_langchain.scoring.dimensions import TraceShape
from kp_langchain.scoring.rules import RECOVERED_ERRORS, SINGLE_THOUGHT, SINGLE_TOOL
from kp_langchain.verdict import CERTAINTY

if TYPE_CHECKING:
    from uuid import UUID

    from kp_langchain.run_keys import RunKeys
    from kp_langchain.schema import ReasoningTrace
    from kp_langchain.scoring.breakdown import ScoreBreakdown
    from kp_langchain.verdict import Verdict

__all__ = [
    "DEFAULT_THRESHOLDS",
    "Decision",
    "Rescored",
    "ScoredTrace",
    "Threshold",
    "decide",
    "default_threshold",
    "rejudge",
    "threshold_of",
]

Decision = Literal["contributed", "below_threshold"]


@dataclass(frozen=True, slots=True)
class ScoredTrace:
    """A finished run after scoring.

    Attributes:
        trace: The redacted trace, its `metadata.quality_score` set. Without steps where the run was
            scored again after a verdict and the store no longer has its trace.
        breakdown: How the score came about.
        decision: `contributed` if the score reached the threshold, else `below_threshold`.
        threshold: The threshold it was held against, 0 to 1.
        run_id: LangChain's id of the root run.
        keep_body: Whether the store keeps the trace itself, or only its figures.
        keep_days: For how many days it keeps a trace that did not pass, so that a later verdict can
            still contribute it; None for good.
        features: What a confidence model reads of the trace, by name.
        task: Hash of the run's `kp_task`, used to recognise repeats instead of the objective.
        verdict: The verdict that was there when the run was scored, or that it was scored again
            for.
        withheld: Why the trace must never be contributed, if so.
        keys: What the run is found by. They stay in the store and the log.
        registry: URL of the registry to contribute to, if any.
        stored_id: The trace's id as `StoredRun` has it, if the run comes from the store.
        previous: The run as it was scored before the verdict; None for a new run.
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
    registry: str | None = None
    stored_id: str | None = None
    previous: ScoredTrace | None = None


@dataclass(frozen=True, slots=True)
class Rescored:
    """What a verdict changed of one run.

    Attributes:
        trace_id: The trace's id, as `StoredRun` has it.
        run_id: LangChain's id of the root run.
        domain: The run's domain.
        threshold: What its score is held against, 0 to 1.
        kept: Whether the trace itself is in the store; one that is not cannot be contributed.
        success_before: Whether it counted as a success before the verdict.
        success: Whether it counts as a success now.
        confidence_before: The outcome's confidence before the verdict, 0 to 1.
        confidence: The outcome's confidence now, 0 to 1.
        score_before: The score before the verdict, 0 to 1.
        score: The score now, 0 to 1.
        decision_before: The decision before the verdict, `contributed` or `below_threshold`.
        decision: The decision now, one of the same two.
    """

    trace_id: str
    run_id: str
    domain: str
    threshold: float
    kept: bool
    success_before: bool
    success: bool
    confidence_before: float
    confidence: float
    score_before: float
    score: float
    decision_before: Decision
    decision: Decision

    @classmethod
    def of(cls, run: ScoredTrace) -> Rescored:
        """Return what changed of a run that was scored again; nothing of one without `previous`."""
        before = run.previous or run
        return cls(
            trace_id=run.stored_id or run.trace.id,
            run_id=str(run.run_id),
            domain=run.trace.metadata.task_domain,
            threshold=run.threshold,
            kept=run.keep_body,
            success_before=before.trace.metadata.success,
            success=run.trace.metadata.success,
            confidence_before=before.trace.outcome.confidence,
            confidence=run.trace.outcome.confidence,
            score_before=before.breakdown.total,
            score=run.breakdown.total,
            decision_before=before.decision,
            decision=run.decision,
        )

    @property
    def changed(self) -> bool:
        """Whether anything is other than before."""
        return any(
            getattr(self, name) != getattr(self, f"{name}_before")
            for name in ("success", "confidence", "score", "decision")
        )


class Threshold(NamedTuple):
    """A domain's threshold: by default one for measured novelty and one for unmeasured.

    Attributes:
        measured: For traces whose novelty was measured against remembered ones.
        unmeasured: For traces that got 0.5 for want of an embedder or of anything remembered:
            more than a repeated task would get, so the gate stands higher.
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


def may_contribute(scored: ScoredTrace) -> bool:
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


def rejudge(run: ScoredTrace, verdict: Verdict) -> ScoredTrace:
    """Score a run again after a verdict, and decide again.

    Everything but the outcome stays as it was when the run happened: novelty, weights, threshold.

    Args:
        run: The run as the store has it; `keep_body` says whether it still has the trace itself.
        verdict: The verdict; its note is redacted already.

    Returns:
        The run with the new outcome, score and decision, and `previous`, the run as given. A trace
        that the store no longer has, or that is withheld, does not pass.
    """
    trace = run.trace
    success = trace.metadata.success if verdict.success is None else verdict.success
    confidence = CERTAINTY[success] if verdict.confidence is None else float(verdict.confidence)
    breakdown = with_outcome(
        run.breakdown,
        success=success,
        confidence=confidence,
        source=verdict.source,
        shape=_shape(run),
    )
    passes = (
        run.keep_body
        and run.withheld is None
        and decide(breakdown.total, run.threshold) == "contributed"
    )
    # With keep_days 0, a run that no longer passes is not kept for another verdict.
    keep_body = run.keep_body and (
        passes or run.decision == "below_threshold" or run.keep_days != 0
    )
    confirmed_by = [*(trace.metadata.validated_by or []), verdict.source]
    metadata = trace.metadata.model_copy(
        update={
            "success": success,
            "quality_score": breakdown.total,
            "validated_by": list(dict.fromkeys(confirmed_by)),
        }
    )
    outcome = trace.outcome.model_copy(update={"confidence": confidence})
    return replace(
        run,
        trace=trace.model_copy(update={"metadata": metadata, "outcome": outcome}),
        breakdown=breakdown,
        decision="contributed" if passes else "below_threshold",
        keep_body=keep_body,
        verdict=verdict,
        previous=run,
    )


def _shape(run: ScoredTrace) -> TraceShape:
    if run.features is not None:
        return TraceShape.from_counts(run.features)
    if run.trace.steps:
        return TraceShape.of(run.trace)
    # An earlier version stored it without its trace: the rules that applied tell enough.
    applied = {rule.name for rule in run.breakdown.rules}
    is_one_thought = SINGLE_THOUGHT in applied
    return TraceShape(
        steps=1 if is_one_thought else 2,
        step_types=1,
        thoughts=int(is_one_thought),
        error_recoveries=3 if RECOVERED_ERRORS in applied else 0,
        distinct_tools=1 if SINGLE_TOOL in applied else 2,
    )
