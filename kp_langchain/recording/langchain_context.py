"""What LangChain and LangGraph hold of the run around this code, and LangGraph's own events.

Neither is imported before something runs: that takes 0.3 s and 0.7 s.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any
from uuid import UUID

_graph_classes: dict[type, type] = {}


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


def without_graph_events(cls: type) -> type:
    """Return the handler's original class, which other processes can import."""
    return cls.__bases__[0] if cls in _graph_classes.values() else cls
