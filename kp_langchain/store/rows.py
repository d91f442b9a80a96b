"""Texts and JSON without the values that a database refuses."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from typing import TYPE_CHECKING, Any

from kp_langchain._logging import describe_error
from kp_langchain.errors import StoreError
from kp_langchain.values import clean_text, map_texts, type_name

if TYPE_CHECKING:
    from kp_langchain.pattern_schema import KnowledgeUnit

_encode = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode

# SQLite takes 10^9 bytes in a row, PostgreSQL about as many in a value; a character takes up to 4.
_LONGEST_BODY_CHARS = 200_000_000
_LONGEST_TEXT_CHARS = 1_000_000
_LONGEST_NAME_CHARS = 500  # PostgreSQL's indexes take 2,704 bytes
_LONGEST_ID_CHARS = 150  # because an index holds it beside a name
_BEGINNING_OF_LONGER_ID_CHARS = 85  # followed by 64 of its hash


def clean_name(text: str) -> str:
    """Return `text` as an indexed column takes it: `clean_text`, cut to 500 characters."""
    return clean_text(text[:_LONGEST_NAME_CHARS])


def short_key(text: str) -> str:
    """Return the value for `text` of a column that an index holds beside others.

    That is the text itself. If it is longer than 150 characters, or no database takes it, it is
    cut, cleaned, and ends in its hash. So different texts stay different.
    """
    key = clean_text(text[:_LONGEST_ID_CHARS])
    if key == text:
        return key
    digest = sha256(text.encode(errors="surrogatepass")).hexdigest()
    return f"{key[:_BEGINNING_OF_LONGER_ID_CHARS]}~{digest}"


def trace_key(trace_id: str) -> str:
    """Return the value of the columns `trace_id` for a trace; see `short_key`."""
    return short_key(trace_id)


def clean_json(value: Any) -> Any:
    """Return a JSON-like value as every engine takes it.

    NaN and infinity become null, and what is no JSON the name of its type.
    """
    return map_texts(value, clean_text, change_other=_clean_other)


def _clean_other(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value if value is None or isinstance(value, int) else type_name(value)


class JsonText(str):
    """Already serialised JSON, which a column stores verbatim."""

    __slots__ = ()


def dumps(value: Any) -> str:
    """Return cleaned JSON as compact text; `JsonText` is returned as it is."""
    return value if isinstance(value, JsonText) else _encode(value)


def loads(text: str) -> Any:
    """Return what stored JSON says; damaged text as it is, which whoever reads it refuses."""
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


def fold_text(text: str) -> str:
    """Return a text as it is searched: case folded, white space as single blanks."""
    return clean_text(" ".join(text.casefold().split()))


def with_outcome_of(trace: Any, row: Mapping[Any, Any]) -> Any:
    """Return a stored trace with the outcome that its row has, which verdicts may have changed.

    Args:
        trace: The trace as JSON-like values, as it was recorded; None if it is not kept.
        row: The columns `success`, `confidence`, `score` and `validated_by`.
    """
    with suppress(TypeError, LookupError):  # one that is damaged is refused by whoever reads it
        trace["metadata"] |= {"success": row["success"], "quality_score": row["score"]}
        if row["validated_by"] is not None:
            trace["metadata"]["validated_by"] = row["validated_by"]
        trace["outcome"]["confidence"] = row["confidence"]
    return trace


def expiry_after(keep_days: float | None) -> datetime | None:
    """Return when a body expires that is kept for so many days from now; None for never."""
    # Of more days than the calendar has, nobody sees the end.
    return None if keep_days is None else datetime.now(UTC) + timedelta(min(keep_days, 1_000_000))


def clean_value(value: Any) -> Any:
    """Return a value as a column takes it: text cleaned and cut, and no NaN."""
    if isinstance(value, str):
        return clean_text(value[:_LONGEST_TEXT_CHARS])
    if isinstance(value, float) and not math.isfinite(value):
        return 0.0  # SQLite would store it as null
    return value


def body_of(trace: KnowledgeUnit) -> JsonText:
    """Return a trace or a pattern as it is stored.

    Raises:
        StoreError: It cannot be written as JSON, or is too large.
    """
    try:
        text = json_text(trace.model_dump(warnings=False))
    except (ValueError, TypeError, RecursionError) as error:
        raise StoreError(f"a trace cannot be written as JSON: {describe_error(error)}") from error
    if len(text) > _LONGEST_BODY_CHARS:
        raise StoreError(f"a trace of {len(text)} characters is too large to be stored")
    return text
