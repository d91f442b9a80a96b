"""What a tool observes that returns a command, as those do that hand over to another agent."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

import pytest
from langchain.agents import create_agent
from langchain_core.messages import AIMessage, ToolMessage
from langchain_core.tools import InjectedToolCallId, tool
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import InjectedState
from langgraph.types import Command, Send

from kp_langchain import ScoredTrace
from tests.agents import QUESTION, ScriptedChatModel, call, run, say, shape

# Older releases cannot give a tool the state of an agent that is a node of another graph.
pytest.importorskip("langgraph.callbacks", reason="this release of langgraph hands nothing over")

HISTORY: dict[str, Any] = {
    "messages": [
        ("user", "old question"),
        AIMessage("", tool_calls=[call("search", "old", q="a")]),
        ToolMessage("down", tool_call_id="old", status="error"),
        ("ai", "old answer"),
        ("user", QUESTION),
    ]
}
HANDED_OVER = ["thought", "call to_bob", "saw to_bob", "thought"]
Answer = Callable[[list[Any], str], Any]


def handed_over(command: Answer) -> ScoredTrace:
    """Run an agent with a tool that returns what `command` makes of the messages and the id."""

    @tool
    def to_bob(
        state: Annotated[dict[str, Any], InjectedState],
        tool_call_id: Annotated[str, InjectedToolCallId],
    ) -> Any:
        """Hand over."""
        return command(state["messages"], tool_call_id)

    alice = create_agent(ScriptedChatModel([say("Bob knows.", call("to_bob"))]), [to_bob])
    graph = StateGraph(MessagesState)
    graph.add_node("alice", alice, destinations=("bob",))
    graph.add_node("bob", create_agent(ScriptedChatModel([say("42")]), []))
    graph.add_edge(START, "alice")
    return run(graph.compile(), HISTORY)


def done(call_id: str, **fields: Any) -> ToolMessage:
    return ToolMessage("handed to bob", tool_call_id=call_id, **fields)


def to_parent(update: object = None, goto: Any = "bob") -> Command[Any]:
    return Command(graph=Command.PARENT, goto=goto, update=update)


class State:
    def __init__(self, messages: list[Any]) -> None:
        self.messages = messages

    messages: Annotated[list[Any], "the key by which LangGraph knows a state"]


WITH_ITS_MESSAGE: dict[str, Answer] = {
    "a history and the message": lambda old, one: to_parent({"messages": [*old, done(one)]}),
    "the message alone": lambda old, one: to_parent({"messages": [done(one)]}),
    "beside other keys": lambda old, one: to_parent({"active": "bob", "messages": [done(one)]}),
    "an object": lambda old, one: to_parent(State([*old, done(one)])),
    "a dictionary": lambda old, one: to_parent(
        {"messages": [*old, {"role": "tool", "content": "handed to bob", "tool_call_id": one}]}
    ),
    "in a Send": lambda old, one: to_parent(goto=[Send("bob", {"messages": [*old, done(one)]})]),
}


@pytest.mark.parametrize("how", WITH_ITS_MESSAGE)
def test_the_observation_is_the_message_of_the_call_alone(how: str) -> None:
    scored = handed_over(WITH_ITS_MESSAGE[how])
    assert shape(scored.trace) == HANDED_OVER
    assert scored.trace.steps[2].content == "handed to bob"
    assert scored.trace.metadata.success


@pytest.mark.parametrize(
    "command",
    [
        lambda old, one: to_parent(),
        lambda old, one: to_parent({"messages": old[:-1]}),
        lambda old, one: to_parent(goto=[Send("bob", {"messages": old})]),
    ],
    ids=["bare", "with the history", "with the history in a Send"],
)
def test_a_command_without_its_message_observes_nothing(command: Answer) -> None:
    scored = handed_over(command)
    assert shape(scored.trace) == HANDED_OVER
    assert not scored.trace.steps[2].content


def test_it_fails_by_the_status_of_its_own_message() -> None:
    scored = handed_over(
        lambda old, one: to_parent({"messages": [*old, done(one, status="error")]})
    )
    assert shape(scored.trace) == ["thought", "call to_bob", "recovered to_bob", "thought"]
    assert scored.trace.steps[2].content == "handed to bob"


def test_each_of_two_calls_observes_its_own_message() -> None:
    @tool
    def note(
        text: str,
        state: Annotated[dict[str, Any], InjectedState],
        tool_call_id: Annotated[str, InjectedToolCallId],
    ) -> Command[Any]:
        """Note."""
        own = ToolMessage(f"noted {text}", tool_call_id=tool_call_id)
        return Command(update={"messages": [*state["messages"], own]})

    both = say("Both.", call("note", text="a"), call("note", text="b"))
    scored = run(create_agent(ScriptedChatModel([both, say("42")]), [note]))
    seen = sorted(step.content or "" for step in scored.trace.steps if step.type == "observation")
    assert seen == ["noted a", "noted b"]


@pytest.mark.parametrize("form", ["several commands", "pairs"])
def test_other_forms_of_commands(form: str) -> None:
    @tool
    def update(tool_call_id: Annotated[str, InjectedToolCallId]) -> Any:
        """Update."""
        messages = [ToolMessage("other", tool_call_id="other"), done(tool_call_id)]
        if form == "pairs":
            return Command(update=[("messages", messages)])
        return [Command(goto=[Send("x", messages[:1])]), Command(update={"messages": messages[1:]})]

    asked = {"name": "update", "args": {}, "id": "own", "type": "tool_call"}
    assert run(update, asked).trace.steps[-1].content == "handed to bob"
