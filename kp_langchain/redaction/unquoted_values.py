"""Unquoted values, as opposed to code, templates and prose."""

from __future__ import annotations

import re

from kp_langchain.redaction.extents import Extent, bare_word
from kp_langchain.redaction.field_names import (
    SensitiveField,
    classify_name,
    split_name,
    word_set,
)
from kp_langchain.redaction.lazy_pattern import lazy_pattern
from kp_langchain.redaction.values import (
    NEVER_WORDS,
    SENTENCE_WORDS,
    is_phrase,
    is_placeholder,
    looks_like_password,
)

_KEYWORDS = word_set("await new yield async lambda not typeof this self impl mut dyn void const")
_HOLDERS = word_set("self cls this args config settings get load new read")
_OPENS_CALL = lazy_pattern(r"[(\[]|<(?:[A-Z&]|string|number|boolean|any)")
_IDENTIFIER = lazy_pattern(r"[A-Za-z_][\w.?:]*")
_LINE_START = lazy_pattern(r"(?:\A|[\n\r])[ \t>*#\-]{0,40}(?:export )?\Z")
_LINE = lazy_pattern(r"[^\n\r\\\"'{}<>;]{1,200}")
_DOTTED = lazy_pattern(r"[A-Za-z_]+(?:\.[A-Za-z_]+)+")
_ANNOTATED = lazy_pattern(r"[ \t]{1,4}(?:\||=)[ \t]")
_ARROW = lazy_pattern(r"[ \t]{0,4}(?:->|=>|\u2192)")
# A comment, another field, or what the value became.
_COMMENT = lazy_pattern(
    r"[ \t]+(?:#|//|;|--[ \t]|->|=>|\u2192|[-=]\Z).*|,[ \t]{1,4}[\w.\-]{1,64}[:=][ \t].*"
)


def unquoted_value(
    text: str,
    at: int,
    start: int,
    assignment: re.Match[str],
    name: str,
    field: SensitiveField,
) -> Extent | None:
    """Return start and end of the unquoted value at `at`, unless it is code, a template or prose.

    Args:
        text: The whole text.
        at: Where the value would start.
        start: Where the field name starts.
        assignment: The match of the text between name and value, with the group "sign".
        name: The field name.
        field: What the name says about its value.
    """
    span = bare_word(text, at)
    if span is None:
        return None
    value = text[slice(*span)]
    if _OPENS_CALL.match(text, span[1]) and _IDENTIFIER.fullmatch(value):
        return None
    if value == "$" or _DOTTED.fullmatch(value) or "://" in value or _is_other_name(value):
        return None
    if assignment["dash"] and _ARROW.match(text, span[1]):
        return None  # a chain: password -> hash -> database
    if assignment["dash"] and not looks_like_password(value):
        return span if field.kind in ("otp", "pin", "cvv") and value.isdigit() else None
    if value in _KEYWORDS and text[span[1] : span[1] + 1] == " ":
        return None
    has_space = assignment["sign"] == ":" and assignment.end() > assignment.end("sign")
    is_sentence = not name.isascii() or text[span[1] : span[1] + 1] == " "
    if is_sentence and not value.isascii() and not any(map(str.isdigit, value)):
        return None  # in another script
    if has_space and value.lower() in SENTENCE_WORDS:
        return None
    if has_space and _ANNOTATED.match(text, span[1]):
        return None  # name: Type | None = ...
    if field.kind in NEVER_WORDS:
        return span
    if starts_line(text, start) and (has_space or text[assignment.start("sign") - 1] == " "):
        return _words_of_line(text, span, has_space=has_space)
    return span


def _words_of_line(text: str, span: Extent, *, has_space: bool) -> Extent | None:
    """Extend the value `span` to the end of its line, a comment and other fields left out; None if that is prose.

    A line of more than six words, or one that starts with a placeholder, does not extend it.
    """
    at = span[0]
    line = _LINE.match(text, at)
    content = _COMMENT.sub("", line.group()).rstrip(" \t,") if line else ""
    words = content.split()
    if at + len(content) <= span[1] or len(words) > 6 or is_placeholder(words[0]):
        return span
    if has_space and not is_phrase(content) and not looks_like_password(text[slice(*span)]):
        return None
    return at, at + len(content.rstrip())


def starts_line(text: str, start: int) -> bool:
    """Return whether only indentation precedes `start` on its line."""
    return _LINE_START.search(text, max(0, start - 48), start) is not None


def _is_other_name(value: str) -> bool:
    """Return whether an unquoted value is a variable: `token=userToken`, `key=get_key`."""
    words = split_name(value)
    if any(map(str.isdigit, value)) or len(words) < 2 or _IDENTIFIER.fullmatch(value) is None:
        return False
    return words[0] in _HOLDERS or classify_name(value) is not None
