"""Text as a log line or a terminal may show it.

Whatever a run, a registry or a folder holds is somebody's text: a line feed in it would forge a log
line, an escape sequence drive the terminal, a bidirectional character turn what is read around.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Mapping
from typing import Any

_REPLACEMENT = "\ufffd"
_ASTRAL = 0x10000
_UUID = re.compile("[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.IGNORECASE)
_IN_JSON = re.compile(r"[^\x20-\x7e]")


def printable(text: str, *, keep: str = "") -> str:
    """Return `text` with every character replaced that is not to be seen as itself.

    Blanks of other kinds become ordinary ones, line ends and tabs too. U+FFFD stands for control
    and format characters (bidirectional ones among them), private and unassigned ones, and lone
    surrogates.

    Args:
        text: Anybody's text.
        keep: Characters that stay, such as line feeds where lines are meant.
    """
    if text.isprintable():
        return text
    return "".join(
        char if char.isprintable() or char in keep else _instead_of(char) for char in text
    )


def one_line(value: object, limit_chars: int) -> str:
    """Return a value as at most `limit_chars` characters of one printable line."""
    text = value if isinstance(value, str) else str(value)
    # Cut first: nobody reads what comes after, and it may be long.
    cut = text if len(text) <= limit_chars else text[: limit_chars - 1] + "…"
    return printable(cut)


def short_id(trace_id: str) -> str:
    """Return a trace id for a list: 8 characters of a UUID, else up to 20 of what stands there.

    That is enough to look it up again, unless another one begins so.
    """
    own = trace_id.removeprefix("kp:trace:")
    return one_line(own[: 8 if _UUID.fullmatch(own) else 20], 20)


def printable_json(text: str) -> str:
    r"""Return JSON with `\uXXXX` for what is not to be seen as itself; it means the same."""
    return text if text.isprintable() else _IN_JSON.sub(_escaped, text)


def printable_fields(fields: Mapping[str, Any], limit_chars: int) -> dict[str, Any]:
    """Return fields of a log record, their texts as `one_line` returns them."""
    return {
        name: one_line(value, limit_chars) if isinstance(value, str) else value
        for name, value in fields.items()
    }


def _instead_of(char: str) -> str:
    return " " if char in "\t\n\r\v\f\x85" or unicodedata.category(char)[0] == "Z" else _REPLACEMENT


def _escaped(match: re.Match[str]) -> str:
    char = match.group()
    if char.isprintable():
        return char
    code = ord(char)
    if code < _ASTRAL:
        return f"\\u{code:04x}"
    code -= _ASTRAL
    return f"\\u{0xD800 + (code >> 10):04x}\\u{0xDC00 + (code & 0x3FF):04x}"
