"""What agents do in production, each with what must be recorded of it.

A situation runs real LangChain or LangGraph code with the handler it is given. What it expects:
the steps of each trace, the counts that are not zero, and whether each run counts as a success.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import gc
import operator
import threading
import warnings
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Annotated, Any, TypedDict

from langchain.agents import create_agent
from langchain.agents.middleware import (
    HumanInTheLoopMiddleware,
    ModelCallLimitMiddleware,
    ModelFallbackMiddleware,
    ToolRetryMiddleware,
    wrap_tool_call,
)
from langchain_core.callbacks import adispatch_custom_event, dispatch_custom_event
from langchain_core.documents import Document
from langchain_core.messages import AIMessage, AnyMessage, HumanMessage, ToolMessage
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate, PromptTemplate
from langchain_core.retrievers import BaseRetriever
from langchain_core.runnables import RunnableLambda
from langchain_core.tools import BaseTool, tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.errors import GraphRecursionError
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.graph.message import add_messages
from langgraph.prebuilt import ToolNode, tools_condition
from langgraph.types import Command, RetryPolicy, interrupt
from pydantic import BaseModel

from kp_langchain import KPCallbackHandler, ScoredTrace
from tests.agents import (
    ASK,
    QUESTION,
    ScriptedChatModel,
    add,
    agent,
    asearch,
    broken,
    call,
    handler,
    say,
    search,
    searching,
    soft,
)

SEARCHED = ["thought", "call search", "saw search", "thought"]
_UNKNOWN = ["thought", "call nope", "recovered nope", "thought"]
Run = Callable[[KPCallbackHandler], Any]


@dataclass(frozen=True)
class Situation:
    name: str
    go: Run
    traces: list[list[str]]
    fates: dict[str, int] = field(default_factory=dict)
    success: list[bool] | None = None
    objective: str = QUESTION
    framework: str = "langgraph"
    needs: str = ""  # a module, for what older releases do not tell


SITUATIONS: list[Situation] = []


def situation(
    name: str,
    *traces: list[str],
    success: list[bool] | None = None,
    objective: str = QUESTION,
    framework: str = "langgraph",
    needs: str = "",
    **fates: int,
) -> Callable[[Run], Run]:
    def add_to_list(go: Run) -> Run:
        expected = {"runs": len(traces), **fates}  # what is not named must be zero
        SITUATIONS.append(
            Situation(name, go, list(traces), expected, success, objective, framework, needs)
        )
        return go

    return add_to_list


def using(watching: KPCallbackHandler, **more: Any) -> Any:
    return {"callbacks": [watching], **more}


def in_thread(watching: KPCallbackHandler, name: str) -> Any:
    return using(watching, configurable={"thread_id": name})


def graph_of(*nodes: Any, **options: Any) -> Any:
    """Return a graph of messages with these nodes, one after the other."""
    graph = StateGraph(MessagesState)
    graph.add_sequence([(f"node{number}", node) for number, node in enumerate(nodes)])
    return graph.add_edge(START, "node0").compile(**options)


def in_turn(watching: KPCallbackHandler, thread: str, graph: Any, *resumed_by: Any) -> None:
    """Ask a graph in a thread, and then resume it."""
    for inputs in (ASK, *resumed_by):
        graph.invoke(inputs, in_thread(watching, thread))


def answers() -> tuple[AIMessage, AIMessage]:
    """Return what a model says that searches once and answers."""
    return say("I search.", call("search", q="a")), say("42")


def approving(*said: AIMessage, **options: Any) -> Any:
    """Return an agent whose searches a human has to approve."""
    gate = HumanInTheLoopMiddleware(interrupt_on={"search": True})
    options.setdefault("checkpointer", InMemorySaver())
    return agent(*(said or answers()), middleware=[gate], **options)


def decide(kind: str, **more: Any) -> Command[Any]:
    return Command(resume={"decisions": [{"type": kind, **more}]})


def loop_of(model: Any, tools: ToolNode) -> Any:
    """Return a hand-made loop of a model and its tools."""
    graph = StateGraph(MessagesState)
    graph.add_node("llm", asking(model))
    graph.add_node("tools", tools)
    graph.add_edge(START, "llm")
    graph.add_conditional_edges("llm", tools_condition)
    graph.add_edge("tools", "llm")
    return graph.compile()


def asking(model: Any) -> Callable[[MessagesState], Any]:
    """Return a node that asks a model."""
    return lambda state: {"messages": [model.invoke(state["messages"])]}


# ------------------------------------------------------------------ ways to run an agent


@situation("create_agent.invoke", SEARCHED)
def _(watching: KPCallbackHandler) -> None:
    searching().invoke(ASK, using(watching))


@situation("create_agent.ainvoke", SEARCHED)
async def _(watching: KPCallbackHandler) -> None:
    await searching().ainvoke(ASK, using(watching))


for _mode in ("updates", "messages", "values"):

    @situation(f"create_agent.stream, {_mode}", SEARCHED)
    def _(watching: KPCallbackHandler, mode: str = _mode) -> None:
        list(searching().stream(ASK, using(watching), stream_mode=mode))

    @situation(f"create_agent.astream, {_mode}", SEARCHED)
    async def _(watching: KPCallbackHandler, mode: str = _mode) -> None:
        _ = [part async for part in searching().astream(ASK, using(watching), stream_mode=mode)]


@situation("create_agent.astream_events", SEARCHED)
async def _(watching: KPCallbackHandler) -> None:
    _ = [e async for e in searching().astream_events(ASK, using(watching), version="v2")]


class Attentive(ScriptedChatModel):
    """Answers by what it is asked, not by when, so that runs may overlap."""

    def _generate(self, messages: Any, *args: Any, **kwargs: Any) -> Any:
        searched = isinstance(messages[-1], ToolMessage)
        answer = say("42") if searched else say("I search.", call("search", q="a"))
        return ScriptedChatModel([answer])._generate(messages)


@situation("create_agent.batch of 3", SEARCHED, SEARCHED, SEARCHED)
def _(watching: KPCallbackHandler) -> None:
    create_agent(Attentive(), [search]).batch([ASK] * 3, using(watching))


@situation("create_agent.abatch of 3", SEARCHED, SEARCHED, SEARCHED)
async def _(watching: KPCallbackHandler) -> None:
    await create_agent(Attentive(), [search]).abatch([ASK] * 3, using(watching))


@situation("hand-made StateGraph with ToolNode", SEARCHED)
def _(watching: KPCallbackHandler) -> None:
    loop_of(ScriptedChatModel(answers()), ToolNode([search])).invoke(ASK, using(watching))


_CHAIN_OBJECTIVE = "bears"


def _chain(*answers: Any) -> Any:
    prompt = ChatPromptTemplate.from_template("Tell me about {question}")
    return prompt | ScriptedChatModel(answers) | StrOutputParser()


@situation(
    "LCEL chain", ["thought"], objective=_CHAIN_OBJECTIVE, framework="langchain", success=[True]
)
def _(watching: KPCallbackHandler) -> None:
    _chain(say("They sleep.")).invoke({"question": "bears"}, using(watching))


@situation("LCEL chain, stream", ["thought"], objective=_CHAIN_OBJECTIVE, framework="langchain")
def _(watching: KPCallbackHandler) -> None:
    list(_chain(say("They sleep.")).stream({"question": "bears"}, using(watching)))


@situation("a model alone", ["thought"], framework="langchain")
def _(watching: KPCallbackHandler) -> None:
    ScriptedChatModel([say("42")]).invoke(QUESTION, using(watching))


@situation(
    "a tool alone, raising", ["call broken", "saw broken"],
    objective="1", framework="langchain", success=[False],
)  # fmt: skip
def _(watching: KPCallbackHandler) -> None:
    with contextlib.suppress(ValueError):
        broken.invoke({"x": "1"}, using(watching))


@situation(
    "a chain calls two tools, and the last one fails",
    ["call search", "saw search", "call count", "saw count"],
    objective="a",
    framework="langchain",
    success=[False],
)
def _(watching: KPCallbackHandler) -> None:
    @tool
    def count(q: str) -> str:
        """Count."""
        return f"Error: {q} has no number"

    (search | count).invoke("a", using(watching))


class _Shelf(BaseRetriever):
    def _get_relevant_documents(self, query: str, *, run_manager: Any) -> list[Document]:
        return [Document(f"about {query}"), Document("more")]


@situation("retriever in a chain", ["call shelf", "saw shelf", "thought"], framework="langchain")
def _(watching: KPCallbackHandler) -> None:
    chain = (
        _Shelf(name="shelf")
        | RunnableLambda(lambda docs: docs[0].page_content)
        | ScriptedChatModel([say("42")])
    )
    chain.invoke(QUESTION, using(watching))


@situation("a chain that asks nobody", runs=1, empty=1)
def _(watching: KPCallbackHandler) -> None:
    RunnableLambda(lambda x: x + 1).invoke(1, using(watching))


# ------------------------------------------------------------------ the classic executor


def _react(*answers: str, **options: Any) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from langchain_classic.agents import AgentExecutor, create_react_agent

    prompt = PromptTemplate.from_template(
        "Tools: {tools} named {tool_names}\nQuestion: {input}\n{agent_scratchpad}"
    )
    brain = create_react_agent(
        ScriptedChatModel([say(text) for text in answers]), [search, soft], prompt
    )
    return AgentExecutor(agent=brain, tools=[search, soft], **options)


_REACT_SEARCH = "I search\nAction: search\nAction Input: a"
_REACT_FINAL = "I know\nFinal Answer: 42"


@situation("AgentExecutor, text ReAct", SEARCHED, framework="langchain", success=[True])
def _(watching: KPCallbackHandler) -> None:
    _react(_REACT_SEARCH, _REACT_FINAL).invoke({"input": QUESTION}, using(watching))


@situation(
    "AgentExecutor, parse error handled",
    ["thought", "call _Exception", "recovered", "saw _Exception", "thought"],
    framework="langchain",
)
def _(watching: KPCallbackHandler) -> None:
    executor = _react("no action here", _REACT_FINAL, handle_parsing_errors=True)
    executor.invoke({"input": QUESTION}, using(watching))


@situation(
    "AgentExecutor, unknown tool",
    ["thought", "call invalid_tool", "recovered invalid_tool", "thought"],
    framework="langchain",
)
def _(watching: KPCallbackHandler) -> None:
    executor = _react("x\nAction: nope\nAction Input: a", _REACT_FINAL)
    executor.invoke({"input": QUESTION}, using(watching))


@situation(
    "AgentExecutor, iteration limit",
    ["thought", "call search", "saw search"],
    framework="langchain",
    success=[False],
)
def _(watching: KPCallbackHandler) -> None:
    _react(_REACT_SEARCH, max_iterations=1).invoke({"input": QUESTION}, using(watching))


@situation("AgentExecutor, stream", SEARCHED, framework="langchain", success=[True])
def _(watching: KPCallbackHandler) -> None:
    list(_react(_REACT_SEARCH, _REACT_FINAL).stream({"input": QUESTION}, using(watching)))


# ------------------------------------------------------------------ errors of tools


@wrap_tool_call
def _telling(request: Any, proceed: Any) -> Any:
    try:
        return proceed(request)
    except Exception as error:
        return ToolMessage(str(error), tool_call_id=request.tool_call["id"], status="error")


_RECOVERED = ["thought", "call broken", "recovered broken", "thought"]


@situation("middleware handles a tool's error", _RECOVERED, success=[False])
def _(watching: KPCallbackHandler) -> None:
    agent(say("Try.", call("broken", x="1")), say("42"), middleware=[_telling]).invoke(
        ASK, using(watching)
    )


@situation(
    "handle_tool_error=True", ["thought", "call soft", "recovered soft", "thought"], success=[False]
)
def _(watching: KPCallbackHandler) -> None:
    agent(say("Try.", call("soft", x="1")), say("42")).invoke(ASK, using(watching))


@situation("ToolNode(handle_tool_errors=True)", _RECOVERED)
def _(watching: KPCallbackHandler) -> None:
    model = ScriptedChatModel([say("Try.", call("broken", x="1")), say("42")])
    loop_of(model, ToolNode([broken], handle_tool_errors=True)).invoke(ASK, using(watching))


@situation("a tool's error ends the run", ["thought", "call broken", "saw broken"], success=[False])
def _(watching: KPCallbackHandler) -> None:
    with contextlib.suppress(ValueError):
        agent(say("Try.", call("broken", x="1"))).invoke(ASK, using(watching))


@situation("unknown tool", _UNKNOWN, success=[False])
def _(watching: KPCallbackHandler) -> None:
    agent(say("Try.", call("nope", x="1")), say("42")).invoke(ASK, using(watching))


@situation(
    "invalid arguments", ["thought", "call add", "recovered add", "thought"], success=[False]
)
def _(watching: KPCallbackHandler) -> None:
    agent(say("Try.", call("add", a="x")), say("42")).invoke(ASK, using(watching))


def _twice_broken() -> Any:
    tries = iter((TimeoutError("slow"), TimeoutError("slower"), None))

    @tool
    def slow(x: str) -> str:
        """Fail twice."""
        if (error := next(tries)) is not None:
            raise error
        return "done"

    return slow


@situation(
    "ToolRetryMiddleware: one call, three attempts",
    ["thought", "call slow x3", "recovered slow x2", "saw slow", "thought"],
    success=[True],
)
def _(watching: KPCallbackHandler) -> None:
    agent(
        say("Try.", call("slow", x="1")),
        say("42"),
        tools=(_twice_broken(),),
        middleware=[ToolRetryMiddleware(max_retries=3, initial_delay=0.0, jitter=False)],
    ).invoke(ASK, using(watching))


@situation(
    "the model tries again: two calls",
    [
        "thought", "call soft", "recovered soft", "thought", "call soft", "recovered soft",
        "thought",
    ],
)  # fmt: skip
def _(watching: KPCallbackHandler) -> None:
    again = say("Again.", call("soft", "c2", x="1"))
    agent(say("Try.", call("soft", "c1", x="1")), again, say("42")).invoke(ASK, using(watching))


# ------------------------------------------------------------------ errors of models


@situation(
    "with_retry, two failures", ["recovered x2", "thought"], framework="langchain", success=[True]
)
def _(watching: KPCallbackHandler) -> None:
    model = ScriptedChatModel([OSError("1"), OSError("2"), say("42")])
    model.with_retry(stop_after_attempt=3, exponential_jitter_params=_NO_WAIT).invoke(
        QUESTION, using(watching)
    )


_NO_WAIT: Any = {"initial": 0, "max": 0, "jitter": 0}


@situation("with_retry exhausted", ["saw x2"], framework="langchain", success=[False])
def _(watching: KPCallbackHandler) -> None:
    model = ScriptedChatModel([OSError("1"), OSError("2")])
    with contextlib.suppress(OSError):
        model.with_retry(stop_after_attempt=2, exponential_jitter_params=_NO_WAIT).invoke(
            QUESTION, using(watching)
        )


def _with_backup(*backup: Any) -> Any:
    return ScriptedChatModel([OSError("down")]).with_fallbacks([ScriptedChatModel(backup)])


_FELL_BACK = ["recovered", "thought"]


@situation("with_fallbacks", _FELL_BACK, framework="langchain", success=[True])
def _(watching: KPCallbackHandler) -> None:
    _with_backup(say("42")).invoke(QUESTION, using(watching))


@situation("with_fallbacks, stream", _FELL_BACK, framework="langchain")
def _(watching: KPCallbackHandler) -> None:
    list(_with_backup(say("42")).stream(QUESTION, using(watching)))


@situation("with_fallbacks in a chain", _FELL_BACK, objective="bears", framework="langchain")
def _(watching: KPCallbackHandler) -> None:
    chain = ChatPromptTemplate.from_template("About {question}") | _with_backup(say("42"))
    chain.invoke({"question": "bears"}, using(watching))


@situation("with_fallbacks, all fail", ["saw x2"], framework="langchain", success=[False])
def _(watching: KPCallbackHandler) -> None:
    with contextlib.suppress(OSError):
        _with_backup(OSError("also down")).invoke(QUESTION, using(watching))


@situation("ModelFallbackMiddleware", _FELL_BACK)
def _(watching: KPCallbackHandler) -> None:
    backup = ModelFallbackMiddleware(ScriptedChatModel([say("42")]))
    agent(OSError("down"), middleware=[backup]).invoke(ASK, using(watching))


@situation("a node's RetryPolicy around a model", _FELL_BACK)
def _(watching: KPCallbackHandler) -> None:
    model = ScriptedChatModel([ConnectionError("net"), say("42")])
    graph = StateGraph(MessagesState)
    graph.add_node(
        "llm",
        lambda state: {"messages": [model.invoke(state["messages"])]},
        retry_policy=RetryPolicy(initial_interval=0.0, jitter=False),
    )
    graph.add_edge(START, "llm")
    graph.compile().invoke(ASK, using(watching))


@situation("a model's error ends the run", ["saw"], success=[False])
def _(watching: KPCallbackHandler) -> None:
    with contextlib.suppress(OSError):
        agent(OSError("down")).invoke(ASK, using(watching))


@situation("an empty answer", ["thought"], success=[False])
def _(watching: KPCallbackHandler) -> None:
    agent(say("")).invoke(ASK, using(watching))


@situation(
    "one of two branches ends the run",
    ["thought", "call search", "saw search", "call broken", "saw broken"],
    success=[False],
)
def _(watching: KPCallbackHandler) -> None:
    # In this order: LangGraph may cancel what has not begun when another branch fails.
    asked = say("Both.", call("search", "b1", q="a"), call("broken", "b2", x="1"))
    with contextlib.suppress(ValueError):
        agent(asked).invoke(ASK, using(watching, max_concurrency=1))


@situation("a node reads as much of an answer as it wants", ["thought"], success=[True])
def _(watching: KPCallbackHandler) -> None:
    def impatient(state: MessagesState) -> Any:
        stream = ScriptedChatModel([say("yes or no, who knows")]).stream("q")
        word = next(stream)
        stream.close()
        return {"messages": [AIMessage(str(word.content))]}

    graph_of(impatient).invoke(ASK, using(watching))


class _Slow(ScriptedChatModel):
    """A model that has begun to answer once `begun` is set, and answers when `go` is set."""

    begun: Any
    go: Any

    def _generate(self, *args: Any, **kwargs: Any) -> Any:
        self.begun.set()
        self.go.wait(300)
        return super()._generate(*args, **kwargs)


@situation("a chain that does not wait for its other model", ["thought"], framework="langchain")
def _(watching: KPCallbackHandler) -> None:
    begun, go = threading.Event(), threading.Event()
    slow = _Slow([say("late")], begun=begun, go=go)

    def hedge(question: str) -> str:
        answer = ScriptedChatModel([say("42")]).invoke(question).text
        _start_in_context(lambda: slow.invoke(question))
        assert begun.wait(300)
        return str(answer)

    _with_late_thread(hedge, watching, go)


@situation("a chain that ends before its other model begins", ["thought"], framework="langchain")
def _(watching: KPCallbackHandler) -> None:
    go = threading.Event()

    def late(question: str) -> None:
        go.wait(300)
        ScriptedChatModel([say("late")]).invoke(question)

    def hedge(question: str) -> str:
        answer = ScriptedChatModel([say("42")]).invoke(question).text
        _start_in_context(lambda: late(question))
        return str(answer)

    _with_late_thread(hedge, watching, go)


def _start_in_context(work: Callable[[], Any]) -> None:
    """Start a thread that has the callbacks of the run it is started in."""
    context = contextvars.copy_context()
    thread = threading.Thread(target=context.run, args=(work,))
    thread.start()
    _unclosed.append(thread)


def _with_late_thread(
    chain: Callable[[str], str], watching: KPCallbackHandler, go: threading.Event
) -> None:
    """Run a chain, then let the thread that it left behind go on."""
    try:
        RunnableLambda(chain).invoke(QUESTION, using(watching))
    finally:
        go.set()
        _unclosed[-1].join()


# ------------------------------------------------------------------ several at once


def _parallel(*tools: Any) -> Any:
    return agent(
        say(
            "Both.",
            call(tools[0].name, "p1", q="a"),
            call("add", "p2", a=1, b=2),
            call(tools[0].name, "p3", q="z"),
        ),
        say("42"),
        tools=(*tools, add),
    )


# What runs side by side may be interleaved in any way; the test sorts what lies between.
_AT_ONCE = [
    "thought",
    *sorted(["call search", "saw search"] * 2 + ["call add", "saw add"]),
    "thought",
]


@situation("parallel tool calls", _AT_ONCE)
def _(watching: KPCallbackHandler) -> None:
    _parallel(search).invoke(ASK, using(watching))


@situation(
    "parallel tool calls, async",
    [word.replace("search", "asearch") for word in _AT_ONCE],
)
async def _(watching: KPCallbackHandler) -> None:
    await _parallel(asearch).ainvoke(ASK, using(watching))


@situation(
    "one of two parallel tool calls fails",
    ["thought", *sorted(["call search", "saw search", "call soft", "recovered soft"]), "thought"],
    success=[True],
)
def _(watching: KPCallbackHandler) -> None:
    both = threading.Barrier(2)

    def at_once(it: BaseTool) -> BaseTool:
        """Return a tool that ends only after the other has begun."""

        def run(*args: Any, **values: Any) -> Any:
            both.wait(60)
            return it.func(*args, **values)  # type: ignore[attr-defined]

        return it.model_copy(update={"func": run})

    asks = say("Both.", call("search", "p1", q="a"), call("soft", "p2", x="1"))
    tools = at_once(search), at_once(soft)
    agent(asks, say("42"), tools=tools).invoke(ASK, using(watching))


_DELEGATED = [
    "thought", "call ask", "thought", "call search", "saw search", "thought", "saw ask", "thought",
]  # fmt: skip


def _delegating(ask: Any) -> Any:
    return agent(say("Delegate.", call("ask", q="x")), say("42"), tools=(ask,))


@situation("sub-agent as a tool", _DELEGATED)
def _(watching: KPCallbackHandler) -> None:
    @tool
    def ask(q: str) -> str:
        """Delegate."""
        return str(searching().invoke({"messages": [("user", q)]})["messages"][-1].text)

    _delegating(ask).invoke(ASK, using(watching))


@situation("sub-agent as a tool, async", _DELEGATED)
async def _(watching: KPCallbackHandler) -> None:
    @tool
    async def ask(q: str) -> str:
        """Delegate."""
        done = await searching().ainvoke({"messages": [("user", q)]})
        return str(done["messages"][-1].text)

    await _delegating(ask).ainvoke(ASK, using(watching))


@situation("sub-agent given the same handler again", _DELEGATED)
def _(watching: KPCallbackHandler) -> None:
    @tool
    def ask(q: str) -> str:
        """Delegate."""
        done = searching().invoke({"messages": [("user", q)]}, using(watching))
        return str(done["messages"][-1].text)

    _delegating(ask).invoke(ASK, using(watching))


@situation("a graph as a node of a graph", SEARCHED)
def _(watching: KPCallbackHandler) -> None:
    graph_of(searching()).invoke(ASK, using(watching))


class _Fan(TypedDict):
    messages: Annotated[list[AnyMessage], add_messages]
    seen: Annotated[list[str], operator.add]


@situation("hand-off between agents", ["thought", "call transfer", "saw transfer", "thought"])
def _(watching: KPCallbackHandler) -> None:
    @tool
    def transfer(reason: str) -> Command[Any]:
        """Hand over."""
        message = ToolMessage("handed over", tool_call_id="t1")
        return Command(goto="second", graph=Command.PARENT, update={"messages": [message]})

    first = create_agent(
        ScriptedChatModel([say("Not mine.", call("transfer", "t1", reason="x"))]), [transfer]
    )
    graph = StateGraph(MessagesState)
    graph.add_node("first", first, destinations=("second",))
    graph.add_node("second", create_agent(ScriptedChatModel([say("42")]), []))
    graph.add_edge(START, "first")
    graph.compile().invoke(ASK, using(watching))


# ------------------------------------------------------------------ pause and resume


@situation("paused, then approved", SEARCHED, success=[True])
def _(watching: KPCallbackHandler) -> None:
    in_turn(watching, "approve", approving(), decide("approve"))


@situation("paused, then rejected", SEARCHED, success=[True])
def _(watching: KPCallbackHandler) -> None:
    in_turn(watching, "reject", approving(), decide("reject", message="no"))


@situation("paused and not resumed", runs=1, paused=1)
def _(watching: KPCallbackHandler) -> None:
    in_turn(watching, "waits", approving())


def _asking_a_human() -> Any:
    @tool
    def ask_human(q: str) -> str:
        """Ask a human."""
        return f"human: {interrupt(q)}"

    asks = say("Ask.", call("ask_human", q="ok?"))
    return agent(asks, say("42"), tools=(ask_human,), checkpointer=InMemorySaver())


@situation(
    "interrupt() in a tool, then resumed",
    ["thought", "call ask_human", "saw ask_human", "thought"],
)
def _(watching: KPCallbackHandler) -> None:
    in_turn(watching, "tool", _asking_a_human(), Command(resume="yes"))


@situation("interrupt() in a sub-graph, then resumed", ["thought"])
def _(watching: KPCallbackHandler) -> None:
    def ask(state: MessagesState) -> Any:
        return {"messages": [HumanMessage(str(interrupt("ok?")))]}

    inner = graph_of(ask, asking(ScriptedChatModel([say("42")])))
    in_turn(watching, "sub", graph_of(inner, checkpointer=InMemorySaver()), Command(resume="yes"))


@situation("breakpoint before tools, then continued", SEARCHED, needs="langgraph.callbacks")
def _(watching: KPCallbackHandler) -> None:
    stopping = agent(*answers(), checkpointer=InMemorySaver(), interrupt_before=["tools"])
    in_turn(watching, "static", stopping, None)


@situation("paused and resumed inside one root run", SEARCHED)
def _(watching: KPCallbackHandler) -> None:
    paused = approving()
    thread: Any = {"configurable": {"thread_id": "inside"}}

    def both(question: str) -> Any:
        paused.invoke({"messages": [("user", question)]}, thread)
        return paused.invoke(decide("approve"), thread)

    RunnableLambda(both).invoke(QUESTION, using(watching))


@situation(
    "an inner graph pauses on its own, the outer agent goes on",
    ["thought", "call consult", "thought", "saw consult", "thought"],
)
def _(watching: KPCallbackHandler) -> None:
    inner = approving()

    def in_its_own_context(question: str) -> None:
        thread: Any = {"configurable": {"thread_id": "inner"}, "callbacks": [watching]}
        inner.invoke({"messages": [("user", question)]}, thread)

    @tool
    def consult(q: str) -> str:
        """Ask an agent that may wait for a human."""
        RunnableLambda(in_its_own_context).invoke(q)
        return "it waits for a human"

    outer = agent(say("Consult.", call("consult", q="x")), say("42"), tools=(consult,))
    outer.invoke(ASK, using(watching))


@situation(
    "a new question in a thread that waits",
    ["thought"],
    needs="langgraph.callbacks",
    runs=2,
    paused=1,
)
def _(watching: KPCallbackHandler) -> None:
    def ask(state: MessagesState) -> Any:
        if len(state["messages"]) == 1:
            interrupt("ok?")
        return {"messages": [model.invoke(state["messages"])]}

    model = ScriptedChatModel([say("42")])
    in_turn(watching, "new question", graph_of(ask, checkpointer=InMemorySaver()), ASK)


@situation("two turns in one thread", SEARCHED, ["thought"])
def _(watching: KPCallbackHandler) -> None:
    talking = agent(*answers(), say("43"), checkpointer=InMemorySaver())
    in_turn(watching, "turns", talking, ASK)


# ------------------------------------------------------------------ limits and other ends


@situation("recursion limit", ["thought", "call search", "saw search", "saw"], success=[False])
def _(watching: KPCallbackHandler) -> None:
    endless = agent(*[say("Again.", call("search", q="a"))] * 5)
    with contextlib.suppress(GraphRecursionError):
        endless.invoke(ASK, using(watching, recursion_limit=2))


@situation("ModelCallLimitMiddleware", ["thought", "call search", "saw search"], success=[False])
def _(watching: KPCallbackHandler) -> None:
    limit = ModelCallLimitMiddleware(run_limit=1, exit_behavior="end")
    agent(*[say("Again.", call("search", q="a"))] * 3, middleware=[limit]).invoke(
        ASK, using(watching)
    )


@situation("stream closed early", runs=1, cancelled=1)
def _(watching: KPCallbackHandler) -> None:
    stream = searching().stream(ASK, using(watching))
    next(stream)
    stream.close()


@situation("stream dropped", runs=1, cancelled=1)
def _(watching: KPCallbackHandler) -> None:
    stream = searching().stream(ASK, using(watching))
    next(stream)
    del stream
    gc.collect()


@situation("astream closed early", runs=1, cancelled=1)
async def _(watching: KPCallbackHandler) -> None:
    stream = searching().astream(ASK, using(watching))
    await anext(stream)
    await stream.aclose()


@situation("LCEL stream closed early", runs=1, cancelled=1)
def _(watching: KPCallbackHandler) -> None:
    stream = _chain(say("one two three four")).stream({"question": "bears"}, using(watching))
    next(stream)
    stream.close()


@situation("model stream closed early", runs=1, cancelled=1)
def _(watching: KPCallbackHandler) -> None:
    stream = ScriptedChatModel([say("one two three four")]).stream(QUESTION, using(watching))
    next(stream)
    stream.close()


_unclosed: list[Any] = []


@situation("stream never closed", runs=1, open=1)
def _(watching: KPCallbackHandler) -> None:
    stream = searching().stream(ASK, using(watching))
    next(stream)
    _unclosed.append(stream)


async def _cancelled(work: Awaitable[Any], begun: asyncio.Event) -> None:
    task = asyncio.ensure_future(work)
    await begun.wait()
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task


@situation("cancelled in an async tool", runs=1, cancelled=1)
async def _(watching: KPCallbackHandler) -> None:
    begun = asyncio.Event()

    @tool
    async def sleepy(x: str) -> str:
        """Wait for ever."""
        begun.set()
        await asyncio.Event().wait()
        return x

    work = agent(say("Wait.", call("sleepy", x="1")), tools=(sleepy,))
    await _cancelled(work.ainvoke(ASK, using(watching)), begun)


@situation("cancelled in the model", runs=1, cancelled=1)
async def _(watching: KPCallbackHandler) -> None:
    begun = asyncio.Event()

    class Sleepy(ScriptedChatModel):
        async def _agenerate(self, *args: Any, **kwargs: Any) -> Any:
            begun.set()
            await asyncio.Event().wait()

    await _cancelled(create_agent(Sleepy(), []).ainvoke(ASK, using(watching)), begun)


@situation("a slow model is given up for another", ["thought"], success=[True])
async def _(watching: KPCallbackHandler) -> None:
    class Sleepy(ScriptedChatModel):
        async def _agenerate(self, *args: Any, **kwargs: Any) -> Any:
            await asyncio.Event().wait()

    async def impatient(state: MessagesState) -> Any:
        try:
            return {"messages": [await asyncio.wait_for(Sleepy().ainvoke("q"), 0.01)]}
        except TimeoutError:
            return {"messages": [await ScriptedChatModel([say("42")]).ainvoke("q")]}

    await graph_of(impatient).ainvoke(ASK, using(watching))


# ------------------------------------------------------------------ handlers in odd places


@situation("the same handler given twice", SEARCHED)
def _(watching: KPCallbackHandler) -> None:
    searching().with_config(callbacks=[watching]).invoke(ASK, {"callbacks": [watching, watching]})


@situation("a handler on the model only", ["thought"], ["thought"])
def _(watching: KPCallbackHandler) -> None:
    create_agent(ScriptedChatModel(answers(), callbacks=[watching]), [search]).invoke(ASK)


@situation("an outcome dispatched by the agent", SEARCHED, success=[False])
def _(watching: KPCallbackHandler) -> None:
    def work(question: str) -> Any:
        answer = searching().invoke({"messages": [("user", question)]})
        dispatch_custom_event("kp.outcome", {"success": False, "confidence": 0.9})
        return answer

    RunnableLambda(work).invoke(QUESTION, using(watching))


@situation("an outcome dispatched by an async agent", SEARCHED, success=[False])
async def _(watching: KPCallbackHandler) -> None:
    async def work(question: str) -> Any:
        answer = await searching().ainvoke({"messages": [("user", question)]})
        await adispatch_custom_event("kp.outcome", {"success": False})
        return answer

    await RunnableLambda(work).ainvoke(QUESTION, using(watching))


class _Form(BaseModel):
    value: int
    confidence: float


@situation("structured output", ["thought"], success=[True])
def _(watching: KPCallbackHandler) -> None:
    agent(say("", call("_Form", value=42, confidence=0.9)), response_format=_Form).invoke(
        ASK, using(watching)
    )


# ------------------------------------------------------------------ what came of it


@dataclass(frozen=True)
class Result:
    scored: list[ScoredTrace]
    stats: dict[str, int]


def play(one: Situation) -> Result:
    """Run a situation with a fresh handler and wait for what it gives."""
    scored: list[ScoredTrace] = []
    watching = handler(on_scored=scored.append)
    done = one.go(watching)
    if asyncio.iscoroutine(done):
        asyncio.run(done)
    assert watching.flush(60)
    stats = watching.stats()
    _unclosed.clear()
    return Result(scored, stats)


def as_expected(steps: list[str], expected: list[str]) -> list[str]:
    """Steps with what ran side by side sorted, where that is what is expected."""
    parallel = expected[:1] + sorted(expected[1:-1]) + expected[-1:] == expected
    return steps[:1] + sorted(steps[1:-1]) + steps[-1:] if parallel and len(steps) > 4 else steps
