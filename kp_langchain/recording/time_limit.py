"""Calls the user's functions with a time limit, on a thread that is abandoned when it is late.

Python cannot end a thread from outside, so a function that does not return keeps its thread.
"""

from __future__ import annotations

import queue
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from contextvars import Context
from typing import Any, Final, TypeVar, cast

from kp_langchain.errors import BusyError, LateError
from kp_langchain.recording.clipping import clean

Result = TypeVar("Result")

MAX_HANGING: Final = 4
"""The most late calls that one caller may have running; at this number it refuses further calls."""

_NAME_CHARS = 100


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
    """A thread that makes the calls in its queue until it finds None there."""

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


class Caller:
    """Makes calls one after another; may be used by one thread at a time.

    Args:
        name: The beginning of its threads' names.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self.reset()

    def reset(self) -> None:
        """Forget all threads, as a forked child must, which has none of its parent's."""
        self._thread: _CallThread | None = None
        self._late_threads: list[_CallThread] = []

    @property
    def is_ready(self) -> bool:
        """Whether a call needs no new thread."""
        return self._thread is not None

    def prepare(self) -> None:
        """Start the thread for the next call, if there is none.

        Raises:
            RuntimeError: The interpreter is ending, or there is no memory for a thread.
        """
        if self._thread is None:
            self._thread = thread = _CallThread(self._name)
            weakref.finalize(self, thread.calls.put, None).atexit = False

    def call(self, function: Callable[[], Result], timeout_s: float) -> Result:
        """Call `function` and return what it returns.

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
            self.prepare()
        except RuntimeError:
            raise BusyError("it is not called: no thread can be started") from None
        thread = cast("_CallThread", self._thread)
        call = _FunctionCall(function)
        thread.calls.put(call)
        if not call.is_over.wait(timeout_s):
            self._thread = None
            self._late_threads.append(thread)
            thread.calls.put(None)
            raise LateError(f"it took longer than {timeout_s:g} s and is abandoned")
        if call.error is not None:
            raise call.error
        return cast("Result", call.result)


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


def disown_thread() -> None:
    """Mark the current thread as the host's, which in a forked child is the only one."""
    _local.is_own = False
