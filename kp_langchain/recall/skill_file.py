"""A pattern as others read it: a `ToolCallPattern`, and a SKILL.md.

The form of SKILL.md is that of Agent Skills (https://agentskills.io/specification): a head in YAML
with `name`, `description` and `allowed-tools`, then Markdown. Its texts are of runs, which anyone
may have written: each is in JSON or in a code span, on one line, without marks of turns.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING

from kp_langchain.recall.prompt_text import clean_line, tool_text
from kp_langchain.recall.task_kinds import GAP
from kp_langchain.recall.templates import Blank
from kp_langchain.schema import (
    PatternStep,
    PatternTool,
    Performance,
    ToolCallPattern,
    TriggerConditions,
)
from kp_langchain.text import both_ends, count_text

if TYPE_CHECKING:
    from kp_langchain.recall.patterns import Pattern

_DESCRIPTION_CHARS, _DOMAIN_CHARS = 1024, 100


def unit_of(pattern: Pattern) -> ToolCallPattern:
    """Return a pattern as a knowledge unit of the protocol.

    Its `failures` are an addition to the protocol. `avg_ms` is 0 where no duration is known, as the
    protocol demands a number.

    Args:
        pattern: The pattern.
    """
    tools = [tool_text(name) for name in pattern.tools]
    sequence: list[PatternStep] = []
    for at, (name, arguments) in enumerate(zip(tools, pattern.steps, strict=True)):
        tool = PatternTool(name=name, input_template=arguments.template)
        if at in pattern.at_once and sequence:
            sequence[-1].tools.append(tool)
            sequence[-1].execution = "parallel"
            sequence[-1].step += f", and {name}"
            continue
        condition = "may be called several times" if at in pattern.repeats else None
        sequence.append(
            PatternStep(
                step=f"Call {name}", execution="sequential", tools=[tool], condition=condition
            )
        )
    return ToolCallPattern(
        failures=list(pattern.failures) or None,
        id=pattern.id,
        name=pattern.name,
        description=description_of(pattern),
        metadata=pattern.metadata,
        trigger_conditions=TriggerConditions(
            task_types=list(pattern.kinds) or [path_text(pattern)],
            required_tools=list(dict.fromkeys(tools)),
        ),
        tool_sequence=sequence,
        performance=Performance(
            avg_ms=pattern.avg_ms or 0.0, success_rate=pattern.success.value, uses=pattern.runs
        ),
    )


def skill_text(pattern: Pattern) -> str:
    """Return the SKILL.md of a pattern.

    Args:
        pattern: The pattern.
    """
    return "\n".join([*_head(pattern), *_body(pattern)]) + "\n"


def description_of(pattern: Pattern) -> str:
    """Return when to use a pattern and what it does, in at most 1,024 characters."""
    text = f"{_when(pattern)} Calls {path_text(pattern)}."
    return both_ends(f"{text} {_taken(pattern)}", _DESCRIPTION_CHARS)


def path_text(pattern: Pattern) -> str:
    """Return the tools of a pattern in words."""
    return ", then ".join(tool_text(name) for name in pattern.tools)


def _when(pattern: Pattern) -> str:
    domain = clean_line(pattern.domain, _DOMAIN_CHARS)
    if not pattern.kinds:
        return f"Use for tasks of {domain} that need these tools."
    return f"Use for tasks of {domain} {_about(pattern)}: {'; '.join(pattern.kinds)}."


def _about(pattern: Pattern) -> str:
    return "such as" if any(GAP in one for one in pattern.kinds) else "about"


def _taken(pattern: Pattern) -> str:
    of = f"{count_text(pattern.runs, 'run')} took it"
    return f"{of}; {100 * pattern.success.value:.0f} % succeeded."


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


def _body(pattern: Pattern) -> Iterator[str]:
    yield from ("", f"# {pattern.name}", "", "## When to use it", "")
    domain = _code(clean_line(pattern.domain, _DOMAIN_CHARS))
    if pattern.kinds:
        yield f"In tasks of {domain} {_about(pattern)}: {', '.join(map(_code, pattern.kinds))}."
    else:
        yield f"In tasks of {domain} that need these tools."
    yield from ("", "## Steps", "")
    number = 0
    for at, (name, arguments) in enumerate(zip(pattern.tools, pattern.steps, strict=True)):
        number += 1
        inputs = _json(arguments.template)
        together = ", together with the step before" if at in pattern.at_once else ""
        again = "; may be called several times" if at in pattern.repeats else ""
        yield f"{number}. {_code(f'{tool_text(name)}({inputs})')}{together}{again}"
    if pattern.ends_with_output:
        yield f"{number + 1}. The output of the last call is the answer."
    yield from ("", "## Arguments", "")
    yield from list(_arguments(pattern)) or ["The inputs are always the same."]
    yield from ("", "## What went wrong", "")
    yield from [f"- {one}" for one in pattern.failures] or ["No run near it failed."]
    yield from ("", "## Evidence", "")
    of = f"of {count_text(pattern.tasks, 'task')}"
    yield f"- {count_text(len(pattern.members), 'kept success', 'kept successes')} {of}."
    success = pattern.success
    yield (
        f"- {count_text(pattern.runs, 'run')} took this way; {100 * success.value:.0f} % of them "
        f"succeeded ({100 * success.low:.0f} to {100 * success.high:.0f} %, interval of 90 %)."
    )
    if pattern.others is not None:
        yield f"- Of the domain's other runs, {100 * pattern.others.value:.0f} % succeeded."
    if pattern.avg_ms is not None:
        yield f"- Its calls take {pattern.avg_ms:,.0f} ms in the mean."


def _arguments(pattern: Pattern) -> Iterator[str]:
    for at, (name, arguments) in enumerate(zip(pattern.tools, pattern.steps, strict=True), start=1):
        for argument in arguments.template:
            place = f"step {at}, {_code(f'{tool_text(name)}: {argument}')}"
            optional = "; not always given" if argument in arguments.optional else ""
            blanks = arguments.blanks.get(argument, [])
            for blank in blanks:
                yield f"- {_code(str(blank))}: {_origin(blank)}; {place}{optional}"
            if not blanks and optional:
                yield f"- {place}{optional}"


def _origin(blank: Blank) -> str:
    return f"taken from {blank.source}" if blank.source else "differs from run to run"


def _code(text: str) -> str:
    return f"`{text.replace('`', chr(39))}`"


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)
