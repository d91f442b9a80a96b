"""Texts of others: made safe to show, read as JSON, and compared with the names that are known.

Text from a run, a registry or a file may be hostile: a line feed in it forges a log line, an escape
sequence controls the terminal, a bidirectional character reorders what is displayed.
"""

from __future__ import annotations

import difflib
import json
import re
import unicodedata
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pydantic import ValidationError

INVISIBLE = re.compile(
    "[\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u202a-\u202e\u2060-\u206f"
    "\u3164\ufe00-\ufe0f\ufeff\uffa0\U000e0000-\U000e0fff]"
)
"""Soft hyphens, zero-width and bidirectional characters, fillers, variation selectors, and tags."""

_REPLACEMENT = "\ufffd"
_ASTRAL = 0x10000
_HEAD_SHARE = 0.7  # of a text that is cut in its middle
_UUID = re.compile("[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.IGNORECASE)
_IN_JSON = re.compile(r"[^\x20-\x7e]")


def printable(text: str, *, keep: str = "") -> str:
    """Return `text` with every unprintable character replaced.

    White space of any kind, also line feeds and tabs, becomes a blank. Control and format
    characters (bidirectional ones too), private-use and unassigned ones, and lone surrogates become
    U+FFFD.

    Args:
        text: The text.
        keep: Characters that stay, such as line feeds.
    """
    if text.isprintable():
        return text
    return "".join(
        char if char.isprintable() or char in keep else _replacement(char) for char in text
    )


def one_line(value: object, limit_chars: int) -> str:
    """Return a value as at most `limit_chars` characters of one printable line."""
    text = value if isinstance(value, str) else str(value)
    # Cut first: the rest may be long, and is not shown.
    cut = text if len(text) <= limit_chars else text[: limit_chars - 1] + "…"
    return printable(cut)


def count_text(number: int, noun: str, plural: str = "") -> str:
    """Return a number with its noun, such as `1 run` or `1,234 runs`."""
    return f"{number:,} {noun if number == 1 else plural or noun + 's'}"


def bounded_text(number: int, most: int, noun: str) -> str:
    """Return a number that was counted no further than to one more than `most`, with its noun."""
    text = count_text(min(number, most), noun)
    return f"more than {text}" if number > most else text


def counts_text(counts: Mapping[str, int]) -> str:
    """Return counts by name, the highest first, such as `email 3, phone 1`; "" for none."""
    in_order = sorted(counts.items(), key=lambda pair: (-pair[1], pair[0]))
    return ", ".join(f"{name} {count:,}" for name, count in in_order)


def both_ends(text: str, limit_chars: int) -> str:
    """Return a text, or its beginning and its end with an ellipsis between.

    Args:
        text: Any text.
        limit_chars: Characters of the result at most.
    """
    if len(text) <= limit_chars:
        return text
    room = max(limit_chars - 1, 0)
    head = round(room * _HEAD_SHARE)
    return f"{text[:head]}…{text[len(text) - room + head :]}"


def first_fault(error: ValidationError) -> str:
    """Return what is wrong and where, without the value, which the text of the error quotes."""
    first = error.errors(include_url=False, include_input=False, include_context=False)[0]
    place = ".".join(map(str, first["loc"]))
    more = error.error_count() - 1
    return (
        f"{place}{': ' if place else ''}{first['msg'].removeprefix('Value error, ')}"
        f"{f' (and {more} more)' if more else ''}"
    )


def format_against_threshold(value: float, threshold: float) -> str:
    """Return a value with three decimals, or as many as tell it from a threshold it is below."""
    for digits in range(3, 9):
        text = f"{value:.{digits}f}"
        if value >= threshold or text != f"{threshold:.{digits}f}":
            return text
    return f"{value!r}"


def short_id(trace_id: str) -> str:
    """Return the id of a trace or pattern for a list.

    It is the first 8 characters of a UUID, or up to 20 of another id: enough to look it up, unless
    another id has the same beginning.
    """
    text = trace_id.removeprefix("kp:trace:").removeprefix("kp:pattern:")
    return one_line(text[: 8 if _UUID.fullmatch(text) else 20], 20)


def printable_json(text: str) -> str:
    r"""Return JSON with `\uXXXX` for characters that cannot be seen; its meaning is unchanged."""
    if text.isascii() and text.isprintable():
        return text
    return _IN_JSON.sub(_escape, text)


def _replacement(char: str) -> str:
    return " " if char in "\t\n\r\v\f\x85" or unicodedata.category(char)[0] == "Z" else _REPLACEMENT


def _escape(match: re.Match[str]) -> str:
    char = match.group()
    if char.isprintable() and not INVISIBLE.match(char):
        return char
    code = ord(char)
    if code < _ASTRAL:
        return f"\\u{code:04x}"
    code -= _ASTRAL
    return f"\\u{0xD800 + (code >> 10):04x}\\u{0xDC00 + (code & 0x3FF):04x}"


# ------------------------------------------------------------------ JSON

_BLANK = re.compile(r"\s*")
_INTEGER_DIGITS = 600  # Python refuses to read integers of thousands of digits


def read_json(text: str | bytes) -> Any:
    """Return the value of a JSON text.

    Numbers that JSON does not know, such as NaN, become their names; integers of hundreds of digits
    become text.

    Raises:
        ValueError: It is not valid JSON, or too deeply nested; the message says which.
    """
    try:
        return json.loads(text, parse_constant=str, parse_int=_integer)
    except RecursionError:
        raise ValueError("nested too deeply") from None
    except ValueError:
        raise ValueError("not valid JSON") from None


def read_documents(content: bytes | bytearray) -> Iterator[tuple[Any, int, str]]:
    """Yield the values of JSON texts that follow each other.

    Yields:
        Each value, and the index of the line where it begins; of the first that cannot be read,
        with which the reading ends, also why.
    """
    try:
        text = content.decode()
    except UnicodeDecodeError:
        yield None, 0, "not valid JSON: it is not UTF-8"
        return
    decoder = json.JSONDecoder(parse_constant=str, parse_int=_integer)
    position, number = 0, 0
    while position < len(text):
        try:
            value, end = decoder.raw_decode(text, position)
        except RecursionError:
            yield None, number, "nested too deeply"
            return
        except json.JSONDecodeError as error:
            number += text.count("\n", position, error.pos)
            yield None, number, f"not valid JSON: {error.msg}"
            return
        yield value, number, ""
        blank = _BLANK.match(text, end)
        after = end if blank is None else blank.end()
        number += text.count("\n", position, after)
        position = after


def json_or_text(value: Any) -> Any:
    """Return the structure that a JSON text holds; any other value as it is."""
    if not isinstance(value, str) or value.lstrip()[:1] not in ("{", "["):
        return value
    try:
        return read_json(value)
    except ValueError:
        return value


def _integer(digits: str) -> int | str:
    return int(digits) if len(digits) <= _INTEGER_DIGITS else digits


# ------------------------------------------------------------------ known names

_LONGEST_NAME_CHARS = 100
# One letter added, left out, replaced or swapped, in names of five letters or more.
_SIMILARITY_MIN = 0.8


def near_name(name: str, choices: Iterable[str]) -> str | None:
    """Return the known name that `name` is probably a misspelling of.

    Case and separators make no difference. A known name with an addition, such as `finance_eu`,
    counts as a name of its own.

    Args:
        name: The name.
        choices: The known names.

    Returns:
        None if `name` is known itself, or similar to no known name.
    """
    return _near_name(name, frozenset(choices))


def near_key(key: str, choices: Iterable[str]) -> str | None:
    """Return the known key that is most similar to an unknown key; None if none is similar.

    Suggests more readily than `near_name`, because an unknown key is a mistake in any case.
    """
    return next(iter(difflib.get_close_matches(key.lower(), choices, n=1)), None)


@lru_cache(maxsize=1000)
def _near_name(name: str, choices: frozenset[str]) -> str | None:
    if name in choices or len(name) > _LONGEST_NAME_CHARS:
        return None
    normal = _normalise(name)
    by_normal_form = {_normalise(other): other for other in sorted(choices, reverse=True)}
    by_normal_form.pop("", None)
    matches = difflib.get_close_matches(normal, by_normal_form, n=1, cutoff=_SIMILARITY_MIN)
    if not matches or _is_extension(normal, matches[0]):
        return None
    return by_normal_form[matches[0]]


def _normalise(name: str) -> str:
    return re.sub(r"[\W_]+", "_", name.casefold()).strip("_")


def _is_extension(longer: str, name: str) -> bool:
    """Return whether `longer` is `name` with a digit, a word or two letters before or after it."""
    before, match, after = longer.partition(name)
    addition = before + after
    return bool(match and addition) and (len(addition) > 1 or not addition.isalpha())
