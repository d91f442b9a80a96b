"""Calls the user's functions: on a few threads, in order, and with a time limit.

A *lane* has the jobs of one set of functions, which a pool of threads does one after another. A job
that calls a function waits while another thread makes the call: Python cannot end a thread from
outside, so a function that does not return keeps its thread.

`concurrent.futures` lacks what is needed here: daemon threads that end when they are idle, and a
fresh start in a forked child.
"""

from __future__ import annotations

import queue
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, wait
from contextlib import contextmanager, suppress
from contextvars import Context
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar

from kp_langchain._forksafe import ForkSafeLock, call_in_child, leave_in_child
from kp_langchain._logging import describe_error, warn_once
from kp_langchain.errors import BusyError, LateError
from kp_langchain.recording.safe_reads import clean

if TYPE_CHECKING:
    from kp_langchain.recording.bounds import Counters

Job = Callable[[], None]
Task = Callable[[], Callable[[], None] | None]
"""A job of a thread. What it returns is called once the thread is free for the next one."""
Result = TypeVar("Result")

MAX_HANGING: Final = 4
"""The most late calls that one lane may have running; at this number it refuses further calls."""

_IDLE_S = 10.0
_NAME_CHARS = 100


class Pool:
    """Daemon threads that do tasks, and end when none comes for a while.

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
        self._handed: queue.SimpleQueue[Task] = queue.SimpleQueue()  # each to a thread that is free
        self._backlog: deque[Task] = deque()
        self._lock = threading.Lock()
        self._n_threads = self._n_idle = 0

    def start(self, task: Task) -> None:
        """Have a task done; at once unless all threads are at work.

        Raises:
            RuntimeError: There is no thread, and the interpreter is ending.
        """
        with self._lock:
            if not self._n_idle and self._n_threads < self._most:
                try:
                    self._add_thread()
                except RuntimeError:
                    if not self._n_threads:
                        raise
            if self._n_idle:
                self._n_idle -= 1
                self._handed.put(task)
            else:
                self._backlog.append(task)

    def prepare(self) -> None:
        """Have a thread ready, because an interpreter that is ending starts none."""
        with suppress(RuntimeError), self._lock:
            if not self._n_idle and self._n_threads < self._most:
                self._add_thread()

    def _add_thread(self) -> None:
        threading.Thread(target=self._work, name=self._name, daemon=True).start()
        self._n_threads += 1
        self._n_idle += 1

    def _work(self) -> None:
        with own_thread():
            while (task := self._next_task()) is not None:
                tell = task()
                del task
                with self._lock:
                    if self._backlog:
                        self._handed.put(self._backlog.popleft())
                    else:
                        self._n_idle += 1
                if tell is not None:
                    tell()  # only now: whoever waits may have the next job at once
                del tell

    def _next_task(self) -> Task | None:
        """Wait for a task; return None if none comes and the thread ends."""
        while True:
            with suppress(queue.Empty):
                return self._handed.get(timeout=_IDLE_S)
            with self._lock:
                if self._handed.empty():
                    self._n_threads -= 1
                    self._n_idle -= 1
                    return None


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
        self._schedule()

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait until all jobs submitted so far are done; return False if that takes too long."""
        are_done = threading.Event()
        self.submit(are_done.set)
        return are_done.wait(timeout_s)

    def prepare(self) -> None:
        """Have the threads ready that a job with a call needs, before the interpreter may end."""
        self._pool.prepare()
        _CALLS.prepare()

    def _schedule(self) -> None:
        with suppress(RuntimeError):
            self._pool.start(self._run_next)

    def _run_next(self) -> None:
        """Do the next job, and have the one after it scheduled."""
        job = self._jobs.popleft()
        try:
            job()
        except BaseException as error:  # noqa: BLE001 - one job must not end the thread
            warn_once(f"job:{type(error).__name__}", "a job failed with %s", describe_error(error))
        with self._lock:
            self._is_scheduled = bool(self._jobs)
        if self._is_scheduled:
            self._schedule()

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
        self._late_calls = [one for one in self._late_calls if not one.done()]
        if len(self._late_calls) >= MAX_HANGING:
            raise BusyError(f"it is not called while {MAX_HANGING} late calls hang")
        call: Future[Result] = Future()
        try:
            _CALLS.start(partial(_make, call, function))
        except RuntimeError:
            raise BusyError("it is not called: no thread can be started") from None
        wait([call], timeout_s)
        if not call.done():
            self._late_calls.append(call)
            raise LateError(f"it took longer than {timeout_s:g} s and is abandoned")
        return call.result()


def _make(call: Future[Result], function: Callable[[], Result]) -> Callable[[], None]:
    try:
        # In an empty context, so that `capture` does not record the runs of a verifier.
        return partial(call.set_result, Context().run(function))
    except BaseException as error:  # noqa: BLE001 - raised where it was called from
        return partial(call.set_exception, error)


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


def lane_for(key: object, pool: Pool) -> Lane:
    """Return the lane of all that have an equal, hashable `key`; its jobs are done on a pool."""
    with _lanes_lock:
        lane = _lanes_by_key.get(key)
        if lane is None:
            lane = _lanes_by_key[key] = Lane(pool)
            # Kept for a while, so that the late calls of handlers made per request are counted.
            _recent_lanes.append(lane)
        return lane


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


_lanes_by_key: weakref.WeakValueDictionary[object, Lane] = weakref.WeakValueDictionary()
_recent_lanes: deque[Lane] = deque(maxlen=16)
_lanes_lock = ForkSafeLock()
JUDGING: Final = Pool("kp_langchain jobs", 3)
"""Judges and announces runs of handlers with functions of the user."""
SEARCHING: Final = Pool("kp_langchain recall", 2)
"""Searches for examples, for which an agent waits."""
# As many as jobs call functions at once, and as many as hang.
_CALLS: Final = Pool("kp_langchain calls", 10_000)


def _after_fork() -> None:
    _local.is_own = False  # the only thread of a child is the host's


call_in_child(_after_fork)
