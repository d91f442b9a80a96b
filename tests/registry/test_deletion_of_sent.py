"""A run that is deleted is withdrawn from the registry, and then nothing is left of it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from kp_langchain import TraceStore
from kp_langchain.registry.sender import Sender
from tests.loopback_registry import LoopbackRegistry
from tests.registry.test_sender import FAULTS, KEY, Clock, drive, fill, passed, patience_s, to


@pytest.fixture
def store(url: str) -> Iterator[TraceStore]:
    with TraceStore(url) as store:
        yield store


def test_what_was_never_sent_is_just_gone(store):
    with LoopbackRegistry(keys={KEY}) as server:
        registry = to(server)
        (one,) = fill(store, registry, 1)
        assert store.delete(one).at_registry == 0
        assert store.outbox.entries() == []
        assert Sender(store, registry).drain(60.0)
        assert server.requests == []


def test_what_was_sent_is_withdrawn_and_then_forgotten(store):
    with LoopbackRegistry(keys={KEY}) as server:
        registry = to(server)
        gone, stays = fill(store, registry, 2)
        sender = Sender(store, registry)
        assert sender.drain(60.0)
        assert store.delete(gone).at_registry == 1
        waiting = store.outbox.get(gone)
        assert (waiting.status, waiting.body) == ("to withdraw", None)
        assert [one.trace_id for one in store.outbox.to_withdraw()] == [gone]
        assert sender.drain(60.0)
        assert set(server.units) == {stays}
        assert store.outbox.get(gone) is None
        assert store.outbox.get(stays).state == "sent"


def test_a_run_that_only_fails_keeps_its_row(store):
    with LoopbackRegistry(keys={KEY}) as server:
        registry = to(server)
        (one,) = fill(store, registry, 1)
        sender = Sender(store, registry)
        assert sender.drain(60.0)
        store.report_outcome(one, success=False)
        assert sender.drain(60.0)
        assert store.outbox.get(one).state == "withdrawn"
        assert store.delete(one).at_registry == 0
        assert store.outbox.get(one) is None


def test_one_whose_withdrawal_waits_already(store):
    with LoopbackRegistry(keys={KEY}) as server:
        registry = to(server)
        (one,) = fill(store, registry, 1)
        sender = Sender(store, registry)
        assert sender.drain(60.0)
        store.report_outcome(one, success=False)
        assert store.delete(one).at_registry == 1
        assert sender.drain(60.0)
        assert server.units == {}
        assert store.outbox.get(one) is None


@pytest.mark.parametrize("replays", [True, False])
@pytest.mark.parametrize("fault", [fault for fault in FAULTS if fault not in ("slow", "drip")])
@pytest.mark.parametrize("url", ["sqlite"], indirect=True)
def test_it_comes_to_its_end_whatever_happens_on_the_way(store, fault, replays):
    """Whether the fault meets the sending or the withdrawal."""

    def misbehave(number: int, method: str, path: str) -> str | None:
        return fault if number < 2 or number == 5 else None

    clock = Clock()
    with LoopbackRegistry(keys={KEY}, misbehave=misbehave, replays=replays) as server:
        registry = to(server, timeout_s=patience_s(fault))
        runs = fill(store, registry, 3)
        sender = Sender(store, registry, clock=clock)
        for _ in range(2):
            sender._send_due()
            clock.skip(sender, 0.5)
        store.delete(*runs)
        bodies = [store.outbox.get(one).body for one in runs if store.outbox.get(one)]
        assert set(bodies) <= {None}
        drive(sender, clock)
        assert server.units == {}
        assert store.outbox.entries() == []


@pytest.mark.parametrize("fault", [None, "reset_after", "reset_before", "500", "422", "no_id"])
def test_a_deletion_while_it_is_on_its_way(store, fault):
    """What is written down of the attempt has no text, and the unit does not stay there."""

    def misbehave(number: int, method: str, path: str) -> str | None:
        if number == 0:
            store.delete(one)
            return fault
        if number == 1:
            unit = store.outbox.get(one)
            assert (unit.body, unit.issues) == (None, None)
        return None

    clock = Clock()
    with LoopbackRegistry(keys={KEY}, misbehave=misbehave) as server:
        registry = to(server)
        (one,) = fill(store, registry, 1)
        drive(Sender(store, registry, clock=clock), clock)
        assert server.units == {}
        assert store.outbox.entries() == []


def test_a_deletion_during_the_withdrawal_that_a_verdict_asked(store):
    def misbehave(number: int, method: str, path: str) -> None:
        if method == "DELETE":
            store.delete(one)

    clock = Clock()
    with LoopbackRegistry(keys={KEY}, misbehave=misbehave) as server:
        registry = to(server)
        (one,) = fill(store, registry, 1)
        sender = Sender(store, registry, clock=clock)
        drive(sender, clock)
        store.report_outcome(one, success=False)
        drive(sender, clock)
        assert server.units == {}
        assert store.outbox.entries() == []


def test_what_a_registry_has_of_a_refused_one_is_withdrawn(store):
    with LoopbackRegistry(keys={KEY}) as server:
        registry = to(server)
        (one,) = fill(store, registry, 1)
        sender = Sender(store, registry)
        assert sender.drain(60.0)
        sent = store.outbox.get(one)
        dead = replace(sent, state="dead", body="{}", issues=({"path": "", "message": "quoted"},))
        store.outbox.save(dead)
        assert store.delete(one).at_registry == 1
        unit = store.outbox.get(one)
        assert (unit.status, unit.body, unit.issues) == ("to withdraw", None, None)
        assert sender.drain(60.0)
        assert (server.units, store.outbox.entries()) == ({}, [])


def test_an_id_that_no_index_takes_is_withdrawn_by_its_own_name(store):
    clock = Clock()
    run = passed()
    run.trace.id = f"kp:trace:{'x' * 300}"
    with LoopbackRegistry(
        keys={KEY}, misbehave=lambda number, *_: "reset_after" if number == 0 else None
    ) as server:
        registry = to(server)
        store.add(run, registry=registry.url)
        sender = Sender(store, registry, clock=clock)
        sender._send_due()
        assert set(server.units) == {run.trace.id}
        assert store.delete(run.trace.id).at_registry == 1
        drive(sender, clock)
        assert (server.units, store.outbox.entries()) == ({}, [])


def test_one_that_the_registry_does_not_delete_stays_to_be_withdrawn(store):
    with LoopbackRegistry(keys={KEY}, agents={KEY: "kp:agent:other"}) as server:
        registry = to(server)
        run = passed(agent_id="kp:agent:me")
        store.add(run, registry=registry.url)
        clock = Clock()
        sender = Sender(store, registry, clock=clock)
        drive(sender, clock)
        store.delete(run.trace.id)
        clock.skip(sender, 60.0)
        assert sender._send_due() > 0
        unit = store.outbox.get(run.trace.id)
        assert (unit.status, unit.body) == ("to withdraw", None)
        assert "may not be deleted" in unit.reason


def test_a_run_that_comes_back_is_not_sent_while_the_earlier_one_is_withdrawn(store):
    with LoopbackRegistry(keys={KEY}) as server:
        registry = to(server)
        run = passed()
        store.add(run, registry=registry.url)
        sender = Sender(store, registry)
        assert sender.drain(60.0)
        store.delete(run.trace.id)
        store.add(run, registry=registry.url)
        assert sender.drain(60.0)
        assert server.units == {}
        assert store.outbox.get(run.trace.id).state == "withdrawn"
