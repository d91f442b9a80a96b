"""Ways to play one run: through a real agent, by events, and by a graph that waits in a file."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

from langchain.agents.middleware import HumanInTheLoopMiddleware
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.types import Command

from kp_langchain import KPCallbackHandler, ScoredTrace, TraceStore
from tests.agents import ASK, agent, call, handler, say, search, searching

SECRET = "sk-ant-api03-" + "Ab3dE6gH9jK2mN5p" * 5
APPROVED = Command(resume={"decisions": [{"type": "approve"}]})
THREAD: dict[str, Any] = {"configurable": {"thread_id": "t-1"}}


def last(
    watching: KPCallbackHandler, runnable: Any = None, inputs: Any = None, **config: Any
) -> ScoredTrace:
    """Invoke what is given, or an agent that searches once; return the last scored run."""
    made = searching() if runnable is None else runnable
    made.invoke(ASK if inputs is None else inputs, {"callbacks": [watching], **config})
    return scored_by(watching)


def scored_by(watching: KPCallbackHandler) -> ScoredTrace:
    """Return the last run of a handler, which has been scored."""
    scored = watching.last(300)
    assert scored is not None, watching.stats()
    return scored


def stored(store: TraceStore, scored: ScoredTrace) -> Any:
    """Return what the store has of a run."""
    run = store.get(scored.trace.id)
    assert run is not None
    return run


class Events:
    """A run by the events that LangChain sends, with values that it would not make itself.

    Args:
        watching: The handler; by default a new one.
        inputs: Of the root.
        start: What else the root begins with.
    """

    def __init__(
        self, watching: KPCallbackHandler | None = None, inputs: Any = "q", **start: Any
    ) -> None:
        self.watching = watching or handler()
        self.root = uuid4()
        self.watching.on_chain_start(None, inputs, run_id=self.root, **start)

    def begin_tool(self, inputs: Any = None, name: str = "t", **start: Any) -> UUID:
        """Begin a tool call; return its id."""
        run_id = uuid4()
        self.watching.on_tool_start(
            {"name": name}, "x", inputs=inputs, run_id=run_id, parent_run_id=self.root, **start
        )
        return run_id

    def tool(self, inputs: Any = None, output: Any = "seen", **start: Any) -> None:
        """Play a tool call; an exception as output is an error."""
        run_id = self.begin_tool(inputs, **start)
        if isinstance(output, BaseException):
            self.watching.on_tool_error(output, run_id=run_id)
        else:
            self.watching.on_tool_end(output, run_id=run_id)

    def model(self, message: object, **fields: Any) -> None:
        """Play a model call that answers with a message of any form."""
        run_id = uuid4()
        self.watching.on_chat_model_start(None, [[]], run_id=run_id, parent_run_id=self.root)
        generation = _Any(message=message, text="", generation_info=None, **fields)
        self.watching.on_llm_end(_Any(generations=[[generation]]), run_id=run_id)

    def end(self, outputs: Any = "done") -> ScoredTrace:
        """End the run, with an error if that is given; return what is recorded."""
        if isinstance(outputs, BaseException):
            self.watching.on_chain_error(outputs, run_id=self.root)
        else:
            self.watching.on_chain_end(outputs, run_id=self.root)
        scored = scored_by(self.watching)
        stats = self.watching.stats()
        assert stats["callback_errors"] == stats["failed"] == 0
        return scored


class _Any:
    def __init__(self, **fields: Any) -> None:
        vars(self).update(fields)


# ------------------------------------------------------------------ a graph that waits


def approving(saver: Any = None, *, searches: int = 1, said: int = 0) -> Any:
    """An agent whose searches a human has to approve.

    Args:
        saver: Where it waits.
        searches: How many it wants to do.
        said: How many of its answers another process has had.
    """
    answers = [say("I search.", call("search", f"c{at}", q=SECRET)) for at in range(searches)]
    return agent(
        *[*answers, say("42")][said:],
        tools=(search,),
        checkpointer=saver or InMemorySaver(),
        middleware=[HumanInTheLoopMiddleware(interrupt_on={"search": True})],
    )


class FileSaver(InMemorySaver):
    """Keeps its checkpoints in a file from one process to the next."""

    path = Path("checkpoints.pickle")

    def load(self) -> FileSaver:
        storage, writes, blobs = pickle.loads(self.path.read_bytes())  # noqa: S301 - ours
        for thread, spaces in storage.items():
            self.storage[thread].update(spaces)
        self.writes.update(writes)
        self.blobs.update(blobs)
        return self

    def save(self) -> None:
        storage = {thread: dict(spaces) for thread, spaces in self.storage.items()}
        self.path.write_bytes(pickle.dumps((storage, dict(self.writes), dict(self.blobs))))


def ask_and_wait(watching: KPCallbackHandler, **config: Any) -> None:
    """Ask an agent that pauses, and write its checkpoints for another process."""
    saver = FileSaver()
    approving(saver).invoke(ASK, {"callbacks": [watching], **THREAD, **config})
    saver.save()


def approve(watching: KPCallbackHandler, **config: Any) -> ScoredTrace:
    """Resume the agent that another process has asked."""
    graph = approving(FileSaver().load(), said=1)
    return last(watching, graph, APPROVED, **THREAD, **config)
