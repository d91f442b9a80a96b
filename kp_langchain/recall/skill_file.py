"""A pattern as others read it: a `ToolCallPattern`, and a SKILL.md.

The form of SKILL.md is that of Agent Skills (https://agentskills.io/specification): a head in YAML
with `name`, `description` and `allowed-tools`, then Markdown. Its texts are of runs, which anyone
may have written: each is in JSON or in a code span, on one line, without marks of turns.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING

from kp_langchain.pattern_schema import (
    PatternPlaceholder,
    PatternStep,
    PatternTool,
    Performance,
    ToolCallPattern,
    TriggerConditions,
)
from kp_langchain.recall.pattern_text import success_text
from kp_langchain.recall.prompt_text import TOOL_NAME, clean_line, code_span, tool_text
from kp_langchain.recall.templates import PROSE, Arguments, Blank
from kp_langchain.text import both_ends, count_text

if TYPE_CHECKING:
    from kp_langchain.recall.patterns import Pattern

_DESCRIPTION_CHARS, _DOMAIN_CHARS = 1024, 100
_MOST_LEFT_OUT = 5


def unit_of(pattern: Pattern) -> ToolCallPattern:
    """Return a pattern as a knowledge unit of the protocol.

    Its description ends with the evidence and what was left out. `avg_ms` is 0 where no duration is
    known, as the protocol demands a number.

    Args:
        pattern: The pattern.
    """
    tools = [tool_text(name) for name in pattern.tools]
    return ToolCallPattern(
        id=pattern.id,
        name=pattern.name,
        description=f"{description_of(pattern)} {_evidence(pattern)}",
        metadata=pattern.metadata,
        trigger_conditions=TriggerConditions(
            task_types=list(pattern.kinds), required_tools=list(dict.fromkeys(tools))
        ),
        tool_sequence=[
            PatternStep(
                step=f"Call {name}",
                execution="sequential",
                tools=[PatternTool(name=name, input_template=arguments.template)],
            )
            for name, arguments in zip(tools, pattern.steps, strict=True)
        ],
        placeholders=[
            PatternPlaceholder(
                name=one.name, source=one.source, examples=list(one.pairs), is_text=one.is_text
            )
            for one in _blanks(pattern)
        ]
        or None,
        performance=Performance(
            avg_ms=pattern.avg_ms or 0.0,
            success_rate=pattern.success.value,
            uses=pattern.runs,
            stated=pattern.stated,
            confidence=pattern.confidence,
        ),
    )


def skill_text(pattern: Pattern) -> str:
    """Return the SKILL.md of a pattern.

    Args:
        pattern: The pattern.
    """
    return "\n".join([*_head(pattern), *_steps(pattern), "", *_notes(pattern)]) + "\n"


def description_of(pattern: Pattern) -> str:
    """Return when to use a pattern and when not, in at most 1,024 characters."""
    text = f"For tasks like {', '.join(f'“{one}”' for one in pattern.kinds)}."
    if pattern.not_for:
        text += f" Not for “{pattern.not_for}”."
    return both_ends(text, _DESCRIPTION_CHARS)


def _head(pattern: Pattern) -> Iterator[str]:
    # YAML reads JSON.
    yield "---"
    yield f"name: {pattern.name}"
    yield f"description: {_json(description_of(pattern))}"
    yield f"allowed-tools: {_json(list(dict.fromkeys(map(tool_text, pattern.tools))))}"
    yield "kp:"
    yield f"  id: {_json(pattern.id)}"
    yield f"  domain: {_json(clean_line(pattern.domain, _DOMAIN_CHARS))}"
    yield "---"


def _steps(pattern: Pattern) -> Iterator[str]:
    for at, (name, arguments) in enumerate(zip(pattern.tools, pattern.steps, strict=True), start=1):
        yield f"{at}. {code_span(f'{tool_text(name)}({_inputs(arguments)})')}"


def _inputs(arguments: Arguments) -> str:
    """Return the inputs of a step as in a call; what is no text stands without quotes."""
    texts = (
        f"{name if TOOL_NAME.fullmatch(name) else _json(name)}={_json(value)}"
        for name, value in arguments.template.items()
    )
    text = ", ".join(texts)
    for blank in arguments.blanks:
        if not blank.is_text:
            text = text.replace(f'"{blank}"', str(blank))
    return text


def _notes(pattern: Pattern) -> Iterator[str]:
    """Yield a line for each placeholder, the evidence, and what went wrong near it."""
    yield from (f"- {code_span(str(one))}: {_origin(one)}" for one in _blanks(pattern))
    yield f"- {_evidence(pattern)}"
    yield from (f"- {line}." for line in pattern.went_wrong)


def _blanks(pattern: Pattern) -> list[Blank]:
    return list({blank.name: blank for one in pattern.steps for blank in one.blanks}.values())


def _evidence(pattern: Pattern) -> str:
    of = f"{count_text(pattern.runs, 'run')} of {count_text(pattern.tasks, 'task')}"
    success = pattern.success
    text = f"{of}: {success_text(pattern.runs, pattern.successes, pattern.stated)}"
    if pattern.successes < pattern.runs:
        text += f" ({100 * success.low:.0f} to {100 * success.high:.0f} %)"
        if pattern.others is not None:
            text += f"; of the domain's other runs, {100 * pattern.others.value:.0f} %"
    text += "."
    if pattern.left_out:
        text += f" Left out: {', '.join(map(tool_text, pattern.left_out[:_MOST_LEFT_OUT]))}."
    return text


def _origin(blank: Blank) -> str:
    if blank.source == PROSE:
        return "in your own words"
    pairs = "; ".join(_pair(told_by, value, blank) for told_by, value in blank.pairs)
    return f"from {blank.source}, {pairs}" if pairs else f"from {blank.source}"


def _pair(told_by: str, value: str, blank: Blank) -> str:
    shown = code_span(_json(value) if blank.is_text else value)
    if told_by in ("", value):
        return f"such as {shown}"
    return f"{code_span(_json(told_by))} → {shown}"


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)
