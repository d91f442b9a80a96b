"""Living with forks: what they wait for, and what has to be put right in the child."""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from operator import attrgetter


class ForkSafeLock:
    """A re-entrant lock for `with` that a forked child can still take.

    A child inherits locks as they were at the fork. One that another thread held stays held for
    ever, because that thread does not exist in the child; such a lock is replaced there. One that
    the forking thread itself held stays its own, so leaving the `with` block works on both sides.
    It is re-entrant because the garbage collector may call back into code that takes it again.
    `with` calls the methods of the lock itself: in an `__enter__` of our own, a signal handler's
    exception could come between taking the lock and the block, and nobody would release it.
    """

    __slots__ = ("__weakref__", "_lock")
    __enter__ = property(attrgetter("_lock.__enter__"))
    __exit__ = property(attrgetter("_lock.__exit__"))

    def __init__(self) -> None:
        self._lock = threading.RLock()
        _LOCKS.add(self)

    def _renew_if_orphaned(self) -> None:
        if self._lock.acquire(blocking=False):
            self._lock.release()
        else:
            self._lock = threading.RLock()


class Undisturbed:
    """A `with` block that a fork of this process waits for, up to 10 s. One thread at a time.

    A fork in the middle of a database operation, an import or a model's work copies their locks
    as they are, and nobody would ever open them in the child.
    """

    def __init__(self) -> None:
        self._reset()
        _SECTIONS.add(self)

    def __enter__(self) -> None:
        # The turnstile keeps a busy thread from entering again before a fork had its turn.
        with self._turnstile:
            self._busy.acquire()

    def __exit__(self, *_: object) -> None:
        self._busy.release()

    @contextmanager
    def lifted(self) -> Iterator[None]:
        """A block inside the block for which no fork waits."""
        self.__exit__()
        try:
            yield
        finally:
            self.__enter__()

    def _before_fork(self) -> None:
        with self._turnstile:
            if self._busy.acquire(timeout=_FORK_PATIENCE_S):
                self._forking.add(threading.get_ident())

    def _after_fork_in_parent(self) -> None:
        if threading.get_ident() in self._forking:
            self._forking.discard(threading.get_ident())
            self._busy.release()

    def _reset(self) -> None:
        self._busy = threading.RLock()
        self._turnstile = threading.Lock()
        self._forking: set[int] = set()


_FORK_PATIENCE_S = 10.0
_SECTIONS: weakref.WeakSet[Undisturbed] = weakref.WeakSet()
_LOCKS: weakref.WeakSet[ForkSafeLock] = weakref.WeakSet()


def _before_fork() -> None:
    for section in list(_SECTIONS):
        section._before_fork()  # noqa: SLF001 - same module


def _after_fork_in_parent() -> None:
    for section in list(_SECTIONS):
        section._after_fork_in_parent()  # noqa: SLF001


def _after_fork_in_child() -> None:
    for lock in list(_LOCKS):
        lock._renew_if_orphaned()  # noqa: SLF001
    for section in list(_SECTIONS):
        section._reset()  # noqa: SLF001


if hasattr(os, "register_at_fork"):  # absent on Windows, which does not fork
    os.register_at_fork(
        before=_before_fork,
        after_in_parent=_after_fork_in_parent,
        after_in_child=_after_fork_in_child,
    )
