"""What every finder of sensitive text returns, and the boundaries all of them share."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from functools import cache
from typing import NamedTuple


class Span(NamedTuple):
    """A stretch of a text, `text[start:end]`, that has to go, and the kind of thing it is."""

    start: int
    end: int
    kind: str


PLACEHOLDER = re.compile(r"\[REDACTED:[a-z0-9_]{1,40}(?:#[a-z0-9]{1,16}){0,2}\]")

# What may stand glued before a word without being part of it, read backwards: an escape
# sequence written out (\n, \x1b), a percent-encoded character, the end of an ANSI colour code.
_GLUED_BEFORE = re.compile(
    r"[nrtfbv]\\|[0-9A-Fa-f]{2}[%x]|m[0-9;]{0,8}\[(?:\x1b|b1x\\|b1000u\\|330\\)"
)


def class_table(*classes: str) -> bytes:
    """Return a table for `classified`: 1 for the characters of the first class, and so on.

    Args:
        classes: ASCII characters; what is in none of them is 0.
    """
    table = bytearray(256)
    for number, characters in enumerate(classes, 1):
        for character in characters:
            table[ord(character)] = number
    return bytes(table)


def classified(text: str, table: bytes) -> bytes:
    """Return the class of each character of `text`, about 1 ns a character.

    Looking for classes in that is many times faster than an expression that meets a character of
    its own every few letters. What is not ASCII counts as a question mark.
    """
    return text.encode("ascii", "replace").translate(table)


DIGITS = "0123456789"
LETTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
TOKEN_CLASS = class_table(DIGITS + LETTERS + "_-./+=~@:%!$|?")


def long_runs(classes: bytes, length: int) -> Iterator[tuple[int, int]]:
    """Yield the stretches of at least `length` characters of the first class."""
    run = b"\x01" * length
    end = 0
    while (found := classes.find(run, end)) >= 0:
        end = classes.find(b"\x00", found + length)
        if end < 0:
            end = len(classes)
        yield found, end


@cache
def compiled(expression: str, flags: int) -> re.Pattern[str]:
    """Compile an expression of a table, not before a text asks for it."""
    return re.compile(expression, flags)


def occurrences(text: str, words: Iterable[str]) -> Iterator[int]:
    """Yield where each of `words` begins, one word after the other."""
    for word in words:
        if word in text:
            at = text.find(word)
            while at >= 0:
                yield at
                at = text.find(word, at + len(word))


def trie(words: Iterable[str]) -> str:
    """Return one expression for all `words` that decides on each character once."""
    branches: dict[str, list[str]] = {}
    ends = False
    for word in words:
        if word:
            branches.setdefault(word[0], []).append(word[1:])
        else:
            ends = True
    parts = [re.escape(first) + trie(rest) for first, rest in sorted(branches.items())]
    if not parts:
        return ""
    body = parts[0] if len(parts) == 1 and not ends else f"(?:{'|'.join(parts)})"
    return body + "?" if ends else body


def placeholder(kind: str) -> str:
    """Return the text that stands for something of `kind`."""
    return f"[REDACTED:{kind}]"


def starts_word(text: str, start: int) -> bool:
    """Tell whether a word can begin at `start`: no ASCII letter or digit belongs before it.

    Only ASCII counts, so a key glued to Chinese or Japanese text is still seen.
    """
    if start == 0:
        return True
    before = text[start - 1]
    if not (before.isascii() and before.isalnum()):
        return True
    return glued_length(text, start) > 0


def glued_length(text: str, end: int) -> int:
    r"""Return how many characters before `end` are an escape: `\n`, `%3D`, a colour code."""
    match = _GLUED_BEFORE.match(text[max(0, end - 16) : end][::-1])
    return match.end() if match else 0
