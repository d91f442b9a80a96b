"""`Draft`: a finished, redacted, unscored run in the form in which it is stored.

It is written before scoring. If the process dies first, the next process that records into the
store scores it, so a draft contains everything that scoring needs, redacted.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Self
from uuid import UUID

from kp_langchain._logging import describe_error, warn_once
from kp_langchain.gate.external_trace import ExternalTrace
from kp_langchain.gate.shown_trace import ShownTrace
from kp_langchain.run_keys import RunKeys
from kp_langchain.schema import ReasoningTrace
from kp_langchain.verdict import Verdict

if TYPE_CHECKING:
    from kp_langchain.config import DomainPolicy


@dataclass(frozen=True, slots=True)
class Draft:
    """A finished run, redacted and not scored yet.

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

    def to_dict(self) -> dict[str, Any]:
        """Return it as JSON-like values."""
        values = {name: getattr(self, name) for name in self.__slots__}
        return values | {
            "trace": self.trace.model_dump(warnings=False),
            "run_id": str(self.run_id),
            "policy": self.policy.model_dump(exclude_none=True),
            "reported": self.reported and self.reported.to_list(),
            "keys": self.keys and self.keys.to_dict(),
            "dropped": dict(self.dropped),
            "external_traces": {
                tool: external.to_list() for tool, external in self.external_traces.items()
            },
            "shown": [one.to_list() for one in self.shown],
        }

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Self:
        """Return the draft that `to_dict` wrote.

        Raises:
            ValueError, TypeError, KeyError: The values are not a draft.
        """
        from kp_langchain.config import DomainPolicy

        reported = values["reported"]
        keys = values.get("keys")  # drafts of earlier versions have none
        return cls(
            **values
            | {
                "trace": ReasoningTrace.model_validate(values["trace"]),
                "run_id": UUID(values["run_id"]),
                "policy": DomainPolicy.model_validate(values["policy"]),
                "reported": reported and Verdict.from_list(reported),
                "keys": keys and RunKeys.from_dict(keys),
                "external_traces": {
                    tool: ExternalTrace.from_list(external)
                    for tool, external in values.get("external_traces", {}).items()
                },
                "shown": tuple(map(ShownTrace.from_list, values.get("shown", ()))),
            }
        )

    @classmethod
    def read(cls, values: dict[str, Any]) -> Self | None:
        """Return the draft that `to_dict` wrote; None, and warn, if the values are not one."""
        try:
            return cls.from_dict(values)
        except (ValueError, TypeError, LookupError) as error:
            warn_once(
                "draft",
                "an unscored run of an earlier process cannot be read (%s) and is dropped",
                describe_error(error),
            )
            return None
