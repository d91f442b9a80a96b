"""`outbox`, `register` and `withdraw` as a user types them, against a real registry."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from kp_langchain import DomainPolicy, Registry, TraceStore
from tests.agents import ASK, handler, searching
from tests.commands import Done, cli, cli_apart
from tests.loopback_registry import LoopbackRegistry
from tests.registry.test_sender import KEY, passed


@pytest.fixture
def server() -> Iterator[LoopbackRegistry]:
    with LoopbackRegistry(keys={KEY}) as server:
        yield server


@pytest.fixture
def here(server: LoopbackRegistry, tmp_path: Path) -> dict[str, str]:
    """What the environment says: a registry, a key, a data folder."""
    return {
        "KP_REGISTRY_URL": server.url,
        "KP_API_KEY": KEY,
        "KP_DATABASE_URL": "runs.db",
        "XDG_DATA_HOME": str(tmp_path / "data"),
    }


def fill(url: str, number: int) -> list[str]:
    with TraceStore("runs.db") as store:
        runs = [passed(n) for n in range(number)]
        for run in runs:
            store.add(run, registry=url)
    return [run.trace.id for run in runs]


def send(**environment: str) -> Done:
    """Send in a process of its own, because the sender stays until its process ends."""
    return cli_apart("outbox", "send", **environment)


def short(trace_id: str) -> str:
    return trace_id.removeprefix("kp:trace:")[:8]


def test_an_empty_outbox_says_so(here):
    done = cli("outbox", **here)
    assert done.stdout.startswith("0 pending, 0 sent, 0 dead, 0 withdrawn in ")
    alone = cli("outbox", **(here | {"KP_REGISTRY_URL": ""}))
    assert "No registry is configured (KP_REGISTRY_URL), so nothing is sent." in alone.stdout


def test_sending_and_taking_back(server, here):
    first, second = fill(server.url, 2)
    listed = cli("outbox", "--database", "runs.db", **here).stdout
    assert short(first) in listed
    assert "2 pending" in listed
    done = send(**here)
    assert (done.returncode, done.stdout) == (0, "Sent 2, refused 0, still pending 0.\n")
    assert set(server.units) == {first, second}

    done = cli("withdraw", short(first), **here)
    assert done.returncode == 0, done.stderr
    assert set(server.units) == {second}
    shown = json.loads(cli("outbox", "show", first, "--json", **here).stdout)
    assert (shown["state"], shown["attempts"]) == ("withdrawn", 1)
    assert "withdrawn already" in cli("withdraw", first, **here).stderr
    assert "was sent; take it back" in cli("outbox", "drop", second, **here).stderr
    with TraceStore("runs.db") as store:
        assert store.count() == 2


def test_what_is_pending_can_be_dropped_or_withdrawn(server, here):
    first, second, third = fill(server.url, 3)
    assert "no longer in the outbox" in cli("outbox", "drop", short(first), **here).stdout
    assert "is withdrawn" in cli("withdraw", second, **here).stdout
    send(**here)
    assert set(server.units) == {third}
    assert all(method == "POST" for method, *_ in server.requests)


def test_what_a_person_withdrew_no_verdict_sends(here):
    (one,) = fill("https://registry.example", 1)
    with TraceStore("runs.db") as store:
        store.report_outcome(one, success=False)
        assert store.outbox.get(one).state == "withdrawn"
        assert "is withdrawn" in cli("withdraw", one, **here).stdout
        assert "withdrawn already" in cli("withdraw", one, **here).stderr
        store.report_outcome(one, success=True)
        assert store.outbox.get(one).state == "withdrawn"


def test_one_whose_answer_was_lost_is_deleted_all_the_same(server, here):
    busy = b"HTTP/1.1 503 -\r\nretry-after: 3600\r\ncontent-length: 0\r\n\r\n"
    server.misbehave = lambda number, method, path: "reset_after" if method == "POST" else busy
    (lost,) = fill(server.url, 1)
    assert send(**here).returncode == 1
    assert set(server.units) == {lost}
    server.misbehave = lambda number, method, path: None
    assert "no request may be sent" in cli("withdraw", lost, **here).stderr
    with TraceStore("runs.db") as store:  # as if the hour were over
        key_id = Registry(server.url, api_key=KEY).key_id
        standing = store.outbox.standing(server.url, key_id)
        store.outbox.save(replace(standing, quiet_until=None))
    done = cli("withdraw", lost, **here)
    assert done.returncode == 0, done.stderr
    assert server.units == {}


def test_a_dead_one_tells_why_and_can_be_tried_again(server, here):
    server.misbehave = lambda number, method, path: "422" if number == 0 else None
    (dead,) = fill(server.url, 1)
    assert "refused 1" in send(**here).stdout
    shown = cli("outbox", "show", dead, **here).stdout
    assert "reason: 422" in shown
    assert "steps.0.type: not one of ours" in shown
    assert short(dead) in cli("outbox", "--state", "dead", **here).stdout
    assert "is pending for" in cli("outbox", "retry", dead, **here).stdout
    assert "Sent 1" in send(**here).stdout
    assert "is sent; only dead or pending" in cli("outbox", "retry", dead, **here).stderr


def test_a_refused_key_and_a_new_one(server, here):
    fill(server.url, 2)
    wrong = here | {"KP_API_KEY": "kp_wrong"}
    done = send(**wrong)
    assert done.returncode == 1
    assert "still pending 2" in done.stdout
    assert "it does not know the key" in done.stdout
    assert "kp_wrong" not in done.stdout + done.stderr
    # Asked for by a person, it is tried again at once.
    send(**wrong)
    assert len(server.requests) == 2

    without = {name: value for name, value in here.items() if name != "KP_API_KEY"}
    done = cli("register", "--agent-id", "kp:agent:desk", **without)
    assert done.returncode == 0, done.stderr
    path = Path(done.stdout.rsplit(" ", 1)[1].strip())
    assert path.stat().st_mode & 0o777 == 0o600
    key = json.loads(path.read_text())[server.url]["api_key"]
    assert key in server.keys
    assert key not in done.stdout
    assert "Sent 2" in send(**without).stdout


def test_readdressing_to_the_registry_that_is_configured(server, here):
    (one,) = fill("https://gone.example.org", 1)
    told = send(**here).stdout
    assert "meant for another registry (https://gone.example.org)" in told
    assert server.requests == []
    cli("outbox", "retry", one, **here)
    assert "Sent 1" in send(**here).stdout


@pytest.mark.parametrize(
    ("words", "environment", "told"),
    [
        (["outbox", "show", "ffff"], {}, "nothing 'ffff' in the outbox of"),
        (["withdraw", "ffff"], {}, "list it: kp-langchain outbox"),
        (["outbox", "send"], {"KP_REGISTRY_URL": ""}, "no registry is configured"),
        (["outbox", "send"], {"KP_DISABLED": "1"}, "KP_DISABLED is set"),
        (["outbox", "send"], {"KP_REGISTRY_URL": "http://far.example.org"}, "write https://"),
        (["outbox", "--database", "none.db"], {}, "there is no database at"),
    ],
)
def test_mistakes_are_told(here, words, environment, told):
    done = cli(*words, **(here | environment))
    assert done.returncode == 1
    assert told in done.stderr
    assert "Traceback" not in done.stderr


# As the README says: register, run, find out that it failed.


def without_key(here: dict[str, str]) -> dict[str, str]:
    return {name: value for name, value in here.items() if name != "KP_API_KEY"}


def test_who_registers_can_withdraw(server, here, monkeypatch):
    settings = without_key(here)
    for name, value in settings.items():
        monkeypatch.setenv(name, value)
    done = cli("register", "--agent-id", "desk", **settings)
    assert "gave a key for kp:agent:desk" in done.stdout
    assert set(server.agents.values()) == {"kp:agent:desk"}
    policy = DomainPolicy(threshold=0.3, visibility="network")
    watching = handler(policy=policy, store="runs.db")
    searching().invoke(ASK, {"callbacks": [watching]})
    assert watching.send(300)
    (unit,) = server.units.values()
    assert unit["metadata"]["agent_id"] == "kp:agent:desk"
    done = cli_apart("label", unit["id"], "--failure", **settings)
    assert "withdrawn 1" in done.stdout
    assert "1 of 1." in done.stdout
    assert server.units == {}


def test_a_deletion_that_is_refused_is_told_and_counted(server, here):
    server.agents[KEY] = "kp:agent:other"
    one, other = fill(server.url, 2)
    send(**here)
    with TraceStore("runs.db") as store:
        store.report_outcome(one, success=False)
    done = send(**here)
    assert done.returncode == 1
    assert "still pending 0, still to withdraw 1." in done.stdout
    assert f"{one} is not withdrawn: 403: may not be deleted: Forbidden: can only" in done.stdout
    assert "1 to withdraw" in cli("outbox", **here).stdout
    assert "to withdraw" in cli("outbox", "show", one, **here).stdout
    assert other in server.units
    done = cli("withdraw", one, **here)
    assert done.returncode == 1
    assert "Forbidden: can only delete your own contributions" in done.stderr


def test_without_a_key_the_commands_say_so_and_ask_nothing(server, here):
    (one,) = fill(server.url, 1)
    done = send(**without_key(here))
    assert done.returncode == 1
    assert "there is no key for it; get one: kp-langchain register" in done.stdout
    assert "there is no key for it" in cli("outbox", **without_key(here)).stdout
    with TraceStore("runs.db") as store:
        store.outbox.save(replace(store.outbox.get(one), state="sent", attempts=1))
    assert "there is no key" in cli("withdraw", one, **without_key(here)).stderr
    assert server.requests == []


def test_a_key_goes_to_its_own_registry_alone(server, here):
    with LoopbackRegistry() as other:
        (one,) = fill(other.url, 1)
        with TraceStore("runs.db") as store:
            store.outbox.save(replace(store.outbox.get(one), state="sent", attempts=1))
        assert "there is no key" in cli("withdraw", one, **here).stderr
        # A row of a database is not the user's word.
        nowhere = {name: value for name, value in here.items() if name != "KP_REGISTRY_URL"}
        done = cli("withdraw", one, **nowhere)
        assert f"is not sent to {other.url}" in done.stderr
        assert other.requests == []
        # One that was stored for it is.
        cli("register", "--agent-id", "desk", "--registry", other.url, **nowhere)
        assert f"{one} is withdrawn" in cli("withdraw", one, **nowhere).stdout


@pytest.mark.parametrize("address", ["https://r.example.org/$(touch${IFS}here)", "x`touch here`"])
def test_what_a_row_says_is_no_command_to_copy(here, address):
    (one,) = fill("https://r.example.org", 1)
    with TraceStore("runs.db") as store:
        sent = replace(store.outbox.get(one), registry=address, state="sent", attempts=1)
        store.outbox.save(sent)
    nowhere = {name: value for name, value in here.items() if name != "KP_REGISTRY_URL"}
    done = cli("withdraw", one, **nowhere)
    assert done.returncode == 1
    assert f"KP_REGISTRY_URL={address}" not in done.stderr


def test_registering_says_what_comes_before_the_new_key(server, here):
    done = cli("register", "--agent-id", "kp:agent:desk", **here, KP_AGENT_ID="other")
    assert done.returncode == 0
    assert "But api_key is set (KP_API_KEY) and overrides the new key" in done.stdout
    assert "But agent_id is set (KP_AGENT_ID) to another agent" in done.stdout
    assert KEY not in done.stdout + done.stderr


def test_registering_keeps_the_key_of_another_agent(server, here):
    settings = without_key(here)
    done = cli("register", "--agent-id", "desk", **settings)
    path = Path(done.stdout.rsplit(" ", 1)[1].strip())
    before = path.read_text()
    assert cli("register", "--agent-id", "kp:agent:desk", **settings).returncode == 0
    assert path.read_text() != before
    before, asked = path.read_text(), len(server.requests)
    done = cli("register", "--agent-id", "other", **settings)
    assert done.returncode == 1
    assert "already, of kp:agent:desk; --replace would lose it" in done.stderr
    assert (path.read_text(), len(server.requests)) == (before, asked)
    assert cli("register", "--agent-id", "other", "--replace", **settings).returncode == 0
    assert json.loads(path.read_text())[server.url]["agent_id"] == "kp:agent:other"


def test_an_agent_that_would_be_redacted_is_not_registered(server, here):
    done = cli("register", "--agent-id", "ada@example.org", **without_key(here))
    assert done.returncode == 1
    assert "would be redacted to 'kp:agent:[REDACTED:email]'" in done.stderr
    assert "ada" not in done.stderr
    assert server.requests == []
