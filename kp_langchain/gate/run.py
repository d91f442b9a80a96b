"""`Run`: a finished, redacted run that is not judged yet, in the form in which it is stored.

It is written before it is judged. If the process dies first, another one judges it, so a run
contains everything that judging needs, redacted.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Self
from uuid import UUID

from kp_langchain.domain_policy import DomainPolicy
from kp_langchain.gate.external_trace import ExternalTrace
from kp_langchain.gate.shown_trace import ShownTrace
from kp_langchain.verdict import Verdict

if TYPE_CHECKING:
    from kp_langchain.run_keys import RunKeys
    from kp_langchain.schema import ReasoningTrace

# What judging needs and no column holds, stored as it is.
_PLAIN = (
    "looked_successful", "failed", "proves_failure", "structured", "token_probability", "registry",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Run:
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
        task: Hash of the run's `kp_task`, used to recognise repeats instead of the objective.
        withheld: Why it must never be contributed; None if it may be.
        registry: URL of the registry to contribute to, if any.
        keys: The keys by which it is found.
        dropped: How many `steps` and `texts` of it the recorder had no room for; empty if none.
        external_traces: Where other tracers recorded it, by the name of the tool.
        shown: The kept traces that it was shown as examples, or held out from.
        is_taken_over: Whether it is a run of a process that ended before it judged it.
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
    task: str | None = None
    withheld: str | None = None
    registry: str | None = None
    keys: RunKeys | None = None
    dropped: Mapping[str, int] = field(default_factory=dict)
    external_traces: Mapping[str, ExternalTrace] = field(default_factory=dict)
    shown: tuple[ShownTrace, ...] = ()
    is_taken_over: bool = False

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
            **{name: evidence[name] for name in _PLAIN},
            policy=DomainPolicy.model_validate(evidence["policy"]),
            reported=reported and Verdict.from_list(reported),
            is_taken_over=True,
            **stored,
        )
