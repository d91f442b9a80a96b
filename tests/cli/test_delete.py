"""`delete` and `prune` as a user types them."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from kp_langchain import TraceStore
from kp_langchain.run_keys import RunKeys
from kp_langchain.store import sqlite
from tests.cli.made_runs import KEY, made
from tests.cli.terminal import Terminal
from tests.commands import Done, cli, cli_apart
from tests.loopback_registry import LoopbackRegistry

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
        store.add_many(runs)
    return [run.trace.id for run in runs]


def left() -> list[str]:
    with TraceStore("runs.db") as store:
        return [run.trace_id for run in store.runs()]


def data(done: Done) -> dict[str, Any]:
    parsed: dict[str, Any] = json.loads(done.stdout)
    return parsed


def test_runs_are_deleted_by_id_and_their_text_leaves_the_file(ids: list[str]) -> None:
    done = cli("delete", ids[0], ids[1].removeprefix("kp:trace:")[:12], "--yes", *AT)
    assert done.returncode == 0, done.stderr
    assert "2 runs: finance 2.\nDeleted 2 runs from" in done.stdout
    assert "Gave back" in done.stdout
    assert left() == ids[2:]
    content = Path("runs.db").read_bytes()
    assert b"sentence 0" not in content
    assert b"sentence 2" in content


def test_runs_are_deleted_by_conditions_that_all_hold(ids: list[str]) -> None:
    done = cli("delete", "--older-than", "500w", *AT)
    assert (done.returncode, done.stdout[-28:]) == (0, "match; nothing was deleted.\n")
    words = "delete", "--older-than", "20d", "--dry-run"
    assert cli(*words, *AT).stdout.startswith("3 runs: finance 2, code 1.\n")
    assert data(cli(*words, "--json", *AT)) == {
        "selected": 3, "by_domain": {"finance": 2, "code": 1}, "unscored": 0, "paused": 0,
        "at_registry": 0, "deleted": 0, "to_withdraw": 0, "freed_bytes": 0, "is_compacted": None,
    }  # fmt: skip
    done = cli("delete", "--domain", "finance", *AT)
    assert done.returncode == 1
    assert "nothing was deleted, because there is no terminal" in done.stderr
    assert left() == ids
    assert cli("delete", "--older-than", "50d", "--domain", "code", "-y", *AT).returncode == 0
    assert left() == ids[:3]
    assert cli("delete", "--where", "session=s-1", "-y", *AT).returncode == 0
    assert left() == [ids[0], ids[2]]
    done = cli("delete", "--older-than", "12h", "--yes", "--json", *AT)
    result = data(done)
    assert (result["selected"], result["deleted"], result["is_compacted"]) == (2, 2, True)
    assert result["freed_bytes"] > 0
    assert "Deleted 2 runs" in done.stderr
    assert left() == []


@pytest.mark.parametrize(("answer", "number"), [("y", 1), ("n", 4), ("", 4)])
def test_in_a_terminal_it_asks(ids: list[str], answer: str, number: int) -> None:
    with Terminal("delete", "--domain", "finance", *AT, prompt="?") as terminal:
        terminal.type(answer, after="Delete them for good? [y/N]: ")
        assert terminal.end() == (0 if answer == "y" else 1)
        assert "3 runs: finance 3." in terminal.screens[0]
    assert len(left()) == number


def test_runs_that_wait_to_be_scored_are_named() -> None:
    body = {"run_id": "r", "trace": made().trace.model_dump(mode="json")}
    body["keys"] = RunKeys(session="s-9").to_dict()
    with TraceStore("runs.db") as store:
        store.unscored.add([("kp:trace:draft", "r", body)])
        done = cli("delete", "--where", "session=s-9", "--yes", *AT)
        assert done.stdout.startswith("1 run: not scored yet 1.\nDeleted 1 run from")
        assert store.unscored.count() == 0


@pytest.mark.parametrize("other", ["writes", "reads"])
def test_a_store_that_another_process_uses(
    ids: list[str], monkeypatch: pytest.MonkeyPatch, other: str
) -> None:
    monkeypatch.setattr(sqlite, "_BUSY_TIMEOUT_S", 0.05)
    monkeypatch.setattr(sqlite, "_SHORT_WAIT_MS", 1)
    with closing(sqlite3.connect("runs.db", isolation_level=None)) as connection:
        connection.execute("BEGIN IMMEDIATE" if other == "writes" else "BEGIN")
        connection.execute("SELECT count(*) FROM runs").fetchone()
        done = cli("delete", ids[0], "--yes", *AT)
        assert done.returncode == 1
        if other == "writes":
            assert "another process has been writing to it" in done.stderr
        else:  # what is deleted is deleted; that a file still has its text is said
            assert "Deleted 1 run from" in done.stdout
            assert "may still have text of deleted runs, because another" in done.stdout
            assert "Try that again later: kp-langchain prune" in done.stdout
        connection.execute("ROLLBACK")
    assert left() == ids[other == "reads" :]
    assert cli("prune", *AT).returncode == 0


@pytest.fixture
def server() -> Iterator[LoopbackRegistry]:
    with LoopbackRegistry(keys={KEY}) as server:
        yield server


def test_what_was_sent_is_withdrawn_at_once_or_said_to_wait(server: LoopbackRegistry) -> None:
    here = {"KP_REGISTRY_URL": server.url, "KP_API_KEY": KEY, "KP_DATABASE_URL": "runs.db"}
    runs = [made(number, visibility="network") for number in range(3)]
    first, second, third = (run.trace.id for run in runs)
    with TraceStore("runs.db") as store:
        store.add_many(runs, registry=server.url)
    assert cli_apart("outbox", "send", **here).returncode == 0
    done = cli_apart("delete", first, "--yes", **here)
    assert done.returncode == 0, done.stderr
    assert "1 of them were sent to a registry" in done.stdout
    assert f"Sent or withdrawn at {server.url}: 1 of 1." in done.stdout
    assert set(server.units) == {second, third}

    done = cli("delete", second, "--yes", **(here | {"KP_REGISTRY_URL": ""}))
    assert done.returncode == 1
    assert "1 wait for a registry, and none is configured" in done.stdout
    assert cli("withdraw", second, **here).stdout == f"{second} is withdrawn\n"
    assert set(server.units) == {third}

    server.misbehave = lambda number, method, path: "500"
    done = cli_apart("delete", third, "--yes", "--json", "--timeout", "1", **here)
    assert (done.returncode, data(done)["to_withdraw"]) == (1, 1)
    assert "0 of 1" in done.stderr
    assert "1 to withdraw" in cli("outbox", **here).stdout


def test_prune_removes_expired_bodies_and_what_was_left(ids: list[str]) -> None:
    runs = [
        made(n + 9, content=f"short-lived {n} " * 200, score=0.1, options={"keep_days": 7.0})
        for n in range(3)
    ]
    with TraceStore("runs.db") as store:
        store.add_many(runs)
    with closing(sqlite3.connect("runs.db")) as connection, connection:
        past = f"{NOW - timedelta(days=1):%Y-%m-%d %H:%M:%S.%f}"
        change = "UPDATE runs SET body_expires_at = ? WHERE trace_id = ?"
        connection.execute(change, (past, runs[0].trace.id))
    done = cli("prune", *AT)
    assert done.returncode == 0, done.stderr
    assert "1 expired trace" in done.stdout
    content = Path("runs.db").read_bytes()
    assert b"short-lived 0" not in content
    assert b"short-lived 1" in content
    assert "nothing else was superfluous" in cli("prune", *AT).stdout.lower()


def test_prune_keeps_the_newest(ids: list[str]) -> None:
    assert "no terminal to ask at" in cli("prune", "--keep", "2", *AT).stderr
    assert left() == ids
    for _ in range(2):
        assert cli("prune", "--keep", "2", "--yes", *AT).returncode == 0
        assert left() == ids[:2]
    result = data(cli("prune", "--keep", "1", "--yes", "--json", *AT))
    assert (result["deleted"], result["is_compacted"]) == (1, True)
