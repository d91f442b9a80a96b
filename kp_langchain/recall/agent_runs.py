"""`AgentRuns`: the agents that are running in this process, so that middleware can be a handler.

LangChain hands callbacks down from the call of an agent, and middleware is first asked when that
call is under way. So an observer notes, of each chain that is open, how it began. Middleware that
has a handler to attach looks up the graph that it runs in; the handler is told how the graph began,
and from then on everything that happens inside it.

The observer is attached to all runs of the process once the first middleware of this kind is made.
It costs the others a dictionary entry for each chain that is open.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextvars import ContextVar
from functools import cache
from typing import TYPE_CHECKING, Any, cast
from uuid import UUID

from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.tracers.context import register_configure_hook

from kp_langchain.recording.callbacks import OnlyFromOutside, ambient_run_id

if TYPE_CHECKING:
    from kp_langchain.recording.handler import KPCallbackHandler

_NODE_TAG = "graph:step:"  # by which LangGraph marks the run of a node
# What never ends, such as the run of a thread that was killed, must not pile up.
_MOST_OPEN = 10_000
_DEEPEST = 100


class OpenChain:
    """A chain, graph or node that is under way.

    Attributes:
        run_id: LangChain's id of it.
        parent_id: That of the run that it is part of.
        inputs: What it began with.
        arguments: The other arguments of `on_chain_start`.
        notes: What middleware keeps of the run of its graph, by its own key.
    """

    __slots__ = ("arguments", "inputs", "notes", "parent_id", "run_id")

    def __init__(
        self, run_id: UUID, parent_id: UUID | None, inputs: object, arguments: dict[str, Any]
    ) -> None:
        self.run_id = run_id
        self.parent_id = parent_id
        self.inputs = inputs
        self.arguments = arguments
        self.notes: dict[object, Any] = {}

    @property
    def is_node(self) -> bool:
        """Whether it is a node of a graph."""
        tags = self.arguments.get("tags")
        return isinstance(tags, list) and any(
            isinstance(tag, str) and tag.startswith(_NODE_TAG) for tag in tags
        )

    def report_start(self, handler: KPCallbackHandler) -> None:
        """Tell a handler how it began."""
        handler.on_chain_start(
            inputs=self.inputs,
            run_id=self.run_id,
            parent_run_id=self.parent_id,
            **self.arguments,
        )


class AgentRuns(BaseCallbackHandler):
    """Observes the runs of the process. There is one; `agent_runs` returns it."""

    run_inline = True
    raise_error = cast("bool", OnlyFromOutside())

    def __init__(self) -> None:
        # Changed by single operations only, because events come from any thread.
        self._chains: dict[UUID, OpenChain] = {}
        self._followers: dict[UUID, tuple[KPCallbackHandler, ...]] = {}

    def __reduce__(self) -> tuple[Callable[[], AgentRuns], tuple[()]]:
        return agent_runs, ()  # in another process it is that process's own

    def __copy__(self) -> AgentRuns:
        return self

    def __deepcopy__(self, _memo: dict[int, Any]) -> AgentRuns:
        return self

    def current_graph(self) -> OpenChain | None:
        """Return the graph in a node of which this code runs; None if it is not known."""
        path = self._path_to_graph()
        return path[-1] if path else None

    def follow(self, handler: KPCallbackHandler) -> None:
        """Have a handler record the graph in a node of which this code runs, from its start on."""
        path = self._path_to_graph()
        if not path or handler in self._followers.get(path[-1].run_id, ()):
            return
        for chain in reversed(path):
            self._followers[chain.run_id] = (*self._followers.get(chain.run_id, ()), handler)
            chain.report_start(handler)

    def _path_to_graph(self) -> list[OpenChain]:
        """Return the chains around this code up to the graph, the innermost first."""
        path: list[OpenChain] = []
        run_id = ambient_run_id()
        while run_id is not None and len(path) < _DEEPEST:
            chain = self._chains.get(run_id)
            if chain is None:
                return []
            is_graph = bool(path) and path[-1].is_node
            path.append(chain)
            if is_graph:
                return path
            run_id = chain.parent_id
        return []

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
            self._drop_oldest()
        for handler in self._inherit(run_id, parent_run_id):
            chain.report_start(handler)

    def _inherit(self, run_id: UUID, parent_id: UUID | None) -> tuple[KPCallbackHandler, ...]:
        """Return the handlers that follow a run that begins: those of its parent."""
        followers = self._followers.get(parent_id, ()) if parent_id is not None else ()
        if followers:
            self._followers[run_id] = followers
        return followers

    def _end(self, run_id: UUID) -> tuple[KPCallbackHandler, ...]:
        self._chains.pop(run_id, None)
        return self._followers.pop(run_id, ())

    def _drop_oldest(self) -> None:
        for run_id in list(self._chains)[: _MOST_OPEN // 10]:
            self._end(run_id)


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
        for handler in self._followers.get(run_id, ()):
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
    observer = AgentRuns()
    variable: ContextVar[Any] = ContextVar("kp_langchain_agent_runs", default=observer)
    register_configure_hook(variable, inheritable=True)
    return observer
