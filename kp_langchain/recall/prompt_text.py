"""Texts of runs as they may stand in a prompt: on one line, quoted, without marks of turns.

And how many tokens they have there.

Anyone may have written them: a web page, a mail, or whoever gave the task.
"""

from __future__ import annotations

import builtins
import json
import re
from functools import partial
from typing import Any

from kp_langchain.text import INVISIBLE, both_ends, printable
from kp_langchain.values import map_texts, plain

TOOL_NAME = re.compile(r"(?=.{1,64}\Z)[\w.-]+(?:[:/][\w.-]+)*", re.ASCII)
"""What names of tools look like that may stand in a prompt as they are."""

_TOOL_CHARS = 60
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
_SHORT_TEXT_CHARS = 24  # dates, numbers and most ids are shorter
_READ_INPUT_CHARS = 2_000
_UNREAD_FACTOR = 2  # of a longer text, so many times its limit are read: some of it is dropped


_ERROR_NAME = re.compile(r"\b[A-Z][A-Za-z]{2,40}\b", re.ASCII)
_ERROR_NAMES = frozenset(
    name
    for name, value in vars(builtins).items()
    if isinstance(value, type) and issubclass(value, Exception)
) | {"HTTPError", "HTTPStatusError", "JSONDecodeError", "ToolException", "ValidationError"}
_ERROR_CHARS = 200


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


def tool_text(name: str) -> str:
    """Return the name of a tool: as it is if it looks like one, and else quoted."""
    if TOOL_NAME.fullmatch(name):
        return name
    return quoted(clean_line(name, _TOOL_CHARS), _TOOL_CHARS)


def code_span(text: str) -> str:
    """Return a clean line as code in Markdown."""
    return f"`{text.replace('`', chr(39))}`"


def clean_input(value: Any) -> Any:
    """Return an input with texts that may stand in a prompt, of two thousand characters at most.

    Line feeds and tabs stay in its texts.
    """
    inputs = plain(value, _READ_INPUT_CHARS)
    return map_texts(inputs, partial(_clean, limit_chars=_READ_INPUT_CHARS))


def error_name(text: str) -> str:
    """Return the name of a known exception near the beginning of an error; "" without one."""
    words = _ERROR_NAME.findall(text[:_ERROR_CHARS])
    return next((word for word in words if word in _ERROR_NAMES), "")


def clean_line(value: object, limit_chars: int) -> str:
    """Return a text as one line without markers and invisible characters.

    Args:
        value: The text; anything else counts as an empty one.
        limit_chars: Its characters at most. Of a longer text both ends stay.
    """
    text = value if isinstance(value, str) else ""
    return both_ends(" ".join(_clean(text, limit_chars).split()), limit_chars)


def quoted(line: str, limit_chars: int) -> str:
    """Return a clean line as a JSON string, shortened before it is written."""
    return json.dumps(both_ends(line, limit_chars), ensure_ascii=False)


def quoted_input(value: Any, limit_chars: int) -> str:
    """Return a clean value as JSON of one line with at most `limit_chars` characters.

    Long texts in it are shortened first; if that is not enough, the JSON is cut, as a string.
    """
    text = json.dumps(value, ensure_ascii=False)
    text_chars = limit_chars
    while len(text) > limit_chars and text_chars > _SHORT_TEXT_CHARS:
        text_chars = max(text_chars // 2, _SHORT_TEXT_CHARS)
        short_value = map_texts(value, partial(both_ends, limit_chars=text_chars))
        text = json.dumps(short_value, ensure_ascii=False)
    if len(text) > limit_chars:
        text = quoted(text.replace('"', "'").replace("\\", "/"), limit_chars - 2)
    return text


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


def _clean(text: str, limit_chars: int) -> str:
    text = without_markers(both_ends(text, limit_chars * _UNREAD_FACTOR))
    if text.replace("\n", "").replace("\t", "").isprintable():
        return text
    return printable(text, keep="\n\t")
