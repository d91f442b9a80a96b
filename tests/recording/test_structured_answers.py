"""Answers in a structure: by a tool call that nobody makes, parsed, with or without the raw one."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Annotated, Any, TypedDict

import pytest
from langchain.agents import create_agent
from langchain.agents.middleware import HumanInTheLoopMiddleware
from langchain_core.messages import AIMessage
from langchain_core.runnables import Runnable, RunnableLambda
from langchain_core.tools import tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode, tools_condition
from langgraph.types import Command, interrupt
from pydantic import BaseModel

from kp_langchain import ScoredTrace, TraceStore, trace_from_messages
from tests.agents import (
    ASK,
    QUESTION,
    ScriptedChatModel,
    add,
    call,
    handler,
    run,
    say,
    search,
    shape,
)


class Route(BaseModel):
    """Where to go."""

    step: str
    sure: bool = True


class RouteDict(TypedDict):
    """Where to go."""

    step: Annotated[str, ..., "the step"]


TO_POEM = call("Route", step="poem")


def routing(router: Runnable[Any, Any], writer: Runnable[Any, Any], **options: Any) -> Any:
    """A graph whose router decides by calling a function, and whose writer may search."""
    graph = StateGraph(MessagesState)
    graph.add_node("route", lambda state: (router.invoke(state["messages"]), {})[1])
    graph.add_node("poem", lambda state: {"messages": [writer.invoke(state["messages"])]})
    graph.add_node("tools", ToolNode([search]))
    graph.add_edge(START, "route")
    graph.add_edge("route", "poem")
    graph.add_conditional_edges("poem", tools_condition)
    graph.add_edge("tools", "poem")
    return graph.compile(**options)


def structured(*answers: Any) -> Any:
    return ScriptedChatModel(answers or [say("", TO_POEM)]).with_structured_output(Route)


def thoughts(scored: ScoredTrace) -> list[str | None]:
    return [step.content for step in scored.trace.steps if step.type == "thought"]


# ------------------------------------------------------------------ decisions


def test_a_router_s_decision_is_a_thought() -> None:
    scored = run(routing(structured(), ScriptedChatModel([say("a poem")])))
    assert thoughts(scored) == ['{"step": "poem"}', "a poem"]
    assert scored.trace.outcome.result_summary == "a poem"
    assert scored.trace.metadata.success


async def _streamed(graph: Any, watching: Any) -> None:
    _ = [part async for part in graph.astream(ASK, {"callbacks": [watching]})]


def test_so_it_is_in_an_async_stream() -> None:
    watching = handler()
    asyncio.run(_streamed(routing(structured(), ScriptedChatModel([say("a poem")])), watching))
    scored = watching.last(60)
    assert scored is not None
    assert thoughts(scored) == ['{"step": "poem"}', "a poem"]


def test_a_grader_after_the_answer_decides_and_the_answer_stays() -> None:
    grader, writer = structured(), ScriptedChatModel([say("a poem")])
    graph = StateGraph(MessagesState)
    graph.add_node("poem", lambda state: {"messages": [writer.invoke(state["messages"])]})
    graph.add_node("grade", lambda state: Command(goto=END) if grader.invoke("it") else None)
    graph.add_edge(START, "poem")
    graph.add_edge("poem", "grade")
    scored = run(graph.compile())
    assert thoughts(scored) == ["a poem", '{"step": "poem"}']
    assert scored.trace.outcome.result_summary == "a poem"


def test_what_it_says_beside_stays() -> None:
    scored = run(
        routing(structured(say("A poem, I think.", TO_POEM)), ScriptedChatModel([say("x")]))
    )
    assert thoughts(scored)[0] == 'A poem, I think.\n\n{"step": "poem"}'


@pytest.mark.parametrize(
    ("asked", "thought"),
    [
        ([call("Approve", why="good")], '{"Approve": {"why": "good"}}'),
        ([call("Approve")], '{"Approve": {}}'),
        (
            [call("Approve", why="good"), call("Reject", why="long")],
            '{"Approve": {"why": "good"}}\n\n{"Reject": {"why": "long"}}',
        ),
    ],
)
def test_of_several_functions_the_name_says_which(asked: list[Any], thought: str) -> None:
    deciding = ScriptedChatModel([say("", *asked)]).bind_tools([search, add])
    scored = run(routing(deciding, ScriptedChatModel([say("a poem")])))
    assert thoughts(scored) == [thought, "a poem"]


def test_a_function_without_arguments_is_named() -> None:
    deciding = ScriptedChatModel([say("", call("to_poem"))]).bind_tools([search])
    scored = run(routing(deciding, ScriptedChatModel([say("a poem")])))
    assert thoughts(scored)[0] == '{"to_poem": {}}'


def test_a_call_that_is_made_is_no_thought() -> None:
    writer = ScriptedChatModel([say("", call("search", q="a")), say("a poem")])
    scored = run(routing(structured(), writer))
    assert shape(scored.trace) == ["thought", "call search", "saw search", "thought"]
    assert thoughts(scored) == ['{"step": "poem"}', "a poem"]


def test_the_decision_of_a_run_that_fails_later_stays() -> None:
    watching = handler()
    with pytest.raises(OSError, match="down"):
        routing(structured(), ScriptedChatModel([OSError("down")])).invoke(
            ASK, {"callbacks": [watching]}
        )
    scored = watching.last(60)
    assert scored is not None
    assert shape(scored.trace) == ["thought", "saw"]
    assert thoughts(scored) == ['{"step": "poem"}']


def test_an_answer_that_was_cut_off_decides_nothing() -> None:
    cut_off = AIMessage("", tool_calls=[TO_POEM], response_metadata={"finish_reason": "length"})
    deciding = ScriptedChatModel([cut_off]).bind_tools([search])
    scored = run(routing(deciding, ScriptedChatModel([say("a poem")])))
    assert thoughts(scored) == ["a poem"]


def test_the_structured_answer_of_a_sub_agent_is_a_thought() -> None:
    inner = create_agent(
        ScriptedChatModel([say("", call("search", q="a")), say("", TO_POEM)]),
        [search],
        response_format=Route,
    )

    @tool
    def ask(q: str) -> str:
        """Delegate."""
        return str(inner.invoke({"messages": [("user", q)]})["structured_response"].step)

    outer = ScriptedChatModel([say("", call("ask", q="x")), say("42")])
    scored = run(create_agent(outer, [ask]))
    assert shape(scored.trace) == [
        "call ask", "call search", "saw search", "thought", "saw ask", "thought",
    ]  # fmt: skip
    assert thoughts(scored) == ['{"step": "poem"}', "42"]


@pytest.mark.parametrize("elsewhere", [False, True], ids=["in this process", "from the store"])
def test_a_decision_before_a_pause_is_recorded_when_the_run_ends(
    tmp_path: Path, elsewhere: bool
) -> None:
    writer = ScriptedChatModel([say("I search.", call("search", q="a")), say("a poem")])
    graph = routing(structured(), writer, checkpointer=InMemorySaver(), interrupt_before=["tools"])
    pytest.importorskip("langgraph.callbacks", reason="older releases tell of no breakpoint")
    with TraceStore(tmp_path / "runs.db") as store:
        first = handler(store=store)
        config: Any = {"configurable": {"thread_id": "t"}}
        graph.invoke(ASK, {**config, "callbacks": [first]})
        assert first.flush(60)
        if elsewhere:
            from kp_langchain.recording import paused_in_memory

            paused_in_memory.take("t", first._recorder.owner)
        second = handler(store=store)
        graph.invoke(None, {**config, "callbacks": [second]})
        scored = second.last(60)
        assert scored is not None
    assert thoughts(scored) == ['{"step": "poem"}', "I search.", "a poem"]
    assert shape(scored.trace) == ["thought", "thought", "call search", "saw search", "thought"]


def test_a_decision_in_a_sub_graph_that_pauses_after_it() -> None:
    def approve(_state: Any) -> Any:
        interrupt("may I?")
        return {}

    router, writer = structured(), ScriptedChatModel([say("a poem")])
    inner = StateGraph(MessagesState)
    inner.add_node("route", lambda state: (router.invoke(state["messages"]), {})[1])
    inner.add_node("approve", approve)
    inner.add_edge(START, "route")
    inner.add_edge("route", "approve")
    outer = StateGraph(MessagesState)
    outer.add_node("inner", inner.compile())
    outer.add_node("poem", lambda state: {"messages": [writer.invoke(state["messages"])]})
    outer.add_edge(START, "inner")
    outer.add_edge("inner", "poem")
    graph, watching = outer.compile(checkpointer=InMemorySaver()), handler()
    config: Any = {"callbacks": [watching], "configurable": {"thread_id": "inner"}}
    graph.invoke(ASK, config)
    graph.invoke(Command(resume="yes"), config)
    scored = watching.last(60)
    assert scored is not None
    assert thoughts(scored) == ['{"step": "poem"}', "a poem"]


def test_a_call_that_waits_for_an_approval_decides_nothing() -> None:
    gate = HumanInTheLoopMiddleware(interrupt_on={"search": True})
    model = ScriptedChatModel([say("I search.", call("search", q="a"))])
    inner = create_agent(model, [search], middleware=[gate], checkpointer=InMemorySaver())

    @tool
    def consult(q: str) -> str:
        """Ask an agent that may wait for a human."""
        inner.invoke({"messages": [("user", q)]}, {"configurable": {"thread_id": "waits"}})
        return "it waits"

    outer = ScriptedChatModel([say("", call("consult", q="x")), say("42")])
    scored = run(create_agent(outer, [consult]))
    assert thoughts(scored)[-1] == "42"
    assert "I search." in thoughts(scored)


def test_the_answer_of_a_model_alone_may_be_a_structure() -> None:
    scored = run(ScriptedChatModel([say("", TO_POEM)]).bind_tools([search]), QUESTION)
    assert thoughts(scored) == ['{"step": "poem"}']
    assert scored.trace.outcome.result_summary == '{"step": "poem"}'
    assert scored.trace.metadata.success


def test_messages_show_decisions_as_a_run_does() -> None:
    trace = trace_from_messages(
        [("user", QUESTION), AIMessage("", tool_calls=[TO_POEM]), ("ai", "a poem")]
    )
    assert [step.content for step in trace.steps] == ['{"step": "poem"}', "a poem"]


# ------------------------------------------------------------------ raw and parsed


def raw(answer: AIMessage, schema: Any = Route) -> Any:
    return ScriptedChatModel([answer]).with_structured_output(schema, include_raw=True)


class RawState(TypedDict):
    q: str
    raw: Any
    parsed: Any
    parsing_error: Any


def test_what_a_node_parsed_is_the_result_of_a_state_that_holds_it() -> None:
    builder = StateGraph(RawState)
    model = raw(say("", TO_POEM))
    builder.add_node("node", lambda state: model.invoke(state["q"]))
    builder.add_edge(START, "node")
    scored = run(builder.compile(), {"q": QUESTION})
    assert json.loads(scored.trace.outcome.result_summary) == {"step": "poem", "sure": True}
    assert scored.trace.metadata.success


def _invoked(runnable: Any, config: Any) -> None:
    runnable.invoke(QUESTION, config)


def _async(runnable: Any, config: Any) -> None:
    asyncio.run(runnable.ainvoke(QUESTION, config))


def _stream(runnable: Any, config: Any) -> None:
    list(runnable.stream(QUESTION, config))


@pytest.mark.parametrize("go", [_invoked, _async, _stream])
@pytest.mark.parametrize("schema", [Route, RouteDict], ids=["model", "TypedDict"])
def test_what_was_parsed_is_the_result(go: Any, schema: Any) -> None:
    watching = handler()
    go(raw(say("", call(schema.__name__, step="poem")), schema), {"callbacks": [watching]})
    scored = watching.last(60)
    assert scored is not None
    assert json.loads(scored.trace.outcome.result_summary)["step"] == "poem"
    assert scored.trace.metadata.success
    assert thoughts(scored) == ['{"step": "poem"}']


@pytest.mark.parametrize("go", [_invoked, _async])
def test_an_answer_that_cannot_be_parsed_is_a_failure_that_says_why(go: Any) -> None:
    watching = handler()
    go(raw(say("", call("Route", sure=True))), {"callbacks": [watching]})
    scored = watching.last(60)
    assert scored is not None
    assert not scored.trace.metadata.success
    assert scored.trace.outcome.result_summary.startswith("ValidationError: 1 validation error")
    assert shape(scored.trace) == ["call Route", "saw"]


def test_a_parsing_error_is_recovered_from_where_the_run_goes_on() -> None:
    falling_back = raw(say("", call("Route", sure=True))) | (lambda answer: answer["parsed"] or "?")
    scored = run(falling_back, QUESTION)
    assert shape(scored.trace) == ["call Route", "recovered"]
    assert scored.trace.outcome.result_summary == "?"
    assert scored.trace.metadata.success


def test_in_a_graph_the_parsed_answer_is_a_decision() -> None:
    scored = run(routing(raw(say("", TO_POEM)), ScriptedChatModel([say("a poem")])))
    assert thoughts(scored) == ['{"step": "poem"}', "a poem"]


@pytest.mark.parametrize(
    ("parsed", "result"),
    [
        (Route(step="poem"), '{"step": "poem", "sure": true}'),
        ({"step": "poem"}, '{"step": "poem"}'),
        ([1, 2], "[1, 2]"),
        (False, "false"),
        (0, "0"),
    ],
)
def test_whatever_was_parsed_is_the_result(parsed: object, result: str) -> None:
    def answer(question: str) -> Any:
        message = ScriptedChatModel([say("It is so.")]).invoke(question)
        return {"raw": message, "parsed": parsed, "parsing_error": None}

    scored = run(RunnableLambda(answer), QUESTION)
    assert scored.trace.outcome.result_summary == result
    assert scored.trace.metadata.success


def test_a_raw_answer_with_nothing_to_parse_is_no_result() -> None:
    scored = run(raw(say("I cannot say.")), QUESTION)
    assert scored.trace.outcome.result_summary == ""
    assert not scored.trace.metadata.success
