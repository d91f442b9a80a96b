"""Runs of this process that are paused until a human decides, and what resumes them.

A graph that pauses ends its root run; the resumed run is a new root run with the same `thread_id`,
and often reaches another handler object, because handlers are made per request. So the paused runs
belong to the process and not to a handler.

A paused run is kept in memory, and redacted in the store. The builder decides which copy to use
when the resumed run ends, because only the store knows whether another process has resumed the run
meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING

from kp_langchain._forksafe import ForkSafeLock
from kp_langchain._logging import describe_error, warn_once
from kp_langchain.recording.bounds import RecordOwner
from kp_langchain.recording.calls import Call
from kp_langchain.recording.first_half import first_half_record
from kp_langchain.recording.requested_calls import RequestedCalls, UnnamedCallKey

if TYPE_CHECKING:
    from kp_langchain.recording.run_record import Resumption, RunRecord
    from kp_langchain.store.paused_runs import FirstHalf

_lock = ForkSafeLock()
_paused_runs: dict[tuple[str, int], RunRecord] = {}  # by thread and the identity of the owner
_limit = 1000


def set_limit(runs: int) -> None:
    """Keep at most `runs` paused runs; for a new one, the one paused for longest is dropped."""
    global _limit
    _limit = runs


def has_any() -> bool:
    """Return whether any run is paused, without a lock: for almost every run the answer is no."""
    return bool(_paused_runs)


def add(record: RunRecord) -> None:
    """Add a run that paused; one that is still paused in the same thread is abandoned."""
    key = _key(record)
    with _lock:
        old_runs = [_paused_runs.pop(key)] if key in _paused_runs else []
        _paused_runs[key] = record
        excess_runs = []
        while len(_paused_runs) > _limit:
            excess_runs.append(_paused_runs.pop(next(iter(_paused_runs))))
    for old in old_runs:
        old.owner.counters.add("abandoned")
    for old in excess_runs:
        old.owner.counters.add(_fate(old))


def _key(record: RunRecord) -> tuple[str, int]:
    return record.thread_id or "", id(record.owner)


def _fate(record: RunRecord) -> str:
    # Any process can continue a run that is in the store.
    is_stored = record.pause is not None and record.pause.is_stored
    return "handed_over" if is_stored else "abandoned"


def take(thread_id: str, owner: RecordOwner, until: datetime | None = None) -> RunRecord | None:
    """Remove and return the run paused in a thread: the owner's, else one of equal scope.

    Args:
        thread_id: The thread.
        owner: The owner of the run that resumes it.
        until: The latest time, in UTC, at which it may have paused; None for any.
    """
    own_key = (thread_id, id(owner))
    with _lock:
        for key in (own_key, *_paused_runs):
            record = _paused_runs.get(key)
            if (
                record is not None
                and key[0] == thread_id
                and record.owner.scope == owner.scope
                and not _is_after(record, until)
            ):
                return _paused_runs.pop(key)
    return None


def _is_after(record: RunRecord, until: datetime | None) -> bool:
    return record.pause is not None and until is not None and record.pause.paused_at > until


def give_up(owner: RecordOwner) -> None:
    """Forget the paused runs of one owner; other processes can resume those in the store."""
    with _lock:
        keys = [key for key, record in _paused_runs.items() if record.owner is owner]
        records = [_paused_runs.pop(key) for key in keys]
    for record in records:
        owner.counters.add(_fate(record))


def holds(record: RunRecord) -> bool:
    """Return whether a run is still paused."""
    with _lock:
        return _paused_runs.get(_key(record)) is record


def count(owner: RecordOwner) -> int:
    """Return how many runs of one owner are paused."""
    with _lock:
        return sum(record.owner is owner for record in _paused_runs.values())


def join_paused(record: RunRecord, claim: Callable[[str], FirstHalf | None] | None) -> None:
    """Put what a resumed run recorded before its pauses in front of the rest.

    Args:
        record: The run; changed.
        claim: Removes and returns the first half of the run paused in a thread from the store;
            None without a store.
    """
    parts = [record]
    while (resumption := parts[-1].resumption) is not None and resumption.earlier is not None:
        parts.append(resumption.earlier)
    for part in reversed(parts):
        resumption, part.resumption = part.resumption, None
        if resumption is None:
            continue
        first_half = None
        if claim is not None and part.is_langgraph:
            first_half = claim(resumption.thread_id)
        earlier = _earlier_record(part, resumption, first_half)
        requests = None if earlier is None else earlier.requested_calls
        _name_answers([call for _, call in part.timeline], requests)
        if earlier is not None:
            part.prepend(earlier)
    _note_rejections((call for _, call in record.timeline), record.requested_calls.names_of_paused)


def _earlier_record(
    record: RunRecord, resumption: Resumption, first_half: FirstHalf | None
) -> RunRecord | None:
    """Return the record of what a run recorded before a pause; None if that is lost.

    Args:
        record: What was recorded after the pause.
        resumption: The pause.
        first_half: What the store has of the run.
    """
    in_memory = resumption.earlier
    pause = None if in_memory is None else in_memory.pause
    if first_half is None:
        # If the stored copy is gone, another process may have resumed the run. Then ours has
        # recorded no call.
        is_lost = pause is not None and pause.is_stored and not record.timeline
        return None if is_lost else in_memory
    if pause is not None and (
        pause.half_id == first_half.half_id
        # another handler recorded the same run
        or (pause.checkpoint_id is not None and pause.checkpoint_id == first_half.checkpoint_id)
    ):
        return in_memory
    try:
        earlier = first_half_record(first_half.body, record.owner)
    except (ValueError, TypeError, LookupError, AttributeError) as error:
        warn_once(
            "half",
            "what a paused run of another process recorded cannot be read (%s) and is dropped",
            describe_error(error),
        )
        return in_memory
    record.owner.counters.add("continued")
    return earlier


def _name_answers(calls: Sequence[Call], earlier: RequestedCalls | None) -> None:
    """Complete the calls that were answered before their requests were known.

    Args:
        calls: The calls since the run was resumed; changed.
        earlier: The calls requested before the pause; None if they are lost. Then calls answered
            without a request leave no step.
    """
    names_without_id = [
        one.name for one in calls if one.kind == "tool" and one.tool_call_id is None
    ]
    for call in calls:
        if not isinstance(key := call.key, UnnamedCallKey):
            continue
        call.key = ("tool", key.call_id)
        request = None if earlier is None else earlier.take(key.call_id)
        if request is None:
            call.is_void = True
        elif request.name in names_without_id:  # a tool that did not know the id answered it
            names_without_id.remove(request.name)
            call.is_void = True
        else:
            call.name = request.name
            call.input = request.arguments if isinstance(request.arguments, dict) else {}
            if call.has_failed and key.by_human:
                call.reject()


def _note_rejections(calls: Iterable[Call], names_of_paused: Mapping[str, str]) -> None:
    """Mark failed calls as rejected if the tool had asked a human who refused.

    Args:
        calls: The calls of the whole run; changed.
        names_of_paused: The calls in which a tool had asked: tools' names by call ids.
    """
    names = set(names_of_paused.values())
    for call in calls:
        call_id = call.tool_call_id
        has_asked = call.name in names if call_id is None else call_id in names_of_paused
        if call.has_failed and call.is_after_rejection and has_asked:
            call.reject()
