"""Notations without `=` or `:` between name and value: flags, pairs, markup, forms, calls."""

from __future__ import annotations

import re

from kp_langchain.redaction.extents import bare_word, quoted_value
from kp_langchain.redaction.field_names import classify_name, split_name
from kp_langchain.redaction.values import SENTENCE_WORDS, is_random, looks_like_password

_NAME_THEN_VALUE = re.compile(
    r"\\{0,16}[\"']?(?:\r?\n|\\{1,16}n)[ \t]{0,40}[\"']?value[\"']?:[ \t]{1,8}(?=\S)", re.IGNORECASE
)
_GAP = re.compile(r"[ \t]{1,64}")
_NEXT_CELL = re.compile(
    r"[ \t]{0,40}(?:\|[ \t]{0,40}|\t|\\t|,(?=[A-Za-z0-9_+/=.\-]{16}))(?![ \t|])"
)
_PAIR = re.compile(
    r"\\{0,40}[\"'][ \t]{0,8},\s{0,64}"
    r"(?:(?:\\{0,40}[\"'])?[Vv]alue\\{0,40}[\"']?\s{0,8}[:=]\s{0,8})?"
    r"(?=\\{0,40}[\"'])"
)
_IS_NAME = re.compile(r"\\{0,40}[\"']\s{0,8}:")
_TAG = re.compile(
    r"\\{0,40}[\"'](?:[^<>\n]{0,80}?[\s](?:value|content|default)=(?=\\{0,40}[\"'])"
    r"|[^<>\n]{0,80}>(?:\s{0,64}<value>)?(?=[^<>\s]))"
)
_NAME_ATTRIBUTE = re.compile(
    r"(?:name|key|id|property|var|param|field|variable)=\\{0,40}[\"'][\w.]{0,64}$", re.IGNORECASE
)
_ELEMENT = re.compile(
    r"(?:[ \t][^<>\n]{0,200})?>\s{0,64}(?=[^<>\s])|</key>(?:\s|\\{1,16}[nrt]){0,64}<string>"
)
_IN_TAG = re.compile(r"<[\w:.\-]{0,64}$")
_NEWLINE = r"(?:\r?\n|(?:\\{1,16}r)?\\{1,16}n)"
_FORM_PART = re.compile(
    rf"\\{{0,40}}\"{_NEWLINE}(?:[A-Z][^\r\n\\]{{0,80}}{_NEWLINE}){{0,2}}{_NEWLINE}"
)
_HCL = re.compile(r"\\{0,40}\"[ \t]{0,4}\{[^{}]{0,200}?default[ \t]{0,8}=[ \t]{0,8}(?=\\{0,40}\")")
_CALL = re.compile(r"[({][ \t]{0,4}(?=[bfN]?\\{0,40}[\"'])")
_SETTERS = frozenset(("set", "with", "use", "update", "change"))
_METAVARIABLE = re.compile(r"[A-Z][A-Z0-9_]*(?:=\w*)?")
_OPENS_PAIR = re.compile(r"[(\[{][ \t]{0,8}\\{0,40}[\"']$")
_CLOSES_PAIR = re.compile(r"\\{0,40}[\"'][ \t]{0,8}[)\]}]")


def notation_value(text: str, start: int, end: int, name: str) -> tuple[int, int] | None:
    """Return start and end of the value of the name at `text[start:end]`, or None."""
    after = text[end]
    if after in "> \t<" and _IN_TAG.search(text[max(0, start - 66) : start]):
        element = _ELEMENT.match(text, end)
        close = text.find("<", element.end(), element.end() + 4096) if element else -1
        if element is not None and close > 0:
            return element.end(), close
    following = _NAME_THEN_VALUE.match(text, end)
    if following is not None:  # - name: DB_PASSWORD\n  value: ...
        return quoted_value(text, following.end()) or bare_word(text, following.end())
    if name.startswith("-") and after in " \t":
        gap = _GAP.match(text, end)
        at = gap.end() if gap else end
        return None if text[at : at + 1] == "-" else quoted_value(text, at) or _argument(text, at)
    if after in "\"'\\" and not text.startswith("\\t", end):
        return _after_quoted_name(text, start, end)
    if after == "<":
        element = _ELEMENT.match(text, end)
        return bare_word(text, element.end()) if element else None
    if after in "({":
        call = _CALL.match(text, end)
        span = quoted_value(text, call.end()) if call else None
        words = split_name(name)
        is_setter = words[0] in _SETTERS or words == ["password"]
        return span if span and (is_setter or is_random(text[slice(*span)])) else None
    cell = _NEXT_CELL.match(text, end)
    if cell is not None:
        span = quoted_value(text, cell.end()) or bare_word(text, cell.end())
        return span if span and any(map(str.isdigit, text[slice(*span)])) else None
    return None


def _after_quoted_name(text: str, start: int, end: int) -> tuple[int, int] | None:
    """Return start and end of the value of a quoted name: pairs, attributes, parts of forms."""
    pair = _PAIR.match(text, end)
    if pair is not None:
        span = quoted_value(text, pair.end())
        if span is None or _IS_NAME.match(text, span[1]):
            return None
        value = text[slice(*span)]
        if classify_name(value) and not any(map(str.isdigit, value)):
            return None  # the next name of a list
        if "alue" in pair.group() or text[start] == "-" or looks_like_password(value):
            return span
        opens_pair = _OPENS_PAIR.search(text[max(0, start - 50) : start])
        return span if opens_pair and _CLOSES_PAIR.match(text, span[1]) else None
    part = _FORM_PART.match(text, end)
    if part is not None:
        return bare_word(text, part.end())
    block = _HCL.match(text, end)
    if block is not None:
        return quoted_value(text, block.end())
    tag = _TAG.match(text, end)
    if tag is None or not _NAME_ATTRIBUTE.search(text[max(0, start - 90) : start]):
        return None
    return quoted_value(text, tag.end()) or bare_word(text, tag.end())


def _argument(text: str, at: int) -> tuple[int, int] | None:
    """Return start and end of a flag's argument, unless it is a metavariable (`--token TOKEN`)."""
    span = bare_word(text, at)
    if span is None or _METAVARIABLE.fullmatch(text, *span):
        return None
    return None if text[slice(*span)].lower() in SENTENCE_WORDS else span
