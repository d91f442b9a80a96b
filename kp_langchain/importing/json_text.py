"""Reading JSON that anybody may have written."""

from __future__ import annotations

import json
from typing import Any

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
