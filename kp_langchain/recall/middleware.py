"""`KPMiddleware`: shows the runs of an agent kept traces."""

from __future__ import annotations

import asyncio
import hashlib
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterator, Sequence
from concurrent.futures import Future, wait
from contextlib import contextmanager
from functools import partial
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar
from uuid import uuid4

from langchain_core.messages import AnyMessage, HumanMessage, SystemMessage

from kp_langchain._forksafe import ForkSafeLock, leave_in_child
from kp_langchain._logging import describe_error, log_event, warn_once
from kp_langchain.config import Settings
from kp_langchain.errors import ConfigError, MissingExtraError
from kp_langchain.recall.chains import (
    ambient_handlers,
    ambient_metadata,
    namespace_in,
    note_shown,
)
from kp_langchain.recall.example_search import AS_GOOD, check_options, search_of
from kp_langchain.recall.few_shot import check_calls
from kp_langchain.recall.ranking import KINDS, check_kinds
from kp_langchain.recording.answers import objective_in
from kp_langchain.recording.langchain_context import ambient_run_id
from kp_langchain.recording.user_calls import SEARCHING, lane_for
from kp_langchain.recording.values import role_and_content
from kp_langchain.redaction import redact
from kp_langchain.run_keys import id_text
from kp_langchain.store import TraceStore, default_store

try:
    from langchain.agents.middleware import AgentMiddleware
except ImportError as error:
    raise MissingExtraError(
        "KPMiddleware needs langchain, whose agents have middleware: "
        "pip install 'kp-langchain[agents]'"
    ) from error


if TYPE_CHECKING:
    from uuid import UUID

    from langchain.agents.middleware import ModelRequest, ModelResponse

    from kp_langchain.recall.example_search import Example
    from kp_langchain.recall.few_shot import Calls
    from kp_langchain.recall.ranking import Kind

    _Middleware = AgentMiddleware[Any, Any, Any]
else:
    _Middleware = AgentMiddleware  # with two parameters in langchain 1.0

_LONGEST_TASK_CHARS = 100_000
_LONGEST_DOMAIN_CHARS = 100
_MOST_RUNS = 1_000  # whose examples are remembered; 4 MB at most
_Value = TypeVar("_Value")


class _Response(NamedTuple):
    """What a search for examples returned.

    Attributes:
        examples: The examples that `text` shows; empty if there are none.
        text: The text; "" for none.
        floor: The similarity that was asked for, 0 to 1.
        reason: Why there are no examples, in words; empty if there are some.
    """

    examples: tuple[Example, ...] = ()
    text: str = ""
    floor: float = 0.0
    reason: str = ""


class _Search(NamedTuple):
    """A search for examples that is under way.

    Attributes:
        future: Its result.
        task_id: The id of the message that states the task; None if it has none.
        domain: The domain of the run.
        thread: The id of the run's thread; "" for none.
        runs: The ids of the run around this code and of those around it, the root last; empty if
            no handler records it.
    """

    future: Future[_Response]
    task_id: str | None
    domain: str
    thread: str
    runs: tuple[UUID, ...]


class _Prompt(NamedTuple):
    """What the model calls of one agent's run are shown.

    Attributes:
        text: The examples; "" for none.
        task_id: The id of the message that states the task; None if it has none.
    """

    text: str
    task_id: str | None


class KPMiddleware(_Middleware):
    """Shows each run of an agent the kept traces that may help it.

        agent = create_agent(model, tools, middleware=[KPMiddleware("finance")])
        agent.invoke(inputs, {"callbacks": [KPCallbackHandler("finance")]})

    The model is asked with one more message before the task, marked as untrusted reference. Neither
    the agent's state nor the trace has it. Without a kept trace that is similar enough, nothing is
    shown. A trace counts as less similar if it calls tools that the agent's first model call does
    not offer. A run whose metadata name a namespace (`kp_namespace`) is shown traces of that
    namespace, and those without one.

    It records nothing. A `KPCallbackHandler` on the run, by its callbacks, `capture` or
    `KP_CAPTURE`, notes what the run is shown. Without one, examples are searched anew for each
    model call, and count for no credit.

    Args:
        domain: The domain of runs that name none.
        store: Where kept traces are searched: a `TraceStore`, or a database URL or file; by default
            that of the settings.
        limit: Most examples for a run, 1 to 20. There is more than one only where others are about
            as similar as the first, and fit.
        max_tokens: Longest text of all examples, in estimated tokens.
        held_out: Share of the runs (0 to below 1) that are shown nothing despite matches, to
            measure the credit of traces.
        floor: The similarity (0 to 1) of tasks that is asked for; by default calibrated for the
            domain.
        with_outputs: Whether whole outputs of tools are shown, and not only values of them.
        calls: Which calls of a trace are shown: `deciding`, those that its answer rests on, or
            `all`.
        kinds: What is shown: `trace`, `pattern` (one that was admitted) or both, the preferred
            first. Of a pattern and a trace with its plan, one is shown.
        timeout_s: Longest wait of a run for its examples, in seconds. If the search takes longer,
            the run goes without, and so do those that begin before that search is done. The first
            search waits for the embedding model to load: call `load` before the first run.
        embedder: As for `Scorer`.

    Raises:
        ConfigError: An argument or setting is unusable.
        MissingExtraError: Nothing that runs an embedding model is installed.
    """

    def __init__(
        self,
        domain: str = "default",
        *,
        store: TraceStore | str | Path | None = None,
        limit: int = 3,
        max_tokens: int = 800,
        held_out: float = 0.1,
        floor: float | None = None,
        with_outputs: bool = False,
        calls: Calls = "deciding",
        kinds: Sequence[Kind] = KINDS,
        timeout_s: float = 1.0,
        embedder: object = "auto",
    ) -> None:
        super().__init__()
        self.tools = []
        check_options(limit, floor, max_tokens)
        check_calls(calls)
        check_kinds(kinds)
        if not 0 <= held_out < 1:
            raise ConfigError(f"held_out={held_out!r} must be a share from 0 to below 1")
        if not 0 < timeout_s < float("inf"):
            raise ConfigError(f"timeout_s={timeout_s!r} must be seconds above 0")
        self._domain = domain
        self._limit, self._floor = limit, floor
        self._max_tokens, self._with_outputs, self._calls = max_tokens, with_outputs, calls
        self._kinds = tuple(kinds)
        self._held_out = held_out
        self._timeout_s = timeout_s
        self._search = search_of(
            store if isinstance(store, TraceStore) else default_store(store), embedder
        )
        # A model or a database that hangs delays nobody who uses another one.
        self._lane = lane_for(self._search, SEARCHING)
        # By the ids of the agent's graph, and of the root run.
        self._prompts: OrderedDict[UUID | None, _Prompt] = OrderedDict()
        self._hold_out_keys: OrderedDict[UUID | None, str] = OrderedDict()
        self._lock = ForkSafeLock()
        self.leave_to_parent()
        leave_in_child(self)
        self._is_off = Settings.current().disabled
        if not self._is_off:
            self._lane.submit(partial(self._update, self._domain))

    def leave_to_parent(self) -> None:
        """Forget, in a forked child, the search that is late: it is the parent's."""
        self._late: Future[_Response] | None = None

    def load(self, timeout_s: float | None = None) -> bool:
        """Wait until the model is loaded and what is kept in the domain is ready to be searched.

        Args:
            timeout_s: Longest wait in seconds; None for no limit.

        Returns:
            Whether that was done in time.
        """
        self._lane.submit(partial(self._update, self._domain))
        return self._lane.wait(timeout_s)

    # ---------------------------------------------------------------- LangChain's hooks

    def wrap_model_call(
        self,
        request: ModelRequest[Any],
        handler: Callable[[ModelRequest[Any]], ModelResponse[Any]],
    ) -> ModelResponse[Any]:
        """Call the model with examples before the task."""
        with _no_errors():
            search = self._start_search(request)
            if search is not None:
                wait([search.future], self._timeout_s)
            request = self._with_examples(request, search)
        return handler(request)

    async def awrap_model_call(
        self,
        request: ModelRequest[Any],
        handler: Callable[[ModelRequest[Any]], Awaitable[ModelResponse[Any]]],
    ) -> ModelResponse[Any]:
        """Call the model with examples before the task."""
        with _no_errors():
            search = self._start_search(request)
            if search is not None:
                await asyncio.wait([asyncio.wrap_future(search.future)], timeout=self._timeout_s)
            request = self._with_examples(request, search)
        return await handler(request)

    def _start_search(self, request: ModelRequest[Any]) -> _Search | None:
        """Begin a search for the first model call of an agent's run; return None for others."""
        runs = _runs_around()
        if self._is_off or _graph_in(runs) in self._prompts:
            return None
        messages, metadata = request.messages, ambient_metadata()
        position = _task_position(messages)
        task_id = None if position is None else messages[position].id
        domain = id_text(metadata.get("kp_domain"))[:_LONGEST_DOMAIN_CHARS] or self._domain
        if domain != self._domain:  # as it is recorded
            rules = Settings.current().redaction
            domain = str(redact(domain, level="aggregated", rules=rules).value)
        future: Future[_Response] = Future()
        if self._late is not None and not self._late.done():
            future.set_result(_Response(reason="an earlier search still takes too long"))
        else:
            find = partial(
                self._find,
                objective_in(messages, _LONGEST_TASK_CHARS),
                domain,
                namespace_in(metadata),
                _tool_names(request.tools),
            )
            self._lane.submit(partial(_answer, future, find))
            self._lane.submit(partial(self._update, domain))  # after the answer: it may take long
        return _Search(future, task_id, domain, id_text(metadata.get("thread_id")), runs)

    def _with_examples(
        self, request: ModelRequest[Any], search: _Search | None
    ) -> ModelRequest[Any]:
        """Return a request with what its run is shown: that of a search, or of an earlier call."""
        if self._is_off:
            return request
        if search is not None:
            return _with_text(request, self._finish(search))
        # Forgotten meanwhile if a thousand others began: then it is shown nothing more.
        return _with_text(request, self._prompts.get(_graph_in(_runs_around()), _Prompt("", None)))

    def _finish(self, search: _Search) -> _Prompt:
        """Decide what the run is shown, note it and log it; nothing if the search is not done."""
        if search.future.done():
            response = search.future.result()
        else:
            response = _Response(reason="the search took too long")
            if self._late is None or self._late.done():
                self._late = search.future
            else:
                search.future.cancel()  # one that is late is enough
        text, reason = response.text, response.reason
        is_held_out = bool(text) and _share_of(self._hold_out_key(search)) < self._held_out
        if is_held_out:
            text, reason = "", "the run is held out, so that others can be compared with it"
        is_drawn = self._held_out > 0
        note_shown(response.examples, text, held_out=is_held_out, is_drawn=is_drawn)
        _log(search, response, text, reason)
        prompt = _Prompt(text, search.task_id)
        return self._remembered(self._prompts, _graph_in(search.runs), prompt)

    def _hold_out_key(self, search: _Search) -> str:
        """Return the text whose hash decides whether the run is held out.

        It is the id of the root run, or the ids of a LangGraph thread and of the task's message,
        which stay the same when a paused run is resumed. The first agent of a root run decides for
        all agents inside it.
        """
        root = search.runs[-1] if search.runs else None
        key = str(root or uuid4())
        if search.thread and search.task_id and root:
            key = f"{search.thread}\0{search.task_id}"
        return self._remembered(self._hold_out_keys, root, key)

    def _remembered(
        self, values: OrderedDict[UUID | None, _Value], run_id: UUID | None, value: _Value
    ) -> _Value:
        """Return the value of a run, which is set if it has none; the oldest are forgotten."""
        if run_id is None:
            return value
        with self._lock:
            value = values.setdefault(run_id, value)
            if len(values) > _MOST_RUNS:
                values.popitem(last=False)
            return value

    # ---------------------------------------------------------------- on the lane's thread

    def _find(
        self, task: str, domain: str, namespace: str | None, tools: frozenset[str]
    ) -> _Response:
        examples = self._search.find(
            task,
            domain=domain,
            namespace=namespace,
            limit=self._limit,
            floor=self._floor,
            tools=tools,
            of_first=AS_GOOD,
            kinds=self._kinds,
            counts=False,
        )
        if not examples.matches:
            return _Response(floor=examples.floor, reason=examples.reason)
        few_shot = examples.compose(
            max_tokens=self._max_tokens, with_outputs=self._with_outputs, calls=self._calls
        )
        shown = tuple(examples.matches[at] for at in few_shot.shown)
        reason = "" if shown else f"no example fits in max_tokens={self._max_tokens}"
        return _Response(shown, few_shot.text, examples.floor, reason)

    def _update(self, domain: str) -> None:
        with _no_errors():
            self._search.update(domain)


def _runs_around() -> tuple[UUID, ...]:
    """Return the ids of the run around this code and of those around it, the root last.

    As the first handler that records them sees it; empty if none does.
    """
    run_id = ambient_run_id()
    if run_id is None:
        return ()
    paths = (handler.runs_around(run_id) for handler in ambient_handlers())
    return next(filter(None, paths), ())


def _graph_in(runs: Sequence[UUID]) -> UUID | None:
    """Return the id of the agent's graph, inside which is the node that calls the model."""
    return runs[min(1, len(runs) - 1)] if runs else None


def _answer(future: Future[_Response], find: Callable[[], _Response]) -> None:
    """Set the result of a search, unless nobody waits for it any more."""
    if not future.set_running_or_notify_cancel():
        return
    try:
        response = find()
    except BaseException as error:  # noqa: BLE001 - of the user's embedder
        _warn_of_failure(error)
        response = _Response(reason=f"the search failed: {describe_error(error)}")
    future.set_result(response)


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
    name = getattr(tool, "name", "")  # a function has none
    # Calls of a tool of the provider's may have other names.
    if isinstance(tool, dict) and tool.get("type") in (None, "function", "custom"):
        function = tool.get("function")
        name = (function if isinstance(function, dict) else tool).get("name")
    return name if isinstance(name, str) else ""


def _share_of(key: str) -> float:
    """Return a number from 0 to below 1 that is always the same for a key, and evenly spread."""
    digest = hashlib.sha256(key.encode(errors="surrogatepass")).digest()
    return int.from_bytes(digest[:7], "big") / 2**56


def _log(search: _Search, response: _Response, text: str, reason: str) -> None:
    """Write the record `kp.recall` of what a run is shown, or why it is shown nothing."""
    examples = response.examples
    shown = ", ".join(f"{one.trace_id} (similarity {one.similarity:.2f})" for one in examples)
    log_event(
        "kp.recall %s %s",
        search.domain,
        f"shown {shown}" if text else f"nothing shown: {reason}",
        fields={
            "kp_event": "kp.recall",
            "run_id": str(_graph_in(search.runs)) if search.runs else None,
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
        _warn_of_failure(error)


def _warn_of_failure(error: BaseException) -> None:
    """Warn once of each kind of failure."""
    warn_once(
        f"recall:{type(error).__name__}",
        "kept traces cannot be searched (%s); runs are shown no examples",
        describe_error(error),
    )
