"""Every command that reads a store: on one that is empty, missing, locked, newer, or no store."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from kp_langchain import DomainPolicy, TraceStore
from tests.agents import ASK, handler, searching
from tests.commands import Done, cli, cli_apart

READING = [
    ["review"],
    ["review", "--search", "x", "--sort", "score"],
    ["review", "--json"],
    ["review", "stats"],
    ["review", "stats", "--domain", "finance", "--json"],
    ["label", "--next"],
    ["outbox"],
    ["delete", "--domain", "finance", "--dry-run"],
]
OF_ONE_RUN = [
    ["review", "show", "abc"],
    ["review", "compare", "abc", "abd"],
    ["delete", "abc", "--yes"],
]
REPORTING = [["export"], ["prune"]]  # on stderr, or after a write


def run(words: list[str]) -> Done:
    return cli(*words, "--database", "runs.db", columns=80)


def record() -> str:
    """Record one run into the store; return the id of its trace."""
    with TraceStore("runs.db") as store:
        watching = handler(store=store, policy=DomainPolicy(threshold=0.0))
        searching().invoke(ASK, {"callbacks": [watching]})
        scored = watching.last()
    assert scored is not None
    return scored.trace.id


@pytest.mark.parametrize("words", [*READING, *OF_ONE_RUN, *REPORTING], ids=" ".join)
def test_a_missing_file_is_an_error_and_is_not_created(words: list[str]) -> None:
    done = run(words)
    assert done.returncode == 1
    assert "there is no database at" in done.stderr
    assert "check --database" in done.stderr
    assert not Path("runs.db").exists()


@pytest.mark.parametrize("words", READING, ids=" ".join)
def test_an_empty_store_is_no_error(words: list[str]) -> None:
    with TraceStore("runs.db") as store:
        store.count()
    done = run(words)
    assert (done.returncode, done.stderr) == (0, "")
    assert ("--json" in words) == (done.stdout == "")


@pytest.mark.parametrize("words", OF_ONE_RUN, ids=" ".join)
def test_an_empty_store_has_not_the_run(words: list[str]) -> None:
    with TraceStore("runs.db") as store:
        store.count()
    done = run(words)
    assert (done.returncode, "no run 'abc' in" in done.stderr) == (1, True)


@pytest.mark.parametrize("words", [*READING, *OF_ONE_RUN, *REPORTING], ids=" ".join)
def test_a_store_of_a_newer_version_is_left_alone(words: list[str]) -> None:
    record()
    with closing(sqlite3.connect("runs.db")) as connection, connection:
        connection.execute("UPDATE kp_alembic_version SET version_num = '9042'")
    done = run(words)
    assert done.returncode == 1
    assert "upgrade it: pip install -U kp-langchain" in " ".join(done.stderr.split())


@pytest.mark.parametrize("words", [*READING, *OF_ONE_RUN, *REPORTING], ids=" ".join)
@pytest.mark.parametrize("content", [b"no database\n" * 100, b""])
def test_a_file_that_is_no_store_is_not_one_afterwards(words: list[str], content: bytes) -> None:
    Path("runs.db").write_bytes(content)
    done = run(words)
    if content:
        assert done.returncode == 1
        assert "the file is not a SQLite database" in " ".join(done.stderr.split())
        assert Path("runs.db").read_bytes() == content
    else:  # as `touch` leaves it: a store without runs
        assert done.returncode == (1 if words in OF_ONE_RUN else 0)


@pytest.fixture
def writer() -> Iterator[sqlite3.Connection]:
    """A program that has begun to write into the store, which has one run."""
    record()
    connection = sqlite3.connect("runs.db", isolation_level=None)
    connection.execute("BEGIN IMMEDIATE")
    yield connection
    connection.close()


@pytest.mark.parametrize("words", READING, ids=" ".join)
def test_a_store_that_another_program_writes_can_be_read(
    writer: sqlite3.Connection, words: list[str]
) -> None:
    done = run(words)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_verdict_waits_until_the_other_program_has_written() -> None:
    trace_id = record()
    connection = sqlite3.connect("runs.db", isolation_level=None, check_same_thread=False)
    connection.execute("BEGIN IMMEDIATE")
    timer = threading.Timer(0.5, connection.close)
    timer.start()
    done = cli_apart("label", trace_id, "--success", "--database", "runs.db")
    timer.join()
    assert done.returncode == 0, done.stderr
