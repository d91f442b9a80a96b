"""`Worker`: one thread that does what it is sent, and then what that left to be done."""

from __future__ import annotations

import logging
import queue
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import suppress

from kp_langchain import redaction
from kp_langchain._forksafe import fork_gate
from kp_langchain._logging import describe_error, warn_once
from kp_langchain.recording import exit_hooks
from kp_langchain.recording.user_calls import own_thread

log = logging.getLogger("kp_langchain")

MAX_BATCH = 32
"""The most messages of one step, and the most runs of one transaction."""

Message = Callable[[], None]
"""What is done on the thread."""


class Worker:
    """The thread of an engine. It ends when nothing is left to be done, and begins with a message.

    It keeps its engine alive only while that has something to do.
    """

    def __init__(self) -> None:
        self._reset_thread()

    def _reset_thread(self) -> None:
        # In a forked child the thread is gone, and everything that waits is the parent's.
        # Each message has its worker, which must live until it is done.
        self._incoming: queue.SimpleQueue[tuple[Worker, Message] | None] = queue.SimpleQueue()
        self._thread_lock = threading.Lock()
        self._thread: threading.Thread | None = None
        weakref.finalize(self, self._incoming.put, None).atexit = False

    @property
    def is_busy(self) -> bool:
        """Whether something is left to be done."""
        raise NotImplementedError

    @property
    def timeout_s(self) -> float:
        """How long the thread may wait for a message."""
        raise NotImplementedError

    def _do_work(self, messages: list[Message]) -> None:
        """Do the messages, and what there is to do besides."""
        raise NotImplementedError

    def send(self, message: Message) -> None:
        """Have something done on the thread; never blocks."""
        self._incoming.put((self, message))

    def start(self) -> None:
        """Start the thread unless it runs."""
        if self._thread is not None:
            return
        exit_hooks.watch()
        with self._thread_lock:
            if self._thread is None:
                self._thread = threading.Thread(
                    target=_work, args=(weakref.ref(self),), name="kp_langchain", daemon=True
                )
                try:
                    self._thread.start()
                except RuntimeError:  # the interpreter is ending: `run_here` does the work
                    self._thread = None
                    log.debug("no thread can be started while the interpreter ends")

    def run_here(self, is_over: threading.Event, timeout_s: float | None) -> None:
        """Do the work in this thread if no other can be started, at the end of an interpreter.

        Args:
            is_over: Set by a message when the caller need not wait any more.
            timeout_s: Seconds to take at most; None for no limit.
        """
        until = float("inf") if timeout_s is None else time.monotonic() + timeout_s
        with own_thread():
            while self._thread is None and not is_over.is_set() and time.monotonic() < until:
                if not self._step(None):
                    time.sleep(0.001)

    def _step(self, first: Message | None) -> bool:
        """Do what waits; return False if there was nothing, and nothing is left to be done.

        Args:
            first: What came first; None if nothing came.
        """
        messages = [] if first is None else [first]
        messages += self._receive()
        try:
            with fork_gate:
                self._do_work(messages)
        except BaseException as error:  # noqa: BLE001 - the thread must go on
            warn_once(f"engine:{type(error).__name__}", "a step failed: %s", describe_error(error))
            return True
        return bool(messages) or self.is_busy

    def _receive(self) -> Iterator[Message]:
        with suppress(queue.Empty):
            for _ in range(MAX_BATCH):
                if (entry := self._incoming.get_nowait()) is not None:
                    yield entry[1]

    def _end_thread(self) -> bool:
        """Let the thread end unless something came meanwhile; return whether it does."""
        with self._thread_lock:
            me, self._thread = self._thread, None
            if self._incoming.empty():
                return True
            self._thread = me
        return False


def _work(reference: weakref.ref[Worker]) -> None:
    """Do a worker's steps, and keep it no longer than it has something to do."""
    with own_thread():
        with fork_gate, suppress(Exception):
            redaction.load()  # what is wrong with it, the first run tells
        while (worker := reference()) is not None:
            incoming, timeout_s = worker._incoming, worker.timeout_s  # noqa: SLF001 - same module
            busy_worker = worker if worker.is_busy else None
            del worker
            entry = None
            with suppress(queue.Empty):
                entry = incoming.get(block=timeout_s > 0, timeout=timeout_s)
            worker = busy_worker or reference()
            first = None if entry is None else entry[1]
            del busy_worker, entry
            if worker is None or not (worker._step(first) or not worker._end_thread()):  # noqa: SLF001
                return
            del worker, first
