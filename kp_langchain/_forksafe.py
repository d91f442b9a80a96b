"""What has to be put right in a forked child: locks whose owner is gone, torch's dead threads."""

from __future__ import annotations

import os
import sys
import threading
import weakref


class ForkSafeLock:
    """A re-entrant lock for `with` that a forked child can still take.

    A child inherits locks as they were at the fork. One that another thread held stays held for
    ever, because that thread does not exist in the child; such a lock is replaced there. One that
    the forking thread itself held stays its own, so leaving the `with` block works on both sides.
    It is re-entrant because the garbage collector may call back into code that takes it again.
    """

    __slots__ = ("__weakref__", "_lock")

    def __init__(self) -> None:
        self._lock = threading.RLock()
        _LOCKS.add(self)

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()

    def _renew_if_orphaned(self) -> None:
        if self._lock.acquire(blocking=False):
            self._lock.release()
        else:
            self._lock = threading.RLock()


_LOCKS: weakref.WeakSet[ForkSafeLock] = weakref.WeakSet()
_forked_with_torch = False


def torch_came_through_fork() -> bool:
    """Tell whether this process was forked from one that had torch loaded.

    In such a child OpenMP believes in worker threads that no longer exist, and the first parallel
    operation waits for them for ever. Running torch with one thread is safe.
    """
    return _forked_with_torch


def _after_fork_in_child() -> None:
    global _forked_with_torch
    _forked_with_torch = _forked_with_torch or "torch" in sys.modules
    for lock in list(_LOCKS):
        lock._renew_if_orphaned()  # noqa: SLF001 - same module


if hasattr(os, "register_at_fork"):  # absent on Windows, which does not fork
    os.register_at_fork(after_in_child=_after_fork_in_child)
