"""Notations without `=` or `:` between name and value: flags, pairs, markup, forms, calls."""

from __future__ import annotations

import re
from typing import NamedTuple

from kp_langchain.redaction.extents import Extent, value_at
from kp_langchain.redaction.field_names import SensitiveField
from kp_langchain.redaction.values import SENTENCE_WORDS, is_evident, looks_like_password

_NEWLINE = r"(?:\r?\n|(?:\\{1,16}r)?\\{1,16}n)"
_BEFORE = 90
_LONGEST_ELEMENT = 4096


class _Notation(NamedTuple):
    """A notation.

    Attributes:
        link: What is between the name and the value. Its group "sure" says that any value is one;
            otherwise the value itself must look like one.
        before: What the text up to the first letter of the name ends with.
        end: What ends the value, if it is not a quoted string or a word.
    """

    link: re.Pattern[str]
    before: re.Pattern[str] = re.compile("")
    end: str = ""


def _link(expression: str) -> re.Pattern[str]:
    return re.compile(expression, re.VERBOSE)


_NOTATIONS = (
    # <password>V</password>
    _Notation(
        _link(r"(?P<sure>)(?:[ \t][^<>\n]{0,200})?>\s{0,64}(?=[^<>\s])"),
        re.compile(r"<[\w:.\-]{0,64}\Z"),
        end="<",
    ),
    # <key>password</key><string>V</string>
    _Notation(_link(r"(?P<sure>)</key>(?:\s|\\{1,16}[nrt]){0,64}<string>"), end="<"),
    # <input name="password" value="V">, <param name="password">V</param>
    _Notation(
        _link(
            r"""(?P<sure>\\{0,40}["'])
            (?: [^<>\n]{0,80}?\s(?:value|content|default)=(?=\\{0,40}["'])
            | [^<>\n]{0,80}>(?:\s{0,64}<value>)?(?=[^<>\s]))"""
        ),
        re.compile(
            r"(?:name|key|id|property|var|param|field|variable)=\\{0,40}[\"'][\w.]{0,64}\Z",
            re.IGNORECASE,
        ),
    ),
    # - name: PASSWORD
    #   value: V
    _Notation(
        _link(
            r"""(?P<sure>\\{0,16}["']?)(?:\r?\n|\\{1,16}n)[ \t]{0,40}["']?[vV]alue["']?:
            [ \t]{1,8}(?=\S)"""
        )
    ),
    # --password V, but not --password PASSWORD
    _Notation(
        _link(r"(?P<sure>)[ \t]{1,64}(?!-|[A-Z][A-Z0-9_]*(?:=\w*)?(?![^\s\]|)}]))"),
        re.compile(r"-\Z"),
    ),
    # ("password", "V"), {"name": "password", "value": "V"}, ["--password", "V"]
    _Notation(
        _link(
            r"""\\{0,40}["'][ \t]{0,8},\s{0,64}
            (?P<sure>(?:\\{0,40}["'])?[Vv]alue\\{0,40}["']?\s{0,8}[:=]\s{0,8})?(?=\\{0,40}["'])"""
        )
    ),
    # Content-Disposition: form-data; name="password"
    _Notation(
        _link(
            rf"(?P<sure>\\{{0,40}}\"){_NEWLINE}(?:[A-Z][^\r\n\\]{{0,80}}{_NEWLINE}){{0,2}}{_NEWLINE}"
        )
    ),
    # variable "password" { default = "V" }
    _Notation(
        _link(
            r"""(?P<sure>\\{0,40}")[ \t]{0,4}\{[^{}]{0,200}?default[ \t]{0,8}=[ \t]{0,8}
            (?=\\{0,40}")"""
        )
    ),
    # password("V"), std::string password{"V"}
    _Notation(_link(r"(?P<sure>(?!))?[({][ \t]{0,4}(?=[bfN]?\\{0,40}[\"'])")),
    # | password | V |
    _Notation(
        _link(
            r"(?P<sure>(?!))?[ \t]{0,40}(?:\|[ \t]{0,40}|\t|\\t|,(?=[A-Za-z0-9_+/=.\-]{16}))(?![ \t|])"
        )
    ),
)


def notation_value(text: str, start: int, end: int, field: SensitiveField) -> Extent | None:
    """Return start and end of the value of the name at `text[start:end]`, or None."""
    before = text[max(0, start - _BEFORE) : start + 1]
    for link, start_of_link, closing in _NOTATIONS:
        match = link.match(text, end)
        if match is None or not start_of_link.search(before):
            continue
        at = match.end()
        close = text.find(closing, at, at + _LONGEST_ELEMENT) if closing else 0
        extent = (at, close) if closing else value_at(text, at)
        if extent is None or close < 0:
            continue
        value = text[slice(*extent)]
        if match["sure"] is not None or before.endswith("-"):
            is_value = value.lower() not in SENTENCE_WORDS
        elif match.group()[0] in "({":
            is_value = is_evident(value, field)
        else:
            is_value = looks_like_password(value) or value.isdigit()
        if is_value:
            return extent
    return None
