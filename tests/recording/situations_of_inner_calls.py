"""Calls that are not the agent's own: of LangChain's middleware, and those a tool is made of."""

from __future__ import annotations

import contextlib
import json
from typing import Any

from langchain.agents import create_agent
from langchain.agents.middleware import (
    LLMToolEmulator,
    LLMToolSelectorMiddleware,
    SummarizationMiddleware,
    ToolRetryMiddleware,
)
from langchain_core.callbacks import CallbackManagerForRetrieverRun
from langchain_core.documents import Document
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.retrievers import BaseRetriever
from langchain_core.runnables import RunnableLambda
from langchain_core.tools import create_retriever_tool, tool
from langgraph.graph import MessagesState

from kp_langchain import KPCallbackHandler
from tests.agents import ASK, QUESTION, ScriptedChatModel, add, agent, call, say, search
from tests.recording.situations import SEARCHED, answers, graph_of, situation, using

_MARKS = "langchain.agents.middleware.internal_call_transformer"  # older releases mark none
_OLD = {"messages": [("user", "old"), ("ai", "older"), ("user", "old 2"), ("ai", "old 2")]}
_LONG = {"messages": [*_OLD["messages"], ("user", QUESTION)]}


class _Chooser(ScriptedChatModel):
    """Answers in a structure."""

    def with_structured_output(self, _schema: Any, **_options: Any) -> Any:
        return self | RunnableLambda(lambda message: json.loads(message.text))


def _selecting(*answers: Any) -> Any:
    return LLMToolSelectorMiddleware(model=_Chooser(answers), max_tools=1)


def _summarising(*answers: Any) -> Any:
    return SummarizationMiddleware(
        ScriptedChatModel(answers), trigger=("messages", 5), keep=("messages", 4)
    )


def _with_inner_calls() -> Any:
    pick = say('{"tools": ["search"]}')
    middleware = [_selecting(pick, pick), _summarising(*[say("SUMMARY")] * 4)]
    return agent(*answers(), tools=(search, add), middleware=middleware)


@situation("tools are selected and messages summarised", SEARCHED, success=[True], needs=_MARKS)
def _(watching: KPCallbackHandler) -> None:
    _with_inner_calls().invoke(_LONG, using(watching))


@situation("the same, ainvoke", SEARCHED, success=[True], needs=_MARKS)
async def _(watching: KPCallbackHandler) -> None:
    await _with_inner_calls().ainvoke(_LONG, using(watching))


@situation("the same, stream of messages", SEARCHED, success=[True], needs=_MARKS)
def _(watching: KPCallbackHandler) -> None:
    list(_with_inner_calls().stream(_LONG, using(watching), stream_mode="messages"))


@situation("tools are emulated", SEARCHED, success=[True], needs=_MARKS)
def _(watching: KPCallbackHandler) -> None:
    emulator = LLMToolEmulator(model=ScriptedChatModel([say("invented")]))
    agent(*answers(), tools=(search,), middleware=[emulator]).invoke(ASK, using(watching))


@situation("a chain with a model of its own summarises", ["thought"], success=[True], needs=_MARKS)
def _(watching: KPCallbackHandler) -> None:
    prompt = ChatPromptTemplate.from_messages([("user", "Summarise."), ("placeholder", "{all}")])
    chain = (lambda messages: {"all": messages}) | prompt | ScriptedChatModel([say("SUMMARY")])
    summarising: Any = _summarising()
    summarising.summarizer = chain | StrOutputParser()
    agent(say("42"), middleware=[summarising]).invoke(_LONG, using(watching))


@situation("selecting tools fails for good", ["saw"], success=[False], needs=_MARKS)
def _(watching: KPCallbackHandler) -> None:
    with contextlib.suppress(ConnectionError):
        agent(
            say("42"), tools=(search, add), middleware=[_selecting(ConnectionError("down"))]
        ).invoke(ASK, using(watching))


@situation("a marked model fails and the node goes on", ["recovered", "thought"], success=[True])
def _(watching: KPCallbackHandler) -> None:
    def node(state: MessagesState) -> Any:
        with contextlib.suppress(ConnectionError):
            ScriptedChatModel([ConnectionError("down")]).invoke("q", _MARKED)
        return {"messages": [ScriptedChatModel([say("42")]).invoke(state["messages"])]}

    graph_of(node).invoke(ASK, using(watching))


_MARKED: Any = {"metadata": {"lc_source": "summarization"}}


@situation("a marked model answers last", ["thought"], success=[True])
def _(watching: KPCallbackHandler) -> None:
    def node(state: MessagesState) -> Any:
        answer = ScriptedChatModel([say("42")]).invoke(state["messages"])
        ScriptedChatModel([say("", call("search", q="a"))]).invoke("q", _MARKED)
        return {"messages": [answer]}

    graph_of(node).invoke(ASK, using(watching))


@situation("a marked agent uses a tool", ["thought"], success=[True])
def _(watching: KPCallbackHandler) -> None:
    inner = agent(say("I search.", call("search", q="a")), say("SUMMARY"))

    def node(state: MessagesState) -> Any:
        inner.invoke({"messages": [("user", "summarise")]}, _MARKED)
        return {"messages": [ScriptedChatModel([say("42")]).invoke(state["messages"])]}

    graph_of(node).invoke(ASK, using(watching))


@situation("a model is marked by its user", ["thought"], success=[True])
def _(watching: KPCallbackHandler) -> None:
    def node(state: MessagesState) -> Any:
        marked: Any = {"metadata": {"lc_source": "my_tool"}}
        return {"messages": [ScriptedChatModel([say("42")]).invoke(state["messages"], marked)]}

    graph_of(node).invoke(ASK, using(watching))


for _mark in ("lc_source", "lc_internal_call"):

    @situation(f"a whole run is marked by {_mark}", SEARCHED, success=[True])
    def _(watching: KPCallbackHandler, mark: str = _mark) -> None:
        agent(*answers()).invoke(ASK, using(watching, metadata={mark: "summarization"}))


# ------------------------------------------------------------------ tools made of one call


class _Shelf(BaseRetriever):
    failure: Exception | None = None

    def _get_relevant_documents(
        self, query: str, *, run_manager: CallbackManagerForRetrieverRun
    ) -> list[Document]:
        if self.failure is not None:
            raise self.failure
        return [Document(f"about {query}")]


class _Shelves(_Shelf):
    """Asks two shelves."""

    def _get_relevant_documents(
        self, query: str, *, run_manager: CallbackManagerForRetrieverRun
    ) -> list[Document]:
        config: Any = {"callbacks": run_manager.get_child()}
        return [one for _ in range(2) for one in _Shelf().invoke(query, config)]


_LOOKED_UP = ["thought", "call docs", "saw docs", "thought"]


def _looking_up(made: Any, **options: Any) -> Any:
    asked = call("docs", **{next(iter(made.args)): "a"})
    return agent(say("I look.", asked), say("42"), tools=(made,), **options)


@situation("a retriever as a tool", _LOOKED_UP, success=[True])
def _(watching: KPCallbackHandler) -> None:
    _looking_up(create_retriever_tool(_Shelf(), "docs", "Docs.")).invoke(ASK, using(watching))


@situation("a retriever as a tool, ainvoke", _LOOKED_UP, success=[True])
async def _(watching: KPCallbackHandler) -> None:
    made = create_retriever_tool(_Shelf(), "docs", "Docs.")
    await _looking_up(made).ainvoke(ASK, using(watching))


@situation("a retriever that asks others, as a tool", _LOOKED_UP, success=[True])
def _(watching: KPCallbackHandler) -> None:
    _looking_up(create_retriever_tool(_Shelves(), "docs", "Docs.")).invoke(ASK, using(watching))


@situation(
    "a retriever that asks others, in a chain", ["call shelves", "saw shelves", "thought"],
    framework="langchain", success=[True],
)  # fmt: skip
def _(watching: KPCallbackHandler) -> None:
    chain = _Shelves(name="shelves") | (lambda docs: docs[0].page_content)
    (chain | ScriptedChatModel([say("42")])).invoke(QUESTION, using(watching))


@situation("a chain around a retriever as a tool", _LOOKED_UP, success=[True])
def _(watching: KPCallbackHandler) -> None:
    chain = _Shelf() | RunnableLambda(lambda docs: docs[0].page_content)
    _looking_up(chain.as_tool(name="docs", description="Docs.", arg_types={"q": str})).invoke(
        ASK, using(watching)
    )


@situation("a tool looks up and returns what a model says of it", _LOOKED_UP, success=[True])
def _(watching: KPCallbackHandler) -> None:
    model = ScriptedChatModel([say("inner")])

    @tool
    def docs(q: str) -> str:
        """Docs."""
        return str(model.invoke(str(_Shelf().invoke(q))).text)

    _looking_up(docs).invoke(ASK, using(watching))


@situation("a tool asks a model for a word that its result happens to hold", ["thought",
           "call docs", "thought", "saw docs", "thought"], success=[True])  # fmt: skip
def _(watching: KPCallbackHandler) -> None:
    model = ScriptedChatModel([say("yes")])

    @tool
    def docs(q: str) -> str:
        """Docs."""
        return "a bayesian check" if model.invoke(q).text == "yes" else "no"

    _looking_up(docs).invoke(ASK, using(watching))


@situation("a tool asks two shelves and a model", ["thought", "call docs", "thought", "saw docs",
                                                  "thought"], success=[True])  # fmt: skip
def _(watching: KPCallbackHandler) -> None:
    model = ScriptedChatModel([say("inner")])

    @tool
    def docs(q: str) -> str:
        """Docs."""
        found = _Shelf().invoke(q) + _Shelf().invoke(q)
        return f"{len(found)}: {model.invoke(q).text}"

    _looking_up(docs).invoke(ASK, using(watching))


@situation("a retriever as a tool fails", ["thought", "call docs", "recovered docs", "thought"],
           success=[False])  # fmt: skip
def _(watching: KPCallbackHandler) -> None:
    made = create_retriever_tool(_Shelf(failure=OSError("shut")), "docs", "Docs.")
    retried = ToolRetryMiddleware(max_retries=0, on_failure="continue")
    _looking_up(made, middleware=[retried]).invoke(ASK, using(watching))


@situation("a tool looks elsewhere if its shelf is shut", _LOOKED_UP, success=[True])
def _(watching: KPCallbackHandler) -> None:
    shelf = _Shelf(failure=OSError("shut")).with_fallbacks([_Shelf()])
    made = shelf.as_tool(name="docs", description="Docs.", arg_types={"q": str})
    _looking_up(made).invoke(ASK, using(watching))


@situation("a tool looks up in a graph of its own", ["thought", "call docs", "call shelf",
                                                    "saw shelf", "saw docs", "thought"],
           success=[True])  # fmt: skip
def _(watching: KPCallbackHandler) -> None:
    def node(state: MessagesState) -> Any:
        found = _Shelf(name="shelf").invoke(state["messages"][-1].text)
        return {"messages": [("ai", found[0].page_content)]}

    graph = graph_of(node)

    @tool
    def docs(q: str) -> str:
        """Docs."""
        return str(graph.invoke({"messages": [("user", q)]})["messages"][-1].text)

    _looking_up(docs).invoke(ASK, using(watching))


@situation("a model as a tool", _LOOKED_UP, success=[True])
def _(watching: KPCallbackHandler) -> None:
    chain = ChatPromptTemplate.from_template("{q}") | ScriptedChatModel([say("it's\ntwo lines")])
    _looking_up(chain.as_tool(name="docs", description="Docs.")).invoke(ASK, using(watching))


@situation("a tool returns what a model says", _LOOKED_UP, success=[True])
async def _(watching: KPCallbackHandler) -> None:
    model = ScriptedChatModel([say("inner")])

    @tool
    async def docs(q: str) -> str:
        """Docs."""
        return str((await model.ainvoke(q)).text)

    await _looking_up(docs).ainvoke(ASK, using(watching))


@situation("a model as a tool fails", ["thought", "call docs", "saw docs"], success=[False])
def _(watching: KPCallbackHandler) -> None:
    chain = ChatPromptTemplate.from_template("{q}") | ScriptedChatModel([OSError("down")])
    with contextlib.suppress(OSError):
        _looking_up(chain.as_tool(name="docs", description="Docs.")).invoke(ASK, using(watching))


@situation("a tool asks a model twice", ["thought", "call docs", "thought", "thought", "saw docs",
                                         "thought"], success=[True])  # fmt: skip
def _(watching: KPCallbackHandler) -> None:
    model = ScriptedChatModel([say("draft"), say("better")])

    @tool
    def docs(q: str) -> str:
        """Docs."""
        return str(model.invoke(model.invoke(q).text).text)

    _looking_up(docs).invoke(ASK, using(watching))


@situation("an agent as a tool", ["thought", "call docs", "thought", "saw docs", "thought"],
           success=[True])  # fmt: skip
def _(watching: KPCallbackHandler) -> None:
    inner = create_agent(ScriptedChatModel([say("inner")]), [])

    @tool
    def docs(q: str) -> str:
        """Docs."""
        return str(inner.invoke({"messages": [("user", q)]})["messages"][-1].text)

    _looking_up(docs).invoke(ASK, using(watching))
