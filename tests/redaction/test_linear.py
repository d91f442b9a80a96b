"""Searching takes work in proportion to the length of a text, counted without a clock.

`re` does not tell how much it works. `StepCounter` reads an expression as `re` does, and tries its
alternatives in the same order; it counts each character that it looks at.
"""

from __future__ import annotations

import json
import re
import string
from collections.abc import Callable, Iterator
from re import _constants as c  # type: ignore[attr-defined]
from re import _parser  # type: ignore[attr-defined]
from typing import Any

import pytest

from tests import programs

SHORT, LONG = 600, 2400
WINDOW = 500
# Steps per character that any text may take; more only if they do not grow with its length.
FEW_STEPS = 50
MOST_STEPS = 400
MOST_GROWTH = 2.0
MOST_TEXTS = 3

ASCII = [chr(code) for code in range(128)]
_CATEGORIES: dict[Any, Callable[[str], bool]] = {
    c.CATEGORY_DIGIT: str.isdigit,
    c.CATEGORY_SPACE: str.isspace,
    c.CATEGORY_WORD: lambda letter: letter.isalnum() or letter == "_",
}
_NEGATED = {
    c.CATEGORY_NOT_DIGIT: c.CATEGORY_DIGIT,
    c.CATEGORY_NOT_SPACE: c.CATEGORY_SPACE,
    c.CATEGORY_NOT_WORD: c.CATEGORY_WORD,
}
_REPEATS = (c.MAX_REPEAT, c.MIN_REPEAT, c.POSSESSIVE_REPEAT)
State = tuple[int, dict[int, tuple[int, int]]]


class TooManyStepsError(Exception):
    """A search took more steps than it may."""


class StepCounter:
    """A regular expression whose searches are counted.

    Args:
        expression: The expression.
        flags: The flags of its compiled form.
        most: The most steps of one search.
    """

    def __init__(self, expression: str, flags: int, most: int) -> None:
        self.tree = _parser.parse(expression, flags & ~re.UNICODE)
        self.flags = self.tree.state.flags | flags
        self.most = most
        self.steps = 0
        self._sets: dict[Any, frozenset[str]] = {}

    def search_all(self, text: str) -> int:
        """Search as `finditer` does, and return the number of steps."""
        self.steps = 0
        self._text = text
        position = 0
        tree = list(self.tree)
        while position <= len(text):
            end = next(self._sequence(tree, 0, (position, {})), None)
            position = end[0] if end is not None and end[0] > position else position + 1
        return self.steps

    def _step(self, count: int = 1) -> None:
        self.steps += count
        if self.steps > self.most:
            raise TooManyStepsError

    def _sequence(self, nodes: list[Any], at: int, state: State) -> Iterator[State]:
        # Single characters and their repeats are read in a loop, so that the recursion stays flat.
        while at < len(nodes):
            letters = self.letters(nodes[at])
            if letters is None:
                break
            self._step()
            position, groups = state
            if position >= len(self._text) or self._text[position] not in letters:
                return
            state = position + 1, groups
            at += 1
        if at == len(nodes):
            yield state
            return
        for following in self._node(*nodes[at], state):
            yield from self._sequence(nodes, at + 1, following)

    def _node(self, operator: Any, argument: Any, state: State) -> Iterator[State]:
        position, groups = state
        self._step()
        if operator in _REPEATS:
            yield from self._repeat(operator, *argument, state)
        elif operator is c.BRANCH:
            for branch in argument[1]:
                yield from self._sequence(list(branch), 0, state)
        elif operator is c.SUBPATTERN:
            group, _, _, body = argument
            for end, inner in self._sequence(list(body), 0, state):
                yield end, {**inner, group: (position, end)} if group else inner
        elif operator in (c.ASSERT, c.ASSERT_NOT):
            direction, body = argument
            start = position if direction > 0 else position - body.getwidth()[0]
            match = (
                next(self._sequence(list(body), 0, (start, groups)), None) if start >= 0 else None
            )
            if (match is not None) == (operator is c.ASSERT):
                yield position, match[1] if match else groups
        elif operator is c.ATOMIC_GROUP:
            match = next(self._sequence(list(argument), 0, state), None)
            if match is not None:
                yield match
        elif operator is c.GROUPREF:
            same = self._text[slice(*groups.get(argument, (0, 0)))]
            if argument in groups and self._text.startswith(same, position):
                self._step(len(same))
                yield position + len(same), groups
        elif operator is c.GROUPREF_EXISTS:
            group, present, absent = argument
            yield from self._sequence(
                list((present if group in groups else absent) or []), 0, state
            )
        elif operator is c.AT and self._is_at(argument, position):
            yield state

    def _repeat(
        self, operator: Any, least: int, most: Any, body: Any, state: State
    ) -> Iterator[State]:
        position, groups = state
        letters = self.letters(body[0]) if len(body) == 1 else None
        if letters is None:
            yield from self._repeat_group(operator, least, most, list(body), state)
            return
        limit = min(len(self._text), position + int(most))
        end = position
        while end < limit and self._text[end] in letters and operator is not c.MIN_REPEAT:
            end += 1
        if operator is c.MIN_REPEAT:
            while end <= limit:
                self._step()
                if end - position >= least:
                    yield end, groups
                if end == limit or self._text[end] not in letters:
                    return
                end += 1
        self._step(end - position)
        while end - position >= least:
            yield end, groups
            self._step()
            end -= 1
            if operator is c.POSSESSIVE_REPEAT:
                return

    def _repeat_group(
        self, operator: Any, least: int, most: Any, body: list[Any], state: State
    ) -> Iterator[State]:
        if least <= 0 and operator is c.MIN_REPEAT:
            yield state
        if most > 0:
            for following in self._sequence(body, 0, state):
                if following[0] > state[0] or least > 0:
                    yield from self._repeat_group(operator, least - 1, most - 1, body, following)
        if least <= 0 and operator is not c.MIN_REPEAT:
            yield state

    def _is_at(self, where: Any, position: int) -> bool:
        text = self._text
        before, after = (
            text[position - 1 : position] if position else "",
            text[position : position + 1],
        )
        if where in (c.AT_BEGINNING, c.AT_BEGINNING_STRING):
            return not before or (bool(self.flags & re.MULTILINE) and before == "\n")
        if where is c.AT_END:
            return after in ("", "\n")
        if where is c.AT_END_STRING:
            return not after
        is_word = _CATEGORIES[c.CATEGORY_WORD]
        is_boundary = (bool(before) and is_word(before)) != (bool(after) and is_word(after))
        return is_boundary == (where is c.AT_BOUNDARY)

    def letters(self, node: Any) -> frozenset[str] | None:
        """Return the characters that a node for one character matches; None for any other node."""
        operator, argument = node
        if operator not in (c.LITERAL, c.NOT_LITERAL, c.ANY, c.IN):
            return None
        key = id(argument) if operator is c.IN else (operator, argument)
        known = self._sets.get(key)
        if known is not None:
            return known
        if operator is c.ANY:
            found = set(ASCII) if self.flags & re.DOTALL else set(ASCII) - {"\n"}
        else:
            items = argument if operator is c.IN else [(c.LITERAL, argument)]
            is_negated = operator is c.NOT_LITERAL or items[0][0] is c.NEGATE
            found = {letter for letter in ASCII if any(self._is_in(letter, item) for item in items)}
            found = set(ASCII) - found if is_negated else found
        self._sets[key] = frozenset(found)
        return self._sets[key]

    def _is_in(self, letter: str, item: Any) -> bool:
        operator, argument = item
        cases = {letter, letter.lower(), letter.upper()} if self.flags & re.IGNORECASE else {letter}
        if operator is c.LITERAL:
            return any(ord(case) == argument for case in cases)
        if operator is c.RANGE:
            return any(argument[0] <= ord(case) <= argument[1] for case in cases)
        if operator is c.CATEGORY:
            if argument in _NEGATED:
                return not _CATEGORIES[_NEGATED[argument]](letter)
            return _CATEGORIES[argument](letter)
        return False

    def beginnings(self) -> Iterator[str]:
        """Yield texts that match the beginning of the expression, up to each of its parts."""
        yield from self._beginnings(list(self.tree), "")

    def _beginnings(self, nodes: list[Any], before: str) -> Iterator[str]:
        for operator, argument in nodes:
            letters = self.letters((operator, argument))
            if letters is not None:
                before += self._sample(letters)
            elif operator in _REPEATS:
                inner = list(self._beginnings(list(argument[2]), ""))
                before += (inner[-1] if inner else "") * max(1, argument[0])
            elif operator is c.SUBPATTERN:
                yield from (before + inner for inner in self._beginnings(list(argument[3]), ""))
                inner = list(self._beginnings(list(argument[3]), ""))
                before += inner[-1] if inner else ""
            elif operator is c.BRANCH:
                branches = [list(self._beginnings(list(branch), "")) for branch in argument[1][:4]]
                yield from (before + branch[-1] for branch in branches if branch)
                before += branches[0][-1] if branches[0] else ""
            yield before

    def _sample(self, letters: frozenset[str]) -> str:
        ordered = string.ascii_lowercase + string.digits + string.printable
        return next((letter for letter in ordered if letter in letters), "\x01")


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
from tests.redaction.cases import NASTY
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
    # In a program of its own, in which nothing of the package is compiled yet.
    done = programs.run("-c", spy + script, cwd=programs.ROOT)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


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
