"""What the store writes of a scored run, made fit for a database."""

from __future__ import annotations

import json
import math
import re
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel

from kp_langchain._logging import warn_once
from kp_langchain.run_keys import RunKeys

if TYPE_CHECKING:
    from kp_langchain.gate import ScoredTrace
    from kp_langchain.schema import ReasoningTrace

# PostgreSQL takes no NUL in text, and no engine takes half of a surrogate pair.
_UNSTORABLE = re.compile("[\x00\ud800-\udfff]")
_encode = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode


# SQLite takes a thousand million bytes in a row, and PostgreSQL about as many in a value; a
# character has up to four of them.
_LONGEST_BODY_CHARS = 200_000_000
_LONGEST_TEXT_CHARS = 1_000_000
# What the text of a larger body is cut to, text by text.
_LONGEST_TEXT_IN_LARGE_BODY_CHARS = 10_000
_LONGEST_NAME_CHARS = 500  # PostgreSQL's indexes take 2,704 bytes
_LONGEST_ID_CHARS = 150  # beside a name in one index
_BEGINNING_OF_LONGER_ID_CHARS = 85  # 64 more are its hash
_DEEPEST = 200
_MOST_BITS = 14_000  # about 4,300 digits, which Python refuses to read back


def clean_text(text: str) -> str:
    """Return `text` with every NUL and lone surrogate replaced by U+FFFD."""
    return _UNSTORABLE.sub("\ufffd", text)


def clean_name(text: str) -> str:
    """Return what an indexed column takes: `clean_text` of at most 500 characters."""
    return clean_text(text[:_LONGEST_NAME_CHARS])


def trace_key(trace_id: str) -> str:
    """Return what the columns `trace_id` hold for a trace: its id.

    One that is longer than 150 characters, or that no database takes, is cut or cleaned and ends in
    its hash, so that no two become one.
    """
    key = clean_text(trace_id[:_LONGEST_ID_CHARS])
    if key == trace_id:
        return key
    digest = sha256(trace_id.encode(errors="surrogatepass")).hexdigest()
    return f"{key[:_BEGINNING_OF_LONGER_ID_CHARS]}~{digest}"


def clean_json(value: Any, *, longest_text: int | None = None) -> Any:
    """Return `value` as JSON that every engine takes; NaN and infinity become null.

    What JSON cannot hold is left out, and a short note stands in its place: what holds itself, is
    nested deeper than 200, is a number of thousands of digits, or cannot be read.

    Args:
        value: Anything.
        longest_text: Texts of more characters are left out, too.
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
    except Exception:  # noqa: BLE001 - somebody else's container
        return f"[left out: a {type(value).__name__} that cannot be read]"


def _is_writable(number: int) -> bool:
    if number.bit_length() > _MOST_BITS:
        return False
    try:
        str(number)
    except ValueError:  # of fewer digits, where Python is told to be strict
        return False
    return True


class JsonText(str):
    """A value written as JSON already, which no column writes once more."""

    __slots__ = ()


def dumps(value: Any) -> str:
    """Return cleaned JSON as compact text."""
    return value if isinstance(value, JsonText) else _encode(value)


def json_text(value: Any) -> JsonText:
    """Return `value` as the compact JSON of `clean_json`, which only few values need."""
    try:
        text = _encode(value)
        text.encode()  # no half of a surrogate pair
        if "\\u0000" not in text:
            return JsonText(text)
    except (ValueError, TypeError, RecursionError):
        pass
    return JsonText(_encode(clean_json(value)))


def row_of(scored: ScoredTrace) -> dict[str, Any]:
    """Return the row of the table `runs` for `scored`.

    Values that no database takes are left out of the trace. One that is too large even then is not
    kept, and its figures are.
    """
    trace, breakdown = scored.trace, scored.breakdown
    metadata = trace.metadata
    figures = json_text(breakdown.to_dict())
    # A trace without steps is no knowledge unit, and only what bypassed the model can be one.
    body = _body(trace) if scored.keep_body and trace.steps else None
    row = {
        "trace_id": trace_key(trace.id),
        "run_id": clean_name(str(scored.run_id).lower()),
        "created_at": metadata.created_at,
        "domain": clean_name(metadata.task_domain),
        "framework": metadata.framework,
        "agent_id": metadata.agent_id,
        "objective": trace.task.objective,
        "success": metadata.success,
        "confidence": trace.outcome.confidence,
        "confidence_source": breakdown.confidence_source,
        "n_steps": len(trace.steps),
        "score": breakdown.total,
        "threshold": scored.threshold,
        "decision": scored.decision,
        "profile": breakdown.profile,
        "visibility": metadata.visibility,
        "privacy_level": metadata.privacy_level,
        "withheld": scored.withheld,
        "task": scored.task,
    }
    keys = scored.keys or RunKeys()
    row |= {
        "session": keys.session,
        "thread": keys.thread,
        "user_hash": keys.user,
        "run_name": keys.name,
    }
    row = {name: _column(value) for name, value in row.items()}
    expires_at = None
    if body is not None and scored.decision != "contributed" and scored.keep_days is not None:
        with suppress(OverflowError):  # beyond the calendar's end is for good
            expires_at = datetime.now(UTC) + timedelta(days=scored.keep_days)
    features = scored.features
    return row | {
        "breakdown": figures,
        "body": body,
        "body_expires_at": expires_at,
        "keep_days": scored.keep_days,
        "features": None if features is None else json_text(dict(features)),
        "tags": json_text([clean_name(tag) for tag in keys.tags]) if keys.tags else None,
    }


def _column(value: Any) -> Any:
    if isinstance(value, str):
        return clean_text(value[:_LONGEST_TEXT_CHARS])
    if isinstance(value, float) and not math.isfinite(value):
        return 0.0  # SQLite takes it for null
    return value


def _body(trace: ReasoningTrace) -> JsonText | None:
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


def contribution_of(row: dict[str, Any], registry: str, now: datetime) -> dict[str, Any]:
    """Return the row of the table `outbox` that sends the run of `row` to `registry`."""
    return {
        "trace_id": row["trace_id"],
        "registry": registry,
        "state": "pending",
        "body": row["body"],
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
