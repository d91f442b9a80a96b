"""Calls the user's functions: on a small pool of threads, in order, and with a time limit.

Python cannot end a thread from outside, so a function that does not return keeps its thread.

`concurrent.futures` lacks what is needed here: daemon threads that end when they are idle, one job
of each handler at a time, and a fresh start in a forked child.
"""

from __future__ import annotations

import os
import queue
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from contextvars import Context
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

from kp_langchain._forksafe import ForkSafeLock, allow_forks
from kp_langchain._logging import describe_error, warn_once
from kp_langchain.errors import BusyError, LateError
from kp_langchain.recording.safe_reads import clean

if TYPE_CHECKING:
    from kp_langchain.recording.counters import Counters

Job = Callable[[], None]
Result = TypeVar("Result")

MAX_HANGING: Final = 4
"""The most late calls that one lane may have running; at this number it refuses further calls."""

_IDLE_S = 10.0
_NAME_CHARS = 100


class Lane:
    """The jobs that call the functions of one set of handlers: one after another, on the pool.

    Args:
        name: The beginning of its threads' names.
        pool: The threads that do the jobs.
    """

    def __init__(self, name: str, pool: Pool) -> None:
        self.name = name
        self._pool = pool
        self.reset()
        _lanes.add(self)

    def reset(self) -> None:
        """Forget all jobs and threads, as a forked child must: they are its parent's."""
        self._jobs: deque[Job] = deque()
        self._lock = threading.Lock()
        self._is_scheduled = False
        self._thread: _CallThread | None = None
        self._late_threads: list[_CallThread] = []

    @property
    def waiting(self) -> int:
        """The number of jobs that have not begun."""
        return len(self._jobs)

    def submit(self, job: Job) -> None:
        """Queue a job; never blocks for long."""
        with self._lock:
            self._jobs.append(job)
            if self._is_scheduled:
                return
            self._is_scheduled = True
        self._pool.schedule(self)

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait until all jobs submitted so far are done; return False if that takes too long."""
        are_done = threading.Event()
        self.submit(are_done.set)
        return are_done.wait(timeout_s)

    def prepare(self) -> None:
        """Start the threads early, because an interpreter that is ending starts none."""
        with suppress(RuntimeError):
            self._pool.start()
            self._prepare_call()

    def run_next(self) -> None:
        """Do the next job, and have the one after it scheduled."""
        job = self._jobs.popleft()
        try:
            job()
        except BaseException as error:  # noqa: BLE001 - one job must not end the thread
            warn_once(f"job:{type(error).__name__}", "a job failed with %s", describe_error(error))
        with self._lock:
            self._is_scheduled = bool(self._jobs)
        if self._is_scheduled:
            self._pool.schedule(self)

    def _prepare_call(self) -> _CallThread:
        if self._thread is None:
            self._thread = thread = _CallThread(self.name)
            weakref.finalize(self, thread.calls.put, None).atexit = False
        return self._thread

    def call(self, function: Callable[[], Result], timeout_s: float) -> Result:
        """Call a user's function from one of the lane's jobs.

        Args:
            function: Called without arguments, on another thread and in an empty context.
            timeout_s: Longest wait, in seconds.

        Raises:
            LateError: It took longer. It is abandoned, and still runs.
            BusyError: It was not called, because late calls still run or no thread can be started.
            BaseException: What the function raises.
        """
        self._late_threads = [one for one in self._late_threads if one.thread.is_alive()]
        if len(self._late_threads) >= MAX_HANGING:
            raise BusyError(f"it is not called while {MAX_HANGING} late calls hang")
        try:
            thread = self._prepare_call()
        except RuntimeError:
            raise BusyError("it is not called: no thread can be started") from None
        call = _FunctionCall(function)
        thread.calls.put(call)
        with allow_forks():
            is_over = call.is_over.wait(timeout_s)
        if not is_over:
            self._thread = None
            self._late_threads.append(thread)
            thread.calls.put(None)
            raise LateError(f"it took longer than {timeout_s:g} s and is abandoned")
        if call.error is not None:
            raise call.error
        return cast("Result", call.result)


class _FunctionCall:
    """One call of a function, made on one thread and awaited on another."""

    __slots__ = ("error", "function", "is_over", "result")

    def __init__(self, function: Callable[[], Any]) -> None:
        self.function = function
        self.is_over = threading.Event()
        self.result: Any = None
        self.error: BaseException | None = None

    def make(self) -> None:
        try:
            # In an empty context, so that `capture` does not record the runs of a verifier.
            self.result = Context().run(self.function)
        except BaseException as error:  # noqa: BLE001 - raised where it was called from
            self.error = error
        finally:
            self.is_over.set()


class _CallThread:
    """A thread that makes the calls in its queue until it finds None there, or none comes."""

    def __init__(self, name: str) -> None:
        self.calls: queue.SimpleQueue[_FunctionCall | None] = queue.SimpleQueue()
        self.thread = threading.Thread(
            target=_make_calls, args=(self.calls,), name=f"{name} calls", daemon=True
        )
        self.thread.start()


def _make_calls(calls: queue.SimpleQueue[_FunctionCall | None]) -> None:
    with own_thread():
        while (call := calls.get()) is not None:
            call.make()
            del call


class Pool:
    """A few threads that do the jobs of lanes, and end when there are none.

    Args:
        name: The threads' name.
        most_threads: At most so many.
    """

    def __init__(self, name: str, most_threads: int) -> None:
        self._name = name
        self._most_threads = most_threads
        self.reset()

    def reset(self) -> None:
        """Forget jobs and threads, as a forked child must."""
        self._due: queue.SimpleQueue[Lane] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._threads = self._idle = 0

    def schedule(self, lane: Lane) -> None:
        """Have a job of a lane done; never blocks for long."""
        self._due.put(lane)
        with suppress(RuntimeError):  # the interpreter is ending: `run_here` does the jobs
            self.start()

    def start(self) -> None:
        """Start a thread, unless one is idle or there are as many as there may be.

        Raises:
            RuntimeError: The interpreter is ending.
        """
        with self._lock:
            if self._idle or self._threads >= self._most_threads:
                return
            thread = threading.Thread(target=self._work, name=self._name, daemon=True)
            self._threads += 1
            self._idle += 1
            try:
                thread.start()
            except RuntimeError:
                self._threads -= 1
                self._idle -= 1
                raise

    def _work(self) -> None:
        with own_thread():
            while True:
                lane = self._next()
                if lane is None:
                    return
                lane.run_next()
                with self._lock:
                    self._idle += 1
                del lane

    def _next(self) -> Lane | None:
        """Wait for a lane with a job; None if none comes and the thread ends."""
        while True:
            with suppress(queue.Empty):
                lane = self._due.get(timeout=_IDLE_S)
                with self._lock:
                    self._idle -= 1
                return lane
            with self._lock:
                if self._due.empty():
                    self._threads -= 1
                    self._idle -= 1
                    return None

    def run_here(self) -> bool:
        """Do one job in this thread if no thread of the pool can; return whether there was one."""
        if self._threads:
            return False
        with suppress(queue.Empty), own_thread():
            self._due.get_nowait().run_next()
            return True
        return False


@dataclass(frozen=True, slots=True)
class UserFunctions:
    """Calls the user's functions for one handler.

    Attributes:
        lane: The lane on which they are called.
        time_limit_s: Longest wait for one call, in seconds.
        counters: Counts what fails.
    """

    lane: Lane
    time_limit_s: float
    counters: Counters

    def call(self, function: Callable[[], Result]) -> Result:
        """Call a function from a job of the lane.

        Raises:
            LateError: It takes longer than the limit, and is abandoned.
            BaseException: Whatever it raises.
        """
        return self.lane.call(function, self.time_limit_s)

    def report_failure(self, counter: str, what: str, error: BaseException) -> None:
        """Count a failure, and warn of it once for each kind.

        Args:
            counter: The count in `stats`.
            what: What failed, as the beginning of a sentence.
            error: The error.
        """
        self.counters.add(counter)
        warn_once(
            f"{counter}:{what}:{type(error).__name__}",
            "%s (%s); counted under '%s'",
            what,
            describe_error(error),
            counter,
        )


def lane_for(key: object, name: str, pool: Pool) -> Lane:
    """Return the lane of all that have an equal `key`.

    Args:
        key: Hashable; equal for those that share a lane.
        name: The beginning of its threads' names.
        pool: The threads that do its jobs.
    """
    with _lanes_lock:
        lane = _lanes_by_key.get(key)
        if lane is None:
            lane = _lanes_by_key[key] = Lane(name, pool)
            # Kept for a while, so that handlers made per request do not each start a thread.
            _recent_lanes.append(lane)
        return lane


def run_jobs_here() -> bool:
    """Do a job of `JUDGING`, at the end of an interpreter; return whether there was one."""
    return JUDGING.run_here()


def name_of(function: object) -> str:
    """Return the `__name__` of a function, or else the name of its type."""
    name = None
    with suppress(BaseException):  # a callable of the user's may do anything
        name = getattr(function, "__name__", None)
    if not isinstance(name, str) or not name.strip():
        name = type(function).__name__
    return clean(name)[:_NAME_CHARS]


class _Local(threading.local):
    is_own = False  # whether this thread is one of ours


_local = _Local()


def is_own_thread() -> bool:
    """Return whether the current thread is one of ours, which must not wait for itself."""
    return _local.is_own


@contextmanager
def own_thread() -> Iterator[None]:
    """Mark the current thread as one of ours for the duration of a `with` block."""
    before, _local.is_own = _local.is_own, True
    try:
        yield
    finally:
        _local.is_own = before


_lanes: weakref.WeakSet[Lane] = weakref.WeakSet()
_lanes_by_key: weakref.WeakValueDictionary[object, Lane] = weakref.WeakValueDictionary()
_recent_lanes: deque[Lane] = deque(maxlen=16)
_lanes_lock = ForkSafeLock()
JUDGING: Final = Pool("kp_langchain jobs", 3)
"""Judges and announces runs of handlers with functions of the user."""
SENDING: Final = Pool("kp_langchain sending", 2)
"""Waits for tools elsewhere."""
SEARCHING: Final = Pool("kp_langchain recall", 2)
"""Searches for examples, for which an agent waits."""


def _after_fork() -> None:
    _local.is_own = False  # the only thread of a child is the host's
    for pool in (JUDGING, SENDING, SEARCHING):
        pool.reset()
    for lane in list(_lanes):
        lane.reset()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
