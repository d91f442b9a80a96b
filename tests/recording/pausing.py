"""Real graphs that pause for a human, with checkpoints in a file, for processes one after another.

    python -m tests.recording.pausing GRAPH ACTION [ACTION ...]

Each action is one invocation: `ask`, `go` (without input), `approve`, `reject`, `yes` or `no`;
or `leave`: the question, by a stream that is left at the pause.
"""

from __future__ import annotations

import json
import os
import pickle
import sys
from collections.abc import Mapping, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from langchain.agents.middleware import HumanInTheLoopMiddleware
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langchain_core.tools import ToolException, tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.types import Command, interrupt

from kp_langchain import DomainPolicy, KPCallbackHandler
from tests.agents import ASK, ScriptedChatModel, agent, call, handler, say, search, soft

SECRET = "sk-ant-api03-" + "Ab3dE6gH9jK2mN5p" * 5


class FileSaver(InMemorySaver):
    """Keeps its checkpoints in a file from one process to the next."""

    def load(self) -> None:
        if _checkpoints().exists():
            storage, writes, blobs = pickle.loads(_checkpoints().read_bytes())  # noqa: S301 - ours
            for thread, spaces in storage.items():
                self.storage[thread].update(spaces)
            self.writes.update(writes)
            self.blobs.update(blobs)

    def save(self) -> None:
        storage = {thread: dict(spaces) for thread, spaces in self.storage.items()}
        _checkpoints().write_bytes(pickle.dumps((storage, dict(self.writes), dict(self.blobs))))


def _checkpoints() -> Path:
    return Path(os.environ.get("CHECKPOINTS", "checkpoints.pickle"))


def _approving(saver: Any) -> Any:
    return _agent(saver, say("I search.", call("search", "c1", q=SECRET)), say("42"))


def _twice(saver: Any) -> Any:
    return _agent(
        saver,
        say("I search.", call("search", "c1", q="a")),
        say("And again.", call("search", "c2", q="b")),
        say("42"),
    )


def _failing(saver: Any) -> Any:
    """A tool fails, and the model then wants one that a human has to approve."""
    return _agent(
        saver,
        say("I try.", call("soft", "c1", x="1")),
        say("I search.", call("search", "c2", q="a")),
        say("42"),
        tools=(search, soft),
    )


def _agent(saver: Any, *answers: AIMessage, tools: Any = (search,)) -> Any:
    # Each process has its own model; it has said as much as the thread holds.
    said = sum(isinstance(one, AIMessage) for one in _messages(saver))
    return agent(
        *answers[said:],
        tools=tools,
        checkpointer=saver,
        middleware=[HumanInTheLoopMiddleware(interrupt_on={"search": True})],
    )


def _messages(saver: Any) -> list[Any]:
    found = saver.get({"configurable": {"thread_id": THREAD}})
    return [] if found is None else found["channel_values"].get("messages", [])


def _breakpoint(saver: Any) -> Any:
    said = sum(isinstance(one, AIMessage) for one in _messages(saver))
    answers = (say("I search.", call("search", "c1", q="a")), say("42"))
    return agent(*answers[said:], checkpointer=saver, interrupt_before=["tools"])


def _sub_graph(saver: Any) -> Any:
    """Talks first, and asks in a graph inside a graph."""

    def ask(state: MessagesState) -> Any:
        return {"messages": [HumanMessage(str(interrupt("ok?")))]}

    inner = StateGraph(MessagesState)
    inner.add_node("ask", ask)
    inner.add_node("answer", lambda state: {"messages": [_model(saver).invoke("q")]})
    inner.add_edge(START, "ask")
    inner.add_edge("ask", "answer")
    outer = StateGraph(MessagesState)
    outer.add_node("first", lambda state: {"messages": [_model(saver).invoke("q")]})
    outer.add_node("sub", inner.compile())
    outer.add_edge(START, "first")
    outer.add_edge("first", "sub")
    return outer.compile(checkpointer=saver)


def _model(_: Any) -> ScriptedChatModel:
    return ScriptedChatModel([say("a thought")])


def _tool(saver: Any) -> Any:
    @tool
    def ask_human(q: str) -> str:
        """Ask a human."""
        return f"human: {interrupt(q)}"

    said = sum(isinstance(one, AIMessage) for one in _messages(saver))
    answers = (say("Ask.", call("ask_human", "c1", q="ok?")), say("42"))
    return agent(*answers[said:], tools=(ask_human,), checkpointer=saver)


def _booking(saver: Any) -> Any:
    """A tool asks, and raises if it may not."""

    @tool
    def book(room: str) -> str:
        """Book a room."""
        if interrupt(room) != "yes":
            raise ToolException("The user refused.")
        return "booked"

    book.handle_tool_error = True
    said = sum(isinstance(one, AIMessage) for one in _messages(saver))
    answers = (say("I book.", call("book", "c1", room="1")), say("42"))
    return agent(*answers[said:], tools=(book,), checkpointer=saver)


def _delegating(saver: Any) -> Any:
    """A tool runs an agent, whose tool asks after another one has run."""

    @tool
    def ask_human(q: str) -> str:
        """Ask a human."""
        return f"human: {interrupt(q)}"

    @tool
    def delegate(q: str) -> str:
        """Delegate."""
        return str(inner.invoke({"messages": [("user", q)]})["messages"][-1].text)

    has_asked = bool(_messages(saver))
    answers = [
        say("I search.", call("search", "i1", q="a")),
        say("I ask.", call("ask_human", "i2", q="ok?")),
        say("done"),
    ]
    inner = agent(*answers[2 * has_asked :], tools=(search, ask_human))
    outer = (say("I delegate.", call("delegate", "o1", q="x")), say("42"))
    return agent(*outer[has_asked:], tools=(delegate,), checkpointer=saver)


def _own_node(saver: Any) -> Any:
    """A node of one's own asks, and does the call itself or refuses it."""

    def work(state: MessagesState) -> Any:
        asked = state["messages"][-1].tool_calls[0]
        allowed = interrupt("ok?") == "yes"
        status = "success" if allowed else "error"
        words = "found" if allowed else "no"
        return {"messages": [ToolMessage(words, tool_call_id=asked["id"], status=status)]}

    said = sum(isinstance(one, AIMessage) for one in _messages(saver))
    model = ScriptedChatModel([say("I search.", call("search", "c1", q="a")), say("42")][said:])
    graph = StateGraph(MessagesState)
    graph.add_node("llm", lambda state: {"messages": [model.invoke(state["messages"])]})
    graph.add_node("work", work)
    graph.add_edge(START, "llm")
    graph.add_conditional_edges(
        "llm", lambda state: "work" if state["messages"][-1].tool_calls else END
    )
    graph.add_edge("work", "llm")
    return graph.compile(checkpointer=saver)


GRAPHS = {
    "approving": _approving, "twice": _twice, "failing": _failing, "breakpoint": _breakpoint,
    "sub_graph": _sub_graph, "tool": _tool, "own_node": _own_node, "booking": _booking,
    "delegating": _delegating,
}  # fmt: skip
ACTIONS: dict[str, Any] = {
    "ask": ASK,
    "leave": ASK,
    "go": None,
    "approve": Command(resume={"decisions": [{"type": "approve"}]}),
    "reject": Command(resume={"decisions": [{"type": "reject", "message": "no"}]}),
    "yes": Command(resume="yes"),
    "no": Command(resume="no"),
}
THREAD = "t-1"


def play(name: str, *actions: str, watching: KPCallbackHandler, **config: Any) -> None:
    saver = FileSaver()
    saver.load()
    for action in actions:
        graph = GRAPHS[name](saver)
        options: Any = {"callbacks": [watching], "configurable": {"thread_id": THREAD}, **config}
        if action == "leave":
            parts = graph.stream(ACTIONS[action], options, stream_mode="updates")
            next(part for part in parts if "__interrupt__" in part)
            del parts
        else:
            graph.invoke(ACTIONS[action], options)
    saver.save()


def play_in(
    folder: str, words: Sequence[str], environment: Mapping[str, str], sent: Connection
) -> None:
    """Play in a process that was forked from one that had only loaded this; send the stats."""
    os.chdir(folder)
    os.environ.update(environment)
    sent.send(main(words))


def main(words: Sequence[str]) -> dict[str, int] | None:
    name, *actions = words
    url = os.environ.get("STORE", "runs.db")
    watching = handler(store=url, policy=DomainPolicy(keep="all"))
    config = json.loads(os.environ.get("CONFIG", "{}"))
    if crash := "crash" in actions:
        actions.remove("crash")
    play(name, *actions, watching=watching, **config)
    if crash:
        assert watching.flush(300)
        os._exit(1)  # no exit hook runs
    if "close" in os.environ.get("END", ""):
        watching.close(300)
    if "exit" in os.environ.get("END", ""):
        return None
    assert watching.flush(300)
    return watching.stats()


if __name__ == "__main__":
    print(json.dumps(main(sys.argv[1:])))
