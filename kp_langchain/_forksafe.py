"""Locks that survive a fork, and sections that a fork waits for."""

from __future__ import annotations

import os
import threading
import time
import weakref
from collections.abc import Collection, Iterator
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

    @property
    def is_held_here(self) -> bool:
        """Whether the calling thread holds it."""
        return self._lock._is_owned()  # type: ignore[attr-defined,no-any-return] # noqa: SLF001 - as threading.Condition asks

    def _renew_if_orphaned(self) -> None:
        if self._lock.acquire(blocking=False):
            self._lock.release()
        else:
            self._lock = threading.RLock()


class Undisturbed:
    """A `with` block that a fork of this process waits for. One thread at a time, re-entrant.

    A fork in the middle of a database operation, an import or a model's work copies their locks
    as they are, and nobody would ever open them in the child. While a fork waits, no thread enters
    its first section, unless it holds a `ForkSafeLock` and somebody who was inside when the fork
    began to wait still is, who may be waiting for that lock. A thread that is inside one may enter
    further ones, because the fork waits for it anyway.

    Args:
        patience_s: Seconds that a fork waits at most for a thread inside; by default 10. A short
            one suits work that others may hold up, such as a database's; a long one suits what
            must not be copied half done, such as a model that is loading.
    """

    def __init__(self, *, patience_s: float | None = None) -> None:
        self._patience_s = patience_s
        self._lock = ForkSafeLock()

    def __enter__(self) -> None:
        _GATE.enter(self)
        try:
            self._lock.__enter__()
        except BaseException:  # a signal's handler raised in the middle of waiting
            _GATE.leave(self)
            raise

    def __exit__(self, *_: object) -> None:
        self._lock.__exit__()
        _GATE.leave(self)

    @property
    def patience_s(self) -> float:
        return _FORK_PATIENCE_S if self._patience_s is None else self._patience_s


@contextmanager
def only_waiting() -> Iterator[None]:
    """A block for which no fork waits, whatever sections the calling thread is in.

    For waiting for others: another thread, another process.
    """
    sections = _GATE.sections_of_this_thread()
    for section in reversed(sections):
        section.__exit__()
    try:
        yield
    finally:
        for section in sections:
            section.__enter__()


def wait_until_outside(threads: Collection[threading.Thread], timeout_s: float) -> bool:
    """Wait until none of `threads` is in a section; return False if that took too long.

    Args:
        threads: Threads that have been started.
        timeout_s: Longest wait in seconds.
    """
    return _GATE.wait_until_outside({thread.ident for thread in threads}, timeout_s)


class _Gate:
    """Knows which threads are in which sections, and lets forks wait for them."""

    def __init__(self) -> None:
        self._inside: dict[int, list[Undisturbed]] = {}
        self._forking: set[int] = set()
        self._awaited: set[int] = set()  # those inside when a fork began to wait
        self._changed = threading.Condition()

    def enter(self, section: Undisturbed) -> None:
        me = threading.get_ident()
        with self._changed:
            while self._forking - {me} and me not in self._inside:
                if self._awaited and _holds_a_lock():
                    break  # somebody inside may wait for it; what comes after that does not
                self._changed.wait()
            self._inside.setdefault(me, []).append(section)

    def leave(self, section: Undisturbed) -> None:
        me = threading.get_ident()
        with self._changed:
            sections = self._inside[me]
            sections.remove(section)
            if not sections:
                del self._inside[me]
                self._awaited.discard(me)
                self._changed.notify_all()

    def sections_of_this_thread(self) -> list[Undisturbed]:
        return list(self._inside.get(threading.get_ident(), ()))

    def wait_until_outside(self, threads: set[int | None], timeout_s: float) -> bool:
        with self._changed:
            return self._changed.wait_for(lambda: threads.isdisjoint(self._inside), timeout_s)

    def before_fork(self) -> None:
        me = threading.get_ident()
        began = time.monotonic()
        with self._changed:
            self._forking.add(me)
            self._awaited.update(self._inside.keys() - self._forking)
            self._changed.notify_all()
            while (left_s := began + self._patience_s(me) - time.monotonic()) > 0:
                self._changed.wait(left_s)
            self._awaited.clear()

    def _patience_s(self, me: int) -> float:
        """Return how long a fork by `me` waits for who is inside now; 0 if nobody is."""
        return max(
            (
                section.patience_s
                for thread, sections in self._inside.items()
                # Two threads that fork at the same time do not wait for each other.
                if thread not in self._forking and thread != me
                for section in sections
            ),
            default=0.0,
        )

    def after_fork_in_parent(self) -> None:
        with self._changed:
            self._forking.discard(threading.get_ident())
            self._changed.notify_all()

    def after_fork_in_child(self) -> None:
        me = threading.get_ident()
        self._changed = threading.Condition()
        self._forking = set()
        self._awaited = set()
        self._inside = {me: self._inside[me]} if me in self._inside else {}


_FORK_PATIENCE_S = 10.0
_MOST_LOOKS = 10
_LOCKS: weakref.WeakSet[ForkSafeLock] = weakref.WeakSet()
_GATE = _Gate()


def _holds_a_lock() -> bool:
    for _ in range(_MOST_LOOKS):
        try:
            return any(lock.is_held_here for lock in list(_LOCKS))
        except RuntimeError:  # another thread made one meanwhile
            pass
    return True


def _after_fork_in_child() -> None:
    for lock in list(_LOCKS):
        lock._renew_if_orphaned()  # noqa: SLF001 - same module
    _GATE.after_fork_in_child()


if hasattr(os, "register_at_fork"):  # absent on Windows, which does not fork
    os.register_at_fork(
        before=_GATE.before_fork,
        after_in_parent=_GATE.after_fork_in_parent,
        after_in_child=_after_fork_in_child,
    )
