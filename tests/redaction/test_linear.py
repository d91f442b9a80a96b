"""Searching takes work in proportion to the length of a text, counted without a clock."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

from tests.redaction.step_counter import StepCounter, TooManyStepsError

SHORT, LONG = 600, 2400
WINDOW = 500
# Steps per character that any text may take; more only if they do not grow with its length.
FEW_STEPS = 50
MOST_STEPS = 400
MOST_GROWTH = 2.0
MOST_TEXTS = 3
# Cleans texts while each expression tells how many characters it was given.
_SPY = """
import json, re, sys
WINDOW, SHORT, LONG = {window}, {short}, {long}
SEARCHES = ("search", "finditer", "findall", "sub", "split")
compiled, compile, work = {{}}, re.compile, [0]
def matches(found, position, end):
    for match in found:
        work[0] += match.end() - position
        position = match.end()
        yield match
    work[0] += end - position
class Spy:
    def __init__(self, pattern):
        self.pattern_, self.longest = pattern, 0
        compiled[pattern.pattern, pattern.flags] = self
    def __getattr__(self, name):
        method = getattr(self.pattern_, name)
        if name in SEARCHES:
            def search(*arguments):
                text = [argument for argument in arguments if isinstance(argument, str)][-1]
                first, *end = [argument for argument in arguments if isinstance(argument, int)] or [0]
                length = min(end[0] if end else len(text), len(text)) - first
                self.longest = max(self.longest, length)
                if name == "finditer":
                    return matches(method(*arguments), first, first + length)
                work[0] += length if name != "search" else 0
                return method(*arguments)
            return search
        if name in ("match", "fullmatch"):
            def match(*arguments):
                found = method(*arguments)
                work[0] += found.end() - found.start() if found else 1
                return found
            return match
        return method
def spy(expression, flags=0):
    pattern = compile(expression, flags)
    is_ours = "/redaction/" in sys._getframe(1).f_code.co_filename.replace(chr(92), "/")
    return Spy(pattern) if is_ours else pattern
re.compile = spy
read_json = json.JSONDecoder.raw_decode
def read(decoder, text, at=0):
    end = at
    try:
        content, end = read_json(decoder, text, at)
    except json.JSONDecodeError as error:
        end = len(text) if error.msg.startswith("Unterminated") else error.pos
        raise
    finally:
        work[0] += end - at
    return content, end
json.JSONDecoder.raw_decode = read
from kp_langchain.redaction import redact
"""
_LIST_SEARCHES = """
from tests.redaction.cases import IDENTIFIERS, SECRETS
for case in [*SECRETS[::3], *IDENTIFIERS[::5]]:
    redact([case[1], str(case[1]) + " " * WINDOW])
print(json.dumps([key for key, spy in compiled.items() if spy.longest > WINDOW]))
"""
_LIST_WORK = """
from tests.redaction.nasty import NASTY
counts = {}
for name, make in NASTY:
    if "and a blank" not in name and "of them" not in name:
        counts[name] = []
        for length in (SHORT, LONG):
            work[0] = 0
            redact(make(length))
            counts[name].append(work[0] / length)
print(json.dumps(counts))
"""


def _run(script: str, short: int = SHORT, long: int = LONG) -> Any:
    spy = _SPY.format(window=WINDOW, short=short, long=long)
    output = subprocess.run(
        [sys.executable, "-c", spy + script], check=True, capture_output=True, text=True
    ).stdout
    return json.loads(output)


def slow_text(expression: str, flags: int) -> str | None:
    """Return a text that makes a search slow, or None if none of those tried does.

    They are what the expression begins with, repeated, and its last character repeated.
    """
    pattern = StepCounter(expression, flags, MOST_STEPS * LONG)
    beginnings = sorted({text for text in pattern.beginnings() if text}, key=len)
    chosen = [*beginnings[:: max(1, len(beginnings) // MOST_TEXTS)], *beginnings[-1:]]
    for unit in chosen:
        for head, repeated in (("", unit), (unit[:-1], unit[-1])):
            short, long = ((head + repeated * size)[:size] for size in (SHORT, LONG))
            try:
                steps = pattern.search_all(long) / LONG
                if steps > FEW_STEPS and steps > MOST_GROWTH * pattern.search_all(short) / SHORT:
                    return long[:80]
            except (TooManyStepsError, RecursionError):
                return long[:80]
    return None


def test_the_steps_of_every_search_grow_with_the_text_alone() -> None:
    # Other expressions are tried at one place, or search a window of a few hundred characters.
    searches = _run(_LIST_SEARCHES)
    assert len(searches) > 20
    slow = {expression: slow_text(expression, flags) for expression, flags in searches}
    assert {expression: text for expression, text in slow.items() if text is not None} == {}


def test_no_character_is_read_again_and_again() -> None:
    counts = _run(_LIST_WORK, 3000, 12000)
    slow = {
        name: (short, long)
        for name, (short, long) in counts.items()
        if long > FEW_STEPS and long > MOST_GROWTH * short
    }
    assert slow == {}


@pytest.mark.parametrize(
    ("expression", "is_slow"),
    [
        (r"\?sig=[^#]{0,4096}#", True),
        (r"(?:a+)+b", True),
        (r"\w+@\w+\.com", True),
        (r"key=\w{20,40}\b", False),
        (r"(['\"])x(?P<y>[^'\"]{0,9})\1(?<!xx)(?!z)", False),
    ],
)
def test_slow_expressions_are_noticed(expression: str, *, is_slow: bool) -> None:
    assert (slow_text(expression, 0) is not None) == is_slow
