"""Runs of this process that are paused until a human decides.

A graph that pauses ends its root run; the resumed run is a new root run with the same `thread_id`,
and often reaches another handler object, because handlers are made per request. So the paused runs
belong to the process and not to a handler.
"""

from __future__ import annotations

from datetime import datetime

from kp_langchain._forksafe import ForkSafeLock
from kp_langchain.recording.record_owner import RecordOwner
from kp_langchain.recording.run_record import RunRecord

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
    return "handed_over" if record.is_stored else "abandoned"


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
                and not _is_after(record.paused_at, until)
            ):
                return _paused_runs.pop(key)
    return None


def _is_after(paused_at: datetime | None, until: datetime | None) -> bool:
    return paused_at is not None and until is not None and paused_at > until


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
