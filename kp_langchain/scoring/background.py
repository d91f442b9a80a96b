"""Embedding on a thread of its own, for evaluations that cannot wait for a model to load."""

from __future__ import annotations

import atexit
import importlib
import os
import threading
import time
from collections import deque
from concurrent.futures import Future, wait
from typing import TYPE_CHECKING, TypeAlias

from kp_langchain._forksafe import Undisturbed
from kp_langchain.scoring.embedding import Embedding, embeddings

if TYPE_CHECKING:
    from kp_langchain.scoring.embedders import Embedder

Embedded: TypeAlias = Future[Embedding]

_MOST_WAITING = 1000  # as many as a cache remembers by default
_EXIT_PATIENCE_S = 10.0


class Background:
    """Embeds texts one after another on a daemon thread that ends when there is none left.

    A forked child starts without the parent's texts. At exit the texts that wait are dropped,
    since nobody could use their vectors, and the one being embedded is waited for, up to 10 s: a
    process that ends in the middle of loading a model may crash on its way out.
    """

    def __init__(self) -> None:
        self._undisturbed = Undisturbed()
        self._ended = False
        self._has_exit_hook = False
        self._reset()
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._reset)

    def _reset(self) -> None:
        self._waiting: deque[tuple[Embedder, str, Embedded]] = deque()
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()
        self._overdue: Embedded | None = None

    def submit(self, embedder: Embedder, text: str) -> Embedded | None:
        """Have `text` embedded; None if 1,000 texts wait already, or the process is ending."""
        vector: Embedded = Future()
        with self._lock:
            if self._ended or len(self._waiting) >= _MOST_WAITING:
                return None
            self._waiting.append((embedder, text, vector))
            if self._thread is None:
                thread = threading.Thread(target=self._work, name="kp_langchain embedding")
                thread.daemon = True
                try:
                    self._hook_exit()
                    thread.start()
                except RuntimeError:  # this process is ending
                    self._waiting.clear()
                    return None
                self._thread = thread
        return vector

    def comes_in_time(self, vector: Embedded, until: float) -> bool:
        """Wait for a vector until `until`, in seconds of `time.perf_counter`.

        While somebody has waited for one in vain, whatever stands behind that in the queue is not
        waited for: if each run took its whole budget, a worker could not keep up with the runs.
        """
        in_vain = self._overdue is not None and not self._overdue.done()
        left_s = 0.0 if in_vain else max(0.0, until - time.perf_counter())
        if wait([vector], timeout=left_s).done:
            return True
        if not in_vain:
            self._overdue = vector
        return False

    def _hook_exit(self) -> None:
        """Have `_end` called before the machinery of threads and pools closes; once.

        A model being loaded needs that machinery, and `atexit` comes after it closed. These
        modules, which models import, refuse to be imported during an exit, and close their pools
        in the order opposite to that in which they and we asked for it.
        """
        if not self._has_exit_hook:
            for kind in ("thread", "process"):
                importlib.import_module(f"concurrent.futures.{kind}")
            getattr(threading, "_register_atexit", atexit.register)(self._end)
            self._has_exit_hook = True

    def _work(self) -> None:
        while True:
            with self._lock:
                if not self._waiting:
                    self._thread = None
                    return
                embedder, text, vector = self._waiting.popleft()
            if not vector.set_running_or_notify_cancel():
                continue  # nobody wants it any more
            with self._undisturbed:
                try:
                    (result,) = embeddings(embedder, [text])
                except BaseException as error:  # noqa: BLE001 - whoever asked has to know
                    # A model half loaded at exit fails because of that, which is nobody's news.
                    if not self._ended:
                        vector.set_exception(error)
                else:
                    vector.set_result(result)

    def _end(self) -> None:
        with self._lock:
            self._ended = True
            self._waiting.clear()
            thread = self._thread
        if thread is not None:
            thread.join(_EXIT_PATIENCE_S)


background = Background()
