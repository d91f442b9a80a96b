"""Make text safe for a log line or a terminal.

Text from a run, a registry or a file may be hostile: a line feed in it forges a log line, an escape
sequence controls the terminal, a bidirectional character reorders what is displayed.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pydantic import ValidationError

INVISIBLE = re.compile(
    "[\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u202a-\u202e\u2060-\u206f"
    "\u3164\ufe00-\ufe0f\ufeff\uffa0\U000e0000-\U000e0fff]"
)
"""Soft hyphens, zero-width and bidirectional characters, fillers, variation selectors, and tags."""

_REPLACEMENT = "\ufffd"
_ASTRAL = 0x10000
_UUID = re.compile("[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.IGNORECASE)
_IN_JSON = re.compile(r"[^\x20-\x7e]")


def printable(text: str, *, keep: str = "") -> str:
    """Return `text` with every unprintable character replaced.

    White space of any kind, also line feeds and tabs, becomes a blank. Control and format
    characters (bidirectional ones too), private-use and unassigned ones, and lone surrogates become
    U+FFFD.

    Args:
        text: The text.
        keep: Characters that stay, such as line feeds.
    """
    if text.isprintable():
        return text
    return "".join(
        char if char.isprintable() or char in keep else _replacement(char) for char in text
    )


def one_line(value: object, limit_chars: int) -> str:
    """Return a value as at most `limit_chars` characters of one printable line."""
    text = value if isinstance(value, str) else str(value)
    # Cut first: the rest may be long, and is not shown.
    cut = text if len(text) <= limit_chars else text[: limit_chars - 1] + "…"
    return printable(cut)


def first_fault(error: ValidationError) -> str:
    """Return what is wrong and where, without the value, which the text of the error quotes."""
    first = error.errors(include_url=False, include_input=False, include_context=False)[0]
    place = ".".join(map(str, first["loc"]))
    more = error.error_count() - 1
    return (
        f"{place}{': ' if place else ''}{first['msg'].removeprefix('Value error, ')}"
        f"{f' (and {more} more)' if more else ''}"
    )


def beside(value: float, threshold: float) -> str:
    """Return a value with three decimals, or as many as tell it from a threshold it is below."""
    for digits in range(3, 9):
        text = f"{value:.{digits}f}"
        if value >= threshold or text != f"{threshold:.{digits}f}":
            return text
    return f"{value!r}"


def short_id(trace_id: str) -> str:
    """Return a trace id for a list: the first 8 characters of a UUID, or up to 20 of another id.

    That is enough to look it up, unless another id has the same beginning.
    """
    text = trace_id.removeprefix("kp:trace:")
    return one_line(text[: 8 if _UUID.fullmatch(text) else 20], 20)


def printable_json(text: str) -> str:
    r"""Return JSON with `\uXXXX` for characters that cannot be seen; its meaning is unchanged."""
    if text.isascii() and text.isprintable():
        return text
    return _IN_JSON.sub(_escape, text)


def printable_fields(fields: Mapping[str, Any], limit_chars: int) -> dict[str, Any]:
    """Return the fields of a log record with each text as one printable line."""
    return {
        name: one_line(value, limit_chars) if isinstance(value, str) else value
        for name, value in fields.items()
    }


def _replacement(char: str) -> str:
    return " " if char in "\t\n\r\v\f\x85" or unicodedata.category(char)[0] == "Z" else _REPLACEMENT


def _escape(match: re.Match[str]) -> str:
    char = match.group()
    if char.isprintable() and not INVISIBLE.match(char):
        return char
    code = ord(char)
    if code < _ASTRAL:
        return f"\\u{code:04x}"
    code -= _ASTRAL
    return f"\\u{0xD800 + (code >> 10):04x}\\u{0xDC00 + (code & 0x3FF):04x}"
