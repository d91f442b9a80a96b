"""What a registry refuses: the key, a deletion, or one unit; and what it says again for a day."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from kp_langchain import TraceStore
from kp_langchain.registry import Registry
from kp_langchain.registry.sender import Sender
from tests.agents import ASK, handler, searching
from tests.loopback_registry import LoopbackRegistry
from tests.registry.test_sender import KEY, Clock, drive, fill, passed, to

AGENT = "kp:agent:desk"
REFUSED = (403, b'{"error": "Minimum KP-REP score of 0.1 required"}')


@pytest.fixture
def store(tmp_path: Path) -> Iterator[TraceStore]:
    with TraceStore(tmp_path / "traces.db") as store:
        yield store


# The key


@pytest.mark.parametrize("asks", [3, 10])
def test_a_wrong_key_is_told_and_is_no_throttle(store, caplog, asks):
    clock = Clock()
    with LoopbackRegistry(keys={"another"}) as server:
        registry = to(server)
        fill(store, registry, 3)
        sender = Sender(store, registry, clock=clock)
        with caplog.at_level(logging.WARNING, "kp_langchain"):
            for _ in range(asks):
                clock.skip(sender, sender._send_due() or 0.0)
        assert {status for *_, status in server.requests} == {429}
        standing = store.outbox.standing(registry.url, registry.key_id)
        assert standing.stopped
        assert standing.throttled_at == ()
        assert "it does not know the key" in standing.quiet_reason
        messages = [record.getMessage() for record in caplog.records]
        (warning,) = [message for message in messages if "accepts nothing" in message]
        assert "kp-langchain register" in warning
        server.keys.add(KEY)
        drive(sender, clock)
        assert len(server.units) == 3


def test_without_a_key_nothing_is_sent(store, caplog):
    with LoopbackRegistry() as server:
        registry = Registry(server.url)
        one, other = fill(store, registry, 2)
        sender = Sender(store, registry)
        with caplog.at_level(logging.WARNING, "kp_langchain"):
            assert not sender.drain(5.0)
            store.report_outcome(one, success=False)
            assert not sender.drain(5.0)
        assert server.requests == []
        assert store.outbox.get(other).state == "pending"
        (warning,) = [one.getMessage() for one in caplog.records if server.url in one.message]
        assert "kp-langchain register" in warning


def test_a_loop_over_send_costs_next_to_nothing(tmp_path, monkeypatch):
    with LoopbackRegistry(keys={"another"}) as server:
        watching = handler(store=tmp_path / "runs.db", registry=to(server))
        store = TraceStore(tmp_path / "runs.db")
        fill(store, to(server), 1)
        assert not watching.send(300)  # the refusal
        rests: list[float] = []
        monkeypatch.setattr("kp_langchain.recording.handler.time.sleep", rests.append)
        for _ in range(3):
            assert not watching.send(300)
        assert rests == [1.0] * 3
        assert not watching.send(0.25)
        assert 0.0 <= rests[-1] <= 0.25
        assert len(server.requests) == 1


def test_send_is_true_when_another_process_sent_the_last_one(store):
    with LoopbackRegistry(keys={KEY}) as server:
        registry = to(server)
        (one,) = fill(store, registry, 1)

        class Late(Sender):
            """Finds another process at work, which ends as the time does."""

            def _send_due_alone(self, until: float) -> float | None:
                with TraceStore(store.location) as other:
                    assert Sender(other, registry)._send_due() is None
                return 3600.0

        assert Late(store, registry).drain(600.0)
        assert store.outbox.get(one).state == "sent"


# Deletions


def test_only_the_agents_own_key_withdraws_and_the_registrys_words_are_shown(store, caplog):
    clock = Clock()
    with LoopbackRegistry(keys={KEY}, agents={KEY: AGENT}) as server:
        registry = to(server)
        ours, theirs = passed(1, agent_id=AGENT), passed(2)
        store.add_many([ours, theirs], registry=registry.url)
        sender = Sender(store, registry, clock=clock)
        drive(sender, clock)
        for one in (ours, theirs):
            store.report_outcome(one.trace.id, success=False)
        with caplog.at_level(logging.WARNING, "kp_langchain"):
            clock.skip(sender, 1.0)
            sender._send_due()
        assert list(server.units) == [theirs.trace.id]
        (left,) = store.outbox.to_withdraw()
        assert left.trace_id == theirs.trace.id
        assert "Forbidden: can only delete your own contributions" in left.reason
        assert "does not delete" in caplog.text
        assert not store.outbox.standing(registry.url, registry.key_id).stopped


def test_a_page_that_says_404_is_no_deletion(store):
    page = b"HTTP/1.1 404 Not Found\r\nContent-Type: text/html\r\nContent-Length: 6\r\n\r\n<html>"
    text = b"HTTP/1.1 404 Not Found\r\nContent-Length: 9\r\n\r\nnot found"
    for raw in (page, text, page.replace(b"404 Not Found", b"200 OK")):
        with LoopbackRegistry(misbehave=lambda *_, raw=raw: raw) as server:
            registry = to(server)
            assert registry.withdraw("x").kind == "stopped"
            assert registry.find("x").kind == "stopped"
            assert registry.check().kind == "stopped"


# A web page in the place of the registry


def test_a_web_page_stops_it_until_it_is_gone(store, caplog):
    page = b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: 6\r\n\r\n<html>"
    clock = Clock()
    with LoopbackRegistry(keys={KEY}, misbehave=lambda *_: page) as server:
        registry = to(server)
        ids = fill(store, registry, 3)
        sender = Sender(store, registry, clock=clock)
        with caplog.at_level(logging.WARNING, "kp_langchain"):
            assert sender._send_due() > 3000
        assert len(server.requests) == 1
        assert "does not seem to be the URL of a registry" in caplog.text
        server.misbehave = lambda *_: None
        drive(sender, clock)
        assert set(server.units) == set(ids)


# Answers that are given again


def test_a_mended_cause_does_not_run_into_the_old_refusal(store):
    clock = Clock()
    with LoopbackRegistry(keys={KEY}) as server:
        server.reputation_suffices = False
        registry = to(server)
        ids = fill(store, registry, 3)
        sender = Sender(store, registry, clock=clock)
        assert sender._send_due() > 3000
        assert [status for *_, status in server.requests] == [403]
        server.reputation_suffices = True
        clock.skip(sender, 3601.0)
        assert sender._send_due() is None
        assert set(server.units) == set(ids)
        assert {status for *_, status in server.requests[1:]} == {201}


def test_nor_does_a_fresh_key(store):
    clock = Clock()
    with LoopbackRegistry(keys={KEY}) as server:
        server.reputation_suffices = False
        registry = to(server)
        ids = fill(store, registry, 2)
        assert Sender(store, registry, clock=clock)._send_due() > 3000
        server.reputation_suffices = True
        server.keys.add("kp_new")
        fresh = Registry(server.url, api_key="kp_new")
        assert Sender(store, fresh, clock=clock)._send_due() is None
        assert set(server.units) == set(ids)


def test_an_old_refusal_holds_up_no_other(store):
    """Answered to an attempt of which this process knows nothing."""
    clock = Clock()
    with LoopbackRegistry(keys={KEY}) as server:
        registry = to(server)
        ids = fill(store, registry, 4)
        first = store.outbox.next_pending(registry.url)
        server.answered[first.idempotency_key] = REFUSED
        sender = Sender(store, registry, clock=clock)
        wait_s = sender._send_due()
        assert set(server.units) == set(ids) - {first.trace_id}
        assert wait_s < 5
        clock.skip(sender, wait_s)
        assert sender._send_due() is None
        assert set(server.units) == set(ids)


def test_an_old_success_is_looked_up(store):
    """The unit may have been deleted since."""
    clock = Clock()
    with LoopbackRegistry(keys={KEY}) as server:
        registry = to(server)
        (one,) = fill(store, registry, 1)
        body = store.outbox.next_pending(registry.url)
        server.answered[body.idempotency_key] = (201, b'{"data": {"id": "%s"}}' % one.encode())
        drive(Sender(store, registry, clock=clock), clock)
        assert list(server.units) == [one]
        assert store.outbox.get(one).state == "sent"


def test_a_registry_that_always_says_it_again_is_not_asked_all_the_time(store):
    raw = (
        b"HTTP/1.1 403 No\r\nIdempotency-Replayed: true\r\nX-RateLimit-Limit: 30\r\n"
        b"X-RateLimit-Remaining: 29\r\nX-RateLimit-Reset: 60\r\nContent-Length: 2\r\n\r\n{}"
    )
    clock = Clock()
    with LoopbackRegistry(misbehave=lambda *_: raw) as server:
        registry = to(server)
        fill(store, registry, 1)
        sender = Sender(store, registry, clock=clock)
        began = clock.passed_s
        while clock.passed_s - began < 3600:
            clock.skip(sender, sender._send_due() or 1.0)
        assert len(server.requests) < 20


# The agent


def play(settings: dict[str, str], monkeypatch, tmp_path, **options):
    for name, value in settings.items():
        monkeypatch.setenv(name, value)
    watching = handler(store=tmp_path / "runs.db", **options)
    searching().invoke(ASK, {"callbacks": [watching]})
    return watching.last(300)


def test_the_agent_of_the_key_is_written_into_traces(monkeypatch, tmp_path, caplog):
    from pydantic import SecretStr

    from kp_langchain.registry.credentials import save_key

    url = "http://127.0.0.1:9"
    save_key(url, AGENT, SecretStr(KEY))
    settings = {"KP_REGISTRY_URL": url}
    with caplog.at_level(logging.WARNING, "kp_langchain"):
        assert play(settings, monkeypatch, tmp_path).trace.metadata.agent_id == AGENT
        # The key that is given may be the stored one.
        for registry in (Registry(url, api_key=KEY), url):
            scored = play(settings, monkeypatch, tmp_path, registry=registry)
            assert scored.trace.metadata.agent_id == AGENT
        scored = play(settings, monkeypatch, tmp_path, agent_id="desk")
        assert scored.trace.metadata.agent_id == AGENT
        assert "withdrawn" not in caplog.text
        scored = play(settings, monkeypatch, tmp_path, agent_id="other")
        assert scored.trace.metadata.agent_id == "kp:agent:other"
        assert f"carry kp:agent:other, and its key belongs to {AGENT}" in caplog.text


def test_an_id_of_an_earlier_version_is_written_as_the_registry_knows_it(monkeypatch, tmp_path):
    from pydantic import SecretStr

    from kp_langchain.registry.credentials import save_key

    url = "http://127.0.0.1:9"
    settings = {"KP_REGISTRY_URL": url, "KP_AGENT_ID": "desk"}
    save_key(url, "desk", SecretStr(KEY))
    assert play(settings, monkeypatch, tmp_path).trace.metadata.agent_id == "desk"
    save_key(url, "ada@example.org", SecretStr(KEY))
    monkeypatch.delenv("KP_AGENT_ID")
    scored = play({"KP_REGISTRY_URL": url}, monkeypatch, tmp_path)
    assert scored.trace.metadata.agent_id is None


def test_no_bound_on_texts_cuts_the_agents_id(monkeypatch, tmp_path):
    long = "kp:agent:" + "desk" * 10
    scored = play({"KP_MAX_TEXT_CHARS": "20"}, monkeypatch, tmp_path, agent_id=long)
    assert scored.trace.metadata.agent_id == long


@pytest.mark.parametrize(
    ("agent_id", "told"),
    [
        ("ada@example.org", "would be redacted to 'kp:agent:[REDACTED:email]'"),
        ("kp:agent:192.168.1.7", "would be redacted"),
        (KEY, "would be redacted"),
        ("kp:agent:", "is empty"),
        (" ", "is empty"),
        ("a\nb", "cannot be printed"),
        ("a" * 500, "509 characters"),
    ],
)
def test_an_id_that_cannot_be_written_as_it_is_is_refused(
    agent_id: str, told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from kp_langchain import ConfigError

    with pytest.raises(ConfigError, match="agent_id") as caught:
        handler(agent_id=agent_id)
    assert told in str(caught.value)
    assert "ada" not in str(caught.value)
    assert KEY not in str(caught.value)
    monkeypatch.setenv("KP_AGENT_ID", agent_id)
    with pytest.raises(ConfigError, match="agent_id"):
        handler()
