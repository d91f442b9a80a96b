"""Tool calls that no tool does: name, input and answer are recorded all the same."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from langchain.agents.middleware import HumanInTheLoopMiddleware
from langchain.agents.structured_output import ToolStrategy
from langchain_core.messages import AIMessage, ToolMessage
from langchain_core.runnables import RunnableLambda
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.types import Command, interrupt
from pydantic import BaseModel

from kp_langchain import KPCallbackHandler, ScoredTrace, TraceStore, trace_from_messages
from kp_langchain.recording.calls import Call
from kp_langchain.recording.requested_calls import RequestedCall, RequestedCalls
from tests.agents import (
    ASK,
    ScriptedChatModel,
    agent,
    call,
    handler,
    run,
    say,
    search,
    shape,
)


class Form(BaseModel):
    score: int


def steps(scored: ScoredTrace) -> list[tuple[str, str | None, Any]]:
    return [
        (step.type, step.tool and step.tool.name, step.input or step.content)
        for step in scored.trace.steps
    ]


def decided(decision: dict[str, Any], store: Path | None = None) -> ScoredTrace:
    asking = agent(
        say("I search.", call("search", q="a")),
        say("42"),
        checkpointer=InMemorySaver(),
        middleware=[HumanInTheLoopMiddleware(interrupt_on={"search": True})],
    )
    watching = handler(store=store)
    config: Any = {"callbacks": [watching], "configurable": {"thread_id": str(uuid4())}}
    asking.invoke(ASK, config)
    asking.invoke(Command(resume={"decisions": [decision]}), config)
    scored = watching.last(60)
    assert scored is not None
    return scored


def test_an_unknown_tool_is_recorded_with_its_input() -> None:
    scored = run(agent(say("Go.", call("nope", x=1)), say("42")))
    assert steps(scored)[1] == ("tool_call", "nope", {"x": 1})
    assert steps(scored)[2][:2] == ("error_recovery", "nope")


def test_a_refused_structured_answer_is_recorded_with_what_was_wrong() -> None:
    answers = say("", call("Form", score="none")), say("", call("Form", score=3))
    scored = run(agent(*answers, response_format=ToolStrategy(Form)))
    (_, _, asked), (_, _, refusal), (_, _, answer) = steps(scored)
    assert asked == {"score": "none"}
    assert "valid integer" in refusal
    assert answer == '{"score": 3}'


def test_arguments_that_cannot_be_parsed_are_recorded_as_they_came() -> None:
    wrong = {"name": "search", "args": '{"q": ', "id": "i", "error": "no end", "type": "x"}
    scored = run(agent(AIMessage("I search.", invalid_tool_calls=[wrong])))
    assert steps(scored)[1:] == [
        ("tool_call", "search", {"input": '{"q": '}),
        ("observation", "search", "no end"),
    ]
    assert not scored.trace.metadata.success


@pytest.mark.parametrize("store", [None, Path("runs.db")], ids=["no store", "store"])
def test_a_rejection_is_recorded_with_what_was_rejected_and_scores_no_more_than_an_approval(
    store: Path | None,
) -> None:
    rejected = decided({"type": "reject", "message": "too dear"}, store)
    assert steps(rejected)[1] == ("tool_call", "search", {"q": "a"})
    assert steps(rejected)[2][:2] == ("observation", "search")
    assert "too dear" in steps(rejected)[2][2]
    approved = decided({"type": "approve"}, store)
    assert rejected.breakdown.total <= approved.breakdown.total
    assert rejected.breakdown.complexity.value == approved.breakdown.complexity.value


def test_a_graph_that_raises_in_its_first_node_is_stored_as_a_failed_run(tmp_path: Path) -> None:
    store = TraceStore(tmp_path / "runs.db")
    watching = handler(store=store)

    def fail(_: object) -> None:
        raise ValueError("no such customer")

    with pytest.raises(ValueError, match="no such"):
        RunnableLambda(fail).invoke({"question": "who?"}, {"callbacks": [watching]})
    assert watching.flush(60)
    assert watching.stats()["empty"] == 0
    (stored,) = store.runs()
    assert not stored.success
    trace = stored.trace
    assert trace is not None
    assert trace.task.objective == "who?"
    assert [step.content for step in trace.steps] == ["ValueError: no such customer"]


def test_a_conversation_that_ends_on_an_action_has_not_failed() -> None:
    asked = {"name": "buy", "args": {"item": "b"}, "id": "1"}
    messages = [("user", "buy b"), AIMessage("", tool_calls=[asked])]
    trace = trace_from_messages([*messages, ToolMessage("", tool_call_id="1")])
    assert shape(trace) == ["call buy", "saw buy"]
    assert trace.metadata.success
    unanswered = trace_from_messages(messages)
    assert shape(unanswered) == ["call buy"]
    assert unanswered.metadata.success
    failed = trace_from_messages(
        [*messages, ToolMessage("sold out", tool_call_id="1", status="error")]
    )
    assert shape(failed) == ["call buy", "saw buy"]
    assert not failed.metadata.success


def test_a_call_that_somebody_could_parse_is_recorded_once() -> None:
    wrong = {"name": "buy", "args": "item b", "id": "1", "error": None, "type": "x"}
    trace = trace_from_messages(
        [
            ("user", "buy b"),
            AIMessage("", invalid_tool_calls=[wrong]),
            ToolMessage("bought", tool_call_id="1"),
            ("ai", "done"),
        ]
    )
    assert shape(trace) == ["call buy", "saw buy", "thought"]


def test_a_call_answered_between_two_pauses_is_recorded_once(tmp_path: Path) -> None:
    """An agent inside a graph returns all its messages, answers from before a pause included."""
    inner = agent(
        say("I search.", call("search", "c1", q="a")),
        say("And again.", call("search", "c2", q="b")),
        say("42"),
        middleware=[HumanInTheLoopMiddleware(interrupt_on={"search": True})],
    )
    outer = StateGraph(MessagesState)
    outer.add_node("inner", inner)
    outer.add_edge(START, "inner")
    graph = outer.compile(checkpointer=InMemorySaver())
    scored: list[ScoredTrace] = []
    with TraceStore(tmp_path / "runs.db") as store:
        watching = handler(store=store, on_scored=scored.append)
        config: Any = {"callbacks": [watching], "configurable": {"thread_id": "t"}}
        approve: Any = Command(resume={"decisions": [{"type": "approve"}]})
        for inputs in (ASK, approve, approve):
            graph.invoke(inputs, config)
            assert watching.flush(120)  # what it recorded is in the store before it is resumed
    step = ["thought", "call search", "saw search"]
    assert [shape(one.trace) for one in scored] == [[*step, *step, "thought"]]


def test_exceptions_that_are_raised_again_or_wrapped_are_recorded_once() -> None:
    watching, root, node, inner = handler(), uuid4(), uuid4(), uuid4()
    first = ValueError("first")
    second = RuntimeError("second")
    second.__cause__ = first
    watching.on_chain_start(None, {"input": "q"}, run_id=root)
    watching.on_chain_start(None, {}, run_id=node, parent_run_id=root, name="node")
    watching.on_chain_start(None, {}, run_id=inner, parent_run_id=node, name="inner")
    watching.on_chain_error(first, run_id=inner)
    watching.on_chain_error(first, run_id=node)
    watching.on_chain_error(second, run_id=root)
    scored = watching.last(60)
    assert scored is not None
    assert [step.content for step in scored.trace.steps] == ["ValueError: first"]
    assert scored.trace.outcome.result_summary == "RuntimeError: second"


STRANGE: list[Any] = [
    None, math.nan, b"\xff", "\ud800", "x" * 1_000_000, 10**6000, [], {"a": float("inf")},
]  # fmt: skip


@pytest.mark.parametrize("value", STRANGE, ids=lambda value: type(value).__name__)
def test_calls_of_any_form_harm_nobody(value: Any) -> None:
    """What providers and users hand over is not always what LangChain's types say."""
    watching: KPCallbackHandler = handler()
    message = AIMessage("I work.")
    request = {"name": value, "args": value, "id": value, "error": value}
    object.__setattr__(message, "tool_calls", [request, value, {"id": "1", "args": value}])
    object.__setattr__(message, "invalid_tool_calls", [request, value])
    root, model, node = uuid4(), uuid4(), uuid4()
    watching.on_chain_start(None, {"input": "q"}, run_id=root)
    watching.on_chat_model_start(None, [[]], run_id=model, parent_run_id=root)
    generation = type("Generation", (), {"message": message, "text": ""})()
    watching.on_llm_end(type("R", (), {"generations": [[generation]]})(), run_id=model)
    watching.on_chain_start(None, {}, run_id=node, parent_run_id=root, name="tools")
    watching.on_chain_end({"messages": [ToolMessage("seen", tool_call_id="1")]}, run_id=node)
    watching.on_chain_end({"messages": [message]}, run_id=root)
    scored = watching.last(60)
    assert scored is not None
    assert watching.stats()["callback_errors"] == 0
    assert scored.trace.steps[-1].content == "seen"


@pytest.mark.parametrize("knows_id", [True, False])
@pytest.mark.parametrize("store", [None, Path("runs.db")], ids=["no store", "store"])
def test_a_call_that_a_node_answers_after_two_pauses_is_recorded_once(
    store: Path | None, knows_id: bool
) -> None:
    def ask(_: MessagesState) -> None:
        interrupt("go on?")

    def answer(_: MessagesState) -> Any:
        found = "found" if knows_id else search.invoke({"q": "a"})
        return {"messages": [ToolMessage(found, tool_call_id="c1")]}

    model = ScriptedChatModel([say("I search.", call("search", "c1", q="a")), say("42")])

    def think(state: MessagesState) -> Any:
        return {"messages": [model.invoke(state["messages"])]}

    graph = StateGraph(MessagesState)
    graph.add_sequence([("think", think), ("ask", ask), ("again", ask), ("answer", answer)])
    graph.add_edge(START, "think")
    graph.add_node("end", think)
    graph.add_edge("answer", "end")
    whole = graph.compile(checkpointer=InMemorySaver())
    watching = handler(store=store)
    config: Any = {"callbacks": [watching], "configurable": {"thread_id": "t"}}
    for inputs in (ASK, Command(resume="yes"), Command(resume="yes")):
        whole.invoke(inputs, config)
    scored = watching.last(60)
    assert scored is not None
    assert shape(scored.trace) == ["thought", "call search", "saw search", "thought"]


class Hooked(str):
    """The id of a call, with a function that is called when its hash is read for the n-th time."""

    __slots__ = ("left", "then")

    left: int
    then: Callable[[], None]

    def __hash__(self) -> int:
        self.left -= 1
        if self.left == 0:
            self.then()
        return super().__hash__()


@pytest.mark.parametrize("number", range(1, 9))
@pytest.mark.parametrize("first", ["take over", "begin"])
def test_a_tool_begins_while_the_calls_of_a_paused_run_are_taken_over(
    first: str, number: int
) -> None:
    """As two threads may, one does its work in the middle of what the other does."""
    earlier, later = RequestedCalls(), RequestedCalls()
    call_id = Hooked("c1")
    call_id.left, call_id.then = 0, lambda: None
    earlier.add(RequestedCall(call_id if first == "take over" else "c1", "search", {}))
    begun = Call("tool", "search", 1, tool_call_id="c1" if first == "take over" else call_id)
    works = [lambda: later.add_earlier(earlier), lambda: later.begin(begun, {})]
    one, other = works if first == "take over" else reversed(works)
    call_id.left, call_id.then = number, other
    one()
    if call_id.left > 0:  # it had ended before
        call_id.left = 0
        other()
    assert later.answer("c1") is begun
    assert not later
    assert later.take("c1") is None


def test_a_call_that_is_asked_for_again_after_a_pause_is_one() -> None:
    earlier, later = RequestedCalls(), RequestedCalls()
    for calls in (earlier, later):
        calls.add(RequestedCall("c1", "search", {}))
    later.add_earlier(earlier)
    assert later.take("c1") is not None
    later.add_earlier(earlier)
    assert not later
