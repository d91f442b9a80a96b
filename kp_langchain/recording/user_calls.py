"""Calls the user's functions: on a few threads, in order, and with a time limit.

A *lane* has the jobs of one set of functions, which a pool of threads does one after another. A job
that calls a function waits while another thread makes the call: Python cannot end a thread from
outside, so a function that does not return keeps its thread.
"""

from __future__ import annotations

import queue
import threading
import weakref
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, wait
from contextlib import suppress
from contextvars import Context
from typing import Any, Final, TypeVar

from kp_langchain._forksafe import ForkSafeLock, leave_in_child
from kp_langchain._logging import describe_error, warn_once
from kp_langchain.errors import BusyError, LateError
from kp_langchain.values import clean_text

Job = Callable[[], None]
Result = TypeVar("Result")

MAX_HANGING: Final = 4
"""The most late calls that one lane may have running; at this number it refuses further calls."""

_IDLE_S = 10.0
_NAME_CHARS = 100


class Pool:
    """Daemon threads that do jobs, and end when none comes for a while.

    Args:
        name: The threads' name.
        most: The most threads.
    """

    def __init__(self, name: str, most: int) -> None:
        self._name = name
        self._most = most
        self.leave_to_parent()
        leave_in_child(self)

    def leave_to_parent(self) -> None:
        """Forget jobs and threads, as a forked child must."""
        self._jobs: queue.SimpleQueue[Job] = queue.SimpleQueue()
        self._lock = threading.RLock()  # the garbage collector may end a run in `_add_thread`
        self._n_threads = 0

    def start(self, job: Job) -> None:
        """Have a job done; at once unless all threads are at work."""
        self._jobs.put(job)
        self._add_thread(self._most)

    def prepare(self) -> None:
        """Have a thread ready, because an interpreter that is ending starts none."""
        self._add_thread(1)

    def _add_thread(self, most: int) -> None:
        with self._lock, suppress(RuntimeError):
            if self._n_threads < most:
                self._n_threads += 1
                try:
                    threading.Thread(target=self._work, name=self._name, daemon=True).start()
                except RuntimeError:
                    self._n_threads -= 1
                    raise

    def _work(self) -> None:
        mark_own_thread()
        jobs, lock = self._jobs, self._lock
        while True:
            try:
                job = jobs.get(timeout=_IDLE_S)
            except queue.Empty:
                with lock:
                    if jobs.empty():  # else `start` counts on this thread
                        self._n_threads -= 1
                        return
            else:
                job()


class Lane:
    """The jobs that call the functions of one set of handlers: one after another, on a pool.

    Args:
        pool: Where the jobs are done.
    """

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self.leave_to_parent()
        leave_in_child(self)

    def leave_to_parent(self) -> None:
        """Forget all jobs, as a forked child must: they are its parent's."""
        self._jobs: deque[Job] = deque()
        self._lock = threading.Lock()
        self._is_scheduled = False
        self._late_calls: list[Future[Any]] = []
        self.runs = 0  # that are judged in it, the one at work included; the engine counts them

    def submit(self, job: Job) -> None:
        """Queue a job; never blocks for long."""
        with self._lock:
            self._jobs.append(job)
            if self._is_scheduled:
                return
            self._is_scheduled = True
        self._pool.start(self._run_next)

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait until all jobs submitted so far are done; return False if that takes too long."""
        are_done = threading.Event()
        self.submit(are_done.set)
        return are_done.wait(timeout_s)

    def prepare(self) -> None:
        """Have a thread ready that does a job, before the interpreter may end."""
        self._pool.prepare()

    def _run_next(self) -> None:
        """Do the next job, and have the one after it scheduled."""
        job = self._jobs.popleft()
        try:
            job()
        except BaseException as error:  # noqa: BLE001 - one job must not end the thread
            warn_once(f"job:{type(error).__name__}", "a job failed with %s", describe_error(error))
        with self._lock:
            is_more = self._is_scheduled = bool(self._jobs)
        if is_more:
            self._pool.start(self._run_next)

    def call(self, function: Callable[[], Result], timeout_s: float) -> Result:
        """Call a user's function from one of the lane's jobs.

        Args:
            function: Called without arguments, on another thread and in an empty context.
            timeout_s: Longest wait, in seconds. There is no limit but that of the exit once the
                interpreter is ending, which starts no threads.

        Raises:
            LateError: It took longer. It is abandoned, and still runs.
            BusyError: It was not called, because late calls still run.
            BaseException: What the function raises.
        """
        self._late_calls = [one for one in self._late_calls if not one.done()]
        if len(self._late_calls) >= MAX_HANGING:
            raise BusyError(f"it is not called while {MAX_HANGING} late calls hang")
        call: Future[Result] = Future()
        try:
            threading.Thread(
                target=_make, args=(call, function), name="kp_langchain call", daemon=True
            ).start()
        except RuntimeError:
            _make(call, function)
        wait([call], timeout_s)
        if not call.done():
            self._late_calls.append(call)
            raise LateError(f"it took longer than {timeout_s:g} s and is abandoned")
        return call.result()


def _make(call: Future[Result], function: Callable[[], Result]) -> None:
    mark_own_thread()
    try:
        # In an empty context, so that `capture` does not record the runs of a verifier.
        call.set_result(Context().run(function))
    except BaseException as error:  # noqa: BLE001 - raised where it was called from
        call.set_exception(error)


def lane_for(key: object, pool: Pool) -> Lane:
    """Return the lane of all that have an equal, hashable `key`; its jobs are done on a pool."""
    with _lanes_lock:
        lane = _lanes_by_key.get(key)
        if lane is None:
            lane = _lanes_by_key[key] = Lane(pool)
        return lane


def name_of(function: object) -> str:
    """Return the `__name__` of a function, or else the name of its type."""
    name = None
    with suppress(BaseException):  # a callable of the user's may do anything
        name = getattr(function, "__name__", None)
    if not isinstance(name, str) or not name.strip():
        name = type(function).__name__
    return clean_text(name)[:_NAME_CHARS]


_local = threading.local()


def is_own_thread() -> bool:
    """Return whether the current thread is one of ours, which must not wait for itself."""
    return getattr(_local, "is_own", False)


def mark_own_thread() -> None:
    """Mark the current thread as one of ours."""
    _local.is_own = True


_lanes_by_key: weakref.WeakValueDictionary[object, Lane] = weakref.WeakValueDictionary()
_lanes_lock = ForkSafeLock()
JUDGING: Final = Pool("kp_langchain jobs", 3)
"""Judges and announces runs of handlers with functions of the user."""
SEARCHING: Final = Pool("kp_langchain recall", 2)
"""Searches for examples, for which an agent waits."""
