"""`Run`: a finished, redacted run that is not judged yet, in the form in which it is stored.

It is written before it is judged. If the process dies first, another one judges it, so a run
contains everything that judging needs, redacted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, Self
from uuid import UUID

from kp_langchain.domain_policy import DomainPolicy
from kp_langchain.verdict import Verdict

if TYPE_CHECKING:
    from kp_langchain.run_keys import RunKeys
    from kp_langchain.schema import ReasoningTrace

# What judging needs and no column holds, stored as it is.
_PLAIN = (
    "looked_successful", "failed", "proves_failure", "structured", "token_probability", "registry",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class ShownTrace:
    """A kept trace that a run was shown, or would have been if it had not been held out.

    Attributes:
        trace_id: The id of the kept trace.
        rank: Its place among those of the run, from 1.
        similarity: The similarity of its task to that of the run, 0 to 1.
        held_out: Whether the run was not shown it, so that such runs can be compared.
    """

    trace_id: str
    rank: int
    similarity: float
    held_out: bool = False

    def to_list(self) -> list[Any]:
        """Return it as JSON-like values."""
        return [self.trace_id, self.rank, self.similarity, self.held_out]

    @classmethod
    def from_list(cls, values: Sequence[Any]) -> Self:
        """Return what `to_list` wrote."""
        trace_id, rank, similarity, held_out = values
        return cls(str(trace_id), int(rank), float(similarity), bool(held_out))


@dataclass(frozen=True, slots=True)
class ExternalTrace:
    """Where another tracer, such as Langfuse or MLflow, recorded a run.

    Attributes:
        trace_id: Its id of the trace.
        span_id: Its id of the span that is the root run, if it has one.
        project: The project that it recorded the trace in, if known.
        is_part: Whether the trace has more than this run, because the run began inside a span of
            the program. What is said of the trace is then not said of this run.
    """

    trace_id: str
    span_id: str | None = None
    project: str | None = None
    is_part: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFacts:
    """What is known of a run before it is judged, and stays so.

    Attributes:
        task: Hash of the run's `kp_task`, used to recognise repeats instead of the objective.
        withheld: Why it must never be contributed; None if it may be.
        registry: URL of the registry to contribute to, if any.
        keys: The keys by which it is found. They stay in the store and the log.
        dropped: How many `steps` and `texts` of it the recorder had no room for; empty if none.
        external_traces: Where other tracers recorded it, by the name of the tool.
        shown: The kept traces that it was shown as examples, or held out from.
        is_taken_over: Whether it is a run of a process that ended before it judged it.
    """

    task: str | None = None
    withheld: str | None = None
    registry: str | None = None
    keys: RunKeys | None = None
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
        token_probability: Mean probability of the tokens of its last answer, 0 to 1.
    """

    trace: ReasoningTrace
    run_id: UUID
    policy: DomainPolicy
    looked_successful: bool
    failed: bool = False
    proves_failure: bool = False
    reported: Verdict | None = None
    structured: float | None = None
    token_probability: float | None = None

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
