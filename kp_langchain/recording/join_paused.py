"""Joins a resumed run to what it recorded before it paused, in this process or in another one.

A paused run is kept in memory, and redacted in the store. The worker decides which copy to use when
the resumed run ends, because only the store knows whether another process has resumed the run
meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from kp_langchain._logging import describe_error, warn_once
from kp_langchain.recording.first_half import first_half_record
from kp_langchain.recording.resumed_answers import name_answers, note_rejections

if TYPE_CHECKING:
    from kp_langchain.recording.run_record import Resumption, RunRecord
    from kp_langchain.store.paused_runs import FirstHalf


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
        name_answers([call for _, call in part.timeline], requests)
        if earlier is not None:
            part.prepend(earlier)
    note_rejections((call for _, call in record.timeline), record.requested_calls.names_of_paused)


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
    if first_half is None:
        if in_memory is None or not in_memory.is_stored:
            return in_memory
        # The stored copy is gone. Another process has resumed the run if our part continues from
        # another checkpoint than the one at which it paused, or has recorded no call.
        is_elsewhere = None not in (in_memory.checkpoint_id, resumption.checkpoint_id) and (
            in_memory.checkpoint_id != resumption.checkpoint_id
        )
        return None if is_elsewhere or not record.timeline else in_memory
    if in_memory is not None and (
        in_memory.first_half_id == first_half.half_id
        or _is_later(in_memory, first_half, resumption)
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


def _is_later(in_memory: RunRecord, first_half: FirstHalf, resumption: Resumption) -> bool:
    """Return whether, of two pauses in one thread, ours is the one that ended, not the store's."""
    if in_memory.checkpoint_id is not None and in_memory.checkpoint_id == first_half.checkpoint_id:
        return True  # another handler recorded the same run
    if resumption.checkpoint_id is not None:
        if resumption.checkpoint_id == first_half.checkpoint_id:
            return False
        if resumption.checkpoint_id == in_memory.checkpoint_id:
            return True
    return in_memory.paused_at is not None and in_memory.paused_at > first_half.paused_at
