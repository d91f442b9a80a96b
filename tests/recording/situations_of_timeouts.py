"""Nodes of a graph that take too long: LangGraph cancels them, and may try them again."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable
from typing import Any

from langchain_core.messages import AIMessage
from langchain_core.tools import tool
from langgraph.func import entrypoint, task
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode
from langgraph.types import RetryPolicy

from kp_langchain import KPCallbackHandler
from tests.agents import ASK, ScriptedChatModel, call, say
from tests.recording.situations import situation, using

NEWER = "langgraph._internal._timeout"  # in older releases nodes have no time limit
_POLICY = RetryPolicy(max_attempts=2, initial_interval=0.0, jitter=False, retry_on=Exception)
_LIMIT_S = 0.03


class _SlowModel(ScriptedChatModel):
    async def _agenerate(self, *_: Any, **__: Any) -> Any:
        await asyncio.sleep(300)


async def _sleep() -> None:
    await asyncio.sleep(300)


async def _wait_for_a_task() -> None:
    await asyncio.gather(asyncio.create_task(asyncio.sleep(300)))


async def _end_late() -> None:
    with contextlib.suppress(asyncio.CancelledError):
        await asyncio.sleep(300)
    await asyncio.sleep(_LIMIT_S)


async def _ask_a_model() -> None:
    await _SlowModel().ainvoke("q")


async def _limit_itself() -> None:
    async with asyncio.timeout(_LIMIT_S / 10):
        await asyncio.sleep(300)


def _slow(times: int, wait: Callable[[], Any] = _sleep) -> Any:
    """A node that takes too long so many times."""
    left = [times]

    async def work(_state: Any) -> Any:
        if left[0]:
            left[0] -= 1
            await wait()
        return {"messages": [AIMessage("worked")]}

    return work


def _graph(node: Any, *, timeout: Any = _LIMIT_S, policy: Any = _POLICY, **options: Any) -> Any:
    """A graph of a node with a time limit and, after it, a model."""
    model = ScriptedChatModel([say("42")])

    async def llm(state: MessagesState) -> Any:
        return {"messages": [await model.ainvoke(state["messages"])]}

    graph: Any = StateGraph(MessagesState)
    options |= {} if timeout is None else {"timeout": timeout}
    graph.add_node("slow", node, retry_policy=policy, **options)
    graph.add_node("llm", llm)
    graph.add_edge(START, "slow")
    graph.add_edge("slow", "llm")
    return graph.compile()


_TRIED_AGAIN = ["recovered", "thought"]

for _wait in (_sleep, _wait_for_a_task, _end_late, _ask_a_model):

    @situation(
        f"a node times out once, {_wait.__name__}", _TRIED_AGAIN, success=[True], needs=NEWER
    )
    async def _(watching: KPCallbackHandler, wait: Any = _wait) -> None:
        await _graph(_slow(1, wait)).ainvoke(ASK, using(watching))


@situation("a node times out once, astream", _TRIED_AGAIN, success=[True], needs=NEWER)
async def _(watching: KPCallbackHandler) -> None:
    _ = [part async for part in _graph(_slow(1)).astream(ASK, using(watching))]


@situation("a node is idle once", _TRIED_AGAIN, success=[True], needs=NEWER)
async def _(watching: KPCallbackHandler) -> None:
    from langgraph.types import TimeoutPolicy

    await _graph(_slow(1), timeout=TimeoutPolicy(idle_timeout=_LIMIT_S)).ainvoke(
        ASK, using(watching)
    )


@situation("a node times out twice", ["recovered x2", "thought"], success=[True], needs=NEWER)
async def _(watching: KPCallbackHandler) -> None:
    policy = _POLICY._replace(max_attempts=3)
    await _graph(_slow(2), policy=policy).ainvoke(ASK, using(watching))


async def _failing(graph: Any, watching: KPCallbackHandler) -> None:
    try:
        await graph.ainvoke(ASK, using(watching))
    except Exception as error:
        assert "Timeout" in type(error).__name__  # noqa: PT017 - LangGraph's has no base of its own
    else:
        raise AssertionError("the run did not fail")


@situation("a node times out for good", ["saw x2"], success=[False], needs=NEWER)
async def _(watching: KPCallbackHandler) -> None:
    await _failing(_graph(_slow(9)), watching)


@situation("a node times out and is not tried again", ["saw"], success=[False], needs=NEWER)
async def _(watching: KPCallbackHandler) -> None:
    await _failing(_graph(_slow(9), policy=None), watching)


@situation("a node in a graph in a node times out", _TRIED_AGAIN, success=[True], needs=NEWER)
async def _(watching: KPCallbackHandler) -> None:
    inner: Any = StateGraph(MessagesState)
    inner.add_node("slow", _slow(1), timeout=_LIMIT_S, retry_policy=_POLICY)
    inner.add_edge(START, "slow")
    await _graph(inner.compile(), timeout=None).ainvoke(ASK, using(watching))


@situation("a graph in a node times out for good", ["saw x2"], success=[False], needs=NEWER)
async def _(watching: KPCallbackHandler) -> None:
    inner: Any = StateGraph(MessagesState)
    inner.add_node("slow", _slow(9), timeout=_LIMIT_S, retry_policy=_POLICY)
    inner.add_edge(START, "slow")
    await _failing(_graph(inner.compile(), timeout=None, policy=None), watching)


@situation("an error handler takes over from a node that times out", ["recovered x2"],
           success=[True], needs=NEWER)  # fmt: skip
async def _(watching: KPCallbackHandler) -> None:
    graph = _graph(_slow(9), error_handler=lambda _state: {"messages": [AIMessage("handled")]})
    await graph.ainvoke(ASK, using(watching))


@tool
async def patient(q: str) -> str:
    """Wait the first time."""
    if not _waited:
        _waited.append(q)
        await asyncio.sleep(300)
    return "done"


_waited: list[str] = []


@situation("a node times out while its tool works", ["call patient", "recovered", "call patient",
                                                     "saw patient", "thought"],
           success=[True], needs=NEWER)  # fmt: skip
async def _(watching: KPCallbackHandler) -> None:
    _waited.clear()
    asked = {"messages": [*ASK["messages"], say("", call("patient", q="a"))]}
    await _graph(ToolNode([patient])).ainvoke(asked, using(watching))


@situation("a node limits its own time and is tried again", _TRIED_AGAIN, success=[True])
async def _(watching: KPCallbackHandler) -> None:
    await _graph(_slow(1, _limit_itself), timeout=None).ainvoke(ASK, using(watching))


@situation("a step of the graph takes too long", ["saw"], success=[False])
async def _(watching: KPCallbackHandler) -> None:
    graph = _graph(_slow(9), timeout=None, policy=None)
    graph.step_timeout = _LIMIT_S
    await _failing(graph, watching)


@situation("a step of a synchronous graph takes too long", ["saw"], success=[False])
def _(watching: KPCallbackHandler) -> None:
    graph: Any = StateGraph(MessagesState)
    graph.add_node("slow", lambda _state: time.sleep(10 * _LIMIT_S))
    graph.add_edge(START, "slow")
    made = graph.compile()
    made.step_timeout = _LIMIT_S
    with contextlib.suppress(TimeoutError):
        made.invoke(ASK, using(watching))


@situation("a task times out once", _TRIED_AGAIN, success=[True], needs=NEWER)
async def _(watching: KPCallbackHandler) -> None:
    limited: Any = task(timeout=_LIMIT_S, retry_policy=_POLICY)  # type: ignore[call-overload]
    work = limited(_slow(1))
    model = ScriptedChatModel([say("42")])

    @entrypoint()
    async def workflow(asked: Any) -> Any:
        await work(asked)
        return await model.ainvoke(asked["messages"])

    await workflow.ainvoke(ASK, using(watching))


@situation("the caller cancels a node with a time limit", runs=1, cancelled=1, needs=NEWER)
async def _(watching: KPCallbackHandler) -> None:
    running = asyncio.create_task(_graph(_slow(1), timeout=300).ainvoke(ASK, using(watching)))
    await asyncio.sleep(_LIMIT_S)
    running.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await running


@situation("a node gives up a graph and asks it again", ["thought"], success=[True])
async def _(watching: KPCallbackHandler) -> None:
    inner = _graph(_slow(1), timeout=None, policy=None)

    async def ask(state: MessagesState) -> Any:
        with contextlib.suppress(TimeoutError):
            return await asyncio.wait_for(inner.ainvoke(state), _LIMIT_S)
        return await inner.ainvoke(state)

    graph = StateGraph(MessagesState)
    graph.add_node("ask", ask)
    graph.add_edge(START, "ask")
    await graph.compile().ainvoke(ASK, using(watching))
