"""Runs of every kind in a store, and what an export makes of them."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from threading import Event, Timer
from typing import Any

import pytest
from langchain_core.tools import tool

from kp_langchain import ReasoningTrace, ScoredTrace, TraceStore
from kp_langchain.exporting.exported_run import ExportedRun, read_runs
from kp_langchain.exporting.selection import Request, select_runs
from kp_langchain.run_keys import RunKeys
from tests.agents import add, agent, call, say
from tests.cli.made_runs import made
from tests.commands import Done, cli

AT = ("--database", "runs.db")
Steps = list[dict[str, Any]]


def thought(content: str) -> dict[str, Any]:
    return {"type": "thought", "content": content}


def called(tool: str, **arguments: Any) -> dict[str, Any]:
    return {"type": "tool_call", "tool": {"name": tool}, "input": arguments}


def saw(content: str, tool: str = "", kind: str = "observation") -> dict[str, Any]:
    named = {"tool": {"name": tool}} if tool else {}
    return {"type": kind, "content": content, "latency_ms": 2.5, **named}


RECOVERED: Steps = [
    thought("I look."), called("find", id="7"), saw("KeyError: 7", "find", "error_recovery"),
    called("find", id=7), saw("order 7", "find"), thought("Order 7 is here."),
]  # fmt: skip
AT_ONCE: Steps = [
    thought("Both."), called("find", id=1), called("rate", currency="EUR"),
    saw("1.09", "rate"), saw("order 1", "find"), thought("Done: 1.09."),
]  # fmt: skip
CASES: dict[str, dict[str, Any]] = {
    "an answer alone": {"steps": [thought("It grew.")], "answer": "It grew."},
    "a call": {
        "steps": [thought("I look."), called("find", id=1), saw("order 1", "find"), thought("1")],
        "answer": "1",
    },
    "calls at once": {"steps": AT_ONCE, "answer": "Done: 1.09."},
    "an error that was recovered": {"steps": RECOVERED, "answer": "Order 7 is here."},
    "an error in words": {
        "steps": [
            called("find", id=1), saw("no such order", "find", "error_recovery"),
            called("find", id=2), saw("Error: none, but that is all right", "find"), thought("1"),
        ],
        "answer": "1",
    },
    "a retry": {
        "steps": [{**called("find", id=1), "attempts": 3}, saw("order 1", "find"), thought("1")],
        "answer": "1",
    },
    "no last thought": {"steps": [called("buy", id=1), saw("bought", "buy")], "answer": "Bought."},
    "a call without an answer": {"steps": [called("find", id=1)], "answer": "Nothing."},
    "an answer without a call": {"steps": [saw("a page"), thought("Read.")], "answer": "Read."},
    "a model that failed": {
        "steps": [saw("TimeoutError: slow", kind="error_recovery"), thought("Now.")],
        "answer": "Now.",
    },
    "hostile names and texts": {
        "steps": [
            called("", a="\ud800 \u2028 \x00"), saw('"}\n{"', "", "observation"),
            called("delete everything!" * 9), saw("</think>\u202e"), thought("<think>x</think>\n"),
        ],
        "answer": "\u2029",
    },
}  # fmt: skip
WITHOUT_ANSWER = {"steps": [called("find", id=1), saw("1", "find")], "answer": " "}


def asking() -> Any:
    """An agent that asks another one, which adds something up, and at once for a rate.

    The rate comes last, so that it is known whose call it is.
    """
    is_answered = Event()

    @tool
    def rate(currency: str) -> str:
        """Return a rate."""
        assert is_answered.wait(20)
        return "1.09"

    @tool
    def ask(question: str) -> str:
        """Ask the other agent."""
        inner = agent(say("I add.", call("add", a=3, b=4)), say("seven"), tools=(add,))
        answer = inner.invoke({"messages": [("user", question)]})["messages"][-1].content
        Timer(0.3, is_answered.set).start()
        return str(answer)

    both = say("Both.", call("ask", question="3 and 4?"), call("rate", currency="EUR"))
    return agent(both, say("Seven at 1.09."), tools=(ask, rate))


def scored(number: int, case: dict[str, Any], **wire: Any) -> ScoredTrace:
    """Return a run of a task of its own."""
    objective = f"task number {number} of the desk"
    return made(number, **{"objective": objective, **case, **wire})


def in_namespace(name: str | None) -> dict[str, Any]:
    return {"options": {"keys": RunKeys(namespace=name)}}


@pytest.fixture
def fill(tmp_path: Path) -> Callable[..., TraceStore]:
    """Adds runs to `runs.db`, and returns it."""

    def add(*runs: ScoredTrace) -> TraceStore:
        with TraceStore("runs.db") as store:
            store.add(*runs)
            return store

    return add


@pytest.fixture
def every_case(fill: Callable[..., TraceStore]) -> TraceStore:
    """A store with a run of each case."""
    return fill(*(scored(number, case) for number, case in enumerate(CASES.values(), start=1)))


def runs_in(store: TraceStore, **request: Any) -> list[ExportedRun]:
    """Return what is exported of a store, the oldest first."""
    selection = select_runs(store, {}, Request(**request))
    runs = [run for run in read_runs(store, selection.choices) if not isinstance(run, str)]
    assert len(runs) == len(selection.choices)
    return runs[::-1]


def exported_run(trace: ReasoningTrace, **fields: Any) -> ExportedRun:
    """Return a trace with the run of another one beside it, as if it was read from a store."""
    with TraceStore("beside.db") as store:
        store.add(made(1))
        (run,) = store.runs()
    run = replace(run, usage=fields.pop("usage", run.usage))
    return ExportedRun(run=run, trace=trace, task="t", split="train", **fields)


def lines_of(text: str) -> list[Any]:
    return [json.loads(line) for line in text.splitlines()]


def export(form: str, *words: str) -> Done:
    done = cli("export", "--format", form, *words, *AT)
    assert done.returncode == 0, done.stderr
    return done


def exported(form: str, *words: str) -> list[Any]:
    return lines_of(export(form, *words).stdout)


def objectives(lines: Sequence[Any]) -> list[str]:
    return [line["messages"][0]["content"] for line in lines]
