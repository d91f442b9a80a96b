"""LangChain's callbacks: their arguments in, plain events for the recorder out.

Nothing else in the package knows LangChain's callbacks. They run inline on a plain
`BaseCallbackHandler`. A tracer would cost the agent about 110 us an event. A handler that is not
inline would cost async agents 40 % CPU.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast
from uuid import UUID

from langchain_core.callbacks import BaseCallbackHandler

from kp_langchain._host_exceptions import raised_by_host
from kp_langchain._logging import describe_error, warn_once
from kp_langchain.recording.run_start import Start

if TYPE_CHECKING:
    from kp_langchain.recording.recorder import Recorder

Event = TypeVar("Event", bound=Callable[..., None])
_NO_METADATA: Final[Mapping[str, Any]] = {}


def guarded(event: Event) -> Event:
    """Decorate a callback so that its errors are counted and never reach the agent.

    Exceptions raised by the host's signal handlers propagate.
    """

    @wraps(event)
    def call(self: LangChainCallbacks, *args: Any, **kwargs: Any) -> None:
        try:
            event(self, *args, **kwargs)
        except BaseException as error:  # not even a SystemExit of our making
            if raised_by_host(error):
                raise
            self._callback_failed(event.__name__, error)

    return cast("Event", call)


class OnlyFromOutside:
    """Value of `raise_error`: true only while an exception of the host is being handled."""

    def __get__(self, handler: object, kind: type | None = None) -> bool:
        error = sys.exc_info()[1]
        return error is not None and raised_by_host(error)


class LangChainCallbacks(BaseCallbackHandler):
    """Turns LangChain's callbacks into the events of a recorder. Never raises into the agent."""

    run_inline = True
    raise_error = cast("bool", OnlyFromOutside())
    _recorder: Recorder
    _is_off: bool

    def _prepare(self) -> None:
        """Get ready for a run that begins."""
        raise NotImplementedError

    def _callback_failed(self, event: str, error: BaseException) -> None:
        self._recorder.counters.add("callback_errors")
        warn_once(
            f"{event}:{type(error).__name__}",
            "%s failed with %s inside kp_langchain; the agent is not affected, the run may be "
            "recorded incompletely",
            event,
            describe_error(error),
        )

    @property
    def _ignores(self) -> bool:
        return self._is_off

    # LangChain reads these before each call, so a handler that is switched off costs nothing.
    ignore_llm = ignore_chat_model = ignore_chain = ignore_agent = _ignores
    ignore_retriever = ignore_retry = ignore_custom_event = _ignores

    @guarded
    def on_chain_start(
        self,
        serialized: dict[str, Any] | None,
        inputs: Any,
        *,
        run_id: UUID,
        parent_run_id: UUID | None = None,
        tags: list[str] | None = None,
        metadata: dict[str, Any] | None = None,
        name: str | None = None,
        **_: Any,
    ) -> None:
        self._prepare()
        self._recorder.chain_started(
            Start(run_id, parent_run_id, name or _name(serialized), metadata or _NO_METADATA, tags),
            inputs,
        )

    @guarded
    def on_chain_end(self, outputs: Any, *, run_id: UUID, inputs: Any = None, **_: Any) -> None:
        self._recorder.chain_ended(run_id, outputs, inputs)

    @guarded
    def on_chain_error(
        self, error: BaseException, *, run_id: UUID, inputs: Any = None, **_: Any
    ) -> None:
        self._recorder.chain_failed(run_id, error, inputs)

    @guarded
    def on_chat_model_start(
        self,
        serialized: dict[str, Any] | None,
        messages: list[list[Any]],
        *,
        run_id: UUID,
        parent_run_id: UUID | None = None,
        tags: list[str] | None = None,
        metadata: dict[str, Any] | None = None,
        name: str | None = None,
        invocation_params: dict[str, Any] | None = None,
        **_: Any,
    ) -> None:
        self._recorder.model_started(
            Start(run_id, parent_run_id, name or _name(serialized), metadata or _NO_METADATA, tags),
            messages[0] if messages else (),
            (invocation_params or _NO_METADATA).get("tools"),
        )

    @guarded
    def on_llm_start(
        self,
        serialized: dict[str, Any] | None,
        prompts: list[str],
        *,
        run_id: UUID,
        parent_run_id: UUID | None = None,
        tags: list[str] | None = None,
        metadata: dict[str, Any] | None = None,
        name: str | None = None,
        **_: Any,
    ) -> None:
        self._recorder.model_started(
            Start(run_id, parent_run_id, name or _name(serialized), metadata or _NO_METADATA, tags),
            prompts,
        )

    @guarded
    def on_llm_end(self, response: Any, *, run_id: UUID, **_: Any) -> None:
        generation = _first_of(response.generations)
        message = getattr(generation, "message", None)
        metadata = getattr(message, "response_metadata", None) or _NO_METADATA
        info = getattr(generation, "generation_info", None) or _NO_METADATA
        logprobs = (metadata if "logprobs" in metadata else info).get("logprobs")
        text = getattr(generation, "text", "") or ""
        self._recorder.model_answered(run_id, message, text, logprobs, info)

    @guarded
    def on_llm_error(
        self, error: BaseException, *, run_id: UUID, response: Any = None, **_: Any
    ) -> None:
        generation = _first_of(getattr(response, "generations", None) or ())
        self._recorder.call_failed(run_id, error, getattr(generation, "message", None))

    @guarded
    def on_tool_start(
        self,
        serialized: dict[str, Any] | None,
        input_str: str,
        *,
        run_id: UUID,
        parent_run_id: UUID | None = None,
        tags: list[str] | None = None,
        metadata: dict[str, Any] | None = None,
        inputs: dict[str, Any] | None = None,
        tool_call_id: str | None = None,
        name: str | None = None,
        **_: Any,
    ) -> None:
        self._recorder.tool_started(
            Start(
                run_id,
                parent_run_id,
                _name(serialized) or name or "tool",
                metadata or _NO_METADATA,
                tags,
            ),
            input_str if inputs is None else inputs,
            tool_call_id,
        )

    @guarded
    def on_tool_end(self, output: Any, *, run_id: UUID, **_: Any) -> None:
        self._recorder.tool_answered(run_id, output)

    @guarded
    def on_tool_error(self, error: BaseException, *, run_id: UUID, **_: Any) -> None:
        self._recorder.call_failed(run_id, error)

    @guarded
    def on_retriever_start(
        self,
        serialized: dict[str, Any] | None,
        query: str,
        *,
        run_id: UUID,
        parent_run_id: UUID | None = None,
        tags: list[str] | None = None,
        metadata: dict[str, Any] | None = None,
        name: str | None = None,
        **_: Any,
    ) -> None:
        name = name or _name(serialized) or "retriever"
        self._recorder.retriever_started(
            Start(run_id, parent_run_id, name, metadata or _NO_METADATA, tags), query
        )

    @guarded
    def on_retriever_end(self, documents: Sequence[Any], *, run_id: UUID, **_: Any) -> None:
        self._recorder.tool_answered(run_id, documents)

    @guarded
    def on_retriever_error(self, error: BaseException, *, run_id: UUID, **_: Any) -> None:
        self._recorder.call_failed(run_id, error)

    @guarded
    def on_retry(self, retry_state: Any, *, run_id: UUID, **_: Any) -> None:
        attempt = getattr(retry_state, "outcome", None)
        error = attempt.exception() if attempt is not None and attempt.failed else None
        self._recorder.call_retried(run_id, retry_state.attempt_number, error)

    @guarded
    def on_agent_action(self, action: Any, *, run_id: UUID, **_: Any) -> None:
        self._recorder.agent_acted(run_id, action.tool, action.tool_input)

    @guarded
    def on_agent_finish(self, finish: Any, *, run_id: UUID, **_: Any) -> None:
        self._recorder.agent_finished(run_id, finish.return_values)

    @guarded
    def on_custom_event(self, name: str, data: Any, *, run_id: UUID, **_: Any) -> None:
        if name == "kp.outcome":
            self._recorder.report_outcome(run_id, data)

    # LangGraph's own events, which only its kind of handler gets; see hear_graph_events.

    @guarded
    def on_interrupt(self, event: Any) -> None:
        self._recorder.graph_paused(event.run_id, getattr(event, "checkpoint_id", None))

    @guarded
    def on_resume(self, event: Any) -> None:
        self._recorder.graph_resumed(event.run_id, getattr(event, "checkpoint_id", None))


def _first_of(generations: Any) -> Any:
    """Return the first generation of an answer; None if it has none.

    Not a generator expression: Python swallows an exception that a signal handler raises while a
    generator is being closed.
    """
    firsts = [group[0] for group in generations if group]
    return firsts[0] if firsts else None


def _name(serialized: Mapping[str, Any] | None) -> str:
    if not serialized:
        return ""
    name = serialized.get("name")
    if name is None and isinstance(path := serialized.get("id"), (list, tuple)) and path:
        name = path[-1]
    return name if isinstance(name, str) else ""


def ambient_run_id() -> UUID | None:
    """Return the id of the run inside which this code runs, by LangChain's context variable."""
    # Imported here because it takes 0.3 s; once something runs, it is imported anyway.
    from langchain_core.runnables.config import var_child_runnable_config

    config = var_child_runnable_config.get()
    run_id = getattr(config.get("callbacks"), "parent_run_id", None) if config else None
    return run_id if isinstance(run_id, UUID) else None
