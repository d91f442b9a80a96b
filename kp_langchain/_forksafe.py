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
    """A re-entrant lock for `with` that a forked child can acquire.

    A child inherits locks in their state at the fork. A lock held by another thread would stay
    locked for ever, because that thread does not exist in the child; such a lock is replaced there.
    A lock held by the forking thread stays held, so that the `with` block can be left on both
    sides. The lock is re-entrant because the garbage collector may call code that acquires it
    again. `with` calls the methods of the inner lock directly: in an `__enter__` written in Python,
    a signal handler could raise after the lock is acquired and before the block is entered, and the
    lock would never be released.
    """

    __slots__ = ("__weakref__", "_lock")
    __enter__ = property(attrgetter("_lock.__enter__"))
    __exit__ = property(attrgetter("_lock.__exit__"))

    def __init__(self) -> None:
        self._lock = threading.RLock()
        _LOCKS.add(self)

    @property
    def is_held_here(self) -> bool:
        """Whether the calling thread holds the lock."""
        return self._lock._is_owned()  # type: ignore[attr-defined,no-any-return] # noqa: SLF001 - as threading.Condition asks

    def _renew_if_orphaned(self) -> None:
        if self._lock.acquire(blocking=False):
            self._lock.release()
        else:
            self._lock = threading.RLock()


class NoForkSection:
    """A `with` block that a fork of this process waits for; a re-entrant mutex.

    A fork in the middle of a database operation, an import or a model's work copies locked locks,
    which the child could never acquire. While a fork waits, a thread outside all sections may not
    enter one. There is one exception: a thread that holds a `ForkSafeLock` may enter as long as the
    fork waits for some thread inside, because that thread may need the lock to leave. A thread
    inside a section may enter others, because the fork waits for it anyway.

    Args:
        patience_s: The longest that a fork waits for a thread inside, in seconds; by default 10.
            Use a short time for work that others may delay, such as a database operation, and a
            long time for work that must not be copied unfinished, such as the loading of a model.
    """

    def __init__(self, *, patience_s: float | None = None) -> None:
        self._patience_s = patience_s
        self._lock = ForkSafeLock()

    def __enter__(self) -> None:
        _SECTIONS.enter(self)
        try:
            self._lock.__enter__()
        except BaseException:  # a signal handler raised while this thread waited
            _SECTIONS.leave(self)
            raise

    def __exit__(self, *_: object) -> None:
        self._lock.__exit__(None, None, None)
        _SECTIONS.leave(self)

    @property
    def patience_s(self) -> float:
        """The longest that a fork waits for a thread inside, in seconds."""
        return _FORK_PATIENCE_S if self._patience_s is None else self._patience_s


@contextmanager
def allow_forks() -> Iterator[None]:
    """Let forks proceed inside the block, even if the calling thread is in a section.

    Use it to wait for another thread or process.
    """
    sections = _SECTIONS.sections_of_this_thread()
    for section in reversed(sections):
        section.__exit__()
    try:
        yield
    finally:
        for section in sections:
            section.__enter__()


def wait_until_outside(threads: Collection[threading.Thread], timeout_s: float) -> bool:
    """Wait until none of `threads` is in a section.

    Args:
        threads: Threads that have been started.
        timeout_s: The longest wait in seconds.

    Returns:
        False if a thread is still in a section after that time.
    """
    return _SECTIONS.wait_until_outside({thread.ident for thread in threads}, timeout_s)


class _Sections:
    """The sections that each thread is in; forks wait for them."""

    def __init__(self) -> None:
        self._inside: dict[int, list[NoForkSection]] = {}
        self._forking_threads: set[int] = set()
        self._awaited_threads: set[int] = set()  # inside when a fork started to wait
        self._condition = threading.Condition()

    def enter(self, section: NoForkSection) -> None:
        me = threading.get_ident()
        with self._condition:
            while self._forking_threads - {me} and me not in self._inside:
                if self._awaited_threads and _holds_a_lock():
                    break  # a thread inside may wait for that lock; one that enters later does not
                self._condition.wait()
            self._inside.setdefault(me, []).append(section)

    def leave(self, section: NoForkSection) -> None:
        me = threading.get_ident()
        with self._condition:
            sections = self._inside[me]
            sections.remove(section)
            if not sections:
                del self._inside[me]
                self._awaited_threads.discard(me)
                self._condition.notify_all()

    def sections_of_this_thread(self) -> list[NoForkSection]:
        return list(self._inside.get(threading.get_ident(), ()))

    def wait_until_outside(self, threads: set[int | None], timeout_s: float) -> bool:
        with self._condition:
            return self._condition.wait_for(lambda: threads.isdisjoint(self._inside), timeout_s)

    def before_fork(self) -> None:
        me = threading.get_ident()
        began = time.monotonic()
        with self._condition:
            self._forking_threads.add(me)
            self._awaited_threads.update(self._inside.keys() - self._forking_threads)
            self._condition.notify_all()
            while (left_s := began + self._patience_s(me) - time.monotonic()) > 0:
                self._condition.wait(left_s)
            self._awaited_threads.clear()

    def _patience_s(self, me: int) -> float:
        """Return how long a fork by `me` waits for the threads inside, in seconds; 0 if none is."""
        return max(
            (
                section.patience_s
                for thread, sections in self._inside.items()
                # Threads that fork at the same time do not wait for each other.
                if thread not in self._forking_threads and thread != me
                for section in sections
            ),
            default=0.0,
        )

    def after_fork_in_parent(self) -> None:
        with self._condition:
            self._forking_threads.discard(threading.get_ident())
            self._condition.notify_all()

    def after_fork_in_child(self) -> None:
        me = threading.get_ident()
        self._condition = threading.Condition()
        self._forking_threads = set()
        self._awaited_threads = set()
        self._inside = {me: self._inside[me]} if me in self._inside else {}


_FORK_PATIENCE_S = 10.0
_MOST_ATTEMPTS = 10
_LOCKS: weakref.WeakSet[ForkSafeLock] = weakref.WeakSet()
_SECTIONS = _Sections()


def _holds_a_lock() -> bool:
    for _ in range(_MOST_ATTEMPTS):
        try:
            return any(lock.is_held_here for lock in list(_LOCKS))
        except RuntimeError:  # another thread added a lock during the iteration
            pass
    return True


def _after_fork_in_child() -> None:
    for lock in list(_LOCKS):
        lock._renew_if_orphaned()  # noqa: SLF001 - same module
    _SECTIONS.after_fork_in_child()


if hasattr(os, "register_at_fork"):  # missing on Windows, which has no fork
    os.register_at_fork(
        before=_SECTIONS.before_fork,
        after_in_parent=_SECTIONS.after_fork_in_parent,
        after_in_child=_after_fork_in_child,
    )
