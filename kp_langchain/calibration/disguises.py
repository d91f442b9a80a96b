"""Reveals text that a model can read and a person or a word search would miss.

Instructions are disguised by Greek, Cyrillic and small capital letters that look alike, by
characters without width, by invisible tags of Unicode, by encodings, and by places that a page does
not show.
"""

from __future__ import annotations

import base64
import html
import re
import unicodedata
from collections.abc import Iterator
from contextlib import suppress
from itertools import islice
from typing import NamedTuple

from kp_langchain.text import INVISIBLE

INVISIBLE_TEXT = "invisible text"
"""The disguise of a text that is written in characters that are not displayed."""

_END_CHARS = 40_000  # of a longer text, so much is read at each end
_MOST_PARTS = 100  # hidden or encoded parts of a text that are read one by one
_PART_CHARS = 4000
_FEWEST_SECRET_CHARS = 8

_ACCENTS = re.compile("[\u0300-\u036f]")
_LOOK_ALIKE = {
    "a": "\u0430\u03b1\u0251\u1d00", "b": "\u0432\u0299", "c": "\u0441\u1d04",
    "d": "\u0501\u1d05", "e": "\u0435\u03b5\u1d07", "g": "\u0261\u0581",
    "h": "\u043d\u04bb\u029c", "i": "\u0456\u03b9\u0131\u026a", "j": "\u0458\u1d0a",
    "k": "\u043a\u03ba\u1d0b", "l": "\u029f\u04cf", "m": "\u043c\u1d0d", "n": "\u03b7\u0274",
    "o": "\u043e\u03bf\u1d0f", "p": "\u0440\u03c1\u1d18", "q": "\u051b", "r": "\u0433\u0280",
    "s": "\u0455\ua731", "t": "\u0442\u03c4\u1d1b", "u": "\u03c5\u1d1c", "v": "\u03bd\u1d20",
    "w": "\u051d\u1d21", "x": "\u0445\u03c7", "y": "\u0443\u03b3\u028f", "z": "\u1d22",
}  # fmt: skip
_TO_LATIN = {ord(other): latin for latin, others in _LOOK_ALIKE.items() for other in others}
_LATIN = re.compile("[a-z]")
_OTHERS = re.compile(f"[{''.join(_LOOK_ALIKE.values())}]")
_NEITHER_LATIN = re.compile("[\u0370-\u052f]")
_WORD = re.compile(r"\w+")
_MOSTLY = 5

_DROPPED = '*`,"'
_DROPPED_BEYOND_ASCII = dict.fromkeys(map(ord, "\u201c\u201d\u201e\u00ab\u00bb\u300c\u300d"))
_APOSTROPHES = str.maketrans("\u2018\u2019\u02bc\u00b4", "''''")
_ESCAPE = re.compile(r"\\u([0-9a-fA-F]{4})")
_REPLACED = (
    *((mark, "") for mark in _DROPPED),
    ("''", "'"),
    ("n't ", " not "),
    ("n't", " not"),
    ("'re ", " are "),
    ("'ve ", " have "),
)

_STYLED = re.compile(
    r"<\w{1,20}+[^<>]{0,200}(?:display\s?:\s?none|font-size\s?:\s?0|opacity\s?:\s?0|visibility\s?:\s?hidden"
    r"|color\s?:\s?(?:#fff|white|transparent))[^<>]{0,200}>([^<]{1,4000})",
    re.IGNORECASE,
)
_MARKDOWN_COMMENT = re.compile(r"^\[[^\]\n]{1,20}\]:\s?(?:#|<>)\s?(.{1,4000})", re.MULTILINE)
_BASE64 = re.compile(r"[A-Za-z0-9+/_-]{24,}+={0,2}")
_LINE_CHARS = 60  # lines of base64 that belong together are longer
_TAGS = re.compile("[\U000e0020-\U000e007e]+")
_FLAG = re.compile("\U0001f3f4[\U000e0020-\U000e007e]{1,6}\U000e007f")
_SELECTORS = re.compile("[\ufe00-\ufe0f\U000e0100-\U000e01ef]{8,}")
_READABLE_SHARE = 0.85


class Reading(NamedTuple):
    """A text as it may be read.

    Attributes:
        words: The text in the form of `plain_words`.
        text: The text itself.
        disguise: How it is disguised; empty if it is not.
        is_hidden: Whether a reader would not see it.
    """

    words: str
    text: str
    disguise: str = ""
    is_hidden: bool = False


def plain_words(text: str) -> str:
    """Return a text in lower case without accents and without marks within sentences."""
    if not text.isascii():
        text = unicodedata.normalize("NFKD", INVISIBLE.sub("", text).translate(_APOSTROPHES))
        text = unicodedata.normalize("NFKC", _ACCENTS.sub("", text.casefold()))
        text = _with_latin_letters(_ACCENTS.sub("", text)).translate(_DROPPED_BEYOND_ASCII)
    text = text.lower()
    for old, new in _REPLACED:
        text = text.replace(old, new)
    return " ".join(text.split())


def readings(text: str) -> Iterator[Reading]:
    """Yield a text as it stands there, then what is hidden or encoded in it.

    Of a text of more than 80,000 characters, both ends are read.
    """
    if len(text) > 2 * _END_CHARS:
        text = f"{text[:_END_CHARS]} … {text[-_END_CHARS:]}"
    text = _without_escapes(text)
    yield Reading(plain_words(text), text)
    for part in _first_and_rest(_comments(text)):
        yield Reading(plain_words(part), part, "not shown on the page", is_hidden=True)
    for part in _first_and_rest(_decodings(text)):
        yield Reading(plain_words(part), part, "encoded", is_hidden=True)
    if not text.isascii():
        for part in _in_invisible_characters(text):
            yield Reading(plain_words(part), part, INVISIBLE_TEXT, is_hidden=True)


def _first_and_rest(parts: Iterator[str]) -> Iterator[str]:
    """Yield the first parts one by one, and all others as one text."""
    yield from islice(parts, _MOST_PARTS)
    if rest := "\n".join(parts):
        yield rest


def _without_escapes(text: str) -> str:
    if "\\u" in text:
        text = _ESCAPE.sub(lambda match: chr(int(match[1], 16)), text)
    if not text.isascii():  # two halves of a character become one; the model gets no lone half
        text = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    if "\\" in text:
        text = text.replace("\\n", "\n").replace("\\t", " ").replace('\\"', '"')
    return html.unescape(text) if "&" in text else text


def _with_latin_letters(text: str) -> str:
    """Return a text in lower case with Latin letters for others in words that mix them."""
    others = len(_OTHERS.findall(text))
    if not others or not _LATIN.search(text):
        return text
    if len(_LATIN.findall(text)) > _MOSTLY * len(_NEITHER_LATIN.findall(text)):
        return text.translate(_TO_LATIN)
    return _WORD.sub(
        lambda word: word[0].translate(_TO_LATIN) if _LATIN.search(word[0]) else word[0], text
    )


def _comments(text: str) -> Iterator[str]:
    """Yield what a page of HTML or Markdown holds but does not show."""
    start = text.find("<!--")
    while start >= 0:
        end = text.find("-->", start)
        if end < 0:
            yield text[start + 4 : start + _PART_CHARS]
            break
        yield text[start + 4 : min(end, start + _PART_CHARS)]
        start = text.find("<!--", end)
    if "]:" in text:
        yield from (match[1] for match in _MARKDOWN_COMMENT.finditer(text))
    if "style" in text.lower():
        yield from (match[1] for match in _STYLED.finditer(text))


def _decodings(text: str) -> Iterator[str]:
    """Yield what base64 encodes, if it is readable."""
    runs = _BASE64.findall(text)
    lines = [run for run in runs if len(run) >= _LINE_CHARS]
    for run in (*runs, *(["".join(lines)] if len(lines) > 1 else [])):
        digits = run.rstrip("=").replace("-", "+").replace("_", "/")
        # What is left has no more than two characters.
        whole = digits[: len(digits) // 4 * 4]
        with suppress(ValueError):  # it encodes no text
            part = base64.b64decode(whole).decode()
            if sum(map(str.isprintable, part)) > _READABLE_SHARE * len(part):
                yield part


def _in_invisible_characters(text: str) -> Iterator[str]:
    """Yield texts written in tags or in variation selectors."""
    tags = "".join(_TAGS.findall(_FLAG.sub("", text)))
    if len(tags) >= _FEWEST_SECRET_CHARS:
        yield "".join(chr(ord(tag) - 0xE0000) for tag in tags)[:_PART_CHARS]
    for match in islice(_SELECTORS.finditer(text), _MOST_PARTS):
        numbers = map(ord, match.group()[:_PART_CHARS])
        codes = (n - 0xFE00 if n < 0xFF00 else n - 0xE0100 + 16 for n in numbers)
        yield bytes(codes).decode(errors="replace")
