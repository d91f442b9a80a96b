"""A finished run is on disk before it is scored; what its process left, the next one scores."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
import textwrap
import threading
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from uuid import uuid4

import pytest
import sqlalchemy as sa
from langchain_core.callbacks import dispatch_custom_event
from langchain_core.tools import tool

from kp_langchain import DomainPolicy, FinishedRun, TraceStore
from kp_langchain.recording import pending_drafts
from kp_langchain.recording.draft import Draft
from kp_langchain.recording.pending_runs import PendingRun, PendingRuns
from kp_langchain.store.tables import unscored
from kp_langchain.store.unscored import is_alive, this_process
from kp_langchain.verdict import Verdict
from tests.agents import ASK, agent, call, handler, say, searching

ROOT = Path(__file__).resolve().parents[2]
SECRET = "sk-ant-api03-" + "Ab3dE6gH9jK2mN5p" * 5

# Plays a run whose outcome function never returns, and ends as told once the run is on disk.
LEAVING = """
import os, sys, threading
from kp_langchain import DomainPolicy, TraceStore
from tests.agents import ASK, handler, searching
store = TraceStore("runs.db")
begun = threading.Event()
def hang(run):
    begun.set()
    threading.Event().wait()
watching = handler(
    "finance", store=store, outcome=hang, policy=DomainPolicy(threshold=0.0, visibility="org")
)
searching().invoke(ASK, {"callbacks": [watching]})
begun.wait()
watching._writer.wait()
print("on disk", flush=True)
"""


def python(script: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-W", "ignore", "-c", LEAVING + textwrap.dedent(script)],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def test_a_run_whose_process_was_killed_is_scored_by_the_next_one() -> None:
    with python("sys.stdin.read()") as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "on disk\n"
        child.kill()
    with TraceStore("runs.db") as store:
        assert (store.count(), store.unscored.count()) == (0, 1)
        watching = handler(store=store)
        assert watching.flush(60)
        (run,) = store.runs()
        # By the policy that held where it ran.
        assert (run.domain, run.decision, run.visibility) == ("finance", "contributed", "org")
        assert run.trace is not None
        assert store.unscored.count() == 0
        stats = watching.stats()
        assert (stats["adopted"], stats["runs"], stats["scored"]) == (1, 0, 0)


def test_a_run_whose_process_lives_is_left_to_it() -> None:
    with python("sys.stdin.read()\nos._exit(0)") as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "on disk\n"
        with TraceStore("runs.db") as store:
            with store.database.writing() as connection:  # however long it has been waiting
                long_ago = datetime.now(UTC) - timedelta(days=1)
                connection.execute(sa.update(unscored).values(queued_at=long_ago))
            watching = handler(store=store)
            assert watching.flush(60)
            assert (store.count(), store.unscored.count()) == (0, 1)
        child.communicate("")


def test_a_process_that_ends_in_order_says_what_it_leaves() -> None:
    with python("from kp_langchain.recording import worker; worker.exit_timeout_s = 0.05") as child:
        assert child.communicate()[0] == "on disk\n"
    with TraceStore("runs.db") as store:
        assert (store.count(), store.unscored.count()) == (0, 1)


def test_who_lives_is_told_by_number_and_beginning() -> None:
    assert is_alive(this_process()) is True
    host, pid, _ = this_process().split("|")
    assert is_alive(f"{host}|{pid}|another beginning") is False
    assert is_alive(f"elsewhere|{pid}|1") is None
    assert is_alive("") is None
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait()
    assert is_alive(f"{host}|{child.pid}|1") is False


def test_where_no_beginning_can_be_read_a_number_in_use_tells_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("kp_langchain.store.unscored._start_time", lambda _: "")
    host = this_process().partition("|")[0]
    assert is_alive(f"{host}|{os.getppid()}|") is None
    assert is_alive(f"{host}|{os.getppid()}|1") is None


@pytest.mark.parametrize(("age", "claimed"), [(timedelta(minutes=1), 0), (timedelta(hours=1), 1)])
def test_a_run_of_another_machine_is_taken_over_after_a_while(age: timedelta, claimed: int) -> None:
    with TraceStore("runs.db") as store:
        store.unscored.add([("kp:trace:1", "r", {})])
        with store.database.writing() as connection:
            owned = {"owner": "elsewhere|1|1", "queued_at": datetime.now(UTC) - age}
            connection.execute(sa.update(unscored).values(owned))
        assert len(store.unscored.claim()) == claimed
        assert store.unscored.claim() == []


def test_a_draft_holds_all_that_its_score_takes(tmp_path: Path) -> None:
    scored = handler(store=None)
    searching().invoke(ASK, {"callbacks": [scored]})
    last = scored.last()
    assert last is not None
    draft = Draft(
        trace=last.trace,
        run_id=uuid4(),
        policy=DomainPolicy(
            threshold=0.3,
            weights={
                "complexity": 1.0,
                "novelty": 0.0,
                "tool_diversity": 0.0,
                "outcome_confidence": 0.0,
            },
            keep_days=3,
        ),
        looked_successful=True,
        failed=True,
        reported=Verdict(False, 0.5, "why", "kp.outcome event"),
        structured=0.5,
        token_probability=0.25,
        task="t",
        withheld="w",
        registry="https://registry.example.org",
    )
    with TraceStore(tmp_path / "runs.db") as store:
        store.unscored.add([(draft.trace.id, str(draft.run_id), draft.to_dict())])
        with store.database.writing() as connection:
            connection.execute(sa.update(unscored).values(owner="|0|gone"))
            connection.execute(
                sa.update(unscored).values(queued_at=datetime(2020, 1, 1, tzinfo=UTC))
            )
        ((_, body),) = store.unscored.claim()
    read = Draft.from_dict(body)
    assert read.reported is not None
    # When it was stated is not written.
    assert replace(read, reported=replace(read.reported, at=draft.reported.at)) == draft


def test_a_draft_that_cannot_be_read_is_dropped_and_told(caplog: pytest.LogCaptureFixture) -> None:
    with TraceStore("runs.db") as store:
        store.unscored.add([("kp:trace:1", "r", {"trace": 7})])
        with store.database.writing() as connection:
            connection.execute(sa.update(unscored).values(owner=f"{this_process()}, before"))
        watching = handler(store=store)
        assert watching.flush(60)
        assert store.unscored.count() == 0
    assert "cannot be read" in caplog.text


def test_nothing_secret_is_written_before_the_score(tmp_path: Path) -> None:
    seen: list[bytes] = []

    @tool
    def leak(q: str) -> str:
        """Report."""
        dispatch_custom_event("kp.outcome", {"confidence": 0.5, "note": f"token {SECRET}"})
        return f"token {SECRET}"

    def look(_: FinishedRun) -> None:
        assert watching._writer is not None
        watching._writer.wait_for_thread(60)
        with closing(sqlite3.connect(tmp_path / "runs.db")) as other:
            ((body,),) = other.execute("SELECT body FROM unscored")
            seen.append(body.encode())

    with TraceStore(tmp_path / "runs.db") as store:
        watching = handler(store=store, outcome=look)
        leaking = agent(say("I leak.", call("leak", q=SECRET)), say(SECRET), tools=(leak,))
        leaking.invoke(ASK, {"callbacks": [watching]})
        assert watching.flush(60)
        assert watching.stats()["outcome_errors"] == 0
    assert seen
    assert SECRET.encode() not in seen[0]
    assert b"REDACTED" in seen[0]


def test_a_run_that_is_scored_at_once_is_written_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "runs.db"
    with TraceStore(path) as store, closing(sqlite3.connect(path)) as connection:
        watching = handler(store=store)
        searching().invoke(ASK, {"callbacks": [watching]})  # the first one has the store looked at
        assert watching.flush(60)
        monkeypatch.setattr(pending_drafts, "_DRAFT_AFTER_S", 600.0)
        connection.executescript(
            "CREATE TABLE drafts (id); CREATE TRIGGER watch AFTER INSERT ON unscored "
            "BEGIN INSERT INTO drafts VALUES (new.id); END"
        )
        for _ in range(3):
            searching().invoke(ASK, {"callbacks": [watching]})
            assert watching.flush(60)
        assert store.count() == 4
        assert connection.execute("SELECT count(*) FROM drafts").fetchone() == (0,)


def test_a_run_that_is_stored_leaves_no_draft(monkeypatch: pytest.MonkeyPatch) -> None:
    """The store's thread may write between any two steps of the thread that scores."""
    failed = threading.Event()
    monkeypatch.setattr(pending_drafts, "warn_of_failed_write", lambda *_: failed.set())
    with TraceStore("runs.db") as store, closing(sqlite3.connect("runs.db")) as connection:
        assert store.count() == 0
        connection.execute(
            "CREATE TRIGGER full BEFORE INSERT ON unscored BEGIN SELECT RAISE(ABORT, 'full'); END"
        )
        watching = handler(store=store, outcome=lambda _: failed.wait(60))
        put = PendingRuns.put

        def put_and_lose_the_processor(self: PendingRuns, run: PendingRun) -> None:
            put(self, run)
            with closing(sqlite3.connect("runs.db")) as mended:
                mended.execute("DROP TRIGGER full")
            assert watching._writer is not None
            assert watching._writer.wait(60)

        monkeypatch.setattr(PendingRuns, "put", put_and_lose_the_processor)
        searching().invoke(ASK, {"callbacks": [watching]})
        assert watching.flush(60)
        assert (store.count(), store.unscored.count()) == (1, 0)


def test_what_is_too_much_at_once_is_taken_over_in_portions(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("kp_langchain.store.unscored.MOST_CLAIMED", 2)
    monkeypatch.setattr("kp_langchain.recording.store_writer.MOST_CLAIMED", 2)
    with TraceStore("runs.db") as store:
        store.unscored.add((f"kp:trace:{at}", "r", {"trace": 7}) for at in range(5))
        with store.database.writing() as connection:
            connection.execute(sa.update(unscored).values(owner=f"{this_process()}, before"))
        watching = handler(store=store)
        for left in (3, 1, 0):
            assert watching.flush(300)
            assert store.unscored.count() == left
