"""Threads that do what the agent must not wait for, and what is left of it when a process ends.

One *intake* worker a process makes redacted drafts of finished runs. Scoring has workers of its
own, one for each store and set of the caller's functions (`lane_for`), so that a function that
hangs, or a store that does not answer, holds up nobody else.

Threads of our own instead of `concurrent.futures`, for what that does not offer: putting work in
from a garbage collection (`SimpleQueue.put` may be re-entered, an executor's lock may not), a
bounded wait at exit, and a fresh start after a fork without the parent's work.
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
from typing import TypeVar

from kp_langchain import redaction
from kp_langchain._forksafe import ForkSafeLock, NoForkSection, allow_forks
from kp_langchain._host_exceptions import raised_by_host
from kp_langchain._logging import describe_error, warn_once
from kp_langchain.recording import process_ends
from kp_langchain.recording.counters import total
from kp_langchain.recording.time_limit import Caller, disown_thread, own_thread

log = logging.getLogger("kp_langchain")

Job = Callable[[], None]
Result = TypeVar("Result")

_LANES_KEPT = 16


class Worker:
    """Runs jobs one after another in a daemon thread that starts with the first job.

    The thread ends when nobody holds the worker any more and its jobs are done.

    Args:
        name: What the thread is called.
        first: What the thread does before any job.
    """

    def __init__(self, name: str, first: Job = lambda: None) -> None:
        self._name = name
        self._first = first
        self._section = NoForkSection()
        self._caller = Caller(name)
        self._reset()
        with _workers_lock:
            _workers.add(self)

    def _reset(self) -> None:
        # In a forked child the thread is gone, and the queued jobs are the parent's to do.
        self._jobs: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._starting = threading.Lock()
        self._caller.reset()
        weakref.finalize(self, self._jobs.put, None).atexit = False

    @property
    def waiting(self) -> int:
        """Jobs not begun yet."""
        return self._jobs.qsize()

    @property
    def _running(self) -> bool:
        return self._thread is not None and self._thread.is_alive()

    def submit(self, job: Job) -> None:
        """Have `job` run; never blocks."""
        self._jobs.put(job)
        self.start()

    def start(self, *, calls: bool = False) -> None:
        """Start the thread unless it runs, because an ending interpreter starts no threads.

        Args:
            calls: Whether the thread for `call` is to be started, too.
        """
        if self._running and not (calls and not self._caller.is_ready):
            return
        # Non-blocking: whoever holds the lock, even this very thread, is starting the worker.
        if not self._starting.acquire(blocking=False):
            return
        try:
            if calls:
                self._caller.prepare()
            if self._running:
                return
            process_ends.watch(finish)
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
            log.debug("no thread can be started any more")
        finally:
            self._starting.release()

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait until all jobs submitted so far are done; False if that took too long.

        Called from a job of its own, which would wait for itself, it returns False at once.
        """
        if threading.current_thread() is self._thread:
            return False
        done = threading.Event()
        self.submit(done.set)
        if not self._running:
            return self._run_here(done, timeout_s)
        return done.wait(timeout_s)

    def _run_here(self, done: threading.Event, timeout_s: float | None) -> bool:
        until = None if timeout_s is None else time.monotonic() + timeout_s
        with own_thread():
            while not done.is_set() and (until is None or time.monotonic() < until):
                try:
                    job = self._jobs.get_nowait()
                except queue.Empty:
                    break
                if job is not None:
                    with self._section:
                        _run(job)
        return done.is_set()

    def call(self, function: Callable[[], Result], timeout_s: float) -> Result:
        """Call a function of somebody else's from a job of this worker; see `Caller.call`."""
        with allow_forks():
            return self._caller.call(function, timeout_s)


def _work(first: Job, jobs: queue.SimpleQueue[Job | None], section: NoForkSection) -> None:
    with own_thread():
        with section:
            _run(first)
        while (job := jobs.get()) is not None:
            with section:
                _run(job)
            del job  # it may be what holds the worker


def _run(job: Job) -> None:
    try:
        job()
    except BaseException as error:  # noqa: BLE001 - one job must not end the worker
        warn_once(f"worker:{type(error).__name__}", "a job failed with %s", describe_error(error))


def lane_for(key: Hashable) -> Worker:
    """Return the worker that scores the runs of all handlers with the same `key`."""
    with _lanes_lock:
        lane = _lanes.get(key)
        if lane is None:
            lane = _lanes[key] = Worker("kp_langchain scoring")
            # Handlers made per request must not each start a thread.
            _recent_lanes.append(lane)
        return lane


def finish(timeout_s: float | None = None) -> None:
    """Do everything that is to be done when this process ends: score, store, send.

    May be called more than once, and from any thread; it never raises.

    Args:
        timeout_s: Seconds to take at most; None for the setting `exit_timeout_s`.
    """
    limit_s = exit_timeout_s if timeout_s is None else timeout_s
    until = time.monotonic() + limit_s
    with _workers_lock:
        workers = sorted(_workers, key=lambda one: one is not intake)
    for worker in workers:
        if worker._thread is not None or worker.waiting:  # noqa: SLF001 - same module
            worker.wait(max(0.0, until - time.monotonic()))
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
    for last in list(at_finish.values()):
        last(max(0.0, until - time.monotonic()))


exit_timeout_s = 10.0
"""Longest wait for unfinished work at exit, in seconds."""

at_finish: dict[str, Callable[[float], None]] = {}
"""What else `finish` does, in this order; each is given the seconds left."""

_workers: weakref.WeakSet[Worker] = weakref.WeakSet()
_workers_lock = ForkSafeLock()
_lanes: weakref.WeakValueDictionary[Hashable, Worker] = weakref.WeakValueDictionary()
_recent_lanes: deque[Worker] = deque(maxlen=_LANES_KEPT)
_lanes_lock = ForkSafeLock()
intake = Worker("kp_langchain", first=redaction.load)


def _after_fork() -> None:
    disown_thread()
    for worker in list(_workers):
        worker._reset()  # noqa: SLF001 - same module


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
atexit.register(finish)
