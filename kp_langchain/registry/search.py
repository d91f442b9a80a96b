"""Reads what a registry has, page by page, within its rate limit."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

from kp_langchain.errors import ConfigError
from kp_langchain.registry.answers import Answer, after_answer, json_object, wait_s
from kp_langchain.store.registry_units import Standing

if TYPE_CHECKING:
    from kp_langchain.registry.client import Registry
    from kp_langchain.store.outbox import Outbox

PAGE_SIZE = 50
"""The units of a page."""

DEFAULT_LIMIT = 200
"""How many units a search reads if nothing else is said."""

MOST_UNITS = 5000
"""How many units a search reads at most."""

MOST_PAGE_BYTES = 16 * 2**20
"""The largest page, in bytes. A larger one is asked for in parts."""

_TYPES = ("ReasoningTrace", "ToolCallPattern")
_LONGEST_QUERY_CHARS = 1000


@dataclass(frozen=True, slots=True)
class SearchPage:
    """One page of what a registry has.

    Attributes:
        answer: `done`; for any other kind, there is no unit, this is the last page, and the reason
            says what went wrong.
        units: The reasoning traces and patterns as the registry sent them. They are untrusted:
            nothing of them is checked but that each is a JSON object of one of these types.
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
    registry: Registry,
    outbox: Outbox,
    *,
    domain: str,
    q: str | None = None,
    min_quality: float | None = None,
    limit: int = DEFAULT_LIMIT,
    offset: int = 0,
    timeout_s: float = 60.0,
    sleep: Callable[[float], object] = time.sleep,
    clock: Callable[[], datetime] = lambda: datetime.now(UTC),
) -> Iterator[SearchPage]:
    """Yield the reasoning traces and patterns that a registry has, a page at a time.

    Never raises for what the registry does: the last page says what went wrong.

    Args:
        registry: The registry.
        outbox: The outbox of a store. The search obeys the registry's limits that are recorded
            there, and records those that it meets.
        domain: Only units of this domain. A registry takes no account of case.
        q: Only units with these words, as the registry understands them.
        min_quality: Only units whose claimed quality is at least this, 0 to 1.
        limit: At most so many units, 1 to 5,000.
        offset: Leave out so many at the beginning, which have the highest claimed quality.
        timeout_s: Seconds to take at most. A request under way is not interrupted.
        sleep: Waits some seconds.
        clock: Returns the time in UTC.

    Raises:
        ConfigError: An argument cannot be used.
    """
    if not 1 <= limit <= MOST_UNITS or offset < 0:
        raise ConfigError(
            f"limit={limit} must be 1 to {MOST_UNITS}, and offset={offset} not negative"
        )
    if min_quality is not None and not 0.0 <= min_quality <= 1.0:
        raise ConfigError(f"min_quality={min_quality} must be 0 to 1")
    _check_text("domain", domain)
    conditions = {"domain": domain, "types": ",".join(_TYPES)}
    if min_quality is not None:
        conditions["min_quality"] = str(min_quality)
    if q:
        _check_text("q", q)
        conditions["q"] = q
    until = clock() + timedelta(seconds=timeout_s)
    own = Standing(registry.url, registry.key_id)
    reader = _Reader(registry, own, conditions, outbox, sleep, clock, until)
    return _pages(reader, offset, offset + limit)


def _check_text(name: str, text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ConfigError(f"{name}={text[:80]!r} cannot be sent: it is not Unicode text") from None
    if not text.strip() or len(text) > _LONGEST_QUERY_CHARS:
        raise ConfigError(
            f"{name}={text[:80]!r} must be a text of 1 to {_LONGEST_QUERY_CHARS} characters"
        )


def _pages(reader: _Reader, offset: int, end: int) -> Iterator[SearchPage]:
    size = PAGE_SIZE
    while offset < end:
        size = min(size, end - offset)
        answer = reader.read(offset, size)
        if answer.kind == "done" and answer.content is None and size > 1:
            size //= 2  # one unit may be what makes it too large, or too deep to be parsed
            continue
        page = _page(answer, offset, size)
        yield page
        if page.answer.kind != "done" or page.next_offset is None:
            return
        offset, size = page.next_offset, min(PAGE_SIZE, 2 * size)


def _page(answer: Answer, offset: int, size: int) -> SearchPage:
    if answer.kind == "done" and answer.content is None:
        skipped = {"too large or not JSON": 1}
        return SearchPage(answer, read=1, skipped=skipped, next_offset=offset + 1)
    values = json_object(answer.content)
    items, total = values.get("data"), values.get("total")
    if answer.kind == "done" and not isinstance(items, list):
        answer = replace(answer, kind="later", reason="its answer has no list of units")
    if answer.kind != "done" or not isinstance(items, list):
        return SearchPage(answer, next_offset=offset)
    items = items[:size]
    end = offset + len(items)
    if type(total) is int and total >= 0:
        is_last = not items or end >= total
    else:
        total, is_last = None, len(items) < size
    units, skipped = _units(items)
    return SearchPage(answer, units, len(items), skipped, None if is_last else end, total)


def _units(items: list[Any]) -> tuple[tuple[Mapping[str, Any], ...], dict[str, int]]:
    """Return the traces and patterns of a page, and how many other items it has, by the reason."""
    units, skipped = [], Counter[str]()
    for item in items:
        # A registry wraps each unit in what it knows of it; the protocol's text does not.
        unit = item.get("unit", item) if isinstance(item, dict) else None
        if not isinstance(unit, dict):
            skipped["not a JSON object"] += 1
        elif unit.get("@type") not in _TYPES:
            skipped["neither a trace nor a pattern"] += 1
        else:
            units.append(unit)
    return tuple(units), dict(skipped)


@dataclass(slots=True)
class _Reader:
    """Reads pages, one request at a time, and waits before each as the registry demands.

    Attributes:
        registry: The registry.
        own: What the last answer demands, also of a registry that takes no contributions at
            present.
        conditions: What to look for, as the query of the request.
        outbox: As for `search`, like the others.
        sleep: Waits some seconds.
        clock: Returns the time in UTC.
        until: When all requests and waits must have ended.
    """

    registry: Registry
    own: Standing
    conditions: Mapping[str, str]
    outbox: Outbox
    sleep: Callable[[float], object]
    clock: Callable[[], datetime]
    until: datetime

    def read(self, offset: int, size: int) -> Answer:
        """Return the answer to a request, once it may be sent."""
        query = urlencode({**self.conditions, "limit": size, "offset": offset})
        while True:
            with self.outbox.changing():  # no other process sends from this store meanwhile
                now = self.clock()
                standing = self.outbox.standing(self.own.registry, self.own.key_id)
                # A key that may not contribute may read all the same.
                waits = [self.own] if standing.stopped else [self.own, standing]
                longest = max(waits, key=lambda one: wait_s(one, now))
                rest_s = wait_s(longest, now)
                if now + timedelta(seconds=rest_s) >= self.until:
                    return _too_late(rest_s, longest.quiet_reason)
                if rest_s <= 0.0:
                    answer = self.registry.read(f"/v1/knowledge?{query}", MOST_PAGE_BYTES)
                    self._note(standing, answer)
                    if not answer.is_throttled:
                        return answer
                    continue
            self.sleep(rest_s)

    def _note(self, standing: Standing, answer: Answer) -> None:
        """Record what an answer says about further requests."""
        self.own = after_answer(standing, answer, self.clock())
        # Reading and contributing may be refused apart from each other.
        if answer.kind != "stopped" and (answer.is_throttled or not standing.stopped):
            self.outbox.save(self.own)


def _too_late(rest_s: float, reason: str | None) -> Answer:
    if rest_s <= 0.0:
        return Answer("later", "the time ran out before all was read")
    text = f"no request may be sent for {rest_s:.0f} s: {reason}"
    return Answer("later", text, retry_after_s=rest_s)
