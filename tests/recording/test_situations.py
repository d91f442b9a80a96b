"""Every situation of `situations.py`: steps, counts, success, objective, framework.

Those that pause are played a second time with the handler closed at each pause, so that another
one resumes the run from the store.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any
from uuid import uuid4

import pytest
from hypothesis import given
from hypothesis import strategies as st
from langchain.agents import create_agent
from langchain_core.messages import AIMessage, ToolMessage
from langchain_core.tools import InjectedToolCallId, tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.errors import GraphInterrupt
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import InjectedState
from langgraph.types import Command, Send, interrupt

from kp_langchain import KPCallbackHandler, ScoredTrace, TraceStore, trace_from_messages
from tests.agents import (
    ASK,
    QUESTION,
    ScriptedChatModel,
    agent,
    call,
    handler,
    run,
    say,
    search,
    shape,
)
from tests.recording import (
    situations_of_inner_calls,
    situations_of_pauses,
    situations_of_requests,
)
from tests.recording.playing import Events, approving, last, scored_by
from tests.recording.situations import (
    SEARCHED,
    SITUATIONS,
    Situation,
    as_expected,
    asking,
    graph_of,
    in_thread,
    play,
)
from tests.recording.test_bounds import LoudMapping

# Importing them adds their situations to the list.
assert situations_of_inner_calls
assert situations_of_pauses
assert situations_of_requests

FATES = (
    "runs", "open", "paused", "cancelled", "abandoned", "handed_over", "empty", "dropped",
    "failed", "callback_errors", "outcome_errors", "dropped_steps",
)  # fmt: skip
OLD_RELEASES = pytest.mark.filterwarnings(
    "ignore::DeprecationWarning", "ignore::PendingDeprecationWarning"
)


def needs(one: Situation) -> None:
    if one.needs:
        pytest.importorskip(one.needs, reason="this release of langgraph does not tell of it")


def steps_as_expected(scored: list[ScoredTrace], expected: list[list[str]]) -> list[list[str]]:
    return [
        as_expected(shape(one.trace), steps) for one, steps in zip(scored, expected, strict=True)
    ]


@pytest.mark.parametrize("one", SITUATIONS, ids=lambda one: one.name)
@OLD_RELEASES
def test_situation(one: Situation) -> None:
    needs(one)
    result = play(one)
    assert steps_as_expected(result.scored, one.traces) == one.traces
    expected = {name: one.fates.get(name, 0) for name in FATES}
    fates = {name: result.stats[name] for name in FATES}
    for name in ("runs", "paused"):  # what was resumed counts once
        fates[name] -= result.stats["continued"]
    assert fates == expected
    assert result.stats["scored"] == len(one.traces)
    for scored in result.scored:
        assert scored.trace.task.objective == one.objective
        assert scored.trace.metadata.framework == one.framework
        assert [step.step_id for step in scored.trace.steps] == list(range(len(scored.trace.steps)))
    if one.success is not None:
        assert [scored.trace.metadata.success for scored in result.scored] == one.success


# ------------------------------------------------------------------ resumed from the store


try:
    from langgraph.callbacks import GraphCallbackHandler
except ImportError:  # older releases have no events of their own
    GraphCallbackHandler = object  # type: ignore[assignment,misc]


class Relay(KPCallbackHandler, GraphCallbackHandler):
    """Hands everything on to a handler, and when a run has paused, closes that for another one."""

    ignore_llm = ignore_chat_model = ignore_chain = ignore_agent = False
    ignore_retriever = ignore_retry = ignore_custom_event = False

    def __init__(self, store: TraceStore) -> None:
        self.scored: list[ScoredTrace] = []
        self.store_of_all = store
        self.closed: list[dict[str, int]] = []
        self.current = self.new()

    def new(self) -> KPCallbackHandler:
        return handler(store=self.store_of_all, on_scored=self.scored.append)

    def hand_on(self, name: str, /, *arguments: Any, **more: Any) -> None:
        is_root = name == "on_chain_start" and more.get("parent_run_id") is None
        if is_root and self.current.stats()["paused"]:
            self.current.close(60)
            self.closed.append(self.current.stats())
            self.current = self.new()
        getattr(self.current, name)(*arguments, **more)


def _relayed(name: str) -> Callable[..., None]:
    def hand_on(self: Relay, *arguments: Any, **more: Any) -> None:
        self.hand_on(name, *arguments, **more)

    return hand_on


for _name in dir(KPCallbackHandler):
    if _name.startswith("on_"):
        setattr(Relay, _name, _relayed(_name))

PAUSING = [
    one
    for one in SITUATIONS
    if one.traces
    and one.name.startswith(
        (
            "paused, then",
            "interrupt() in",
            "breakpoint",
            "left at",
            "a human",
            "a rejection",
            "a sub-agent",
        )
    )
    # These are not paused yet when they are resumed.
    and not one.name.endswith(("still held", "asyncio closes it", "astream_events"))
]


@pytest.mark.parametrize("one", PAUSING, ids=lambda one: one.name)
@OLD_RELEASES
def test_it_is_one_run_if_another_handler_resumes_it_from_the_store(one: Situation) -> None:
    needs(one)
    with TraceStore("runs.db") as store:
        relay = Relay(store)
        done = one.go(relay)
        if asyncio.iscoroutine(done):
            asyncio.run(done)
        assert relay.current.flush(60)
        assert steps_as_expected(relay.scored, one.traces) == one.traces
        assert all(stats["paused"] == 1 for stats in relay.closed)
        stats = relay.current.stats()
        assert (stats["scored"], stats["continued"]) == (1, 1)
        (run,) = store.runs()
        assert run.trace is not None
        assert run.trace.task.objective == one.objective
        if one.success is not None:
            assert [run.success] == one.success


# Whatever becomes of one call: an output, an error, or an answer of a model.
ENDS: dict[str, Any] = {
    "seen": "seen", "failed": ValueError("v"), "cancelled": asyncio.CancelledError(),
    "refused": ToolMessage("no", tool_call_id="c", status="error"), "said": AIMessage("I think."),
    "cut off": AIMessage("I th", response_metadata={"finish_reason": "length"}),
    "withheld": AIMessage("", additional_kwargs={"refusal": "I can't."}),
    "asked": AIMessage("", tool_calls=[call("Route", "r", to="x"), call("t", "c1", q=1)]),
}  # fmt: skip


def steps_of(drawn: list[tuple[str, str]], cut: int) -> Any:
    """Return success and steps of a run of these calls that pauses before one; -1 for never."""
    metadata = {"thread_id": str(uuid4()), "ls_integration": "langgraph"}
    about: Any = {"name": "LangGraph", "metadata": metadata}
    events = Events(handler(store="runs.db"), **about)
    for at, (end, call_id) in enumerate(drawn):
        if at == cut:
            events.watching.on_chain_error(GraphInterrupt(), run_id=events.root)
            events.watching.close(60)
            events = Events(handler(store="runs.db"), None, **about)
        if isinstance(ENDS[end], AIMessage):
            events.model(ENDS[end])
        else:
            events.tool({"q": call_id}, ENDS[end], tool_call_id=call_id)
    events.tool()
    trace = events.end().trace
    return trace.metadata.success, [
        (one.type, one.tool, one.content, one.input, one.attempts) for one in trace.steps
    ]


@given(
    st.lists(st.tuples(st.sampled_from(list(ENDS)), st.sampled_from(["c1", "c2", "c3"]))),
    st.integers(0, 12),
)
def test_a_run_that_is_cut_by_a_pause_has_the_steps_of_the_whole(
    drawn: list[tuple[str, str]], cut: int
) -> None:
    assert steps_of(drawn, cut) == steps_of(drawn, -1)


def test_what_a_human_rejected_before_another_pause_has_not_failed() -> None:
    with TraceStore("runs.db") as store:
        relay, graph = Relay(store), approving(searches=2)
        config: Any = {"callbacks": [relay], "configurable": {"thread_id": "twice"}}
        for decision in (None, {"type": "reject", "message": "no"}, {"type": "approve"}):
            graph.invoke(Command(resume={"decisions": [decision]}) if decision else ASK, config)
        assert relay.current.flush(60)
        assert [shape(one.trace) for one in relay.scored] == [[*SEARCHED[:3], *SEARCHED]]


# ------------------------------------------------------------------ what a human decides

APPROVED: list[Any] = [
    True, "yes", " OK. ", "Yes, but be quick", {"approved": True, "notify": False},
    {"decisions": [{"type": "approve"}, {"type": "edit", "edited_action": {"name": "no"}}]},
    [{"type": "accept", "args": None}],
    {"status": "approved", "breakfast": False},
]  # fmt: skip
REJECTED: list[Any] = [
    False, "No", "reject", "no, too dear", {"action": "deny"},
    {"decisions": [{"type": "reject", "message": "yes, but too dear"}]},
    [{"type": "ignore", "args": None}], {"approved": False, "reason": "no"},
]  # fmt: skip
UNCLEAR: list[Any] = [
    "", "Rather the cheaper one", 42, {"data": "a name"}, "no problem",
    {"guests": 2, "breakfast": False, "smoking": "no"}, {"type": "approve", "approved": False},
    [{"type": "approve"}, {"type": "response", "args": "later"}], [],
    {"decisions": [{"type": "approve"}, {"type": "reject"}]}, {"rejected": "yes"},
    {"rejected": False}, {"cancelled": "no"},
]  # fmt: skip


def decided(graph: Any, value: Any, *, names_interrupt: bool = False) -> str:
    """Pause, resume with a value, and return what is recorded of the call that then fails."""
    watching = handler()
    config: Any = {"configurable": {"thread_id": "decided"}}
    graph.invoke(ASK, {**config, "callbacks": [watching]})
    if names_interrupt:
        value = {graph.get_state(config).interrupts[0].id: value}
    return shape(last(watching, graph, Command(resume=value), **config).trace)[2].split()[0]


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        *(("approved", one) for one in APPROVED),
        *(("rejected", one) for one in REJECTED),
        *(("unclear", one) for one in UNCLEAR),
    ],
)
def test_what_fails_by_a_humans_decision_has_not_failed(kind: str, value: Any) -> None:
    in_a_tool = decided(situations_of_requests.booking(), value)
    assert in_a_tool == ("saw" if kind == "rejected" else "recovered")
    if value is not True:  # then the node does the call
        in_a_node = decided(situations_of_requests.refusing(how="refuse"), value)
        assert in_a_node == ("recovered" if kind == "approved" else "saw")


@pytest.mark.parametrize(("value", "seen"), [(False, "saw"), ("yes", "recovered")])
def test_a_decision_may_be_given_by_the_id_of_its_interrupt(value: Any, seen: str) -> None:
    graph = situations_of_requests.booking()
    assert decided(graph, value, names_interrupt=True) == seen


@given(
    st.recursive(
        st.none() | st.booleans() | st.text() | st.floats() | st.binary(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text() | st.integers(), inner),
    )
)
def test_a_decision_of_any_form_harms_nobody(value: Any) -> None:
    for resumed in (value, [[value] * 20] * 200):
        events = Events(inputs=Command(resume=resumed))
        events.tool()
        events.end()


# ------------------------------------------------------------------ tools that hand over

HISTORY: dict[str, Any] = {
    "messages": [
        ("user", "old question"),
        AIMessage("", tool_calls=[call("search", "old", q="a")]),
        ToolMessage("down", tool_call_id="old", status="error"),
        ("ai", "old answer"),
        ("user", QUESTION),
    ]
}
Answer = Callable[[list[Any], str], Any]


def handed_over(command: Answer) -> tuple[list[str], str | None]:
    """Run an agent whose tool returns what `command` makes of the messages and the call's id."""
    # Older releases cannot give a tool the state of an agent that is a node of another graph.
    pytest.importorskip("langgraph.callbacks", reason="this release hands nothing over")

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
    trace = run(graph.compile(), HISTORY).trace
    return shape(trace), trace.steps[2].content


def done(call_id: str, **fields: Any) -> ToolMessage:
    return ToolMessage("handed to bob", tool_call_id=call_id, **fields)


def to_parent(update: object = None, goto: Any = "bob") -> Command[Any]:
    return Command(graph=Command.PARENT, goto=goto, update=update)


COMMANDS: dict[str, tuple[Answer, str | None]] = {
    "a history and the message": (
        lambda old, one: to_parent({"messages": [*old, done(one)]}), "handed to bob",
    ),
    "beside other keys": (
        lambda old, one: to_parent({"active": "bob", "messages": [done(one)]}), "handed to bob",
    ),
    "a dictionary": (
        lambda old, one: to_parent(
            {"messages": [*old, {"role": "tool", "content": "handed to bob", "tool_call_id": one}]}
        ),
        "handed to bob",
    ),
    "in a Send": (
        lambda old, one: to_parent(goto=[Send("bob", {"messages": [*old, done(one)]})]),
        "handed to bob",
    ),
    "bare": (lambda old, one: to_parent(), None),
    "the history alone": (lambda old, one: to_parent({"messages": old[:-1]}), None),
    "the history in a Send": (
        lambda old, one: to_parent(goto=[Send("bob", {"messages": old})]), None,
    ),
}  # fmt: skip


@pytest.mark.parametrize("how", COMMANDS)
def test_of_a_command_the_message_of_the_call_is_observed_alone(how: str) -> None:
    command, content = COMMANDS[how]
    steps, observed = handed_over(command)
    assert steps == ["thought", "call to_bob", "saw to_bob", "thought"]
    assert (observed or None) == content


def test_a_command_fails_by_the_status_of_its_own_message() -> None:
    failed: Answer = lambda old, one: to_parent({"messages": [*old, done(one, status="error")]})  # noqa: E731
    steps, observed = handed_over(failed)
    assert (steps[2], observed) == ("recovered to_bob", "handed to bob")


def test_several_commands_of_one_tool() -> None:
    @tool
    def update(tool_call_id: Annotated[str, InjectedToolCallId]) -> Any:
        """Update."""
        messages = [ToolMessage("other", tool_call_id="other"), done(tool_call_id)]
        return [Command(goto=[Send("x", messages[:1])]), Command(update={"messages": messages[1:]})]

    asked = {"name": "update", "args": {}, "id": "own", "type": "tool_call"}
    assert run(update, asked).trace.steps[-1].content == "handed to bob"


# ------------------------------------------------------------------ calls that no tool does


def test_a_conversation_that_ends_on_an_action_has_not_failed() -> None:
    asked: Any = {"name": "buy", "args": {"item": "b"}, "id": "1"}
    messages = [("user", "buy b"), AIMessage("", tool_calls=[asked])]
    sold_out = ToolMessage("sold out", tool_call_id="1", status="error")
    for more, steps_, success in (
        ([ToolMessage("", tool_call_id="1")], ["call buy", "saw buy"], True),
        ([], ["call buy"], True),
        ([sold_out], ["call buy", "saw buy"], False),
    ):
        trace = trace_from_messages([*messages, *more])
        assert (shape(trace), trace.metadata.success) == (steps_, success)


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
    think = asking(model)
    whole = graph_of(think, ask, ask, answer, think, checkpointer=InMemorySaver())
    watching = handler(store=store)
    for inputs in ({"messages": [("user", "q")]}, Command(resume="yes"), Command(resume="yes")):
        whole.invoke(inputs, in_thread(watching, "t"))
        assert watching.flush(60)
    assert shape(scored_by(watching).trace) == SEARCHED


STRANGE: list[Any] = [
    None, math.nan, b"\xff", "\ud800", "x" * 1_000_000, 10**6000, [], {"a": float("inf")},
]  # fmt: skip


@pytest.mark.parametrize("value", STRANGE, ids=lambda value: type(value).__name__)
def test_calls_of_any_form_harm_nobody(value: Any) -> None:
    message = AIMessage("I work.")
    request = {"name": value, "args": value, "id": value, "error": value}
    object.__setattr__(message, "tool_calls", [request, value, {"id": "1", "args": value}])
    object.__setattr__(message, "invalid_tool_calls", [request, value])
    events = Events()
    events.model(message)
    node: dict[str, Any] = {"run_id": uuid4(), "parent_run_id": events.root}
    events.watching.on_chain_start(None, {}, **node, name="tools")
    seen = {"messages": [ToolMessage("seen", tool_call_id="1")]}
    events.watching.on_chain_end(seen, run_id=node["run_id"])
    assert events.end({"messages": [message]}).trace.steps[-1].content == "seen"


# ------------------------------------------------------------------ calls that are not the agent's


def using(made: Any) -> Any:
    asked = call(made.name, **{next(iter(made.args)): "a"})
    return agent(say("I search.", asked), say("42"), tools=(made,))


@pytest.mark.parametrize(
    ("metadata", "name"),
    [
        ({"mcp_server": "github"}, "github"),
        ({"mcp": {"server": {"name": "github", "version": "2.0"}}}, "github"),
        ({"mcp": {"server": "github"}}, "github"),
        ({"mcp_server": {"name": "github"}}, "github"),
        ({"mcp_server": "ours", "mcp": {"server": {"name": "github"}}}, "ours"),
        ({"mcp_server": "", "mcp": {"server": {"name": "github"}}}, "github"),
        ({"mcp": {"server": {"name": 7}}}, None),
        ({"mcp": {"server": ["github"]}}, None),
        ({"mcp": {"tool": {"_meta": {"name": "github"}}}}, None),
        ({"mcp": None, "mcp_server": None}, None),
        ({"mcp": LoudMapping()}, None),
        ({}, None),
        ({"mcp_server": "n" * 100_000}, "n" * 100_000),
    ],
)
def test_the_mcp_server_comes_from_the_tools_metadata(metadata: Any, name: str | None) -> None:
    trace = run(using(search.model_copy(update={"metadata": metadata}))).trace
    servers = [step.tool.mcp_server for step in trace.steps if step.tool is not None]
    if name and len(name) > 200:
        assert all(server is not None and 0 < len(server) <= 200 for server in servers)
    else:
        assert servers == [name, name]
