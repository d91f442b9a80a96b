"""The worker: one thread per process that does everything the agent must not wait for.

A thread of our own instead of `concurrent.futures`, for what that does not offer: putting work in
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
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from kp_langchain._forksafe import Undisturbed
from kp_langchain._notices import told, warn_once

log = logging.getLogger("kp_langchain")

Job = Callable[[], None]


class Worker:
    """Runs jobs one after another in a daemon thread that starts with the first job.

    Attributes:
        exit_timeout_s: Longest wait for unfinished work at exit, in seconds.
        put_off: What jobs leave to be done together: done when no further job waits, and before
            anyone who waits for the jobs is told that they are done.
        last_jobs: What else is to be done at exit, before that wait ends.
        last_at_exit: Called after it, with the seconds left.
    """

    def __init__(self) -> None:
        self.exit_timeout_s = 10.0
        self.put_off: dict[str, Job] = {}
        self.last_jobs: dict[str, Job] = {}
        self.last_at_exit: dict[str, Callable[[float], None]] = {}
        self._undisturbed = Undisturbed()
        self._reset()
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._reset)
        atexit.register(self._at_exit)

    def _reset(self) -> None:
        # In a forked child the thread is gone, and the queued jobs are the parent's to do.
        self._jobs: queue.SimpleQueue[Job] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._starting = threading.Lock()

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
        if not self._running:
            self._start()

    def _start(self) -> None:
        # Non-blocking: whoever holds the lock, even this very thread, is starting the worker.
        if not self._starting.acquire(blocking=False):
            return
        try:
            if self._running:
                return
            thread = threading.Thread(target=self._work, name="kp_langchain", daemon=True)
            thread.start()
            self._thread = thread
        except RuntimeError:  # the interpreter is shutting down: the exit hook runs the jobs
            log.debug("no worker thread can be started any more")
        finally:
            self._starting.release()

    def _work(self) -> None:
        jobs = self._jobs
        while True:
            job = jobs.get()
            with self._undisturbed:
                self._run(job)
                if jobs.empty():
                    self._catch_up()

    def _catch_up(self) -> None:
        for job in self.put_off.values():
            self._run(job)

    def _run(self, job: Job) -> None:
        try:
            job()
        except BaseException as error:  # noqa: BLE001 - one job must not end the worker
            warn_once(f"worker:{type(error).__name__}", "a job failed with %s", told(error))

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait until all jobs submitted so far are done; False if that took too long.

        Called by the worker itself, which would wait for itself, it returns False at once.
        """
        if threading.current_thread() is self._thread:
            return False
        done = threading.Event()
        self.submit(self._catch_up)
        self.submit(done.set)
        if not self._running:
            return self._run_here(done, timeout_s)
        return done.wait(timeout_s)

    def _run_here(self, done: threading.Event, timeout_s: float | None) -> bool:
        until = None if timeout_s is None else time.monotonic() + timeout_s
        while not done.is_set() and (until is None or time.monotonic() < until):
            try:
                self._run(self._jobs.get_nowait())
            except queue.Empty:
                break
        return done.is_set()

    @contextmanager
    def only_waiting(self) -> Iterator[None]:
        """A block in which the job under way waits for others, so that a fork need not wait."""
        if threading.current_thread() is self._thread:
            with self._undisturbed.lifted():
                yield
        else:
            yield

    def _at_exit(self) -> None:
        until = time.monotonic() + self.exit_timeout_s
        begun = self._thread is not None or not self._jobs.empty()
        for job in self.last_jobs.values() if begun else ():
            self.submit(job)
        if begun and not self.wait(self.exit_timeout_s):
            log.warning(
                "%d finished runs were not scored within %.0f s of exit and are lost; "
                "call handler.flush() before the program ends, or raise exit_timeout_s",
                max(1, self.waiting),
                self.exit_timeout_s,
            )
        for last in self.last_at_exit.values():
            last(max(0.0, until - time.monotonic()))


worker = Worker()
