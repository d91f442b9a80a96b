"""What is recorded of errors that say nothing themselves: groups, and wrappers of a cause."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest
from langchain.agents.middleware import ToolRetryMiddleware
from langchain_core.runnables import RunnableLambda
from langchain_core.tools import tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.errors import GraphInterrupt
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.types import Command, interrupt

from kp_langchain import ScoredTrace
from kp_langchain.recording.exception_kinds import meaning_of
from kp_langchain.recording.plain_values import error_text
from tests.agents import ASK, QUESTION, ScriptedChatModel, agent, call, handler, say, shape


def group(*errors: BaseException, message: str = "unhandled errors") -> BaseExceptionGroup[Any]:
    return BaseExceptionGroup(message, errors)


def raised(error: Exception, cause: BaseException | None = None) -> Exception:
    error.__cause__ = cause
    return error


def raised_while(error: Exception, handled: Exception) -> Exception:
    try:
        try:
            raise handled
        except type(handled):
            raise error  # noqa: B904 - without a cause, as those do that this is about
    except type(error) as caught:
        return caught


class APIConnectionError(Exception):
    """As a provider's client raises it."""


REFUSED = ConnectionRefusedError("port 443 refused")
IS_REFUSED = "ConnectionRefusedError: port 443 refused"


class SilentError(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (ValueError("plain"), "ValueError: plain"),
        (ValueError(), "ValueError"),
        (group(REFUSED), f"ExceptionGroup: unhandled errors (1 sub-exception) ({IS_REFUSED})"),
        (
            group(group(REFUSED), group(ValueError("b"), group(KeyError("c")))),
            "ExceptionGroup: unhandled errors (2 sub-exceptions) "
            f"({IS_REFUSED}; ValueError: b; KeyError: 'c')",
        ),
        (
            group(asyncio.CancelledError(), REFUSED),
            f"BaseExceptionGroup: unhandled errors (2 sub-exceptions) ({IS_REFUSED})",
        ),
        (
            group(raised(RuntimeError(), REFUSED)),
            f"ExceptionGroup: unhandled errors (1 sub-exception) (RuntimeError; {IS_REFUSED})",
        ),
        (raised(RuntimeError(), REFUSED), f"RuntimeError ({IS_REFUSED})"),
        (raised(RuntimeError(" "), group(REFUSED)), f"RuntimeError:   ({IS_REFUSED})"),
        (
            raised(RuntimeError("call: unhandled errors (1 sub-exception)"), group(REFUSED)),
            f"RuntimeError: call: unhandled errors (1 sub-exception) ({IS_REFUSED})",
        ),
        (
            raised_while(RuntimeError("unhandled errors (1 sub-exception)"), group(REFUSED)),  # type: ignore[arg-type]
            f"RuntimeError: unhandled errors (1 sub-exception) ({IS_REFUSED})",
        ),
        (
            raised(APIConnectionError("Connection error."), REFUSED),
            f"APIConnectionError: Connection error. ({IS_REFUSED})",
        ),
        (raised_while(RuntimeError(), REFUSED), f"RuntimeError ({IS_REFUSED})"),
        (raised(ValueError("it says enough"), REFUSED), "ValueError: it says enough"),
        (
            raised(ValueError("session failed"), group(REFUSED)),
            f"ValueError: session failed ({IS_REFUSED})",
        ),
        (
            group(REFUSED, ConnectionRefusedError("port 443 refused")),
            f"ExceptionGroup: unhandled errors (2 sub-exceptions) ({IS_REFUSED})",
        ),
        (raised(TimeoutError(), asyncio.CancelledError()), "TimeoutError"),
        (
            group(SilentError()),
            "ExceptionGroup: unhandled errors (1 sub-exception) (SilentError: <SilentError>)",
        ),
    ],
)
def test_the_text_names_what_an_error_stands_for(error: BaseException, text: str) -> None:
    assert error_text(error, 4000) == text


def _ring() -> Exception:
    one, two = RuntimeError(), ValueError()
    one.__cause__, two.__cause__ = two, one
    return one


def _deep(depth: int) -> BaseException:
    error: BaseException = ValueError("the bottom")
    for _ in range(depth):
        error = group(error)
    return error


def _chain(length: int) -> Exception:
    error = Exception()
    for _ in range(length):
        error = raised(RuntimeError(), error)
    return error


class Lying(ExceptionGroup[Exception]):
    @property
    def exceptions(self) -> Any:
        raise RuntimeError("not mine")


HOSTILE = {
    "a ring of causes": _ring(),
    "10,000 members": group(*(ValueError(f"number {n}") for n in range(10_000))),
    "1,000 levels": _deep(1000),
    "long members": group(*(ValueError("x" * 1_000_000) for _ in range(20))),
    "10,000 causes": _chain(10_000),
    "groups of groups": group(*[group(*[group(*[ValueError()] * 50)] * 50)] * 50),
    "3,000 levels": _deep(3000),
    "a group that hides its members": Lying("m", [ValueError("v")]),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_groups_cost_a_bounded_time_and_text(name: str) -> None:
    start = time.thread_time()
    text = error_text(HOSTILE[name], 4000)
    meaning = meaning_of(HOSTILE[name])
    assert time.thread_time() - start < 0.5
    assert meaning == "error"
    assert len(text) <= 4000
    assert text.count(";") <= 8
    assert text.startswith(type(HOSTILE[name]).__name__)


def test_a_deep_group_is_named_by_its_leaf() -> None:
    assert error_text(_deep(1000), 4000).endswith("(ValueError: the bottom)")


@pytest.mark.parametrize(
    ("error", "meaning"),
    [
        (group(asyncio.CancelledError()), "cancelled"),
        (group(KeyboardInterrupt(), group(GeneratorExit())), "cancelled"),
        (group(GraphInterrupt()), "interrupt"),
        (group(group(GraphInterrupt()), asyncio.CancelledError()), "interrupt"),
        (group(GraphInterrupt(), ValueError()), "error"),
        (group(asyncio.CancelledError(), ValueError()), "error"),
    ],
)
def test_a_group_means_what_its_members_mean(error: BaseException, meaning: str) -> None:
    assert meaning_of(error) == meaning


# ------------------------------------------------------------------ in runs


def scored(runnable: Any, fails: type[BaseException] | None = None) -> ScoredTrace:
    """Run asynchronously with a fresh handler; return the one scored run."""
    got: list[ScoredTrace] = []
    watching = handler(on_scored=got.append)
    try:
        asyncio.run(runnable.ainvoke(ASK, {"callbacks": [watching]}))
    except BaseExceptionGroup:
        assert fails is not None
    else:
        assert fails is None
    assert watching.flush(120)
    return got[0]


async def _connect() -> None:
    raise REFUSED


@tool
async def remote(q: str) -> str:
    """Ask a remote server."""
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(_connect())
    return q


def test_a_tool_whose_task_group_fails() -> None:
    answers = (say("I ask.", call("remote", q="a")), say("42"))
    surviving = ToolRetryMiddleware(max_retries=0, on_failure="continue")
    trace = scored(agent(*answers, tools=(remote,), middleware=[surviving])).trace
    assert shape(trace) == ["thought", "call remote", "recovered remote", "thought"]
    assert IS_REFUSED in str(trace.steps[2].content)


def test_a_run_that_a_group_ends() -> None:
    asking = agent(say("I ask.", call("remote", q="a")), tools=(remote,))
    trace = scored(asking, fails=ExceptionGroup).trace
    assert shape(trace) == ["thought", "call remote", "saw remote"]
    assert IS_REFUSED in trace.outcome.result_summary
    assert trace.metadata.success is False


def test_a_failure_in_a_task_group_is_recorded_once() -> None:
    model = ScriptedChatModel([OSError("down")])

    async def ask_in_group(_state: object) -> Any:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(model.ainvoke(QUESTION))

    trace = scored(RunnableLambda(ask_in_group), fails=ExceptionGroup).trace
    assert shape(trace) == ["saw"]
    assert trace.steps[0].content == "OSError: down"
    assert "OSError: down" in trace.outcome.result_summary


def test_no_line_of_the_log_quotes_a_group(caplog: pytest.LogCaptureFixture) -> None:
    def redactor(_text: str) -> str:
        raise ExceptionGroup("payload", [ValueError("payload")])

    watching = handler(redactor=redactor)
    agent(say("42")).invoke(ASK, {"callbacks": [watching]})
    assert watching.flush(120)
    assert caplog.text
    assert "payload" not in caplog.text


def test_a_pause_in_a_task_group_is_a_pause() -> None:
    """LangGraph raises the group at the caller, who can resume the run all the same."""

    async def ask(_state: MessagesState) -> Any:
        async def human() -> Any:
            return interrupt("ok?")

        async with asyncio.TaskGroup() as tasks:
            answer = tasks.create_task(human())
        return {"messages": [("ai", str(answer.result()))]}

    model = ScriptedChatModel([say("I ask.")])
    graph = StateGraph(MessagesState)
    graph.add_node("llm", lambda state: {"messages": [model.invoke(state["messages"])]})
    graph.add_node("ask", ask)
    graph.add_edge(START, "llm")
    graph.add_edge("llm", "ask")
    made = graph.compile(checkpointer=InMemorySaver())
    got: list[ScoredTrace] = []
    watching = handler(on_scored=got.append)
    config: Any = {"callbacks": [watching], "configurable": {"thread_id": "group"}}

    async def both() -> None:
        with pytest.raises(ExceptionGroup):
            await made.ainvoke(ASK, config)  # type: ignore[arg-type]
        assert watching.stats()["paused"] == 1
        await made.ainvoke(Command(resume="yes"), config)

    asyncio.run(both())
    assert watching.flush(120)
    assert watching.stats()["runs"] == 1
    (one,) = got
    assert shape(one.trace) == ["thought"]
    assert one.trace.metadata.success is True
