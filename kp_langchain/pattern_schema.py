"""`ToolCallPattern` and its parts, and `KnowledgeUnit`: a trace or a pattern.

They are read and written as `ReasoningTrace` is.
"""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, ValidationError

from kp_langchain.schema import (
    CONTEXT,
    Context,
    Duration,
    Metadata,
    NonEmpty,
    Outcome,
    ReasoningTrace,
    Task,
    Tool,
    TraceStep,
    Unit,
    Wire,
    list_older_contexts,
    read_integer,
)

PATTERN_ID_PREFIX = "kp:pattern:"
"""The prefix of the id of every pattern."""


def _read_pattern_id(value: object) -> object:
    if isinstance(value, str) and (
        not value.startswith(PATTERN_ID_PREFIX) or value == PATTERN_ID_PREFIX
    ):
        raise ValueError(f"{value[:80]!r} is not the id of a pattern; write kp:pattern:<id>")
    return value


_MOST_PLACEHOLDERS = 100  # are read


class TriggerConditions(Wire):
    """When to use a pattern.

    Attributes:
        task_types: The kinds of tasks it is for, in words; at least one.
        required_tools: The names of the tools that an agent needs for it.
    """

    task_types: Annotated[list[str], Field(min_length=1)]
    required_tools: list[str] | None = None


class PatternTool(Wire):
    """A tool that a step of a pattern calls.

    Attributes:
        name: The name of the tool.
        query_template: Its input, if that is one text, with placeholders in braces.
        input_template: Its input by argument, with placeholders in braces.
    """

    name: str
    query_template: str | None = None
    input_template: dict[str, Any] | None = None


class PatternPlaceholder(Wire):
    """What stands for a value in the inputs of a pattern.

    Attributes:
        name: Its name, as it stands in braces.
        source: Where its values come from, such as `the task` or `step 1`; "" if unknown.
        examples: Real values, each after what tells it; "" if that is the value itself.
        is_text: Whether they are texts, and not numbers or the like.
    """

    name: str
    source: str = ""
    examples: list[tuple[str, str]] = Field(default_factory=list)
    is_text: bool = True


class PatternStep(Wire):
    """One step of a pattern.

    Attributes:
        step: What the step does, in words.
        execution: Whether its tools are called at once, or one after the other.
        tools: The tools that it calls.
        condition: When it is taken, if not always.
    """

    step: str
    execution: Literal["parallel", "sequential"]
    tools: list[PatternTool]
    condition: str | None = None


class Performance(Wire):
    """How well a pattern did.

    Attributes:
        avg_ms: How long its calls take, in milliseconds, at least 0.
        success_rate: The share of its runs that succeeded, 0 to 1.
        uses: How many runs took it.
        stated: How many of these succeeded by a verdict, and not only as they ended.
        confidence: How sure the success of the runs is that it was made of, 0 to 1. Neither this
            nor `stated` is part of protocol v1; in patterns of other writers they may have another
            meaning, so any value is kept.
    """

    avg_ms: Duration
    success_rate: Unit
    uses: Annotated[int, Field(ge=0, strict=True), BeforeValidator(read_integer)]
    stated: Any = None
    confidence: Any = None


class ToolCallPattern(Wire):
    """A plan that several runs took, as a KnowledgePulse knowledge unit.

    Attributes:
        context: The schema version, always the URL `CONTEXT`; `@context` on the wire.
        type: Always `ToolCallPattern`; `@type` on the wire.
        id: `kp:pattern:<id>`.
        name: Its name.
        description: What it does, and when.
        metadata: The origin of the pattern, and who may see it.
        trigger_conditions: When to use it.
        tool_sequence: Its steps in order, at least one.
        performance: How well it did.
        placeholders: What stands for values in its inputs. The field is not part of protocol v1 and
            may have another meaning in patterns of other writers, so any value is kept.

    Raises:
        pydantic.ValidationError: A field is missing or invalid; the message names it.
    """

    context: Context = Field(
        default=CONTEXT, alias="@context", json_schema_extra=list_older_contexts
    )
    type: Literal["ToolCallPattern"] = Field(default="ToolCallPattern", alias="@type")
    id: Annotated[str, BeforeValidator(_read_pattern_id)] = Field(
        json_schema_extra={"pattern": rf"^{PATTERN_ID_PREFIX}[\s\S]"}
    )
    name: NonEmpty
    description: str
    metadata: Metadata
    trigger_conditions: TriggerConditions
    tool_sequence: Annotated[list[PatternStep], Field(min_length=1)]
    performance: Performance
    placeholders: Any = None

    @property
    def tools(self) -> list[PatternTool]:
        """The calls of all steps, in order."""
        return [tool for step in self.tool_sequence for tool in step.tools]

    @property
    def known_placeholders(self) -> list[PatternPlaceholder]:
        """Its placeholders, if they are of the form that this package writes."""
        found = self.placeholders if isinstance(self.placeholders, list) else []
        try:
            return [PatternPlaceholder.model_validate(one) for one in found[:_MOST_PLACEHOLDERS]]
        except ValidationError:
            return []

    def as_trace(self) -> ReasoningTrace:
        """Return it as a trace of its calls, so that it is searched and compared like one.

        Its task is what the pattern is for. Its confidence is that of the pattern; where there is
        none, the share of runs that succeeded. The trace is not validated: its id is that of the
        pattern.
        """
        confidence = self.performance.confidence
        if not isinstance(confidence, float):
            confidence = self.performance.success_rate
        steps: list[dict[str, Any]] = [
            {"type": "thought", "content": json.dumps(one.model_dump(), ensure_ascii=False)}
            for one in self.known_placeholders
        ]
        for step in self.tool_sequence:
            notes = {"content": step.step, "output_summary": step.condition}
            steps.append({"type": "thought", **notes})
            for one in step.tools:
                templates = {"query": one.query_template, "input": one.input_template}
                inputs = {name: value for name, value in templates.items() if value is not None}
                tool = Tool.model_construct(name=one.name)
                steps.append({"type": "tool_call", "tool": tool, "input": inputs})
        return ReasoningTrace.model_construct(
            id=self.id,
            source_skill=self.name,
            metadata=self.metadata.model_copy(update={"success": True}),
            task=Task.model_construct(
                objective="; ".join(self.trigger_conditions.task_types),
                input_schema={"required_tools": self.trigger_conditions.required_tools},
            ),
            steps=[TraceStep.model_construct(step_id=at, **one) for at, one in enumerate(steps)],
            outcome=Outcome.model_construct(result_summary=self.description, confidence=confidence),
        )


KnowledgeUnit = ReasoningTrace | ToolCallPattern
"""What recall may show a run."""


def read_unit(values: Any) -> KnowledgeUnit:
    """Return the trace or the pattern that JSON-like values hold; their `@type` says which.

    Args:
        values: The values.

    Raises:
        pydantic.ValidationError: They hold neither; the message names the first wrong field.
    """
    is_pattern = isinstance(values, dict) and values.get("@type") == "ToolCallPattern"
    return (ToolCallPattern if is_pattern else ReasoningTrace).model_validate(values)
