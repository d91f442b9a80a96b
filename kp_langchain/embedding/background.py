"""Loading models, and embedding until they are loaded, on threads of their own."""

from __future__ import annotations

import atexit
import importlib
import os
import threading
import time
from collections import deque
from concurrent.futures import (
    Future,
    thread,  # noqa: F401 - not later: a fork under way would print an error
    wait,
)
from typing import TYPE_CHECKING, TypeAlias

from kp_langchain._forksafe import NoForkSection, allow_forks, wait_until_outside
from kp_langchain.embedding.embed import Embedding, embeddings, origin
from kp_langchain.embedding.local_models import FORK_PATIENCE_S
from kp_langchain.scoring import breakdown as parts

if TYPE_CHECKING:
    from kp_langchain.embedding.embedders import Embedder

Embedded: TypeAlias = Future[Embedding]

_MOST_WAITING = 1000  # as many as a cache remembers by default
_EXIT_PATIENCE_S = 10.0
_READY = "ready?"


class _Queue:
    """What waits for one embedder, and the thread that works on it."""

    def __init__(self, embedder: Embedder) -> None:
        self.embedder = embedder
        self.waiting: deque[tuple[str, Embedded]] = deque()
        self.load: Embedded | None = None
        self.overdue: Embedded | None = None
        self.thread: threading.Thread | None = None
        self.undisturbed = NoForkSection(patience_s=FORK_PATIENCE_S)


class Background:
    """Embeds texts on a daemon thread for each embedder, which ends when there is none left.

    A forked child starts without the parent's texts. At exit the texts that wait are dropped,
    since nobody could use their vectors, and an embedder at work in this process is waited for,
    up to 10 s: a process that ends in the middle of loading a model may crash on its way out.
    """

    def __init__(self) -> None:
        self._ended = False
        self._has_exit_hook = False
        self._undisturbed = NoForkSection()
        self._reset()
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._reset)

    def _reset(self) -> None:
        self._queues: dict[int, _Queue] = {}
        self._lock = threading.Lock()

    def submit(self, embedder: Embedder, text: str) -> Embedded | None:
        """Have `text` embedded; None if 1,000 texts wait already, or the process is ending."""
        with self._undisturbed, self._lock:  # in this order: a fork waits for whoever has the lock
            queue = self._queue(embedder)
            if queue is None or len(queue.waiting) >= _MOST_WAITING:
                return None
            vector: Embedded = Future()
            queue.waiting.append((text, vector))
            return vector

    def comes_in_time(self, embedder: Embedder, vector: Embedded, until: float) -> bool:
        """Wait for a vector until `until`, in seconds of `time.perf_counter`.

        While somebody has waited for one in vain, whatever stands behind that in the queue is not
        waited for: if each run took its whole budget, a worker could not keep up with the runs.
        """
        queue = self._queues.get(id(origin(embedder)))
        overdue = None if queue is None else queue.overdue
        in_vain = overdue is not None and not overdue.done()
        left_s = 0.0 if in_vain else max(0.0, until - time.perf_counter())
        if wait([vector], timeout=left_s).done:
            return True
        if queue is not None and not in_vain:
            queue.overdue = vector
        return False

    def wait_until_loaded(self, embedder: Embedder, timeout_s: float | None) -> bool:
        """Wait until the embedder's model is loaded or has failed to load; begin it if need be.

        Args:
            embedder: One that says it is not ready.
            timeout_s: Longest wait in seconds; None for no limit.

        Returns:
            False if it is still loading. True, too, if the process is ending and nothing loads.
        """
        with self._undisturbed, self._lock:
            queue = self._queues.get(id(origin(embedder)))
            load = None if queue is None else queue.load
            if load is None:
                queue = self._queue(embedder)
                if queue is None:
                    return True
                load = queue.load = Future()
                queue.waiting.appendleft((_READY, load))
        with allow_forks():
            return bool(wait([load], timeout=timeout_s).done)

    def _queue(self, embedder: Embedder) -> _Queue | None:
        """Return the embedder's queue, with a thread; None if the process is ending."""
        if self._ended:
            return None
        key = id(origin(embedder))
        queue = self._queues.get(key)
        if queue is None:
            queue = _Queue(embedder)
            queue.thread = threading.Thread(
                target=self._work, args=(key, queue), name="kp_langchain embedding", daemon=True
            )
            try:
                self._hook_exit()
                queue.thread.start()
            except RuntimeError:  # this process is ending
                return None
            self._queues[key] = queue
        return queue

    def _hook_exit(self) -> None:
        """Have `_end` called before the machinery of threads and pools closes; once.

        A model being loaded needs that machinery, and `atexit` comes after it closed. The modules
        of the pools, which models import, refuse to be imported during an exit, and close their
        pools in the order opposite to that in which they and we asked for it.
        """
        if not self._has_exit_hook:
            importlib.import_module("concurrent.futures.process")
            getattr(threading, "_register_atexit", atexit.register)(self._end)
            self._has_exit_hook = True

    def _work(self, key: int, queue: _Queue) -> None:
        while True:
            with self._lock:
                if not queue.waiting:
                    del self._queues[key]
                    return
                text, vector = queue.waiting.popleft()
            if vector.set_running_or_notify_cancel():  # or nobody wants it any more
                with queue.undisturbed:
                    self._embed(queue.embedder, text, vector)

    def _embed(self, embedder: Embedder, text: str, vector: Embedded) -> None:
        try:
            (result,) = embeddings(embedder, [text])
        except BaseException as error:  # noqa: BLE001 - whoever asked has to know
            # A model half loaded at exit fails because of that, which is not reported.
            if self._ended:
                vector.set_result(Embedding(None, parts.STILL_LOADING))
            else:
                vector.set_exception(error)
        else:
            vector.set_result(result)

    def _end(self) -> None:
        with self._lock:
            self._ended = True
            queues = list(self._queues.values())
            dropped = [vector for queue in queues for _, vector in queue.waiting]
            for queue in queues:
                queue.waiting.clear()
        for vector in dropped:
            if vector.set_running_or_notify_cancel():
                vector.set_result(Embedding(None, parts.STILL_LOADING))
        threads = [queue.thread for queue in queues if queue.thread is not None]
        wait_until_outside(threads, _EXIT_PATIENCE_S)


background = Background()
