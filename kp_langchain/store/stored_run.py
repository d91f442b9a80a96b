"""`StoredRun`: one scored run as the store has it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import InitVar, dataclass, fields
from datetime import datetime
from typing import Any

from pydantic import ValidationError

from kp_langchain.errors import StoreError
from kp_langchain.gate.decision import gated_value
from kp_langchain.schema import ReasoningTrace
from kp_langchain.scoring.breakdown import ScoreBreakdown

COMPUTED_FIELDS = ("kept", "kept_until")
"""The fields of `StoredRun` that no column holds."""

ReadBody = Callable[[str], dict[str, Any] | None]
"""Returns the trace of a trace id from the store as JSON-like values; None if it is not kept."""


def trace_of(body: dict[str, Any], trace_id: str) -> ReasoningTrace:
    """Return the trace that a stored body holds.

    Args:
        body: The body as JSON-like values.
        trace_id: The trace's id, for messages.

    Raises:
        StoreError: The body holds no trace.
    """
    try:
        return ReasoningTrace.model_validate(body)
    except ValidationError as error:
        raise StoreError(
            f"the body of {trace_id} cannot be read back ({error.error_count()} faults); "
            "it was changed outside kp-langchain: restore it from a backup, or delete the run: "
            f"kp-langchain delete {trace_id}"
        ) from error


def breakdown_of(value: Any, trace_id: str) -> ScoreBreakdown:
    """Return the breakdown that the store has of a run.

    Args:
        value: The breakdown as JSON-like values.
        trace_id: The trace's id, for messages.

    Raises:
        StoreError: It is no breakdown.
    """
    try:
        return ScoreBreakdown.from_dict(value)
    except (ValidationError, TypeError, ValueError, AttributeError) as error:
        raise StoreError(
            f"the breakdown of {trace_id} cannot be read back; it was changed outside "
            "kp-langchain: restore it from a backup, or delete the run: "
            f"kp-langchain delete {trace_id}"
        ) from error


class _Unread:
    # Not declared in the dataclass, because `asdict` and `==` would include a field.
    _breakdown_json: Any
    _read_body: ReadBody


@dataclass(frozen=True)
class StoredRun(_Unread):
    """One scored run as the store has it.

    Attributes:
        trace_id: The trace's id, `kp:trace:<uuid>` if it was made here. An id from elsewhere that
            is longer than 150 characters, or that no database takes, is cut and cleaned and ends in
            its hash.
        run_id: LangChain's id of the root run.
        created_at: When the run began, in UTC.
        domain: The run's domain.
        framework: `langchain`, `langgraph`, ..., if known.
        agent_id: `kp:agent:<id>`, if known.
        objective: The task in words.
        success: Whether the run reached its goal.
        confidence: The confidence of the outcome, 0 to 1.
        confidence_source: Where success and confidence came from, if known.
        n_steps: The number of steps.
        score: The score, 0 to 1.
        threshold: What its score or worth was held against, 0 to 1.
        decision: `kept`, `below_threshold` or `twin`.
        profile: The name of the weight profile.
        visibility: `private`, `org` or `network`.
        privacy_level: `aggregated`, `federated` or `private`.
        kept: Whether the store has the trace itself.
        kept_until: When the trace itself expires, in UTC; None if it never does or is not kept.
        withheld: Why the trace must never be contributed; None if it may be.
        session: The session it belongs to, in plain text or hashed; see `RunKeys`.
        thread: The LangGraph thread it ran in, in plain text or hashed.
        user_hash: The user it ran for, hashed.
        run_name: Its name, in plain text or hashed.
        namespace: Its namespace, in plain text or hashed.
        tags: Its tags, each in plain text or hashed.
        gate: Whether its score or its worth was held against the threshold.
        worth: How much it is worth keeping, 0 to 1; None where its domain had no confidence model.
        twin_of: Id of the kept trace that it repeats, if it would have passed but for that.
        similarity_to_twin: The similarity of the two, 0 to 1; 1 for the same text.
        replaced_by: Id of the kept trace that took its place.
        recovered_errors: After how many errors it went on.
        tools: Names of the tools that it used, in the order of their first use; at most 100.
        redactions: How often each kind of sensitive text was replaced in its trace, by kind.
        dropped: How many `steps` and `texts` of it the recorder had no room for; empty if none.
        is_taken_over: Whether the process that recorded it ended before it was judged, so that
            another one judged it, by its policy and with the bundled scorer alone.
    """

    trace_id: str
    run_id: str
    created_at: datetime
    domain: str
    framework: str | None
    agent_id: str | None
    objective: str
    success: bool
    confidence: float
    confidence_source: str | None
    n_steps: int
    score: float
    threshold: float
    decision: str
    profile: str
    visibility: str
    privacy_level: str
    kept: bool
    kept_until: datetime | None
    withheld: str | None
    session: str | None
    thread: str | None
    user_hash: str | None
    run_name: str | None
    namespace: str | None
    tags: list[str]
    gate: str
    worth: float | None
    twin_of: str | None
    similarity_to_twin: float | None
    replaced_by: str | None
    recovered_errors: int | None
    tools: list[str] | None
    redactions: dict[str, int] | None
    dropped: dict[str, int] | None
    is_taken_over: bool
    breakdown_json: InitVar[Any]
    read_body: InitVar[ReadBody]

    def __post_init__(self, breakdown_json: Any, read_body: ReadBody) -> None:
        object.__setattr__(self, "_breakdown_json", breakdown_json)  # the dataclass is frozen
        object.__setattr__(self, "_read_body", read_body)

    @property
    def breakdown(self) -> ScoreBreakdown:
        """How its score came about.

        Raises:
            StoreError: What the store has is no breakdown.
        """
        return breakdown_of(self._breakdown_json, self.trace_id)

    @property
    def gated_value(self) -> float:
        """What was held against the threshold: its score or its worth, 0 to 1."""
        return gated_value(self.gate, self.score, self.worth)

    @property
    def trace(self) -> ReasoningTrace | None:
        """The trace itself, read from the store on each access; None if it is not kept.

        Raises:
            StoreError: The store cannot be read, or the body holds no trace.
        """
        body = self._read_body(self.trace_id) if self.kept else None
        return None if body is None else trace_of(body, self.trace_id)

    def to_dict(self) -> dict[str, Any]:
        """Return everything but the trace as plain values, ready for JSON; times as ISO 8601.

        Raises:
            StoreError: The breakdown cannot be read back.
        """
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        texts = {
            name: value.isoformat() for name, value in values.items() if isinstance(value, datetime)
        }
        return values | texts | {"breakdown": self.breakdown.to_dict()}

    def to_row(self) -> dict[str, Any]:
        """Return it as one flat row, such as of a DataFrame; without its trace.

        The columns are its fields, those of `ScoreBreakdown.to_row`, and for each kind of sensitive
        text `redacted_<kind>`; `redactions` is their sum. `tags` and `tools` are joined by commas.
        """
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        redactions = values.pop("redactions") or {}
        dropped = values.pop("dropped") or {}
        lists = {name: ",".join(values[name] or ()) for name in ("tags", "tools")}
        return (
            values
            | self.breakdown.to_row()
            | lists
            | {"redactions": sum(redactions.values())}
            | {f"redacted_{kind}": count for kind, count in redactions.items()}
            | {f"dropped_{kind}": count for kind, count in dropped.items()}
        )
