"""Tool calls that a model asks for and no tool does, and failures outside of any call."""

from __future__ import annotations

import asyncio
import contextlib
import operator
from collections.abc import Callable
from typing import Annotated, Any, TypedDict

from langchain.agents import create_agent
from langchain.agents.middleware import (
    AgentMiddleware,
    HumanInTheLoopMiddleware,
    ModelCallLimitMiddleware,
    ToolCallLimitMiddleware,
    wrap_tool_call,
)
from langchain.agents.structured_output import ToolStrategy
from langchain_core.messages import AIMessage, AnyMessage, ToolMessage
from langchain_core.output_parsers import JsonOutputParser
from langchain_core.runnables import RunnableLambda
from langchain_core.tools import ToolException, tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode
from langgraph.types import Command, RetryPolicy, interrupt
from pydantic import BaseModel

from kp_langchain import KPCallbackHandler
from tests.agents import ASK, QUESTION, ScriptedChatModel, add, agent, call, say, search, soft
from tests.recording.situations import (
    SEARCHED,
    answers,
    approving,
    asking,
    decide,
    in_thread,
    in_turn,
    situation,
    using,
)

NO_WAIT = RetryPolicy(max_attempts=3, initial_interval=0.0, jitter=False, retry_on=Exception)


class Form(BaseModel):
    text: str
    score: int


WRONG_FORM = call("Form", text="x", score="none")
RIGHT_FORM = call("Form", text="x", score=3)
RECOVERED = ["thought", "call search", "recovered search", "thought"]
REPEATED = ["thought", "call search", "saw search", "thought", "call search"]

# ------------------------------------------------------------------ structured answers


@situation(
    "a structured answer is refused and asked again",
    ["call Form", "recovered Form", "thought"],
    success=[True],
)
def _(watching: KPCallbackHandler) -> None:
    agent(say("", WRONG_FORM), say("", RIGHT_FORM), response_format=ToolStrategy(Form)).invoke(
        ASK, using(watching)
    )


@situation(
    "a structured answer is refused in words of the user's",
    ["thought", "call Form", "recovered Form", "thought"],
    success=[True],
    needs="langgraph.callbacks",  # with older ones langchain does not say that it was refused
)
def _(watching: KPCallbackHandler) -> None:
    strategy = ToolStrategy(Form, handle_errors="Fill it in again.")
    agent(say("This?", WRONG_FORM), say("", RIGHT_FORM), response_format=strategy).invoke(
        ASK, using(watching)
    )


@situation(
    "two structured answers at once are refused",
    ["call Form", "recovered Form", "call Form", "recovered Form", "thought"],
    success=[True],
)
async def _(watching: KPCallbackHandler) -> None:
    answers = say("", RIGHT_FORM, WRONG_FORM), say("", call("Form", text="y", score=1))
    await agent(*answers, response_format=ToolStrategy(Form)).ainvoke(ASK, using(watching))


@situation("a structured answer ends the run by an error", ["call Form", "saw"], success=[False])
def _(watching: KPCallbackHandler) -> None:
    strategy = ToolStrategy(Form, handle_errors=False)
    with contextlib.suppress(Exception):
        agent(say("", WRONG_FORM), response_format=strategy).invoke(ASK, using(watching))


@situation("a tool, then a structured answer", SEARCHED, success=[True])
def _(watching: KPCallbackHandler) -> None:
    answers = say("I search.", call("search", q="a")), say("", RIGHT_FORM)
    agent(*answers, response_format=ToolStrategy(Form)).invoke(ASK, using(watching))


# ------------------------------------------------------------------ calls that cannot be parsed


def unparsed(text: str, *calls: Any) -> AIMessage:
    wrong = {"name": "search", "args": '{"q": "a"', "id": "wrong", "error": None}
    return AIMessage(
        text, tool_calls=list(calls), invalid_tool_calls=[{**wrong, "type": "invalid_tool_call"}]
    )


@situation(
    "the last call cannot be parsed", ["thought", "call search", "saw search"], success=[False]
)
def _(watching: KPCallbackHandler) -> None:
    agent(unparsed("I search.")).invoke(ASK, using(watching))


@situation(
    "one of two calls cannot be parsed",
    ["thought", "call search", "recovered search", "call add", "saw add", "thought"],
    success=[True],
)
def _(watching: KPCallbackHandler) -> None:
    agent(unparsed("Both.", call("add", a=1, b=2)), say("42")).invoke(ASK, using(watching))


# ------------------------------------------------------------------ limits

# Older releases of langchain end the run before the model asks for the call that is too many.
_LIMITS_THE_CALL = "langgraph.callbacks"
LIMITED = [*REPEATED, "recovered search", "thought"]


@situation(
    "ToolCallLimitMiddleware, the agent goes on",
    LIMITED,
    success=[False],
    needs=_LIMITS_THE_CALL,
)
def _(watching: KPCallbackHandler) -> None:
    agent(*_searching_twice(), middleware=[ToolCallLimitMiddleware(run_limit=1)]).invoke(
        ASK, using(watching)
    )


@situation(
    "ToolCallLimitMiddleware ends the run",
    [*REPEATED, "saw search"],
    success=[False],
    needs=_LIMITS_THE_CALL,
)
def _(watching: KPCallbackHandler) -> None:
    limit = ToolCallLimitMiddleware(run_limit=1, exit_behavior="end")
    agent(*_searching_twice(), middleware=[limit]).invoke(ASK, using(watching))


@situation(
    "ToolCallLimitMiddleware raises",
    [*REPEATED, "saw"],
    success=[False],
    needs=_LIMITS_THE_CALL,
)
def _(watching: KPCallbackHandler) -> None:
    limit = ToolCallLimitMiddleware(run_limit=1, exit_behavior="error")
    with contextlib.suppress(Exception):
        agent(*_searching_twice(), middleware=[limit]).invoke(ASK, using(watching))


@situation(
    "ModelCallLimitMiddleware raises",
    ["thought", "call search", "saw search", "saw"],
    success=[False],
)
def _(watching: KPCallbackHandler) -> None:
    limit = ModelCallLimitMiddleware(run_limit=1, exit_behavior="error")
    with contextlib.suppress(Exception):
        agent(*_searching_twice(), middleware=[limit]).invoke(ASK, using(watching))


def _searching_twice() -> list[AIMessage]:
    return [say("First.", call("search", q="1")), say("Then.", call("search", q="2")), say("42")]


# ------------------------------------------------------------------ what a human decides


def asked(watching: KPCallbackHandler, name: str, *decisions: dict[str, Any]) -> None:
    calls = [call("search", q="a"), call("add", a=1, b=2)][: len(decisions)]
    middleware = HumanInTheLoopMiddleware(interrupt_on={"search": True, "add": True})
    one = agent(
        say("I work.", *calls), say("42"), checkpointer=InMemorySaver(), middleware=[middleware]
    )
    in_turn(watching, name, one, Command(resume={"decisions": list(decisions)}))


@situation("a human edits a call", ["thought", "call search", "saw search", "thought"])
def _(watching: KPCallbackHandler) -> None:
    edited = {"name": "search", "args": {"q": "b"}}
    asked(watching, "edit", {"type": "edit", "edited_action": edited})


@situation(
    "a human rejects one of two calls",
    ["thought", "call search", "saw search", "call add", "saw add", "thought"],
)
def _(watching: KPCallbackHandler) -> None:
    asked(watching, "one", {"type": "reject"}, {"type": "approve"})


@situation(
    "a human rejects both calls",
    ["thought", "call search", "saw search", "call add", "saw add", "thought"],
)
def _(watching: KPCallbackHandler) -> None:
    asked(watching, "both", {"type": "reject"}, {"type": "reject"})


def refusing(*, at_the_end: bool = False, how: str = "here") -> Any:
    """A graph of one's own whose node asks a human before it hands the call on."""
    model = ScriptedChatModel(answers())

    def refuse(state: MessagesState) -> Any:
        asked = state["messages"][-1].tool_calls[0]
        return {"messages": [ToolMessage("no", tool_call_id=asked["id"], status="error")]}

    def approve(state: MessagesState) -> Any:
        allowed = interrupt("may I?")
        if allowed is True:
            return Command(goto="tools")
        if how != "here":
            return Command(goto=how)
        return Command(update=refuse(state), goto=END if at_the_end else "llm")

    graph = StateGraph(MessagesState)
    graph.add_node("llm", asking(model))
    graph.add_node("approve", approve)
    graph.add_node("tools", ToolNode([search]))
    graph.add_node("refuse", refuse)
    graph.add_edge("refuse", "llm")
    graph.add_edge(START, "llm")
    graph.add_conditional_edges(
        "llm", lambda state: "approve" if state["messages"][-1].tool_calls else END
    )
    graph.add_edge("tools", "llm")
    return graph.compile(checkpointer=InMemorySaver())


@situation("a human rejects in a node of one's own", SEARCHED, success=[True])
def _(watching: KPCallbackHandler) -> None:
    in_turn(watching, "own", refusing(), Command(resume=False))


@situation("a rejection is the end", SEARCHED[:3], success=[False])
def _(watching: KPCallbackHandler) -> None:
    in_turn(watching, "end", refusing(at_the_end=True), Command(resume=False))


@situation("a human's rejection is written by another node", SEARCHED, success=[True])
def _(watching: KPCallbackHandler) -> None:
    in_turn(watching, "other", refusing(how="refuse"), Command(resume=False))


@situation("a rejection ends the run without a word", SEARCHED[:2], success=[False])
def _(watching: KPCallbackHandler) -> None:
    in_turn(watching, "silent", refusing(how=END), Command(resume=False))


@situation("a human allows what then fails in a node of one's own", RECOVERED, success=[False])
def _(watching: KPCallbackHandler) -> None:
    in_turn(watching, "allowed", refusing(how="refuse"), Command(resume="yes"))


def booking() -> Any:
    @tool
    def book(room: str) -> str:
        """Book a room, if a human allows it."""
        if interrupt(f"book {room}?") == "yes":
            raise ToolException("full")
        raise ToolException("The user refused.")

    book.handle_tool_error = True
    answers = say("I book.", call("book", room="1")), say("Not booked.")
    return agent(*answers, tools=(book,), checkpointer=InMemorySaver())


@situation(
    "a human rejects in a tool, which raises",
    ["thought", "call book", "saw book", "thought"],
    success=[True],
)
def _(watching: KPCallbackHandler) -> None:
    in_turn(watching, "booking", booking(), Command(resume="no"))


@situation(
    "a human allows a tool, which then fails",
    ["thought", "call book", "recovered book", "thought"],
    success=[False],
)
def _(watching: KPCallbackHandler) -> None:
    in_turn(watching, "booking", booking(), Command(resume="yes"))


@situation(
    "a human rejects one call, and another fails by itself",
    ["thought", "call search", "saw search", "call soft", "recovered soft", "thought"],
    success=[False],
)
def _(watching: KPCallbackHandler) -> None:
    calls = call("search", "c1", q="a"), call("soft", "c2", x="1")
    graph = approving(say("I work.", *calls), say("42"), tools=(search, soft))
    in_turn(watching, "beside", graph, decide("reject", message="no"))


@situation(
    "a wrapped graph is asked something new while it waits",
    ["thought"],
    success=[True],
    objective="second",
    runs=2,
    paused=1,
)
def _(watching: KPCallbackHandler) -> None:
    graph = _asking(say("I ask.", call("ask_human", q="1")), say("42"))
    wrapped = _wrapped(graph, "asked again")
    wrapped.invoke("first", using(watching))
    wrapped.invoke("second", using(watching))


@situation(
    "a wrapped graph is asked something new, pauses and goes on by itself",
    ["thought", "call ask_human", "saw ask_human", "thought"],
    success=[True],
    objective="second",
    runs=2,
    paused=1,
)
def _(watching: KPCallbackHandler) -> None:
    asked = say("I ask.", call("ask_human", q="1"))
    graph = _asking(asked, asked.model_copy(deep=True), say("42"))
    _wrapped(graph, "goes on").invoke("first", using(watching))

    def goes_on(question: str) -> Any:
        _wrapped(graph, "goes on").invoke(question)
        return graph.invoke(Command(resume="yes"), {"configurable": {"thread_id": "goes on"}})

    RunnableLambda(goes_on).invoke("second", using(watching))


def _asking(*answers: AIMessage) -> Any:
    @tool
    def ask_human(q: str) -> str:
        """Ask a human."""
        return str(interrupt(q))

    return agent(*answers, tools=(ask_human,), checkpointer=InMemorySaver())


def _wrapped(graph: Any, thread: str) -> Any:
    config: Any = {"configurable": {"thread_id": thread}}
    return RunnableLambda(lambda words: graph.invoke({"messages": [("user", words)]}, config))


@situation("a graph is named like a change of state", SEARCHED, success=[True])
def _(watching: KPCallbackHandler) -> None:
    agent(*answers()).invoke(ASK, using(watching, run_name="CustomerUpdateState"))


@situation(
    "a human rejects by changing the state", SEARCHED, success=[True], needs="langgraph.callbacks"
)
def _(watching: KPCallbackHandler) -> None:
    answers = say("I search.", call("search", "c1", q="a")), say("42")
    paused = agent(*answers, checkpointer=InMemorySaver(), interrupt_before=["tools"])
    config = in_thread(watching, "state")
    paused.invoke(ASK, config)
    refusal = ToolMessage("no", tool_call_id="c1", status="error")
    paused.update_state(
        {"configurable": config["configurable"]}, {"messages": [refusal]}, as_node="tools"
    )
    paused.invoke(None, config)


@situation(
    "the state of a paused run is changed with the handler looking on",
    SEARCHED,
    success=[True],
    needs="langgraph.callbacks",
    runs=2,
    empty=1,
)
def _(watching: KPCallbackHandler) -> None:
    answers = say("I search.", call("search", "c1", q="a")), say("42")
    bound = agent(*answers, checkpointer=InMemorySaver(), interrupt_before=["tools"]).with_config(
        callbacks=[watching]
    )
    thread: Any = {"configurable": {"thread_id": "changed"}}
    bound.invoke(ASK, thread)
    bound.update_state(thread, {"messages": []})
    bound.invoke(None, thread)


# ------------------------------------------------------------------ answers without a tool


@situation(
    "a loop in one function keeps its tools' answers to itself", SEARCHED, framework="langchain"
)
def _(watching: KPCallbackHandler) -> None:
    model = ScriptedChatModel([say("I search.", call("search", "c1", q="a")), say("42")])

    def loop(question: str) -> str:
        messages: list[Any] = [("user", question)]
        while (answer := model.invoke(messages)).tool_calls:
            messages += [answer, ToolMessage("found", tool_call_id=answer.tool_calls[0]["id"])]
        return str(answer.content)

    RunnableLambda(loop).invoke(QUESTION, using(watching))


def _loop(tools: Callable[[MessagesState], Any], *answers: AIMessage, ends_with: str = "") -> Any:
    model = ScriptedChatModel(answers)

    def after(state: MessagesState) -> str:
        calls = state["messages"][-1].tool_calls
        return "tools" if calls and calls[0]["name"] != ends_with else END

    graph = StateGraph(MessagesState)
    graph.add_node("llm", asking(model))
    graph.add_node("tools", tools)
    graph.add_edge(START, "llm")
    graph.add_conditional_edges("llm", after)
    graph.add_edge("tools", "llm")
    return graph.compile()


ADDED = ["thought", "call add", "saw add", "call add", "saw add", "thought"]
TWICE = say("I add.", call("add", a=1, b=2), call("add", a=3, b=4)), say("42")


@situation("a node does the calls without tools", ADDED)
def _(watching: KPCallbackHandler) -> None:
    def work(state: MessagesState) -> Any:
        return {
            "messages": [
                ToolMessage(str(one["args"]["a"] + one["args"]["b"]), tool_call_id=one["id"])
                for one in state["messages"][-1].tool_calls
            ]
        }

    _loop(work, *TWICE).invoke(ASK, using(watching))


@situation("a node calls tools with the arguments alone", ADDED)
def _(watching: KPCallbackHandler) -> None:
    def work(state: MessagesState) -> Any:
        return {
            "messages": [
                ToolMessage(str(add.invoke(one["args"])), tool_call_id=one["id"])
                for one in state["messages"][-1].tool_calls
            ]
        }

    _loop(work, *TWICE).invoke(ASK, using(watching))


@wrap_tool_call
def _remembered(request: Any, _proceed: Any) -> Any:
    return ToolMessage("as before", tool_call_id=request.tool_call["id"])


@situation("middleware answers in the tool's place", SEARCHED, success=[True])
def _(watching: KPCallbackHandler) -> None:
    agent(*answers(), middleware=[_remembered]).invoke(ASK, using(watching))


class _Impatient(AgentMiddleware):
    async def awrap_tool_call(self, request: Any, handler: Any) -> Any:
        try:
            return await asyncio.wait_for(handler(request), 0.01)
        except TimeoutError:
            late = request.tool_call["id"]
            return ToolMessage("timed out", tool_call_id=late, status="error")


@tool
async def endless(q: str) -> str:
    """Wait for what never comes."""
    await asyncio.Event().wait()
    return q


@situation(
    "a tool is given up, and that is answered",
    ["thought", "call endless", "recovered endless", "thought"],
    success=[False],
)
async def _(watching: KPCallbackHandler) -> None:
    model = ScriptedChatModel([say("I wait.", call("endless", q="a")), say("42")])
    impatient = create_agent(model, [endless], middleware=[_Impatient()])
    await impatient.ainvoke(ASK, using(watching))


@situation(
    "the run ends with a call that nobody does", ["call search", "saw search", "call Done"],
    success=[True],
)  # fmt: skip
def _(watching: KPCallbackHandler) -> None:
    answers = say("", call("search", q="a")), say("", call("Done", text="42"))
    _loop(ToolNode([search]), *answers, ends_with="Done").invoke(ASK, using(watching))


@situation("the run ends on an action", ["thought", "call silent", "saw silent"], success=[True])
def _(watching: KPCallbackHandler) -> None:
    @tool(return_direct=True)
    def silent(item: str) -> str:
        """Do something and say nothing."""
        return ""

    create_agent(ScriptedChatModel([say("I buy.", call("silent", item="a"))]), [silent]).invoke(
        ASK, using(watching)
    )


# ------------------------------------------------------------------ failures outside of any call


def _flaky(failures: int) -> Callable[[Any], Any]:
    left = list(range(failures))

    def work(_state: Any) -> Any:
        if left:
            raise ValueError(f"{left.pop()} more to come")
        return {"messages": [AIMessage("worked")]}

    return work


def _with_plain_node(failures: int, *, first: bool, policy: RetryPolicy | None = NO_WAIT) -> Any:
    model = ScriptedChatModel([say("42")])
    graph = StateGraph(MessagesState)
    graph.add_node("plain", _flaky(failures), retry_policy=policy)
    graph.add_node("llm", asking(model))
    order = ("plain", "llm") if first else ("llm", "plain")
    graph.add_edge(START, order[0])
    graph.add_edge(*order)
    return graph.compile()


@situation("a plain node is retried once", ["recovered", "thought"], success=[True])
def _(watching: KPCallbackHandler) -> None:
    _with_plain_node(1, first=True).invoke(ASK, using(watching))


@situation("a plain node is retried twice, at the end", ["thought", "recovered x2"], success=[True])
async def _(watching: KPCallbackHandler) -> None:
    await _with_plain_node(2, first=False).ainvoke(ASK, using(watching))


@situation("a plain node fails for good", ["thought", "saw x3"], success=[False])
def _(watching: KPCallbackHandler) -> None:
    with contextlib.suppress(ValueError):
        _with_plain_node(9, first=False).invoke(ASK, using(watching))


@situation("the first node raises", ["saw"], success=[False])
def _(watching: KPCallbackHandler) -> None:
    with contextlib.suppress(ValueError):
        _with_plain_node(1, first=True, policy=None).invoke(ASK, using(watching))


@situation("a chain that asks nobody raises", ["saw"], framework="langchain", success=[False])
def _(watching: KPCallbackHandler) -> None:
    def fail(_question: str) -> str:
        raise KeyError("nothing")

    with contextlib.suppress(KeyError):
        RunnableLambda(fail).invoke(QUESTION, using(watching))


@situation(
    "a chain is retried when its parser refuses", ["thought", "recovered", "thought"],
    framework="langchain", success=[True],
)  # fmt: skip
def _(watching: KPCallbackHandler) -> None:
    parsed = ScriptedChatModel([say("no JSON"), say('{"a": 1}')]) | JsonOutputParser()
    retried = parsed.with_retry(
        stop_after_attempt=2, exponential_jitter_params={"initial": 0, "max": 0, "jitter": 0}
    )
    retried.invoke(QUESTION, using(watching))


@situation(
    "a chain falls back when its parser refuses", ["thought", "recovered", "thought"],
    framework="langchain", success=[True],
)  # fmt: skip
def _(watching: KPCallbackHandler) -> None:
    parsed = ScriptedChatModel([say("no JSON")]) | JsonOutputParser()
    parsed.with_fallbacks([ScriptedChatModel([say('{"a": 1}')]) | JsonOutputParser()]).invoke(
        QUESTION, using(watching)
    )


class _Log(TypedDict):
    messages: Annotated[list[AnyMessage], operator.add]


@situation("a tool whose chain raises fails once", ["thought", "call work", "recovered work",
                                                    "thought"], success=[False])  # fmt: skip
def _(watching: KPCallbackHandler) -> None:
    inner = StateGraph(_Log)
    inner.add_node("plain", _flaky(9))
    inner.add_edge(START, "plain")
    graph = inner.compile()

    @tool
    def work(q: str) -> str:
        """Work in a graph."""
        return str(graph.invoke({"messages": [("user", q)]}))

    @wrap_tool_call
    def lenient(request: Any, proceed: Any) -> Any:
        try:
            return proceed(request)
        except ValueError as error:
            failed = request.tool_call["id"]
            return ToolMessage(str(error), tool_call_id=failed, status="error")

    model = ScriptedChatModel([say("I work.", call("work", q="a")), say("42")])
    create_agent(model, [work], middleware=[lenient]).invoke(ASK, using(watching))
