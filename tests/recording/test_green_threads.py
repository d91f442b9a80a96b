"""Programs in which gevent has replaced threads and locks by its own."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from kp_langchain import TraceStore
from tests.programs import Done

_PROGRAM = """
from gevent import monkey
monkey.patch_all()
import time, gevent.event
from langchain_core.tools import tool
from tests.agents import agent, call, handler, say
@tool
def wait(q: str) -> str:
    "Let the others go on."
    time.sleep(0.001)
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
print(watching.stats()["scored"])
begun, go = gevent.event.Event(), gevent.event.Event()
@tool
def hang(q: str) -> str:
    "Wait longer than anybody does."
    begun.set()
    go.wait()
def ask_long():
    made = agent(say("I wait.", call("hang", q="")), tools=(hang,))
    made.invoke({"messages": [("user", "question")]}, {"callbacks": [watching]})
job = gevent.spawn(ask_long)
begun.wait()
job.kill(timeout=0)
go.set()
job.join()
print(watching.stats()["cancelled"])
ask(20)  # is scored at the end of the program
"""


def test_runs_in_green_threads_are_scored_and_stored(
    folder: Path, run_python: Callable[..., Done]
) -> None:
    pytest.importorskip("gevent")
    program = _PROGRAM.replace("STORE", str(folder / "runs.db"))
    assert run_python(program, is_cold=True).stdout.split() == ["20", "1"]
    with TraceStore("runs.db") as store:
        assert store.count() == 21
