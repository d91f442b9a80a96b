"""Telephone numbers: international by the plus sign, national by their grouping or a word before.

No numbering plan is consulted: almost every group of seven digits is a number in some country, so a
plan is useless if the country is unknown.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from kp_langchain.redaction.spans import (
    DIGITS,
    Span,
    class_table,
    occurrences,
    starts_word,
)

# Before a number: no word character, unless it ends an escape or a colour code.
FREE = r"(?:(?<![\w.])|(?<=\\[nrtf])|(?<=\[\dm)|(?<=\[\d\dm))"
_NOT_AFTER = r"(?<!\d[ .\-/])"
_PHONE = re.compile(
    # International: a plus sign, then 8 to 15 digits with single separators.
    rf"{FREE}(?<!\+)(?:\+[1-9](?:[ .\-/]{{0,2}}\(?\d\)?){{7,14}}"
    # Small countries: a country code of three digits and a short number.
    r"|\+(?:2[0-9]|37|38|42|50|59|6[789]|8[058]|9[679])\d[ \-]?\d{4,6}"
    # The same with 00 for the plus sign, written in groups.
    rf"|{_NOT_AFTER}00[1-9]\d{{0,3}}[ .\-/](?:[ .\-/]?\(?\d\)?){{7,12}}"
    # North America: area and exchange never begin with 0 or 1.
    rf"|{_NOT_AFTER}(?:1[ .\-])?(?:\([2-9]\d{{2}}\) ?[2-9]\d{{2}}[.\-]\d{{4}}"
    r"|[2-9]\d{2}([.\-])[2-9]\d{2}\1\d{4}|[2-9]\d{2} [2-9]\d{2}-\d{4})"
    rf"|{_NOT_AFTER}\d{{3}}-\d{{3}}-\d{{4}}"
    # An area code in brackets, but not the year of a citation.
    rf"|(?<![\w)\]])\((?!(?:19|20)\d\d\))0?\d{{2,4}}\)[ \-]?\d{{3,5}}[ \-]?\d{{3,4}}(?:[ \-]\d{{2,4}})?"
    # Russia and its neighbours with the domestic prefix 8.
    rf"|{_NOT_AFTER}8[ \-]?\(?\d{{3}}\)?[ \-]\d{{3}}[ \-]\d{{2}}[ \-]\d{{2}}"
    # National with a leading zero: in pairs, area code and number, or groups of 9 to 11 digits.
    rf"|{_NOT_AFTER}0[1-9](?:([ .])\d{{2}})(?:\2\d{{2}}){{3}}"
    rf"|{_NOT_AFTER}0\d{{2,4}}[ \-]\d{{6,8}}|{_NOT_AFTER}0\d{{2,4}}/\d{{5,8}}|{_NOT_AFTER}0[1-9][ \-]\d{{7,8}}"
    rf"|{_NOT_AFTER}0\d{{1,3}}-\d{{3,4}}-\d{{4}}|{_NOT_AFTER}0\d{{2,4}}[ \-]\d{{3,4}} \d{{3,4}}"
    rf"|{_NOT_AFTER}0\d{{2,4}}[ \-]\d{{3}} \d{{2}} \d{{2}}|{_NOT_AFTER}0\d{{2,3}} \d{{2}}-\d{{4}}-\d{{4}}"
    r")(?![\w])(?![.\-/]\d)",
    re.ASCII,
)

_PHONE_WORDS = (
    "phone",
    "tel",
    "mobile",
    "whatsapp",
    "fax",
    "gsm",
    "msisdn",
    "handy",
    "celular",
)
_PHONE_WORDS_NON_ASCII = (
    "телефон",
    "тел.",
    "电话",
    "電話",
    "手机",
    "手機",
    "携帯",
    "전화",
    "휴대폰",
    "teléfono",
    "móvil",
    "téléphone",
    "\u260e",
)
_CALL_WORDS = ("call ", "text me", "sms", "cell", "dial ", "reach me")
_NUMBER = r"(?P<number>\+?\(?\d(?:[ .\-/()]{0,2}\d){5,13})(?![\w\-]|[.,:]\d)"
# Digits, and the separators within a number.
NUMBER_CLASS = class_table(DIGITS + " .-/()")
SHORTEST_NUMBER = b"\1" * 6
_ANY_NUMBER = re.compile(r"\d(?:[ .\-/()]{0,2}\d){5}", re.ASCII)
_AFTER_PHONE_WORD = re.compile(
    r"(?:phone|tel(?:e(?:ph|f)on[oe]?)?|mobile|whatsapp|fax|gsm|msisdn|handy|celular|телефон|тел\.|[电電][话話]"
    r"|手[机機]|携帯|전화|휴대폰|tel[ée]fono|móvil|t[ée]l[ée]phone|\u260e)(?:_?(?:number|num|nr|no)|番号|号码|号|번호)?"
    rf"[\"'`]?(?: ?(?:number|num|nr|no)\.?)?(?: ?(?:is|at|on|under))?[ \t]{{0,2}}[.:=\uff1a]?[ \t]{{0,4}}[\"'`]?{_NUMBER}"
)
_AFTER_CALL_WORD = re.compile(
    r"(?:call|text|sms|dial|reach|cell)(?P<object> (?:me|us|him|her|them|back|mom|dad))?"
    rf"(?P<place>(?: (?:on|at|to|under))|:)?[ \t]{{1,3}}{_NUMBER}"
)
_DATE = re.compile(
    r"(?:19|20)\d\d[\-/.]?[01]\d[\-/.]?[0-3]\d|[0-3]?\d[\-/.][01]?\d[\-/.](?:19|20)\d\d|\d+\.\d+"
)


def find_phones(text: str, first: int, last: int) -> Iterator[Span]:
    """Yield the telephone numbers in `text[first:last]` that are recognised by their grouping."""
    for match in _PHONE.finditer(text, first, last):
        yield Span(*match.span(), "phone")


def find_announced_phones(text: str, low: str) -> Iterator[Span]:
    """Yield the numbers after a word such as "tel." in "tel. 512 345 678".

    Args:
        text: Any text; takes time linear in its length.
        low: The text in lower case, of the same length.
    """
    if _ANY_NUMBER.search(text) is None:
        return
    words = _PHONE_WORDS if text.isascii() else (*_PHONE_WORDS, *_PHONE_WORDS_NON_ASCII)
    for at in occurrences(low, words):
        if at and low[at - 1].isalpha() and low[at - 1].isascii() and low[at] in "thc":
            continue  # "hotel", "intel"
        match = _AFTER_PHONE_WORD.match(low, at)
        if match is not None and _DATE.fullmatch(match["number"]) is None:
            yield Span(*match.span("number"), "phone")
    for at in occurrences(low, _CALL_WORDS):
        if not starts_word(low, at):
            continue
        match = _AFTER_CALL_WORD.match(low, at)
        if match is None or _DATE.fullmatch(match["number"]):
            continue
        if match["object"] or match["place"] or any(sign in match["number"] for sign in " -("):
            yield Span(*match.span("number"), "phone")
