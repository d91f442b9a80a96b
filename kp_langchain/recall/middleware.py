"""`KPMiddleware`: shows the runs of an agent kept traces, and records the runs."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, wait
from contextlib import contextmanager
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from uuid import UUID, uuid4

from langchain_core.messages import AnyMessage, HumanMessage, SystemMessage

from kp_langchain._logging import log_event
from kp_langchain.config import Settings
from kp_langchain.errors import ConfigError, MissingExtraError
from kp_langchain.recall.agent_runs import (
    agent_runs,
    ambient_handlers,
    ambient_metadata,
    namespace_in,
    note_shown,
)
from kp_langchain.recall.example_search import check_options, search_of
from kp_langchain.recall.prompt_search import (
    Request,
    Response,
    prompt_search_of,
    warn_of_failure,
)
from kp_langchain.recording.answers import objective_in
from kp_langchain.recording.handler import KPCallbackHandler
from kp_langchain.recording.langchain_context import ambient_run_id
from kp_langchain.recording.values import role_and_content
from kp_langchain.redaction import redact
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

    _Middleware = AgentMiddleware[Any, Any, Any]
else:
    _Middleware = AgentMiddleware  # with two parameters in langchain 1.0

_LONGEST_TASK_CHARS = 100_000
_LONGEST_DOMAIN_CHARS = 100


class _Run(NamedTuple):
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

    future: Future[Response]
    run: _Run
    task_id: str | None
    domain: str
    is_ready: bool


class _Prompt(NamedTuple):
    """What the model calls of one agent's run are shown.

    Attributes:
        text: The examples; "" for none.
        task_id: The id of the message that states the task; None if it has none.
    """

    text: str
    task_id: str | None


class KPMiddleware(_Middleware):
    """Shows each run of an agent the kept traces that may help it, and records the run.

        agent = create_agent(model, tools, middleware=[KPMiddleware("finance")])

    The examples stand in one message before the task, in what the model is asked and nowhere else:
    not in the state, and not in the trace of the run. They are marked as untrusted reference. A run
    for which nothing similar enough is kept is shown nothing, and a trace counts as less similar if
    it calls tools that the first model call is not offered. A run whose metadata name a namespace
    (`kp_namespace`) is shown traces of that namespace, and those without one.

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
        self.tools = []
        check_options(limit, floor, max_tokens)
        if not 0 <= held_out < 1:
            raise ConfigError(f"held_out={held_out!r} must be a share from 0 to below 1")
        if not 0 < timeout_s < float("inf"):
            raise ConfigError(f"timeout_s={timeout_s!r} must be seconds above 0")
        self._store = _store(store, handler)
        self._embedder = embedder
        self._handler = handler or KPCallbackHandler(domain, store=self._store)
        self._domain = self._handler.domain
        self._options: dict[str, Any] = {
            "limit": limit,
            "floor": floor,
            "max_tokens": max_tokens,
            "with_outputs": with_outputs,
        }
        self._held_out = held_out
        self._timeout_s = timeout_s
        self._key = object()  # of this middleware's notes
        self._runs = agent_runs()
        self._start()

    def _start(self) -> None:
        self._is_off = Settings.current().disabled
        self._search = prompt_search_of(search_of(self._store, self._embedder))
        if not self._is_off:
            self._search.catch_up(self._domain)

    def __getstate__(self) -> dict[str, Any]:
        # Threads and locks stay here.
        return {name: value for name, value in vars(self).items() if name != "_search"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._start()

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
        self._runs.follow(self._handler)
        return [self._handler]

    def _with_examples(self, request: ModelRequest[Any]) -> ModelRequest[Any]:
        if self._is_off:
            return request
        run = self._run()
        if self._key not in run.notes:
            search = self._start_search(request, run)
            if search.is_ready:
                wait([search.future], self._timeout_s)
            self._finish(search)
        return _with_text(request, run.notes[self._key])

    async def _awith_examples(self, request: ModelRequest[Any]) -> ModelRequest[Any]:
        if self._is_off:
            return request
        run = self._run()
        if self._key not in run.notes:
            search = self._start_search(request, run)
            if search.is_ready and not search.future.done():
                await asyncio.wait([asyncio.wrap_future(search.future)], timeout=self._timeout_s)
            self._finish(search)
        return _with_text(request, run.notes[self._key])

    def _run(self) -> _Run:
        """Return the run around this code."""
        handlers, graph = self._attach(), self._runs.current_graph()
        graph_id, notes = (None, {}) if graph is None else (graph.run_id, graph.notes)
        return _Run(handlers, ambient_run_id(), graph_id, ambient_metadata(), notes)

    def _start_search(self, request: ModelRequest[Any], run: _Run) -> _Search:
        """Begin to search for examples."""
        messages = request.messages
        position = _task_position(messages)
        task_id = None if position is None else messages[position].id
        domain = id_text(run.metadata.get("kp_domain"))[:_LONGEST_DOMAIN_CHARS] or self._domain
        if domain != self._domain:  # as it is recorded
            rules = Settings.current().redaction
            domain = str(redact(domain, level="aggregated", rules=rules).value)
        question = Request(
            objective_in(messages, _LONGEST_TASK_CHARS),
            domain,
            namespace_in(run.metadata),
            **self._options,
            tools=_tool_names(request.tools),
        )
        is_ready = self._search.is_ready
        return _Search(self._search.submit(question), run, task_id, domain, is_ready)

    def _finish(self, search: _Search) -> None:
        """Decide what the run is shown, note it and log it; nothing if the search is not done."""
        if search.future.done():
            response = search.future.result()
        else:
            self._search.give_up(search.future)
            reason = "the search took too long"
            if not search.is_ready:
                reason = "the embedding model is still loading, which load() waits for"
            response = Response(reason=reason)
        run, text, reason = search.run, response.text, response.reason
        is_held_out = bool(text) and _share_of(run.key(search.task_id)) < self._held_out
        if is_held_out:
            text, reason = "", "the run is held out, so that others can be compared with it"
        note_shown(response.examples, text, held_out=is_held_out, handlers=run.handlers)
        run.notes[self._key] = _Prompt(text, search.task_id)
        _log(search, response, text, reason)


def _with_text(request: ModelRequest[Any], prompt: _Prompt) -> ModelRequest[Any]:
    """Return a request with the examples before the message that states the task.

    If that was summarised or trimmed away, they stand before the last message of a human, or at the
    beginning, after system messages.
    """
    if not prompt.text:
        return request
    messages = request.messages
    by_id = [n for n, one in enumerate(messages) if prompt.task_id and one.id == prompt.task_id]
    at = by_id[-1] if by_id else _task_position(messages)
    if at is None:
        at = sum(1 for _ in takewhile(lambda one: isinstance(one, SystemMessage), messages))
    return request.override(messages=[*messages[:at], HumanMessage(prompt.text), *messages[at:]])


def _task_position(messages: Sequence[AnyMessage]) -> int | None:
    """Return the place of the last message of a human; None if there is none."""
    for at in range(len(messages) - 1, -1, -1):
        if role_and_content(messages[at])[0] in ("human", "user"):
            return at
    return None


def _tool_names(tools: Sequence[object]) -> frozenset[str]:
    """Return the names under which tools are called; none if that of one is unknown."""
    names = [_tool_name(tool) for tool in tools]
    return frozenset(names) if all(names) else frozenset()


def _tool_name(tool: object) -> str:
    if not isinstance(tool, dict):
        name = getattr(tool, "name", "")  # a function has none
    elif tool.get("type") not in (None, "function", "custom"):
        name = ""  # a tool of the provider, whose calls may have other names
    else:
        function = tool.get("function")
        name = (function if isinstance(function, dict) else tool).get("name")
    return name if isinstance(name, str) else ""


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


def _log(search: _Search, response: Response, text: str, reason: str) -> None:
    """Write the record `kp.recall` of what a run is shown, or why it is shown nothing."""
    examples, run_id = response.examples, search.run.graph_id
    shown = ", ".join(f"{one.trace_id} (similarity {one.similarity:.2f})" for one in examples)
    log_event(
        "kp.recall %s %s",
        search.domain,
        f"shown {shown}" if text else f"nothing shown: {reason}",
        fields={
            "kp_event": "kp.recall",
            "run_id": None if run_id is None else str(run_id),
            "domain": search.domain,
            "shown": [one.trace_id for one in examples] if text else [],
            "similarities": [one.similarity for one in examples],
            "trust": [one.trust for one in examples],
            "credit": [one.credit for one in examples],
            "floor": response.floor,
            "characters": len(text),
            "reason": reason,
        },
    )


@contextmanager
def _no_errors() -> Iterator[None]:
    """Keep failures of this package from the agent, which then runs without examples."""
    try:
        yield
    except Exception as error:  # noqa: BLE001 - nothing of it may reach the agent
        warn_of_failure(error)
