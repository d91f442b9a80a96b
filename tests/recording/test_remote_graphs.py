"""Graphs that run on a server: only the state that they return shows what they did."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, TypedDict

import pytest
from langchain_core.messages import AIMessage, BaseMessage, ToolMessage
from langchain_core.runnables import RunnableLambda
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, MessagesState, StateGraph

from kp_langchain import KPCallbackHandler, ReasoningTrace
from tests.agents import ASK, QUESTION, ScriptedChatModel, call, handler, run, say, searching, shape

RemoteGraph = pytest.importorskip("langgraph.pregel.remote").RemoteGraph

Events = list[tuple[str, Any]]
LOOKED_UP = ["thought", "call lookup", "saw lookup", "thought"]
HISTORY: dict[str, Any] = {
    "messages": [
        ("user", "old question"),
        AIMessage("", tool_calls=[call("lookup", "old", k="w")]),
        ToolMessage("found w", tool_call_id="old"),
        ("ai", "old answer"),
        ("user", QUESTION),
    ]
}


class Server:
    """A server of LangGraph's, as far as `RemoteGraph` needs one to run a graph."""

    def __init__(self) -> None:
        self.respond: Callable[[dict[str, Any]], Events] = looks_up
        server = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                events = server.respond(body)
                lines = (f"event: {name}\ndata: {json.dumps(data)}\n\n" for name, data in events)
                content = "".join(lines).encode()
                self.send_response(200)
                self.send_header("Content-Type", "text/event-stream")
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            def log_message(self, *_: object) -> None:
                pass

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.http.serve_forever, daemon=True).start()

    def graph(self) -> Any:
        return RemoteGraph("agent", url=f"http://127.0.0.1:{self.http.server_port}")


@pytest.fixture
def server() -> Iterator[Server]:
    one = Server()
    yield one
    one.http.shutdown()
    one.http.server_close()


def looks_up(body: dict[str, Any]) -> Events:
    given = body["input"]["messages"]
    number = len(given)
    request = call("lookup", f"call{number}", k="v")
    return _values(
        given,
        AIMessage("I look it up.", id=f"ask{number}", tool_calls=[request]),
        ToolMessage("found v", id=f"tool{number}", tool_call_id=f"call{number}"),
        AIMessage("It is 42.", id=f"answer{number}"),
    )


def _values(given: list[Any], *new: BaseMessage) -> Events:
    return [("values", {"messages": [*given, *(one.model_dump(mode="json") for one in new)]})]


def with_node(*nodes: Any, **options: Any) -> Any:
    graph = StateGraph(MessagesState)
    before = START
    for number, node in enumerate(nodes):
        graph.add_node(f"node{number}", node)
        graph.add_edge(before, f"node{number}")
        before = f"node{number}"
    return graph.compile(**options)


def are_remote(trace: ReasoningTrace) -> list[bool]:
    return [(step.model_extra or {}).get("remote", False) for step in trace.steps]


def _invoke(graph: Any, watching: KPCallbackHandler) -> None:
    graph.invoke(HISTORY, {"callbacks": [watching]})


def _stream(graph: Any, watching: KPCallbackHandler) -> None:
    list(graph.stream(HISTORY, {"callbacks": [watching]}, stream_mode="updates"))


def _ainvoke(graph: Any, watching: KPCallbackHandler) -> None:
    asyncio.run(graph.ainvoke(HISTORY, {"callbacks": [watching]}))


@pytest.mark.parametrize("go", [_invoke, _stream, _ainvoke])
def test_what_its_state_shows_of_the_new_messages_is_recorded(server: Server, go: Any) -> None:
    watching = handler()
    go(with_node(server.graph()), watching)
    scored = watching.last(60)
    assert scored is not None
    trace = scored.trace
    assert shape(trace) == LOOKED_UP
    assert [step.content or step.input for step in trace.steps] == [
        "I look it up.", {"k": "v"}, "found v", "It is 42.",
    ]  # fmt: skip
    assert are_remote(trace) == [True] * 4
    assert [step.latency_ms for step in trace.steps] == [None] * 4  # nobody measured it
    assert (trace.outcome.result_summary, trace.metadata.success) == ("It is 42.", True)
    assert watching.stats()["empty"] == 0


def test_what_runs_here_is_not_marked(server: Server) -> None:
    local = searching()
    trace = run(with_node(local, server.graph(), server.graph()), HISTORY).trace
    assert shape(trace) == ["thought", "call search", "saw search", "thought", *LOOKED_UP * 2]
    assert are_remote(trace) == [False] * 4 + [True] * 8


@pytest.mark.parametrize("form", ["a function", "a chain"])
def test_a_node_that_asks_it_records_it_once(server: Server, form: str) -> None:
    remote = server.graph()

    def ask(state: Any) -> Any:
        return remote.invoke(state)

    node: Any = ask
    if form == "a chain":
        node = RunnableLambda(ask) | RunnableLambda(lambda state: {"messages": state["messages"]})
    assert shape(run(with_node(node), HISTORY).trace) == LOOKED_UP


def test_a_chain_around_it(server: Server) -> None:
    remote = server.graph()

    def ask(words: str) -> Any:
        return remote.invoke({"messages": [{"role": "user", "content": words}]})

    trace = run(RunnableLambda(ask), QUESTION).trace
    assert shape(trace) == LOOKED_UP
    assert trace.outcome.result_summary == "It is 42."


def test_what_its_own_thread_had_held_before_is_not_recorded(server: Server) -> None:
    def respond(body: dict[str, Any]) -> Events:
        old = AIMessage("old", id="old").model_dump(mode="json")
        return _values([old, *body["input"]["messages"]], AIMessage("It is 42.", id="new"))

    server.respond = respond
    assert shape(run(with_node(server.graph())).trace) == ["thought"]


def test_an_error_that_its_tool_reports(server: Server) -> None:
    def respond(body: dict[str, Any]) -> Events:
        return _values(
            body["input"]["messages"],
            AIMessage("", id="a", tool_calls=[call("lookup", "c", k="v")]),
            ToolMessage("no v", id="t", tool_call_id="c", status="error"),
            AIMessage("I cannot.", id="b"),
        )

    server.respond = respond
    trace = run(with_node(server.graph())).trace
    assert shape(trace) == ["call lookup", "recovered lookup", "thought"]
    assert are_remote(trace) == [True] * 3


def test_what_the_server_raises_is_the_run_s_error(server: Server) -> None:
    server.respond = lambda _: [("error", {"error": "ValueError", "message": "no such graph"})]
    watching = handler()
    with pytest.raises(Exception, match="no such graph"):
        with_node(server.graph()).invoke(ASK, {"callbacks": [watching]})
    scored = watching.last(60)
    assert scored is not None
    assert shape(scored.trace) == ["saw"]
    assert not scored.trace.metadata.success


def test_a_run_that_pauses_there_is_paused(server: Server) -> None:
    server.respond = lambda _: [("updates", {"__interrupt__": [{"value": "may I?", "id": "1"}]})]
    watching = handler()
    config: Any = {"callbacks": [watching], "configurable": {"thread_id": "paused there"}}
    graph = with_node(server.graph(), checkpointer=InMemorySaver())
    graph.invoke(ASK, config)
    assert watching.flush(60)
    assert watching.stats()["paused"] == 1
    server.respond = looks_up
    graph.invoke(None, config)
    scored = watching.last(60)
    assert scored is not None
    assert shape(scored.trace) == LOOKED_UP


def test_an_answer_given_here_is_recorded_once_in_whatever_form() -> None:
    def answer(state: Any) -> Any:
        message = ScriptedChatModel([say("It is 42.")]).invoke(state["messages"])
        return {"messages": [message.model_dump()]}

    trace = run(with_node(answer)).trace
    assert shape(trace) == ["thought"]
    assert are_remote(trace) == [False]


class Logged(MessagesState):
    log: list[Any]


@pytest.mark.parametrize("is_loaded", [False, True], ids=["written", "loaded"])
def test_a_log_of_messages_under_another_key_is_no_answer(is_loaded: bool) -> None:
    old = [AIMessage("old answer").model_dump(), ToolMessage("old", tool_call_id="1").model_dump()]
    graph = StateGraph(Logged)
    graph.add_node("agent", searching())
    graph.add_node(
        "log",
        lambda state: {"log": old if is_loaded else [m.model_dump() for m in state["messages"]]},
    )
    graph.add_edge(START, "log" if is_loaded else "agent")
    graph.add_edge(*("log", "agent") if is_loaded else ("agent", "log"))
    trace = run(graph.compile()).trace
    assert shape(trace) == ["thought", "call search", "saw search", "thought"]
    assert not any(are_remote(trace))


def test_a_history_of_a_chat_that_the_user_s_code_keeps_is_no_answer() -> None:
    class State(TypedDict, total=False):
        question: str
        history: list[Any]
        answer: str

    def ask(state: State) -> State:
        return {"answer": str(ScriptedChatModel([say("42")]).invoke(state["question"]).text)}

    def note(state: State) -> State:
        return {"history": [*state["history"], {"type": "ai", "content": state["answer"]}]}

    builder = StateGraph(State).add_sequence([ask, note]).add_edge(START, "ask")
    trace = run(builder.compile(), {"question": QUESTION, "history": []}).trace
    assert shape(trace) == ["thought"]
    assert trace.outcome.result_summary == "42"
