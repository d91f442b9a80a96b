"""`AgentRuns`: the agents that are running in this process, so that middleware can be a handler.

And what is known of the run around this code: its handlers, its metadata and its namespace.

LangChain hands callbacks down from the call of an agent, and middleware is first asked when that
call is under way. So an observer notes, of each chain that is open, how it began. Middleware that
has a handler to attach looks up the chains that it runs in. It reports to the handler how they
began, and from then on all that happens inside them. What ended before that is not recorded.

The observer is attached to all runs of the process once the first middleware of this kind is made.
It costs the others a dictionary entry for each chain that is open.

Names here follow LangChain: a `run_id` is that of one chain, model, tool or retriever. The run of
an agent, which a handler records as one, is made of many of these.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import cache
from itertools import islice, pairwise
from typing import TYPE_CHECKING, Any
from uuid import UUID

from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.tracers.context import register_configure_hook

from kp_langchain._forksafe import ForkSafeLock
from kp_langchain.recording.langchain_context import ambient_run_id, current_handlers
from kp_langchain.run_keys import (
    NAMESPACE_NAME,
    SESSION_NAMES,
    THREAD_NAME,
    USER_NAMES,
    have_same_keys,
    namespace_text,
)

if TYPE_CHECKING:
    from kp_langchain.recall.example_search import Example
    from kp_langchain.recording.handler import KPCallbackHandler

_NODE_TAG = "graph:step:"  # by which LangGraph marks the run of a node
# What never ends, such as the run of a thread that was killed, must not pile up.
_MOST_OPEN = 10_000
_DEEPEST = 100


@dataclass(slots=True, eq=False)
class OpenChain:
    """A chain, graph or node that is under way.

    Attributes:
        run_id: LangChain's id of it.
        parent_id: That of the run that it is part of.
        inputs: What it began with.
        arguments: The other arguments of `on_chain_start`.
        notes: What middleware keeps of the run of its graph, by its own key.
    """

    run_id: UUID
    parent_id: UUID | None
    inputs: object
    arguments: dict[str, Any]
    notes: dict[object, Any] = field(default_factory=dict)

    @property
    def is_node(self) -> bool:
        """Whether it is a node of a graph."""
        tags = self.arguments.get("tags")
        return isinstance(tags, list) and any(
            isinstance(tag, str) and tag.startswith(_NODE_TAG) for tag in tags
        )

    @property
    def metadata(self) -> Mapping[str, Any]:
        """Its metadata."""
        metadata = self.arguments.get("metadata")
        return metadata if isinstance(metadata, Mapping) else {}

    def report_start(self, handler: KPCallbackHandler) -> None:
        """Report to a handler how it began."""
        others = {**self.arguments, "run_id": self.run_id, "parent_run_id": self.parent_id}
        handler.on_chain_start(others.pop("serialized"), self.inputs, **others)


class AgentRuns(BaseCallbackHandler):
    """Observes the runs of the process. There is one; `agent_runs` returns it."""

    run_inline = True

    def __init__(self) -> None:
        # Events change these by single operations only, because they come from any thread.
        self._chains: dict[UUID, OpenChain] = {}
        self._followers: dict[UUID, tuple[KPCallbackHandler, ...]] = {}
        self._lock = ForkSafeLock()

    def __reduce__(self) -> tuple[Callable[[], AgentRuns], tuple[()]]:
        return agent_runs, ()  # in another process it is that process's own

    def current_graph(self) -> OpenChain | None:
        """Return the graph in a node of which this code runs; None if it is not known."""
        path = self._path()
        graphs = (graph for node, graph in pairwise(path) if node.is_node)
        return next(graphs, None)

    def follow(self, handler: KPCallbackHandler) -> None:
        """Have a handler record the graph around this code from its start on.

        If that is a node of another graph, the outer one is recorded, unless its metadata differ.
        Tools and chains that run an agent are a boundary: only the agent inside is recorded.

        Args:
            handler: The handler.
        """
        path = self._path()
        for chain in reversed(path[: _outermost(path) + 1]):
            self._report_to(chain, handler)
        # What began in another thread before its parent was followed has not been reported.
        for chain in list(self._chains.values()):
            if handler in self.followers_of(chain.parent_id):
                self._report_to(chain, handler)

    def _report_to(self, chain: OpenChain, handler: KPCallbackHandler) -> None:
        if handler not in self._followers.get(chain.run_id, ()):
            chain.report_start(handler)  # first, so that what begins inside it finds it reported
            with self._lock:
                followers = self._followers.get(chain.run_id, ())
                if handler not in followers:
                    self._followers[chain.run_id] = (*followers, handler)

    def followers_of(self, run_id: UUID | None) -> tuple[KPCallbackHandler, ...]:
        """Return the handlers that record a run, and are not among its callbacks."""
        followers = () if run_id is None else self._followers.get(run_id, ())
        return tuple(handler for handler in followers if not handler.ignore_chain)

    def notes_of(self, run_id: UUID | None) -> dict[object, Any]:
        """Return what middleware keeps of a chain until it ends; of no use if it is not known."""
        chain = self._chain(run_id)
        return {} if chain is None else chain.notes

    def _path(self) -> list[OpenChain]:
        """Return the chains around this code, the innermost first."""
        path: list[OpenChain] = []
        chain = self._chain(ambient_run_id())
        while chain is not None and len(path) < _DEEPEST:
            path.append(chain)
            chain = self._chain(chain.parent_id)
        return path

    def _chain(self, run_id: UUID | None) -> OpenChain | None:
        return None if run_id is None else self._chains.get(run_id)

    # ---------------------------------------------------------------- events

    def on_chain_start(  # noqa: D102
        self,
        serialized: Any,
        inputs: Any,
        *,
        run_id: UUID,
        parent_run_id: UUID | None = None,
        **others: Any,
    ) -> None:
        arguments = {"serialized": serialized, **others}
        chain = OpenChain(run_id, parent_run_id, inputs, arguments)
        self._chains[run_id] = chain
        if len(self._chains) > _MOST_OPEN:
            self._drop_oldest(self._chains)
        for handler in self._inherit(run_id, parent_run_id):
            chain.report_start(handler)

    def _inherit(self, run_id: UUID, parent_id: UUID | None) -> tuple[KPCallbackHandler, ...]:
        """Return the handlers that follow a run that begins: those of its parent."""
        followers = self.followers_of(parent_id)
        if followers:
            self._followers[run_id] = followers
            if len(self._followers) > _MOST_OPEN:
                self._drop_oldest(self._followers)
        return followers

    def _end(self, run_id: UUID) -> tuple[KPCallbackHandler, ...]:
        followers = self.followers_of(run_id)
        self._chains.pop(run_id, None)
        self._followers.pop(run_id, None)
        return followers

    def _drop_oldest(self, runs: Mapping[UUID, object]) -> None:
        for run_id in list(islice(runs, _MOST_OPEN // 10)):
            self._end(run_id)


def _outermost(path: Sequence[OpenChain]) -> int:
    """Return the place of the outermost graph that an agent is a part of; -1 without a graph."""
    # What in the metadata says whose a run is, and what it is about.
    keys = {NAMESPACE_NAME, THREAD_NAME, *USER_NAMES, *SESSION_NAMES, "kp_domain", "kp_task"}
    graphs = (at + 1 for at, chain in enumerate(path[:-1]) if chain.is_node)
    at = next(graphs, -1)
    while 0 < at < len(path) - 2 and path[at + 1].is_node:
        if not have_same_keys(keys, path[at].metadata, path[at + 2].metadata):
            break
        at += 2
    return at


def _start(name: str) -> Callable[..., None]:
    """Return the callback for the start of a call."""

    def on_start(
        self: AgentRuns,
        *args: Any,
        run_id: UUID,
        parent_run_id: UUID | None = None,
        **others: Any,
    ) -> None:
        for handler in self._inherit(run_id, parent_run_id):
            report = getattr(handler, name)
            report(*args, run_id=run_id, parent_run_id=parent_run_id, **others)

    return on_start


def _end(name: str) -> Callable[..., None]:
    """Return the callback for the end of a run."""

    def on_end(self: AgentRuns, *args: Any, run_id: UUID, **others: Any) -> None:
        for handler in self._end(run_id):
            getattr(handler, name)(*args, run_id=run_id, **others)

    return on_end


def _event(name: str) -> Callable[..., None]:
    """Return the callback for what happens within a run."""

    def on_event(self: AgentRuns, *args: Any, run_id: UUID, **others: Any) -> None:
        for handler in self.followers_of(run_id):
            getattr(handler, name)(*args, run_id=run_id, **others)

    return on_event


def _callbacks() -> Iterator[tuple[str, Callable[..., None]]]:
    starts = ("chat_model_start", "llm_start", "tool_start", "retriever_start")
    kinds = ("chain", "llm", "tool", "retriever")
    ends = tuple(f"{kind}_{how}" for kind in kinds for how in ("end", "error"))
    events = ("retry", "agent_action", "agent_finish", "custom_event")
    for names, make in ((starts, _start), (ends, _end), (events, _event)):
        for name in names:
            yield f"on_{name}", make(f"on_{name}")


for _name, _callback in _callbacks():
    setattr(AgentRuns, _name, _callback)


@cache
def agent_runs() -> AgentRuns:
    """Return the observer of this process; the first call attaches it to all runs."""
    variable: ContextVar[Any] = ContextVar("kp_langchain_agent_runs", default=_observer)
    register_configure_hook(variable, inheritable=True)
    return _observer


def followers_of(run_id: UUID | None) -> tuple[KPCallbackHandler, ...]:
    """Return the handlers that middleware has attached to a run."""
    return _observer.followers_of(run_id)


_observer = AgentRuns()


# ------------------------------------------------------------------ the run around this code


def ambient_handlers() -> list[KPCallbackHandler]:
    """Return the handlers of the run around this code, each once."""
    handlers = [
        *current_handlers("kp_langchain.recording.handler", "KPCallbackHandler"),
        *followers_of(ambient_run_id()),
    ]
    return list({id(handler): handler for handler in handlers}.values())


def note_shown(
    examples: Sequence[Example],
    text: str,
    *,
    held_out: bool = False,
    run_id: UUID | None = None,
    handlers: Iterable[KPCallbackHandler] | None = None,
) -> None:
    """Have handlers note what a run is shown, or held out from.

    Args:
        examples: The examples.
        text: The text by which the run is shown them; "" if it is held out.
        held_out: Whether it is held out.
        run_id: The id of the run, or of one inside it; by default the one around this code.
        handlers: The handlers; by default those of the run around this code.
    """
    run_id = run_id or ambient_run_id()
    if run_id is None or not examples:
        return
    shown = [example.as_shown(held_out=held_out) for example in examples]
    for handler in ambient_handlers() if handlers is None else handlers:
        handler.note_shown(run_id, shown, text)


def ambient_metadata() -> Mapping[str, Any]:
    """Return the metadata of the run around this code; empty outside of runs."""
    # Imported here because it takes 0.3 s; once something runs, it is imported anyway.
    from langchain_core.runnables.config import var_child_runnable_config

    config = var_child_runnable_config.get()
    return (config.get("metadata") if config else None) or {}


def namespace_in(metadata: Mapping[str, Any], argument: str | None = None) -> str | None:
    """Return the namespace whose traces a run may be shown, in plain text.

    Args:
        metadata: The metadata of the run.
        argument: The namespace that the program names itself, in place of the one in the metadata.

    Returns:
        None if there is none, or the metadata name an unusable one: such a run is shown only traces
        without a namespace.
    """
    return argument or namespace_text(metadata) or None
