"""Runs at the edges of a process: its end, a fork, a copy of the handler, a pause in between."""

from __future__ import annotations

import copy
import json
import pickle
import sqlite3
import sys
import textwrap
import threading
from collections.abc import Callable
from contextlib import closing
from dataclasses import fields
from inspect import signature
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from kp_langchain import (
    KPCallbackHandler,
    TraceStore,
)
from kp_langchain.recording.options import HandlerOptions
from kp_langchain.store.journal import Journal
from tests import programs
from tests.agents import QUESTION, handler, shape
from tests.cli.made_runs import recorded
from tests.programs import Done
from tests.recording.playing import (
    APPROVED,
    SECRET,
    THREAD,
    FileSaver,
    approve,
    approving,
    ask_and_wait,
    last,
    scored_by,
)
from tests.recording.situations import SEARCHED
from tests.store.conftest import execute

HEAD = """
import os, sys, threading
from tests.cli.made_runs import recorded
from tests.agents import ASK, agent, call, handler, say, searching
from tests.recording.playing import ask_and_wait
from kp_langchain import DomainPolicy, KPCallbackHandler, TraceStore, capture
store = TraceStore("runs.db")
watching = handler(store=store, policy=DomainPolicy(threshold=0.0))
def play(*watching, times=1):
    for _ in range(times):
        searching().invoke(ASK, {"callbacks": list(watching)})
def hang(_=None):
    begun.set()
    threading.Event().wait()
begun = threading.Event()
OWN = {"messages": [("user", "the child's own")]}
parent = os.getpid()
# What a forked child does at its end: whether each run that its handler saw has one fate.
def leave(**expected):
    code = 1
    try:
        assert watching.flush(60)
        stats = watching.stats()
        code = 0 if all(stats[name] == count for name, count in expected.items()) else 2
        if code:
            print(stats, file=sys.stderr, flush=True)
    finally:
        os._exit(code)
def await_child(pid):
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
"""


def python(script: str, *, status: int = 0, **environment: str) -> Done:
    """Run a program to its end."""
    done = programs.run("-c", HEAD + textwrap.dedent(script), **environment)
    assert done.returncode == status, done.stderr
    return done


# ------------------------------------------------------------------ the end of a process


@pytest.mark.parametrize("status", [0, 3])
def test_a_script_that_ends_or_raises_loses_nothing(status: int) -> None:
    script = """
    watching = handler(store=store, verifiers=[lambda run: False])
    play(watching, times=6)
    watching.report_outcome(watching.last().run_id, success=True)
    sys.exit(STATUS)
    """
    python(script.replace("STATUS", str(status)), status=status)
    with TraceStore("runs.db") as store:
        assert sorted(run.success for run in store.runs()) == [False] * 5 + [True]


def test_what_is_lost_at_exit_is_said_and_counted() -> None:
    Path("no_folder").touch()
    lost = """
    play(handler(store="no_folder/runs.db", outcome=hang), times=3)
    play(watching)
    assert watching.flush(600)
    """
    done = python(lost, KP_EXIT_TIMEOUT_S="0.05")
    assert "3 finished runs were not scored" in done.stderr
    assert "3 finished runs and verdicts could not be kept in" in done.stderr
    verdict = """
    hangs = handler(store=store, on_scored=hang)
    play(hangs)
    assert begun.wait(600)
    hangs.report_outcome(store.runs()[0].trace_id, success=True)
    """
    done = python(verdict, KP_EXIT_TIMEOUT_S="0.05")
    assert not done.stderr  # run and verdict are in the store, whatever hangs after that
    with TraceStore("runs.db") as store:
        assert [run.confidence_source for run in store.runs(limit=1)] == ["reported"]


def test_a_tool_that_takes_no_scores_holds_up_no_exit() -> None:
    done = python(
        """
        from kp_langchain.gate.run import ExternalTrace
        class Deaf:
            name = "deaf"
            def find_trace(self, root_id, parent_id):
                return ExternalTrace(str(root_id))
            def send(self, scored, external):
                hang()
        watching = handler(store=store, send_scores_to=[Deaf()])
        play(watching, times=3)
        assert watching.flush(600)
        assert begun.wait(600)
        """,
        KP_EXIT_TIMEOUT_S="0.5",
    )
    assert not done.stderr  # the next process sends them
    with TraceStore("runs.db") as store:
        assert store.journal.jobs.count("score deaf") == 3


# Ends only when it is killed, once the run that it cannot score is on disk.
HANGING = """
from pathlib import Path
policy = DomainPolicy(threshold=0.2, visibility="org")
play(handler("finance", store=store, outcome=hang, policy=policy))
assert begun.wait(600)
while not any(b"result for a" in path.read_bytes() for path in Path().glob("runs.db*")):
    threading.Event().wait(0.01)
print("on disk", flush=True)
threading.Event().wait()
"""


def test_a_run_whose_process_was_killed_is_judged_by_the_next_one_as_its_policy_says() -> None:
    with Path("out").open("w+") as out:
        child = programs.start("-c", HEAD + HANGING, stdout=out, stderr=sys.__stderr__)
        while not Path("out").read_text():
            assert child.poll() is None
            threading.Event().wait(0.01)
        with TraceStore("runs.db") as store:
            assert handler(store=store).flush(60)
            assert store.count() == 0  # the process lives
        child.kill()
        child.wait()
    with TraceStore("runs.db") as store:
        expire_leases(store)
        told: list[object] = []
        watching = handler(store=store, on_scored=told.append, outcome=lambda _: False)
        assert scored_soon(watching, store)
        (run,) = store.runs()
        assert (run.domain, run.threshold, run.decision) == ("finance", 0.2, "kept")
        assert (run.visibility, run.confidence_source, told) == ("org", "default", [])
        assert run.trace is not None
        stats = watching.stats()
        assert (stats["adopted"], stats["runs"]) == (1, 0)
        last(watching)
        assert [one.is_taken_over for one in store.runs()] == [False, True]


def test_nothing_secret_is_on_disk_before_the_score() -> None:
    seen: list[bytes] = []

    def look(_: object) -> None:
        for _ in range(6000):
            seen[:] = [path.read_bytes() for path in Path().glob("runs.db*")]
            if any(b"I search" in one for one in seen):
                break
            threading.Event().wait(0.01)

    inputs = {"messages": [("user", f"token {SECRET}")]}
    with TraceStore("runs.db") as store:
        last(handler(store=store, outcome=look), inputs=inputs)
    assert any(b"REDACTED" in one for one in seen)
    assert not any(SECRET.encode() in one for one in seen)


@pytest.mark.parametrize(
    "damage",
    [
        "UPDATE bodies SET trace = '{' WHERE trace_id = :id",
        "UPDATE runs SET tags = '{' WHERE trace_id = :id",
        "UPDATE jobs SET body = '{' WHERE key = :id",
    ],
)
def test_a_damaged_run_of_a_dead_process_stops_no_other(damage: str) -> None:
    with TraceStore("runs.db") as store:
        left = [recorded(n) for n in range(3)]
        store.journal.record(left)
        with store.database.writing() as connection:
            connection.execute(sa.text(damage), {"id": left[1].trace.id})
        expire_leases(store)
        assert scored_soon(handler(store=store), store)
        for run in (left[0], left[2]):
            assert store.get(run.trace.id) is not None


def test_a_run_that_five_processes_left_is_deleted_with_a_warning(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with TraceStore("runs.db") as store:
        store.journal.record([left := recorded()])
        for _ in range(4):
            expire_leases(store)
            assert [run.trace.id for run in Journal(store.database).take_over()] == [left.trace.id]
        store.journal.record([recorded(1)])
        assert "a run is deleted" not in caplog.text
        expire_leases(store)
        assert scored_soon(watching := handler(store=store), store)
        assert watching.stats()["adopted"] == store.count() == 1
        assert execute(store, "SELECT state FROM runs") == [("judged",)]
    assert "a run is deleted: 5 processes left it unjudged" in caplog.text


def test_a_job_to_judge_a_run_that_is_judged_changes_nothing_and_goes() -> None:
    with TraceStore("runs.db") as store:
        store.journal.record([left := recorded()])
        expire_leases(store)
        execute(store, "CREATE TABLE left_over AS SELECT * FROM jobs")
        assert scored_soon(handler(store=store), store)
        judged = store.get(left.trace.id)
    with TraceStore("runs.db") as store:
        execute(store, "INSERT INTO jobs SELECT * FROM left_over")
        assert scored_soon(watching := handler(store=store), store)
        assert watching.stats()["adopted"] == 0
        assert store.get(left.trace.id) == judged is not None


def expire_leases(store: TraceStore) -> None:
    """Let the time pass after which others may have the runs of a process that has ended."""
    with store.database.writing() as connection:
        connection.execute(sa.text("UPDATE jobs SET lease_until = 0"))


def scored_soon(watching: KPCallbackHandler, store: TraceStore) -> bool:
    """Have a handler look for what others left; return whether nothing waits any more."""
    assert watching.flush(60)
    return store.journal.waiting() == 0


# ------------------------------------------------------------------ a pause in between


def paused(store: Any = "runs.db", **config: Any) -> dict[str, int]:
    """Ask by a handler that is then closed, so that the run waits in the store."""
    with handler(store=store) as watching:
        ask_and_wait(watching, **config)
    return watching.stats()


def resumed(store: Any = "runs.db", **options: Any) -> tuple[list[str], int]:
    """Resume by another handler; return the steps, and how many paused runs it continued."""
    watching = handler(store=store, **options)
    steps = shape(approve(watching).trace)
    assert watching.flush(60)
    return steps, watching.stats()["continued"]


@pytest.mark.parametrize("end", ["", "assert watching.flush(300); os._exit(0)"])
def test_a_process_that_ends_or_dies_while_a_run_waits_loses_nothing(end: str) -> None:
    python(f"ask_and_wait(watching)\n{end}")
    assert not [one for one in Path().glob("runs.db*") if SECRET.encode() in one.read_bytes()]
    assert resumed() == (SEARCHED, 1)
    with TraceStore("runs.db") as store:
        (run,) = store.runs()
    assert (run.objective, run.thread) == (QUESTION, "t-1")


def test_of_two_that_resume_at_once_one_gets_it(url: str) -> None:
    paused(url)
    begin, both = threading.Barrier(2), [handler(store=TraceStore(url)) for _ in range(2)]

    def work(watching: KPCallbackHandler) -> None:
        graph = approving(FileSaver().load(), said=1)
        begin.wait(60)
        graph.invoke(APPROVED, {"callbacks": [watching], **THREAD})

    threads = [threading.Thread(target=work, args=(one,)) for one in both]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    steps = sorted(shape(scored_by(one).trace) for one in both)
    assert steps == sorted([SEARCHED, SEARCHED[1:]])
    assert sorted(one.stats()["continued"] for one in both) == [0, 1]


def test_the_wait_is_no_part_of_the_run_and_its_config_goes_on() -> None:
    metadata = {"session_id": "s-1", "user_id": "ann", "kp_domain": "code"}
    paused(metadata=metadata, tags=["beta"], run_name="support")
    began = "2026-01-02T03:04:05+00:00"
    with closing(sqlite3.connect("runs.db")) as other:
        change = "UPDATE paused_runs SET body = json_set(body, '$.started_at', ?)"
        other.execute(change, (began,))
        other.commit()
    assert resumed() == (SEARCHED, 1)
    with TraceStore("runs.db") as store:
        (run,) = store.runs(session="s-1", user="ann", tag="beta")
    assert (run.domain, run.created_at.isoformat()) == ("code", began)
    assert run.trace is not None
    assert all((step.latency_ms or 0.0) < 600_000 for step in run.trace.steps)
    assert b"ann" not in Path("runs.db").read_bytes()


@pytest.mark.parametrize(
    "change",
    ["expires_at = '2020-01-01'", "body = '{\"run_id\": \"x\"}'",
     "body = json_set(body, '$.marks', 'x')", "body = json_set(body, '$.calls', 3)"],
)  # fmt: skip
def test_what_has_expired_or_cannot_be_read_is_not_joined(change: str) -> None:
    paused()
    with closing(sqlite3.connect("runs.db")) as other:
        other.execute(f"UPDATE paused_runs SET {change}")  # noqa: S608 - ours
        other.commit()
    assert resumed() == (SEARCHED[1:], 0)


def test_what_waits_is_bounded_in_number_and_may_be_switched_off(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("KP_MAX_PAUSED_RUNS", "2")
    with TraceStore("runs.db") as store:
        for thread in ("a", "b", "t-1"):
            stats = paused(store, configurable={"thread_id": thread})
        assert (store.paused.count(), stats["paused_expired"]) == (2, 1)
        monkeypatch.setenv("KP_PAUSED_DAYS", "0")
        paused("other.db")
    with TraceStore("other.db") as other:
        assert other.paused.count() == 0


def test_a_new_pause_replaces_what_waits_in_its_thread() -> None:
    with TraceStore("runs.db") as store:
        paused(store)
        watching = handler(store=store)
        ask_and_wait(watching)
        assert watching.flush(60)
        assert store.paused.count() == 1
        approve(watching)
        assert (watching.stats()["continued"], store.paused.count()) == (1, 0)


def test_without_the_store_only_the_process_that_paused_a_run_can_resume_it() -> None:
    Path("no_folder").touch()
    watching = handler(store="no_folder/runs.db")
    ask_and_wait(watching)
    assert watching.flush(300)
    assert watching.stats()["paused"] == 1
    assert shape(approve(watching).trace) == SEARCHED  # it waits in memory
    other = handler(store="no_folder/runs.db")
    assert shape(approve(other).trace) == SEARCHED[1:]
    Path("no_folder").unlink()
    assert watching.flush(300)
    assert other.flush(300)
    with TraceStore("no_folder/runs.db") as store:
        assert store.paused.count() == 0  # it was resumed


# ------------------------------------------------------------------ every run of a process


def test_kp_capture_records_every_run_of_a_process_once() -> None:
    script = """
    import asyncio
    searching().invoke(ASK)
    asyncio.run(searching().ainvoke(ASK))
    thread = threading.Thread(target=lambda: searching().invoke(ASK))
    thread.start()
    thread.join()
    play(KPCallbackHandler("coding"))
    with capture("planning"):
        searching().invoke(ASK)
    searching().with_config(callbacks=[KPCallbackHandler("tables")]).invoke(ASK)
    """
    python(script, KP_CAPTURE="true", KP_DATABASE_URL="all.db", KP_DOMAIN="finance")
    with TraceStore("all.db") as store:
        domains = sorted(run.domain for run in store.runs())
    assert domains == ["coding", *["finance"] * 3, "planning", "tables"]


@pytest.mark.parametrize("value", ["", "false"])
def test_kp_capture_is_off_by_default(value: str, run_python: Callable[..., Done]) -> None:
    program = "import sys, kp_langchain; print('langchain_core' in sys.modules)"
    assert run_python(program, is_cold=True, KP_CAPTURE=value).stdout == "False\n"


def test_kp_capture_that_cannot_work_costs_the_recording_and_not_the_agent() -> None:
    Path("packages", "opik").mkdir(parents=True)
    Path("packages", "opik", "__init__.py").write_text("raise TypeError('descriptors')")
    script = "print(searching().invoke(ASK)['messages'][-1].content)"
    for setting, value, told in (
        ("KP_MAX_QUEUE", "many", "KP_CAPTURE is set, and nothing is recorded: ConfigError"),
        ("KP_SEND_SCORES_TO", "opik", "opik cannot be imported (TypeError: descriptors)"),
    ):
        head = "import logging\nlogging.basicConfig()\nfrom tests.agents import ASK, searching\n"
        more = {"PYTHONPATH": f"{Path('packages').absolute()}:{programs.ROOT}", setting: value}
        done = programs.run("-c", head + script, KP_CAPTURE="true", **more)
        assert done.stdout.strip() == "42", done.stderr
        assert told in done.stderr


# ------------------------------------------------------------------ accounts without a home

AGENT = """
import json, logging, os, pwd
logging.basicConfig(format="%(message)s")
for name in ("XDG_CONFIG_HOME", "XDG_DATA_HOME"):
    os.environ.pop(name)
os.environ.update(json.loads(os.environ.pop("HOMES")))
if os.environ["HOME"] == "none":
    del os.environ["HOME"]
    def getpwuid(uid):
        raise KeyError(uid)
    pwd.getpwuid = getpwuid
if folder := os.environ.pop("DELETED", ""):
    os.makedirs(folder)
    os.chdir(folder)
    os.rmdir(folder)
from kp_langchain import KPCallbackHandler, KPMiddleware, Scorer
from kp_langchain.demo.scripted import ScriptedChatModel, say
from langchain.agents import create_agent
handler = KPCallbackHandler(scorer=Scorer(embedder=None))
agent = create_agent(ScriptedChatModel([say("42")]), [], middleware=[KPMiddleware()])
config = {"metadata": {"user_id": "ann"}, "callbacks": [handler]}
answer = agent.invoke({"messages": [("user", "q")]}, config)
print(json.dumps([answer["messages"][-1].content, handler.last(60).breakdown.total]))
handler.flush(0.1)
"""


@pytest.mark.parametrize(
    "homes",
    [
        {"HOME": "{folder}/file"}, {"HOME": "none"},
        {"HOME": "{folder}", "XDG_CONFIG_HOME": "/dev/null", "XDG_DATA_HOME": "/dev/null"},
        {"HOME": "{folder}/home", "DELETED": "{folder}/gone"},
    ],
    ids=lambda homes: " ".join(homes.values()),
)  # fmt: skip
def test_the_agent_runs_without_a_home(
    homes: dict[str, str], run_python: Callable[..., Done], folder: Path
) -> None:
    (folder / "file").touch()
    values = {name: value.format(folder=folder) for name, value in homes.items()}
    done = run_python(AGENT, HOMES=json.dumps(values), KP_EXIT_TIMEOUT_S="0.1")
    answer, score = json.loads(done.stdout)
    assert answer == "42"
    assert score > 0
    lines = 0 if "DELETED" in homes else 1  # a home is enough
    for beginning in ("a run cannot be kept in ", "users, and keys of runs that redaction would"):
        assert sum(one.startswith(beginning) for one in done.stderr.splitlines()) == lines


# ------------------------------------------------------------------ forks


def objectives() -> list[str]:
    with TraceStore("runs.db") as store:
        return sorted(run.objective for run in store.runs())


def test_a_graph_that_both_processes_finish_is_recorded_by_the_parent_alone() -> None:
    python("""
        from langchain.agents.middleware import AgentMiddleware
        children = []
        class Forking(AgentMiddleware):
            def before_model(self, state, runtime):
                if not children:
                    children.append(os.fork())
        made = agent(say("I search.", call("search", q="a")), say("42"), middleware=[Forking()])
        answered = made.invoke(ASK, {"callbacks": [watching]})
        assert answered["messages"][-1].content == "42"
        if os.getpid() != parent:
            searching().invoke(OWN, {"callbacks": [watching]})
            leave(runs=2, handed_over=1, scored=1, callback_errors=0)
        await_child(children[0])
        assert len(watching.last(60).trace.steps) == 4
        assert watching.stats()["runs"] == watching.stats()["scored"] == 1
        """)
    assert objectives() == ["the child's own", QUESTION]


def test_a_run_that_pauses_before_the_fork_can_be_resumed_in_the_child() -> None:
    python("""
        from tests.recording.playing import APPROVED, THREAD, approving
        made = approving()
        made.invoke(ASK, {"callbacks": [watching], **THREAD})
        assert watching.flush(300)
        child = os.fork()
        if not child:
            made.invoke(APPROVED, {"callbacks": [watching], **THREAD})
            assert len(watching.last(60).trace.steps) == 4
            leave(runs=2, scored=1, paused=1, continued=1)
        await_child(child)
        """)
    assert objectives() == [QUESTION]


def test_a_forked_child_records_its_own_runs_and_not_its_parents() -> None:
    python("""
        from kp_langchain import _forksafe
        _forksafe._FORK_PATIENCE_S = 0.1  # a fork waits for the job under way, here in vain
        go = threading.Event()
        held = handler("held", store=store, on_scored=lambda _: begun.set() or go.wait(300))
        play(held)
        assert begun.wait(300)
        # These wait in the queue while the process forks: they are the parent's to score.
        play(watching, times=3)
        child = os.fork()
        if child == 0:
            mine = handler("child", store=store, verifiers=[lambda run: False])
            play(mine, watching)
            assert mine.last(300).trace.metadata.success is False
            leave()
        await_child(child)
        go.set()
        assert watching.flush(300)
        assert store.count(domain="held") == store.count(domain="child") == 1
        assert store.count(domain="default") == 3 + 1
        """)


def test_a_fork_waits_for_no_function_of_the_callers() -> None:
    python(
        """
        from kp_langchain import _forksafe
        _forksafe._FORK_PATIENCE_S = 3600
        play(handler(on_scored=hang))
        assert begun.wait(300)
        child = os.fork()
        if child == 0:
            os._exit(0)
        await_child(child)
        """,
        KP_EXIT_TIMEOUT_S="0.1",
    )


def test_fork_while_threads_record() -> None:
    # The child plays events by hand: LangChain's own locks may be held by the parent's threads.
    python("""
        from tests.recording.playing import Events
        stop = threading.Event()
        def work():
            while not stop.is_set():
                play(watching)
        threads = [threading.Thread(target=work) for _ in range(3)]
        for thread in threads:
            thread.start()
        for _ in range(4):
            child = os.fork()
            if child == 0:
                watching = handler("child", store=store)
                events = Events(watching)
                events.tool()
                events.end()
                leave(scored=1)
            await_child(child)
        stop.set()
        for thread in threads:
            thread.join()
        assert watching.flush(300)
        assert watching.stats()["scored"] == watching.stats()["runs"]
        assert store.count(domain="child") == 4
        """)


# ------------------------------------------------------------------ copies of a handler


def test_frameworks_that_copy_callbacks_get_the_handler_itself() -> None:
    watching = handler()
    assert copy.copy(watching) is watching
    assert copy.deepcopy({"callbacks": [watching]})["callbacks"][0] is watching


def test_a_handler_cannot_be_sent_to_another_process() -> None:
    with pytest.raises(TypeError, match="make one in each process"):
        pickle.dumps(handler())


def test_a_handlers_arguments_are_the_same_wherever_they_are_listed() -> None:
    defaults = [(one.name, one.default) for one in signature(KPCallbackHandler).parameters.values()]
    assert [(one.name, one.default) for one in fields(HandlerOptions)] == defaults


# ------------------------------------------------------------------ green threads

GREEN = """
from gevent import monkey
monkey.patch_all()
import time, gevent.event
from langchain_core.tools import tool
from tests.cli.made_runs import recorded
from tests.agents import agent, call, handler, say
begun, go = gevent.event.Event(), gevent.event.Event()
@tool
def wait(q: str) -> str:
    "Let the others go on; the last one waits longer than anybody does."
    time.sleep(0.001)
    if q == "20":
        begun.set()
        go.wait()
    return q
def ask(number):
    made = agent(say("I wait.", call("wait", q=str(number))), say(str(number)), tools=(wait,))
    made.invoke({"messages": [("user", f"question {number}")]}, {"callbacks": [watching]})
scored = []
watching = handler(store="STORE", on_scored=scored.append)
gevent.joinall([gevent.spawn(ask, number) for number in range(20)], raise_error=True)
assert watching.flush(300)
for one in scored:
    number = one.trace.task.objective.split()[-1]
    assert [step.content or step.input for step in one.trace.steps] == [
        "I wait.", {"q": number}, number, number
    ]
job = gevent.spawn(ask, 20)
begun.wait()
job.kill(timeout=0)
go.set()
job.join()
print(watching.stats()["scored"], watching.stats()["cancelled"])
ask(21)  # is scored at the end of the program
"""


def test_runs_in_green_threads_are_scored_and_stored(
    folder: Path, run_python: Callable[..., Done]
) -> None:
    pytest.importorskip("gevent")
    program = GREEN.replace("STORE", str(folder / "runs.db"))
    assert run_python(program, is_cold=True).stdout.split() == ["20", "1"]
    with TraceStore("runs.db") as store:
        assert store.count() == 21


def test_the_first_run_finds_redaction_loaded_when_it_ends(run_python: Callable[..., Done]) -> None:
    program = """
import sys, threading, time
from langchain_core.runnables import RunnableLambda
from kp_langchain import KPCallbackHandler, Scorer

def look(_):
    until = time.monotonic() + 60
    while "kp_langchain.redaction.session" not in sys.modules and time.monotonic() < until:
        threading.Event().wait(0.01)
    print("kp_langchain.redaction.session" in sys.modules)

watching = KPCallbackHandler(store=None, scorer=Scorer(embedder=None))
print("kp_langchain.redaction.session" in sys.modules)
RunnableLambda(look).invoke("q", {"callbacks": [watching]})
"""
    assert run_python(program, is_cold=True).stdout.split() == ["False", "True"]
