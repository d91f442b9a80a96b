"""`KPMiddleware`: shows the runs of an agent kept traces, and records the runs."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Awaitable, Callable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Self
from uuid import UUID, uuid4

from kp_langchain._host_exceptions import raised_by_host
from kp_langchain._logging import describe_error, warn_once
from kp_langchain.config import Settings
from kp_langchain.errors import ConfigError, MissingExtraError
from kp_langchain.recall.agent_runs import agent_runs
from kp_langchain.recall.example import Examples
from kp_langchain.recall.example_search import check_options, search_of
from kp_langchain.recall.examples_prompt import ExamplesPrompt
from kp_langchain.recall.few_shot import compose_few_shot
from kp_langchain.recall.recall_log import (
    ambient_handlers,
    ambient_metadata,
    log_recall,
    namespace_in,
    note_shown,
)
from kp_langchain.recording.handler import KPCallbackHandler
from kp_langchain.recording.objective import objective_in
from kp_langchain.recording.worker import Worker
from kp_langchain.run_keys import id_text
from kp_langchain.store import TraceStore
from kp_langchain.store.shared_stores import default_store

try:
    from langchain.agents.middleware import AgentMiddleware
except ImportError as error:
    raise MissingExtraError(
        "KPMiddleware needs langchain, whose agents have middleware: "
        "pip install 'kp-langchain[agents]'"
    ) from error

from langchain_core.messages import HumanMessage

if TYPE_CHECKING:
    from langchain.agents.middleware import ModelRequest, ModelResponse
    from langchain.agents.middleware.types import ToolCallRequest

    from kp_langchain.recall.agent_runs import OpenChain

if TYPE_CHECKING:
    _Middleware = AgentMiddleware[Any, Any, Any]
else:
    _Middleware = AgentMiddleware  # with two parameters in langchain 1.0

_LONGEST_TASK_CHARS = 100_000
_LONGEST_DOMAIN_CHARS = 100
# So many are embedded before a run gets its examples; the rest follows when it has them.
_MOST_NEW_AT_ONCE = 16


@dataclass(frozen=True, slots=True)
class _Run:
    """The run of an agent in which a model is called.

    Attributes:
        handlers: The handlers that record it.
        run_id: LangChain's id of its graph; None if that is not known.
        metadata: The metadata of its config.
        notes: What is remembered until its graph ends.
    """

    handlers: list[KPCallbackHandler]
    run_id: UUID | None
    metadata: Mapping[str, Any]
    notes: dict[object, Any]

    @classmethod
    def of(cls, handlers: list[KPCallbackHandler], graph: OpenChain | None) -> Self:
        """Return the run around this code."""
        metadata = ambient_metadata()
        if graph is None:
            return cls(handlers, None, metadata, {})
        return cls(handlers, graph.run_id, metadata, graph.notes)

    def key(self, task: str) -> str:
        """Return what decides whether it is held out: the same before and after a pause."""
        thread = id_text(self.metadata.get("thread_id"))
        return f"{thread}\0{task}" if thread else str(self.run_id or uuid4())


class _Search(NamedTuple):
    """A search for examples that is under way.

    Attributes:
        future: Its result.
        run: The run that it is for.
        task: The task of the run.
        domain: The domain of the run.
        before: The place of the message that states the task.
        before_id: The id of that message.
    """

    future: Future[Examples]
    run: _Run
    task: str
    domain: str
    before: int
    before_id: str | None


class KPMiddleware(_Middleware):
    """Shows each run of an agent the kept traces that may help it, and records the run.

        agent = create_agent(model, tools, middleware=[KPMiddleware("finance")])

    The examples stand in one message before the task, in what the model is asked and nowhere else:
    not in the state, and not in the trace of the run. They are marked as untrusted reference. A run
    for which nothing similar enough is kept is shown nothing. One whose metadata name a namespace
    (`kp_namespace`, see `RunKeySources`) is shown traces of that namespace and of none.

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
            such as while the embedding model loads, the run goes without.
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
        searched = _store(store, handler)
        self._search = search_of(searched, embedder)
        self._handler = handler or KPCallbackHandler(domain, store=searched)
        self._domain = self._handler.domain
        self._limit = limit
        self._max_tokens = max_tokens
        self._held_out = held_out
        self._floor = floor
        self._with_outputs = with_outputs
        self._timeout_s = timeout_s
        self._runs = agent_runs()
        self._worker = _worker
        self._key = object()  # of this middleware's notes
        self._is_off = Settings.current().disabled
        if not self._is_off:
            self._worker.submit(partial(self._catch_up, self._domain))

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
        self._worker.submit(partial(self._catch_up, self._domain, all_at_once=True))
        return self._worker.wait(timeout_s)

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
        if handlers:
            return handlers
        self._runs.follow(self._handler)
        return [self._handler]

    def _with_examples(self, request: ModelRequest[Any]) -> ModelRequest[Any]:
        if self._is_off:
            return request
        run = _Run.of(self._attach(), self._runs.current_graph())
        if self._key not in run.notes:
            search = self._start_search(request, run)
            self._settle(search, _result_of(search, self._timeout_s))
        return _changed(request, run.notes[self._key])

    async def _awith_examples(self, request: ModelRequest[Any]) -> ModelRequest[Any]:
        if self._is_off:
            return request
        run = _Run.of(self._attach(), self._runs.current_graph())
        if self._key not in run.notes:
            search = self._start_search(request, run)
            # In another thread, because a search that is late is waited for in the same way.
            await asyncio.wait([asyncio.wrap_future(search.future)], timeout=self._timeout_s)
            self._settle(search, _result_of(search, 0.0))
        return _changed(request, run.notes[self._key])

    def _start_search(self, request: ModelRequest[Any], run: _Run) -> _Search:
        """Begin to search for examples on the worker."""
        messages = request.messages
        task = objective_in(messages, _LONGEST_TASK_CHARS)
        human = [at for at, one in enumerate(messages) if isinstance(one, HumanMessage)]
        at = human[-1] if human else 0
        before_id = messages[at].id if human else None
        domain = id_text(run.metadata.get("kp_domain"))[:_LONGEST_DOMAIN_CHARS] or self._domain
        namespace = namespace_in(run.metadata)
        future: Future[Examples] = Future()
        search = _Search(future, run, task, domain, at, before_id)

        def find() -> None:
            if not future.set_running_or_notify_cancel():
                return
            try:
                examples = self._search.find(
                    task,
                    domain=domain,
                    namespace=namespace,
                    limit=self._limit,
                    floor=self._floor,
                    most_new=_MOST_NEW_AT_ONCE,
                )
            except BaseException as error:  # noqa: BLE001 - the run goes on without examples
                warn_of_failure(error)
                examples = Examples(reason=f"the search failed: {describe_error(error)}")
            future.set_result(examples)
            if not examples.is_complete:
                self._worker.submit(partial(self._catch_up, domain))

        self._worker.submit(find)
        return search

    def _settle(self, search: _Search, examples: Examples) -> None:
        """Decide what the run is shown, note it and log it."""
        run, found = search.run, examples.found
        is_held_out = bool(found) and _share_of(run.key(search.task)) < self._held_out
        text, reason = "", examples.reason
        if is_held_out:
            reason = "the run is held out, so that others can be compared with it"
        elif found:
            few_shot = compose_few_shot(
                [one.trace for one in found],
                max_tokens=self._max_tokens,
                with_outputs=self._with_outputs,
            )
            text, found = few_shot.text, tuple(found[at] for at in few_shot.shown)
            reason = "" if found else f"no example fits in max_tokens={self._max_tokens}"
        note_shown(found, text, held_out=is_held_out, handlers=run.handlers)
        run.notes[self._key] = ExamplesPrompt(text, search.before_id, search.before)
        log_recall(run.run_id, search.domain, found, text, examples.floor, reason)

    def _catch_up(self, domain: str, *, all_at_once: bool = False) -> None:
        """Bring the index of a domain up to date, in parts, between which others may search."""
        try:
            most_new = None if all_at_once else _MOST_NEW_AT_ONCE
            is_complete = self._search.update(domain, most_new=most_new)
        except Exception as error:  # noqa: BLE001 - the search will say so when it is needed
            warn_of_failure(error)
        else:
            if not is_complete:
                self._worker.submit(partial(self._catch_up, domain))


def _result_of(search: _Search, timeout_s: float) -> Examples:
    """Return what a search found within a time; nothing, with the reason, if it did not."""
    try:
        return search.future.result(timeout_s)
    except TimeoutError:
        search.future.cancel()
        return Examples(reason="the search took too long")


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
    except Exception as error:
        if raised_by_host(error):
            raise
        warn_of_failure(error)


def warn_of_failure(error: BaseException) -> None:
    """Warn once of each kind of failure."""
    warn_once(
        f"recall:{type(error).__name__}",
        "kept traces cannot be searched (%s); runs are shown no examples",
        describe_error(error),
    )


_worker = Worker("kp_langchain recall")
