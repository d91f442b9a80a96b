"""Unquoted values, told from code, templates and prose."""

from __future__ import annotations

import re

from kp_langchain.redaction.extents import bare
from kp_langchain.redaction.keys import Telling, split_name, word_set
from kp_langchain.redaction.prose import FUNCTION_WORDS
from kp_langchain.redaction.values import fills_the_place, looks_chosen

_ARROWS = frozenset(("\u2192", "\u2014", "->", "-"))
_KEYWORDS = frozenset(("await", "new", "yield", "async", "lambda", "not", "typeof", "this", "self"))
_CALLED = re.compile(r"[A-Za-z_][\w.]*")
_LINE_START = re.compile(r"(?:^|[\n\r])[ \t>*#\-]{0,40}(?:export )?$")
_STRING_START = re.compile(r"(?:[\"'`]|\\n)[ \t>*#\-]{0,40}$")
_LINE = re.compile(r"[^\n\r\\\"'{}<>;]{1,200}")
_DOTTED = re.compile(r"[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)+")
_CONSTANT = re.compile(r"[A-Z]+(?:_[A-Z]+)+")
_ANNOTATED = re.compile(r"[ \t]{1,4}(?:\||=)[ \t]")
_PROSE = word_set("the for to of if used is a an or from with be in your and that this")
_COMMENT = re.compile(r"[ \t]+(?:#|//|;|--[ \t]).*")


def unquoted(
    text: str,
    at: int,
    start: int,
    assigned: re.Match[str],
    name: str,
    tells: Telling,
) -> tuple[int, int] | None:
    """Return the unquoted value at `at`, unless it is code, a template or prose."""
    span = bare(text, at)
    if span is None:
        if text[at : at + 1] == "{" and tells.kind == "password" and assigned["sign"] == "=":
            close = text.find("}", at, at + 256)  # ODBC: Pwd={a;b}
            inside = text[at + 1 : close]
            odbc = close > 0 and inside and not fills_the_place("{" + inside + "}")
            return (at, close + 1) if odbc and "{" not in inside else None
        return None
    value = text[slice(*span)]
    if text[span[1] : span[1] + 1] in ("(", "[") and _CALLED.fullmatch(value):
        return None
    if value == "$" or "://" in value or _repeats_name(value, name):
        return None
    if assigned["sign"] in _ARROWS and not looks_chosen(value):
        return span if tells.kind in ("otp", "pin", "cvv") and value.isdigit() else None
    if value in _KEYWORDS and text[span[1] : span[1] + 1] == " ":
        return None
    spaced = assigned["sign"] == ":" and assigned.end() > assigned.end("sign")
    if spaced and value.lower() in FUNCTION_WORDS:
        return None
    if _is_code(text, span, value, spaced=spaced):
        return None
    if starts_line(text, start) and (spaced or text[assigned.start("sign") - 1] == " "):
        line = _LINE.match(text, at)
        whole = _COMMENT.sub("", line.group()) if line else ""
        words = whole.split()
        if at + len(whole) > span[1] and len(words) <= 6 and not fills_the_place(words[0]):
            if spaced and not looks_chosen(value) and _PROSE & {word.lower() for word in words}:
                return None
            return at, at + len(whole.rstrip())
    return span


def starts_line(text: str, start: int, *, quoted_too: bool = False) -> bool:
    """Tell whether nothing but indentation stands before `start` on its line.

    Args:
        text: The whole text.
        start: Where a name begins.
        quoted_too: Whether the beginning of a quoted text counts as that of a line.
    """
    before = text[max(0, start - 48) : start]
    if _LINE_START.search(before) is not None:
        return True
    return quoted_too and _STRING_START.search(before) is not None


def _is_code(text: str, span: tuple[int, int], value: str, *, spaced: bool) -> bool:
    """Tell whether an unquoted value is an expression: a.b.c, CONSTANT_NAME, Type | None = ..."""
    if any(map(str.isdigit, value)):
        return False
    if _DOTTED.fullmatch(value) or _CONSTANT.fullmatch(value):
        return True
    return spaced and _ANNOTATED.match(text, span[1]) is not None


def _repeats_name(value: str, name: str) -> bool:
    """Tell whether an unquoted value is code that speaks of the name again: `token=self.token`."""
    if _CALLED.fullmatch(value) is None:
        return False
    if "." in value and value.split(".")[0] in (
        "self",
        "cls",
        "this",
        "args",
        "config",
        "settings",
    ):
        return True
    words = split_name(name)
    mine = split_name(value)
    return not any(character.isdigit() for character in value) and (
        mine[-1:] == words[-1:]
        or (len(mine) > 1 and mine[0] in ("get", "load", "new", "read"))
        or value.lower().startswith(words[-1])
    )
