"""Secrets that code types into a form of a browser.

Such as `page.fill("#password", "...")` and `get_by_label("Password").fill("...")`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from kp_langchain.redaction.extents import quoted_value
from kp_langchain.redaction.field_names import classify_name
from kp_langchain.redaction.finders import Finder
from kp_langchain.redaction.lazy_pattern import lazy_pattern
from kp_langchain.redaction.spans import Span
from kp_langchain.redaction.structures import element_field
from kp_langchain.redaction.values import is_sensitive

_VERBS = (
    "fill type typetext type_text send_keys sendkeys setvalue set_value press_sequentially "
    "presssequentially input_text inputtext enter_text entertext fillfield fill_field keyboard_type "
    "val setinputvalue change write"
).split()
_CALL = lazy_pattern(
    rf"(?<![a-z_])(?:{'|'.join(_VERBS)})\(|(?<=\.)value[ \t]?=(?!=)|(?<![a-z_])fill_in[ (]"
)
_BEFORE_VALUE = lazy_pattern(
    r"\s{0,40}(?:\w{2,12}[:=]\s{0,4})?(?:\{\s?target:\s?\{\s?value:\s?|[\w.]{1,60}\()?"
    r"(?=[\"'`])"
)
_BETWEEN = lazy_pattern(r"[\"'`]?[\s),\]]{1,40}|[\"'`][ \t]{1,4}(?=with:)")
_STATEMENT_START = lazy_pattern(r"[\n;](?![ \t]*\.)")
_MAX_STATEMENT = 240
_LAST_STRING = lazy_pattern(r".*[(\[=,:][ \t]?([\"'`])(.{1,160}?)\1[)\]} ]*\Z", re.DOTALL)
_KEYS = lazy_pattern(r"\{\w{1,12}\}\Z")  # cypress writes type("...{enter}")


def _find_calls(text: str, low: str) -> Iterator[Span]:
    end = 0
    for call in _CALL.finditer(low):
        at = _BEFORE_VALUE.match(text, call.end())
        first = quoted_value(text, at.end()) if at else None
        if first is None or first[0] < end:
            continue
        between = _BETWEEN.match(text, first[1])
        at = _BEFORE_VALUE.match(text, between.end()) if between else None
        second = quoted_value(text, at.end()) if at else None
        window = text[max(end, call.start() - _MAX_STATEMENT) : call.start()]
        field = element_field(text[slice(*first)] if second else _element(window), classify_name)
        value = second or first
        content = _KEYS.sub("", text[slice(*value)])
        if field is not None and field[0] and is_sensitive(content, field[1], field[0]):
            end = value[0] + len(content)
            yield Span(value[0], end, field[0].kind)


def _element(window: str) -> str:
    """Return what names the element whose method is called after `window`.

    That is the last string of the statement, or what the variable's name or assignment says.
    """
    *earlier, statement = _STATEMENT_START.split(window)
    statement = statement.rstrip(". \t\n")
    string = _LAST_STRING.match(statement)
    if string is not None:
        return string[2]
    variable = statement.rpartition(" ")[2].strip("()")
    for other in reversed(earlier):
        if variable and other.split("=")[0].split()[-1:] == [variable] and "=" in other:
            string = _LAST_STRING.match(other.rstrip())
            return string[2] if string else variable
    return variable


FINDERS = (
    Finder(
        _find_calls,
        ("('", '("', "(`", "='", '="', "':", '":'),
        (*(f"{verb}(" for verb in _VERBS), ".value", "fill_in"),
        is_named=True,
    ),
)
