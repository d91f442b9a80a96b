"""`ReasoningTrace` and its parts: KnowledgePulse v1 as pydantic models.

Attributes have Python names; the JSON has the wire names (`@context`, `@type`).
`ReasoningTrace.model_validate_json(text)` reads a trace, and `trace.model_dump_json()` writes its
wire form without absent fields. Unknown fields survive the round trip.
"""

from __future__ import annotations

import re
import sys
import uuid
from datetime import UTC, datetime
from typing import Annotated, Any, Literal

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    SerializerFunctionWrapHandler,
    WithJsonSchema,
    model_serializer,
)

CONTEXT: Literal["https://openknowledgepulse.org/schema/v1"] = (
    "https://openknowledgepulse.org/schema/v1"
)
_OLDER_CONTEXTS = frozenset({"https://knowledgepulse.dev/schema/v1"})
TRACE_ID_PREFIX = "kp:trace:"
"""The prefix of every trace id."""

# The times that `datetime.fromisoformat` accepts. The first and the last day accept no offset that
# could lead outside the years 1 to 9999.
_DAY = (
    "(?:[0-9]{4}-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])"
    "|(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)|02-(?:0[1-9]|1[0-9]|2[0-8]))"
    "|(?:[0-9]{2}(?:0[48]|[2468][048]|[13579][26])|(?:[02468][048]|[13579][26])00)-02-29)"
)
_CLOCK = "(?:[01][0-9]|2[0-3]):[0-5][0-9](?::[0-5][0-9](?:[.,][0-9]+)?)?"
_OFFSET = "(?:Z|[+-](?:[01][0-9]|2[0-3])(?::?[0-5][0-9])?)"
_TIME = (
    r"^(?!0000|0001-01-01.*\+|9999-12-31.{2,}-)"
    rf"{_DAY}(?:[T ]{_CLOCK}{_OFFSET}?)?$(?!\n)"
)
_IS_TIME = re.compile(_TIME)

_MAX_ATTEMPTS = 1_000_000

StepType = Literal["thought", "tool_call", "observation", "error_recovery"]
Visibility = Literal["private", "org", "network"]
PrivacyLevel = Literal["aggregated", "federated", "private"]


def new_trace_id() -> str:
    """Return a new identifier `kp:trace:<uuid4>`."""
    return f"{TRACE_ID_PREFIX}{uuid.uuid4()}"


def _read_context(value: object) -> object:
    return CONTEXT if isinstance(value, str) and value in _OLDER_CONTEXTS else value


def list_older_contexts(schema: dict[str, Any]) -> None:
    """Have a JSON Schema accept the contexts that are read, too."""
    del schema["const"]
    schema["enum"] = [CONTEXT, *sorted(_OLDER_CONTEXTS)]


def _read_trace_id(value: object) -> object:
    if isinstance(value, str) and (
        not value.startswith(TRACE_ID_PREFIX) or value == TRACE_ID_PREFIX
    ):
        raise ValueError(f"{value[:80]!r} is not a trace id; write kp:trace:<uuid>")
    return value


def _write_utc(moment: datetime) -> str:
    """Return ISO 8601 in UTC ending in `Z`, in microseconds if milliseconds do not suffice."""
    spec = "microseconds" if moment.microsecond % 1000 else "milliseconds"
    return moment.astimezone(UTC).isoformat(timespec=spec).removesuffix("+00:00") + "Z"


def _read_utc(value: object) -> datetime:
    """Read a datetime, or ISO 8601 text with hyphens and colons; without an offset it is UTC."""
    try:
        moment = value
        if isinstance(value, str) and _IS_TIME.match(value):
            moment = datetime.fromisoformat(value)
        if isinstance(moment, datetime):
            return moment.astimezone(UTC) if moment.tzinfo else moment.replace(tzinfo=UTC)
    except (ValueError, OverflowError):
        pass
    raise ValueError(
        f"{str(value)[:80]!r} is not an ISO 8601 time; write it like 2026-02-01T12:00:00.000Z"
    )


def read_integer(value: object) -> object:
    """Return a whole float as an int: JSON has only one type of number."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


UtcTime = Annotated[
    datetime,
    BeforeValidator(_read_utc),
    PlainSerializer(_write_utc, return_type=str),
    # Without "format": validators that check it accept fewer times than are read here.
    WithJsonSchema({"type": "string", "pattern": _TIME}, mode="validation"),
]
Unit = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False, strict=True)]
NonEmpty = Annotated[str, Field(min_length=1)]
Context = Annotated[
    Literal["https://openknowledgepulse.org/schema/v1"], BeforeValidator(_read_context)
]
Duration = Annotated[
    float,
    Field(
        ge=0,
        allow_inf_nan=False,
        strict=True,
        json_schema_extra={"maximum": sys.float_info.max},
    ),
]


class Wire(BaseModel):
    """Base of all parts: writes wire names, keeps unknown fields, omits absent ones."""

    model_config = ConfigDict(
        extra="allow",
        hide_input_in_errors=True,  # a run's texts are in no log
        serialize_by_alias=True,
        validate_assignment=True,
    )

    @model_serializer(mode="wrap")
    def _omit_absent_fields(self, serialise: SerializerFunctionWrapHandler) -> dict[str, Any]:
        # A null in an unknown field may have a meaning, so it is kept.
        unknown = self.model_extra or {}
        data: dict[str, Any] = serialise(self)
        return {key: value for key, value in data.items() if value is not None or key in unknown}


class Tool(Wire):
    """The tool of a step.

    Attributes:
        name: The name by which the agent calls the tool; may be empty in traces of other writers.
        mcp_server: The MCP server that offers the tool, if any.
    """

    name: str
    mcp_server: str | None = None


class TraceStep(Wire):
    """One step of a run.

    Attributes:
        step_id: The position of the step, from 0.
        type: `thought`, `tool_call`, `observation` or `error_recovery`.
        content: The thought, the observation, or the error.
        tool: The tool that the step calls, or whose output it observes.
        input: The input of the tool.
        output_summary: A short form of the output.
        latency_ms: The duration of the call in milliseconds, at least 0.
        attempts: The number of attempts of the call, if more than one. The field is not part of
            protocol v1 and may have another meaning in traces of other writers, so any value is
            kept. Use `tries` to read it.
    """

    step_id: Annotated[int, Field(ge=0, strict=True), BeforeValidator(read_integer)]
    type: StepType
    content: str | None = None
    tool: Tool | None = None
    input: dict[str, Any] | None = None
    output_summary: str | None = None
    latency_ms: Duration | None = None
    attempts: Any = None

    @property
    def tries(self) -> int:
        """The number of attempts of the call: `attempts` if it is a valid number, else 1."""
        count = self.attempts
        return count if type(count) is int and 0 < count <= _MAX_ATTEMPTS else 1


class Metadata(Wire):
    """The origin of a trace, and who may see it.

    Attributes:
        task_domain: The domain whose weights and threshold apply, such as `finance`.
        success: Whether the run reached its goal.
        created_at: The start of the run, in UTC; written with a final `Z`.
        quality_score: The score, 0 to 1; 0 until the trace is scored.
        visibility: Who may see the trace: `private`, `org` or `network`.
        privacy_level: How much was redacted: `aggregated`, `federated` or `private`.
        agent_id: `kp:agent:<id>`, if known.
        framework: `langchain`, `langgraph`, ...
        validated_by: The sources that confirmed the outcome, if any.
    """

    created_at: UtcTime = Field(default_factory=lambda: datetime.now(UTC))
    agent_id: str | None = None
    framework: str | None = None
    task_domain: NonEmpty
    success: Annotated[bool, Field(strict=True)]
    quality_score: Unit = 0.0
    visibility: Visibility = "private"
    privacy_level: PrivacyLevel = "aggregated"
    validated_by: list[str] | None = None


class Task(Wire):
    """The task of a run.

    Attributes:
        objective: The task in words.
        input_schema: The JSON Schema of the task's input, if there is one.
    """

    objective: NonEmpty
    input_schema: dict[str, Any] | None = None


class Outcome(Wire):
    """The outcome of a run.

    Attributes:
        result_summary: The answer, or the error.
        confidence: The confidence in the result, 0 to 1.
    """

    result_summary: str
    confidence: Unit


class Entity(Wire):
    """An entity of a knowledge graph.

    Attributes:
        name: Its name.
        type: Its type.
    """

    name: str
    type: str


class Relationship(Wire):
    """A fact of a knowledge graph.

    Attributes:
        fact: The fact in words.
        valid_from: The time from which it holds.
    """

    fact: str
    valid_from: str


class KnowledgeGraphDelta(Wire):
    """The entities and facts that a run adds to a knowledge graph.

    Attributes:
        entities: The new entities.
        relationships: The new facts.
    """

    entities: list[Entity]
    relationships: list[Relationship]


class ReasoningTrace(Wire):
    """One agent run as a KnowledgePulse knowledge unit.

    Attributes:
        context: The schema version, always the URL `CONTEXT`; `@context` on the wire.
        type: Always `ReasoningTrace`; `@type` on the wire.
        id: `kp:trace:<uuid>`, by default a new one. In traces of other writers, any text may follow
            `kp:trace:`.
        source_skill: `kp:skill:<name>:<version>`, if the run followed a skill.
        metadata: The origin of the trace, and who may see it.
        task: The task of the run.
        steps: The steps in order, at least one.
        outcome: The outcome of the run.
        knowledge_graph_delta: What the run adds to a knowledge graph, if anything.

    Raises:
        pydantic.ValidationError: A field is missing or invalid; the message names it.
    """

    context: Context = Field(
        default=CONTEXT, alias="@context", json_schema_extra=list_older_contexts
    )
    type: Literal["ReasoningTrace"] = Field(default="ReasoningTrace", alias="@type")
    id: Annotated[str, BeforeValidator(_read_trace_id)] = Field(
        default_factory=new_trace_id,
        json_schema_extra={"pattern": rf"^{TRACE_ID_PREFIX}[\s\S]"},
    )
    source_skill: str | None = None
    metadata: Metadata
    task: Task
    steps: Annotated[list[TraceStep], Field(min_length=1)]
    outcome: Outcome
    knowledge_graph_delta: KnowledgeGraphDelta | None = None

    def as_trace(self) -> ReasoningTrace:
        """Return itself; a `ToolCallPattern` returns its steps as a trace."""
        return self
