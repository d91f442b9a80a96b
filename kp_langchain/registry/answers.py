"""The meaning of a registry's answer, and when the next request may be sent; no I/O.

Nothing that a registry writes is trusted: `safe_text` makes its texts safe to store, log and show.

A registry revokes the key at the third 429 within an hour. So requests stop before the limit of the
rate window is reached, and after a second 429 nothing is sent until the first is an hour old.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from http import HTTPStatus
from http.client import responses as phrases
from typing import Any, Literal

from pydantic import SecretStr

from kp_langchain.redaction import redact
from kp_langchain.store.registry_units import Standing

AnswerKind = Literal["done", "refused", "stopped", "later"]

LONGEST_WAIT_S = 86_400.0
"""The longest wait that a registry may ask for, in seconds: a day."""

_MAX_TEXT_CHARS = 300
_MAX_READ_CHARS = 4000
_MAX_ID_CHARS = 4000
_MAX_ISSUES = 10
# They concern this unit: another attempt with it cannot succeed.
_REFUSED_STATUSES = frozenset({400, 409, 413, 415, 422, 431, 451})
_RETRY_STATUSES = frozenset({408, 425, 429})
_UNKNOWN_KEY = "it does not know the key"
_STOP_REASONS = {
    401: _UNKNOWN_KEY,
    403: "the key may not write, or its agent's reputation is too low",
}
_NOT_A_REGISTRY = "this does not seem to be the URL of a registry"
# Unlike other statuses below 500, it does not say that the request was not processed.
_TIMED_OUT = 408
_EPOCH_FROM_S = 1e9  # a smaller number is a duration
_COUNT = re.compile(r"[0-9]{1,9}")
_NUMBER = re.compile(r"[0-9]{1,10}(\.[0-9]{1,9})?")

LONGEST_BACKOFF_S = 3600.0
"""The longest wait between attempts of a contribution, or after failures, in seconds."""

_FIRST_BACKOFF_S = 1.0
_HOUR_S = 3600.0
_THROTTLES_BEFORE_REVOKING = 3
# For a registry that does not state its limits: the limit of the lowest tier, 30 per minute.
_DEFAULT_INTERVAL_S = 2.0
# Requests left unused in each window, for a registry whose count is off by one.
_RESERVE = 1
# Added to the times that a registry states, which may be rounded to seconds.
_MARGIN_S = 1.0
_THROTTLE_WAIT_S = 60.0


@dataclass(frozen=True, slots=True)
class Allowance:
    """The rate limit that an answer states in its headers `X-RateLimit-*`, as far as it does.

    Attributes:
        limit: Requests per window.
        remaining: Requests left in the current window.
        resets_in_s: Seconds until the window ends, 0 to a day.
    """

    limit: int | None = None
    remaining: int | None = None
    resets_in_s: float | None = None


@dataclass(frozen=True, slots=True)
class Answer:
    """The result of one request.

    Attributes:
        kind: `done`: the request was accepted; `refused`: this unit will never be accepted;
            `stopped`: no request with this key or URL can succeed; `later`: try again later.
        reason: Why, in one line that is safe to store, log and show.
        status: The HTTP status; None if no answer arrived.
        registry_id: The registry's id of the unit.
        retry_after_s: How long the registry asks to wait, in seconds, 0 to a day.
        allowance: The rate limit, as far as it is stated.
        message: The registry's own message, and what it finds wrong with the unit, in one line that
            is safe to store, log and show.
        is_replayed: Whether the answer repeats one to an earlier request with the same idempotency
            key.
        content: The JSON of the answer. It is untrusted, and neither stored nor logged.
    """

    kind: AnswerKind
    reason: str
    status: int | None = None
    registry_id: str | None = None
    retry_after_s: float | None = None
    allowance: Allowance = Allowance()
    message: str = ""
    is_replayed: bool = False
    content: Any = field(default=None, repr=False, compare=False)

    @property
    def is_json(self) -> bool:
        """Whether the answer is a JSON object, as all answers of a registry are."""
        return isinstance(self.content, dict)

    @property
    def data(self) -> Mapping[str, Any]:
        """The object `data` of the answer, which is untrusted; empty if there is none."""
        return json_object(json_object(self.content).get("data"))

    @property
    def is_throttled(self) -> bool:
        """Whether the registry says that requests come too fast."""
        return self.status == HTTPStatus.TOO_MANY_REQUESTS and self.kind == "later"

    @property
    def is_rejected(self) -> bool:
        """Whether the request was rejected and so cannot have had any effect."""
        return (
            self.kind != "done"
            and self.status is not None
            and 400 <= self.status < 500
            and self.status != _TIMED_OUT
        )

    @property
    def is_stale(self) -> bool:
        """Whether it is a refusal of an earlier request, given again, so it may be outdated."""
        return self.is_replayed and self.kind in ("refused", "stopped")


def read_answer(
    status: int,
    headers: Mapping[str, str],
    body: bytes | None,
    *,
    expects_id: bool,
    key: SecretStr | None = None,
) -> Answer:
    """Return the meaning of an HTTP answer.

    Args:
        status: The HTTP status.
        headers: The headers, which take names in any case.
        body: The body; None if it was cut off, which is never a success.
        expects_id: Whether a success must contain the unit's id, at `data.id`.
        key: The API key of the request, removed from all texts.
    """
    content = parse_json(body)
    registry_id = json_object(json_object(content).get("data")).get("id")
    has_id = isinstance(registry_id, str) and 0 < len(registry_id) <= _MAX_ID_CHARS
    allowance = Allowance(
        limit=_count(headers.get("x-ratelimit-limit")),
        remaining=_count(headers.get("x-ratelimit-remaining")),
        resets_in_s=_duration_s(headers.get("x-ratelimit-reset")),
    )
    if 200 <= status < 300:
        kind, meaning = _success(body, content, lacks_id=expects_id and not has_id)
    elif status == HTTPStatus.TOO_MANY_REQUESTS and allowance.limit == 0:
        # The rate limit is checked before the key; without a known key it is 0.
        kind, meaning = "stopped", f"{_UNKNOWN_KEY}: it allows 0 requests"
    else:
        kind, meaning = _failure(status)
    message = safe_text(_message(content), key)
    status_line = f"{status} {phrases.get(status, '')}".rstrip()
    return Answer(
        kind=kind,
        reason=": ".join(filter(None, (status_line, meaning, message)))[:_MAX_TEXT_CHARS],
        status=status,
        registry_id=registry_id if kind == "done" and has_id else None,
        retry_after_s=_duration_s(headers.get("retry-after")),
        allowance=allowance,
        message=message,
        is_replayed=headers.get("idempotency-replayed", "").lower() == "true",
        content=content,
    )


def _success(body: bytes | None, content: Any, *, lacks_id: bool) -> tuple[AnswerKind, str]:
    if content is None and (body or b"").lstrip()[:1] == b"<":
        # Such as a proxy's or a network's login page.
        return "stopped", f"{_NOT_A_REGISTRY}: it answers with a web page"
    if body is None:
        return "later", "its answer is cut off"
    return ("later", "its answer lacks the unit's id") if lacks_id else ("done", "")


def _failure(status: int) -> tuple[AnswerKind, str]:
    if status in _REFUSED_STATUSES:
        return "refused", ""
    if status in _RETRY_STATUSES or not 300 <= status < 500:
        return "later", ""
    if status < 400:
        return "stopped", f"{_NOT_A_REGISTRY}: it redirects elsewhere, which is not followed"
    return "stopped", _STOP_REASONS.get(status, _NOT_A_REGISTRY)


def _message(content: Any) -> str:
    """Return the registry's own message, and what it finds wrong with the unit."""
    error, issues = (json_object(content).get(name) for name in ("error", "issues"))
    texts = [_text(error) or _text(json_object(error).get("message"))]
    for issue in issues[:_MAX_ISSUES] if isinstance(issues, list) else []:
        path, text = (json_object(issue).get(name) for name in ("path", "message"))
        texts.append(": ".join(filter(None, (_path(path), _text(text)))))
    return "; ".join(filter(None, texts))


def _path(path: object) -> str:
    if isinstance(path, list):  # as validators write it: ["steps", 0, "type"]
        return ".".join(str(part) for part in path[:_MAX_ISSUES] if isinstance(part, (str, int)))
    return _text(path)


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""


def _count(text: str | None) -> int | None:
    return int(text) if text is not None and _COUNT.fullmatch(text) else None


def _duration_s(text: str | None) -> float | None:
    """Read a duration, or a time since 1970, in seconds."""
    if text is None or not _NUMBER.fullmatch(text):
        return None
    number = float(text)
    seconds = number if number < _EPOCH_FROM_S else max(0.0, number - time.time())
    return min(seconds, LONGEST_WAIT_S)


# ------------------------------------------------------------------ untrusted texts and JSON


def parse_json(body: bytes | str | None) -> Any:
    """Return the content of a JSON document, or None if it cannot be parsed."""
    try:
        return json.loads(body or b"")
    except (ValueError, RecursionError):
        return None


def json_object(value: object) -> dict[str, Any]:
    """Return the value if it is a JSON object, else an empty one."""
    return value if isinstance(value, dict) else {}


def safe_text(text: str, key: SecretStr | None = None) -> str:
    """Return the text of a registry as a line of at most 300 characters that is safe to show.

    Unprintable characters, the key and other secrets are removed.

    Args:
        text: The text.
        key: The API key of the request.
    """
    line = " ".join("".join(char if char.isprintable() else " " for char in text).split())
    if key is not None:  # before it is cut: part of a key would no longer be found
        line = line.replace(key.get_secret_value(), "[REDACTED:api_key]")
    line = str(redact(line[:_MAX_READ_CHARS]).value)
    return line if len(line) <= _MAX_TEXT_CHARS else line[: _MAX_TEXT_CHARS - 1] + "…"


# ------------------------------------------------------------------ the pace


def backoff_s(failures: int) -> float:
    """Return the wait after a number of failures in a row, in seconds; an hour at most."""
    from kp_langchain.store.jobs import pause_s  # loads SQLAlchemy

    return pause_s(failures, _FIRST_BACKOFF_S, LONGEST_BACKOFF_S)


def wait_s(standing: Standing, now: datetime) -> float:
    """Return the seconds until the next request may be sent; 0 if it may be sent now."""
    return 0.0 if standing.quiet_until is None else seconds_until(standing.quiet_until, now)


def seconds_until(moment: datetime, now: datetime) -> float:
    """Return the seconds until a moment; 0 if it is past.

    It is also 0 if it is farther away than any wait, because then the clock was set back.
    """
    left_s = (moment - now).total_seconds()
    return left_s if 0.0 < left_s <= LONGEST_WAIT_S + _HOUR_S else 0.0


def after_answer(standing: Standing, answer: Answer, now: datetime) -> Standing:
    """Return the standing after an answer that arrived now."""
    throttles = _throttles_in_last_hour(standing, now)
    if answer.is_throttled:
        throttles.append(now)
    standing = replace(
        standing,
        throttled_at=tuple(time.isoformat() for time in throttles),
        stopped=answer.kind == "stopped" and not answer.is_stale,
    )
    if answer.kind in ("done", "refused") or answer.is_stale:
        standing = replace(standing, failures=0, quiet_until=None, quiet_reason=None)
        return _pause_at_limit(standing, answer.allowance, now)
    if answer.kind == "stopped":
        seconds = LONGEST_BACKOFF_S
    else:
        standing = replace(standing, failures=standing.failures + 1)
        seconds = backoff_s(standing.failures)
        if answer.is_throttled:
            seconds = max(seconds, _after_throttle_s(answer, throttles, now))
    return _pause(standing, max(seconds, answer.retry_after_s or 0.0), answer.reason, now)


def _after_throttle_s(answer: Answer, throttles: list[datetime], now: datetime) -> float:
    stated_s = answer.retry_after_s
    if stated_s is None:
        stated_s = answer.allowance.resets_in_s
    seconds = _THROTTLE_WAIT_S if stated_s is None else stated_s + _MARGIN_S
    if len(throttles) >= _THROTTLES_BEFORE_REVOKING - 1:
        first = throttles[1 - _THROTTLES_BEFORE_REVOKING]
        seconds = max(seconds, _HOUR_S - (now - first).total_seconds() + _MARGIN_S)
    return seconds


def _pause(standing: Standing, seconds: float, reason: str, now: datetime) -> Standing:
    until = now + timedelta(seconds=seconds)
    return replace(standing, quiet_until=until, quiet_reason=reason)


def _pause_at_limit(standing: Standing, allowance: Allowance, now: datetime) -> Standing:
    """Start a quiet period if an allowance is used up or unknown."""
    if allowance.remaining is None or allowance.resets_in_s is None:
        reason = "the registry does not state its rate limit"
        return _pause(standing, _DEFAULT_INTERVAL_S, reason, now)
    if allowance.remaining > _RESERVE:
        return standing
    limit = "" if allowance.limit is None else f"{allowance.limit} "
    reason = f"its limit of {limit}requests is reached"
    return _pause(standing, allowance.resets_in_s + _MARGIN_S, reason, now)


def _throttles_in_last_hour(standing: Standing, now: datetime) -> list[datetime]:
    times = [datetime.fromisoformat(time).astimezone(UTC) for time in standing.throttled_at]
    # The clock of a machine that shares the store may be ahead.
    return [time for time in times if abs((now - time).total_seconds()) <= _HOUR_S]
