"""Reading JSON that anybody may have written."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

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
