"""LangGraph's own events, pause and resume, without importing LangGraph."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kp_langchain.recording.handler import KPCallbackHandler

_graph_kinds: dict[type, type] = {}


def hear_graph_events(handler: KPCallbackHandler) -> bool:
    """Make `handler` one of the kind to which LangGraph tells pauses and resumes.

    LangGraph looks for its own base class, right after the root's start. That class costs 0.7 s
    to import, and at this point is imported if and only if a graph is what runs.
    """
    module = sys.modules.get("langgraph.callbacks")
    base = getattr(module, "GraphCallbackHandler", None)
    if base is None:
        return False
    cls = type(handler)
    if not issubclass(cls, base):
        if cls not in _graph_kinds:
            about = {name: getattr(cls, name) for name in ("__module__", "__qualname__", "__doc__")}
            _graph_kinds[cls] = type(cls.__name__, (cls, base), about)
        handler.__class__ = _graph_kinds[cls]
    return True


def without_graph_events(kind: type) -> type:
    """Return the class that `kind` was made of, which other processes can import."""
    return kind.__bases__[0] if kind in _graph_kinds.values() else kind
