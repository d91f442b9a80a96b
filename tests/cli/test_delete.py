"""`delete` and `prune` as a user types them."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from kp_langchain import TraceStore
from kp_langchain.run_keys import RunKeys
from kp_langchain.store import sqlite
from kp_langchain.store.tables import runs as runs_table
from tests.cli.terminal import Terminal
from tests.commands import Done, cli, cli_apart
from tests.loopback_registry import LoopbackRegistry
from tests.registry.test_sender import KEY, passed
from tests.store.conftest import _scored

AT = ("--database", "runs.db")
NOW = datetime.now(UTC)


def days_ago(number: float) -> datetime:
    return NOW - timedelta(days=number)


@pytest.fixture
def ids() -> list[str]:
    """Four runs in `runs.db`, of which each is a month older than the one before it."""
    runs = [
        _scored(
            number,
            domain="code" if number == 3 else "finance",
            content=f"sentence {number} " * 200,
            created_at=days_ago(30 * number + 1),
            keys=RunKeys(session=f"s-{number}"),
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


class TestDelete:
    def test_by_id(self, ids: list[str]) -> None:
        done = cli("delete", ids[0], ids[1].removeprefix("kp:trace:")[:12], "--yes", *AT)
        assert done.returncode == 0, done.stderr
        assert "2 runs: finance 2.\nDeleted 2 runs from" in done.stdout
        assert "Gave back" in done.stdout
        assert left() == ids[2:]
        content = Path("runs.db").read_bytes()
        assert b"sentence 0" not in content
        assert b"sentence 2" in content

    def test_by_conditions_that_all_hold(self, ids: list[str]) -> None:
        assert cli("delete", "--older-than", "50d", "--domain", "code", "-y", *AT).returncode == 0
        assert left() == ids[:3]
        assert cli("delete", "--where", "session=s-1", "-y", *AT).returncode == 0
        assert left() == [ids[0], ids[2]]
        assert cli("delete", "--older-than", "12h", "-y", *AT).returncode == 0
        assert left() == []

    def test_what_matches_nothing(self, ids: list[str]) -> None:
        done = cli("delete", "--older-than", "500w", *AT)
        assert done.returncode == 0
        assert done.stdout.endswith("match; nothing was deleted.\n")
        assert "no run 'nothing'" in cli("delete", "nothing", *AT).stderr
        assert left() == ids

    def test_a_dry_run_deletes_nothing(self, ids: list[str]) -> None:
        done = cli("delete", "--older-than", "20d", "--dry-run", *AT)
        assert done.returncode == 0
        assert done.stdout.startswith("3 runs: finance 2, code 1.\n")
        assert data(cli("delete", "--older-than", "20d", "--dry-run", "--json", *AT)) == {
            "selected": 3,
            "by_domain": {"finance": 2, "code": 1},
            "unscored": 0,
            "paused": 0,
            "at_registry": 0,
            "deleted": 0,
            "to_withdraw": 0,
            "freed_bytes": 0,
            "is_compacted": None,
        }
        assert left() == ids

    def test_json(self, ids: list[str]) -> None:
        done = cli("delete", "--domain", "finance", "--yes", "--json", *AT)
        result = data(done)
        assert (result["selected"], result["deleted"], result["is_compacted"]) == (3, 3, True)
        assert result["freed_bytes"] > 0
        assert "Deleted 3 runs" in done.stderr

    @pytest.mark.parametrize(
        ("words", "message"),
        [
            ([], "give either IDs, or some of --domain, --older-than and --where"),
            (["{id}", "--domain", "finance"], "give either IDs, or some of"),
        ],
    )
    def test_wrong_usage(self, ids: list[str], words: list[str], message: str) -> None:
        done = cli("delete", *(word.format(id=ids[0]) for word in words), *AT, columns=200)
        assert done.returncode == 2
        assert message in done.stderr
        assert left() == ids

    @pytest.mark.parametrize(
        ("words", "message"),
        [
            (["--older-than", "soon"], "--older-than soon: not an age; write 90m, 12h, 7d or 2w"),
            (["--older-than", "3m"], "--older-than 3m: write hours, days or weeks: 12h"),
            (["--older-than", "999999w"], "before the first day of the calendar"),
            (["--where", "sesion=s-1"], "did you mean session?"),
            (["--domain", "finance"], "nothing was deleted, because there is no terminal"),
        ],
    )
    def test_what_cannot_be_done(self, ids: list[str], words: list[str], message: str) -> None:
        done = cli("delete", *words, *AT)
        assert (done.returncode, len(left())) == (1, 4)
        assert message in done.stderr

    @pytest.mark.parametrize(("answer", "number"), [("y", 1), ("n", 4), ("", 4)])
    def test_in_a_terminal_it_asks(self, ids: list[str], answer: str, number: int) -> None:
        with Terminal("delete", "--domain", "finance", *AT, prompt="?") as terminal:
            terminal.type(answer, after="Delete them for good? [y/N]: ")
            assert terminal.end() == (0 if answer == "y" else 1)
            assert "3 runs: finance 3." in terminal.screens[0]
        assert len(left()) == number

    def test_runs_that_wait_are_named(self, ids: list[str]) -> None:
        wire = _scored().trace.model_dump(mode="json")
        body = {"run_id": "r", "trace": wire, "keys": RunKeys(session="s-9").to_dict()}
        with TraceStore("runs.db") as store:
            store.unscored.add([("kp:trace:draft", "r", body)])
        done = cli("delete", "--where", "session=s-9", "--yes", *AT)
        assert done.stdout.startswith("1 run: not scored yet 1.\nDeleted 1 run from")
        with TraceStore("runs.db") as store:
            assert store.unscored.count() == 0

    def test_a_store_that_is_empty_missing_newer_or_none(self, ids: list[str]) -> None:
        done = cli("delete", "--domain", "finance")
        assert (done.returncode, done.stderr) == (0, "")
        assert "there is no database at" in cli("delete", "x", "--database", "typo.db").stderr
        with closing(sqlite3.connect("runs.db")) as connection, connection:
            connection.execute("UPDATE kp_alembic_version SET version_num = '9999'")
        done = cli("delete", "--domain", "finance", "--yes", *AT)
        assert done.returncode == 1
        assert "schema version 9999" in done.stderr
        Path("letter.txt").write_text("Dear reader, " * 100)
        done = cli("delete", "--domain", "finance", "--yes", "--database", "letter.txt")
        assert "the file is not a SQLite database" in done.stderr

    def test_a_store_that_another_process_writes_to(
        self, ids: list[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(sqlite, "_BUSY_TIMEOUT_S", 0.05)
        with closing(sqlite3.connect("runs.db", isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            done = cli("delete", ids[0], "--yes", *AT)
            assert done.returncode == 1
            assert "another process has been writing to it" in done.stderr
            other.execute("ROLLBACK")
        assert left() == ids

    def test_a_store_that_another_process_reads(
        self, ids: list[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """What is deleted is deleted; that a file still has its text is said, and what to do."""
        monkeypatch.setattr(sqlite, "_BUSY_TIMEOUT_S", 0.05)
        monkeypatch.setattr(sqlite, "_SHORT_WAIT_MS", 1)
        with closing(sqlite3.connect("runs.db", isolation_level=None)) as other:
            other.execute("BEGIN")
            other.execute("SELECT count(*) FROM runs").fetchone()
            done = cli("delete", ids[0], "--yes", *AT)
            assert done.returncode == 1
            assert "Deleted 1 run from" in done.stdout
            assert "may still have text of deleted runs, because another" in done.stdout
            assert "Try that again later: kp-langchain prune" in done.stdout
            other.execute("ROLLBACK")
            assert left() == ids[1:]
            assert cli("prune", *AT).returncode == 0


class TestAtTheRegistry:
    @pytest.fixture
    def server(self) -> Iterator[LoopbackRegistry]:
        with LoopbackRegistry(keys={KEY}) as server:
            yield server

    @pytest.fixture
    def here(self, server: LoopbackRegistry) -> dict[str, str]:
        return {
            "KP_REGISTRY_URL": server.url,
            "KP_API_KEY": KEY,
            "KP_DATABASE_URL": "runs.db",
        }

    def sent(self, here: dict[str, str], number: int) -> list[str]:
        runs = [passed(n) for n in range(number)]
        with TraceStore("runs.db") as store:
            store.add_many(runs, registry=here["KP_REGISTRY_URL"])
        assert cli_apart("outbox", "send", **here).returncode == 0
        return [run.trace.id for run in runs]

    def test_it_is_withdrawn_at_once(self, server: LoopbackRegistry, here: dict[str, str]) -> None:
        first, second = self.sent(here, 2)
        done = cli_apart("delete", first, "--yes", **here)
        assert done.returncode == 0, done.stderr
        assert "1 of them were sent to a registry" in done.stdout
        assert f"Sent or withdrawn at {server.url}: 1 of 1." in done.stdout
        assert set(server.units) == {second}
        listed = cli("outbox", **here).stdout
        assert "0 pending, 1 sent, 0 dead, 0 withdrawn" in listed

    def test_what_cannot_be_withdrawn_now_is_said(
        self, server: LoopbackRegistry, here: dict[str, str]
    ) -> None:
        first, second = self.sent(here, 2)
        done = cli("delete", first, "--yes", **(here | {"KP_REGISTRY_URL": ""}))
        assert done.returncode == 1
        assert "1 wait for a registry, and none is configured" in done.stdout
        assert "Gave back" in done.stdout
        done = cli("withdraw", first, **here)
        assert done.stdout == f"{first} is withdrawn\n"
        assert set(server.units) == {second}
        with TraceStore("runs.db") as store:
            assert store.outbox.get(first) is None
        server.misbehave = lambda number, method, path: "500"
        done = cli_apart("delete", second, "--yes", "--json", "--timeout", "1", **here)
        assert (done.returncode, data(done)["to_withdraw"]) == (1, 1)
        assert "0 of 1" in done.stderr
        assert set(server.units) == {second}
        assert "1 to withdraw" in cli("outbox", **here).stdout

    def test_settings_that_cannot_be_used_end_it_before_anything_is_deleted(
        self, here: dict[str, str]
    ) -> None:
        (first,) = self.sent(here, 1)
        done = cli("delete", first, "--yes", **here, KP_MAX_STEPS="many")
        assert done.returncode == 1
        assert left() == [first]


class TestPrune:
    def test_expired_bodies_and_leftovers_go(self, ids: list[str]) -> None:
        runs = [
            replace(_scored(n, content=f"short-lived {n} " * 200, score=0.1), keep_days=7.0)
            for n in range(3)
        ]
        with TraceStore("runs.db") as store:
            store.add_many(runs)
            with store.database.writing() as connection:
                of_one = runs_table.c.trace_id == runs[0].trace.id
                past = {"body_expires_at": days_ago(1)}
                connection.execute(sa.update(runs_table).where(of_one).values(past))
        done = cli("prune", *AT)
        assert done.returncode == 0, done.stderr
        assert "1 expired trace" in done.stdout
        content = Path("runs.db").read_bytes()
        assert b"short-lived 0" not in content
        assert b"short-lived 1" in content
        assert "nothing else was superfluous" in cli("prune", *AT).stdout.lower()

    def test_the_newest_stay(self, ids: list[str]) -> None:
        done = cli("prune", "--keep", "2", *AT)
        assert "no terminal to ask at" in done.stderr
        assert left() == ids
        done = cli("prune", "--keep", "2", "--yes", *AT)
        assert "2 runs: " in done.stdout
        assert left() == ids[:2]
        assert cli("prune", "--keep", "2", "--yes", *AT).returncode == 0
        assert left() == ids[:2]
        result = data(cli("prune", "--keep", "1", "--yes", "--json", *AT))
        assert (result["deleted"], result["is_compacted"]) == (1, True)
