"""Text of a run as the page shows it: cut to a length, and nothing in it invisible."""

from __future__ import annotations

import json
from typing import Any, NamedTuple

import regex

_PICTURES = 0x2400  # U+2400 is a picture of NUL, U+241B of the escape character
_C0_END = 0x20
_DELETE, _PICTURE_OF_DELETE = 0x7F, "\u2421"
_BREAKS = regex.compile("\r\n|[\r\v\f\x85\u2028\u2029]")
# Joiners stay: words of several scripts, and many pictographs, need them.
_INVISIBLE = regex.compile(r"[[\p{Cc}\p{Cf}\p{Cs}]--[\n\t\u200c\u200d]]", regex.V1)
_HEAD_SHARE = 0.75


def show_invisible(text: str) -> str:
    """Return `text` with each control and format character replaced by a visible sign for it.

    These are NUL, escape and other control characters, those that reorder or hide text, and lone
    surrogates. Line feeds and tabs stay; other line breaks become line feeds.
    """
    if text.isprintable():
        return text
    return str(_INVISIBLE.sub(_sign, _BREAKS.sub("\n", text)))


def _sign(match: regex.Match[str]) -> str:
    code = ord(match.group())
    if code < _C0_END:
        return chr(_PICTURES + code)
    return _PICTURE_OF_DELETE if code == _DELETE else f"[U+{code:04X}]"


class Excerpt(NamedTuple):
    """A text as the page has it, whole or without its middle.

    Attributes:
        head: Its beginning, or all of it.
        left_out: How many characters are left out after that.
        tail: Its end; empty if nothing is left out.
    """

    head: str
    left_out: int = 0
    tail: str = ""

    @classmethod
    def of(cls, text: str, limit_chars: int) -> Excerpt:
        """Return a text, without its middle if it has more than `limit_chars` characters."""
        if len(text) <= limit_chars:
            return cls(show_invisible(text))
        head, tail = _split(limit_chars)
        end = text[len(text) - tail :]
        return cls(show_invisible(text[:head]), len(text) - limit_chars, show_invisible(end))

    def shortened(self, limit_chars: int) -> Excerpt:
        """Return it cut to fewer characters."""
        length = len(self.head) + len(self.tail)
        if length <= limit_chars:
            return self
        head, tail = _split(limit_chars)
        end = (self.tail or self.head)[-tail:] if tail else ""
        return Excerpt(self.head[:head], self.left_out + length - head - len(end), end)

    def to_json(self) -> str | list[Any]:
        """Return the text if it is whole; else head, number of characters left out, and tail."""
        return [self.head, self.left_out, self.tail] if self.left_out else self.head


def excerpt_of(value: object, limit_chars: int) -> Excerpt:
    """Return any JSON-like value as an excerpt; what is not text as indented JSON."""
    if isinstance(value, str):
        return Excerpt.of(value, limit_chars)
    try:
        return Excerpt.of(json.dumps(value, ensure_ascii=False, indent=1), limit_chars)
    except (TypeError, ValueError, RecursionError):
        return Excerpt("[cannot be shown]")


def line_of(value: object, limit_chars: int) -> str:
    """Return a value as one line of at most `limit_chars` characters, for names and lists."""
    text = value if isinstance(value, str) else "" if value is None else str(value)
    cut = text if len(text) <= limit_chars else text[: limit_chars - 1] + "…"
    return show_invisible(" ".join(cut.split()))


def _split(limit_chars: int) -> tuple[int, int]:
    """Return how many characters of a longer text to keep at its beginning and at its end."""
    head = round(limit_chars * _HEAD_SHARE)
    return head, limit_chars - head
