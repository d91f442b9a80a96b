"""What the store writes of a scored run, made fit for a database."""

from __future__ import annotations

import json
import math
import re
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from kp_langchain.errors import StoreError

if TYPE_CHECKING:
    from kp_langchain.gate import ScoredTrace

# PostgreSQL takes no NUL in text, and no engine takes half of a surrogate pair.
_UNSTORABLE = re.compile("[\x00\ud800-\udfff]")
_encode = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode


def clean_text(text: str) -> str:
    """Return `text` with every NUL and lone surrogate replaced by U+FFFD."""
    return _UNSTORABLE.sub("\ufffd", text)


def clean_json(value: Any) -> Any:
    """Return `value` as JSON that every engine takes; NaN and infinity become null."""
    if isinstance(value, str):
        return clean_text(value)
    if value is None or isinstance(value, int):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {_clean_key(key): clean_json(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [clean_json(item) for item in value]
    if isinstance(value, bytes | bytearray):
        return clean_text(value.decode(errors="replace"))
    return f"<{type(value).__name__}>"


class JsonText(str):
    """A value written as JSON already, which no column writes once more."""

    __slots__ = ()


def dumps(value: Any) -> str:
    """Return cleaned JSON as compact text."""
    return value if isinstance(value, JsonText) else _encode(value)


def json_text(value: Any) -> JsonText:
    """Return `value` as the compact JSON of `clean_json`, which only few values need.

    Raises:
        ValueError, RecursionError: It holds itself, or a number of thousands of digits.
    """
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

    Raises:
        StoreError: The trace cannot be written as JSON, because it holds itself or a number of
            thousands of digits.
    """
    trace, breakdown = scored.trace, scored.breakdown
    metadata = trace.metadata
    try:
        figures = json_text(breakdown.to_dict())
        body = json_text(trace.model_dump(warnings=False)) if scored.keep_body else None
    except (ValueError, TypeError, RecursionError) as error:
        raise StoreError(
            f"trace {trace.id} cannot be written as JSON: {error}; leave it out, or clean it first"
        ) from error
    row = {
        "trace_id": trace.id.lower(),
        "run_id": str(scored.run_id).lower(),
        "created_at": metadata.created_at,
        "domain": metadata.task_domain,
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
    }
    row = {
        name: clean_text(value) if isinstance(value, str) else value for name, value in row.items()
    }
    expires_at = None
    if body is not None and scored.decision != "contributed" and scored.keep_days is not None:
        expires_at = datetime.now(UTC) + timedelta(days=scored.keep_days)
    features = scored.features
    return row | {
        "breakdown": figures,
        "body": body,
        "body_expires_at": expires_at,
        "keep_days": scored.keep_days,
        "task": scored.task,
        "features": None if features is None else json_text(dict(features)),
    }


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
    return str(key) if isinstance(key, int | float | None) else f"<{type(key).__name__}>"
