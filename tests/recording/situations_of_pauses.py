"""Sub-agents that pause, streams that are left, and nodes that LangGraph cancels for their time."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import time
from collections.abc import Callable
from typing import Any

from langchain.agents import create_agent
from langchain_core.messages import AIMessage, AIMessageChunk
from langchain_core.output_parsers import StrOutputParser
from langchain_core.outputs import ChatGenerationChunk
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.runnables import RunnableLambda
from langchain_core.tools import tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.config import get_stream_writer
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.types import Command, RetryPolicy, interrupt

from kp_langchain import KPCallbackHandler
from tests.agents import ASK, QUESTION, ScriptedChatModel, agent, call, say, search, searching
from tests.recording.situations import (
    SEARCHED,
    answers,
    approving,
    decide,
    graph_of,
    in_thread,
    in_turn,
    situation,
    using,
)

# ------------------------------------------------------------------ left at a pause


def _stopping(**where: Any) -> Any:
    return agent(*answers(), checkpointer=InMemorySaver(), **where)


def _asking_tool() -> Any:
    @tool("search")
    def ask(q: str) -> str:
        """Ask a human."""
        return f"human: {interrupt(q)}"

    return agent(*answers(), tools=(ask,), checkpointer=InMemorySaver())


def _asking_node() -> Any:
    """A node asks after an agent has answered, and another agent answers once more."""

    def ask(state: MessagesState) -> Any:
        return {"messages": [("user", str(interrupt("ok?")))]}

    return graph_of(searching(), ask, agent(say("43")), checkpointer=InMemorySaver())


APPROVED = decide("approve")
# Resumed while its stream is open, a graph finds its pause only if that was saved at once.
_SAVED: dict[str, Any] = {"stream_mode": "updates", "durability": "sync"}
# A graph that pauses, what resumes it, and the steps of the whole run.
_PAUSES: dict[str, tuple[Callable[[], Any], Any, list[str]]] = {
    "human in the loop": (approving, APPROVED, SEARCHED),
    "interrupt() in a tool": (_asking_tool, Command(resume="yes"), SEARCHED),
    "interrupt() in a node": (_asking_node, Command(resume="yes"), [*SEARCHED, "thought"]),
    "a breakpoint before": (lambda: _stopping(interrupt_before=["tools"]), None, SEARCHED),
    "a breakpoint after": (lambda: _stopping(interrupt_after=["tools"]), None, SEARCHED),
}


def _needs(name: str) -> str:
    return "langgraph.callbacks" if "breakpoint" in name else ""


def _leave(stream: Any, part: str) -> None:
    for one in stream:
        if part in str(one):
            break
    else:
        raise AssertionError(f"{part} never came")


async def _leave_async(stream: Any, part: str) -> None:
    async for one in stream:
        if part in str(one):
            break
    else:
        raise AssertionError(f"{part} never came")


for _name, (_make, _resume, _steps) in _PAUSES.items():
    for _mode in ("updates", ["messages", "updates"]):

        @situation(f"left at {_name}, {_mode}", _steps, needs=_needs(_name), success=[True])
        def _(
            watching: KPCallbackHandler, make: Any = _make, go: Any = _resume, mode: Any = _mode
        ) -> None:
            paused, config = make(), in_thread(watching, "left")
            _leave(paused.stream(ASK, config, stream_mode=mode), "__interrupt__")
            gc.collect()
            list(paused.stream(go, config))

        @situation(f"left at {_name}, {_mode}, async", _steps, needs=_needs(_name), success=[True])
        async def _(
            watching: KPCallbackHandler, make: Any = _make, go: Any = _resume, mode: Any = _mode
        ) -> None:
            paused, config = make(), in_thread(watching, "left async")
            stream = paused.astream(ASK, config, stream_mode=mode)
            await _leave_async(stream, "__interrupt__")
            await stream.aclose()
            await paused.ainvoke(go, config)

    @situation(f"left at {_name}, the stream is still held", _steps, needs=_needs(_name))
    def _(watching: KPCallbackHandler, make: Any = _make, go: Any = _resume) -> None:
        paused, config = make(), in_thread(watching, "held")
        stream = paused.stream(ASK, config, **_SAVED)
        _leave(stream, "__interrupt__")
        list(paused.stream(go, config))
        stream.close()

    @situation(f"left at {_name}, resumed before asyncio closes it", _steps, needs=_needs(_name))
    async def _(watching: KPCallbackHandler, make: Any = _make, go: Any = _resume) -> None:
        paused, config = make(), in_thread(watching, "soon")
        await _leave_async(paused.astream(ASK, config, **_SAVED), "__interrupt__")
        await paused.ainvoke(go, config)


@situation("left at a pause in values", SEARCHED, success=[True])
def _(watching: KPCallbackHandler) -> None:
    paused, config = approving(), in_thread(watching, "values")
    _leave(paused.stream(ASK, config, stream_mode="values"), "Interrupt(")
    paused.invoke(APPROVED, config)


@situation("left at a pause in astream_events", SEARCHED, success=[True])
async def _(watching: KPCallbackHandler) -> None:
    paused, config = approving(), in_thread(watching, "events")
    await _leave_async(paused.astream_events(ASK, config, version="v2"), "__interrupt__")
    await paused.ainvoke(APPROVED, config)


@situation("left at two pauses", ["thought", *SEARCHED[1:], *SEARCHED[1:]], success=[True])
def _(watching: KPCallbackHandler) -> None:
    first, last = answers()
    paused = approving(first, say("Once more.", call("search", "c2", q="b")), last)
    config = in_thread(watching, "two")
    for inputs in (ASK, APPROVED):
        _leave(paused.stream(inputs, config, stream_mode="updates"), "__interrupt__")
    paused.invoke(APPROVED, config)


@situation("left at a pause and not resumed", runs=1, paused=1)
def _(watching: KPCallbackHandler) -> None:
    _leave(approving().stream(ASK, in_thread(watching, "waits"), stream_mode="updates"), "__int")


@situation("left at a pause that nothing can resume", runs=1, abandoned=1)
def _(watching: KPCallbackHandler) -> None:
    def ask(state: MessagesState) -> Any:
        return {"messages": [("user", str(interrupt("ok?")))]}

    # Without a checkpointer, LangGraph only tells of the pause.
    _leave(graph_of(ask).stream(ASK, using(watching), stream_mode="updates"), "__interrupt__")


# ------------------------------------------------------------------ left after the answer


_FINAL = "AIMessage(content='42'"

for _mode in ("updates", "values", ["messages", "updates"]):

    @situation(f"left after the answer, {_mode}", SEARCHED, success=[True])
    def _(watching: KPCallbackHandler, mode: Any = _mode) -> None:
        _leave(searching().stream(ASK, using(watching), stream_mode=mode), _FINAL)

    @situation(f"left after the answer, {_mode}, async", SEARCHED, success=[True])
    async def _(watching: KPCallbackHandler, mode: Any = _mode) -> None:
        stream = searching().astream(ASK, using(watching), stream_mode=mode)
        await _leave_async(stream, _FINAL)
        await stream.aclose()


@situation("left after the answer, a resumed run", SEARCHED, success=[True])
def _(watching: KPCallbackHandler) -> None:
    paused, config = approving(), in_thread(watching, "resumed")
    _leave(paused.stream(ASK, config, stream_mode="updates"), "__interrupt__")
    _leave(paused.stream(APPROVED, config, stream_mode="updates"), _FINAL)


@situation("left after an answer, before a node that asks nobody", ["thought"], success=[True])
def _(watching: KPCallbackHandler) -> None:
    """What the graph would have done next, nobody tells the handler."""
    graph = graph_of(agent(say("42")), lambda state: {})
    _leave(graph.stream(ASK, using(watching), stream_mode="updates"), _FINAL)


# ------------------------------------------------------------------ a sub-agent pauses

_DELEGATED = ["thought", "call ask", *SEARCHED, "saw ask", "thought"]


def _delegating(inner: Any, asked: Any = None) -> Any:
    @tool
    def ask(q: str) -> str:
        """Delegate."""
        return str(inner.invoke({"messages": [("user", q)]})["messages"][-1].text)

    first = asked or say("I delegate.", call("ask", "o1", q="x"))
    return agent(first, say("43"), tools=(ask, search), checkpointer=InMemorySaver())


def _pausing_inside() -> Any:
    return approving(tools=(search,), checkpointer=None)


@tool
def _confirm(q: str) -> str:
    """Ask a human."""
    return f"human: {interrupt(q)}"


_confirm.name = "confirm"


# Older releases do not tell a tool's call id, so what is called again stands where it ran again.
TELLS_CALL_IDS = "langgraph.callbacks"


@situation(
    "a sub-agent as a tool waits for approval", _DELEGATED, success=[True], needs=TELLS_CALL_IDS
)
def _(watching: KPCallbackHandler) -> None:
    in_turn(watching, "inner approval", _delegating(_pausing_inside()), APPROVED)


@situation(
    "a sub-agent's tool asks after another one has run",
    [*_DELEGATED[:6], "call confirm", "saw confirm", *_DELEGATED[5:]],
    needs=TELLS_CALL_IDS,
)
def _(watching: KPCallbackHandler) -> None:
    asked = say("I ask.", call("confirm", "i2", q="ok?"))
    inner = agent(answers()[0], asked, say("42"), tools=(search, _confirm))
    in_turn(watching, "inner tool", _delegating(inner), Command(resume="yes"))


@situation(
    "a sub-agent's tool asks twice",
    [
        *_DELEGATED[:2], *["thought", "call confirm", "saw confirm"] * 2,
        "thought", *_DELEGATED[-2:],
    ],
    needs=TELLS_CALL_IDS,
)  # fmt: skip
def _(watching: KPCallbackHandler) -> None:
    asked = [say("I ask.", call("confirm", f"i{number}", q="ok?")) for number in range(2)]
    paused = _delegating(agent(*asked, say("42"), tools=(_confirm,)))
    in_turn(watching, "inner twice", paused, *[Command(resume="yes")] * 2)


@situation(
    "a sub-agent pauses beside another tool",
    ["thought", "call ask", "thought", "call search", "saw search", *_DELEGATED[3:]],
    needs=TELLS_CALL_IDS,
)
def _(watching: KPCallbackHandler) -> None:
    asked = say("Both.", call("ask", "o1", q="x"), call("search", "o2", q="b"))
    paused = _delegating(_pausing_inside(), asked)
    config = in_thread(watching, "beside") | {"max_concurrency": 1}
    paused.invoke(ASK, config)
    paused.invoke(APPROVED, config)


# ------------------------------------------------------------------ left in the middle


@situation("left before any answer", runs=1, cancelled=1)
def _(watching: KPCallbackHandler) -> None:
    _leave(searching().stream(ASK, using(watching), stream_mode="values"), QUESTION)


@situation("left between a tool's answer and the model's", runs=1, cancelled=1)
def _(watching: KPCallbackHandler) -> None:
    _leave(searching().stream(ASK, using(watching), stream_mode="updates"), "result for a")


@situation("left after a tool that asks a model", runs=1, cancelled=1)
def _(watching: KPCallbackHandler) -> None:
    @tool
    def translate(q: str) -> str:
        """Ask a model."""
        ScriptedChatModel([say("I think it is French.")]).invoke(q)
        return "Bonjour"

    asking = agent(say("I ask.", call("translate", q="a")), say("42"), tools=(translate,))
    _leave(asking.stream(ASK, using(watching), stream_mode="updates"), "Bonjour")


@situation("left while a tool runs", runs=1, cancelled=1)
async def _(watching: KPCallbackHandler) -> None:
    @tool
    async def hang(q: str) -> str:
        """Tell that it began, and wait for ever."""
        get_stream_writer()("begun")
        await asyncio.Event().wait()
        return q

    waiting = agent(say("I wait.", call("hang", q="a")), say("42"), tools=(hang,))
    stream = waiting.astream(ASK, using(watching), stream_mode="custom")
    await _leave_async(stream, "begun")
    await stream.aclose()


@situation("left while a model answers", runs=1, cancelled=1)
async def _(watching: KPCallbackHandler) -> None:
    stream = create_agent(_Halting(), []).astream(ASK, using(watching), stream_mode="messages")
    await _leave_async(stream, "one")
    await stream.aclose()


class _Halting(ScriptedChatModel):
    """A model that never gets beyond its first word."""

    async def _agenerate(self, *args: Any, **kwargs: Any) -> Any:
        await asyncio.Event().wait()

    async def _astream(self, *args: Any, **kwargs: Any) -> Any:
        yield ChatGenerationChunk(message=AIMessageChunk("one"))
        await asyncio.Event().wait()


@situation("left when one of two branches has answered", runs=1, cancelled=1)
async def _(watching: KPCallbackHandler) -> None:
    graph = StateGraph(MessagesState)
    graph.add_node("fast", agent(say("42")))
    graph.add_node("slow", create_agent(_Halting(), []))
    graph.add_edge(START, "slow")
    graph.add_edge(START, "fast")
    stream = graph.compile().astream(ASK, using(watching), stream_mode="updates")
    await _leave_async(stream, _FINAL)
    await stream.aclose()


@situation("LCEL astream closed early", runs=1, cancelled=1)
async def _(watching: KPCallbackHandler) -> None:
    chain = ChatPromptTemplate.from_template("{question}") | _Halting() | StrOutputParser()
    stream = chain.astream({"question": "bears"}, using(watching))
    await _leave_async(stream, "one")
    await stream.aclose()


@situation("an LCEL stream is left after an agent inside it has answered", runs=1, cancelled=1)
async def _(watching: KPCallbackHandler) -> None:
    chain = searching() | RunnableLambda(lambda _: "go on") | _Halting()
    stream = chain.astream(ASK, using(watching))
    await _leave_async(stream, "one")
    await stream.aclose()


# ------------------------------------------------------------------ nodes that take too long

NEWER = "langgraph._internal._timeout"  # in older releases nodes have no time limit
_POLICY = RetryPolicy(max_attempts=2, initial_interval=0.0, jitter=False, retry_on=Exception)
# What works is done within it, and a node has begun, also where the machine is busy.
_LIMIT_S = 0.2


async def _sleep() -> None:
    await asyncio.sleep(300)


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


def _timed_graph(
    node: Any, *, timeout: Any = _LIMIT_S, policy: Any = _POLICY, **options: Any
) -> Any:
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


async def _failing(graph: Any, watching: KPCallbackHandler) -> None:
    try:
        await graph.ainvoke(ASK, using(watching))
    except Exception as error:
        assert "Timeout" in type(error).__name__  # noqa: PT017 - LangGraph's has no base of its own
    else:
        raise AssertionError("the run did not fail")


@situation("a node times out for good", ["saw"], success=[False], needs=NEWER)
async def _(watching: KPCallbackHandler) -> None:
    await _failing(_timed_graph(_slow(9)), watching)


@situation("a node times out and is not tried again", ["saw"], success=[False], needs=NEWER)
async def _(watching: KPCallbackHandler) -> None:
    await _failing(_timed_graph(_slow(9), policy=None), watching)


@situation("a graph in a node times out for good", ["saw"], success=[False], needs=NEWER)
async def _(watching: KPCallbackHandler) -> None:
    inner: Any = StateGraph(MessagesState)
    inner.add_node("slow", _slow(9), timeout=_LIMIT_S, retry_policy=_POLICY)
    inner.add_edge(START, "slow")
    await _failing(_timed_graph(inner.compile(), timeout=None, policy=None), watching)


@situation("a node limits its own time and is tried again", _TRIED_AGAIN, success=[True])
async def _(watching: KPCallbackHandler) -> None:
    await _timed_graph(_slow(1, _limit_itself), timeout=None).ainvoke(ASK, using(watching))


@situation("a step of the graph takes too long", ["saw"], success=[False])
async def _(watching: KPCallbackHandler) -> None:
    graph = _timed_graph(_slow(9), timeout=None, policy=None)
    graph.step_timeout = _LIMIT_S
    await _failing(graph, watching)


@situation("a step of a synchronous graph takes too long", ["saw"], success=[False])
def _(watching: KPCallbackHandler) -> None:
    made = graph_of(lambda _state: time.sleep(3 * _LIMIT_S))
    made.step_timeout = _LIMIT_S
    with contextlib.suppress(TimeoutError):
        made.invoke(ASK, using(watching))


@situation("the caller cancels a node with a time limit", runs=1, cancelled=1, needs=NEWER)
async def _(watching: KPCallbackHandler) -> None:
    running = asyncio.create_task(_timed_graph(_slow(1), timeout=300).ainvoke(ASK, using(watching)))
    await asyncio.sleep(_LIMIT_S)
    running.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await running


@situation("a node gives up a graph and asks it again", ["thought"], success=[True])
async def _(watching: KPCallbackHandler) -> None:
    inner = _timed_graph(_slow(1), timeout=None, policy=None)

    async def ask(state: MessagesState) -> Any:
        with contextlib.suppress(TimeoutError):
            return await asyncio.wait_for(inner.ainvoke(state), _LIMIT_S)
        return await inner.ainvoke(state)

    await graph_of(ask).ainvoke(ASK, using(watching))
