"""A run that pauses in one process and is resumed in another one is one run."""

from __future__ import annotations

import json
import multiprocessing
import os
import shutil
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from importlib.util import find_spec
from multiprocessing import forkserver
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from kp_langchain import DomainPolicy, ScoredTrace, TraceStore
from kp_langchain.recording import paused_in_memory
from kp_langchain.store.stored_run import StoredRun
from kp_langchain.store.tables import paused_runs
from tests.agents import QUESTION, handler, shape
from tests.recording.pausing import SECRET, play, play_in

ROOT = Path(__file__).resolve().parents[2]
# Before that, LangGraph says nothing of a breakpoint.
needs_graph_events = pytest.mark.skipif(
    find_spec("langgraph.callbacks") is None, reason="needs langgraph 1.1.8"
)
needs_call_ids = pytest.mark.skipif(
    find_spec("langgraph.callbacks") is None, reason="before, tools begin without their call's id"
)
# Each process is forked from one that has loaded what it needs, and done nothing.
_HAS_FORKSERVER = "forkserver" in multiprocessing.get_all_start_methods()
_FRESH = multiprocessing.get_context("forkserver" if _HAS_FORKSERVER else "spawn")
_FRESH.set_forkserver_preload(["tests.recording.pausing"])
SEARCHED = ["thought", "call search", "saw search", "thought"]


@pytest.fixture(scope="module", autouse=True)
def fresh_processes() -> None:
    if not _HAS_FORKSERVER:
        return
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(ROOT))  # before Python 3.12.9 it knows no other path
        forkserver.ensure_running()


@pytest.fixture(autouse=True)
def nothing_waits_in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(paused_in_memory, "_paused_runs", {})


class Started:
    """Some invocations that are being played in a process of their own."""

    def __init__(self, *words: str, **environment: str) -> None:
        self._received, sent = _FRESH.Pipe(duplex=False)
        arguments = (str(Path.cwd()), words, {**os.environ, **environment}, sent)
        self._process = _FRESH.Process(target=play_in, args=arguments)
        self._process.start()
        sent.close()

    def stats(self) -> dict[str, int]:
        """Wait for its end; return its handler's `stats()`."""
        assert self._received.poll(600)
        stats: dict[str, int] = self._received.recv()
        self._process.join(600)
        assert self._process.exitcode == 0
        return stats


def process(*words: str, **environment: str) -> dict[str, int]:
    """Play some invocations in a process of their own; return its handler's `stats()`."""
    return Started(*words, **environment).stats()


def interpreter(*words: str, **environment: str) -> tuple[int, dict[str, int]]:
    """Play some invocations in an interpreter of their own; return exit code and `stats()`."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-m", "tests.recording.pausing", *words],
        env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
        stdout=subprocess.PIPE,
        timeout=600,
        check=False,
    )
    return done.returncode, json.loads(done.stdout or "null") or {}


def stored(url: str = "runs.db") -> list[StoredRun]:
    with TraceStore(url) as store:
        return store.runs(newest_first=False)


def shapes(url: str = "runs.db") -> list[list[str]]:
    with TraceStore(url) as store:
        return [shape(run.trace) for run in store.runs(newest_first=False) if run.trace]


def waiting(url: str = "runs.db") -> int:
    with TraceStore(url) as store:
        return store.paused.count()


@pytest.mark.parametrize(
    ("graph", "how", "steps"),
    [
        ("approving", "approve", SEARCHED),
        pytest.param("breakpoint", "go", SEARCHED, marks=needs_graph_events),
        ("sub_graph", "yes", ["thought", "thought"]),
        ("tool", "yes", ["thought", "call ask_human", "saw ask_human", "thought"]),
        pytest.param(
            "delegating",
            "yes",
            [
                "thought",
                "call delegate",
                "thought",
                "call search",
                "saw search",
                "thought",
                "call ask_human",
                "saw ask_human",
                "thought",
                "saw delegate",
                "thought",
            ],
            marks=needs_call_ids,
        ),
        ("approving", "reject", SEARCHED),
        ("own_node", "yes", SEARCHED),
        ("own_node", "no", SEARCHED),
        ("booking", "no", ["thought", "call book", "saw book", "thought"]),
        (
            "failing",
            "approve",
            ["thought", "call soft", "recovered soft", *SEARCHED],
        ),
    ],
)
def test_two_processes_record_one_run(graph: str, how: str, steps: list[str]) -> None:
    first = process(graph, "ask")
    assert (first["runs"], first["paused"], first["scored"]) == (1, 1, 0)
    assert (waiting(), stored()) == (1, [])
    second = process(graph, how)
    assert (second["runs"], second["scored"], second["continued"]) == (1, 1, 1)
    assert shapes() == [steps]
    (run,) = stored()
    assert run.objective == QUESTION
    assert run.thread == "t-1"
    assert waiting() == 0


@pytest.mark.parametrize(
    ("graph", "how"),
    [("approving", "approve"), pytest.param("breakpoint", "go", marks=needs_graph_events)],
)
def test_a_stream_left_at_the_pause_is_resumed_elsewhere(graph: str, how: str) -> None:
    first = process(graph, "leave")
    assert (first["runs"], first["paused"], first["cancelled"], waiting()) == (1, 1, 0, 1)
    second = process(graph, how)
    assert (second["runs"], second["scored"], second["continued"]) == (1, 1, 1)
    assert (shapes(), waiting()) == ([SEARCHED], 0)


def test_it_is_the_run_that_one_process_would_have_recorded() -> None:
    process("failing", "ask", "approve")
    Path("checkpoints.pickle").unlink()
    process("failing", "ask", STORE="other.db")
    process("failing", "approve", STORE="other.db")
    (one,), (two,) = stored(), stored("other.db")
    assert two.score == one.score
    assert (two.success, two.confidence, two.framework) == (one.success, 0.8, "langgraph")
    assert shapes() == shapes("other.db")


def test_on_either_database(url: str) -> None:
    process("approving", "ask", STORE=url)
    process("approving", "approve", STORE=url)
    assert shapes(url) == [SEARCHED]
    assert waiting(url) == 0


def test_several_pauses_each_resumed_elsewhere() -> None:
    process("twice", "ask")
    again = process("twice", "approve")
    assert (again["runs"], again["paused"], again["scored"], again["continued"]) == (1, 1, 0, 1)
    assert (waiting(), stored()) == (1, [])
    process("twice", "approve")
    assert shapes() == [[*SEARCHED[:3], *SEARCHED]]
    assert waiting() == 0


def test_the_wait_is_no_part_of_it_and_the_run_began_when_it_began() -> None:
    process("approving", "ask")
    began = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
    change_half(started_at=began.isoformat())
    process("approving", "approve")
    (run,) = stored()
    assert run.created_at == began
    assert run.trace is not None
    assert all((step.latency_ms or 0.0) < 600_000 for step in run.trace.steps)


def change_half(**values: Any) -> None:
    with TraceStore("runs.db") as store, store.database.writing() as connection:
        body = connection.scalar(sa.select(paused_runs.c.body))
        changed = json.dumps({**body, **values})
        connection.execute(sa.text("UPDATE paused_runs SET body = :body"), {"body": changed})


def test_a_secret_of_the_first_half_is_never_on_disk() -> None:
    process("approving", "ask")
    assert not [path for path in Path().glob("runs.db*") if SECRET.encode() in path.read_bytes()]
    assert b"I search." in b"".join(path.read_bytes() for path in Path().glob("runs.db*"))
    process("approving", "approve")
    assert not [path for path in Path().glob("runs.db*") if SECRET.encode() in path.read_bytes()]


def test_a_process_that_dies_while_it_waits_loses_nothing() -> None:
    assert interpreter("approving", "ask", "crash")[0] == 1
    process("approving", "approve")
    assert shapes() == [SEARCHED]


@pytest.mark.parametrize("end", ["", "close"])
def test_an_orderly_end_loses_nothing(end: str) -> None:
    code, first = interpreter("approving", "ask", END=end)
    assert code == 0
    fates = (first["paused"], first["handed_over"], first["abandoned"])
    assert fates == ((0, 1, 0) if end else (1, 0, 0))
    process("approving", "approve")
    assert shapes() == [SEARCHED]


def test_a_process_that_just_ends_loses_nothing() -> None:
    assert interpreter("approving", "ask", END="exit") == (0, {})
    assert waiting() == 1
    assert interpreter("approving", "approve", END="exit") == (0, {})
    assert shapes() == [SEARCHED]


def test_of_two_that_resume_at_once_one_gets_it(url: str) -> None:
    process("approving", "ask", STORE=url)
    both = []
    for copy in ("one.pickle", "two.pickle"):
        shutil.copy("checkpoints.pickle", copy)
        both.append(Started("approving", "approve", STORE=url, CHECKPOINTS=copy))
    assert sorted(one.stats()["continued"] for one in both) == [0, 1]
    assert sorted(shapes(url)) == sorted([SEARCHED, SEARCHED[1:]])
    assert waiting(url) == 0


def test_a_process_that_paused_it_learns_that_another_went_on() -> None:
    """It paused here, went on and paused elsewhere, and is resumed here again."""
    with TraceStore("runs.db") as store:
        watching = handler(store=store)
        play("twice", "ask", watching=watching)
        assert watching.flush(300)
        process("twice", "approve")
        play("twice", "approve", watching=watching)
        assert watching.flush(300)
        stats = watching.stats()
    fates = {name: stats[name] for name in ("runs", "scored", "paused", "continued")}
    assert fates == {"runs": 1, "scored": 1, "paused": 0, "continued": 1}
    assert [run.n_steps for run in stored()] == [len(SEARCHED) + 3]
    assert waiting() == 0


def test_what_another_process_ended_is_not_ended_again() -> None:
    with TraceStore("runs.db") as store:
        watching = handler(store=store)
        play("approving", "ask", watching=watching)
        assert watching.flush(300)
        process("approving", "approve")
        play("approving", "go", watching=watching)  # nothing is left to do
        assert watching.flush(300)
        assert store.count() == 1


def test_while_the_store_cannot_be_written_it_waits_in_memory() -> None:
    Path("no_folder").touch()
    watching = handler(store="no_folder/runs.db")
    play("approving", "ask", watching=watching)
    assert not watching.flush(300)
    assert watching.stats()["paused"] == 1
    Path("no_folder").unlink()
    assert watching.flush(300)
    assert waiting("no_folder/runs.db") == 1
    process("approving", "approve", STORE="no_folder/runs.db")
    assert shapes("no_folder/runs.db") == [SEARCHED]


@pytest.mark.parametrize("resumed_here", [True, False])
def test_a_store_that_cannot_be_read_costs_the_first_half_at_most(resumed_here: bool) -> None:
    if not resumed_here:
        process("approving", "ask", STORE="other.db")
    Path("no_folder").touch()
    scored: list[ScoredTrace] = []
    watching = handler(store="no_folder/runs.db", on_scored=scored.append)
    play("approving", *(["ask"] if resumed_here else []), "approve", watching=watching)
    assert not watching.flush(300)
    assert [shape(one.trace) for one in scored] == [SEARCHED if resumed_here else SEARCHED[1:]]
    assert watching.stats()["scored"] == 1
    Path("no_folder").unlink()  # nothing is left behind that tries again
    assert watching.flush(300)


@pytest.mark.parametrize("body", [{}, {"calls": 3}, {"marks": [["start", 9]]}, {"requested": 0}])
def test_a_half_that_cannot_be_read_is_dropped_and_told(
    body: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    process("approving", "ask")
    change_half(**(body or {"run_id": "x"}))
    with TraceStore("runs.db") as store:
        watching = handler(store=store)
        play("approving", "approve", watching=watching)
        assert watching.flush(300)
        assert watching.stats()["scored"] == 1
        assert watching.stats()["failed"] == 0
    assert "cannot be read" in caplog.text


def test_a_run_is_withheld_if_its_first_half_could_not_be_redacted() -> None:
    def fails(_: str) -> str:
        raise RuntimeError

    with TraceStore("runs.db") as store:
        for action, redactor in (("ask", fails), ("approve", str)):
            watching = handler(store=store, redactor=redactor, policy=DomainPolicy(threshold=0.0))
            play("approving", action, watching=watching)
            assert watching.flush(300)
            paused_in_memory.give_up(watching._recorder.owner)  # as if the process ended
        (run,) = store.runs()
    assert (run.withheld, run.decision) == ("redaction failed", "below_threshold")


def test_the_texts_of_all_parts_are_bounded_together() -> None:
    process("twice", "ask", KP_MAX_RUN_CHARS="30")
    process("twice", "approve", KP_MAX_RUN_CHARS="30")
    stats = process("twice", "approve", KP_MAX_RUN_CHARS="30")
    assert stats["dropped_texts"] > 0
    assert shapes() == [[*SEARCHED[:3], *SEARCHED]]


def test_a_new_question_gives_it_up_in_any_process() -> None:
    process("tool", "ask")
    assert waiting() == 1
    process("sub_graph", "ask", CONFIG='{"configurable": {"thread_id": "another"}}')
    assert waiting() == 2
    process("approving", "ask", "approve")  # in the first thread
    assert waiting() == 1


def test_resumed_where_it_paused_it_waits_no_more() -> None:
    stats = process("approving", "ask", "approve")
    assert (stats["runs"], stats["scored"], stats["paused"], stats["continued"]) == (1, 1, 0, 0)
    assert shapes() == [SEARCHED]
    assert waiting() == 0


@pytest.mark.parametrize(("age_days", "continued"), [(6.9, 1), (7.1, 0)])
def test_it_waits_for_a_bounded_time(age_days: float, continued: int) -> None:
    process("approving", "ask")
    with TraceStore("runs.db") as store, store.database.writing() as connection:
        (until,) = connection.scalars(sa.select(paused_runs.c.expires_at)).all()
        left = until - timedelta(days=age_days)
        connection.execute(sa.update(paused_runs).values(expires_at=left))
    stats = process("approving", "approve")
    assert (stats["continued"], stats["paused_expired"]) == (continued, 1 - continued)
    assert shapes() == [SEARCHED if continued else SEARCHED[1:]]
    assert waiting() == 0


def test_it_can_be_switched_off() -> None:
    process("approving", "ask", KP_PAUSED_DAYS="0")
    assert waiting() == 0
    process("approving", "approve", KP_PAUSED_DAYS="0")
    assert shapes() == [SEARCHED[1:]]


def test_they_are_bounded_in_number() -> None:
    for thread in ("a", "b", "c"):
        config = json.dumps({"configurable": {"thread_id": thread}})
        stats = process("sub_graph", "ask", CONFIG=config, KP_MAX_PAUSED_RUNS="2")
    assert waiting() == 2
    assert stats["paused_expired"] == 1


def test_what_was_kept_of_its_config_goes_on() -> None:
    config = json.dumps(
        {
            "metadata": {
                "session_id": "s-1",
                "user_id": "ann",
                "kp_task": "t",
                "kp_domain": "code",
            },
            "tags": ["beta"],
            "run_name": "support",
        }
    )
    process("approving", "ask", CONFIG=config)
    process("approving", "approve")
    with TraceStore("runs.db") as store:
        (run,) = store.runs(session="s-1", user="ann", tag="beta")
    assert run.domain == "code"
    assert b"ann" not in Path("runs.db").read_bytes()
