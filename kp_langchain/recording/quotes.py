"""`Quotes`: removes from a run's texts what they quote of the examples that it was shown.

A model that repeats an example has not thought that itself, and a retriever's output that holds one
is no finding of this run. Left in, a kept trace would carry others inside it.

A line of an example is found as it is, without its label (`Task:`, `Answer:`, `12.`), without the
quotes around it, without the ending of a call (`-> ok`), and as any of these stands inside JSON.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from typing import Final

from ahocorasick_rs import AhoCorasick, MatchKind

from kp_langchain.recording.safe_reads import clean

SHORTEST_QUOTE_CHARS: Final = 24
"""Shorter parts of examples, such as `Answer: yes`, may well be the run's own."""

_MOST_LINES, _MOST_CHARS = 1000, 100_000
_FRAME = "<<<"  # how the lines around an example begin
_LABEL = re.compile(r"(?:Task|Answer):\s*|\d{1,9}\.\s+")
_ENDING = re.compile(r"(.*) -> (?:ok|error|no result)\b.*")
# Where a quote stood within another one, removing it makes the outer one whole.
_MOST_ROUNDS = 8
_FEWEST_LINES_OF_ANSWER = 2


class Quotes:
    """What counts as a quote of a run's examples.

    Args:
        examples: The texts of the examples, in any form. Of all of them together the first thousand
            lines and hundred thousand characters are read.
    """

    def __init__(self, examples: Iterable[str]) -> None:
        lines = list(_lines(examples))
        patterns: dict[str, str] = {}  # with the line that one is as a whole, else ""
        for line in lines:
            for form in _forms(line):
                for pattern in _escaped(form):
                    patterns.setdefault(pattern, "")
            if len(line) >= SHORTEST_QUOTE_CHARS:
                patterns |= dict.fromkeys(_escaped(line), line)
        self._whole_lines = list(patterns.values())
        self._automaton = AhoCorasick(patterns, matchkind=MatchKind.LeftmostLongest)
        self._short_frames = {
            line for line in lines if line.startswith(_FRAME) and len(line) < SHORTEST_QUOTE_CHARS
        }

    def without(self, text: str) -> str:
        """Return `text` without what it quotes, and without the lines that this leaves empty.

        Everything else stays as it is. A text that quotes nothing is returned itself.
        """
        for _ in range(_MOST_ROUNDS):
            rest, _ = self._cut(text)
            if len(rest) == len(text):
                break
            text = rest
        return text

    def without_in_answer(self, answer: str) -> str:
        """Return a run's answer without examples that it repeats; never an empty text for one.

        The answer to a like task may be the same, so fewer than two whole lines of examples are no
        quote, and neither is anything in an answer that would have nothing else.
        """
        _, quoted_lines = self._cut(answer)
        if len(quoted_lines) < _FEWEST_LINES_OF_ANSWER:
            return answer
        rest = self.without(answer)
        return rest if rest.strip() else answer

    def _cut(self, text: str) -> tuple[str, set[str]]:
        """Return a text without the quotes in it, and which lines of examples it quotes whole."""
        # The search takes no lone surrogates. What replaces them has the same length.
        matches = self._automaton.find_matches_as_indexes(clean(text))
        quoted_lines = {self._whole_lines[pattern] for pattern, _, _ in matches} - {""}
        if not matches and not (self._short_frames and _FRAME in text):
            return text, quoted_lines
        kept: list[str] = []
        line_end, position = 0, 0
        for line in text.splitlines(keepends=True):
            line_start, line_end = line_end, line_end + len(line)
            first = position
            while position < len(matches) and matches[position][1] < line_end:
                position += 1
            if position > first:
                kept.append(_without_spans(line, line_start, matches[first:position]))
            elif (stripped := line.strip()) in self._short_frames:
                quoted_lines.add(stripped)
            else:
                kept.append(line)
        return "".join(kept), quoted_lines


def _without_spans(line: str, start: int, matches: list[tuple[int, int, int]]) -> str:
    """Return a line without the matches in it; "" if only space is left.

    Args:
        line: The line, with its end.
        start: Its position in the text.
        matches: Pattern, start and end of each match, by their positions in the text.
    """
    parts: list[str] = []
    at = 0
    for _, begin, end in matches:
        parts.append(line[at : begin - start])
        at = end - start
    rest = "".join([*parts, line[at:]])
    return rest if rest.strip() else ""


def _lines(examples: Iterable[str]) -> Iterator[str]:
    """Yield the lines of examples that are read, without space around them."""
    lines_left, chars_left = _MOST_LINES, _MOST_CHARS
    for text in examples:
        lines = clean(text[:chars_left]).splitlines()[:lines_left]
        lines_left -= len(lines)
        chars_left -= sum(map(len, lines))
        yield from filter(None, map(str.strip, lines))


def _forms(line: str) -> Iterator[str]:
    """Yield the parts of an example's line that count as quotes by themselves."""
    label = _LABEL.match(line)
    bare = line[label.end() :] if label else line
    forms = [bare]
    forms += [call[1] for text in (line, bare) if (call := _ENDING.fullmatch(text))]
    if len(bare) > 1 and bare[0] == bare[-1] and bare[0] in "\"'":
        forms += [bare[1:-1], *_read_json(bare).splitlines()]
    yield from (form for form in map(str.strip, forms) if len(form) >= SHORTEST_QUOTE_CHARS)


def _read_json(text: str) -> str:
    """Return the content of a JSON string; "" for anything else."""
    try:
        return clean(str(json.loads(text)))
    except ValueError:
        return ""


def _escaped(text: str) -> set[str]:
    """Return a text in the forms that it has by itself and inside JSON strings."""
    escaped = (json.dumps(text, ensure_ascii=ascii_only)[1:-1] for ascii_only in (True, False))
    return {text, *escaped}
