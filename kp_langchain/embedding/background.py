"""Loads models on threads of their own, which also embed the texts that wait for the load."""

from __future__ import annotations

import atexit
import importlib
import threading
import time
from collections import deque
from concurrent.futures import (
    Future,
    thread,  # noqa: F401 - imported during a fork, it would print an error
    wait,
)
from typing import TYPE_CHECKING, TypeAlias

from kp_langchain import novelty_sources
from kp_langchain._forksafe import fork_gate, leave_in_child
from kp_langchain.embedding.embedding_result import Embedding, embed_texts, origin

if TYPE_CHECKING:
    from kp_langchain.embedding.embedder_protocol import Embedder

EmbeddingFuture: TypeAlias = Future[Embedding]

_QUEUE_MAX = 1000  # the number of texts that a cache remembers by default
_EXIT_PATIENCE_S = 10.0
_LOADING_SHARE = 0.8  # of the time for unfinished work at exit; the rest is to score without it
_READY = "ready?"
_LOOK_EVERY_S = 0.1


class _Queue:
    """The texts that wait for one embedder, and the thread that embeds them."""

    def __init__(self, embedder: Embedder) -> None:
        self.embedder = embedder
        self.waiting: deque[tuple[str, EmbeddingFuture]] = deque()
        self.load: EmbeddingFuture | None = None
        self.overdue: EmbeddingFuture | None = None
        self.thread: threading.Thread | None = None


class Background:
    """Embeds texts on a daemon thread per embedder; the thread ends when no text waits.

    A forked child starts without the parent's texts. At exit, waiting texts are dropped, because
    their vectors would be useless. The exit waits up to 10 s for an embedder at work in this
    process: a process that ends while it loads a model may crash.

    Attributes:
        exit_timeout_s: How long the exit waits for all unfinished work; for a model that is still
            loading it waits 80 % of that, and not at all for one that is being downloaded.
    """

    exit_timeout_s = 10.0

    def __init__(self) -> None:
        self._ended_at: float | None = None
        self._has_exit_hook = False
        self.leave_to_parent()
        leave_in_child(self)

    def leave_to_parent(self) -> None:
        """Start without texts, in a forked child."""
        self._queues: dict[int, _Queue] = {}
        self._lock = threading.Lock()

    def submit(self, embedder: Embedder, text: str) -> EmbeddingFuture | None:
        """Queue a text and return its future; None if 1,000 texts wait or the process is ending."""
        with fork_gate, self._lock:  # in this order: a fork waits for the lock's owner
            queue = self._queue(embedder)
            if queue is None or len(queue.waiting) >= _QUEUE_MAX:
                return None
            future: EmbeddingFuture = Future()
            queue.waiting.append((text, future))
            return future

    def wait_for(self, embedder: Embedder, future: EmbeddingFuture, deadline: float) -> bool:
        """Wait for an embedding until a deadline.

        After one wait has timed out, callers do not wait for texts queued behind the overdue one:
        if each run took its whole budget, a worker could not keep up with the runs.

        Args:
            embedder: The embedder that the text was queued for.
            future: What `submit` returned.
            deadline: Seconds of `time.perf_counter`.

        Returns:
            Whether the future is done.
        """
        queue = self._queues.get(id(origin(embedder)))
        overdue = None if queue is None else queue.overdue
        is_late = overdue is not None and not overdue.done()
        timeout_s = 0.0 if is_late else max(0.0, deadline - time.perf_counter())
        if wait([future], timeout=timeout_s).done:
            return True
        if queue is not None and not is_late:
            queue.overdue = future
        return False

    def wait_until_loaded(self, embedder: Embedder, timeout_s: float | None) -> bool:
        """Wait until an embedder's model is loaded or failed to load; start the load if need be.

        Args:
            embedder: An embedder that is not ready.
            timeout_s: Longest wait in seconds; None for no limit.

        Returns:
            False if the model is still loading. True also if the process is ending and waits no
            longer for the model.
        """
        with fork_gate, self._lock:
            queue = self._queues.get(id(origin(embedder)))
            load = None if queue is None else queue.load
            if load is None:
                queue = self._queue(embedder)
                if queue is None:
                    return True
                load = queue.load = Future()
                queue.waiting.appendleft((_READY, load))
        until = None if timeout_s is None else time.monotonic() + timeout_s
        with fork_gate.opened():
            while not load.done() and not self._gave_up(embedder):
                left_s = _LOOK_EVERY_S if until is None else until - time.monotonic()
                if left_s <= 0:
                    return False
                wait([load], timeout=min(left_s, _LOOK_EVERY_S))
        return True

    def _gave_up(self, embedder: Embedder) -> bool:
        """Return whether the process is ending and waits no longer for an embedder's model."""
        if self._ended_at is None:
            return False
        waited_s = time.monotonic() - self._ended_at
        is_downloading = getattr(origin(embedder), "is_downloading", False)
        return is_downloading or waited_s >= _LOADING_SHARE * self.exit_timeout_s

    def _queue(self, embedder: Embedder) -> _Queue | None:
        """Return the embedder's queue, with a thread; None if the process is ending."""
        if self._ended_at is not None:
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
        """Register `_end`, once, to be called before threads and pools are shut down.

        A model that is loading needs both, and `atexit` runs after they are shut down. The modules
        of the pools, which models import, cannot be imported during an exit; they register their
        own shutdown when imported, and the last registration runs first.
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
                text, future = queue.waiting.popleft()
            if future.set_running_or_notify_cancel():
                with fork_gate:
                    self._embed(queue.embedder, text, future)

    def _embed(self, embedder: Embedder, text: str, future: EmbeddingFuture) -> None:
        try:
            (embedding,) = embed_texts(embedder, [text])
        except BaseException as error:  # noqa: BLE001 - the future hands it to the caller
            # At exit a model that is half loaded fails for that reason, which is not reported.
            if self._ended_at is not None:
                future.set_result(Embedding(None, novelty_sources.STILL_LOADING))
            else:
                future.set_exception(error)
        else:
            future.set_result(embedding)

    def _end(self) -> None:
        with self._lock:
            self._ended_at = time.monotonic()
            queues = list(self._queues.values())
            futures = [future for queue in queues for _, future in queue.waiting]
            for queue in queues:
                queue.waiting.clear()
        for future in futures:
            if future.set_running_or_notify_cancel():
                future.set_result(Embedding(None, novelty_sources.STILL_LOADING))
        threads = [queue.thread for queue in queues if queue.thread is not None]
        fork_gate.wait_for(threads, _EXIT_PATIENCE_S)


background = Background()
