"""`KPMiddleware`: shows the runs of an agent kept traces, and records the runs."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Awaitable, Callable, Iterator, Mapping
from concurrent.futures import Future, wait
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Self
from uuid import UUID, uuid4

from kp_langchain.config import Settings
from kp_langchain.errors import ConfigError, MissingExtraError
from kp_langchain.recall.agent_runs import agent_runs
from kp_langchain.recall.example_search import check_options, search_of
from kp_langchain.recall.examples_prompt import ExamplesPrompt, task_position
from kp_langchain.recall.prompt_search import (
    FoundPrompt,
    Request,
    prompt_search_of,
    warn_of_failure,
)
from kp_langchain.recall.recall_log import (
    ambient_handlers,
    ambient_metadata,
    log_recall,
    namespace_in,
    note_shown,
    recorded_domain,
    whose_keys,
)
from kp_langchain.recall.usable_calls import tool_names
from kp_langchain.recording.answers import objective_in
from kp_langchain.recording.handler import KPCallbackHandler
from kp_langchain.recording.langchain_context import ambient_run_id
from kp_langchain.run_keys import id_text
from kp_langchain.store import TraceStore
from kp_langchain.store.trace_store import default_store

try:
    from langchain.agents.middleware import AgentMiddleware
except ImportError as error:
    raise MissingExtraError(
        "KPMiddleware needs langchain, whose agents have middleware: "
        "pip install 'kp-langchain[agents]'"
    ) from error


if TYPE_CHECKING:
    from langchain.agents.middleware import ModelRequest, ModelResponse
    from langchain.agents.middleware.types import ToolCallRequest

    from kp_langchain.recall.agent_runs import OpenChain

    _Middleware = AgentMiddleware[Any, Any, Any]
else:
    _Middleware = AgentMiddleware  # with two parameters in langchain 1.0

_LONGEST_TASK_CHARS = 100_000
_LONGEST_DOMAIN_CHARS = 100


@dataclass(frozen=True, slots=True)
class _Run:
    """The run of the agent that calls a model or a tool now.

    Attributes:
        handlers: The handlers that record it.
        run_id: LangChain's id of the run around this code, if known.
        graph_id: That of the agent's graph, if known.
        metadata: The metadata of its config.
        notes: What is remembered until its graph ends.
    """

    handlers: list[KPCallbackHandler]
    run_id: UUID | None
    graph_id: UUID | None
    metadata: Mapping[str, Any]
    notes: dict[object, Any]

    @classmethod
    def of(cls, handlers: list[KPCallbackHandler], graph: OpenChain | None) -> Self:
        """Return the run around this code."""
        run_id, metadata = ambient_run_id(), ambient_metadata()
        if graph is None:
            return cls(handlers, run_id, None, metadata, {})
        return cls(handlers, run_id, graph.run_id, metadata, graph.notes)

    def key(self, task_id: str | None) -> str:
        """Return the text whose hash decides whether the run is held out.

        It is the id of the root run. In a LangGraph thread it is the thread's id with that of the
        message that states the task: a run that is resumed after a pause has another root run, but
        the same message. The first agent of a root run decides for all agents inside it.

        Args:
            task_id: The id of the message that states the task; None if it has none.
        """
        roots = (handler.root_run(self.run_id) for handler in self.handlers if self.run_id)
        root = next(filter(None, roots), self.graph_id)
        thread = id_text(self.metadata.get("thread_id"))
        key = f"{thread}\0{task_id}" if thread and task_id else str(root or uuid4())
        return str(agent_runs().notes_of(root).setdefault("held out by", key))


class _Search(NamedTuple):
    """A search for examples that is under way.

    Attributes:
        future: Its result.
        run: The run that it is for.
        task_id: The id of the message that states the task.
        domain: The domain of the run.
        is_ready: Whether the embedding model was loaded when it began.
    """

    future: Future[FoundPrompt]
    run: _Run
    task_id: str | None
    domain: str
    is_ready: bool


class KPMiddleware(_Middleware):
    """Shows each run of an agent the kept traces that may help it, and records the run.

        agent = create_agent(model, tools, middleware=[KPMiddleware("finance")])

    The examples stand in one message before the task, in what the model is asked and nowhere else:
    not in the state, and not in the trace of the run. They are marked as untrusted reference. A run
    for which nothing similar enough is kept is shown nothing, and a trace counts as less similar if
    it calls tools that the first model call is not offered. A run whose metadata name a namespace
    (`kp_namespace`, see `RunKeySources`) is shown traces of that namespace, and those without one.

    The middleware attaches a handler to each run. A run that has a `KPCallbackHandler` already, by
    its callbacks, `capture` or `KP_CAPTURE`, is recorded by that one alone.

    Args:
        domain: The domain of runs that name none; that of `handler` takes its place.
        handler: The handler to attach; by default one with `domain` and `store`.
        store: Where kept traces are searched: a `TraceStore`, or a database URL or file; by default
            that of the handler, or else of the settings.
        limit: Most examples for a run, 1 to 20.
        max_tokens: Longest text of all examples, in estimated tokens.
        held_out: Share of the runs (0 to below 1) that are shown nothing although something was
            found, so that the credit of traces can be measured against them.
        floor: The similarity (0 to 1) of tasks that is asked for; by default calibrated for the
            domain.
        with_outputs: Whether the outputs of tools are shown, and not only how they ended.
        timeout_s: Longest wait of a run for its examples, in seconds. If the search takes longer,
            the run goes without, and so do those that begin before that search is done. While the
            embedding model loads, no run waits: call `load` before the first one.
        embedder: As for `Scorer`.

    Raises:
        ConfigError: An argument or setting is unusable.
        MissingExtraError: Nothing that runs an embedding model is installed.
    """

    def __init__(
        self,
        domain: str = "default",
        *,
        handler: KPCallbackHandler | None = None,
        store: TraceStore | str | Path | None = None,
        limit: int = 1,
        max_tokens: int = 800,
        held_out: float = 0.1,
        floor: float | None = None,
        with_outputs: bool = False,
        timeout_s: float = 1.0,
        embedder: object = "auto",
    ) -> None:
        super().__init__()
        added = {*vars(self), "tools"}  # by a subclass, whose `__init__` calls this one
        self.tools = []
        check_options(limit, floor, max_tokens)
        if not 0 <= held_out < 1:
            raise ConfigError(f"held_out={held_out!r} must be a share from 0 to below 1")
        if not 0 < timeout_s < float("inf"):
            raise ConfigError(f"timeout_s={timeout_s!r} must be seconds above 0")
        searched = _store(store, handler)
        self._handler = handler or KPCallbackHandler(domain, store=searched)
        self._domain = self._handler.domain
        self._options: dict[str, Any] = {
            "limit": limit,
            "floor": floor,
            "max_tokens": max_tokens,
            "with_outputs": with_outputs,
        }
        self._arguments: dict[str, Any] = {
            **self._options,
            "handler": self._handler,
            "store": searched,
            "held_out": held_out,
            "timeout_s": timeout_s,
            "embedder": embedder,
        }
        self._held_out = held_out
        self._timeout_s = timeout_s
        self._search = prompt_search_of(search_of(searched, embedder))
        self._runs = agent_runs()
        self._key = object()  # of this middleware's notes
        self._keys = whose_keys()
        self._is_off = Settings.current().disabled
        self._own = {*vars(self), "_own"} - added
        if not self._is_off:
            self._search.catch_up(self._domain)

    def __getstate__(self) -> tuple[dict[str, Any], dict[str, Any]]:
        # Threads and locks stay here. What a subclass added goes along.
        added = {name: value for name, value in vars(self).items() if name not in self._own}
        return self._arguments, added

    def __setstate__(self, state: tuple[dict[str, Any], dict[str, Any]]) -> None:
        arguments, added = state
        KPMiddleware.__init__(self, **arguments)
        vars(self).update(added)

    def __copy__(self) -> KPMiddleware:
        return self

    def __deepcopy__(self, _memo: dict[int, Any]) -> KPMiddleware:
        return self

    @property
    def handler(self) -> KPCallbackHandler:
        """The handler that is attached to runs that have none."""
        return self._handler

    def load(self, timeout_s: float | None = None) -> bool:
        """Wait until the model is loaded and what is kept in the domain is ready to be searched.

        Args:
            timeout_s: Longest wait in seconds; None for no limit.

        Returns:
            Whether that was done in time.
        """
        self._search.catch_up(self._domain, all_at_once=True)
        return self._search.wait(timeout_s)

    # ---------------------------------------------------------------- LangChain's hooks

    def wrap_model_call(
        self,
        request: ModelRequest[Any],
        handler: Callable[[ModelRequest[Any]], ModelResponse[Any]],
    ) -> ModelResponse[Any]:
        """Call the model with examples before the task."""
        with _no_errors():
            request = self._with_examples(request)
        return handler(request)

    async def awrap_model_call(
        self,
        request: ModelRequest[Any],
        handler: Callable[[ModelRequest[Any]], Awaitable[ModelResponse[Any]]],
    ) -> ModelResponse[Any]:
        """Call the model with examples before the task."""
        with _no_errors():
            request = await self._awith_examples(request)
        return await handler(request)

    def wrap_tool_call(
        self, request: ToolCallRequest, handler: Callable[[ToolCallRequest], Any]
    ) -> Any:
        """Call the tool; a run that is resumed at a tool is recorded from here on."""
        with _no_errors():
            self._attach()
        return handler(request)

    async def awrap_tool_call(
        self, request: ToolCallRequest, handler: Callable[[ToolCallRequest], Awaitable[Any]]
    ) -> Any:
        """Call the tool; a run that is resumed at a tool is recorded from here on."""
        with _no_errors():
            self._attach()
        return await handler(request)

    # ---------------------------------------------------------------- what they do

    def _attach(self) -> list[KPCallbackHandler]:
        """Return the handlers of this run, after attaching one to it if it has none."""
        if self._is_off:
            return []
        handlers = ambient_handlers()
        if handlers or self._handler.ignore_chain:  # it is closed
            return handlers
        self._runs.follow(self._handler, self._keys)
        return [self._handler]

    def _with_examples(self, request: ModelRequest[Any]) -> ModelRequest[Any]:
        if self._is_off:
            return request
        run = _Run.of(self._attach(), self._runs.current_graph())
        if self._key not in run.notes:
            search = self._start_search(request, run)
            self._settle(search, self._result_of(search, self._timeout_s))
        return _changed(request, run.notes[self._key])

    async def _awith_examples(self, request: ModelRequest[Any]) -> ModelRequest[Any]:
        if self._is_off:
            return request
        run = _Run.of(self._attach(), self._runs.current_graph())
        if self._key not in run.notes:
            search = self._start_search(request, run)
            if not search.future.done() and search.is_ready:
                await asyncio.wait([asyncio.wrap_future(search.future)], timeout=self._timeout_s)
            self._settle(search, self._result_of(search, 0.0))
        return _changed(request, run.notes[self._key])

    def _start_search(self, request: ModelRequest[Any], run: _Run) -> _Search:
        """Begin to search for examples."""
        messages = request.messages
        position = task_position(messages)
        task_id = None if position is None else messages[position].id
        domain = id_text(run.metadata.get("kp_domain"))[:_LONGEST_DOMAIN_CHARS] or self._domain
        if domain != self._domain:
            domain = recorded_domain(domain)
        task = objective_in(messages, _LONGEST_TASK_CHARS)
        wanted = Request(
            task,
            domain,
            namespace_in(run.metadata),
            **self._options,
            tools=tool_names(request.tools),
        )
        is_ready = self._search.is_ready
        return _Search(self._search.submit(wanted), run, task_id, domain, is_ready)

    def _result_of(self, search: _Search, timeout_s: float) -> FoundPrompt:
        """Return what a search found within a time; nothing, with the reason, if it did not."""
        if search.is_ready:
            wait([search.future], timeout_s)
        if search.future.done():
            return search.future.result()
        self._search.give_up(search.future)
        reason = "the search took too long"
        if not search.is_ready:
            reason = "the embedding model is still loading, which load() waits for"
        return FoundPrompt(search.domain, reason=reason)

    def _settle(self, search: _Search, prompt: FoundPrompt) -> None:
        """Decide what the run is shown, note it and log it."""
        run, text, reason = search.run, prompt.text, prompt.reason
        is_held_out = bool(text) and _share_of(run.key(search.task_id)) < self._held_out
        if is_held_out:
            text, reason = "", "the run is held out, so that others can be compared with it"
        note_shown(prompt.examples, text, held_out=is_held_out, handlers=run.handlers)
        run.notes[self._key] = ExamplesPrompt(text, search.task_id)
        log_recall(run.graph_id, prompt.domain, prompt.examples, text, prompt.floor, reason)


def _changed(request: ModelRequest[Any], prompt: ExamplesPrompt) -> ModelRequest[Any]:
    if not prompt.text:
        return request
    return request.override(messages=prompt.added_to(request.messages))


def _store(store: TraceStore | str | Path | None, handler: KPCallbackHandler | None) -> TraceStore:
    if isinstance(store, TraceStore):
        return store
    if store is not None or handler is None:
        return default_store(store)
    if handler.store is None:
        raise ConfigError(
            "the handler keeps no runs (store=None), so there is nothing to show; give store="
        )
    return handler.store


def _share_of(key: str) -> float:
    """Return a number from 0 to below 1 that is always the same for a key, and evenly spread."""
    digest = hashlib.sha256(key.encode(errors="surrogatepass")).digest()
    return int.from_bytes(digest[:7], "big") / 2**56


@contextmanager
def _no_errors() -> Iterator[None]:
    """Keep failures of this package from the agent, which then runs without examples."""
    try:
        yield
    except Exception as error:  # noqa: BLE001 - nothing of it may reach the agent
        warn_of_failure(error)
