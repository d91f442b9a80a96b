"""LangChain's callbacks: their arguments in, plain events for the recorder out.

Nothing else in the package knows LangChain's callbacks. They run inline on a plain
`BaseCallbackHandler`. A tracer would cost the agent about 110 us an event. A handler that is not
inline would cost async agents 40 % CPU.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import wraps
from typing import TYPE_CHECKING, Any, Final

from langchain_core.callbacks import BaseCallbackHandler

from kp_langchain._logging import describe_error, warn_once
from kp_langchain.recording.langchain_context import Start, hear_graph_events

if TYPE_CHECKING:
    from kp_langchain.recording.recorder import Recorder

Fields = dict[str, Any]
"""The keyword arguments of a callback, which LangChain passes all but the first by."""

_NO_METADATA: Final[Mapping[str, Any]] = {}


def guarded(event: Callable[..., None]) -> Callable[..., None]:
    """Decorate a callback: it gets its keyword arguments as a dict, and never raises an error.

    Errors are counted. An exit or interrupt of the program passes.
    """

    @wraps(event)
    def call(self: LangChainCallbacks, *args: Any, **fields: Any) -> None:
        try:
            event(self, *args, fields)
        except Exception as error:  # noqa: BLE001 - nothing of it may reach the agent
            name = event.__name__
            self._recorder.counters.add("callback_errors")
            warn_once(
                f"{name}:{type(error).__name__}",
                "%s failed with %s inside kp_langchain; the agent is not affected, the run may be "
                "recorded incompletely",
                name,
                describe_error(error),
            )

    return call


class LangChainCallbacks(BaseCallbackHandler):
    """Turns LangChain's callbacks into the events of a recorder. Never raises into the agent."""

    run_inline = True
    _recorder: Recorder
    _is_off: bool
    _hears_graphs: bool

    @property
    def _ignores(self) -> bool:
        return self._is_off

    # LangChain reads these before each call, so a handler that is switched off costs nothing.
    ignore_llm = ignore_chat_model = ignore_chain = ignore_agent = _ignores
    ignore_retriever = ignore_retry = ignore_custom_event = _ignores

    @guarded
    def on_chain_start(self, serialized: Any, inputs: Any, fields: Fields) -> None:
        if not self._hears_graphs:
            self._hears_graphs = hear_graph_events(self)
        name = fields.get("name") or _name(serialized)
        self._recorder.chain_started(_start(name, fields), inputs)

    @guarded
    def on_chain_end(self, outputs: Any, fields: Fields) -> None:
        self._recorder.chain_ended(fields["run_id"], outputs, fields.get("inputs"))

    @guarded
    def on_chain_error(self, error: BaseException, fields: Fields) -> None:
        self._recorder.chain_failed(fields["run_id"], error, fields.get("inputs"))

    @guarded
    def on_chat_model_start(self, serialized: Any, messages: Any, fields: Fields) -> None:
        tools = (fields.get("invocation_params") or _NO_METADATA).get("tools")
        start = _start(fields.get("name") or _name(serialized), fields)
        self._recorder.model_started(start, messages[0] if messages else (), tools)

    @guarded
    def on_llm_start(self, serialized: Any, prompts: Any, fields: Fields) -> None:
        name = fields.get("name") or _name(serialized)
        self._recorder.model_started(_start(name, fields), prompts)

    @guarded
    def on_llm_end(self, response: Any, fields: Fields) -> None:
        generation = _first_of(response.generations)
        message = getattr(generation, "message", None)
        text = getattr(generation, "text", "") or "" if message is None else ""
        info = getattr(generation, "generation_info", None)
        details = getattr(response, "llm_output", None)
        self._recorder.model_answered(fields["run_id"], message, text, info, details)

    @guarded
    def on_llm_error(self, error: BaseException, fields: Fields) -> None:
        generation = _first_of(getattr(fields.get("response"), "generations", None) or ())
        self._recorder.call_failed(fields["run_id"], error, getattr(generation, "message", None))

    @guarded
    def on_tool_start(self, serialized: Any, input_str: Any, fields: Fields) -> None:
        start = _start(_name(serialized) or fields.get("name") or "tool", fields)
        inputs = fields.get("inputs")
        self._recorder.tool_started(
            start, input_str if inputs is None else inputs, fields.get("tool_call_id")
        )

    @guarded
    def on_tool_end(self, output: Any, fields: Fields) -> None:
        self._recorder.tool_answered(fields["run_id"], output)

    @guarded
    def on_tool_error(self, error: BaseException, fields: Fields) -> None:
        self._recorder.call_failed(fields["run_id"], error)

    @guarded
    def on_retriever_start(self, serialized: Any, query: Any, fields: Fields) -> None:
        name = fields.get("name") or _name(serialized) or "retriever"
        self._recorder.retriever_started(_start(name, fields), query)

    on_retriever_end = on_tool_end
    on_retriever_error = on_tool_error

    @guarded
    def on_custom_event(self, name: Any, data: Any, fields: Fields) -> None:
        if name == "kp.outcome":
            self._recorder.report_outcome(fields["run_id"], data)

    # LangGraph's own events, which only its kind of handler gets; see hear_graph_events.

    @guarded
    def on_interrupt(self, event: Any, _: Fields) -> None:
        self._recorder.graph_paused(event.run_id)

    @guarded
    def on_resume(self, event: Any, _: Fields) -> None:
        self._recorder.graph_resumed(event.run_id)


def _start(name: Any, fields: Fields) -> Start:
    return Start(
        fields["run_id"],
        fields.get("parent_run_id"),
        name,
        fields.get("metadata") or _NO_METADATA,
        fields.get("tags"),
    )


def _first_of(generations: Any) -> Any:
    """Return the first generation of an answer; None if it has none."""
    for group in generations:
        if group:
            return group[0]
    return None


def _name(serialized: Any) -> str:
    if not serialized:
        return ""
    name = serialized.get("name")
    if name is None and isinstance(path := serialized.get("id"), (list, tuple)) and path:
        name = path[-1]
    return name if isinstance(name, str) else ""
