"""Text of a stored run, quoted so that a prompt that holds it keeps its structure, and counted.

What a run left may have been written by anyone: by a web page, a mail, or whoever gave the task. In
a prompt it must not end the record it belongs to, begin the turn of another speaker, or hide.
"""

from __future__ import annotations

import json
import re
from typing import Any

from kp_langchain.text import INVISIBLE, printable
from kp_langchain.values import map_texts, plain

_LESS, _MORE, _BAR = "[<\uff1c\ufe64]", "[>\uff1e\ufe65]", "[|\uff5c\uffe8]"
_ROLE = (
    "human|user|assistant|system|developer|ai|model|bot|tool|function|observation|instructions?"
    "|response"
)
_TAG = (
    rf"{_ROLE}|(?:{_ROLE}|admin|operator|important)_\w{{1,30}}|s|bos|eos|pad|unk|mask|sys|inst|start_of_turn|end_of_turn|important|information"
    "|tools|functions|invoke|parameters?|think|thinking|answer|examples?|context|documents?|records?|prompt"
    r"|antml:\w{1,40}"
)
_BRACKETED = rf"inst|sys|(?:{_ROLE})(?:_\w{{1,30}})?|available_tools|prefix|suffix|middle"
_LONG_LESS = re.compile(f"{_LESS}{{3,}}")
_LONG_MORE = re.compile(f"{_MORE}{{3,}}")
_BEGIN_TOKEN = re.compile(rf"{_LESS}\s{{0,3}}{_BAR}")
_END_TOKEN = re.compile(rf"{_BAR}\s{{0,3}}{_MORE}")
_MARKER_TAG = re.compile(
    rf"{_LESS}(\s{{0,3}}/?\s{{0,3}}(?:{_TAG})\b[^<>\uff1c\uff1e\ufe64\ufe65]{{0,80}}){_MORE}?",
    re.IGNORECASE,
)
_MARKER_BRACKET = re.compile(
    rf"[\[\uff3b](\s{{0,3}}/?\s{{0,3}}(?:{_BRACKETED})\s{{0,3}})[\]\uff3d]", re.IGNORECASE
)
_TURN = re.compile(
    r"(^|[\n\r\v\f\x85\u2028\u2029\"]|\\[nr])[ \t>#*_-]{0,20}"
    rf"({_ROLE})[ \t*_]{{0,5}}[:\uff1a][*_]{{0,3}}",
    re.IGNORECASE,
)
# A text without any of these has no marker.
_HINT = re.compile("[<>\\[:\uff1a\uff1c\uff1e\uff3b\ufe64\ufe65]")
_ELLIPSIS = "…"
_HEAD_SHARE = 0.7
_SHORT_LEAF_CHARS = 24  # dates, numbers and most ids are shorter
_MOST_ITEMS = (8, 4, 2, 1)
_INPUT_CHARS = 2_000
_UNREAD_FACTOR = 2  # of a longer text, so many times its limit are read: some of it is dropped


def clean_line(value: object, limit_chars: int) -> str:
    """Return a text as one line without markers and invisible characters.

    Args:
        value: The text; anything else counts as an empty one.
        limit_chars: Its characters at most. Of a longer text both ends stay.
    """
    text = value if isinstance(value, str) else ""
    return both_ends(" ".join(_clean(text, limit_chars).split()), limit_chars)


def clean_input(value: object) -> Any:
    """Return the input of a tool, or any other value, as plain JSON-like data with clean texts.

    It has two thousand characters at most. Line feeds and tabs stay in its texts.
    """
    return map_texts(plain(value, _INPUT_CHARS), lambda text: _clean(text, _INPUT_CHARS))


def quoted_text(line: str, limit_chars: int) -> str:
    """Return a line of `clean_line` as a JSON string, shortened before it is written."""
    return json.dumps(both_ends(line, limit_chars), ensure_ascii=False)


def quoted_input(value: Any, limit_chars: int) -> str:
    """Return a value of `clean_input` as JSON of one line with at most `limit_chars` characters.

    Long texts in it are shortened first, then items are left out.
    """
    text = json.dumps(value, ensure_ascii=False)
    leaf_chars = limit_chars
    while len(text) > limit_chars and leaf_chars > _SHORT_LEAF_CHARS:
        leaf_chars = max(leaf_chars // 2, _SHORT_LEAF_CHARS)
        text = json.dumps(_shorten(value, leaf_chars, _INPUT_CHARS), ensure_ascii=False)
    for most_items in _MOST_ITEMS:
        if len(text) <= limit_chars:
            return text
        short_value = _shorten(value, _SHORT_LEAF_CHARS, most_items)
        text = json.dumps(short_value, ensure_ascii=False)
    return text if len(text) <= limit_chars else f'"{_ELLIPSIS}"'


def without_markers(text: str) -> str:
    """Return a text without what marks turns, special tokens, and the ends of examples in prompts.

    What marked them becomes a word in parentheses. Invisible characters are left out.
    """
    if not text.isascii():
        text = INVISIBLE.sub("", text)
    if not _HINT.search(text):
        return text
    text = _TURN.sub(r"\1(\2)", text)
    text = _MARKER_TAG.sub(r"(\1)", _MARKER_BRACKET.sub(r"(\1)", text))
    text = _END_TOKEN.sub(")", _BEGIN_TOKEN.sub("(", text))
    return _LONG_MORE.sub(")", _LONG_LESS.sub("(", text))


def both_ends(text: str, limit_chars: int) -> str:
    """Return a text, or its beginning and its end with an ellipsis between."""
    if len(text) <= limit_chars:
        return text
    room = max(limit_chars - 1, 0)
    head = round(room * _HEAD_SHARE)
    return f"{text[:head]}{_ELLIPSIS}{text[len(text) - room + head :]}"


def _clean(text: str, limit_chars: int) -> str:
    text = without_markers(both_ends(text, limit_chars * _UNREAD_FACTOR))
    if text.replace("\n", "").replace("\t", "").isprintable():
        return text
    return printable(text, keep="\n\t")


def _shorten(value: Any, leaf_chars: int, most_items: int) -> Any:
    """Return a value with texts cut to `leaf_chars`, and containers to `most_items`."""
    if isinstance(value, str):
        return both_ends(value, leaf_chars)
    if isinstance(value, dict):
        names = list(value)
        short: dict[str, Any] = {
            both_ends(name, leaf_chars): _shorten(value[name], leaf_chars, most_items)
            for name in names[:most_items]
        }
        return short | ({_ELLIPSIS: len(names) - most_items} if names[most_items:] else {})
    if isinstance(value, list):
        items = [_shorten(item, leaf_chars, most_items) for item in value[:most_items]]
        return [*items, _ELLIPSIS] if value[most_items:] else items
    return value


# ------------------------------------------------------------------ tokens

# Each match counts as one token: four lower-case letters, or two after a digit; any other
# character; a second blank, or a blank after a character beyond ASCII.
_PIECE = re.compile(r"(?<=[0-9])[a-z]{1,2}|[a-z]{1,4}|[^a-z ]| (?= )|(?<=[^\x00-\x7f]) ")
# Characters that a vocabulary may lack are one token for each of their bytes in UTF-8. Han, kana
# and Hangul count as two tokens, other characters of three bytes as three.
_THREE_BYTES = re.compile("[\u0800-\uffff]")
_RARE = re.compile("[\u0800-\u1fff\ua000-\uabff]")
_FOUR_BYTES = re.compile("[\U00010000-\U0010ffff]")


def estimate_tokens(text: str) -> int:
    """Return a number of tokens that the tokenisers of language models rarely exceed.

    For ordinary text, source code and JSON it is more than they count. A text of random letters and
    digits alone, such as a list of ids, may have more tokens than this.

    Args:
        text: Any text.
    """
    tokens = len(_PIECE.findall(text))
    if not text.isascii():
        tokens += len(_THREE_BYTES.findall(text)) + len(_RARE.findall(text))
        tokens += 3 * len(_FOUR_BYTES.findall(text))
    return tokens
