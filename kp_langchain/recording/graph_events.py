"""LangGraph's own events, pause and resume, without importing LangGraph."""

from __future__ import annotations

import sys

_graph_classes: dict[type, type] = {}


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
