"""The meaning of a registry's answer: reads status, headers and body; no I/O.

Nothing that a registry writes is trusted: `safe_texts` makes its texts safe to store, log and show.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from http import HTTPStatus
from http.client import responses as phrases
from itertools import chain
from typing import Any, Literal
from urllib.parse import urlsplit

from pydantic import SecretStr

from kp_langchain.redaction import redact

AnswerKind = Literal["done", "refused", "stopped", "later"]

LONGEST_WAIT_S = 86_400.0
"""The longest wait that a registry may ask for, in seconds: a day."""

_MAX_TEXT_CHARS = 300
_MAX_READ_CHARS = 4000
_QUOTE_CHARS = 24
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
_COUNT = re.compile(r"[0-9]{1,9}")
# At most as many digits as a time in milliseconds has until the year 5138.
_NUMBER = re.compile(r"[0-9]{1,14}(\.[0-9]{1,9})?")
# One date in any of the three formats of HTTP. Headers of the same name are joined by a comma, so a
# comma is allowed only after the name of the day.
_DATE = re.compile(r"[A-Za-z]{3,9},? [A-Za-z0-9:+ -]{15,30}")
_JSON_STRING = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"')


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
        issues: What the registry finds wrong with the unit, each with `path` and `message`.
        retry_after_s: How long the registry asks to wait, in seconds, 0 to a day.
        allowance: The rate limit, as far as it is stated.
        message: The registry's own message, safe to store, log and show.
        is_replayed: Whether the answer repeats one to an earlier request with the same idempotency
            key.
        content: The JSON of the answer. It is untrusted, and neither stored nor logged.
    """

    kind: AnswerKind
    reason: str
    status: int | None = None
    registry_id: str | None = None
    issues: tuple[dict[str, str], ...] = ()
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
    request_body: bytes = b"",
    own_id: object = None,
) -> Answer:
    """Return the meaning of an HTTP answer.

    Args:
        status: The HTTP status.
        headers: The headers, which take names in any case.
        body: The body; None if it was cut off, which is never a success.
        expects_id: Whether a success must contain the unit's id, at `data.id`.
        key: The API key of the request, removed from all texts.
        request_body: The body of the request, removed from all texts.
        own_id: The id in the unit, which the registry may use whatever its form.
    """
    content = parse_json(body)
    registry_id = json_object(json_object(content).get("data")).get("id")
    has_id = _is_usable_id(registry_id, key, own_id)
    allowance = Allowance(
        limit=_count(headers.get("x-ratelimit-limit")),
        remaining=_count(headers.get("x-ratelimit-remaining")),
        resets_in_s=_duration_s(headers.get("x-ratelimit-reset"), headers),
    )
    if 200 <= status < 300:
        kind, meaning = _success(headers, body, content, lacks_id=expects_id and not has_id)
    elif status == HTTPStatus.CONFLICT and has_id:
        kind, meaning = "done", ""
    elif status == HTTPStatus.TOO_MANY_REQUESTS and allowance.limit == 0:
        # The rate limit is checked before the key; without a known key it is 0.
        kind, meaning = "stopped", f"{_UNKNOWN_KEY}: it allows 0 requests"
    else:
        kind, meaning = _failure(status)
    issues = _issues(content) if kind == "refused" else []
    texts = [_registry_message(status, headers, content), *chain.from_iterable(issues)]
    message, *issue_texts = safe_texts(texts, key, request_body)
    status_line = f"{status} {phrases.get(status, '')}".rstrip()
    return Answer(
        kind=kind,
        reason=": ".join(filter(None, (status_line, meaning, message)))[:_MAX_TEXT_CHARS],
        status=status,
        registry_id=registry_id if kind == "done" and has_id else None,
        issues=tuple(
            {"path": path, "message": text}
            for path, text in zip(issue_texts[::2], issue_texts[1::2], strict=True)
        ),
        retry_after_s=_duration_s(headers.get("retry-after"), headers),
        allowance=allowance,
        message=message,
        is_replayed=headers.get("idempotency-replayed", "").lower() == "true",
        content=content,
    )


def _success(
    headers: Mapping[str, str], body: bytes | None, content: Any, *, lacks_id: bool
) -> tuple[AnswerKind, str]:
    is_html = "html" in headers.get("content-type", "").lower()
    if content is None and (is_html or (body or b"").lstrip()[:1] == b"<"):
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
    return "stopped", _STOP_REASONS.get(status, _NOT_A_REGISTRY)


def _is_usable_id(registry_id: object, key: SecretStr | None, own_id: object) -> bool:
    if not isinstance(registry_id, str) or (key and key.get_secret_value() in registry_id):
        return False
    is_short = registry_id.strip() != "" and len(registry_id) <= _MAX_TEXT_CHARS
    return registry_id == own_id or (is_short and registry_id.isprintable())


def _registry_message(status: int, headers: Mapping[str, str], content: Any) -> str:
    """Return the registry's own message, or where a redirect leads."""
    if 300 <= status < 400:
        return f"it redirects to {_host_of(headers.get('location', ''))}, which is not followed"
    fields = json_object(content)
    error = fields.get("error")
    return _text(error) or _text(json_object(error).get("message")) or _text(fields.get("message"))


def _host_of(location: str) -> str:
    """Return scheme and host of a URL; the rest may contain anything."""
    try:
        parts = urlsplit(location)
        host = parts.hostname
    except ValueError:
        return "nowhere"
    return f"{parts.scheme}://{host}" if host else "itself"


def _issues(content: Any) -> list[tuple[str, str]]:
    issues = json_object(content).get("issues")
    if not isinstance(issues, list):
        return []
    return [
        (_path(issue.get("path")), _text(issue.get("message")))
        for issue in issues[:_MAX_ISSUES]
        if isinstance(issue, dict)
    ]


def _path(path: object) -> str:
    if isinstance(path, list):  # as validators write it: ["steps", 0, "type"]
        return ".".join(str(part) for part in path[:_MAX_ISSUES] if isinstance(part, (str, int)))
    return _text(path)


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""


# ------------------------------------------------------------------ numbers and times


def _count(text: str | None) -> int | None:
    return int(text) if text is not None and _COUNT.fullmatch(text) else None


def _duration_s(text: str | None, headers: Mapping[str, str]) -> float | None:
    """Read a duration in seconds, an epoch time in seconds or milliseconds, or an HTTP date."""
    if text is not None and _NUMBER.fullmatch(text):
        number = float(text)
        if number < _EPOCH_FROM_S:
            return min(number, LONGEST_WAIT_S)
        moment: float | None = number / 1000.0 if number >= _EPOCH_FROM_MS else number
    else:
        moment = _timestamp(text)
    if moment is None:
        return None
    # By the registry's own clock, which may differ from this machine's.
    now = _timestamp(headers.get("date")) or datetime.now(UTC).timestamp()
    return min(max(0.0, moment - now), LONGEST_WAIT_S)


def _timestamp(date: str | None) -> float | None:
    """Return the time of an HTTP date in seconds since 1970; None if it is not one."""
    if date is None or not _DATE.fullmatch(date):
        return None
    try:
        moment = parsedate_to_datetime(date)
        return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
    except (ValueError, TypeError, IndexError, OverflowError):
        return None


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


def safe_texts(
    texts: Sequence[str], key: SecretStr | None = None, request_body: bytes = b""
) -> list[str]:
    """Return the texts of a registry as lines of at most 300 characters that are safe to show.

    Unprintable characters, the key, other secrets, and quotations of 24 or more characters from the
    request are removed.

    Args:
        texts: The texts.
        key: The API key of the request.
        request_body: The body of the request.
    """
    # Shortened only after the key is removed: part of a key would no longer be found.
    lines = [_to_line(text) for text in texts]
    if key is not None:
        lines = [line.replace(key.get_secret_value(), "[REDACTED:api_key]") for line in lines]
    lines = [str(redact(line[:_MAX_READ_CHARS]).value) for line in lines]
    lines = _remove_quotations(lines, request_body.decode(errors="replace"))
    return [
        line if len(line) <= _MAX_TEXT_CHARS else line[: _MAX_TEXT_CHARS - 1] + "…"
        for line in lines
    ]


def _to_line(text: str) -> str:
    return " ".join("".join(char if char.isprintable() else " " for char in text).split())


def _remove_quotations(lines: list[str], sent: str) -> list[str]:
    """Replace quotations from `sent`, as it is written and as the strings in its JSON are read."""
    parts = {part for line in lines for part in _parts(line)}
    if not parts or not sent:
        return lines
    strings = map(_text, map(parse_json, _JSON_STRING.findall(sent)))
    sent_text = "\n".join(map(_to_line, (sent, *strings)))
    quotations = parts.intersection(_parts(sent_text))
    return [_remove_parts(line, quotations) for line in lines] if quotations else lines


def _remove_parts(line: str, parts_to_remove: set[str]) -> str:
    pieces: list[str] = []
    cut_to = 0
    for start, part in enumerate(_parts(line)):
        if part in parts_to_remove:
            if start > cut_to or not pieces:  # otherwise it continues the previous part
                pieces.append(line[cut_to:start])
            cut_to = start + _QUOTE_CHARS
    return "[…]".join([*pieces, line[cut_to:]])


def _parts(text: str) -> Iterator[str]:
    """Yield all parts of a text that are as long as the shortest quotation."""
    return (text[at : at + _QUOTE_CHARS] for at in range(len(text) - _QUOTE_CHARS + 1))
