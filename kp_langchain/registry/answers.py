"""What an answer of the registry means. Pure: a status, headers and bytes in, an `Answer` out."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from http import HTTPStatus
from typing import Any, Literal
from urllib.parse import urlsplit

from pydantic import SecretStr

from kp_langchain.redaction import redact

Verdict = Literal["done", "refused", "stopped", "later"]

LONGEST_TOLD_S = 86_400.0
"""Most seconds of waiting that a registry is believed: a day."""

_TEXT_CHARS = 300
_ISSUES = 50
_READ_CHARS = 4000
_QUOTE_CHARS = 24
# About this one unit: no other attempt with it can go better.
_REFUSALS = frozenset({400, 409, 413, 415, 422, 431, 451})
_LATER = frozenset({408, 425, 429})
_UNKNOWN_KEY = "it does not know the key"
_STOPS = {
    401: _UNKNOWN_KEY,
    403: "the key may not write, or its agent's reputation is too low",
}
_NO_REGISTRY = "this does not seem to be the URL of a registry"
# Says nothing of whether the request was carried out, unlike the other refusals.
_TIMED_OUT = 408
_EPOCH_FROM_S = 1e9  # a smaller number is a duration
_EPOCH_FROM_MS = 1e11
_MOST_COUNTED = 1e9
# No more digits than a moment in milliseconds has until the year 5138.
_NUMBER = re.compile(r"[0-9]{1,14}(\.[0-9]{1,9})?")
# One date, of any of the three forms that HTTP knows. Two headers of the same name would come as
# one text with a comma in it, so that must stand after the name of the day.
_DATE = re.compile(r"[A-Za-z]{3,9},? [A-Za-z0-9:+ -]{15,30}")


@dataclass(frozen=True, slots=True)
class Allowance:
    """What an answer tells of the rate limit, by the headers `X-RateLimit-*`.

    Args:
        limit: Requests per window.
        remaining: Requests left in the present window.
        resets_in_s: Seconds until it ends, 0 to a day.
    """

    limit: int | None = None
    remaining: int | None = None
    resets_in_s: float | None = None


@dataclass(frozen=True, slots=True)
class Answer:
    """What came of one request.

    Args:
        verdict: `done`: accepted; `refused`: this unit never will be; `stopped`: nothing can be
            done with this key or URL; `later`: to be tried again.
        reason: One line that may be stored, logged and shown.
        status: The HTTP status; None when none came.
        registry_id: The registry's id for the unit.
        quality_score: The registry's own score, 0 to 1.
        issues: Its complaints, each with `path` and `message`.
        retry_after_s: How long it asks to be left alone, in seconds, 0 to a day.
        allowance: What it tells of its rate limit.
        words: What the registry itself says of it, as `tellable` leaves it.
        is_json: Whether the answer is a JSON object, as a registry's are.
        replayed: Whether it was given before, to an earlier request with the same idempotency key.
        unit: The registry's copy of the unit. A stranger's text: neither stored nor logged.
    """

    verdict: Verdict
    reason: str
    status: int | None = None
    registry_id: str | None = None
    quality_score: float | None = None
    issues: tuple[dict[str, str], ...] = ()
    retry_after_s: float | None = None
    allowance: Allowance | None = None
    words: str = ""
    is_json: bool = False
    replayed: bool = False
    unit: Mapping[str, Any] | None = field(default=None, repr=False, compare=False)

    @property
    def throttled(self) -> bool:
        """Whether it says that requests came too fast."""
        return self.status == HTTPStatus.TOO_MANY_REQUESTS and self.verdict == "later"

    @property
    def was_turned_away(self) -> bool:
        """Whether the request was refused, so that nothing of it can have been carried out."""
        return (
            self.verdict != "done"
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
    sent: bytes = b"",
    own_id: str | None = None,
) -> Answer:
    """Return what an answer means.

    Args:
        status: The HTTP status.
        headers: Its headers, names in any case.
        body: Its body; None if that was cut off or too large, which is never a success.
        expects_id: Whether a success must hold the unit's id, at `data.id`.
        key: The key of the request, which the answer may echo.
        sent: The body of the request, which the answer may echo.
        own_id: The id that the unit came with; whatever it is, the registry may keep it.
    """
    lower = {name.lower(): value for name, value in headers.items()}
    content = _content(body)
    found = _id(content, key, own_id)
    allowance = _allowance(lower)
    verdict, meaning = _judged(status, found, is_whole=body is not None, expects_id=expects_id)
    if 200 <= status < 300 and content is None and _is_page(lower, body):
        verdict, meaning = "stopped", f"{_NO_REGISTRY}, because a web page came"
    elif status == HTTPStatus.TOO_MANY_REQUESTS and allowance is not None and allowance.limit == 0:
        # The limiter stands before the question who is asking: to strangers it allows nothing.
        verdict, meaning = "stopped", f"{_UNKNOWN_KEY}, because it allows 0 requests"
    issues = _issues(content) if verdict == "refused" else []
    said, *texts = tellable(
        [_said(status, lower, content), *(text for issue in issues for text in issue)], key, sent
    )
    return Answer(
        verdict=verdict,
        reason=": ".join(part for part in (_named(status), meaning, said) if part)[:_TEXT_CHARS],
        status=status,
        registry_id=found if verdict == "done" else None,
        quality_score=_score(content),
        issues=tuple(
            {"path": path, "message": message}
            for path, message in zip(texts[::2], texts[1::2], strict=True)
        ),
        retry_after_s=_duration_s(lower.get("retry-after"), lower),
        allowance=allowance,
        words=said,
        is_json=isinstance(content, dict),
        replayed=lower.get("idempotency-replayed", "").lower() == "true",
        unit=_unit(content),
    )


def tellable(texts: Sequence[str], key: SecretStr | None = None, sent: bytes = b"") -> list[str]:
    """Return a stranger's texts as lines that may be stored, logged and shown.

    What cannot be printed, our key, other secrets, and 24 or more characters in a row of what we
    sent are taken out. None is longer than 300 characters.

    Args:
        texts: The texts.
        key: Our key.
        sent: What we sent.
    """
    # Cut only after the key is out: what is cut within it would no longer be found.
    lines = [_line(text) for text in texts]
    if key is not None:
        lines = [line.replace(key.get_secret_value(), "[REDACTED:api_key]") for line in lines]
    lines = [str(redact(line[:_READ_CHARS]).value) for line in lines]
    lines = _without_quotes(lines, sent)
    return [n if len(n) <= _TEXT_CHARS else n[: _TEXT_CHARS - 1] + "…" for n in lines]


def _line(text: str) -> str:
    return " ".join("".join(c if c.isprintable() else " " for c in text).split())


def _without_quotes(lines: list[str], sent: bytes) -> list[str]:
    told = {line[i : i + _QUOTE_CHARS] for line in lines for i in _starts(line)}
    if not told or not sent:
        return lines
    ours = "\n".join([_line(sent.decode(errors="replace")), *map(_line, _leaves(_content(sent)))])
    quoted = {run for i in _starts(ours) if (run := ours[i : i + _QUOTE_CHARS]) in told}
    return [_without_runs(line, quoted) for line in lines] if quoted else lines


def _without_runs(line: str, runs: set[str]) -> str:
    pieces: list[str] = []
    cut_to = 0
    for i in _starts(line):
        if line[i : i + _QUOTE_CHARS] in runs:
            if i > cut_to or not pieces:  # else this run goes on with the last one
                pieces.append(line[cut_to:i])
            cut_to = i + _QUOTE_CHARS
    return "[…]".join([*pieces, line[cut_to:]])


def _starts(text: str) -> range:
    return range(len(text) - _QUOTE_CHARS + 1)


def _leaves(content: Any) -> Iterator[str]:
    """The strings of a JSON document, in any order."""
    rest = [content]
    while rest:
        one = rest.pop()
        if isinstance(one, str):
            yield one
        elif isinstance(one, dict):
            rest.extend(one.values())
        elif isinstance(one, list):
            rest.extend(one)


def _judged(
    status: int, found: str | None, *, is_whole: bool, expects_id: bool
) -> tuple[Verdict, str]:
    if 200 <= status < 300:
        if not is_whole:
            return "later", "its answer was cut off, or is too large"
        if expects_id and found is None:
            return "later", "its answer is without the unit's id"
        return "done", ""
    if status == HTTPStatus.CONFLICT and found is not None:
        return "done", ""
    if status in _REFUSALS:
        return "refused", ""
    if status in _STOPS:
        return "stopped", _STOPS[status]
    if status in _LATER or not 300 <= status < 500:
        return "later", ""
    return "stopped", _NO_REGISTRY


def _is_page(headers: Mapping[str, str], body: bytes | None) -> bool:
    """Whether this is a page for people, such as a proxy or a hotel's network puts in the way."""
    return "html" in headers.get("content-type", "").lower() or (body or b"").lstrip()[:1] == b"<"


def _named(status: int) -> str:
    try:
        return f"{status} {HTTPStatus(status).phrase}"
    except ValueError:
        return str(status)


def _said(status: int, headers: Mapping[str, str], content: Any) -> str:
    """What the registry itself says of it."""
    if 300 <= status < 400:
        return f"it redirects to {_host_of(headers.get('location', ''))}, which is not followed"
    if not isinstance(content, dict):
        return ""
    error = content.get("error")
    if isinstance(error, dict):
        error = error.get("message")
    return next((t for t in (error, content.get("message")) if isinstance(t, str)), "")


def _host_of(location: str) -> str:
    """Scheme and host alone: the rest of a URL may hold anything."""
    try:
        parts = urlsplit(location)
        host = parts.hostname
    except ValueError:
        return "nowhere"
    return f"{parts.scheme}://{host}" if host else "itself"


def _content(body: bytes | None) -> Any:
    try:
        return json.loads(body or b"")
    except (ValueError, RecursionError):
        return None


def _id(content: Any, key: SecretStr | None, own_id: str | None) -> str | None:
    data = content.get("data") if isinstance(content, dict) else None
    found = data.get("id") if isinstance(data, dict) else None
    if not isinstance(found, str) or (key is not None and key.get_secret_value() in found):
        return None
    is_plain = found.strip() and found.isprintable() and len(found) <= _TEXT_CHARS
    return found if is_plain or found == own_id else None


def _unit(content: Any) -> Mapping[str, Any] | None:
    data = content.get("data") if isinstance(content, dict) else None
    unit = data.get("unit") if isinstance(data, dict) else None
    return unit if isinstance(unit, dict) else None


def _score(content: Any) -> float | None:
    found = content.get("quality_score") if isinstance(content, dict) else None
    if isinstance(found, (int, float)) and not isinstance(found, bool) and 0 <= found <= 1:
        return float(found)
    return None


def _issues(content: Any) -> list[tuple[str, str]]:
    listed = content.get("issues") if isinstance(content, dict) else None
    if not isinstance(listed, list):
        return []
    return [
        (_path(issue.get("path")), message if isinstance(message, str) else "")
        for issue in listed[:_ISSUES]
        if isinstance(issue, dict)
        for message in [issue.get("message")]
    ]


def _path(path: object) -> str:
    if isinstance(path, list):  # as validators give it: ["steps", 0, "type"]
        return ".".join(str(part) for part in path[:_ISSUES] if isinstance(part, (str, int)))
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
    return None if number is None or number > _MOST_COUNTED else int(number)


def _duration_s(text: str | None, headers: Mapping[str, str]) -> float | None:
    """Read seconds, a moment as an epoch in seconds or milliseconds, or an HTTP date."""
    number = _number(text)
    if number is None:
        moment = _date(text)
        if moment is None:
            return None
        number = moment.timestamp()
    elif number < _EPOCH_FROM_S:
        return min(number, LONGEST_TOLD_S)
    elif number >= _EPOCH_FROM_MS:
        number /= 1000.0
    # By the registry's own clock, which may differ from ours.
    now = _date(headers.get("date")) or datetime.now(UTC)
    return min(max(0.0, number - now.timestamp()), LONGEST_TOLD_S)


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
