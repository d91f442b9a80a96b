"""What the outbox sends to a registry that misbehaves: each trace arrives, once, or stays.

Whatever comes of it later (another verdict, a withdrawal, a deletion) arrives, too. `Sending` is
the one place that knows how the sender is driven without waiting.
"""

from __future__ import annotations

import itertools
import json
import logging
import os
import random
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from urllib.parse import unquote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kp_langchain import Registry, ScoredTrace, TraceStore
from kp_langchain.errors import StoreError
from kp_langchain.registry import sender as sender_module
from kp_langchain.registry.answers import (
    Allowance,
    Answer,
    after_answer,
    backoff_s,
    seconds_until,
    wait_s,
)
from kp_langchain.registry.sender import Sender
from kp_langchain.store import jobs as jobs_module
from kp_langchain.store.jobs import SEND, JobLoop, Jobs
from kp_langchain.store.registry_units import Standing
from tests.loopback_registry import LoopbackRegistry
from tests.store.conftest import LONG_S, _scored, execute, fork

KEY = "kp_0123456789abcdef0123456789abcdef"


@pytest.fixture
def store(tmp_path) -> Iterator[TraceStore]:
    with TraceStore(tmp_path / "traces.db") as store:
        yield store


def passed(
    number: int = 0, *, agent_id: str | None = None, threshold: float = 0.6, **more
) -> ScoredTrace:
    options = {"created_at": datetime.now(UTC), "visibility": "network", "threshold": threshold}
    one = _scored(number, **options, **more)
    one.trace.metadata.agent_id = agent_id
    one.trace.steps[1] = one.trace.steps[0].model_copy(update={"step_id": 1})
    return one


def to(server: LoopbackRegistry, **options: float) -> Registry:
    return Registry(server.url, api_key=KEY, **options)


class Clock:
    """The time, which goes on by hand as well."""

    def __init__(self) -> None:
        self.passed_s = 0.0

    def __call__(self) -> datetime:
        return datetime.now(UTC) + timedelta(seconds=self.passed_s)

    def skip(self, seconds: float) -> None:
        self.passed_s += seconds


class Sending:
    """A store whose outbox is sent to a registry in this thread, with the waits skipped."""

    def __init__(self, store: TraceStore, registry: Registry) -> None:
        self.store, self.registry, self.clock = store, registry, Clock()
        self.sender = Sender(store, registry, clock=self.clock)
        self.server: LoopbackRegistry = None  # type: ignore[assignment]

    def fill(self, number: int = 1, **options) -> list[str]:
        runs = [passed(at, **options) for at in range(number)]
        self.store.add(*runs, registry=self.registry.url)
        return [run.trace.id for run in runs]

    def turn(self) -> float | None:
        """Send what is due, and skip the wait until the next turn; return that wait."""
        wait_s = self.sender.loop.do_due()
        self.clock.skip(wait_s or 0.0)
        return wait_s

    def attempt(self) -> float | None:
        """Make one attempt; return the wait until the next."""
        with self.store.outbox.sending() as lease:
            return self.sender._send_one(lease)

    def drive(self, turns: int = 60) -> None:
        """Go through the outbox until nothing is left."""
        for _ in range(turns):
            if self.turn() is None:
                return
        raise AssertionError("it never comes to an end")

    def status(self, trace_id: str) -> str | None:
        unit = self.store.outbox.get(trace_id)
        return unit and unit.status

    def judge(self, trace_id: str, *, success: bool, **more) -> None:
        """Give a verdict by which a run passes, or does not."""
        (change,) = self.store.report_outcome(trace_id, success=success, **more)
        is_low = self.store.get(trace_id).threshold < 0.5  # it passes whatever is said of it
        assert (change.decision == "kept") is (success or is_low)

    def agrees(self, trace_id: str) -> bool:
        """Whether the registry says of a run what the store says of it."""
        run, unit = self.store.get(trace_id), self.server.units[trace_id]
        said = (unit["metadata"]["success"], unit["metadata"]["quality_score"])
        return said == (run.success, run.score) and unit["outcome"]["confidence"] == run.confidence

    def methods(self) -> list[str]:
        return [method for method, *_ in self.server.requests]


@contextmanager
def sending(store, misbehave=None, *, timeout_s=60.0, keys=(KEY,), **options) -> Iterator[Sending]:
    with LoopbackRegistry(keys={*keys}, misbehave=misbehave, **options) as server:
        here = Sending(store, to(server, timeout_s=timeout_s))
        here.server = server
        yield here


def first(fault: str | bytes | None, *, of: str = "", act: Callable[[], object] = bool):
    """Misbehave at the first request (of a method), while something else happens."""
    left = [True]

    def misbehave(number: int, method: str, path: str) -> str | bytes | None:
        if of in ("", method) and left.pop() if left else False:
            act()
            return fault
        return None

    return misbehave


# ------------------------------------------------------------------ what is sent


def test_what_is_pending_is_sent_once_in_the_wire_form(store):
    with sending(store) as here:
        run = passed()
        store.add(run, registry=here.registry.url)
        here.fill(4)
        store.add(passed(), registry="https://another.example.org")
        here.drive()
        here.drive()
        assert here.server.units[run.trace.id] == json.loads(run.trace.model_dump_json())
        assert len(here.server.requests) == len(here.server.units) == 5
        assert store.outbox.counts() == {"pending": 1, "sent": 5, "dead": 0, "withdrawn": 0}
        one = store.outbox.get(run.trace.id)
        assert (one.registry_id, one.body, one.attempts) == (run.trace.id, None, 1)
        _, _, headers, _ = here.server.requests[0]
        assert headers["kp-schema-version"] == "v1"
        assert headers["authorization"] == f"Bearer {KEY}"


FAULTS = [
    "500", "503_retry_after", "reset_before", "no_id", "429", "429_retry_after", "429_date",
    "401", "403", "garbage", "redirect_away", "404", "half", "reset_after", "stored_no_id",
    "huge", "bad_json", "stored_500", "slow", "drip",
]  # fmt: skip
ENDLESS = {"slow", "drip"}
REPLAYED = ("403", "half", "reset_after", "stored_no_id", "stored_500", "no_id")


@pytest.mark.parametrize(
    ("url", "fault", "replays"),
    [
        *(("sqlite", fault, False) for fault in FAULTS),
        *(("sqlite", fault, True) for fault in REPLAYED),
        # What happened to an attempt, a store learns in one of these ways.
        *(("postgresql", fault, False) for fault in ("500", "429_retry_after", "reset_after")),
    ],
    indirect=["url"],
)
def test_each_thing_comes_through_whatever_happens_to_its_first_attempts(url, fault, replays):
    """Sending, another verdict, a withdrawal, a deletion; each is begun by one process."""
    left, throttled = [0], []

    def misbehave(number: int, method: str, path: str) -> str | None:
        left[0] -= 1
        if left[0] < 0:
            return None
        if fault.startswith("429"):
            throttled.append(here.clock())
        return fault

    # As short as it may be where the fault is that no answer comes, and else without effect.
    timeout_s = 0.2 if fault in ENDLESS else 60.0
    with (
        TraceStore(url) as store,
        sending(store, misbehave, timeout_s=timeout_s, replays=replays, hour_s=0.0) as here,
    ):
        (stays,) = here.fill(threshold=0.2)
        goes, other = here.fill(2)
        left[0] = 2
        here.drive()
        assert {*here.server.units} == {stays, goes, other}
        assert store.outbox.counts()["sent"] == 3
        here.judge(stays, success=False)
        left[0] = 2
        here.turn()
        with TraceStore(url) as next_process:
            here.sender = Sender(next_process, here.registry, clock=here.clock)
            here.drive()
        assert here.agrees(stays)
        assert here.status(stays) == "sent"
        here.judge(goes, success=False)
        left[0] = 2
        here.drive()
        assert here.status(goes) == "withdrawn"
        store.delete(goes, other)
        left[0] = 2
        here.drive()
        # 404 says that it is gone already, and any 2xx that it is now: then nothing is left to do.
        assert fault in ("404", "no_id") or {*here.server.units} == {stays}
        assert [one.trace_id for one in store.outbox.contributions()] == [stays]
        assert here.server.doubled == []
        hours = [third - first for first, third in zip(throttled, throttled[2:], strict=False)]
        assert all(passed > timedelta(hours=1) for passed in hours)


def test_what_is_refused_is_dead_with_the_reason(store):
    for fault in ("400", "413", "422"):
        with sending(store, first(fault)) as here:
            ids = here.fill(2)
            here.drive()
            (dead,) = store.outbox.contributions(state="dead")
            assert dead.reason.startswith(fault)
            assert dead.reason.endswith("steps.0.type: not one of ours")
            assert {*here.server.units} == {*ids} - {dead.trace_id}
            assert store.outbox.get(dead.trace_id).body is not None
            store.delete(*ids)


@pytest.mark.parametrize(
    "trace_id", ["kp:trace:Finance Demo/1?", "kp:trace:A\n\x00B", "kp:trace:" + "long " * 200]
)
def test_what_may_have_arrived_is_asked_for_by_the_id_it_was_sent_with(store, trace_id):
    with sending(store, first("reset_after"), replays=False) as here:
        here.fill(trace_id=trace_id)
        here.drive()
        sent = trace_id.replace("\x00", "\ufffd")
        assert {*here.server.units} == {sent}
        assert (here.status(trace_id), here.methods()) == ("sent", ["POST", "GET"])
        assert unquote(here.server.requests[1][1]) == f"/v1/knowledge/{sent}"
        assert store.delete(trace_id).at_registry == 1
        here.drive()
        assert (here.server.units, store.outbox.contributions()) == ({}, [])


def test_one_that_always_fails_does_not_hold_the_others_up(store):
    with sending(store) as here:
        ids = here.fill(4)
        bad = store.outbox.next_pending(here.registry.url)
        here.server.misbehave = lambda number, *_: (
            "500" if here.server.keys_seen[number] == bad.idempotency_key else None
        )
        for _ in range(8):
            here.turn()
        assert {*here.server.units} == {*ids} - {bad.trace_id}
        assert here.status(bad.trace_id) == "pending"


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_processes_share_the_work_on_both_engines(url):
    faults = {1: "reset_after", 4: "half", 9: "500"}
    with TraceStore(url) as store, sending(store, lambda number, *_: faults.get(number)) as here:
        sender = Sender(store, here.registry)  # with a thread of its own
        here.fill(10)
        sender.loop.wake()

        def child() -> bool:
            here.fill(10)
            return sender.loop.drain(600.0)

        threads = [threading.Thread(target=lambda: codes.append(fork(child))) for _ in range(2)]
        codes: list[int] = []
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(600)
        assert codes == [0, 0]
        assert sender.loop.drain(600.0)
        assert (len(here.server.units), here.server.doubled) == (30, [])
        assert store.outbox.counts()["sent"] == 30


def test_a_turn_ends_and_lets_another_process_take_its_own(store, monkeypatch):
    with sending(store) as here:
        here.fill(3)
        with monkeypatch.context() as patch:
            patch.setattr(sender_module, "_TURN_S", 0.0)
            assert here.turn() == sender_module._OTHERS_TURN_S
        with store.outbox.sending() as lease:
            assert lease is not None
            assert here.turn() == sender_module._RETRY_TURN_S
        assert store.outbox.counts()["pending"] == 3
        with TraceStore(store.location) as other:
            assert Sender(other, here.registry).loop.drain(600.0)
        assert here.sender.loop.drain(600.0)  # as another one sent the last
        assert store.outbox.counts()["sent"] == 3


def test_the_lease_of_a_process_that_died_expires_and_what_it_was_at_is_asked_for(store):
    """Its answer, if it comes after all, changes nothing any more."""
    with sending(store) as here:
        (one,) = here.fill()
        outbox, lease = store.outbox, Jobs(store.database, 60.0)
        assert lease.take_only(SEND)
        read = outbox.next_pending(here.registry.url)
        now = datetime.now(UTC)
        tried = replace(read, attempts=1, first_attempt_at=now)
        assert outbox.begin(tried, read=read, lease=lease)
        here.registry.contribute(read.body.encode(), read.idempotency_key)
        assert here.turn() == sender_module._RETRY_TURN_S
        execute(store, "UPDATE jobs SET lease_until = 1")
        here.drive()
        assert (here.status(one), here.methods()) == ("sent", ["POST", "GET"])
        with store.outbox.sending(), pytest.raises(StoreError, match="another process has the job"):
            outbox.record_answer(replace(tried, reason="no answer"), read=read, lease=lease)
        assert here.status(one) == "sent"


def test_a_broken_store_is_told_and_tried_again(tmp_path, caplog):
    path = tmp_path / "traces.db"
    path.write_bytes(b"this is no database at all, but long enough to be taken for one" * 40)
    with sending(TraceStore(path)) as here, caplog.at_level(logging.WARNING, "kp_langchain"):
        assert here.turn() > 0
        assert "cannot be sent" in caplog.text
        path.unlink()
        assert here.turn() is None


def test_what_failed_is_tried_again_after_its_pause_or_for_who_waits(monkeypatch):
    monkeypatch.setattr(jobs_module, "pause_s", lambda *_: LONG_S)
    waits, attempts = threading.Semaphore(0), []

    class Watched(threading.Condition):
        def wait(self, timeout=None):
            waits.release()
            return super().wait(timeout)

    def fail_twice(_):
        attempts.append(len(attempts))
        if len(attempts) <= 2:
            raise OSError

    loop = JobLoop("test jobs", fail_twice, "nothing can be done")
    loop._condition = Watched()
    for _ in range(3):
        loop.wake()
        assert waits.acquire(timeout=LONG_S)
        assert attempts == [0]
    assert not loop.drain(60.0)
    assert attempts == [0, 1]
    assert loop.drain(60.0)


# ------------------------------------------------------------------ keys and refusals


def warnings_of(caplog, url):
    return [one.getMessage() for one in caplog.records if url in one.getMessage()]


def test_a_key_that_is_not_known_stops_everything_with_one_warning(store, caplog):
    with sending(store, keys={"another"}) as here, caplog.at_level(logging.WARNING, "kp_langchain"):
        here.fill(3)
        for _ in range(10):
            assert here.turn() > 3000
        assert {status for *_, status in here.server.requests} == {429}
        standing = store.outbox.standing(here.registry.url, here.registry.key_id)
        assert (standing.stopped, standing.throttled_at) == (True, ())
        (warning,) = warnings_of(caplog, here.server.url)
        assert "accepts nothing" in warning
        assert "it does not know the key" in warning
        assert "kp-langchain registry register" in warning
        assert KEY not in caplog.text
        here.server.keys |= {KEY, "kp_new"}
        other = Sending(store, Registry(here.server.url, api_key="kp_new"))
        other.drive()  # another key is another matter
        here.fill(1)
        here.drive()
        assert len(here.server.units) == 4


def test_without_a_key_nothing_is_sent(store, caplog):
    with sending(store) as here, caplog.at_level(logging.WARNING, "kp_langchain"):
        here.sender = Sender(store, Registry(here.server.url), clock=here.clock)
        one, other = here.fill(2)
        assert here.turn() > 3000
        here.judge(one, success=False)
        assert here.turn() > 3000
        assert (here.server.requests, here.status(other)) == ([], "pending")
        (warning,) = warnings_of(caplog, here.server.url)
        assert "kp-langchain registry register" in warning


def test_after_a_429_a_restart_is_silent_too(store):
    with sending(store, first("429")) as here:
        here.fill(2)
        wait_s = here.sender.loop.do_due()
        with TraceStore(store.location) as reopened:
            here.sender = Sender(reopened, here.registry, clock=here.clock)
            assert min(wait_s, here.sender.loop.do_due()) > 30
            assert len(here.server.requests) == 1
            here.drive()
        assert (len(here.server.units), here.server.count_429) == (2, 1)


PAGE = b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: 6\r\n\r\n<html>"
REFUSED = (403, b'{"error": "Minimum KP-REP score of 0.1 required"}')


def test_what_stopped_it_does_not_run_into_the_old_refusal_once_it_is_mended(store, caplog):
    with sending(store, lambda *_: PAGE) as here:
        ids = here.fill(3)
        assert here.turn() > 3000
        assert len(here.server.requests) == 1
        assert "does not seem to be the URL of a registry" in caplog.text
        here.server.misbehave, here.server.reputation_suffices = lambda *_: None, False
        here.clock.skip(1.0)
        assert here.turn() > 3000
        here.server.reputation_suffices = True
        here.server.keys.add("kp_new")
        fresh = Sending(store, Registry(here.server.url, api_key="kp_new"))
        fresh.attempt()  # nor does a fresh key
        here.clock.skip(1.0)
        here.drive()
        assert {*here.server.units} == {*ids}
        posts = [status for method, *_, status in here.server.requests if method == "POST"]
        assert posts == [None, 403, 201, 201, 201]


def test_an_answer_to_an_attempt_of_which_nobody_knows_holds_up_nothing(store):
    with sending(store) as here:
        (one,) = here.fill(1)
        key = store.outbox.next_pending(here.registry.url).idempotency_key
        stored = b'{"data": {"id": "%s"}}' % one.encode()
        here.server.answered[key] = (201, stored)  # the unit may have been deleted since
        here.drive()
        assert (list(here.server.units), here.status(one)) == ([one], "sent")
        ids = here.fill(4)
        before = store.outbox.next_pending(here.registry.url)
        here.server.answered[before.idempotency_key] = REFUSED
        assert 0 < here.turn() < 5
        assert {*here.server.units} == {one, *ids} - {before.trace_id}
        assert here.turn() is None
        assert {*here.server.units} == {one, *ids}


def test_a_registry_that_always_says_it_again_is_not_asked_all_the_time(store):
    raw = (
        b"HTTP/1.1 403 No\r\nIdempotency-Replayed: true\r\nX-RateLimit-Limit: 30\r\n"
        b"X-RateLimit-Remaining: 29\r\nX-RateLimit-Reset: 60\r\nContent-Length: 2\r\n\r\n{}"
    )
    with sending(store, lambda *_: raw) as here:
        here.fill(1)
        while here.clock.passed_s < 3600:
            here.turn()
            here.clock.skip(1.0)
        assert len(here.server.requests) < 20


# ------------------------------------------------------------------ verdicts on what was sent


def test_a_verdict_that_changes_what_was_sent_sends_it_again(store):
    with sending(store) as here:
        (one,) = here.fill(threshold=0.2)
        here.drive()
        here.judge(one, success=False)
        waiting = store.outbox.get(one)
        assert (waiting.registry_id, waiting.status) == (one, "to replace")
        here.drive()
        assert here.agrees(one)
        assert here.server.units[one]["metadata"]["validated_by"] == ["reported"]
        for confidence in (0.0, 0.5, 0.25, 0.5):  # a text that comes back is another request
            for _ in range(2):  # what did not change is not sent
                here.judge(one, success=False, confidence=confidence)
                here.drive()
            assert here.agrees(one)
        bodies = [json.loads(body) for body in here.server.received]
        assert (len(bodies), bodies[3] != bodies[2], bodies[2] == bodies[4]) == (5, True, True)
        assert here.server.doubled == []
        here.server.keys.clear()  # it waits for a key as anything else does
        here.judge(one, success=True)
        assert here.turn() > 3000
        assert here.status(one) == "to replace"


# During which request what happens, what becomes of the run then; None if it is forgotten.
RACES = [
    ("POST", "fails", "withdrawn"),
    ("POST", "fails and still passes", "sent"),
    ("POST", "is deleted", None),
    ("DELETE", "succeeds", "sent"),
    ("DELETE", "is deleted", None),
]


@pytest.mark.parametrize("fault", [None, "reset_after", "reset_before", "500", "422", "no_id"])
@pytest.mark.parametrize(("during", "event", "then"), RACES)
def test_what_happens_during_a_request_is_not_lost(store, during, event, then, fault):
    """What is written down of the attempt has no text of a run that is deleted."""
    with sending(store) as here:
        threshold = 0.2 if "still passes" in event else 0.6
        (one,) = here.fill(threshold=threshold, content="a secret text")
        if during == "DELETE":
            here.drive()
            here.judge(one, success=False)

        def act() -> None:
            if event == "is deleted":
                store.delete(one)
                assert "a secret text" not in str(execute(store, "SELECT * FROM outbox"))
            else:
                here.judge(one, success=event == "succeeds")

        here.server.misbehave = first(fault, of=during, act=act)
        here.drive()
        if then == "withdrawn" and fault == "422":
            then = "dead"
        assert here.status(one) == then
        # A registry that only says that it deleted the unit is believed.
        is_told_so = (during, event, fault) == ("DELETE", "is deleted", "no_id")
        assert [*here.server.units] == [one] * (then == "sent" or is_told_so)
        assert then != "sent" or here.agrees(one)
        assert here.server.doubled == []


def test_one_whose_new_text_is_refused_can_still_be_sent_again_or_withdrawn(store, caplog):
    with sending(store, lambda number, *_: "422" if number == 1 else None) as here:
        (one,) = here.fill()
        here.drive()
        with caplog.at_level(logging.WARNING, "kp_langchain"):
            here.judge(one, success=True, confidence=0.95)
            here.drive()
        dead = store.outbox.get(one)
        assert (dead.state, dead.registry_id, "refuses" in caplog.text) == ("dead", one, True)
        here.judge(one, success=True, confidence=0.9)
        assert here.status(one) == "to replace"
        here.drive()
        assert here.agrees(one)
        store.outbox.save(replace(store.outbox.get(one), state="dead", body="{}"))
        here.judge(one, success=False)
        assert here.status(one) == "to withdraw"
        here.drive()
        assert (here.server.units, here.status(one)) == ({}, "withdrawn")


@pytest.mark.parametrize("status", ["403", "405", "400"])
def test_a_deletion_that_is_refused_does_not_hold_up_the_others(store, status, caplog):
    fault = f"HTTP/1.1 {status} No\r\ncontent-length: 0\r\n\r\n".encode()
    with sending(store, lambda number, method, _: fault if method == "DELETE" else None) as here:
        one, other = here.fill(2)
        here.drive()
        here.judge(one, success=False)
        here.clock.skip(1.0)
        here.sender.loop.do_due()
        assert here.status(one) == "to withdraw"
        assert "does not delete" in caplog.text
        assert not store.outbox.standing(here.registry.url, here.registry.key_id).stopped
        (third,) = here.fill()
        here.clock.skip(10.0)
        here.sender.loop.do_due()
        assert {*here.server.units} == {one, other, third}


def change_minds(store, ids, seed):
    draw = random.Random(seed)
    for _ in range(40):
        store.report_outcome(draw.choice(ids), success=draw.random() < 0.5)


def test_verdicts_in_any_order_leave_the_registry_what_passes(store):
    """Two threads change their minds, while a sender and a registry that fails are at work."""
    faults = itertools.cycle([None, "reset_after", None, "stored_500", "500", None, "reset_before"])
    with sending(store, lambda *_: next(faults)) as here:
        ids = here.fill(3)
        threads = [
            threading.Thread(target=change_minds, args=(store, ids, seed)) for seed in (1, 2)
        ]
        for thread in threads:
            thread.start()
        while any(thread.is_alive() for thread in threads):
            here.turn()
            here.clock.skip(1.0)
        here.server.misbehave = lambda *_: None
        here.drive()
        passing = {id_ for id_ in ids if store.get(id_).decision == "kept"}
        assert {*here.server.units} == passing
        assert {here.status(id_) for id_ in passing} <= {"sent"}
        assert all(store.get(id_).success == store.verdicts(id_)[-1].success for id_ in ids)


# ------------------------------------------------------------------ deletion of what was sent


def test_what_was_never_sent_is_just_gone_and_what_was_is_withdrawn_and_forgotten(url):
    with TraceStore(url) as store, sending(store) as here:
        (one,) = here.fill()
        assert store.delete(one).at_registry == 0
        assert store.outbox.contributions() == here.server.requests == []
        gone, stays, failed, dead = here.fill(4)
        here.drive()
        assert store.delete(gone).at_registry == 1
        waiting = store.outbox.get(gone)
        assert (waiting.status, waiting.body) == ("to withdraw", None)
        assert [each.trace_id for each in store.outbox.to_withdraw()] == [gone]
        here.judge(failed, success=False)
        assert store.delete(failed).at_registry == 1  # its withdrawal waits already
        quoting = replace(store.outbox.get(dead), state="dead", body="{}", reason="quoted")
        store.outbox.save(quoting)
        assert store.delete(dead).at_registry == 1
        unit = store.outbox.get(dead)
        assert (unit.status, unit.body, unit.reason) == ("to withdraw", None, None)
        here.drive()
        assert {*here.server.units} == {stays}
        assert [each.trace_id for each in store.outbox.contributions()] == [stays]
        here.judge(stays, success=False)  # one that only fails keeps its row
        here.drive()
        assert here.status(stays) == "withdrawn"
        assert store.delete(stays).at_registry == 0
        assert (here.server.units, store.outbox.contributions()) == ({}, [])


def test_what_the_registry_does_not_delete_or_has_still_stays_to_be_withdrawn(store):
    with sending(store, agents={KEY: "kp:agent:other"}) as here:
        (one,) = here.fill(agent_id="kp:agent:me")
        (own,) = here.fill(agent_id="kp:agent:other")
        here.drive()
        here.judge(own, success=False)
        store.delete(one)
        here.clock.skip(60.0)
        assert here.sender.loop.do_due() > 0
        unit = store.outbox.get(one)
        assert (unit.status, unit.body) == ("to withdraw", None)
        assert "may not be deleted" in unit.reason
        assert {*here.server.units} == {one}
        # One that comes back is not sent while the earlier one is withdrawn.
        here.server.agents.clear()
        here.fill(trace_id=one)
        here.clock.skip(3600.0)
        here.drive()
        assert (here.server.units, here.status(one)) == ({}, "withdrawn")


# ------------------------------------------------------------------ the pace

START = datetime(2026, 2, 1, 12, tzinfo=UTC)
FRESH = Standing("https://registry.example.org", "key")


seconds = st.none() | st.floats(0, 86_400)
allowances = st.builds(
    Allowance, limit=st.none() | st.integers(0, 2000), remaining=st.none() | st.integers(0, 2000),
    resets_in_s=seconds,
)  # fmt: skip
answers = st.builds(
    Answer, kind=st.sampled_from(["done", "refused", "later"]), reason=st.just("so it is"),
    status=st.sampled_from([201, 400, 429, 429, 500, None]), retry_after_s=seconds,
    allowance=allowances,
)  # fmt: skip
answers = answers.map(
    lambda one: replace(one, kind="later") if one.status in (429, 500, None) else one
)


@given(st.lists(answers, max_size=40))
def test_whatever_it_answers_three_429_never_fall_into_an_hour(listed):
    standing, now, throttled = FRESH, START, []
    for answer in listed:
        now += timedelta(seconds=wait_s(standing, now))
        standing = after_answer(standing, answer, now)
        if answer.is_throttled:
            throttled.append(now)
            assert wait_s(standing, now) >= (answer.retry_after_s or 0.0)
    for one, third in zip(throttled, throttled[2:], strict=False):
        assert (third - one).total_seconds() > 3600


@given(
    limit=st.integers(2, 60), window_s=st.floats(1, 120), truncated=st.booleans(),
    off_by_one=st.booleans(), took_s=st.floats(0, 3),
)  # fmt: skip
def test_a_registry_that_tells_its_limit_is_never_asked_too_often(
    limit, window_s, truncated, off_by_one, took_s
):
    standing, now, began, used = FRESH, START, START, 0
    for _ in range(3 * limit):
        now += timedelta(seconds=wait_s(standing, now))
        if (now - began).total_seconds() >= window_s:
            began, used = now, 0
        assert used < limit
        told = limit - used - (0 if off_by_one else 1)
        used += 1
        left_s = window_s - (now - began).total_seconds()
        allowance = Allowance(limit, told, float(int(left_s)) if truncated else left_s)
        standing = after_answer(standing, Answer("done", "201", 201, allowance=allowance), now)
        now += timedelta(seconds=took_s)


DONE = Answer("done", "201", 201, allowance=Allowance(30, 3, 60.0))


@pytest.mark.parametrize(
    ("asked", "waits_s"),
    [
        ([Answer("done", "201", 201)], 2.0),  # thirty a minute where no limit is told
        ([Answer("stopped", "no such key", 401)], 3600.0),
        ([Answer("stopped", "no such key", 403), DONE], 0.0),
        ([Answer("later", "503", 503, retry_after_s=120.0)], 120.0),
        # A refusal that is given again stops nothing.
        ([DONE, Answer("done", "200", 200, allowance=Allowance(300, 299, 60.0))], 0.0),
        ([DONE, Answer("done", "200", 200, allowance=Allowance(300, 1, 20.0))], 21.0),
        ([Answer("stopped", "403", 403, is_replayed=True, allowance=Allowance(30, 20, 60.0))], 0.0),
    ],
)
def test_how_long_nothing_is_sent(asked, waits_s):
    standing = FRESH
    for answer in asked:
        standing = after_answer(standing, answer, START)
    assert wait_s(standing, START) == waits_s


def test_a_clock_set_back_delays_by_a_day_at_most():
    quiet = after_answer(FRESH, Answer("later", "503", 503, retry_after_s=120.0), START)
    assert wait_s(quiet, START) == 120.0
    assert wait_s(quiet, START - timedelta(hours=1)) == 3720.0
    assert wait_s(quiet, START - timedelta(days=30)) == 0.0
    assert seconds_until(START + timedelta(minutes=10), START) == 600.0
    assert seconds_until(START, START + timedelta(minutes=10)) == 0.0


def test_rests_grow_and_end():
    longest = [max(backoff_s(failures) for _ in range(50)) for failures in range(1, 30)]
    shortest = [min(backoff_s(failures) for _ in range(50)) for failures in range(1, 30)]
    assert longest[0] <= 1.0 <= shortest[3]
    assert 3600.0 / 2 <= shortest[-1] <= longest[-1] <= 3600.0
    assert backoff_s(10**6) <= 3600.0


def test_both_sides_of_a_fork_go_on(tmp_path):
    with LoopbackRegistry() as there, TraceStore(tmp_path / "x.db") as store:
        here = Registry(there.url, api_key=KEY)
        sender = Sender(store, here)
        assert sender.loop.drain(600.0)
        threads = [threading.Thread(target=here.find, args=("y",)) for _ in range(4)]
        for thread in threads:
            thread.start()
        assert fork(lambda: here.find("x").status == 404 and sender.loop.drain(600.0)) == 0
        for thread in threads:
            thread.join(600)
        assert here.find("x").status == 404
        assert len(there.requests) == 6
        assert sender.loop.drain(600.0)
