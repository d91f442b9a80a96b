"""Which calls of a run its answer rests on, and what they gave to later ones.

A run also looks around: it lists, describes, tries. Shown as an example, that makes a model look
around as well. What helps is the call that decides (`python -m tests.benchmarks.live`). Of the
calls that did not fail, these decide:

- the one whose output is the answer: the answer of such a tool is the run's own;
- those that change something, which is taken of every tool whose name does not say that it reads;
- those whose outputs hold what the answer says, or what the input of a call that decides has, and
  what the task does not: numbers, ids, names, whole values. Of several outputs with a value, the
  last before it is used.

So the values are followed back from the answer, as a program slice follows variables (Weiser,
"Program slicing", ICSE 1981), and a call that only looks around is none of them. If nothing
decides, the last call does that did not fail: a run that looked around looked there last.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kp_langchain.calibration.tool_calls import TracedCall, made_calls
from kp_langchain.values import members

if TYPE_CHECKING:
    from kp_langchain.schema import ReasoningTrace

# First words of the names of tools that change nothing, and last ones of such as `web_search`.
_READING = frozenset(
    "browse calculate check compare compute count describe explain fetch find get inspect is list "
    "look lookup preview query read retrieve search show summarize think verify view".split()
)
_READING_LAST = frozenset({"lookup", "search"})
# One of these anywhere in a name, and it changes something; so does to check in or out.
_CHANGING = frozenset(
    "add book cancel create delete insert pay post remove send set submit transfer update upload "
    "upsert write".split()
)
_IN_OR_OUT = frozenset({"in", "out"})
_READING_STATEMENT = re.compile(
    r"\s*\(*(?:select\b.*\bfrom\b|with\s+(?:recursive\s+)?\w+(?:\s*\([^)]*\))?\s+as\s*\("
    r"|explain\s+(?:query|select|analyze)\b|pragma\s+\w|desc(?:ribe)?\s+[\w.]+\s*;?\s*$"
    r"|show\s+(?:columns|create|databases|full|index|schemas|tables)\b)",
    re.IGNORECASE | re.DOTALL,
)
_CHANGING_STATEMENT = re.compile(
    r"\b(?:alter|create\s+\w+|delete\s+from|drop|grant|insert\s+into|merge\s+into|replace\s+into"
    r"|truncate|update\s+\w+\s+set)\b",
    re.IGNORECASE,
)
_NAME_WORD = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])|[0-9]+")
# Numbers, ids and addresses; texts in quotes.
VALUE = re.compile(
    r"(?<![\w@+#-])[\w@+#-]*\d(?:(?:[\w@+#:./-]|,(?=\d{3}(?!\d)))*\w)?|(?<![\w.+-])[\w.+-]+@[\w.-]*\w"
    r"""|(?<!\w)'([^'\n]{1,60})'(?!\w)|"([^"\n]{1,60})\""""
)
WHOLE_CHARS = 60
"""A text of so many characters is a value as a whole."""
# Several words with capitals, or one that does not begin a sentence.
_CAPITAL = r"[A-Z][^\W\dA-Z_]\w*"
NAME = re.compile(rf"(?<!\w){_CAPITAL}(?: (?:of |de |the )?{_CAPITAL})+|(?<=[\w,;:] ){_CAPITAL}")
# What 1,250.00 has and 1250 has not.
_NUMBER_FORM = re.compile(r"(?<=\d),(?=\d{3}(?!\d))|(?<=\d)\.0+(?![\d.])")
_TEXT_CHARS = 4_000
_OUTPUT_CHARS = 20_000
_MOST_CALLS = 60


@dataclass(frozen=True, slots=True)
class DecidingCall:
    """A call that a run's answer rests on.

    Attributes:
        position: Its position among the calls of the trace, from 0.
        gives: Values of its output that the answer or the input of a later deciding call has, as
            they stand there.
        is_answer: Whether its output is the run's answer.
    """

    position: int
    gives: tuple[str, ...] = ()
    is_answer: bool = False


def deciding_calls(trace: ReasoningTrace) -> list[DecidingCall]:
    """Return the calls that decide, in their order; empty if none of the run's succeeded.

    Args:
        trace: The trace. Of more than 60 calls, the last 60 are looked at.
    """
    calls = made_calls(trace.steps)
    last = len(calls) - 1
    good = [
        at
        for at in range(max(0, len(calls) - _MOST_CALLS), len(calls))
        if calls[at].output is not None and not calls[at].has_failed
    ]
    task, answer = folded(trace.task.objective[:_TEXT_CHARS]), trace.outcome.result_summary
    is_own = (
        last in good and bool(answer.strip()) and calls[last].output_text.strip() == answer.strip()
    )
    deciding = {at for at in good if not _only_reads(calls[at])} | ({last} if is_own else set())
    claims = {} if is_own else values_in(answer, with_names=True)
    wanted = {key: value for key, value in claims.items() if not holds(task, key)}
    gives: dict[int, tuple[str, ...]] = {}
    for at in reversed(good):
        text = calls[at].output_text[:_OUTPUT_CHARS]
        outputs = {folded(text), text.casefold()}  # commas may part a list, too
        own = input_values(calls[at])
        found = [
            key for key in wanted if key not in own and any(holds(one, key) for one in outputs)
        ]
        if found:
            deciding.add(at)
            values = {key: wanted.pop(key) for key in found}
            gives[at] = tuple(
                values[key] for key in found if not any(key != one and key in one for one in found)
            )
        if at in deciding:
            wanted |= {key: value for key, value in own.items() if not holds(task, key)}
    if is_own and deciding == {last} and wanted:  # it was worked out from the call before
        deciding.update(good[-2:])
    return [
        DecidingCall(at, gives.get(at, ()), is_own and at == last)
        for at in (sorted(deciding) or good[-1:])
    ]


def values_in(text: str, *, with_names: bool = False) -> dict[str, str]:
    """Return the numbers, ids, addresses and quoted texts of a text, by how they read `folded`.

    Args:
        text: The text; a short one is a value as a whole, too.
        with_names: Whether words with capitals are values, as in prose.
    """
    text = text[:_TEXT_CHARS]
    values = [next(filter(None, match.groups()), match[0]) for match in VALUE.finditer(text)]
    if with_names:
        values += NAME.findall(text)
    if 0 < len(text.strip()) <= WHOLE_CHARS:
        values.append(text.strip())
    return {folded(value): value for value in values}


def folded(text: str) -> str:
    """Return a text in lower case, its numbers without thousands separators and a part of 0."""
    return _NUMBER_FORM.sub("", text.casefold())


def input_values(call: TracedCall) -> dict[str, str]:
    """Return the values of the input of a call, as `values_in` does."""
    values: dict[str, str] = {}
    for text in input_texts(call):
        values |= values_in(text)
    return values


def input_texts(call: TracedCall) -> Iterator[str]:
    """Yield the texts and numbers in the input of a call."""
    inputs = None if call.call is None else call.call.input
    for _, value in members(inputs or {}):
        if isinstance(value, str):
            yield value
        elif isinstance(value, int | float) and not isinstance(value, bool):
            yield str(value)


def _only_reads(call: TracedCall) -> bool:
    first, *others = [word.lower() for word in _NAME_WORD.findall(call.tool_name)] or [""]
    if not _CHANGING.isdisjoint([first, *others]):
        return False
    if first in _READING:
        inputs = " ".join(input_texts(call))
        return not (first == "check" and others[:1] and others[0] in _IN_OR_OUT) and not (
            _CHANGING_STATEMENT.search(inputs[:_TEXT_CHARS])
        )
    if others and others[-1] in _READING_LAST:
        return True
    statements = [text[:_TEXT_CHARS] for text in input_texts(call)]
    return any(
        _READING_STATEMENT.match(one) and not _CHANGING_STATEMENT.search(one) for one in statements
    )


def holds(text: str, value: str) -> bool:
    """Return whether a text has a value, not as a part of a longer word or number."""
    return place_of(text, value) >= 0


def place_of(text: str, value: str) -> int:
    """Return where a text first has a value that is no part of a longer one; -1 if nowhere."""
    at = text.find(value) if value else -1
    while at >= 0:
        before, after = text[max(at - 1, 0) : at], text[at + len(value) :][:1]
        begins = not (before.isalnum() and value[0].isalnum())
        if begins and not (after.isalnum() and value[-1].isalnum()):
            return at
        at = text.find(value, at + 1)
    return -1
