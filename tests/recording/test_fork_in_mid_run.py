"""A process that forks while a run is under way: the run is the parent's, and is recorded once."""

from __future__ import annotations

import os
import textwrap

import pytest

from kp_langchain import TraceStore
from tests.recording.test_processes import python

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot fork")

# What the child does at its end: whether each run that its handler saw has a fate, and one only.
LEAVE = """
OWN = {"messages": [("user", "the child's own")]}

def fates(stats):
    return sum(
        stats[fate] for fate in (
            "scored", "cancelled", "abandoned", "handed_over", "empty", "dropped", "failed", "open",
            "paused", "queued",
        )
    )

def leave(expected):
    code = 1
    try:
        flushed, stats = watching.flush(60), watching.stats()
        fitting = all(stats[name] == count for name, count in expected.items())
        code = 0 if flushed and fitting and stats["runs"] == fates(stats) else 2
        if code:
            print(stats, file=sys.stderr, flush=True)
    finally:
        os._exit(code)

def await_child(pid):
    _, status = os.waitpid(pid, 0)
    assert os.waitstatus_to_exitcode(status) == 0, status
"""


def play(script: str) -> None:
    python(LEAVE + textwrap.dedent(script))


def runs_by_objective() -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    with TraceStore("runs.db") as store:
        for run in store.runs():
            found.setdefault(run.objective, []).append(run.run_id)
    return found


def test_a_graph_that_both_processes_finish_is_recorded_by_the_parent_alone() -> None:
    play(
        """
        from langchain.agents.middleware import AgentMiddleware
        from tests.agents import agent, call, say

        parent, children = os.getpid(), []

        class Forking(AgentMiddleware):
            def before_model(self, state, runtime):
                if not children:
                    children.append(os.fork())

        made = agent(
            say("I search.", call("search", q="a")), say("42"), middleware=[Forking()]
        )
        answered = made.invoke(ASK, {"callbacks": [watching]})
        assert answered["messages"][-1].content == "42"
        if os.getpid() != parent:
            searching().invoke(OWN, {"callbacks": [watching]})
            leave({"runs": 2, "handed_over": 1, "scored": 1, "callback_errors": 0})
        await_child(children[0])
        assert watching.flush(60)
        stats = watching.stats()
        assert (stats["runs"], stats["scored"], fates(stats)) == (1, 1, 1), stats
        assert len(store.get(watching.last().trace.id).trace.steps) == 4
        """
    )
    found = runs_by_objective()
    assert sorted(found) == ["the child's own", "what is the answer?"]
    assert all(len(runs) == 1 for runs in found.values())


def test_what_a_child_runs_inside_a_tool_of_its_parents_is_a_run_of_its_own() -> None:
    play(
        """
        import multiprocessing
        from langchain_core.tools import tool
        from tests.agents import agent, call, say

        def work():
            searching().invoke(OWN)  # LangChain's context gives it the parent's handler and tool
            leave({"runs": 2, "handed_over": 1, "scored": 1, "callback_errors": 0})

        @tool
        def delegate(q: str) -> str:
            "Leave it to another process."
            child = multiprocessing.get_context("fork").Process(target=work)
            child.start()
            child.join()
            return f"exit status {child.exitcode}"

        made = agent(say("", call("delegate", q="a")), say("42"), tools=(delegate,))
        answered = made.invoke(ASK, {"callbacks": [watching]})
        assert answered["messages"][-2].content == "exit status 0", answered
        scored = watching.last(60)
        assert watching.stats()["runs"] == watching.stats()["scored"] == 1
        assert len(scored.trace.steps) == 3
        """
    )
    found = runs_by_objective()
    assert sorted(found) == ["the child's own", "what is the answer?"]
    assert all(len(runs) == 1 for runs in found.values())


def test_a_tool_that_returns_in_both_processes_is_recorded_by_the_parent_alone() -> None:
    play(
        """
        from langchain_core.runnables import RunnableLambda
        from langchain_core.tools import tool

        parent, children = os.getpid(), []

        @tool
        def split(q: str) -> str:
            "Fork."
            children.append(os.fork())
            return q

        def both(question):
            split.invoke({"q": question})
            return searching().invoke(ASK)["messages"][-1].content

        assert RunnableLambda(both).invoke("whose is it?", {"callbacks": [watching]}) == "42"
        if os.getpid() != parent:
            leave({"runs": 1, "handed_over": 1, "scored": 0, "callback_errors": 0})
        await_child(children[0])
        scored = watching.last(60)
        assert watching.stats()["runs"] == watching.stats()["scored"] == 1
        assert len(scored.trace.steps) == 6
        """
    )
    assert [len(runs) for runs in runs_by_objective().values()] == [1]


def test_a_run_that_pauses_before_the_fork_can_be_resumed_on_either_side() -> None:
    play(
        """
        from langchain.agents.middleware import HumanInTheLoopMiddleware
        from langgraph.checkpoint.memory import InMemorySaver
        from langgraph.types import Command
        from tests.agents import agent, call, say

        made = agent(
            say("I search.", call("search", q="a")),
            say("42"),
            checkpointer=InMemorySaver(),
            middleware=[HumanInTheLoopMiddleware(interrupt_on={"search": True})],
        )
        config = {"callbacks": [watching], "configurable": {"thread_id": "t"}}
        made.invoke(ASK, config)
        assert watching.stats()["paused"] == 1
        child = os.fork()
        made.invoke(Command(resume={"decisions": [{"type": "approve"}]}), config)
        if not child:
            leave({"runs": 1, "scored": 1, "paused": 0, "handed_over": 0})
        await_child(child)
        assert len(watching.last(60).trace.steps) == 4
        assert watching.stats()["runs"] == watching.stats()["scored"] == 1
        """
    )
    assert [len(runs) for runs in runs_by_objective().values()] == [2]


def test_runs_that_wait_to_be_scored_at_the_fork_have_a_fate_in_the_child() -> None:
    play(
        """
        import threading
        from kp_langchain import Scorer
        os.environ["KP_FUNCTION_TIMEOUT_S"] = "300"
        go, begun = threading.Event(), threading.Event()

        def hold(_):
            if not begun.is_set():
                begun.set()
                go.wait(300)

        # Handlers that are alike share one thread for scoring.
        alike = {"store": store, "scorer": Scorer(embedder=None), "on_scored": hold}
        held, watching = handler(**alike), handler(**alike)
        searching().invoke(ASK, {"callbacks": [held]})
        assert begun.wait(60)
        for _ in range(3):
            searching().invoke(ASK, {"callbacks": [watching]})
        child = os.fork()
        if not child:
            leave({"runs": 3, "handed_over": 3, "queued": 0})
        await_child(child)
        go.set()
        assert watching.flush(60)
        assert watching.stats()["scored"] == 3
        """
    )
