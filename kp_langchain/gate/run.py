"""`Run`, a finished run that is not judged yet; `ScoredTrace`, the same with score and decision.

A run is written before it is judged. If the process dies first, another one judges it, so a `Run`
contains everything that judging needs, redacted.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, Literal, Protocol, Self
from uuid import UUID

from kp_langchain.config import current_prices
from kp_langchain.gate.check import FEWEST_VALUES, waits
from kp_langchain.novelty_sources import is_measured
from kp_langchain.policy import DomainPolicy
from kp_langchain.scoring.evidence import flag_meaning
from kp_langchain.text import format_against_threshold
from kp_langchain.usage import usage_row
from kp_langchain.verdict import Verdict

if TYPE_CHECKING:
    from kp_langchain.policy import Gate
    from kp_langchain.run_keys import RunKeys
    from kp_langchain.schema import ReasoningTrace
    from kp_langchain.scoring.breakdown import ScoreBreakdown
    from kp_langchain.scoring.novelty_memory import MemoryEntry
    from kp_langchain.usage import ModelCall, Usage

# What judging needs and no column holds, stored as it is.
_PLAIN = (
    "looked_successful", "failed", "proves_failure", "structured", "registry",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class ShownTrace:
    """A kept trace that a run was shown, or would have been if it had not been held out.

    Attributes:
        trace_id: The id of the kept trace.
        rank: Its place among those of the run, from 1.
        similarity: The similarity of its task to that of the run, 0 to 1.
        held_out: Whether the run was not shown it, so that such runs can be compared.
        is_drawn: Whether a lot decided that, and not whoever showed it.
    """

    trace_id: str
    rank: int
    similarity: float
    held_out: bool = False
    is_drawn: bool = False


@dataclass(frozen=True, slots=True)
class ExternalTrace:
    """Where another tracer, such as Langfuse or MLflow, recorded a run.

    Attributes:
        trace_id: Its id of the trace.
        span_id: Its id of the span that is the root run, if it has one.
        project: The project that it recorded the trace in, if known.
        is_part: Whether the trace has more than this run, because the run began inside a span of
            the program. Feedback on the trace then does not count for this run.
    """

    trace_id: str
    span_id: str | None = None
    project: str | None = None
    is_part: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFacts:
    """Facts about a run that judging does not change.

    Attributes:
        task: Hash of the run's `kp_task`, or of an objective that states a task; equal for repeats
            of it.
        withheld: Why it must never be contributed; None if it may be.
        registry: URL of the registry to contribute to, if any.
        keys: The keys by which it is found. They stay in the store and the log.
        usage: What it took: tokens, calls and time; None if that is not known.
        model_calls: The answers of its models one by one.
        tools: The tools that its models could ask for, as OpenAI's functions.
        dropped: How many `steps`, `texts` and usages of calls (`usage`) there was no room for;
            empty if none.
        external_traces: Where other tracers recorded it, by the name of the tool.
        shown: The kept traces that it was shown as examples, or held out from.
        is_taken_over: Whether it is a run of a process that ended before it judged it.
    """

    task: str | None = None
    withheld: str | None = None
    registry: str | None = None
    keys: RunKeys | None = None
    usage: Usage | None = None
    model_calls: tuple[ModelCall, ...] = field(default=(), repr=False)
    tools: tuple[Mapping[str, Any], ...] = field(default=(), repr=False)
    dropped: Mapping[str, int] = field(default_factory=dict)
    external_traces: Mapping[str, ExternalTrace] = field(default_factory=dict)
    shown: tuple[ShownTrace, ...] = ()
    is_taken_over: bool = False

    def facts(self) -> dict[str, Any]:
        """Return these facts by name."""
        return {name: getattr(self, name) for name in _FACTS}


_FACTS = tuple(one.name for one in fields(RunFacts))


@dataclass(frozen=True, slots=True)
class Run(RunFacts):
    """A finished run, redacted and not judged yet.

    Attributes:
        trace: The run; success and confidence are those of a run that nobody judged.
        run_id: LangChain's id of the root run.
        policy: The policy of its domain.
        looked_successful: Whether it looks like a success by itself.
        failed: Whether the trace's result is the error that ended it.
        proves_failure: Whether it proves that it failed, rather than looking so: an error, the step
            limit, or a model that refused or was cut off ended it.
        reported: The verdict that was reported while it ran; its note is redacted.
        structured: The confidence in its structured output, 0 to 1.
    """

    trace: ReasoningTrace
    run_id: UUID
    policy: DomainPolicy
    looked_successful: bool
    failed: bool = False
    proves_failure: bool = False
    reported: Verdict | None = None
    structured: float | None = None

    def evidence(self) -> dict[str, Any]:
        """Return what judging needs besides the columns of the store, as JSON-like values."""
        return {name: getattr(self, name) for name in _PLAIN} | {
            "policy": self.policy.model_dump(exclude_none=True),
            "reported": self.reported and self.reported.to_list(),
        }

    @classmethod
    def from_evidence(cls, evidence: Mapping[str, Any], **stored: Any) -> Self:
        """Return the run of a process that has ended.

        Args:
            evidence: What `evidence` returned.
            stored: The other fields, from the store.

        Raises:
            ValueError, TypeError, LookupError: The values are not those of a run.
        """
        reported = evidence["reported"]
        return cls(
            **{name: evidence[name] for name in _PLAIN} | stored,
            policy=DomainPolicy.model_validate(evidence["policy"]),
            reported=reported and Verdict.from_list(reported),
            is_taken_over=True,
        )


Decision = Literal["kept", "below_threshold", "twin"]
"""What the gate decides on a run.

- `kept`: it passed. What a registry does with it is no part of the decision; the outbox knows that.
- `below_threshold`: its score or worth is below the threshold, a flag vetoes it, or it is withheld.
- `twin`: it repeats a kept run that it is not surer than, or one that is surer took its place.
"""


def decide(value: float, threshold: float) -> Decision:
    """Return `kept` when a score or worth reaches the threshold (both 0 to 1)."""
    return "kept" if value >= threshold else "below_threshold"


def gated_value(gate: str, score: float, worth: float | None) -> float:
    """Return what is compared with the threshold: the worth if that is the gate, else the score."""
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
        threshold: The threshold it was compared with, 0 to 1.
        run_id: LangChain's id of the root run.
        keep_body: Whether the store keeps the trace itself, or only its figures.
        keep_days: For how many days it has a trace that the gate does not keep, so that a later
            verdict still can; None for good.
        features: What a confidence model reads of the trace, by name.
        verdict: The verdict that was there when the run was scored, or that it was scored again
            for.
        stored_id: The trace's id as `StoredRun` has it, if the run comes from the store.
        previous: The run as it was before it was judged again; None for a new run.
        gate: Whether its score or its worth was compared with the threshold.
        pass_rate: The share of runs that was to pass; None for a fixed threshold.
        veto: The flag because of which it does not pass; None if there is none.
        digest: What other runs of its task are compared with; None if that is not known.
        is_planted: Whether it holds what looks like planted instructions; None if nobody looked.
        twin_similarity: The similarity, 0 to 1, from which it repeats a kept trace; 1 if the rule
            is off.
        twin_of: Id of the kept trace that it repeats, if it would have passed but for that.
        similarity_to_twin: The similarity of the two, 0 to 1; 1 for the same text.
        repeats_task: Whether the two are of one task, of which one run is kept.
        replaces: Ids of the kept traces whose place it takes, because it repeats them and is surer.
            They are twins since.
        entry: Text and vector of the trace, as others are compared with it; None if not known.
        is_remembered: Whether the store's novelty memory has it.
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
    veto: str | None = None
    digest: bytes | None = field(default=None, compare=False, repr=False)
    is_planted: bool | None = None
    twin_similarity: float = 1.0
    twin_of: str | None = None
    similarity_to_twin: float | None = None
    repeats_task: bool = False
    replaces: tuple[str, ...] = ()
    entry: MemoryEntry | None = field(default=None, compare=False, repr=False)
    is_remembered: bool = False
    stored: bool = True

    @property
    def worth(self) -> float | None:
        """How much it is worth keeping, 0 to 1; None where nothing is known but the score."""
        return None if self.breakdown.worth is None else self.breakdown.worth.value

    @property
    def gated_value(self) -> float:
        """What is compared with the threshold: its score or its worth, 0 to 1."""
        return gated_value(self.gate, self.breakdown.total, self.worth)

    @property
    def is_stated(self) -> bool:
        """Whether a verdict states whether the run succeeded."""
        return self.verdict is not None and self.verdict.success is not None

    @property
    def counts_toward_rate(self) -> bool:
        """Whether it is one of the share that is to pass.

        Not so if it takes the place of another. A run whose task has a kept one counts: else so
        many others would pass in its place, which are less likely right.
        """
        return self.repeats_task or (self.decision == "kept" and not self.replaces)

    def to_row(self) -> dict[str, Any]:
        """Return it as one flat row, such as of a DataFrame.

        The columns are `trace_id`, `run_id`, `domain`, `decision`, `threshold`, `success`, those of
        `ScoreBreakdown.to_row`, and those of `Usage.to_row` with the cost by the present prices.
        """
        metadata = self.trace.metadata
        return {
            "trace_id": self.trace.id,
            "run_id": str(self.run_id),
            "domain": metadata.task_domain,
            "decision": self.decision,
            "threshold": self.threshold,
            "success": metadata.success,
            **self.breakdown.to_row(),
            **usage_row(self.usage, current_prices().cost(self.usage, metadata.created_at)),
        }

    def __str__(self) -> str:
        """Return in one line what was decided, by which figure, and what cost the run most."""
        return (
            f"{self.decision}: {reason_text(self, self.trace.metadata.task_domain, self.twin_of)}"
        )


class _Decided(Protocol):
    """What the reason of a decision is told from."""

    @property
    def decision(self) -> str: ...
    @property
    def withheld(self) -> str | None: ...
    @property
    def veto(self) -> str | None: ...
    @property
    def gate(self) -> str: ...
    @property
    def gated_value(self) -> float: ...
    @property
    def threshold(self) -> float: ...
    @property
    def breakdown(self) -> ScoreBreakdown: ...


_EQUAL = 1e-6


def reason_text(
    run: _Decided, domain: str, repeats: str | None, replaced_by: str | None = None
) -> str:
    """Return in one line why a run was kept or not.

    Args:
        run: The run.
        domain: Its domain.
        repeats: Of a twin, the id of the kept trace; None if it is not known.
        replaced_by: The id of the kept trace that took its place, if one did.
    """
    if run.withheld is not None:
        return f"withheld, {run.withheld}"
    if run.veto is not None:
        return f"veto:{run.veto}, {flag_meaning(run.veto)}"
    if replaced_by is not None:
        return f"replaced by {replaced_by}, which repeats it and is surer"
    if waits(run.gate, run.threshold):
        number = FEWEST_VALUES["score"]
        return (
            f"among the first {number} runs of {domain}, of which only those pass that agree with "
            "others of their task"
        )
    # Such as the worth of average agreement, above which runs pass.
    is_equal = 0.0 < run.threshold - run.gated_value < _EQUAL
    figure = (
        f"{run.gated_value:.3f}"
        if is_equal
        else format_against_threshold(run.gated_value, run.threshold)
    )
    value, decimals = f"{run.gate} {figure}", len(figure.partition(".")[2])
    threshold = f"the threshold of {domain}, {round(run.threshold, decimals):.8g}"
    if not is_measured(run.breakdown.novelty_source):
        threshold += " (novelty not measured)"
    if run.decision == "kept":
        return f"{value} reaches {threshold}"
    if run.decision == "twin":
        return f"{value} reaches {threshold}, but the run repeats {repeats or 'a kept one'}"
    value += " is not above" if is_equal else " is below"
    worth, agreement = run.breakdown.worth, run.breakdown.agreement
    if run.gate == "worth" and worth is not None:
        return f"{value} {threshold}; {agreement or worth.basis}"
    loss = run.breakdown.largest_loss(run.gate)
    cost = "" if loss is None else f"; {loss[0]} costs most, {loss[1]:.3f}"
    return f"{value} {threshold}{cost}"


def may_contribute(scored: ScoredTrace) -> bool:
    """Return whether a trace may go to a registry: it is kept, and `may_leave` is true."""
    metadata = scored.trace.metadata
    return scored.decision == "kept" and may_leave(metadata.visibility, metadata.privacy_level)
