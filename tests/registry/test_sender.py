"""The sender against a real registry that misbehaves: each trace arrives, once, or stays."""

from __future__ import annotations

import json
import logging
import os
import uuid
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from urllib.parse import unquote

import pytest

from kp_langchain import TraceStore
from kp_langchain.gate import ScoredTrace
from kp_langchain.registry import Registry
from kp_langchain.registry import sender as sender_module
from kp_langchain.registry.sender import Sender
from kp_langchain.schema import Metadata, Outcome, ReasoningTrace, Task, TraceStep
from kp_langchain.scoring.breakdown import Dimension, ScoreBreakdown
from tests.loopback_registry import LoopbackRegistry

KEY = "kp_0123456789abcdef0123456789abcdef"
PART = Dimension(0.7, 0.25, 0.175)


def passed(number: int = 0, *, agent_id: str | None = None, threshold: float = 0.6) -> ScoredTrace:
    return ScoredTrace(
        trace=ReasoningTrace(
            metadata=Metadata(
                task_domain="finance",
                success=True,
                quality_score=0.7,
                visibility="network",
                agent_id=agent_id,
            ),
            task=Task(objective=f"task {number}"),
            steps=[TraceStep(step_id=at, type="thought", content="it grew") for at in (0, 1)],
            outcome=Outcome(result_summary="it grew", confidence=0.8),
        ),
        breakdown=ScoreBreakdown(
            total=0.7,
            complexity=PART,
            novelty=PART,
            tool_diversity=PART,
            outcome_confidence=PART,
            weighted_sum=0.7,
            profile="finance",
            rules=(),
            novelty_source="no embedder",
            confidence_source="reported",
        ),
        decision="contributed",
        threshold=threshold,
        run_id=uuid.uuid4(),
    )


@pytest.fixture
def store(tmp_path: Path) -> Iterator[TraceStore]:
    with TraceStore(tmp_path / "traces.db") as store:
        yield store


def fill(store: TraceStore, registry: Registry, number: int) -> list[str]:
    runs = [passed(n) for n in range(number)]
    store.add_many(runs, registry=registry.url)
    return [run.trace.id for run in runs]


def to(server: LoopbackRegistry, **options: float) -> Registry:
    return Registry(server.url, api_key=KEY, **options)


class Clock:
    """A clock that goes on by hand, and that can be set without time having passed."""

    def __init__(self) -> None:
        self.now = datetime.now(UTC)
        self.passed_s = 0.0

    def __call__(self) -> datetime:
        return self.now

    def steady(self) -> float:
        return self.passed_s

    def skip(self, sender: Sender, seconds: float) -> None:
        self.now += timedelta(seconds=seconds)
        self.passed_s += seconds

    def set_by(self, seconds: float) -> None:
        self.now += timedelta(seconds=seconds)


def drive(sender: Sender, clock: Clock, turns: int = 60) -> None:
    """Go through the outbox in this thread, with the waits skipped."""
    for _ in range(turns):
        wait_s = sender._send_due()
        if wait_s is None:
            return
        clock.skip(sender, wait_s)
    raise AssertionError("it never comes to an end")


def test_what_is_pending_is_sent_once(store):
    with LoopbackRegistry(keys={KEY}) as server:
        registry = to(server)
        ids = fill(store, registry, 20)
        sender = Sender(store, registry)
        assert sender.drain(60.0)
        assert set(server.units) == set(ids)
        assert len(server.requests) == 20
        assert store.outbox.counts() == {"pending": 0, "sent": 20, "dead": 0, "withdrawn": 0}
        one = store.outbox.get(ids[0])
        assert (one.registry_id, one.body, one.attempts) == (ids[0], None, 1)


FAULTS = [
    "500", "503_retry_after", "reset_before", "no_id", "429", "429_retry_after", "429_date",
    "401", "403", "garbage", "redirect_away", "404", "half", "reset_after", "stored_no_id",
    "huge", "bad_json", "stored_500", "slow", "drip", "drip_headers",
]  # fmt: skip
ENDLESS = {"slow", "drip", "drip_headers"}


def patience_s(fault: str) -> float:
    """As short as it may be where the fault is that no answer comes, and else without effect."""
    return 0.2 if fault in ENDLESS else 60.0


@pytest.mark.parametrize("replays", [True, False], ids=["", "without replays"])
@pytest.mark.parametrize("fault", FAULTS)
def test_each_arrives_once_whatever_happens_to_the_first_attempts(store, fault, replays):
    def misbehave(number: int, method: str, path: str) -> str | None:
        return fault if number in (0, 3) else None

    with LoopbackRegistry(keys={KEY}, misbehave=misbehave, replays=replays) as server:
        registry = to(server, timeout_s=patience_s(fault))
        ids = fill(store, registry, 3)
        clock = Clock()
        sender = Sender(store, registry, clock=clock)
        drive(sender, clock)
        assert set(server.units) == set(ids)
        assert server.doubled == []
        assert not server.revoked
        assert store.outbox.counts()["sent"] == 3


@pytest.mark.parametrize("fault", ["400", "413", "422"])
def test_what_is_refused_is_dead_with_the_reason(store, fault, caplog):
    def misbehave(number: int, method: str, path: str) -> str | None:
        return fault if number == 0 else None

    with LoopbackRegistry(keys={KEY}, misbehave=misbehave) as server:
        registry = to(server)
        ids = fill(store, registry, 2)
        clock = Clock()
        drive(Sender(store, registry, clock=clock), clock)
        (dead,) = store.outbox.entries(state="dead")
        assert dead.reason.startswith(fault)
        assert list(dead.issues) == [{"path": "steps.0.type", "message": "not one of ours"}]
        assert set(server.units) == set(ids) - {dead.trace_id}
        assert store.outbox.get(dead.trace_id).body is not None


def test_a_refused_key_stops_everything_with_one_warning(store, caplog):
    with LoopbackRegistry(keys={"another"}) as server:
        registry = to(server)
        fill(store, registry, 5)
        sender = Sender(store, registry)
        with caplog.at_level(logging.WARNING, "kp_langchain"):
            assert not sender.drain(60.0)
            assert not Sender(store, registry).drain(60.0)
        assert len(server.requests) == 1
        assert store.outbox.counts()["pending"] == 5
        (warning,) = [one.getMessage() for one in caplog.records if server.url in one.message]
        assert "it does not know the key" in warning
        assert "kp-langchain register" in warning
        assert KEY not in caplog.text
        standing = store.outbox.standing(registry.url, registry.key_id)
        assert (standing.stopped, standing.throttled_at) == (True, ())
        # Another key is another matter.
        server.keys.add("kp_new")
        assert Sender(store, Registry(server.url, api_key="kp_new")).drain(60.0)
        assert store.outbox.counts()["sent"] == 5


def test_a_turn_ends_and_lets_another_process_take_its_own(store, monkeypatch):
    monkeypatch.setattr(sender_module, "_TURN_S", 0.0)
    with LoopbackRegistry(keys={KEY}) as server:
        registry = to(server)
        fill(store, registry, 3)
        sender = Sender(store, registry)
        assert sender._send_due() == sender_module._OTHERS_TURN_S
        with store.outbox.sending() as has_turn:
            assert has_turn
        assert store.outbox.counts()["pending"] == 3


def test_after_a_429_a_restart_is_silent_too(store):
    def misbehave(number: int, method: str, path: str) -> str | None:
        return "429" if number == 0 else None

    with LoopbackRegistry(keys={KEY}, misbehave=misbehave) as server:
        registry = to(server)
        fill(store, registry, 2)
        clock = Clock()
        Sender(store, registry, clock=clock)._send_due()
        with TraceStore(store.location) as reopened:
            sender = Sender(reopened, registry, clock=clock)
            assert sender._send_due() > 30
            assert len(server.requests) == 1
            drive(sender, clock)
        assert len(server.units) == 2
        assert server.count_429 == 1


@pytest.mark.parametrize("seconds", [-3000, -600, 600, 3000, 315e6])
def test_no_setting_of_the_clock_changes_the_silence(store, seconds):
    def misbehave(number: int, method: str, path: str) -> str | None:
        return "503_retry_after" if number == 0 else None

    with LoopbackRegistry(keys={KEY}, misbehave=misbehave) as server:
        registry = to(server)
        fill(store, registry, 1)
        clock = Clock()
        sender = Sender(store, registry, clock=clock, steady=clock.steady)
        assert sender._send_one() == 0.0
        quiet_s = sender._send_one()
        assert quiet_s > 0.0
        clock.set_by(seconds)
        assert sender._send_due() == pytest.approx(quiet_s, abs=1.1)
        assert len(server.requests) == 1
        clock.skip(sender, quiet_s + 1.1)
        assert sender._send_due() is None
        assert len(server.units) == 1


def test_a_clock_set_back_does_not_hold_up_what_waits(store):
    """Neither what was never tried, nor what is to be tried again, before it or behind it."""

    def misbehave(number: int, method: str, path: str) -> str | None:
        return "500" if number == 0 else None

    with LoopbackRegistry(keys={KEY}, misbehave=misbehave) as server:
        registry = to(server)
        fill(store, registry, 1)
        clock = Clock()
        sender = Sender(store, registry, clock=clock, steady=clock.steady)
        clock.skip(sender, 1.0)
        sender._send_one()
        fill(store, registry, 3)
        clock.set_by(-3000)
        turns = [sender._send_due()]
        while turns[-1] is not None and len(turns) < 20:
            clock.skip(sender, turns[-1])
            turns.append(sender._send_due())
        assert len(server.units) == 4
        assert clock.passed_s < 10


def test_an_attempt_whose_answer_was_lost_is_looked_up_before_it_is_repeated(store):
    faults = {0: "reset_after", 1: "reset_before"}

    def misbehave(number: int, method: str, path: str) -> str | None:
        return faults.get(number)

    with LoopbackRegistry(keys={KEY}, misbehave=misbehave, replays=False) as server:
        registry = to(server)
        ids = fill(store, registry, 2)
        clock = Clock()
        store.outbox.save(*(replace(store.outbox.get(one), due_at=clock.now) for one in ids))
        sender = Sender(store, registry, clock=clock)
        clock.skip(sender, sender._send_due())
        clock.skip(sender, sender._send_due())
        drive(sender, clock)
        assert [method for method, *_ in server.requests].count("GET") == 2
        assert set(server.units) == set(ids)
        assert server.doubled == []
        assert store.outbox.counts()["sent"] == 2


def test_one_that_always_fails_does_not_hold_the_others_up(store):
    with LoopbackRegistry(keys={KEY}) as server:
        registry = to(server)
        ids = fill(store, registry, 4)
        bad = store.outbox.next_pending(registry.url)

        def misbehave(number: int, method: str, path: str) -> str | None:
            return "500" if server.requests_key(number) == bad.idempotency_key else None

        server.misbehave = misbehave
        clock = Clock()
        sender = Sender(store, registry, clock=clock)
        for _ in range(8):
            clock.skip(sender, sender._send_due() or 0.0)
        assert set(server.units) == set(ids) - {bad.trace_id}
        assert store.outbox.get(bad.trace_id).state == "pending"


@pytest.mark.parametrize("field", ["privacy_level", "visibility"])
def test_what_is_private_is_not_sent_even_if_it_is_in_the_outbox(store, field, caplog):
    with LoopbackRegistry(keys={KEY}) as server:
        registry = to(server)
        ids = set(fill(store, registry, 2))
        one = store.outbox.next_pending(registry.url)
        private, (public,) = one.trace_id, ids - {one.trace_id}
        unit = json.loads(one.body)
        unit["metadata"][field] = "private"
        store.outbox.save(replace(one, body=json.dumps(unit)))
        assert Sender(store, registry).drain(60.0)
        assert set(server.units) == {public}
        assert len(server.requests) == 1
        left = store.outbox.get(private)
        assert (left.state, left.attempts) == ("dead", 0)
        assert left.reason in caplog.text


@pytest.mark.parametrize(
    "trace_id", ["kp:trace:Finance Demo/1?", "kp:trace:A\n\x00B", "kp:trace:" + "long " * 200]
)
def test_what_may_have_arrived_is_asked_for_by_the_id_it_was_sent_with(store, trace_id):
    with LoopbackRegistry(
        keys={KEY}, misbehave=lambda number, *_: "reset_after" if number == 0 else None
    ) as server:
        registry, clock = to(server), Clock()
        run = passed()
        run.trace.id = trace_id
        store.add(run, registry=registry.url)
        sender = Sender(store, registry, clock=clock)
        for _ in range(4):
            clock.skip(sender, sender._send_due() or 0.0)
        sent = trace_id.replace("\x00", "\ufffd")
        assert set(server.units) == {sent}
        assert store.outbox.get(trace_id).state == "sent"
        assert [request[0] for request in server.requests] == ["POST", "GET"]
        assert unquote(server.requests[1][1]) == f"/v1/knowledge/{sent}"


def test_what_is_meant_for_another_registry_stays(store):
    with LoopbackRegistry(keys={KEY}) as server:
        store.add(passed(), registry="https://another.example.org")
        assert Sender(store, to(server)).drain(60.0)
        assert server.requests == []
        assert store.outbox.counts()["pending"] == 1


def test_two_senders_share_the_work_without_repeating_it(store, tmp_path):
    with LoopbackRegistry(keys={KEY}) as server, TraceStore(store.location) as other:
        registry = to(server)
        ids = fill(store, registry, 60)
        first, second = Sender(store, registry), Sender(other, to(server))
        second.wake()
        assert first.drain(60.0)
        assert second.drain(60.0)
        assert len(server.requests) == len(ids)
        assert set(server.units) == set(ids)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_processes_share_the_work_on_both_engines(url):
    faults = {1: "reset_after", 4: "half", 9: "500"}

    def misbehave(number: int, method: str, path: str) -> str | None:
        return faults.get(number)

    with LoopbackRegistry(keys={KEY}, misbehave=misbehave) as server, TraceStore(url) as store:
        registry = to(server)
        sender = Sender(store, registry)
        fill(store, registry, 10)
        sender.wake()
        children = []
        for _ in range(2):
            child = os.fork()
            if child == 0:
                fill(store, registry, 10)
                os._exit(0 if sender.drain(60.0) else 1)
            children.append(child)
        codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
        assert codes == [0, 0]
        assert sender.drain(60.0)
        assert (len(server.units), server.doubled) == (30, [])
        assert store.outbox.counts()["sent"] == 30


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_sends_with_a_thread_of_its_own(store):
    with LoopbackRegistry(keys={KEY}) as server:
        registry = to(server)
        sender = Sender(store, registry)
        fill(store, registry, 5)
        assert sender.drain(60.0)
        child = os.fork()
        if child == 0:
            fill(store, registry, 5)
            os._exit(0 if sender.drain(60.0) else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        fill(store, registry, 5)
        assert sender.drain(60.0)
        assert len(server.units) == 15
        assert server.doubled == []


def test_a_broken_store_is_told_and_tried_again(tmp_path, caplog):
    with LoopbackRegistry(keys={KEY}) as server:
        path = tmp_path / "traces.db"
        path.write_bytes(b"this is no database at all, but long enough to be taken for one" * 40)
        sender = Sender(TraceStore(path), to(server))
        with caplog.at_level(logging.WARNING, "kp_langchain"):
            assert not sender.drain(0.1)
        path.unlink()
        assert sender._send_due() is None


def test_the_body_is_the_wire_form(store):
    with LoopbackRegistry(keys={KEY}) as server:
        registry = to(server)
        run = passed()
        store.add(run, registry=registry.url)
        assert Sender(store, registry).drain(60.0)
        assert server.units[run.trace.id] == json.loads(run.trace.model_dump_json())
        _, _, headers, _ = server.requests[0]
        assert headers["kp-schema-version"] == "v1"
        assert headers["authorization"] == f"Bearer {KEY}"
        assert headers["accept-encoding"] == "identity"


def judged(store: TraceStore, trace_id: str, *, success: bool) -> None:
    """Give a verdict by which a run passes, or does not."""
    (change,) = store.report_outcome(trace_id, success=success)
    assert change.decision == ("contributed" if success else "below_threshold")


def test_a_verdict_taken_back_while_the_registry_deletes_is_sent_again(store):
    """Neither a withdrawal under way nor the verdict that comes meanwhile is lost."""

    def misbehave(number: int, method: str, path: str) -> None:
        if method == "DELETE" and len(deletions) < 1:
            deletions.append(path)
            judged(store, one, success=True)

    deletions: list[str] = []
    with LoopbackRegistry(keys={KEY}, misbehave=misbehave) as server:
        registry = to(server)
        (one,) = fill(store, registry, 1)
        sender = Sender(store, registry)
        assert sender.drain(60.0)
        judged(store, one, success=False)
        assert sender.drain(60.0)
        assert list(server.units) == [one]
        assert json.loads(server.received[-1])["metadata"]["validated_by"] == ["reported"]
        assert store.outbox.get(one).status == "sent"
        assert [method for method, *_ in server.requests] == ["POST", "DELETE", "POST"]


def test_a_verdict_while_a_trace_is_on_its_way_takes_it_back(store):
    def misbehave(number: int, method: str, path: str) -> None:
        if method == "POST":
            judged(store, one, success=False)

    with LoopbackRegistry(keys={KEY}, misbehave=misbehave) as server:
        registry = to(server)
        (one,) = fill(store, registry, 1)
        assert Sender(store, registry).drain(60.0)
        assert server.units == {}
        assert store.outbox.get(one).status == "withdrawn"


def test_what_the_registry_never_took_is_not_to_be_withdrawn(store):
    def misbehave(number: int, method: str, path: str) -> str:
        judged(store, one, success=False)
        return "400"

    with LoopbackRegistry(keys={KEY}, misbehave=misbehave) as server:
        registry = to(server)
        (one,) = fill(store, registry, 1)
        assert Sender(store, registry).drain(60.0)
        assert store.outbox.get(one).status == "dead"


@pytest.mark.parametrize("status", ["403", "405", "400"])
def test_a_deletion_that_is_refused_does_not_hold_up_the_others(store, status):
    fault = f"HTTP/1.1 {status} No\r\ncontent-length: 0\r\n\r\n".encode()
    clock = Clock()
    with LoopbackRegistry(
        keys={KEY}, misbehave=lambda number, method, path: fault if method == "DELETE" else None
    ) as server:
        registry = to(server)
        one, other = fill(store, registry, 2)
        sender = Sender(store, registry, clock=clock)
        drive(sender, clock)
        judged(store, one, success=False)
        clock.skip(sender, 1.0)
        sender._send_due()
        assert store.outbox.get(one).status == "to withdraw"
        assert not store.outbox.standing(registry.url, registry.key_id).stopped
        (third,) = fill(store, registry, 1)
        clock.skip(sender, 10.0)
        sender._send_due()
        assert set(server.units) == {one, other, third}


@pytest.mark.parametrize("fault", ["reset_after", "reset_before"])
@pytest.mark.parametrize("meanwhile", [True, False])
def test_one_that_may_have_been_deleted_is_sent_again(store, fault, meanwhile):
    """A deletion's answer was lost, and a verdict took it back."""

    def misbehave(number: int, method: str, path: str) -> str | None:
        if method == "DELETE" and meanwhile:
            judged(store, one, success=True)
        return fault if method == "DELETE" else None

    clock = Clock()
    with LoopbackRegistry(keys={KEY}, misbehave=misbehave) as server:
        registry = to(server)
        (one,) = fill(store, registry, 1)
        sender = Sender(store, registry, clock=clock)
        drive(sender, clock)
        judged(store, one, success=False)
        clock.skip(sender, 60.0)
        assert sender._send_one() == 0.0
        if not meanwhile:
            judged(store, one, success=True)
        clock.skip(sender, 3600.0)
        drive(sender, clock)
        assert list(server.units) == [one]
        assert store.outbox.get(one).status == "sent"
        assert server.units[one]["metadata"]["validated_by"] == ["reported"]
        assert [method for method, *_ in server.requests] == ["POST", "DELETE", "POST"]
        assert server.doubled == []


@pytest.mark.parametrize("fault", [fault for fault in FAULTS if fault not in ("slow", "drip")])
def test_a_withdrawal_comes_through_whatever_happens_to_the_first_attempts(store, fault):
    deletions: list[int] = []

    def misbehave(number: int, method: str, path: str) -> str | None:
        if method == "DELETE":
            deletions.append(number)
            return fault if len(deletions) <= 2 else None
        return None

    clock = Clock()
    with LoopbackRegistry(keys={KEY}, misbehave=misbehave) as server:
        registry = to(server, timeout_s=patience_s(fault))
        (one,) = fill(store, registry, 1)
        sender = Sender(store, registry, clock=clock)
        drive(sender, clock)
        assert list(server.units) == [one]
        store.report_outcome(one, success=False)
        drive(sender, clock)
        # 404 says that it is gone already, and any 2xx that it is now: then nothing is left to do.
        assert fault in ("404", "no_id") or server.units == {}
        assert store.outbox.get(one).state == "withdrawn"
        assert server.count_429 <= 2
