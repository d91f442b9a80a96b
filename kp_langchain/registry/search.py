"""Reads what a registry has, page by page, within its rate limit."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Protocol, Required, TypedDict
from urllib.parse import urlencode

from kp_langchain.errors import ConfigError
from kp_langchain.registry import pace
from kp_langchain.registry.responses import Answer
from kp_langchain.store import Standing

if TYPE_CHECKING:
    from kp_langchain.store import Outbox

PAGE_SIZE = 50
"""The units of a page."""

DEFAULT_LIMIT = 200
"""How many units a search reads if nothing else is said."""

MOST_UNITS = 5000
"""How many units a search reads at most."""

MOST_PAGE_BYTES = 16 * 2**20
"""The largest page, in bytes. A larger one is asked for in parts."""

_TYPE = "ReasoningTrace"
# How many units in a row may be unreadable before the registry is taken for the cause.
_MOST_UNREADABLE = 5
_LONGEST_QUERY_CHARS = 1000


class SearchOptions(TypedDict, total=False):
    """What `Registry.search` looks for, and how long.

    Attributes:
        domain: Only units of this domain. A registry takes no account of case.
        q: Only units with these words, as the registry understands them.
        min_quality: Only units whose claimed quality is at least this, 0 to 1.
        limit: At most so many units, 1 to 5,000; 200 by default.
        offset: Leave out so many at the beginning, which have the highest claimed quality.
        timeout_s: Seconds to take at most, 60 by default. A request under way is not interrupted.
        outbox: The outbox of a store. What is known there of the registry's limits is kept to, and
            what the search meets is written there. Without it, the limits that this process's
            searches met are kept to.
        sleep: Waits some seconds.
        clock: Returns the time in UTC.
    """

    domain: Required[str]
    q: str | None
    min_quality: float | None
    limit: int
    offset: int
    timeout_s: float
    outbox: Outbox | None
    sleep: Callable[[float], object]
    clock: Callable[[], datetime]


class ReadsJson(Protocol):
    """What is searched: a `Registry`, which this module cannot name because that one imports it."""

    @property
    def url(self) -> str:
        """The URL of the registry."""

    @property
    def key_id(self) -> str:
        """An id of the key that does not reveal it."""

    def read_json(self, path: str, max_bytes: int) -> tuple[Answer, Any]:
        """Read a document; see `Registry.read_json`."""


@dataclass(frozen=True, slots=True)
class SearchPage:
    """One page of what a registry has.

    Attributes:
        answer: `done`; for any other kind, there is no unit, this is the last page, and the reason
            says what went wrong.
        units: The reasoning traces as the registry sent them. They are untrusted: nothing of them
            is checked but that each is a JSON object of this type.
        read: How many units were read, those without use included.
        skipped: How many were of no use, by the reason.
        next_offset: Where to continue; None if the registry has no more.
        total: How many units the registry says it has; None if it does not say.
    """

    answer: Answer
    units: tuple[Mapping[str, Any], ...] = field(default=(), repr=False)
    read: int = 0
    skipped: Mapping[str, int] = field(default_factory=dict)
    next_offset: int | None = None
    total: int | None = None


def search(
    registry: ReadsJson,
    *,
    domain: str,
    q: str | None = None,
    min_quality: float | None = None,
    limit: int = DEFAULT_LIMIT,
    offset: int = 0,
    timeout_s: float = 60.0,
    outbox: Outbox | None = None,
    sleep: Callable[[float], object] = time.sleep,
    clock: Callable[[], datetime] = lambda: datetime.now(UTC),
) -> Iterator[SearchPage]:
    """Yield what a registry has; see `Registry.search`. The arguments are its `SearchOptions`.

    Raises:
        ConfigError: An argument cannot be used.
    """
    if not 1 <= limit <= MOST_UNITS or offset < 0:
        raise ConfigError(
            f"limit={limit} must be 1 to {MOST_UNITS}, and offset={offset} not negative"
        )
    if min_quality is not None and not 0.0 <= min_quality <= 1.0:
        raise ConfigError(f"min_quality={min_quality} must be 0 to 1")
    conditions = {"domain": domain, "types": _TYPE}
    if min_quality is not None:
        conditions["min_quality"] = str(min_quality)
    if q:
        conditions["q"] = q
    for name, text in conditions.items():
        _check_text(name, text)
    requests = _Requests(registry, conditions, outbox, sleep, clock, timeout_s)
    return _pages(requests, offset=offset, limit=limit)


def _check_text(name: str, text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ConfigError(f"{name}={text[:80]!r} cannot be sent: it is not Unicode text") from None
    if not text.strip() or len(text) > _LONGEST_QUERY_CHARS:
        raise ConfigError(
            f"{name}={text[:80]!r} must be a text of 1 to {_LONGEST_QUERY_CHARS} characters"
        )


def _pages(requests: _Requests, *, offset: int, limit: int) -> Iterator[SearchPage]:
    size, read, unreadable = PAGE_SIZE, 0, 0
    while read < limit:
        size = min(size, limit - read)
        answer, document = requests.page(offset, size)
        if answer.kind != "done":
            yield SearchPage(answer, next_offset=offset)
            return
        if document is None and size > 1:
            # One unit may be what makes it too large, or too deep to be parsed.
            size //= 2
            continue
        if document is None:
            unreadable += 1
            if unreadable > _MOST_UNREADABLE:
                yield SearchPage(
                    replace(answer, kind="later", reason="its answers cannot be read"),
                    next_offset=offset,
                )
                return
            offset, read, size = offset + 1, read + 1, 2
            yield SearchPage(
                answer, read=1, skipped={"too large or not JSON": 1}, next_offset=offset
            )
            continue
        entries, total = _entries(document)
        if entries is None:
            reason = "its answer has no list of units"
            yield SearchPage(replace(answer, kind="later", reason=reason), next_offset=offset)
            return
        entries = entries[:size]
        offset, read, unreadable = offset + len(entries), read + len(entries), 0
        is_last = not entries or (len(entries) < size if total is None else offset >= total)
        units, skipped = _units(entries)
        yield SearchPage(answer, units, len(entries), skipped, None if is_last else offset, total)
        if is_last:
            return
        size = min(PAGE_SIZE, 2 * size)


def _entries(document: Any) -> tuple[list[Any] | None, int | None]:
    """Return the entries of a page, and how many there are in all; None for what is missing."""
    values = document if isinstance(document, dict) else {}
    entries, total = values.get("data"), values.get("total")
    is_number = type(total) is int and total >= 0
    return (entries if isinstance(entries, list) else None, total if is_number else None)


def _units(entries: list[Any]) -> tuple[tuple[Mapping[str, Any], ...], dict[str, int]]:
    """Return the reasoning traces among entries, and how many others there are, by the reason."""
    units, skipped = [], Counter[str]()
    for entry in entries:
        # A registry wraps each unit in what it knows of it; the protocol's text does not.
        unit = entry.get("unit", entry) if isinstance(entry, dict) else None
        if not isinstance(unit, dict):
            skipped["not a JSON object"] += 1
        elif unit.get("@type") != _TYPE:
            skipped[f"not a {_TYPE}"] += 1
        else:
            units.append(unit)
    return tuple(units), dict(skipped)


class _Requests:
    """Asks for pages, one request at a time, and waits before each as the registry demands.

    Args:
        registry: The registry.
        conditions: What to look for, as the query of the request.
        outbox: As for `search`, like the others.
        sleep: Waits some seconds.
        clock: Returns the time in UTC.
        timeout_s: Seconds that all requests and waits may take.
    """

    def __init__(
        self,
        registry: ReadsJson,
        conditions: Mapping[str, str],
        outbox: Outbox | None,
        sleep: Callable[[float], object],
        clock: Callable[[], datetime],
        timeout_s: float,
    ) -> None:
        self._registry, self._conditions, self._outbox = registry, conditions, outbox
        self._sleep, self._clock = sleep, clock
        self._until = clock() + timedelta(seconds=timeout_s)
        self._is_first = True
        # What the last answer demands, also of a registry that takes no contributions at present.
        self._own = Standing(registry.url, registry.key_id)

    def page(self, offset: int, size: int) -> tuple[Answer, Any]:
        """Return the answer to a request, and the page; None if it cannot be read."""
        place = {"limit": size, "offset": offset}
        path = f"/v1/knowledge?{urlencode({**self._conditions, **place})}"
        while True:
            with self._turn():
                now = self._clock()
                standing = pace.restart_quiet_period(self._standing(), now)
                wait_s, reason = self._wait(standing, now)
                if wait_s <= 0.0 and (now < self._until or self._is_first):
                    self._is_first = False
                    answer, document = self._registry.read_json(path, MOST_PAGE_BYTES)
                    self._note(standing, answer)
                    if not answer.is_throttled:
                        return answer, document
                    continue
            if now + timedelta(seconds=wait_s) >= self._until:
                return self._too_late(wait_s, reason), None
            self._sleep(wait_s)

    def _too_late(self, wait_s: float, reason: str) -> Answer:
        if wait_s <= 0.0:
            return Answer("later", "the time ran out before all was read")
        text = f"no request may be sent for {wait_s:.0f} s: {reason}"
        return Answer("later", text, retry_after_s=wait_s)

    def _wait(self, standing: Standing, now: datetime) -> tuple[float, str]:
        """Return the seconds until the next request may be sent, and why."""
        # A key that may not contribute may read all the same.
        waits = [self._own] if standing.stopped else [self._own, standing]
        longest = max(waits, key=lambda one: pace.wait_s(one, now))
        return pace.wait_s(longest, now), longest.quiet_reason or ""

    def _turn(self) -> AbstractContextManager[object]:
        """Return a block in which no other process sends to a registry from this store."""
        return nullcontext() if self._outbox is None else self._outbox.changing()

    def _standing(self) -> Standing:
        url, key_id = self._registry.url, self._registry.key_id
        if self._outbox is None:
            return _standings.get((url, key_id), Standing(url, key_id))
        return self._outbox.standing(url, key_id)

    def _note(self, standing: Standing, answer: Answer) -> None:
        """Record what an answer says about further requests."""
        after = pace.after_answer(standing, answer, self._clock(), contributes=False)
        self._own = after
        if answer.kind == "stopped":
            return  # it may take contributions although there is nothing to be read
        if standing.stopped and not answer.is_throttled:
            return  # it may refuse contributions although there is something to be read
        if self._outbox is None:
            _standings[after.registry, after.key_id] = after
        else:
            self._outbox.save(after)


# What searches without a store met, by URL and id of the key. An hour may hold three 429 answers,
# whichever `Registry` they went to.
_standings: dict[tuple[str, str], Standing] = {}
