"""`outbox`, `register`, `withdraw`, `delete` and `prune` as a user types them."""

from __future__ import annotations

import json
import re
import sqlite3
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from kp_langchain import DomainPolicy, Registry, TraceStore
from kp_langchain.run_keys import RunKeys
from kp_langchain.store import connections as sqlite
from tests.agents import ASK, handler, searching
from tests.cli.made_runs import KEY, made, recorded
from tests.cli.terminal import Terminal
from tests.commands import Done, cli, cli_apart
from tests.loopback_registry import LoopbackRegistry


@pytest.fixture
def keyless(here: dict[str, str]) -> dict[str, str]:
    return {name: value for name, value in here.items() if name != "KP_API_KEY"}


def fill(url: str, number: int) -> list[str]:
    runs = [made(n, visibility="network") for n in range(1, number + 1)]
    with TraceStore("runs.db") as store:
        store.add(*runs, registry=url)
    return [run.trace.id for run in runs]


def mark_as_sent(trace_id: str, **changes: str) -> None:
    with TraceStore("runs.db") as store:
        entry = store.outbox.get(trace_id)
        assert entry is not None
        store.outbox.save(replace(entry, state="sent", attempts=1, **changes))


def send(**environment: str) -> Done:
    """Send in a process of its own, because the sender stays until its process ends."""
    return cli_apart("registry", "outbox", "send", **environment)


def outbox(*words: str, **environment: str) -> Done:
    return cli("registry", "outbox", *words, **environment)


def delete(*words: str) -> Done:
    return cli("store", "delete", *words, *AT)


def short(trace_id: str) -> str:
    return trace_id.removeprefix("kp:trace:")[:8]


def test_sending_and_taking_back(server: LoopbackRegistry, here: dict[str, str]) -> None:
    first, second, third, fourth = fill(server.url, 4)
    listed = outbox(**here).stdout
    assert short(first) in listed
    assert "4 pending, 0 sent, 0 dead, 0 withdrawn in " in listed
    alone = outbox(**(here | {"KP_REGISTRY_URL": ""}))
    assert "No registry is configured (KP_REGISTRY_URL), so nothing is sent." in alone.stdout
    for unsent in (short(third), fourth):
        assert "is withdrawn" in cli("registry", "withdraw", unsent, **here).stdout
    done = send(**here)
    assert (done.returncode, done.stdout) == (0, "Sent 2, refused 0, still pending 0.\n")
    assert set(server.units) == {first, second}
    assert all(method == "POST" for method, *_ in server.requests)

    done = cli("registry", "withdraw", short(first), **here)
    assert done.returncode == 0, done.stderr
    assert set(server.units) == {second}
    shown = json.loads(outbox("show", first, "--json", **here).stdout)
    assert (shown["state"], shown["attempts"]) == ("withdrawn", 1)
    assert "withdrawn already" in cli("registry", "withdraw", first, **here).stderr
    with TraceStore("runs.db") as store:
        assert store.count() == 4


def test_one_whose_answer_was_lost_is_deleted_all_the_same(
    server: LoopbackRegistry, here: dict[str, str]
) -> None:
    busy = b"HTTP/1.1 503 -\r\nretry-after: 3600\r\ncontent-length: 0\r\n\r\n"
    server.misbehave = lambda number, method, path: "reset_after" if method == "POST" else busy
    (lost,) = fill(server.url, 1)
    assert send(**here).returncode == 1
    assert set(server.units) == {lost}
    server.misbehave = lambda number, method, path: None
    assert "no request may be sent" in cli("registry", "withdraw", lost, **here).stderr
    with TraceStore("runs.db") as store:  # as if the hour were over
        standing = store.outbox.standing(server.url, Registry(server.url, api_key=KEY).key_id)
        store.outbox.save(replace(standing, quiet_until=None))
    assert cli("registry", "withdraw", lost, **here).returncode == 0
    assert server.units == {}


def test_a_dead_one_tells_why_and_can_be_tried_again(
    server: LoopbackRegistry, here: dict[str, str]
) -> None:
    server.misbehave = lambda number, method, path: "422" if number == 0 else None
    (dead,) = fill(server.url, 1)
    assert "refused 1" in send(**here).stdout
    shown = outbox("show", dead, **here).stdout
    assert re.search("\nreason +422", shown)
    assert "steps.0.type: not one of ours" in " ".join(shown.split())
    assert short(dead) in outbox("--state", "dead", **here).stdout
    assert "is pending for" in outbox("retry", dead, **here).stdout
    assert "Sent 1" in send(**here).stdout
    assert "is sent; only dead or pending" in outbox("retry", dead, **here).stderr


def test_a_refused_key_no_key_and_a_new_one(
    server: LoopbackRegistry, here: dict[str, str], keyless: dict[str, str]
) -> None:
    ids = fill(server.url, 2)
    done = send(**here | {"KP_API_KEY": "kp_wrong"})
    assert done.returncode == 1
    assert "still pending 2" in done.stdout
    assert "it does not know the key" in done.stdout
    assert "kp_wrong" not in done.stdout + done.stderr
    assert len(server.requests) == 1

    done = send(**keyless)
    assert done.returncode == 1
    assert "there is no key for it; get one: kp-langchain registry register" in done.stdout
    assert "there is no key for it" in outbox(**keyless).stdout
    assert len(server.requests) == 1

    done = cli("registry", "register", "--agent-id", "kp:agent:desk", **keyless)
    assert done.returncode == 0, done.stderr
    path = Path(done.stdout.rsplit(" ", 1)[1].strip())
    assert path.stat().st_mode & 0o777 == 0o600
    key = json.loads(path.read_text())[server.url]["api_key"]
    assert key in server.keys  # type: ignore[operator]
    assert key not in done.stdout
    assert "Sent 2" in send(**keyless).stdout
    assert set(server.units) == set(ids)


def test_readdressing_to_the_registry_that_is_configured(
    server: LoopbackRegistry, here: dict[str, str]
) -> None:
    (one,) = fill("https://gone.example.org", 1)
    assert "meant for another registry (https://gone.example.org)" in send(**here).stdout
    assert server.requests == []
    outbox("retry", one, **here)
    assert "Sent 1" in send(**here).stdout


def test_who_registers_can_withdraw(
    server: LoopbackRegistry, keyless: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in keyless.items():
        monkeypatch.setenv(name, value)
    done = cli("registry", "register", "--agent-id", "desk")
    assert "gave a key for kp:agent:desk" in done.stdout
    assert set(server.agents.values()) == {"kp:agent:desk"}
    policy = DomainPolicy(threshold=0.3, visibility="network")
    watching = handler(policy=policy, store="runs.db")
    searching().invoke(ASK, {"callbacks": [watching]})
    assert watching.send(300)
    (unit,) = server.units.values()
    assert unit["metadata"]["agent_id"] == "kp:agent:desk"
    assert "1 of 1." in cli_apart("label", unit["id"], "--failure").stdout
    assert server.units == {}


def test_a_deletion_that_is_refused_is_told_and_counted(
    server: LoopbackRegistry, here: dict[str, str]
) -> None:
    server.agents[KEY] = "kp:agent:other"
    one, other = fill(server.url, 2)
    send(**here)
    with TraceStore("runs.db") as store:
        store.report_outcome(one, success=False)
    done = send(**here)
    assert done.returncode == 1
    assert "still pending 0, still to withdraw 1." in done.stdout
    row = rf"{short(one)} +to withdraw +\d+ min +\d+ +403: may not be deleted: Forbidden: can only"
    assert re.search(row, done.stdout)
    assert "1 to withdraw" in outbox(**here).stdout
    assert re.search("withdraw asked +True", outbox("show", one, **here).stdout)
    assert other in server.units
    done = cli("registry", "withdraw", one, **here)
    assert done.returncode == 1
    assert "Forbidden: can only delete your own contributions" in done.stderr


def test_a_key_goes_to_its_own_registry_alone(
    server: LoopbackRegistry, here: dict[str, str], keyless: dict[str, str]
) -> None:
    with LoopbackRegistry() as other:
        (one,) = fill(other.url, 1)
        mark_as_sent(one)
        assert "there is no key" in cli("registry", "withdraw", one, **here).stderr
        assert "there is no key" in cli("registry", "withdraw", one, **keyless).stderr
        # A row of a database is not the user's word.
        nowhere = {name: value for name, value in here.items() if name != "KP_REGISTRY_URL"}
        done = cli("registry", "withdraw", one, **nowhere)
        assert f"there is no key for {other.url}, and api_key is sent to" in done.stderr
        assert other.requests == []
        # One that was stored for it is.
        cli("registry", "register", "--agent-id", "desk", "--registry", other.url, **nowhere)
        assert f"{one} is withdrawn" in cli("registry", "withdraw", one, **nowhere).stdout


def test_registering_keeps_the_key_of_another_agent(
    server: LoopbackRegistry, here: dict[str, str], keyless: dict[str, str]
) -> None:
    done = cli("registry", "register", "--agent-id", "desk", **keyless)
    path = Path(done.stdout.rsplit(" ", 1)[1].strip())
    before = path.read_text()
    done = cli("registry", "register", "--agent-id", "kp:agent:desk", **here, KP_AGENT_ID="other")
    assert done.returncode == 0
    assert "api_key and agent_id of the settings take precedence" in done.stdout
    assert KEY not in done.stdout + done.stderr
    assert path.read_text() != before
    before, asked = path.read_text(), len(server.requests)
    done = cli("registry", "register", "--agent-id", "other", **keyless)
    assert done.returncode == 1
    assert "already, of kp:agent:desk; --replace would lose it" in done.stderr
    done = cli("registry", "register", "--agent-id", "ada@example.org", **keyless)
    assert done.returncode == 1
    assert "would be redacted to 'kp:agent:[REDACTED:email]'" in done.stderr
    assert "ada" not in done.stderr
    assert (path.read_text(), len(server.requests)) == (before, asked)
    assert (
        cli("registry", "register", "--agent-id", "other", "--replace", **keyless).returncode == 0
    )
    assert json.loads(path.read_text())[server.url]["agent_id"] == "kp:agent:other"


AT = ("--database", "runs.db")
NOW = datetime.now(UTC)


@pytest.fixture
def ids() -> list[str]:
    """Four runs in `runs.db`, of which each is a month older than the one before it."""
    runs = [
        made(
            number,
            domain="code" if number == 3 else "finance",
            content=f"sentence {number} " * 200,
            created_at=NOW - timedelta(days=30 * number + 1),
            options={"keys": RunKeys(session=f"s-{number}")},
        )
        for number in range(4)
    ]
    with TraceStore("runs.db") as store:
        store.add(*runs)
    return [run.trace.id for run in runs]


def left() -> list[str]:
    with TraceStore("runs.db") as store:
        return [run.trace_id for run in store.runs()]


def data(done: Done) -> dict[str, Any]:
    parsed: dict[str, Any] = json.loads(done.stdout)
    return parsed


def test_runs_are_deleted_by_id_and_their_text_leaves_the_file(ids: list[str]) -> None:
    done = delete(ids[0], ids[1].removeprefix("kp:trace:")[:12], "--yes")
    assert done.returncode == 0, done.stderr
    assert "2 runs: finance 2.\nDeleted 2 runs from" in done.stdout
    assert "Compacted" in done.stdout
    assert left() == ids[2:]
    content = Path("runs.db").read_bytes()
    assert b"sentence 0" not in content
    assert b"sentence 2" in content


def test_runs_are_deleted_by_conditions_that_all_hold(ids: list[str]) -> None:
    done = delete("--until", "500w")
    assert (done.returncode, done.stdout[-28:]) == (0, "match; nothing was deleted.\n")
    words = "store", "delete", "--until", "20d", "--dry-run"
    assert cli(*words, *AT).stdout.startswith("3 runs: finance 2, code 1.\n")
    assert data(cli(*words, "--json", *AT)) == {
        "selected": 3, "by_domain": {"finance": 2, "code": 1}, "unscored": 0, "paused": 0,
        "at_registry": 0, "deleted": 0, "to_withdraw": 0, "is_compacted": None,
    }  # fmt: skip
    dry = cli("store", "delete", "--since", "500w", "--until", "20d", "--dry-run", *AT).stdout
    assert dry.startswith("3 runs: finance 2, code 1.\n")
    assert [line.split()[0] in str(ids) for line in dry.splitlines()[1:-1]] == [True] * 3
    done = delete("--domain", "finance")
    assert done.returncode == 1
    assert "nothing was deleted, because there is no terminal" in done.stderr
    assert left() == ids
    assert delete("--until", "50d", "--domain", "code", "-y").returncode == 0
    assert left() == ids[:3]
    assert delete("--where", "session=s-1", "-y").returncode == 0
    assert left() == [ids[0], ids[2]]
    done = delete("--until", "12h", "--yes", "--json")
    result = data(done)
    assert (result["selected"], result["deleted"], result["is_compacted"]) == (2, 2, True)
    assert "Deleted 2 runs" in done.stderr
    assert left() == []


@pytest.mark.parametrize(("answer", "number"), [("y", 1), ("n", 4), ("", 4)])
def test_in_a_terminal_it_asks(ids: list[str], answer: str, number: int) -> None:
    with Terminal("store", "delete", "--domain", "finance", *AT, prompt="?") as terminal:
        terminal.type(answer, after="Delete them for good? [y/N]: ")
        assert terminal.end() == (0 if answer == "y" else 1)
        assert "3 runs: finance 3." in terminal.screens[0]
    assert len(left()) == number


def test_runs_that_wait_to_be_scored_are_named() -> None:
    with TraceStore("runs.db") as store:
        store.journal.record([recorded(keys=RunKeys(session="s-9"))])
        done = delete("--where", "session=s-9", "--yes")
        assert done.stdout.startswith("1 run: not scored yet 1.\nDeleted 1 run from")
        assert store.journal.waiting() == 0


@pytest.mark.parametrize("other", ["writes", "reads"])
def test_a_store_that_another_process_uses(
    ids: list[str], monkeypatch: pytest.MonkeyPatch, other: str
) -> None:
    monkeypatch.setattr(sqlite, "_BUSY_TIMEOUT_S", 0.05)
    with closing(sqlite3.connect("runs.db", isolation_level=None)) as connection:
        connection.execute("BEGIN IMMEDIATE" if other == "writes" else "BEGIN")
        connection.execute("SELECT count(*) FROM runs").fetchone()
        done = delete(ids[0], "--yes")
        assert done.returncode == 1
        if other == "writes":
            assert "another process has been writing to it" in done.stderr
        else:  # what is deleted is deleted; that a file still has its text is said
            assert "Deleted 1 run from" in done.stdout
            assert "may still have text of deleted runs: another" in done.stdout
            assert "Try that again later: kp-langchain store prune" in done.stdout
        connection.execute("ROLLBACK")
    assert left() == ids[other == "reads" :]
    assert cli("store", "prune", *AT).returncode == 0


def test_what_was_sent_is_withdrawn_at_once_or_said_to_wait(server: LoopbackRegistry) -> None:
    here = {"KP_REGISTRY_URL": server.url, "KP_API_KEY": KEY, "KP_DATABASE_URL": "runs.db"}
    runs = [made(number, visibility="network") for number in range(3)]
    first, second, third = (run.trace.id for run in runs)
    with TraceStore("runs.db") as store:
        store.add(*runs, registry=server.url)
    assert cli_apart("registry", "outbox", "send", **here).returncode == 0
    done = cli_apart("store", "delete", first, "--yes", **here)
    assert done.returncode == 0, done.stderr
    assert "1 of them were sent to a registry" in done.stdout
    assert "Sent or withdrawn at the registry: 1 of 1." in done.stdout
    assert set(server.units) == {second, third}

    done = cli("store", "delete", second, "--yes", **(here | {"KP_REGISTRY_URL": ""}))
    assert done.returncode == 1
    assert "No registry is configured" in done.stdout
    assert cli("registry", "withdraw", second, **here).stdout == f"{second} is withdrawn\n"
    assert set(server.units) == {third}

    busy = b"HTTP/1.1 503 -\r\nretry-after: 3600\r\ncontent-length: 0\r\n\r\n"
    server.misbehave = lambda number, method, path: busy
    done = cli_apart("store", "delete", third, "--yes", "--json", **here)
    assert (done.returncode, data(done)["to_withdraw"]) == (1, 1)
    assert "0 of 1" in done.stderr
    assert "1 to withdraw" in outbox(**here).stdout


def test_prune_removes_expired_bodies_and_what_was_left(ids: list[str]) -> None:
    runs = [
        made(n + 9, content=f"short-lived {n} " * 200, score=0.1, options={"keep_days": 7.0})
        for n in range(3)
    ]
    with TraceStore("runs.db") as store:
        store.add(*runs)
    with closing(sqlite3.connect("runs.db")) as connection, connection:
        past = f"{NOW - timedelta(days=1):%Y-%m-%d %H:%M:%S.%f}"
        change = "UPDATE runs SET body_expires_at = ? WHERE trace_id = ?"
        connection.execute(change, (past, runs[0].trace.id))
    done = cli("store", "prune", *AT)
    assert done.returncode == 0, done.stderr
    assert "1 expired trace" in done.stdout
    content = Path("runs.db").read_bytes()
    assert b"short-lived 0" not in content
    assert b"short-lived 1" in content
    assert "nothing to remove" in cli("store", "prune", *AT).stdout.lower()


def test_all_but_the_newest_are_deleted(ids: list[str]) -> None:
    assert "no terminal to ask at" in delete("--keep", "2").stderr
    assert left() == ids
    for _ in range(2):
        assert delete("--keep", "2", "--yes").returncode == 0
        assert left() == ids[:2]
    result = data(delete("--keep", "1", "--yes", "--json"))
    assert (result["deleted"], result["is_compacted"]) == (1, True)
