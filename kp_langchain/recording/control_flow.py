"""What an exception says about a run: an error, or control flow that is raised."""

from __future__ import annotations

import asyncio
import concurrent.futures
from typing import Literal

Meaning = Literal["error", "interrupt", "handoff", "cancelled"]

_CANCELLED = (
    asyncio.CancelledError,
    concurrent.futures.CancelledError,
    GeneratorExit,
    KeyboardInterrupt,
    SystemExit,
)


def meaning_of(error: object) -> Meaning:
    """Tell an error from LangGraph's pauses and hand-offs, and from a cancellation."""
    # LangGraph's exceptions are known by name, so that it need not be imported.
    for base in type(error).__mro__:
        if base.__module__ == "langgraph.errors":
            if base.__name__ == "GraphInterrupt":
                return "interrupt"
            if base.__name__ == "GraphBubbleUp":
                return "handoff"
    return "cancelled" if isinstance(error, _CANCELLED) else "error"
