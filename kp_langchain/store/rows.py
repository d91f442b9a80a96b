"""Texts and JSON without the values that a database refuses."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel

from kp_langchain._logging import warn_once
from kp_langchain.errors import ConfigError

if TYPE_CHECKING:
    from kp_langchain.schema import ReasoningTrace

# PostgreSQL takes no NUL in text, and no engine takes a lone surrogate.
_UNSTORABLE = re.compile("[\x00\ud800-\udfff]")
_encode = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode


# SQLite takes 10^9 bytes in a row, PostgreSQL about as many in a value; a character takes up to 4.
_LONGEST_BODY_CHARS = 200_000_000
_LONGEST_TEXT_CHARS = 1_000_000
# The length to which each text in a larger body is cut.
_LONGEST_TEXT_IN_LARGE_BODY_CHARS = 10_000
_LONGEST_NAME_CHARS = 500  # PostgreSQL's indexes take 2,704 bytes
_LONGEST_ID_CHARS = 150  # because an index holds it beside a name
_BEGINNING_OF_LONGER_ID_CHARS = 85  # followed by 64 of its hash
_DEEPEST = 200
_MOST_BITS = 14_000  # about 4,300 digits, which Python refuses to read back


def clean_text(text: str) -> str:
    """Return `text` with every NUL and lone surrogate replaced by U+FFFD."""
    return _UNSTORABLE.sub("\ufffd", text)


def clean_name(text: str) -> str:
    """Return `text` as an indexed column takes it: `clean_text`, cut to 500 characters."""
    return clean_text(text[:_LONGEST_NAME_CHARS])


def short_key(text: str) -> str:
    """Return the value for `text` of a column that an index holds beside others.

    That is the text itself. One that is longer than 150 characters, or that no database takes, is
    cut and cleaned and ends in its hash, so that different texts stay different.
    """
    key = clean_text(text[:_LONGEST_ID_CHARS])
    if key == text:
        return key
    digest = sha256(text.encode(errors="surrogatepass")).hexdigest()
    return f"{key[:_BEGINNING_OF_LONGER_ID_CHARS]}~{digest}"


def trace_key(trace_id: str) -> str:
    """Return the value of the columns `trace_id` for a trace; see `short_key`."""
    return short_key(trace_id)


def clean_json(value: Any, *, longest_text: int | None = None) -> Any:
    """Return `value` as JSON that every engine takes; NaN and infinity become null.

    A short note replaces what JSON cannot hold: a container that contains itself, nesting deeper
    than 200, a number of thousands of digits, and a container that cannot be read.

    Args:
        value: Any value.
        longest_text: A note also replaces texts of more characters.
    """
    return _clean(value, longest_text, ())


def _clean(value: Any, longest_text: int | None, inside: tuple[int, ...]) -> Any:
    if isinstance(value, str):
        if longest_text is not None and len(value) > longest_text:
            return f"[left out: {len(value)} characters]"
        return clean_text(value)
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int):
        return (
            value if _is_writable(value) else f"[left out: a number of {value.bit_length()} bits]"
        )
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, bytes | bytearray):
        return _clean(value.decode(errors="replace"), longest_text, inside)
    if not isinstance(value, dict | list | tuple | set | frozenset):
        return f"<{type(value).__name__}>"
    if id(value) in inside:
        return "[left out: it holds itself]"
    if len(inside) >= _DEEPEST:
        return f"[left out: nested deeper than {_DEEPEST}]"
    inside = (*inside, id(value))
    try:
        if isinstance(value, dict):
            return {
                _clean_key(key): _clean(item, longest_text, inside) for key, item in value.items()
            }
        return [_clean(item, longest_text, inside) for item in value]
    except Exception:  # noqa: BLE001 - a foreign container may raise anything
        return f"[left out: a {type(value).__name__} that cannot be read]"


def _is_writable(number: int) -> bool:
    if number.bit_length() > _MOST_BITS:
        return False
    try:
        str(number)
    except ValueError:  # Python's own limit on digits may be set lower
        return False
    return True


class JsonText(str):
    """Already serialised JSON, which a column stores verbatim."""

    __slots__ = ()


def dumps(value: Any) -> str:
    """Return cleaned JSON as compact text; `JsonText` is returned as it is."""
    return value if isinstance(value, JsonText) else _encode(value)


def loads(text: str) -> Any:
    """Return what stored JSON says; text that is no JSON any more as it is.

    So one row that was changed outside is refused by whoever reads it, and stops no other row.
    """
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def json_text(value: Any) -> JsonText:
    """Return `value` as compact JSON, cleaned by `clean_json` if it has to be."""
    try:
        text = _encode(value)
        text.encode()  # fails on a lone surrogate
        if "\\u0000" not in text:
            return JsonText(text)
    except (ValueError, TypeError, RecursionError):
        pass
    return JsonText(_encode(clean_json(value)))


def check_page(limit: int | None, offset: int) -> None:
    """Raise `ConfigError` if the bounds of a list are negative."""
    if offset < 0 or (limit is not None and limit < 0):
        raise ConfigError(f"limit={limit} and offset={offset} must not be negative")


def folded(text: str) -> str:
    """Return a text as it is searched: case folded, white space as single blanks."""
    return clean_text(" ".join(text.casefold().split()))


def with_outcome_of(trace: Any, row: Mapping[Any, Any]) -> Any:
    """Return a stored trace with the outcome that its row has, which verdicts may have changed.

    Args:
        trace: The trace as JSON-like values, as it was recorded. Left as it is if it is damaged.
        row: The columns `success`, `confidence`, `score` and `validated_by`.
    """
    if not isinstance(trace, dict):
        return trace
    metadata, outcome = trace.get("metadata"), trace.get("outcome")
    if not (isinstance(metadata, dict) and isinstance(outcome, dict)):
        return trace
    metadata |= {"success": row["success"], "quality_score": row["score"]}
    if row["validated_by"] is not None:
        metadata["validated_by"] = row["validated_by"]
    outcome["confidence"] = row["confidence"]
    return trace


def expiry_after(keep_days: float | None) -> datetime | None:
    """Return when a body expires that is kept for so many days from now; None for never."""
    if keep_days is None:
        return None
    try:
        return datetime.now(UTC) + timedelta(days=keep_days)
    except OverflowError:  # after the last day of the calendar
        return None


def clean_value(value: Any) -> Any:
    """Return a value as a column takes it: text cleaned and cut, and no NaN."""
    if isinstance(value, str):
        return clean_text(value[:_LONGEST_TEXT_CHARS])
    if isinstance(value, float) and not math.isfinite(value):
        return 0.0  # SQLite would store it as null
    return value


def body_of(trace: ReasoningTrace) -> JsonText | None:
    """Return a trace as it is stored; None, with a warning, if it is too large."""
    try:
        data = trace.model_dump(warnings=False)
    except (ValueError, TypeError, RecursionError):
        data = _clean_model(trace).model_dump(warnings=False)
    text = json_text(data)
    if len(text) > _LONGEST_BODY_CHARS:
        text = json_text(clean_json(data, longest_text=_LONGEST_TEXT_IN_LARGE_BODY_CHARS))
    if len(text) <= _LONGEST_BODY_CHARS:
        return text
    warn_once(
        "large body",
        "a trace of %d characters is too large to be kept; its figures are stored without it",
        len(text),
    )
    return None


def _clean_model(model: BaseModel) -> BaseModel:
    return model.model_copy(update={name: _clean_part(value) for name, value in model})


def _clean_part(value: Any) -> Any:
    if isinstance(value, BaseModel):
        return _clean_model(value)
    if isinstance(value, list) and all(isinstance(item, BaseModel) for item in value):
        return [_clean_model(item) for item in value]
    return value if isinstance(value, datetime) else clean_json(value)


def contribution_of(trace_id: str, body: str, registry: str, now: datetime) -> dict[str, Any]:
    """Return the row of the table `outbox` that sends a trace to `registry`."""
    return {
        "trace_id": trace_id,
        "registry": registry,
        "state": "pending",
        "body": body,
        "queued_at": now,
        "changed_at": now,
        "due_at": now,
        "attempts": 0,
    }


def _clean_key(key: object) -> str:
    if isinstance(key, str):
        return clean_text(key)
    writable = _is_writable(key) if isinstance(key, int) else isinstance(key, float | None)
    return str(key) if writable else f"<{type(key).__name__}>"
