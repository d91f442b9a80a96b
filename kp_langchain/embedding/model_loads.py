"""Loads models on threads of their own, so that nobody waits longer for one than he wants to."""

from __future__ import annotations

import atexit
import threading
import time
from concurrent.futures import (
    Future,
    thread,  # noqa: F401 - imported during a fork, it would print an error
    wait,
)
from typing import TYPE_CHECKING

from kp_langchain._forksafe import fork_gate, leave_in_child

if TYPE_CHECKING:
    from kp_langchain.embedding.embedder import Embedder

_EXIT_PATIENCE_S = 10.0
_LOADING_SHARE = 0.8  # of the time for unfinished work at exit; the rest is to score without it
_LOOK_EVERY_S = 0.1


class ModelLoad:
    """One load of an embedder's model.

    Attributes:
        future: Done when the model is loaded, or has failed to load, with the error.
        thread: The thread that loads it.
        is_overdue: Whether somebody has waited for it in vain. If each run then took its whole
            latency budget, a worker could not keep up with the runs.
    """

    def __init__(self, embedder: Embedder, loads: ModelLoads) -> None:
        self.future: Future[None] = Future()
        self.is_overdue = False
        self._embedder = embedder
        self._loads = loads
        self.thread = threading.Thread(target=self._run, name="kp_langchain embedding", daemon=True)

    def wait(self, timeout_s: float | None) -> bool:
        """Wait until the load is over, or the process is ending and waits no longer for it.

        Args:
            timeout_s: Longest wait in seconds; None for no limit.

        Returns:
            False if waiting longer could change something.
        """
        until = None if timeout_s is None else time.monotonic() + timeout_s
        with fork_gate.opened():
            while not self.future.done() and not self._loads.gave_up(self._embedder):
                left_s = _LOOK_EVERY_S if until is None else until - time.monotonic()
                if left_s <= 0:
                    return False
                wait([self.future], timeout=min(left_s, _LOOK_EVERY_S))
        return True

    def _run(self) -> None:
        with fork_gate:
            try:
                self._embedder.embed(["ready?"])
            except BaseException as error:  # noqa: BLE001 - of the user's embedder; for who waits
                self._loads.end(self._embedder)
                self.future.set_exception(error)
            else:
                self._loads.end(self._embedder)
                self.future.set_result(None)


class ModelLoads:
    """The loads that are under way, one for each embedder. A forked child begins them anew.

    The exit of the process waits up to 10 s for an embedder that loads in this process: a process
    that ends meanwhile may crash.

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
        """Forget the parent's loads, in a forked child."""
        self._loads: dict[int, ModelLoad] = {}
        self._lock = threading.Lock()

    def of(self, embedder: Embedder) -> ModelLoad | None:
        """Return the load of an embedder that is not ready; None if the process is ending."""
        key = _key(embedder)
        with fork_gate, self._lock:  # in this order: a fork waits for the lock's owner
            load = self._loads.get(key)
            if load is not None or self._ended_at is not None:
                return load
            load = ModelLoad(embedder, self)
            try:
                self._hook_exit()
                load.thread.start()
            except RuntimeError:  # this process is ending
                return None
            self._loads[key] = load
            return load

    def end(self, embedder: Embedder) -> None:
        """Forget a load that is over."""
        with self._lock:
            self._loads.pop(_key(embedder), None)

    def gave_up(self, embedder: Embedder) -> bool:
        """Return whether the process is ending and waits no longer for an embedder's model."""
        if self._ended_at is None:
            return False
        waited_s = time.monotonic() - self._ended_at
        is_downloading = getattr(_origin(embedder), "is_downloading", False)
        return is_downloading or waited_s >= _LOADING_SHARE * self.exit_timeout_s

    def _hook_exit(self) -> None:
        """Register `_end`, once, to be called before threads are shut down, as loads need some."""
        if not self._has_exit_hook:
            getattr(threading, "_register_atexit", atexit.register)(self._end)
            self._has_exit_hook = True

    def _end(self) -> None:
        with self._lock:
            self._ended_at = time.monotonic()
            threads = [load.thread for load in self._loads.values()]
        fork_gate.wait_for(threads, _EXIT_PATIENCE_S)


def _origin(embedder: Embedder) -> object:
    """Return the object that does the work: several adapters may wrap the same one."""
    return getattr(embedder, "origin", embedder)


def _key(embedder: Embedder) -> int:
    return id(_origin(embedder))


model_loads = ModelLoads()
