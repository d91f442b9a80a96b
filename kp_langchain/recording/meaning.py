"""What an exception says about a run: an error, or control flow that is raised."""

from __future__ import annotations

import asyncio
import concurrent.futures
from functools import lru_cache
from typing import Literal

Meaning = Literal["error", "interrupt", "handoff", "cancelled"]

_CANCELLED = (
    asyncio.CancelledError,
    concurrent.futures.CancelledError,
    GeneratorExit,
    KeyboardInterrupt,
    SystemExit,
)


@lru_cache(maxsize=256)
def meaning_of(error: type) -> Meaning:
    """Tell an error from LangGraph's pauses and hand-offs, and from a cancellation.

    Args:
        error: The exception's class. LangGraph's are known by name, so that it is not imported.
    """
    for base in error.__mro__:
        if base.__module__ == "langgraph.errors":
            if base.__name__ == "GraphInterrupt":
                return "interrupt"
            if base.__name__ == "GraphBubbleUp":
                return "handoff"
    return "cancelled" if issubclass(error, _CANCELLED) else "error"
