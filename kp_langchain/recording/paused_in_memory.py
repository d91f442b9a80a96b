"""Runs that wait for a human, one shelf per process.

A graph that pauses ends its root run; the resumed run is a new root with the same `thread_id`,
and often reaches another handler object, because handlers are made per request. So the shelf
belongs to the process and not to a handler.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kp_langchain._forksafe import ForkSafeLock

if TYPE_CHECKING:
    from datetime import datetime

    from kp_langchain.recording.recorder import Recorder
    from kp_langchain.recording.run_record import RunRecord

_lock = ForkSafeLock()
_shelf: dict[tuple[str, int], RunRecord] = {}
_limit = 1000


def set_limit(runs: int) -> None:
    """Keep at most `runs` paused runs; the longest waiting is abandoned for a new one."""
    global _limit
    _limit = runs


def any() -> bool:  # noqa: A001 - read as paused.any()
    """Whether any run waits: the question that almost every run answers with no."""
    return bool(_shelf)


def add(record: RunRecord) -> None:
    """Shelve a run that paused; one that still waits in the same thread is abandoned."""
    key = (record.thread_id or "", id(record.recorder))
    with _lock:
        given_up = [_shelf.pop(key)] if key in _shelf else []
        _shelf[key] = record
        too_many = []
        while len(_shelf) > _limit:
            too_many.append(_shelf.pop(next(iter(_shelf))))
    for old in given_up:
        old.recorder.counters.add("abandoned")
    for old in too_many:
        old.recorder.counters.add(_fate(old))


def _fate(record: RunRecord) -> str:
    # What is in the store, whoever resumes the run goes on from.
    return "handed_over" if record.kept else "abandoned"


def take(thread_id: str, recorder: Recorder, until: datetime | None = None) -> RunRecord | None:
    """Return the run that waits in `thread_id`: the recorder's own, else one of its domain.

    Args:
        thread_id: The thread.
        recorder: Who asks.
        until: The latest time, in UTC, at which it may have paused; None for any.
    """
    own = (thread_id, id(recorder))
    with _lock:
        for key in (own, *_shelf):
            record = _shelf.get(key)
            if (
                record is not None
                and key[0] == thread_id
                and record.recorder.scope == recorder.scope
                and not _is_after(record.paused_at, until)
            ):
                return _shelf.pop(key)
    return None


def _is_after(paused_at: datetime | None, until: datetime | None) -> bool:
    return paused_at is not None and until is not None and paused_at > until


def give_up(recorder: Recorder) -> None:
    """Forget the runs of `recorder` that wait: those in the store are left to others."""
    with _lock:
        keys = [key for key, record in _shelf.items() if record.recorder is recorder]
        records = [_shelf.pop(key) for key in keys]
    for record in records:
        recorder.counters.add(_fate(record))


def holds(record: RunRecord) -> bool:
    """Whether a run still waits."""
    with _lock:
        return _shelf.get((record.thread_id or "", id(record.recorder))) is record


def count(recorder: Recorder) -> int:
    """How many runs of `recorder` wait."""
    with _lock:
        return sum(record.recorder is recorder for record in _shelf.values())
