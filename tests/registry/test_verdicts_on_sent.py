"""A verdict on a run that was sent and still passes: the registry gets what holds now."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator

import pytest

from kp_langchain import TraceStore
from kp_langchain.registry import Registry
from kp_langchain.registry.sender import Sender
from tests.loopback_registry import LoopbackRegistry
from tests.registry.test_sender import FAULTS, KEY, Clock, drive, passed, patience_s, to


@pytest.fixture
def store(url: str) -> Iterator[TraceStore]:
    with TraceStore(url) as store:
        yield store


def fill(store: TraceStore, registry: Registry) -> str:
    """Add a run that passes whatever is said of it."""
    run = passed(threshold=0.2)
    store.add(run, registry=registry.url)
    return run.trace.id


def fail(store: TraceStore, trace_id: str, confidence: float = 1.0) -> None:
    (change,) = store.report_outcome(trace_id, success=False, confidence=confidence)
    assert change.decision == "contributed"


def agrees(store: TraceStore, server: LoopbackRegistry, trace_id: str) -> bool:
    """Whether the registry says of a run what the store says of it."""
    run, unit = store.get(trace_id), server.units[trace_id]
    assert run is not None
    told = (unit["metadata"]["success"], unit["metadata"]["quality_score"])
    return told == (run.success, run.score) and unit["outcome"]["confidence"] == run.confidence


def test_what_changed_is_sent_again(store):
    with LoopbackRegistry(keys={KEY}) as server:
        registry = to(server)
        one = fill(store, registry)
        sender = Sender(store, registry)
        assert sender.drain(60.0)
        fail(store, one)
        waiting = store.outbox.get(one)
        assert (waiting.state, waiting.registry_id) == ("pending", one)
        assert waiting.status == "to replace"
        assert sender.drain(60.0)
        assert agrees(store, server, one)
        assert server.units[one]["metadata"]["validated_by"] == ["reported"]
        assert store.outbox.get(one).status == "sent"
        assert [method for method, *_ in server.requests] == ["POST", "POST"]
        assert len(set(server.keys_seen.values())) == 2
        assert server.doubled == []


def test_what_did_not_change_is_not(store):
    with LoopbackRegistry(keys={KEY}) as server:
        registry = to(server)
        one = fill(store, registry)
        sender = Sender(store, registry)
        assert sender.drain(60.0)
        for _ in range(3):
            fail(store, one, confidence=0.5)
            assert sender.drain(60.0)
        assert len(server.requests) == 2


@pytest.mark.parametrize(
    ("url", "fault", "replays"),
    [
        *(
            pytest.param("sqlite", fault, replays, id=f"{fault}{'' if replays else ', no replays'}")
            for fault in FAULTS
            for replays in (True, False)
            if fault not in ("slow", "drip")
        ),
        # What happened to an attempt, a store learns in one of these ways.
        *(("postgresql", fault, False) for fault in ("500", "429_retry_after", "reset_after")),
    ],
    indirect=["url"],
)
def test_it_comes_through_whatever_happens_to_the_first_attempts(store, fault, replays):
    faulty: list[int] = []

    def misbehave(number: int, method: str, path: str) -> str | None:
        if number == 0 or len(faulty) == 2:
            return None
        faulty.append(number)
        return fault

    clock = Clock()
    with LoopbackRegistry(keys={KEY}, misbehave=misbehave, replays=replays) as server:
        registry = to(server, timeout_s=patience_s(fault))
        one = fill(store, registry)
        drive(Sender(store, registry, clock=clock), clock)
        fail(store, one)
        location = store.database.location
        with TraceStore(location.url or location.path) as next_process:
            drive(Sender(next_process, registry, clock=clock), clock)
        assert agrees(store, server, one)
        assert store.outbox.get(one).state == "sent"
        assert server.doubled == []
        assert server.count_429 <= 2


@pytest.mark.parametrize("fault", [None, "reset_after", "reset_before", "500", "422"])
def test_a_verdict_while_it_is_on_its_way_is_not_lost(store, fault):
    def misbehave(number: int, method: str, path: str) -> str | None:
        if number == 0:
            fail(store, one)
            return fault
        return None

    clock = Clock()
    with LoopbackRegistry(keys={KEY}, misbehave=misbehave) as server:
        registry = to(server)
        one = fill(store, registry)
        drive(Sender(store, registry, clock=clock), clock)
        assert agrees(store, server, one)
        assert store.outbox.get(one).status == "sent"


def test_one_that_is_refused_is_dead_and_what_was_sent_can_be_withdrawn(store, caplog):
    def misbehave(number: int, method: str, path: str) -> str | None:
        return "422" if number == 1 else None

    clock = Clock()
    with LoopbackRegistry(keys={KEY}, misbehave=misbehave) as server:
        registry = to(server)
        one = fill(store, registry)
        sender = Sender(store, registry, clock=clock)
        drive(sender, clock)
        fail(store, one)
        with caplog.at_level(logging.WARNING, "kp_langchain"):
            drive(sender, clock)
        dead = store.outbox.get(one)
        assert (dead.state, dead.registry_id) == ("dead", one)
        assert "refuses" in caplog.text
        store.report_outcome(one, success=False, confidence=0.0)
        assert store.outbox.get(one).state == "pending"  # still passes, so it is tried again
        drive(sender, clock)
        assert agrees(store, server, one)


def test_what_the_registry_has_of_a_refused_one_is_withdrawn(store):
    def misbehave(number: int, method: str, path: str) -> str | None:
        return "422" if number == 1 else None

    clock = Clock()
    with LoopbackRegistry(keys={KEY}, misbehave=misbehave) as server:
        registry = to(server)
        run = passed(threshold=0.6)
        store.add(run, registry=registry.url)
        one = run.trace.id
        sender = Sender(store, registry, clock=clock)
        drive(sender, clock)
        store.report_outcome(one, success=True, confidence=0.95)
        drive(sender, clock)
        assert store.outbox.get(one).state == "dead"
        store.report_outcome(one, success=False)
        assert store.outbox.get(one).status == "to withdraw"
        drive(sender, clock)
        assert server.units == {}
        assert store.outbox.get(one).state == "withdrawn"


def test_it_waits_for_a_key_as_anything_else_does(store):
    with LoopbackRegistry(keys={KEY}) as server:
        registry = to(server)
        one = fill(store, registry)
        assert Sender(store, registry).drain(60.0)
        server.keys.clear()
        fail(store, one)
        assert not Sender(store, registry).drain(5.0)
        assert store.outbox.get(one).status == "to replace"
        server.keys.add("kp_new")
        assert Sender(store, Registry(server.url, api_key="kp_new")).drain(60.0)
        assert agrees(store, server, one)


def test_a_text_that_comes_back_is_another_request(store):
    """Else the registry answers as it did before, and keeps what it has."""
    with LoopbackRegistry(keys={KEY}) as server:
        registry = to(server)
        one = fill(store, registry)
        sender = Sender(store, registry)
        assert sender.drain(60.0)
        for confidence in (0.5, 0.25, 0.5, 0.25):
            fail(store, one, confidence)
            assert sender.drain(60.0)
            assert agrees(store, server, one)
        bodies = [json.loads(body) for body in server.received]
        assert len(bodies) == 5
        assert bodies[1] == bodies[3] != bodies[2]
