"""A pattern as an example for a prompt: when it is of use, and its calls.

    <<<example 1: a procedure of 5 runs: 3 succeeded, 1 seems to have>>>
    When: "Cancel what \u2026 ordered last"
    1. find_order({"customer": "Ada"})
    2. cancel({"order": "333", "reason": "CHANGED_MIND"})
    Values: "customer" "Ada" is from "the task"
    Values: "order" "333" is from "step 1", such as "order 333" -> "333"
    <<<end of example 1>>>

In its calls stand real values where one is known: a small model copies a placeholder as it is
(`python -m tests.benchmarks.live --arms patterns`).
Where the calls do not fit, it has its name and when it is of use. The texts of a pattern are
cleaned as those of a trace are: anyone may have written them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from kp_langchain.recall.prompt_text import (
    clean_input,
    clean_line,
    estimate_tokens,
    quoted,
    quoted_input,
    tool_text,
)
from kp_langchain.text import count_text
from kp_langchain.values import map_texts

if TYPE_CHECKING:
    from kp_langchain.pattern_schema import PatternPlaceholder, ToolCallPattern
    from kp_langchain.recall.ranking import Trust

# The characters of each part at most, before anything is shortened.
_WHEN_CHARS, _NAME_CHARS, _INPUT_CHARS, _NOTE_CHARS = 600, 100, 800, 200
_SHARES = (1.0, 0.6, 0.35, 0.2)  # of these characters
_MOST_NOTES = 8
_NUMBER = re.compile(r"-?(?:0|[1-9]\d{0,14})(?:\.\d{1,15})?", re.ASCII)


def pattern_heading(pattern: ToolCallPattern, trust: Trust) -> str:
    """Return what a pattern is, in words.

    Args:
        pattern: The pattern.
        trust: Who says that its runs succeeded; a `registry` may say anything.
    """
    if trust == "registry":
        return "a procedure of others, said to succeed"
    performance = pattern.performance
    uses, stated = performance.uses, performance.stated
    successes = round(performance.success_rate * uses)
    text = success_text(uses, successes, stated if isinstance(stated, int) else 0)
    return f"a procedure of {count_text(uses, 'run')}: {text}"


def success_text(runs: int, successes: int, stated: int) -> str:
    """Return how many runs succeeded, apart those of which no verdict says so.

    Args:
        runs: How many runs there are.
        successes: How many of them succeeded, by a verdict or else as they ended.
        stated: Of how many of the successes a verdict says so.
    """
    seeming = successes - stated
    every = "all" if successes == runs else f"{successes:,}"
    if not seeming:
        return f"{every} succeeded"
    seem = "seems" if seeming == 1 else "seem"
    if not stated:
        return f"{every} {seem} to have succeeded"
    return f"{stated:,} succeeded, {seeming:,} {seem} to have"


def pattern_body(pattern: ToolCallPattern, max_tokens: int) -> str:
    """Return what stands in the example of a pattern; an empty text if nothing fits.

    Args:
        pattern: The pattern.
        max_tokens: The tokens that it may have.
    """
    placeholders = pattern.known_placeholders[:_MOST_NOTES]
    filling = _Filling(placeholders)
    objective = clean_line("; ".join(pattern.trigger_conditions.task_types), _WHEN_CHARS)
    name = clean_line(pattern.name, _NAME_CHARS)
    for share in _SHARES:
        when = f"When: {quoted(objective, round(_WHEN_CHARS * share))}"
        body = [when, *_call_lines(pattern, filling, share)]
        for lines in ([*body, *_value_lines(placeholders)], body):
            text = "\n".join(lines)
            if estimate_tokens(f"{text}\n") <= max_tokens:
                return text
    for share in _SHARES:
        text = (
            f"Name: {quoted(name, _NAME_CHARS)}\n"
            f"When: {quoted(objective, round(_WHEN_CHARS * share))}"
        )
        if estimate_tokens(f"{text}\n") <= max_tokens:
            return text
    return ""


def _call_lines(pattern: ToolCallPattern, filling: _Filling, share: float) -> Iterator[str]:
    number = 0
    for step in pattern.tool_sequence:
        for at, tool in enumerate(step.tools):
            number += 1
            inputs = ""
            for value in (tool.input_template, tool.query_template):
                if value is not None and not inputs:
                    inputs = quoted_input(filling.fill(value), round(_INPUT_CHARS * share))
            line = f"{number}. {tool_text(tool.name)}({inputs})"
            if at and step.execution == "parallel":
                line += ", together with the call before"
            if step.condition and not at:
                line += f": {quoted(clean_line(step.condition, _NOTE_CHARS), _NOTE_CHARS)}"
            yield line


class _Filling:
    """Puts a real value in the place of each placeholder that has one.

    Args:
        placeholders: The placeholders.
    """

    def __init__(self, placeholders: Sequence[PatternPlaceholder]) -> None:
        self._known = {f"{{{one.name}}}": one for one in placeholders if one.examples}
        self._blank = re.compile("|".join(map(re.escape, self._known)))

    def fill(self, template: Any) -> Any:
        """Return an input with real values, as it may stand in a prompt."""
        return clean_input(map_texts(clean_input(template), self._fill_text, change_key=str))

    def _fill_text(self, text: str) -> Any:
        if not self._known:
            return text
        if text in self._known and not self._known[text].is_text:
            value = self._value(text)
            return json.loads(value) if _NUMBER.fullmatch(value) else value
        return self._blank.sub(lambda match: self._value(match[0]), text)

    def _value(self, blank: str) -> str:
        return clean_line(self._known[blank].examples[0][1], _NOTE_CHARS)


def _value_lines(placeholders: Sequence[PatternPlaceholder]) -> Iterator[str]:
    for one in placeholders:
        here = f" {_note(one.examples[0][1])}" if one.examples else ""
        source = clean_line(one.source, _NAME_CHARS)
        pairs = [(by, value) for by, value in one.examples if by not in ("", value)]
        such = "; ".join(f"{_note(by)} -> {_note(value)}" for by, value in pairs)
        origin = f" is from {_note(source)}" if source else " is from elsewhere"
        yield f"Values: {_note(one.name)}{here}{origin}{such and ', such as ' + such}"


def _note(text: str) -> str:
    return quoted(clean_line(text, _NOTE_CHARS), _NOTE_CHARS)
