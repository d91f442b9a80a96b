"""Errors that chains raise: each is recorded once, where it was raised first.

An attempt of a node that takes too long is such an error, too.
"""

from __future__ import annotations

from kp_langchain.recording.calls import Call
from kp_langchain.recording.exception_kinds import leaves_of
from kp_langchain.recording.run_tree import OpenRun
from kp_langchain.recording.safe_reads import MAX_ITEMS, default_on_error
from kp_langchain.recording.tool_answers import begin_requested
from kp_langchain.recording.values import error_text

_MAX_CAUSES = 8
# How LangGraph names what it runs, within the task of a node, once the node has failed.
_ERROR_HANDLER = "__error_handler__"


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
        leaf_ids = set(map(id, leaves_of(cause)))
        if id(cause) in recorded_ids or (leaf_ids and leaf_ids <= set(recorded_ids)):
            return True
        cause = cause.__cause__ or cause.__context__
    return False
