"""What an exception means for a run: an error, or control flow."""

from __future__ import annotations

import asyncio
import concurrent.futures
from collections.abc import Sequence
from typing import Final, Literal

from kp_langchain.recording.safe_reads import attribute

Meaning = Literal["error", "interrupt", "handoff", "cancelled"]
_BY_WEIGHT: tuple[Meaning, ...] = ("error", "interrupt", "handoff", "cancelled")

_CANCELLED = (
    asyncio.CancelledError,
    concurrent.futures.CancelledError,
    GeneratorExit,
    KeyboardInterrupt,
    SystemExit,
)

MAX_ERRORS_READ: Final = 2000
"""Exceptions that are read of one group, those of groups in it included."""


def meaning_of(error: object) -> Meaning:
    """Return whether an exception is an error, LangGraph's pause or hand-off, or a cancellation.

    A group is an error if one of its exceptions is, else a pause if one of them is, and so on.
    """
    meanings = {_own_meaning(one) for one in leaves_of(error)}
    for meaning in _BY_WEIGHT:
        if meaning in meanings:
            return meaning
    return "error"


def members_of(error: object) -> Sequence[object]:
    """Return the exceptions that a group holds directly; () for any other exception."""
    members = attribute(error, "exceptions") if isinstance(error, BaseExceptionGroup) else ()
    return members if isinstance(members, tuple) else ()


def leaves_of(error: object) -> list[object]:
    """Return the exceptions that a group holds at any depth; the exception itself if it is none."""
    leaves: list[object] = []
    waiting = [error]
    for _ in range(MAX_ERRORS_READ):
        if not waiting:
            break
        one = waiting.pop()
        if members := members_of(one):
            waiting += members[: MAX_ERRORS_READ - len(waiting)]
        else:
            leaves.append(one)
    return leaves


def _own_meaning(error: object) -> Meaning:
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
