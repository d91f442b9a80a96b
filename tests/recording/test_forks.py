"""Forks beside functions of the user, and beside threads that record."""

from __future__ import annotations

import textwrap

from tests.recording.test_processes import python


def test_a_forked_child_records_its_own_runs_and_not_its_parents() -> None:
    python(
        textwrap.dedent("""
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
            code = 1
            try:
                mine = handler("child", store=store, verifiers=[lambda run: False])
                play(mine, watching)
                assert watching.flush(300)
                code = 0 if not mine.last(300).trace.metadata.success else 2
            finally:
                os._exit(code)
        _, status = os.waitpid(child, 0)
        assert os.waitstatus_to_exitcode(status) == 0, status
        go.set()
        assert watching.flush(300)
        assert store.count(domain="held") == store.count(domain="child") == 1
        assert store.count(domain="default") == 3 + 1
        """)
    )


def test_a_fork_waits_for_no_function_of_the_callers() -> None:
    python(
        textwrap.dedent("""
        from kp_langchain import _forksafe
        _forksafe._FORK_PATIENCE_S = 3600
        play(handler(on_scored=hang))
        assert begun.wait(300)
        child = os.fork()
        if child == 0:
            os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        """),
        KP_EXIT_TIMEOUT_S="0.1",
    )


def test_fork_while_threads_record() -> None:
    # The child plays events by hand: LangChain's own locks may be held by the parent's threads.
    python(
        textwrap.dedent("""
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
                code = 1
                try:
                    events = Events(handler("child", store=store))
                    events.tool()
                    events.end()
                    code = 0 if events.watching.stats()["scored"] == 1 else 2
                finally:
                    os._exit(code)
            _, status = os.waitpid(child, 0)
            assert os.waitstatus_to_exitcode(status) == 0, status
        stop.set()
        for thread in threads:
            thread.join()
        assert watching.flush(300)
        assert watching.stats()["scored"] == watching.stats()["runs"]
        assert store.count(domain="child") == 4
        """)
    )
