"""Searching a registry: pages, what is of no use in them, what a server may do, its limits."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from kp_langchain import Registry, TraceStore
from kp_langchain.errors import ConfigError
from kp_langchain.registry.search import MOST_PAGE_BYTES, PAGE_SIZE, SearchPage, search
from tests.loopback_registry import LoopbackRegistry
from tests.registry.test_sender import KEY

IMPATIENT_S = 0.2
TYPES = "ReasoningTrace,ToolCallPattern"
Pages = Callable[..., list[SearchPage]]


def unit(number: int = 0, *, quality: float = 0.9, domain: str = "finance") -> dict[str, Any]:
    """A unit as the registry has it."""
    return {
        "@context": "https://openknowledgepulse.org/schema/v1",
        "@type": "ReasoningTrace",
        "id": f"kp:trace:{uuid.uuid5(uuid.NAMESPACE_URL, str(number))}",
        "metadata": {
            "created_at": "2026-02-01T12:00:00.000Z",
            "task_domain": domain,
            "success": True,
            "quality_score": quality,
            "visibility": "network",
            "privacy_level": "aggregated",
        },
        "task": {"objective": f"add up the fees of month {number}"},
        "steps": [{"step_id": 0, "type": "thought", "content": "the ledger has them"}],
        "outcome": {"result_summary": "12 francs", "confidence": 0.8},
    }


def fill(server: LoopbackRegistry, *units: dict[str, Any]) -> None:
    server.units |= {one["id"]: one for one in units}


class Waiting:
    """A clock that only sleeping moves, and that opens the registry's next window."""

    def __init__(self, server: LoopbackRegistry | None = None) -> None:
        self.now, self.server = datetime(2026, 2, 1, 12, tzinfo=UTC), server
        self.slept: list[float] = []

    def __call__(self) -> datetime:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += timedelta(seconds=seconds)
        if self.server is not None:
            self.server._windows.clear()


@pytest.fixture
def store(tmp_path: Path) -> Iterator[TraceStore]:
    with TraceStore(tmp_path / "traces.db") as store:
        yield store


@pytest.fixture
def pages(server: LoopbackRegistry, store: TraceStore) -> Pages:
    """Searches the registry, and skips the waits."""

    def search_all(
        clock: Waiting | None = None, *, step_s: float = 10.0, key: str | None = KEY, **options: Any
    ) -> list[SearchPage]:
        clock = clock or Waiting()
        registry = Registry(server.url, api_key=key, timeout_s=step_s)
        options = {"domain": "finance", "sleep": clock.sleep, "clock": clock, **options}
        return list(search(registry, store.outbox, **options))

    return search_all


@pytest.fixture
def server() -> Iterator[LoopbackRegistry]:
    with LoopbackRegistry() as server:
        yield server


def objectives(found: list[SearchPage]) -> list[str]:
    return [one["task"]["objective"] for page in found for one in page.units]


def queries(server: LoopbackRegistry) -> list[dict[str, str]]:
    return [
        {name: values[-1] for name, values in parse_qs(urlsplit(path).query).items()}
        for _, path, _, _ in server.requests
    ]


def failing_at(number: int, fault: str | bytes) -> Callable[[int, str, str], str | bytes | None]:
    return lambda at, method, path: fault if at == number else None


def page_of(*entries: object, total: object = 1) -> bytes:
    body = json.dumps({"data": entries, "total": total}).encode()
    return b"HTTP/1.1 200 -\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body)


def test_a_search_reads_page_by_page(server: LoopbackRegistry, pages: Pages) -> None:
    fill(server, *(unit(number, quality=1 - number / 1000) for number in range(120)))
    found = pages()
    assert [(page.answer.kind, page.read, page.next_offset, page.total) for page in found] == [
        ("done", 50, 50, 120), ("done", 50, 100, 120), ("done", 20, None, 120),
    ]  # fmt: skip
    assert objectives(found) == [f"add up the fees of month {number}" for number in range(120)]
    common = {"domain": "finance", "types": TYPES, "limit": "50"}
    assert queries(server) == [common | {"offset": offset} for offset in ("0", "50", "100")]
    assert all(headers["authorization"] == f"Bearer {KEY}" for _, _, headers, _ in server.requests)


def test_conditions_and_bounds_reach_the_registry(server: LoopbackRegistry, pages: Pages) -> None:
    fill(server, unit(1), unit(2, quality=0.5), unit(3, domain="legal"))
    found = pages(q="month 1 & more=?#é", min_quality=0.8, limit=7, offset=2)
    assert queries(server) == [
        {
            "domain": "finance", "types": TYPES, "q": "month 1 & more=?#é",
            "min_quality": "0.8", "limit": "7", "offset": "2",
        }
    ]  # fmt: skip
    assert [(page.answer.kind, page.units) for page in found] == [("done", ())]
    assert objectives(pages(min_quality=0.8)) == ["add up the fees of month 1"]
    fill(server, *(unit(number) for number in range(120)))
    found = pages(limit=60)
    assert [(page.read, page.next_offset) for page in found] == [(50, 50), (10, 60)]
    assert [query["limit"] for query in queries(server)[-2:]] == ["50", "10"]
    assert [page.read for page in pages(limit=60, offset=60)] == [50, 10]
    # Without a key it reads as anybody may.
    assert len(objectives(pages(domain="legal", key=None))) == 0
    assert "authorization" not in server.requests[-1][2]


def test_what_is_no_reasoning_trace_is_counted_and_left_out(
    server: LoopbackRegistry, pages: Pages
) -> None:
    fill(server, unit(1), unit(2))
    server.fragments = [
        "null", "[1]", '"text"', "7", '{"unit": [2]}', '{"id": "x"}',
        '{"unit": {"@type": "ExpertSOP"}}', '{"unit": {"@type": ["ReasoningTrace"]}}',
    ]  # fmt: skip
    (page,) = pages()
    assert len(page.units) == 2
    assert page.read == 10
    assert page.skipped == {"not a JSON object": 5, "neither a trace nor a pattern": 3}


@pytest.mark.parametrize(
    "fragment",
    [
        '{"unit": ' + "[" * 100_000 + "]" * 100_000 + "}",
        '{"unit": {"a": ' + "9" * 5000 + "}}",
        '{"unit": "' + "x" * (MOST_PAGE_BYTES + 1) + '"}',
        '{"unit": nonsense}',
    ],
    ids=["too deep", "a number of 5,000 digits", "too large", "not JSON"],
)
def test_one_unit_that_spoils_its_page_costs_no_other(
    server: LoopbackRegistry, pages: Pages, fragment: str
) -> None:
    fill(server, *(unit(number, quality=1 - number / 1000) for number in range(60)))
    for times, most_requests in ((1, 20), (3, 40)):
        server.requests.clear()
        server.fragments = [fragment] * times
        found = pages()
        assert objectives(found) == [f"add up the fees of month {number}" for number in range(60)]
        assert sum((page.skipped.get("too large or not JSON", 0)) for page in found) == times
        assert {page.answer.kind for page in found} == {"done"}
        assert (sum(page.read for page in found), found[-1].next_offset) == (60 + times, None)
        assert len(server.requests) < most_requests


@pytest.mark.parametrize(
    ("fault", "kind", "reason"),
    [
        (b"HTTP/1.1 200 -\r\nContent-Length: 6\r\n\r\n<html>",
         "stopped", "it answers with a web page"),
        (page_of()[:-4], "later", "cut off"),
        ("half", "later", "cut off"),
        ("garbage", "later", "the connection broke"),
        ("reset_before", "later", "the connection broke"),
        ("500", "later", "500"),
        ("401", "stopped", "it does not know the key"),
        ("404", "stopped", "not seem to be the URL of a registry"),
        ("redirect_away", "stopped", "it redirects elsewhere, which is not followed"),
        (b"HTTP/1.1 200 -\r\nContent-Length: 2\r\n\r\n[]", "later", "no list of units"),
        (b'HTTP/1.1 200 -\r\nContent-Length: 11\r\n\r\n{"data": 1}', "later", "no list of units"),
    ],
    ids=lambda value: value if isinstance(value, str) else "bytes",
)  # fmt: skip
def test_what_a_server_does_wrong_is_said_and_earlier_pages_count(
    server: LoopbackRegistry, pages: Pages, fault: str | bytes, kind: str, reason: str
) -> None:
    fill(server, *(unit(number) for number in range(60)))
    server.misbehave = failing_at(1, fault)
    first, last = pages()
    assert len(first.units) == PAGE_SIZE
    assert (last.answer.kind, last.units, last.read, last.next_offset) == (kind, (), 0, 50)
    assert reason in last.answer.reason
    assert len(server.requests) == 2


@pytest.mark.parametrize("fault", ["slow", "drip"])
def test_a_server_that_answers_drop_by_drop_or_never_is_left(
    server: LoopbackRegistry, pages: Pages, fault: str
) -> None:
    server.misbehave = lambda number, method, path: fault
    (page,) = pages(step_s=IMPATIENT_S)
    assert page.answer.kind == "later"
    assert page.answer.reason == "no answer in time" or fault == "drip"


@pytest.mark.parametrize("fault", ["429_retry_after", page_of(unit())])
def test_what_asks_to_wait_is_read(
    server: LoopbackRegistry, pages: Pages, fault: str | bytes
) -> None:
    fill(server, unit())
    server.misbehave = failing_at(0, fault)
    clock = Waiting()
    assert objectives(pages(clock)) == ["add up the fees of month 0"]
    # One second was asked for, and one is added.
    assert fault != "429_retry_after" or clock.slept == [2.0]


@pytest.mark.parametrize("total", [None, "many", -1, 10**30, True, 1.5])
def test_no_total_is_needed(server: LoopbackRegistry, pages: Pages, total: object) -> None:
    server.misbehave = lambda number, method, path: (
        page_of(*[unit()] * (50 if number == 0 else 3), total=total) if number < 2 else page_of()
    )
    found = pages()
    assert sum(page.read for page in found) == 53
    assert found[-1].next_offset is None


def test_a_server_without_an_end_is_read_to_the_limit(
    server: LoopbackRegistry, pages: Pages
) -> None:
    every = page_of(*[unit()] * 80, total=10**9)
    server.misbehave = lambda number, method, path: every
    found = pages(limit=500, clock=Waiting())
    assert sum(page.read for page in found) == 500
    assert len(server.requests) == 10
    assert [len(page.units) for page in found] == [50] * 10


def test_it_waits_before_the_limit_is_reached(server: LoopbackRegistry, pages: Pages) -> None:
    fill(server, *(unit(number) for number in range(200)))
    server.read_limit = 3
    server.window_clock = lambda: 0.0
    clock = Waiting(server)
    found = pages(clock, timeout_s=600.0)
    assert sum(page.read for page in found) == 200
    assert server.count_429 == 0
    assert clock.slept == [61.0]


def test_it_does_not_wait_longer_than_it_may(server: LoopbackRegistry, pages: Pages) -> None:
    fill(server, *(unit(number) for number in range(200)))
    server.read_limit = 3
    server.window_clock = lambda: 0.0
    clock = Waiting(server)
    *read, last = pages(clock, timeout_s=30.0)
    assert sum(page.read for page in read) == 100
    assert (last.answer.kind, last.next_offset, clock.slept) == ("later", 100, [])
    assert "its limit of 3 requests is reached" in last.answer.reason
    assert last.answer.retry_after_s == 61.0


def test_no_key_meets_three_429_in_an_hour(
    server: LoopbackRegistry, pages: Pages, store: TraceStore
) -> None:
    server.misbehave = lambda number, method, path: "429_retry_after"
    clock = Waiting()
    for _ in range(20):
        last = pages(clock, timeout_s=600.0)[-1]
        assert "no request may be sent for" in last.answer.reason
        clock.now += timedelta(seconds=60)
    assert server.count_429 == 2
    assert not server.revoked
    standing = store.outbox.standing(server.url, Registry(server.url, api_key=KEY).key_id)
    assert len(standing.throttled_at) == 2
    assert standing.quiet_reason is not None
    assert "429" in standing.quiet_reason
    clock.now += timedelta(hours=1)
    assert len(pages(clock)) == 1
    assert server.count_429 == 4  # the first two are more than an hour old


def test_a_search_neither_stops_contributions_nor_lets_them_go_on(
    server: LoopbackRegistry, pages: Pages, store: TraceStore
) -> None:
    fill(server, *(unit(number) for number in range(60)))
    key_id = Registry(server.url, api_key=KEY).key_id
    clock = Waiting()
    server.misbehave = failing_at(0, "404")
    (page,) = pages(clock)
    assert page.answer.kind == "stopped"
    assert not store.outbox.standing(server.url, key_id).stopped
    stopped = replace(
        store.outbox.standing(server.url, key_id),
        stopped=True, quiet_until=clock() + timedelta(hours=1),
    )  # fmt: skip
    store.outbox.save(stopped)
    assert sum(page.read for page in pages(clock)) == 60
    assert store.outbox.standing(server.url, key_id) == stopped
    # Within its limits all the same.
    server.read_limit, server._windows = 1, {}
    *_, last = pages(clock)
    assert "its limit of 1 requests is reached" in last.answer.reason
    assert server.count_429 == 0
    assert clock.slept == []


def test_a_registry_that_states_no_limit_is_asked_slowly(
    server: LoopbackRegistry, pages: Pages
) -> None:
    first, second = page_of(*[unit()] * 50, total=60), page_of(*[unit()] * 10, total=60)
    server.misbehave = lambda number, method, path: second if number else first
    clock = Waiting()
    assert sum(page.read for page in pages(clock)) == 60
    assert clock.slept == [2.0]


@pytest.mark.parametrize(
    "options",
    [
        {"limit": 0}, {"limit": 5001}, {"offset": -1}, {"min_quality": 1.1}, {"domain": ""},
        {"min_quality": float("nan")}, {"domain": "\ud800"}, {"q": "\udfff"}, {"q": "x" * 1001},
    ],
)  # fmt: skip
def test_what_cannot_be_asked_for_is_refused_before_anything_is_sent(
    server: LoopbackRegistry, pages: Pages, options: dict[str, Any]
) -> None:
    with pytest.raises(ConfigError):
        pages(**options)
    assert server.requests == []
