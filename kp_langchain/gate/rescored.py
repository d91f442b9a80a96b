"""`Rescored`: what changed of a run that was judged again."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kp_langchain.gate.run import Decision, ScoredTrace, gated_value

if TYPE_CHECKING:
    from kp_langchain.policy import Gate


@dataclass(frozen=True, slots=True)
class Rescored:
    """What changed of a run that was judged again, by a verdict or by other runs of its task.

    Attributes:
        trace_id: The trace's id, as `StoredRun` has it.
        run_id: LangChain's id of the root run.
        domain: The run's domain.
        threshold: What its score or worth is compared with, 0 to 1.
        gate: Which of the two, `score` or `worth`.
        gate_before: Which of them before.
        has_trace: Whether the trace itself is in the store; one that is not cannot pass.
        success_before: Whether it counted as a success before.
        success: Whether it counts as a success now.
        confidence_before: The outcome's confidence before, 0 to 1.
        confidence: The outcome's confidence now, 0 to 1.
        score_before: The score before, 0 to 1.
        score: The score now, 0 to 1.
        worth_before: Its worth before, 0 to 1; None if it has none.
        worth: Its worth now.
        decision_before: The decision before: `kept`, `below_threshold` or `twin`.
        decision: The decision now.
        twin_of: Id of the kept trace that it repeats, if it would have passed but for that.
        similarity_to_twin: The similarity of the two, 0 to 1.
        replaces: Ids of the kept traces whose place it takes.
    """

    trace_id: str
    run_id: str
    domain: str
    threshold: float
    has_trace: bool
    success_before: bool
    success: bool
    confidence_before: float
    confidence: float
    score_before: float
    score: float
    decision_before: Decision
    decision: Decision
    gate: Gate = "score"
    gate_before: Gate = "score"
    worth_before: float | None = None
    worth: float | None = None
    twin_of: str | None = None
    similarity_to_twin: float | None = None
    replaces: tuple[str, ...] = ()

    @classmethod
    def of(cls, run: ScoredTrace) -> Rescored:
        """Return what changed of a run that was scored again; nothing of one without `previous`."""
        before = _changeable(run.previous or run)
        return cls(
            trace_id=run.stored_id or run.trace.id,
            run_id=str(run.run_id),
            domain=run.trace.metadata.task_domain,
            threshold=run.threshold,
            has_trace=run.keep_body,
            gate=run.gate,
            gate_before=(run.previous or run).gate,
            twin_of=run.twin_of,
            similarity_to_twin=run.similarity_to_twin,
            replaces=run.replaces,
            **_changeable(run),
            **{f"{name}_before": value for name, value in before.items()},
        )

    @property
    def gated_value(self) -> float:
        """What is compared with the threshold: its score or its worth, 0 to 1."""
        return gated_value(self.gate, self.score, self.worth)

    @property
    def gated_value_before(self) -> float:
        """The same before."""
        return gated_value(self.gate_before, self.score_before, self.worth_before)

    @property
    def changed(self) -> bool:
        """Whether anything is other than before."""
        return any(getattr(self, name) != getattr(self, f"{name}_before") for name in _CHANGEABLE)


_CHANGEABLE = ("success", "confidence", "score", "worth", "decision")


def _changeable(run: ScoredTrace) -> dict[str, Any]:
    """Return what a verdict may change of a run, by name."""
    trace, score = run.trace, run.breakdown.total
    values = (trace.metadata.success, trace.outcome.confidence, score, run.worth, run.decision)
    return dict(zip(_CHANGEABLE, values, strict=True))
