"""`ReasoningTrace` and its parts: the KnowledgePulse v1 wire form as pydantic models.

Attributes have Python names, the JSON has the wire's (`@context`, `@type`). The plain calls do the
right thing: `ReasoningTrace.model_validate_json(text)` reads, `trace.model_dump_json()` writes wire
form with absent fields left out, and fields this version does not know survive the round trip.
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
"""What every trace id begins with."""

# The day before the offset: calendar and clock hold what `datetime.fromisoformat` takes. The two
# outermost days take no offset that could lead out of the years 1 to 9999.
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

_MOST_TRIES = 1_000_000

StepType = Literal["thought", "tool_call", "observation", "error_recovery"]
Visibility = Literal["private", "org", "network"]
PrivacyLevel = Literal["aggregated", "federated", "private"]


def new_trace_id() -> str:
    """Return a fresh `kp:trace:<uuid4>` identifier."""
    return f"{TRACE_ID_PREFIX}{uuid.uuid4()}"


def _read_context(value: object) -> object:
    return CONTEXT if isinstance(value, str) and value in _OLDER_CONTEXTS else value


def _name_older_contexts(schema: dict[str, Any]) -> None:
    del schema["const"]
    schema["enum"] = [CONTEXT, *sorted(_OLDER_CONTEXTS)]


def _read_trace_id(value: object) -> object:
    if isinstance(value, str) and (
        not value.startswith(TRACE_ID_PREFIX) or value == TRACE_ID_PREFIX
    ):
        raise ValueError(f"{value[:80]!r} is not a trace id; write kp:trace:<uuid>")
    return value


def _write_utc(moment: datetime) -> str:
    """ISO 8601 in UTC ending in `Z`; milliseconds unless the value holds finer ones."""
    spec = "microseconds" if moment.microsecond % 1000 else "milliseconds"
    return moment.astimezone(UTC).isoformat(timespec=spec).removesuffix("+00:00") + "Z"


def _read_utc(value: object) -> datetime:
    """Take a datetime, or ISO 8601 text with hyphens and colons; without an offset it is UTC."""
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


def _read_whole(value: object) -> object:
    """JSON has one kind of number: 0.0 is a whole one."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


UtcTime = Annotated[
    datetime,
    BeforeValidator(_read_utc),
    PlainSerializer(_write_utc, return_type=str),
    # Without "format": where that is checked, it means less than what is read.
    WithJsonSchema({"type": "string", "pattern": _TIME}, mode="validation"),
]
Unit = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False, strict=True)]
NonEmpty = Annotated[str, Field(min_length=1)]


class _Wire(BaseModel):
    """What all parts share: wire names on output, unknown fields kept, absent ones left out."""

    model_config = ConfigDict(
        extra="allow",
        serialize_by_alias=True,
        validate_assignment=True,
    )

    @model_serializer(mode="wrap")
    def _leave_out_absent(self, serialise: SerializerFunctionWrapHandler) -> dict[str, Any]:
        # A null among the unknown fields is kept as it came: not ours to judge.
        unknown = self.model_extra or {}
        data: dict[str, Any] = serialise(self)
        return {key: value for key, value in data.items() if value is not None or key in unknown}


class Tool(_Wire):
    """The tool of a step.

    Attributes:
        name: The tool's name as the agent knows it; what others write may leave it empty.
        mcp_server: The MCP server that offers it, if any.
    """

    name: str
    mcp_server: str | None = None


class TraceStep(_Wire):
    """One step of a run.

    Attributes:
        step_id: Position, from 0.
        type: `thought`, `tool_call`, `observation` or `error_recovery`.
        content: What was thought, seen, or went wrong.
        tool: The tool called, or whose answer this is.
        input: The tool's input.
        output_summary: A short form of the output.
        latency_ms: Milliseconds the call took, at least 0.
        attempts: How often the call was tried, when more than once. Not part of protocol v1: other
            writers may mean something else by it, so whatever stands there is kept; `tries` reads
            it.
    """

    step_id: Annotated[int, Field(ge=0, strict=True), BeforeValidator(_read_whole)]
    type: StepType
    content: str | None = None
    tool: Tool | None = None
    input: dict[str, Any] | None = None
    output_summary: str | None = None
    latency_ms: (
        Annotated[
            float,
            Field(
                ge=0,
                allow_inf_nan=False,
                strict=True,
                json_schema_extra={"maximum": sys.float_info.max},
            ),
        ]
        | None
    ) = None
    attempts: Any = None

    @property
    def tries(self) -> int:
        """How often the call was tried: `attempts` if that is such a number, else 1."""
        count = self.attempts
        return count if type(count) is int and 0 < count <= _MOST_TRIES else 1


class Metadata(_Wire):
    """Where a trace comes from and what may be done with it.

    Attributes:
        task_domain: The domain whose weights and threshold apply, such as `finance`.
        success: Whether the run reached its goal.
        created_at: When the run began; written in UTC ending in `Z`.
        quality_score: The score, 0 to 1; 0 until scored.
        visibility: Who may see the trace.
        privacy_level: How much redaction removes.
        agent_id: `kp:agent:<id>`, if known.
        framework: `langchain`, `langgraph`, ...
        validated_by: Who confirmed the outcome, if anyone.
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


class Task(_Wire):
    """What the run was asked to do.

    Attributes:
        objective: The task in words.
        input_schema: JSON Schema of the task's input, if it has one.
    """

    objective: NonEmpty
    input_schema: dict[str, Any] | None = None


class Outcome(_Wire):
    """How the run ended.

    Attributes:
        result_summary: The answer, or what went wrong.
        confidence: 0 to 1: how sure one can be of the result.
    """

    result_summary: str
    confidence: Unit


class Entity(_Wire):
    """Something a run learned of."""

    name: str
    type: str


class Relationship(_Wire):
    """A fact a run learned, and since when it holds."""

    fact: str
    valid_from: str


class KnowledgeGraphDelta(_Wire):
    """What a run adds to a knowledge graph."""

    entities: list[Entity]
    relationships: list[Relationship]


class ReasoningTrace(_Wire):
    """One agent run as a KnowledgePulse knowledge unit.

    Attributes:
        metadata: Where it comes from.
        task: What was asked.
        steps: What happened, in order; at least one.
        outcome: How it ended.
        id: `kp:trace:<uuid>`, a new one by default; of others', anything behind `kp:trace:`.
        source_skill: `kp:skill:<name>:<version>`, if the run followed one.
        knowledge_graph_delta: What it adds to a knowledge graph.

    Raises:
        pydantic.ValidationError: A field is missing or wrong; the message names it.
    """

    context: Annotated[
        Literal["https://openknowledgepulse.org/schema/v1"], BeforeValidator(_read_context)
    ] = Field(default=CONTEXT, alias="@context", json_schema_extra=_name_older_contexts)
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
