"""`ScoredTrace`, a run with its score and decision, and `Rescored`, what a verdict changed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from kp_langchain.gate.run import RunFacts

if TYPE_CHECKING:
    from uuid import UUID

    from kp_langchain.domain_policy import Gate
    from kp_langchain.schema import ReasoningTrace
    from kp_langchain.scoring.breakdown import ScoreBreakdown
    from kp_langchain.scoring.novelty_memory import MemoryEntry
    from kp_langchain.verdict import Verdict

Decision = Literal["kept", "below_threshold", "twin"]
"""What the gate decides on a run.

- `kept`: it passed. What a registry does with it is no part of the decision; the outbox knows that.
- `below_threshold`: its score or worth is below the threshold, or it is withheld.
- `twin`: it repeats a kept run that it is not surer than, or one that is surer took its place.
"""


def decide(value: float, threshold: float) -> Decision:
    """Return `kept` when a score or worth reaches the threshold (both 0 to 1)."""
    return "kept" if value >= threshold else "below_threshold"


def gated_value(gate: str, score: float, worth: float | None) -> float:
    """Return what is held against the threshold: the worth if that is the gate, else the score."""
    return worth if gate == "worth" and worth is not None else score


def may_leave(visibility: str, privacy_level: str) -> bool:
    """Return whether runs may leave this machine at all.

    At the privacy level `private` only secrets are redacted, so such runs stay local. `org` is no
    less public than `network`: a registry need not know who belongs to an organisation.
    """
    return visibility != "private" and privacy_level != "private"


@dataclass(frozen=True, slots=True)
class ScoredTrace(RunFacts):
    """A finished run after scoring. It also has the fields of `RunFacts`.

    Attributes:
        trace: The redacted trace, its `metadata.quality_score` set. Without steps where the run was
            scored again after a verdict and the store no longer has its trace.
        breakdown: How the score came about.
        decision: `kept` if its score or worth reached the threshold, `twin` if it did but repeats
            a kept trace, else `below_threshold`.
        threshold: The threshold it was held against, 0 to 1.
        run_id: LangChain's id of the root run.
        keep_body: Whether the store keeps the trace itself, or only its figures.
        keep_days: For how many days it has a trace that the gate does not keep, so that a later
            verdict still can; None for good.
        features: What a confidence model reads of the trace, by name.
        verdict: The verdict that was there when the run was scored, or that it was scored again
            for.
        stored_id: The trace's id as `StoredRun` has it, if the run comes from the store.
        previous: The run as it was scored before the verdict; None for a new run.
        gate: Whether its score or its worth was held against the threshold.
        pass_rate: The share of runs that was to pass; None for a fixed threshold.
        twin_similarity: The similarity, 0 to 1, from which it repeats a kept trace; 1 if the rule
            is off.
        twin_of: Id of the kept trace that it repeats, if it would have passed but for that.
        similarity_to_twin: The similarity of the two, 0 to 1; 1 for the same text.
        replaces: Ids of the kept traces whose place it takes, because it repeats them and is surer.
            They are twins since.
        entry: Text and vector of the trace, as others are compared with it; None if not known.
        stored: Whether it is in the store; False while that cannot be written, or without one.
    """

    trace: ReasoningTrace
    breakdown: ScoreBreakdown
    decision: Decision
    threshold: float
    run_id: UUID
    keep_body: bool = True
    keep_days: float | None = None
    features: Mapping[str, float] | None = None
    verdict: Verdict | None = None
    stored_id: str | None = None
    previous: ScoredTrace | None = None
    gate: Gate = "score"
    pass_rate: float | None = None
    twin_similarity: float = 1.0
    twin_of: str | None = None
    similarity_to_twin: float | None = None
    replaces: tuple[str, ...] = ()
    entry: MemoryEntry | None = field(default=None, compare=False, repr=False)
    stored: bool = True

    @property
    def worth(self) -> float | None:
        """How much it is worth keeping, 0 to 1; None where its domain has no confidence model."""
        return None if self.breakdown.worth is None else self.breakdown.worth.value

    @property
    def gated_value(self) -> float:
        """What is held against the threshold: its score or its worth, 0 to 1."""
        return gated_value(self.gate, self.breakdown.total, self.worth)

    @property
    def is_stated(self) -> bool:
        """Whether a verdict states whether the run succeeded."""
        return self.verdict is not None and self.verdict.success is not None

    @property
    def is_one_more_kept(self) -> bool:
        """Whether one more run is kept because of it; not so if it takes the place of another."""
        return self.decision == "kept" and not self.replaces

    def to_row(self) -> dict[str, Any]:
        """Return it as one flat row, such as of a DataFrame.

        The columns are those of `ReasoningTrace.to_row` and `ScoreBreakdown.to_row`, and
        `decision`, `threshold`, `gate`, `run_id`, `twin_of` and `withheld`.
        """
        return (
            self.trace.to_row()
            | self.breakdown.to_row()
            | {
                "decision": self.decision,
                "threshold": self.threshold,
                "gate": self.gate,
                "run_id": str(self.run_id),
                "twin_of": self.twin_of,
                "withheld": self.withheld,
            }
        )

    def _repr_html_(self) -> str:
        """Return it as a notebook shows it: the decision, the breakdown, the trace folded."""
        from kp_langchain import notebook_html as html

        value = f"{self.gate} {self.gated_value:.3f}, threshold {self.threshold:.3f}"
        return html.joined(
            html.heading(self.decision, value),
            html.Html(self.breakdown._repr_html_()),
            html.folded("trace", html.Html(self.trace._repr_html_())),
        )


def may_contribute(scored: ScoredTrace) -> bool:
    """Return whether a trace may go to a registry: it passed and is private in neither sense."""
    metadata = scored.trace.metadata
    return scored.decision == "kept" and may_leave(metadata.visibility, metadata.privacy_level)


@dataclass(frozen=True, slots=True)
class Rescored:
    """What a verdict changed of one run.

    Attributes:
        trace_id: The trace's id, as `StoredRun` has it.
        run_id: LangChain's id of the root run.
        domain: The run's domain.
        threshold: What its score or worth is held against, 0 to 1.
        gate: Which of the two, `score` or `worth`.
        kept: Whether the trace itself is in the store; one that is not cannot pass.
        success_before: Whether it counted as a success before the verdict.
        success: Whether it counts as a success now.
        confidence_before: The outcome's confidence before the verdict, 0 to 1.
        confidence: The outcome's confidence now, 0 to 1.
        score_before: The score before the verdict, 0 to 1.
        score: The score now, 0 to 1.
        worth_before: Its worth before the verdict, 0 to 1; None if it has none.
        worth: Its worth now.
        decision_before: The decision before the verdict: `kept`, `below_threshold` or `twin`.
        decision: The decision now.
        twin_of: Id of the kept trace that it repeats, if it would have passed but for that.
        similarity_to_twin: The similarity of the two, 0 to 1.
        replaces: Ids of the kept traces whose place it takes.
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
    gate: Gate = "score"
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
            kept=run.keep_body,
            gate=run.gate,
            twin_of=run.twin_of,
            similarity_to_twin=run.similarity_to_twin,
            replaces=run.replaces,
            **_changeable(run),
            **{f"{name}_before": value for name, value in before.items()},
        )

    @property
    def gated_value(self) -> float:
        """What is held against the threshold: its score or its worth, 0 to 1."""
        return gated_value(self.gate, self.score, self.worth)

    @property
    def gated_value_before(self) -> float:
        """The same before the verdict."""
        return gated_value(self.gate, self.score_before, self.worth_before)

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
