"""The meaning of a registry's answer: reads status, headers and body; no I/O."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from http import HTTPStatus
from itertools import chain
from typing import Any, Literal
from urllib.parse import urlsplit

from pydantic import SecretStr

from kp_langchain.registry.safe_text import MAX_TEXT_CHARS, parse_json, safe_texts

AnswerKind = Literal["done", "refused", "stopped", "later"]

LONGEST_WAIT_S = 86_400.0
"""The longest wait that a registry may ask for, in seconds: a day."""

_MAX_ISSUES = 50
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
_EPOCH_FROM_MS = 1e11
_MAX_COUNT = 1e9
# At most as many digits as a time in milliseconds has until the year 5138.
_NUMBER = re.compile(r"[0-9]{1,14}(\.[0-9]{1,9})?")
# One date in any of the three formats of HTTP. Headers of the same name are joined by a comma, so a
# comma is allowed only after the name of the day.
_DATE = re.compile(r"[A-Za-z]{3,9},? [A-Za-z0-9:+ -]{15,30}")


@dataclass(frozen=True, slots=True)
class Allowance:
    """The rate limit that an answer states in its headers `X-RateLimit-*`.

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
        issues: What the registry finds wrong with the unit, each with `path` and `message`.
        retry_after_s: How long the registry asks to wait, in seconds, 0 to a day.
        allowance: The rate limit, if stated.
        message: The registry's own message, safe to store, log and show.
        is_json: Whether the answer is a JSON object, as all answers of a registry are.
        is_replayed: Whether the answer repeats one to an earlier request with the same idempotency
            key.
        unit: The registry's copy of the unit. It is untrusted, and neither stored nor logged.
    """

    kind: AnswerKind
    reason: str
    status: int | None = None
    registry_id: str | None = None
    issues: tuple[dict[str, str], ...] = ()
    retry_after_s: float | None = None
    allowance: Allowance | None = None
    message: str = ""
    is_json: bool = False
    is_replayed: bool = False
    unit: Mapping[str, Any] | None = field(default=None, repr=False, compare=False)

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


def read_answer(
    status: int,
    headers: Mapping[str, str],
    body: bytes | None,
    *,
    expects_id: bool,
    key: SecretStr | None = None,
    request_body: bytes = b"",
    own_id: str | None = None,
) -> Answer:
    """Return the meaning of an HTTP answer.

    Args:
        status: The HTTP status.
        headers: The headers, with names in any case.
        body: The body; None if it was cut off or too large, which is never a success.
        expects_id: Whether a success must contain the unit's id, at `data.id`.
        key: The API key of the request, removed from all texts.
        request_body: The body of the request, removed from all texts.
        own_id: The id in the unit, which the registry may use whatever its form.
    """
    lower = {name.lower(): value for name, value in headers.items()}
    content = parse_json(body)
    registry_id = _registry_id(content, key, own_id)
    allowance = _allowance(lower)
    kind, meaning = _kind_by_content(status, lower, body, allowance) or _kind_by_status(
        status, is_whole=body is not None, expects_id=expects_id, has_id=registry_id is not None
    )
    issues = _issues(content) if kind == "refused" else []
    texts = [_registry_message(status, lower, content), *chain.from_iterable(issues)]
    message, *issue_texts = safe_texts(texts, key, request_body)
    reason = ": ".join(filter(None, (_status_line(status), meaning, message)))
    return Answer(
        kind=kind,
        reason=reason[:MAX_TEXT_CHARS],
        status=status,
        registry_id=registry_id if kind == "done" else None,
        issues=tuple(
            {"path": path, "message": issue}
            for path, issue in zip(issue_texts[::2], issue_texts[1::2], strict=True)
        ),
        retry_after_s=_duration_s(lower.get("retry-after"), lower),
        allowance=allowance,
        message=message,
        is_json=isinstance(content, dict),
        is_replayed=lower.get("idempotency-replayed", "").lower() == "true",
        unit=_unit(content),
    )


def _kind_by_content(
    status: int, headers: Mapping[str, str], body: bytes | None, allowance: Allowance | None
) -> tuple[AnswerKind, str] | None:
    """Return the kind of a web page and of a limit of 0 requests; None for any other answer."""
    if 200 <= status < 300 and parse_json(body) is None and _is_web_page(headers, body):
        return "stopped", f"{_NOT_A_REGISTRY}: it answers with a web page"
    if status == HTTPStatus.TOO_MANY_REQUESTS and allowance is not None and allowance.limit == 0:
        # The rate limit is checked before the key; without a known key it is 0.
        return "stopped", f"{_UNKNOWN_KEY}: it allows 0 requests"
    return None


def _kind_by_status(
    status: int, *, is_whole: bool, expects_id: bool, has_id: bool
) -> tuple[AnswerKind, str]:
    if 200 <= status < 300:
        if not is_whole:
            return "later", "its answer is cut off or too large"
        if expects_id and not has_id:
            return "later", "its answer lacks the unit's id"
        return "done", ""
    if status == HTTPStatus.CONFLICT and has_id:
        return "done", ""
    if status in _REFUSED_STATUSES:
        return "refused", ""
    if status in _STOP_REASONS:
        return "stopped", _STOP_REASONS[status]
    if status in _RETRY_STATUSES or not 300 <= status < 500:
        return "later", ""
    return "stopped", _NOT_A_REGISTRY


def _is_web_page(headers: Mapping[str, str], body: bytes | None) -> bool:
    """Return whether the answer is a web page, such as a proxy's or a network's login page."""
    return "html" in headers.get("content-type", "").lower() or (body or b"").lstrip()[:1] == b"<"


def _status_line(status: int) -> str:
    try:
        return f"{status} {HTTPStatus(status).phrase}"
    except ValueError:
        return str(status)


def _registry_message(status: int, headers: Mapping[str, str], content: Any) -> str:
    """Return the registry's own message, or where a redirect leads."""
    if 300 <= status < 400:
        return f"it redirects to {_host_of(headers.get('location', ''))}, which is not followed"
    if not isinstance(content, dict):
        return ""
    error = content.get("error")
    if isinstance(error, dict):
        error = error.get("message")
    return next((t for t in (error, content.get("message")) if isinstance(t, str)), "")


def _host_of(location: str) -> str:
    """Return scheme and host of a URL; the rest may contain anything."""
    try:
        parts = urlsplit(location)
        host = parts.hostname
    except ValueError:
        return "nowhere"
    return f"{parts.scheme}://{host}" if host else "itself"


def _registry_id(content: Any, key: SecretStr | None, own_id: str | None) -> str | None:
    data = content.get("data") if isinstance(content, dict) else None
    registry_id = data.get("id") if isinstance(data, dict) else None
    if not isinstance(registry_id, str) or (
        key is not None and key.get_secret_value() in registry_id
    ):
        return None
    is_plain = (
        registry_id.strip() and registry_id.isprintable() and len(registry_id) <= MAX_TEXT_CHARS
    )
    return registry_id if is_plain or registry_id == own_id else None


def _unit(content: Any) -> Mapping[str, Any] | None:
    data = content.get("data") if isinstance(content, dict) else None
    unit = data.get("unit") if isinstance(data, dict) else None
    return unit if isinstance(unit, dict) else None


def _issues(content: Any) -> list[tuple[str, str]]:
    issues = content.get("issues") if isinstance(content, dict) else None
    if not isinstance(issues, list):
        return []
    return [
        (_path(issue.get("path")), message if isinstance(message, str) else "")
        for issue in issues[:_MAX_ISSUES]
        if isinstance(issue, dict)
        for message in [issue.get("message")]
    ]


def _path(path: object) -> str:
    if isinstance(path, list):  # as validators write it: ["steps", 0, "type"]
        return ".".join(str(part) for part in path[:_MAX_ISSUES] if isinstance(part, (str, int)))
    return path if isinstance(path, str) else ""


def _allowance(headers: Mapping[str, str]) -> Allowance | None:
    limit = _count(headers.get("x-ratelimit-limit"))
    remaining = _count(headers.get("x-ratelimit-remaining"))
    resets_in_s = _duration_s(headers.get("x-ratelimit-reset"), headers)
    if limit is remaining is resets_in_s is None:
        return None
    return Allowance(limit, remaining, resets_in_s)


def _count(text: str | None) -> int | None:
    number = _number(text)
    return None if number is None or number > _MAX_COUNT else int(number)


def _duration_s(text: str | None, headers: Mapping[str, str]) -> float | None:
    """Read a duration in seconds, an epoch time in seconds or milliseconds, or an HTTP date."""
    number = _number(text)
    if number is None:
        moment = _date(text)
        if moment is None:
            return None
        number = moment.timestamp()
    elif number < _EPOCH_FROM_S:
        return min(number, LONGEST_WAIT_S)
    elif number >= _EPOCH_FROM_MS:
        number /= 1000.0
    # By the registry's own clock, which may differ from this machine's.
    now = _date(headers.get("date")) or datetime.now(UTC)
    return min(max(0.0, number - now.timestamp()), LONGEST_WAIT_S)


def _number(text: str | None) -> float | None:
    return float(text) if text is not None and _NUMBER.fullmatch(text) else None


def _date(text: str | None) -> datetime | None:
    if text is None or not _DATE.fullmatch(text):
        return None
    try:
        moment = parsedate_to_datetime(text)
        return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment
    except (ValueError, TypeError, IndexError, OverflowError):
        return None
