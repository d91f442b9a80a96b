"""What an exception means for a run: an error, or control flow."""

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
    """Return whether an exception is an error, LangGraph's pause or hand-off, or a cancellation."""
    # By name, so that LangGraph and greenlet need not be imported.
    for base in type(error).__mro__:
        if base.__module__ == "langgraph.errors":
            if base.__name__ == "GraphInterrupt":
                return "interrupt"
            if base.__name__ == "GraphBubbleUp":
                return "handoff"
        if base.__module__ == "greenlet" and base.__name__ == "GreenletExit":
            return "cancelled"
    return "cancelled" if isinstance(error, _CANCELLED) else "error"
