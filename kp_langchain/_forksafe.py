"""What a fork means for this package: one gate that it waits for, and one hook in the child.

A forked child has the memory of its parent and one thread. A lock that another thread held at the
fork stays locked there for ever.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from operator import attrgetter
from typing import Protocol

# Long enough for an import, which holds locks of Python's.
_FORK_PATIENCE_S = 10.0


class ForkSafeLock:
    """A re-entrant lock for `with` that a forked child can acquire.

    In the child, a lock held by another thread is replaced. A lock held by the forking thread stays
    held, so that the `with` block can be left on both sides. The lock is re-entrant because the
    garbage collector may call code that acquires it again. `with` calls the methods of the inner
    lock directly: in an `__enter__` written in Python, a signal handler could raise after the lock
    is acquired and before the block is entered, and the lock would never be released.
    """

    __slots__ = ("__weakref__", "_lock")
    __enter__ = property(attrgetter("_lock.__enter__"))
    __exit__ = property(attrgetter("_lock.__exit__"))

    def __init__(self) -> None:
        self._lock = threading.RLock()
        _locks.add(self)

    @property
    def is_held_here(self) -> bool:
        """Whether the calling thread holds the lock."""
        return self._lock._is_owned()  # type: ignore[attr-defined,no-any-return] # noqa: SLF001 - as threading.Condition asks

    def _renew_if_orphaned(self) -> None:
        if self._lock.acquire(blocking=False):
            self._lock.release()
        else:
            self._lock = threading.RLock()


class ForkGate:
    """A `with` block that a fork of this process waits for, 10 s at most; re-entrant.

    Inside is what must not be copied unfinished: a database operation, an import, a matrix product
    or a model's work. Any number of threads may be inside. While a fork waits, no other thread
    enters. There is one gate, `fork_gate`.
    """

    def __init__(self) -> None:
        self._condition = threading.Condition()
        self._depths: dict[int, int] = {}  # how often each thread inside has entered
        self._forking_threads: set[int] = set()

    def __enter__(self) -> None:
        self._enter(1)

    def __exit__(self, *_: object) -> None:
        me = threading.get_ident()
        with self._condition:
            self._depths[me] -= 1
            if not self._depths[me]:
                del self._depths[me]
                self._condition.notify_all()

    @contextmanager
    def opened(self) -> Iterator[None]:
        """Let forks proceed inside the block, where this thread only waits for others."""
        with self._condition:
            depth = self._depths.pop(threading.get_ident(), 0)
            self._condition.notify_all()
        try:
            yield
        finally:
            if depth:
                self._enter(depth)

    def wait_for(self, threads: Collection[threading.Thread], timeout_s: float) -> bool:
        """Wait until none of `threads` is inside; return False if that takes too long."""
        idents = {thread.ident for thread in threads}
        with self._condition:
            return self._condition.wait_for(lambda: idents.isdisjoint(self._depths), timeout_s)

    def _enter(self, times: int) -> None:
        me = threading.get_ident()
        with self._condition:
            while me not in self._depths and self._forking_threads - {me}:
                self._condition.wait()
            self._depths[me] = self._depths.get(me, 0) + times

    def before_fork(self) -> None:
        """Wait until no other thread is inside, but not for threads that fork as well."""
        with self._condition:
            self._forking_threads.add(threading.get_ident())
            self._condition.notify_all()
            self._condition.wait_for(
                lambda: self._depths.keys() <= self._forking_threads, _FORK_PATIENCE_S
            )

    def after_fork_in_parent(self) -> None:
        """Let others enter again."""
        with self._condition:
            self._forking_threads.discard(threading.get_ident())
            self._condition.notify_all()

    def after_fork_in_child(self) -> None:
        """Forget all threads but the one that is left."""
        me = threading.get_ident()
        self._condition = threading.Condition()
        self._forking_threads = set()
        self._depths = {me: self._depths[me]} if me in self._depths else {}


class GatedLock:
    """A re-entrant lock for `with` whose holder is inside the gate, so that a fork waits for it."""

    def __init__(self) -> None:
        self._lock = ForkSafeLock()

    def __enter__(self) -> None:
        fork_gate.__enter__()
        try:
            self._lock.__enter__()
        except BaseException:  # a signal handler raised while this thread waited
            fork_gate.__exit__()
            raise

    def __exit__(self, *_: object) -> None:
        self._lock.__exit__(None, None, None)
        fork_gate.__exit__()


class ForkAware(Protocol):
    """What starts anew in a forked child."""

    def leave_to_parent(self) -> None:
        """Forget what belongs to the parent: threads, connections, and what waits for them."""


def leave_in_child(owner: ForkAware) -> None:
    """Call `owner.leave_to_parent` in each forked child, as long as the owner lives."""
    _owners.add(owner)


def _after_fork_in_child() -> None:
    for lock in list(_locks):
        lock._renew_if_orphaned()  # noqa: SLF001 - same module
    fork_gate.after_fork_in_child()
    for owner in list(_owners):
        owner.leave_to_parent()


_locks: weakref.WeakSet[ForkSafeLock] = weakref.WeakSet()
_owners: weakref.WeakSet[ForkAware] = weakref.WeakSet()
fork_gate = ForkGate()

if hasattr(os, "register_at_fork"):  # missing on Windows, which has no fork
    os.register_at_fork(
        before=fork_gate.before_fork,
        after_in_parent=fork_gate.after_fork_in_parent,
        after_in_child=_after_fork_in_child,
    )
