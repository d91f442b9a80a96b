"""What LangChain and LangGraph say of a run: its start, its metadata, and what is around it.

Neither is imported before something runs: that takes 0.3 s and 0.7 s.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any
from uuid import UUID

from kp_langchain.recording.bounds import NAME_CHARS, default_on_error, short_name
from kp_langchain.recording.values import as_text

_graph_classes: dict[type, type] = {}
_LONG_ID_CHARS = 10_000
# By these, LangChain's middleware marks the models that it asks for itself, and all runs in them.
_SOURCE, _INTERNAL = "lc_source", "lc_internal_call"
# Of the releases that have no `lc_internal_call`.
_SOURCES = frozenset(("tool_selection", "summarization", "tool_emulation"))


@dataclass(slots=True, eq=False)
class Start:
    """A run that begins.

    Attributes:
        run_id: LangChain's id of the run.
        parent_id: The id of the run that it is part of; None for a root run.
        name: The name of the run; for a model, tool or retriever, the name of what is called.
        metadata: LangChain's metadata of the run.
        tags: LangChain's tags of the run.
    """

    run_id: UUID
    parent_id: UUID | None = None
    name: str = ""
    metadata: Mapping[str, Any] = field(default_factory=dict)
    tags: object = ()


def metadata_text(metadata: Mapping[str, Any], key: str) -> str:
    """Return the text that a run's metadata hold under `key`; "" if there is none."""
    value = metadata.get(key)
    return str.__str__(value) if isinstance(value, str) else ""


@default_on_error("")
def mcp_server_in(metadata: Mapping[str, Any]) -> str:
    """Return the name of the MCP server that has a tool, by the tool's metadata; "" if none.

    It is `mcp_server`, or as `langchain.mcp` writes it: `{"mcp": {"server": {"name": ...}}}`.
    """
    server = metadata.get("mcp_server") or metadata.get("mcp", {}).get("server")
    return short_name(server.get("name") if isinstance(server, dict) else server)


def is_inner_call(metadata: Mapping[str, Any], root_metadata: Mapping[str, Any]) -> bool:
    """Return whether a call is one of LangChain's own, such as one that summarises the messages.

    Args:
        metadata: The metadata of the call.
        root_metadata: Those of the root run; a run that is marked as a whole has no inner calls.
    """
    if _SOURCE not in metadata and _INTERNAL not in metadata:  # like most
        return False
    # As text, because values of the user's own may raise when they are compared.
    source, mark = metadata_text(metadata, _SOURCE), metadata_text(metadata, _INTERNAL)
    return (source in _SOURCES and source != metadata_text(root_metadata, _SOURCE)) or (
        bool(mark) and mark != metadata_text(root_metadata, _INTERNAL)
    )


def thread_id_in(metadata: Mapping[str, Any]) -> str | None:
    """Return the LangGraph thread that a run's metadata name, as text of bounded length."""
    thread_id = metadata.get("thread_id")
    if thread_id is None or (type(thread_id) is str and len(thread_id) <= NAME_CHARS):
        return thread_id
    text = as_text(thread_id, _LONG_ID_CHARS)
    if len(text) <= NAME_CHARS:
        return text
    # A hash of the whole, because two long ids may begin alike.
    return sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def _callback_manager() -> Any:
    from langchain_core.runnables.config import var_child_runnable_config

    config = var_child_runnable_config.get()
    return config.get("callbacks") if config else None


def ambient_run_id() -> UUID | None:
    """Return the id of the run inside which this code runs, by LangChain's context variable."""
    run_id = getattr(_callback_manager(), "parent_run_id", None)
    return run_id if isinstance(run_id, UUID) else None


def current_handlers(module: str, class_name: str) -> Iterator[Any]:
    """Yield the handlers of a class that the run around this code has, to find other tracers by.

    Args:
        module: The module of the class. One that nobody has imported has no handlers.
        class_name: The name of the class.
    """
    kind = getattr(sys.modules.get(module), class_name, None)
    if not isinstance(kind, type):
        return
    for handler in getattr(_callback_manager(), "handlers", ()):
        if isinstance(handler, kind):
            yield handler


def openai_function(tool: Any) -> Mapping[str, Any]:
    """Return the definition of a tool, in any form that LangChain knows, as OpenAI's function.

    Args:
        tool: The definition as a model was given it.

    Raises:
        Exception: It is in another form.
    """
    function = tool.get("function") if isinstance(tool, dict) else None
    if isinstance(function, dict):
        return function
    from langchain_core.utils.function_calling import convert_to_openai_function

    return convert_to_openai_function(tool)


def hear_graph_events(handler: object) -> bool:
    """Change the class of a handler to one that LangGraph sends its events to.

    LangGraph sends them only to instances of its own base class, which it looks for right after
    the start of the root run. That class takes 0.7 s to import, so the handler cannot inherit from
    it from the outset. At this point it is imported if and only if a graph is running.

    Args:
        handler: The callback handler; its class is replaced with a subclass.

    Returns:
        Whether LangGraph sends the handler its events from now on.
    """
    module = sys.modules.get("langgraph.callbacks")
    base = getattr(module, "GraphCallbackHandler", None)
    if base is None:
        return False
    cls = type(handler)
    if not issubclass(cls, base):
        if cls not in _graph_classes:
            names = ("__module__", "__qualname__", "__doc__")
            attributes = {name: getattr(cls, name) for name in names}
            _graph_classes[cls] = type(cls.__name__, (cls, base), attributes)
        handler.__class__ = _graph_classes[cls]
    return True
