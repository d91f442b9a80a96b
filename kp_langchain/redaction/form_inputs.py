"""Secrets that are typed into a form: browser code, and sentences about it.

Such as `page.fill("#password", "...")`, `get_by_label("Password").fill("...")`, and `type "..." into
the password field`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from kp_langchain.redaction.extents import quoted_value
from kp_langchain.redaction.field_names import classify_name
from kp_langchain.redaction.finders import Finder
from kp_langchain.redaction.spans import Span
from kp_langchain.redaction.structures import element_field
from kp_langchain.redaction.values import is_sensitive

_VERBS = (
    "fill type typetext type_text send_keys sendkeys setvalue set_value press_sequentially "
    "presssequentially input_text inputtext enter_text entertext fillfield fill_field keyboard_type "
    "val setinputvalue change write"
).split()
_CALL = re.compile(
    rf"(?<![a-z_])(?:{'|'.join(_VERBS)})\(|(?<=\.)value[ \t]?=(?!=)|(?<![a-z_])fill_in[ (]"
)
_BEFORE_VALUE = re.compile(
    r"\s{0,40}(?:(?:with|text|value)[:=]\s{0,4})?(?:\{\s?target:\s?\{\s?value:\s?|[\w.]{1,60}\()?"
    r"(?=[\"'`])"
)
_BETWEEN = re.compile(r"[\"'`]?[\s),\]]{1,40}|[\"'`][ \t]{1,4}(?=with:)")
_STATEMENT_START = re.compile(r"[\n;](?![ \t]*\.)")
_MAX_STATEMENT = 240
_LAST_STRING = re.compile(r".*[(\[=,:][ \t]?([\"'`])(.{1,160}?)\1[)\]} ]*\Z", re.DOTALL)
_KEYS = re.compile(r"\{\w{1,12}\}\Z")  # cypress writes type("...{enter}")

_TEXT_BOX = re.compile(
    r"<label[^<>\n]{0,80}>(?P<label>[^<>\n]{2,40})</label>\s{0,40}<input[^<>\n]{0,200}?\svalue="
    r"[\"'](?P<input>[^\"'\n]{1,200})|"
    r"(?:textbox|searchbox|spinbutton|combobox)[ \t]\"(?P<element>[^\"\n]{1,80})\""
    r"(?:[ \t]\[[^\]\n]{1,40}\]){0,6}"
    r"(?::[ \t]|[ \t]value=)\"?(?P<value>[^\s\"]{1,200})"
)
_SENTENCE = re.compile(
    r"\b(?:typ|enter|input|fill|wr[io]t|put|past|set)\w{0,4}[ \t]"
    r"(?:in[ \t])?(?:the[ \t])?(?:text[ \t])?"
    r"(?P<first>[\"'`])(?P<a>[^\"'`\n]{1,200})(?P=first)[ \t]"
    r"(?P<into>(?:in|into|for|on|as|with)\b)[^\"'`\n]{0,24}?(?P<b>[\"'`][^\"'`\n]{1,80}[\"'`]"
    r"|\b(?:the[ \t])?(?!the\b|your\b|my\b|a\b)[\w\-]{1,24}(?:[ \t][\w\-]{1,24}){0,2})"
)
_SENTENCE_WORDS = tuple(
    f"{quote} {word} " for quote in "\"'`" for word in ("in", "into", "for", "on", "as", "with")
)


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


def _find_text_boxes(text: str, _low: str) -> Iterator[Span]:
    """Yield what text boxes contain, in HTML and in `- textbox "Password": ...` of browsers."""
    for match in _TEXT_BOX.finditer(text):
        value = "value" if match["value"] else "input"
        field = element_field(match["element"] or match["label"], classify_name)
        if field is not None and field[0] and is_sensitive(match[value], field[1], field[0]):
            yield Span(*match.span(value), field[0].kind)


def _find_sentences(text: str, low: str) -> Iterator[Span]:
    for match in _SENTENCE.finditer(low):
        value, element = ("b", "a") if match["into"] == "with" else ("a", "b")
        field = element_field(match[element], classify_name)
        quoted = text[slice(*match.span(value))].strip("\"'`")
        if field is None or field[0] is None or " " in quoted:
            continue
        if is_sensitive(quoted, field[1], field[0]):
            start = text.index(quoted, match.start(value))
            yield Span(start, start + len(quoted), field[0].kind)


FINDERS = (
    Finder(
        _find_calls,
        ("('", '("', "(`", "='", '="', "':", '":'),
        (*(f"{verb}(" for verb in _VERBS), ".value", "fill_in"),
        is_named=True,
    ),
    Finder(
        _find_text_boxes,
        ('"',),
        ("textbox", "searchbox", "spinbutton", "combobox", "</label>"),
        is_named=True,
    ),
    Finder(_find_sentences, ("'", '"', "`"), _SENTENCE_WORDS, is_named=True),
)
