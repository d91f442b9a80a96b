"""The worker at the edges of a process: exit with work queued, fork after start, interrupt."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
import sqlalchemy as sa

from kp_langchain import TraceStore
from kp_langchain.store import tables
from tests.recording.test_late_verdicts import a_model

ROOT = Path(__file__).resolve().parents[2]
HEAD = """
import os, sys
from pathlib import Path
from tests.agents import ASK, handler, searching
from kp_langchain import DomainPolicy, TraceStore
store = TraceStore("runs.db")
watching = handler(store=store, policy=DomainPolicy(threshold=0.0))
"""


def python(script: str, *, check: bool = True) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", HEAD + textwrap.dedent(script)],
        capture_output=True,
        text=True,
        timeout=600,
        env={**os.environ, "PYTHONPATH": str(ROOT), "KP_EXIT_TIMEOUT_S": "300"},
        check=False,
    )
    assert not check or done.returncode == 0, done.stderr
    return done


def test_a_script_that_just_ends_loses_nothing() -> None:
    python(
        """
        for _ in range(20):
            searching().invoke(ASK, {"callbacks": [watching]})
        """
    )
    with TraceStore("runs.db") as store:
        assert store.count() == 20


def test_a_script_that_raises_loses_nothing() -> None:
    done = python(
        """
        searching().invoke(ASK, {"callbacks": [watching]})
        raise SystemExit(3)
        """,
        check=False,
    )
    assert done.returncode == 3
    with TraceStore("runs.db") as store:
        assert store.count() == 1


def test_exit_is_not_held_up_for_ever() -> None:
    done = python(
        """
        import threading
        from kp_langchain.recording import worker
        worker.exit_timeout_s = 0.05
        worker.intake.submit(threading.Event().wait)
        searching().invoke(ASK, {"callbacks": [watching]})
        """
    )
    assert "were not scored" in done.stderr


def test_the_first_run_finds_redaction_loaded_when_it_ends() -> None:
    python(
        """
        import time
        from langchain_core.runnables import RunnableLambda

        def look(_):
            until = time.monotonic() + 300
            while "kp_langchain.redaction.walk" not in sys.modules:
                assert time.monotonic() < until
                time.sleep(0.01)

        assert "kp_langchain.redaction.walk" not in sys.modules
        RunnableLambda(look).invoke("q", {"callbacks": [watching]})
        """
    )


def test_what_is_lost_at_exit_is_said_and_counted() -> None:
    """The outcome function hangs, and the store has taken nothing."""
    Path("no_folder").touch()
    done = python(
        """
        import threading
        from kp_langchain.recording import worker
        hangs = handler(store="no_folder/runs.db", outcome=lambda _: threading.Event().wait())
        for _ in range(3):
            searching().invoke(ASK, {"callbacks": [hangs]})
        searching().invoke(ASK, {"callbacks": [watching]})
        assert watching.flush(600)
        worker.exit_timeout_s = 0.05
        """
    )
    assert "3 finished runs were not scored" in done.stderr
    assert "3 finished runs and verdicts could not be kept in" in done.stderr


def test_a_tool_that_takes_no_scores_leaves_time_for_the_rest_at_exit() -> None:
    done = python(
        """
        import threading
        from kp_langchain.gate.external_trace import ExternalTrace
        from kp_langchain.recording import worker

        class Deaf:
            name = "deaf"

            def find_trace(self, root_id, parent_id):
                return ExternalTrace(str(root_id))

            def send(self, scored, external):
                begun.set()
                threading.Event().wait()

        begun = threading.Event()
        watching = handler(store=store, send_scores_to=[Deaf()])
        for _ in range(3):
            searching().invoke(ASK, {"callbacks": [watching]})
        assert watching.flush(600)
        assert begun.wait(600)
        worker.exit_timeout_s = 0.5
        worker.at_finish["others"] = lambda left_s: print("time left:", left_s > 0)
        """
    )
    assert done.stdout == "time left: True\n"
    assert "3 scores were not sent to other tools within" in done.stderr


def test_a_verdict_that_is_lost_at_exit_is_said() -> None:
    done = python(
        """
        import threading
        from kp_langchain.recording import worker
        begun = threading.Event()
        hangs = handler(store=store, on_scored=lambda _: begun.set() or threading.Event().wait())
        searching().invoke(ASK, {"callbacks": [hangs]})
        assert begun.wait(600)
        hangs.report_outcome(store.runs()[0].trace_id, success=True)
        worker.exit_timeout_s = 0.05
        """
    )
    assert "1 verdicts were not written" in done.stderr
    assert "were not scored" not in done.stderr  # the run is
    with TraceStore("runs.db") as store:
        assert store.count() == 1


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot fork")
def test_a_child_says_nothing_of_its_parents_verdicts() -> None:
    done = python(
        """
        import threading
        from kp_langchain import _forksafe
        from kp_langchain.recording import worker
        _forksafe._FORK_PATIENCE_S = 0.1  # a fork waits for the job under way, here in vain
        begun = threading.Event()
        hangs = handler(store=store, on_scored=lambda _: begun.set() or threading.Event().wait())
        searching().invoke(ASK, {"callbacks": [hangs]})
        assert begun.wait(600)
        hangs.report_outcome(store.runs()[0].trace_id, success=True)
        worker.exit_timeout_s = 0.05
        child = os.fork()
        if child == 0:
            worker.finish()
            os._exit(0)
        os.waitpid(child, 0)
        """
    )
    assert done.stderr.count("verdicts were not written") == 1


def test_handlers_that_begin_at_once_leave_room_in_the_queue() -> None:
    python(
        """
        from uuid import uuid4
        os.environ["KP_MAX_QUEUE"] = "1"
        handlers = [handler(store=store) for _ in range(20)]
        run, tool = uuid4(), uuid4()
        handlers[0].on_chain_start(None, {"input": "q"}, run_id=run)
        for other in handlers[1:]:
            other.on_chain_start(None, {"input": "q"}, run_id=uuid4())
        handlers[0].on_tool_start({"name": "t"}, "x", run_id=tool, parent_run_id=run)
        handlers[0].on_tool_end("y", run_id=tool)
        handlers[0].on_chain_end({"output": "z"}, run_id=run)
        assert handlers[0].flush(600)
        assert (handlers[0].stats()["scored"], handlers[0].stats()["dropped"]) == (1, 0)
        """
    )


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot fork")
def test_a_forked_child_records_its_own_runs_and_not_its_parents() -> None:
    python(
        """
        import threading
        from kp_langchain import _forksafe
        _forksafe._FORK_PATIENCE_S = 0.1  # a fork waits for the job under way, here in vain
        go, begun = threading.Event(), threading.Event()

        def hold(_):
            begun.set()
            go.wait(300)

        held = handler("held", store=store, on_scored=hold)
        searching().invoke(ASK, {"callbacks": [held]})
        assert begun.wait(300)
        # These wait in the queue while the process forks: they are the parent's to score.
        for _ in range(3):
            searching().invoke(ASK, {"callbacks": [watching]})
        child = os.fork()
        if child == 0:
            code = 1
            try:
                mine = handler("child", store=store)
                searching().invoke(ASK, {"callbacks": [mine]})
                searching().invoke(ASK, {"callbacks": [watching]})
                code = 0 if mine.flush(300) and watching.flush(300) else 2
            finally:
                os._exit(code)
        _, status = os.waitpid(child, 0)
        assert os.waitstatus_to_exitcode(status) == 0, status
        go.set()
        assert watching.flush(300)
        """
    )
    with TraceStore("runs.db") as store:
        assert store.count(domain="held") == 1
        assert store.count(domain="child") == 1
        assert store.count(domain="default") == 3 + 1


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot fork")
def test_what_waits_for_the_parents_store_is_not_counted_in_a_child() -> None:
    Path("no_folder").touch()
    python(
        """
        waits = handler(store="no_folder/runs.db")
        searching().invoke(ASK, {"callbacks": [waits]})
        assert not waits.flush(300)
        waits.report_outcome("1234", success=True)
        waits.flush(300)
        assert waits.stats()["waiting_to_store"] == 2
        child = os.fork()
        if child == 0:
            os._exit(waits.stats()["waiting_to_store"])
        _, status = os.waitpid(child, 0)
        assert os.waitstatus_to_exitcode(status) == 0, status
        Path("no_folder").unlink()
        """
    )


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot fork")
def test_fork_while_a_thread_makes_a_pydantic_model() -> None:
    """Python 3.11 has one lock for a cached property of all objects, which pydantic takes then."""
    with TraceStore("runs.db") as store:
        store.models.install(a_model("default"))
    python(
        """
        import threading
        from contextlib import nullcontext
        from uuid import uuid4
        from pydantic._internal._namespace_utils import NsResolver
        lock = getattr(vars(NsResolver)["types_namespace"], "lock", nullcontext())
        made, go_on = threading.Event(), threading.Event()

        def make():
            with lock:
                made.set()
                go_on.wait()

        threading.Thread(target=make).start()
        made.wait()
        child = os.fork()
        if child == 0:
            code = 1
            try:
                run = uuid4()
                watching.on_llm_start({"name": "m"}, ["q"], run_id=run)
                watching.on_llm_error(ValueError("x"), run_id=run)
                code = 0 if watching.flush(60) and store.count() == 1 else 2
            finally:
                os._exit(code)
        status = os.waitpid(child, 0)[1]
        go_on.set()
        assert os.waitstatus_to_exitcode(status) == 0
        """
    )


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot fork")
def test_fork_while_threads_record() -> None:
    # The child plays events by hand: LangChain's own locks may be held by the parent's threads.
    python(
        """
        import threading
        from uuid import uuid4
        stop = threading.Event()

        def work():
            while not stop.is_set():
                searching().invoke(ASK, {"callbacks": [watching]})

        threads = [threading.Thread(target=work) for _ in range(3)]
        for thread in threads:
            thread.start()
        for _ in range(20):
            child = os.fork()
            if child == 0:
                code = 1
                try:
                    mine, run, tool = handler("child", store=store), uuid4(), uuid4()
                    mine.on_chain_start(None, {"input": "q"}, run_id=run)
                    mine.on_tool_start({"name": "t"}, "x", run_id=tool, parent_run_id=run)
                    mine.on_tool_end("y", run_id=tool)
                    mine.on_chain_end({"output": "z"}, run_id=run)
                    code = 0 if mine.flush(300) and mine.stats()["scored"] == 1 else 2
                finally:
                    os._exit(code)
            _, status = os.waitpid(child, 0)
            assert os.waitstatus_to_exitcode(status) == 0, status
        stop.set()
        for thread in threads:
            thread.join()
        assert watching.flush(300)
        stats = watching.stats()
        assert stats["scored"] == stats["runs"]
        assert store.count(domain="default") == stats["scored"]
        """
    )
    with TraceStore("runs.db") as store:
        assert store.count(domain="child") == 20


SPOILT = """
    import sqlalchemy as sa
    from tests.recording.test_remembering import use_letters
    from kp_langchain import KPCallbackHandler
    use_letters()
    scripted = KPCallbackHandler(store=store)
    with store.database.writing() as connection:
        connection.execute(sa.text("ALTER TABLE remembered RENAME TO gone"))
    for _ in range(2):
        searching().invoke(ASK, {"callbacks": [scripted]})
        assert scripted.flush(600)
    """


def test_what_novelty_remembers_is_tried_once_more_at_exit() -> None:
    """Though the pause after the last failure is not over."""
    mended = """
    with store.database.writing() as connection:
        connection.execute(sa.text("ALTER TABLE gone RENAME TO remembered"))
    """
    done = python(SPOILT + mended)
    assert "before exit" not in done.stderr
    with TraceStore("runs.db") as store, store.database.reading() as connection:
        assert connection.scalar(sa.select(sa.func.count()).select_from(tables.remembered)) == 2


def test_what_novelty_forgets_at_exit_is_said() -> None:
    done = python(SPOILT)
    assert done.stderr.count("2 traces could not be remembered for novelty in") == 1
    assert "finished runs" not in done.stderr
    with TraceStore("runs.db") as store:
        assert store.count() == 2


def test_what_novelty_forgets_in_a_store_that_does_not_answer_at_exit_is_said() -> None:
    done = python(
        """
        import threading
        from kp_langchain import KPCallbackHandler
        from kp_langchain.recording import worker
        from kp_langchain.store.remembered import Remembered
        from tests.recording.test_remembering import use_letters
        use_letters()
        begun = threading.Event()
        Remembered.add = lambda *_, **__: begun.set() or threading.Event().wait()
        searching().invoke(ASK, {"callbacks": [KPCallbackHandler(store=store)]})
        assert begun.wait(600)
        worker.exit_timeout_s = 0.05
        """
    )
    assert "1 traces could not be remembered for novelty in" in done.stderr
