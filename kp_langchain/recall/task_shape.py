"""What a task is like whatever its values, and what its run did whatever its values.

"Count Rita's customers of tier gold" should find a run that counted Omar's of tier silver, rather
than one that looked up Rita's address. So a task is compared twice: as it reads, and with typical
values in the place of its own: numbers, dates, ids, names, and what runs took from their tasks into
the inputs of their tools.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING

from kp_langchain.calibration.tool_calls import made_calls
from kp_langchain.recall.deciding_calls import (
    NAME,
    VALUE,
    deciding_calls,
    holds,
    input_values,
)
from kp_langchain.recall.task_wordings import GAP

if TYPE_CHECKING:
    from kp_langchain.schema import ReasoningTrace

_MOST_TOOLS, _MOST_VALUES = 100, 20
_READ_CHARS = 2_000
_VALUE_CHARS = 2  # a shorter one is no value of a task
_WORD = re.compile(r"\w+")
_MOST_VALUE_WORDS = 6
_DATE = re.compile(r"\d{4}-\d\d-\d\d|\d{1,2}[./]\d{1,2}[./]\d{2,4}")
_NUMBER = re.compile(r"[\d.,]+")
# A name stands for what is known to be a value but reads like none.
_TYPICAL_DATE, _TYPICAL_NUMBER, _TYPICAL_NAME = "2020-01-01", "7", "Alex"


@dataclass(frozen=True, slots=True)
class Plan:
    """What a run did, and with what.

    Attributes:
        tools: How often it called each tool, by the tool's name.
        values: What it took from its task into the inputs of the calls that decide, in lower case.
    """

    tools: Mapping[str, int]
    values: Sequence[str]


def plan_of(trace: ReasoningTrace) -> Plan:
    """Return what is compared of a run, and the values that it took from its task.

    Args:
        trace: The trace.
    """
    calls = made_calls(trace.steps)
    tools = Counter(one.call.tool.name for one in calls if one.call and one.call.tool)
    task = trace.task.objective[:_READ_CHARS].casefold()
    values: dict[str, None] = {}
    for call in (calls[one.position] for one in deciding_calls(trace)):
        values |= dict.fromkeys(
            key
            for key, value in input_values(call).items()
            if len(key) >= _VALUE_CHARS and _is_term(value) and holds(task, key)
        )
    return Plan(
        tools=dict(islice(tools.items(), _MOST_TOOLS)),
        values=tuple(islice(values, _MOST_VALUES)),
    )


def _is_term(value: str) -> bool:
    """Return whether a value may be a name, a number or a code, and not a sentence."""
    return " " not in value or value != value.lower() or any(map(str.isdigit, value))


def masked(task: str, *values: Collection[str]) -> str:
    """Return a task with typical values in the place of its own.

    Args:
        task: The task in words.
        values: What else is known to be a value, in lower case: sets, to be searched quickly.
    """
    text = task[:_READ_CHARS]
    spans = [(*match.span(), _typical(match[0])) for match in VALUE.finditer(text)]
    spans += [(*match.span(), _TYPICAL_NAME) for match in NAME.finditer(text)]
    spans += [(start, end, _TYPICAL_NAME) for start, end in _known_spans(text, values)]
    parts, at = [], 0
    for start, end, typical in sorted(spans, key=lambda span: (span[0], -span[1])):
        if start >= at:
            parts += [text[at:start], typical]
            at = end
    return "".join([*parts, text[at:], task[_READ_CHARS:]])


def _known_spans(text: str, values: Sequence[Collection[str]]) -> Iterator[tuple[int, int]]:
    """Yield where known values of up to so many words stand in a text."""
    if not any(values):
        return
    words = [match.span() for match in _WORD.finditer(text)]
    for at, (start, _) in enumerate(words):
        for _, end in words[at : at + _MOST_VALUE_WORDS]:
            folded = text[start:end].casefold()
            if any(folded in known for known in values):
                yield start, end


def _typical(value: str) -> str:
    if _DATE.fullmatch(value):
        return _TYPICAL_DATE
    return _TYPICAL_NUMBER if _NUMBER.fullmatch(value) else _TYPICAL_NAME


def as_task(kind: str) -> str:
    """Return what tasks have in common as one of them: with a typical value where they differ."""
    return kind.replace(GAP, _TYPICAL_NAME)
