"""Worker threads that keep work off the agent, and the shutdown that finishes it.

One *intake* worker per process turns finished runs into redacted drafts. Scoring has workers of its
own, one for each store and set of the user's functions (`lane_for`). So a function that hangs, or a
store that does not answer, delays nobody else.

`concurrent.futures` lacks three things needed here: submitting a job during a garbage collection
(`SimpleQueue.put` may be re-entered, an executor's lock may not), a bounded wait at exit, and a
fresh start in a forked child without the parent's jobs.
"""

from __future__ import annotations

import atexit
import logging
import os
import queue
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Hashable
from typing import Literal, TypeVar

from kp_langchain import redaction
from kp_langchain._forksafe import ForkSafeLock, NoForkSection, allow_forks
from kp_langchain._host_exceptions import raised_by_host
from kp_langchain._logging import describe_error, warn_once
from kp_langchain.recording import exit_hooks
from kp_langchain.recording.counters import total
from kp_langchain.recording.time_limit import Caller, disown_thread, own_thread

log = logging.getLogger("kp_langchain")

Job = Callable[[], None]
AtExit = Literal["first", "last", "leave"]
Result = TypeVar("Result")

_MAX_IDLE_LANES = 16


class Worker:
    """Runs jobs one after another in a daemon thread that starts with the first job.

    The thread ends when the worker is garbage and its jobs are done.

    Args:
        name: The thread's name.
        first: What the thread does before any job.
        at_exit: When the end of the process waits for the jobs: "first"; "last", because they wait
            for a tool elsewhere; or not at all ("leave"), because nobody needs what they do.
    """

    def __init__(self, name: str, first: Job = lambda: None, *, at_exit: AtExit = "first") -> None:
        self._name = name
        self._first = first
        self.at_exit = at_exit
        self._section = NoForkSection()
        self._caller = Caller(name)
        self._reset()
        with _workers_lock:
            _workers.add(self)

    def _reset(self) -> None:
        # In a forked child the thread is gone, and the queued jobs belong to the parent.
        self._jobs: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._starting = threading.Lock()
        self._caller.reset()
        weakref.finalize(self, self._jobs.put, None).atexit = False

    @property
    def waiting(self) -> int:
        """The number of jobs that have not begun."""
        return self._jobs.qsize()

    @property
    def _is_running(self) -> bool:
        return self._thread is not None and self._thread.is_alive()

    def submit(self, job: Job) -> None:
        """Queue a job; never blocks."""
        self._jobs.put(job)
        self.start()

    def start(self, *, calls: bool = False) -> None:
        """Start the thread unless it runs: early, because an ending interpreter starts no threads.

        Args:
            calls: Whether to start the thread for `call` as well.
        """
        if self._is_running and not (calls and not self._caller.is_ready):
            return
        # Without blocking: whoever has the lock, even this very thread, is starting the worker.
        if not self._starting.acquire(blocking=False):
            return
        try:
            if calls:
                self._caller.prepare()
            if self._is_running:
                return
            exit_hooks.watch(finish)
            thread = threading.Thread(
                target=_work,
                args=(self._first, self._jobs, self._section),
                name=self._name,
                daemon=True,
            )
            thread.start()
            self._thread = thread
        except RuntimeError as error:  # the interpreter is ending: `wait` runs the jobs
            if raised_by_host(error):
                raise
            log.debug("no thread can be started while the interpreter ends")
        finally:
            self._starting.release()

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait until all jobs submitted so far are done.

        Args:
            timeout_s: Seconds to wait at most; None waits as long as it takes.

        Returns:
            Whether they are done. False at once when called from one of the worker's own jobs,
            which would wait for itself.
        """
        if threading.current_thread() is self._thread:
            return False
        all_done = threading.Event()
        self.submit(all_done.set)
        if not self._is_running:
            return self._run_here(all_done, timeout_s)
        return all_done.wait(timeout_s)

    def _run_here(self, all_done: threading.Event, timeout_s: float | None) -> bool:
        """Run the queued jobs in this thread until an event is set."""
        until = None if timeout_s is None else time.monotonic() + timeout_s
        with own_thread():
            while not all_done.is_set() and (until is None or time.monotonic() < until):
                try:
                    job = self._jobs.get_nowait()
                except queue.Empty:
                    break
                if job is not None:
                    with self._section:
                        _run(job)
        return all_done.is_set()

    def call(self, function: Callable[[], Result], timeout_s: float) -> Result:
        """Call a user's function from one of this worker's jobs, with a time limit.

        Args:
            function: Called without arguments, on another thread and in an empty context.
            timeout_s: Longest wait, in seconds.

        Raises:
            LateError: It took longer. It is abandoned, and still runs.
            BusyError: It was not called, because late calls still run or no thread can be started.
            BaseException: What the function raises.
        """
        with allow_forks():
            return self._caller.call(function, timeout_s)


def _work(first: Job, jobs: queue.SimpleQueue[Job | None], section: NoForkSection) -> None:
    with own_thread():
        with section:
            _run(first)
        while (job := jobs.get()) is not None:
            with section:
                _run(job)
            del job  # it may hold the last reference to the worker


def _run(job: Job) -> None:
    try:
        job()
    except BaseException as error:  # noqa: BLE001 - one job must not end the worker
        warn_once(f"worker:{type(error).__name__}", "a job failed with %s", describe_error(error))


def lane_for(
    key: Hashable, name: str = "kp_langchain scoring", *, at_exit: AtExit = "first"
) -> Worker:
    """Return the worker of all handlers with an equal `key`: it scores their runs, or sends scores.

    Args:
        key: Equal for handlers that share a worker.
        name: The thread's name.
        at_exit: As for `Worker`.
    """
    with _lanes_lock:
        lane = _lanes.get(key)
        if lane is None:
            lane = _lanes[key] = Worker(name, at_exit=at_exit)
            # Kept for a while, so that handlers made per request do not each start a thread.
            _recent_lanes.append(lane)
        return lane


def finish(timeout_s: float | None = None) -> None:
    """Finish all work before this process ends: score, store, send.

    It may be called more than once and from any thread, and never raises.

    Args:
        timeout_s: Seconds to take at most; None for the setting `exit_timeout_s`.
    """
    limit_s = exit_timeout_s if timeout_s is None else timeout_s
    until = time.monotonic() + limit_s
    _wait_for_workers(until, "first")
    if unscored := total("queued"):
        log.warning(
            "%d finished runs were not scored within %.0f s of exit; those that are in a store are "
            "scored by the next process that records into it. Call handler.flush() before the "
            "program ends, or raise exit_timeout_s",
            unscored,
            limit_s,
        )
    if verdicts := total("queued_verdicts"):
        log.warning(
            "%d verdicts were not written within %.0f s of exit and are lost; report them again",
            verdicts,
            limit_s,
        )
    for finish_part in list(at_finish.values()):
        finish_part(max(0.0, until - time.monotonic()))
    _wait_for_workers(until, "first")  # storing a verdict delivers its run once more
    _wait_for_workers(until, "last")
    if unsent := total("scores_queued"):
        log.warning(
            "%d scores were not sent to other tools within %.0f s of exit. Call handler.send() "
            "before the program ends, or raise exit_timeout_s",
            unsent,
            limit_s,
        )


def _wait_for_workers(until: float, at_exit: AtExit) -> None:
    with _workers_lock:
        workers = [one for one in _workers if one.at_exit == at_exit]
    workers.sort(key=lambda one: one is not intake)
    for worker in workers:
        if worker._thread is not None or worker.waiting:  # noqa: SLF001 - same module
            worker.wait(max(0.0, until - time.monotonic()))


exit_timeout_s = 10.0
"""Longest wait for unfinished work at exit, in seconds."""

at_finish: dict[str, Callable[[float], None]] = {}
"""What else `finish` calls, in this order; each function gets the seconds left."""

_workers: weakref.WeakSet[Worker] = weakref.WeakSet()
_workers_lock = ForkSafeLock()
_lanes: weakref.WeakValueDictionary[Hashable, Worker] = weakref.WeakValueDictionary()
_recent_lanes: deque[Worker] = deque(maxlen=_MAX_IDLE_LANES)
_lanes_lock = ForkSafeLock()
intake = Worker("kp_langchain", first=redaction.load)


def _after_fork() -> None:
    disown_thread()
    for worker in list(_workers):
        worker._reset()  # noqa: SLF001 - same module


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
atexit.register(finish)
