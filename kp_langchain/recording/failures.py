"""Exceptions: what each means for a run, its text, and the errors that chains raise.

An error of a chain is recorded once, where it was raised first. An attempt of a node that takes too
long is such an error, too.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
from collections.abc import Sequence
from typing import Literal

from kp_langchain.recording.calls import Call
from kp_langchain.recording.run_tree import OpenRun
from kp_langchain.recording.safe_reads import (
    MAX_ITEMS,
    NAME_CHARS,
    attribute,
    clip,
    default_on_error,
    join_texts,
)
from kp_langchain.recording.tool_answers import begin_requested
from kp_langchain.recording.values import as_text

Meaning = Literal["error", "interrupt", "handoff", "cancelled"]
_BY_WEIGHT: tuple[Meaning, ...] = ("error", "interrupt", "handoff", "cancelled")
_CANCELLED = (
    asyncio.CancelledError,
    concurrent.futures.CancelledError,
    GeneratorExit,
    KeyboardInterrupt,
    SystemExit,
)
# By name, so that LangGraph and greenlet need not be imported.
_BY_NAME: dict[tuple[str, str], Meaning] = {
    ("langgraph.errors", "GraphInterrupt"): "interrupt",
    ("langgraph.errors", "GraphBubbleUp"): "handoff",
    ("greenlet", "GreenletExit"): "cancelled",
}
_MAX_ERRORS_READ = 2000  # of one group, those of groups in it included
_COUNTS_MEMBERS = " sub-exception"  # in what Python writes of a group, and whoever quotes that
_MAX_REASONS = 8
_MAX_CAUSES = 8
# How LangGraph names what it runs, within the task of a node, once the node has failed.
_ERROR_HANDLER = "__error_handler__"


# ------------------------------------------------------------------ what an exception means


def meaning_of(error: object) -> Meaning:
    """Return whether an exception is an error, LangGraph's pause or hand-off, or a cancellation.

    A group is an error if one of its exceptions is, else a pause if one of them is, and so on.
    """
    meanings = {_own_meaning(one) for one in _leaves_of(error)}
    return next((one for one in _BY_WEIGHT if one in meanings), "error")


def _members_of(error: object) -> Sequence[object]:
    """Return the exceptions that a group holds directly; () for any other exception."""
    members = attribute(error, "exceptions") if isinstance(error, BaseExceptionGroup) else ()
    return members if isinstance(members, tuple) else ()


def _leaves_of(error: object) -> list[object]:
    """Return the exceptions that a group holds at any depth; the exception itself if it is none."""
    leaves: list[object] = []
    waiting = [error]
    for _ in range(_MAX_ERRORS_READ):
        if not waiting:
            break
        one = waiting.pop()
        if members := _members_of(one):
            waiting += members[: _MAX_ERRORS_READ - len(waiting)]
        else:
            leaves.append(one)
    return leaves


def _own_meaning(error: object) -> Meaning:
    for base in type(error).__mro__:
        if (meaning := _BY_NAME.get((base.__module__, base.__name__))) is not None:
            return meaning
    return "cancelled" if isinstance(error, _CANCELLED) else "error"


# ------------------------------------------------------------------ what an exception says


def error_text(error: object, limit: int) -> str:
    """Return `TypeName: message` of an exception, cut to `limit`.

    For a group, its exceptions follow in brackets; for any other, what caused it if that is a group
    or the message says nothing.
    """
    text = _own_error_text(error, limit)
    reasons = join_texts(_reasons(error, limit), limit, "; ")
    return clip(f"{text} ({reasons})", limit) if reasons else text


def _own_error_text(error: object, limit: int) -> str:
    message = as_text(error, limit)
    name = clip(type(error).__name__, NAME_CHARS)
    return clip(f"{name}: {message}" if message else name, limit)


def _reasons(error: object, limit: int) -> list[str]:
    """Return the texts of what an exception stands for: members of groups, and causes."""
    texts: list[str] = []
    waiting, seen = [error], {id(error)}
    for _ in range(_MAX_ERRORS_READ):
        if not waiting or len(texts) == _MAX_REASONS:
            break
        one = waiting.pop()
        inner = _members_of(one)
        if not inner:
            text = "" if one is error else _own_error_text(one, limit)
            if text and text not in texts and meaning_of(one) != "cancelled":
                texts.append(text)
            cause = _cause(one)
            inner = (cause,) if _members_of(cause) or _says_nothing(one, limit) else ()
        new = [each for each in inner[:_MAX_REASONS] if each is not None and id(each) not in seen]
        seen.update(map(id, new))
        waiting += reversed(new)
    return texts


def _cause(error: object) -> object:
    """Return what Python's traceback shows as the cause of an exception."""
    cause = attribute(error, "__cause__")
    if cause is None and not attribute(error, "__suppress_context__"):
        cause = attribute(error, "__context__")
    return cause


def _says_nothing(error: object, limit: int) -> bool:
    """Return whether a message says no more than the type's name, or only counts a group."""
    message = as_text(error, limit)
    words = "".join(filter(str.isalnum, message[:NAME_CHARS])).lower()
    return words in type(error).__name__.lower() or _COUNTS_MEMBERS in message


# ------------------------------------------------------------------ errors of chains


def record_failure(entry: OpenRun, error: BaseException, *, is_root: bool) -> None:
    """Record that a chain raised an error of its own, not that of a call below it.

    Args:
        entry: The chain.
        error: What it raised.
        is_root: Whether the chain is the root run.
    """
    root = entry.root
    # The chain failed before the tool calls that the model requested last could run.
    for request in root.requested_calls.of_model(root.state.last_call):
        root.requested_calls.take(request.call_id)
        begin_requested(root, request)
    # All attempts of a LangGraph node have one task; those of other chains have one parent.
    call = Call("chain", "", ("chain", entry.task or (entry.place, entry.name)))
    call.has_failed = True
    # There is always room for the error that ends the run: it is the run's result.
    call.error = error_text(error, root.raw_text_chars) if is_root else root.read(error_text, error)
    root.timeline.add("error", call)
    root.state.last_failure = call
    root.note_error(error)


def begin_attempt(entry: OpenRun) -> None:
    """Record that an earlier attempt of a LangGraph node timed out, if a chain is the next one.

    LangGraph cancels an attempt that takes too long, without waiting for its end, and no event has
    the error. Only that the node, or its error handler, begins shows that it was not the caller.

    Args:
        entry: The chain, which begins in a task.
    """
    root, parent = entry.root, entry.parent
    if parent is not None and parent.task == entry.task:
        return  # a chain inside a node
    attempts = root.state.attempts
    is_handler = entry.name.startswith(_ERROR_HANDLER)
    task = entry.task.rpartition("|")[0] if is_handler else entry.task
    if (earlier := attempts.pop(task, None)) is not None:
        call = Call("chain", "", ("chain", task), has_failed=True)
        call.error = f"TimeoutError: node {earlier.name} did not end in time"
        root.timeline.add("error", call)
        root.state.last_failure = call
    if len(attempts) < MAX_ITEMS:
        attempts[entry.task] = entry


def end_attempt(entry: OpenRun) -> None:
    """Note that a chain returned or raised an error; it may be the attempt of a node."""
    attempts = entry.root.state.attempts
    if attempts.get(entry.task) is entry:
        attempts.pop(entry.task, None)


@default_on_error(False)
def is_recorded(error: BaseException, entry: OpenRun) -> bool:
    """Return whether an error of a run, or a cause of it, is recorded as a failure below the run.

    A group is if all of its exceptions are.

    Args:
        error: What the run raised.
        entry: The run.
    """
    # Only errors since the run began: an earlier exception, now freed, may have had the same id.
    recorded_ids = entry.root.state.error_ids[entry.errors_before :]
    cause: BaseException | None = error if recorded_ids else None
    for _ in range(_MAX_CAUSES):
        if cause is None:
            return False
        leaf_ids = set(map(id, _leaves_of(cause)))
        if id(cause) in recorded_ids or (leaf_ids and leaf_ids <= set(recorded_ids)):
            return True
        cause = cause.__cause__ or cause.__context__
    return False
