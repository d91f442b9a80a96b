"""Calls functions of somebody else's with a time limit, on a thread that is abandoned when late.

Nothing else can be done with a function that does not return: Python ends no thread from outside.
"""

from __future__ import annotations

import queue
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from contextvars import Context
from typing import Any, Final, TypeVar, cast

from kp_langchain.errors import KPError
from kp_langchain.recording.messages import clean

Result = TypeVar("Result")

MOST_HANGING: Final = 4
"""So many late calls of one caller may be under way; until one ends, it makes no further one."""

_NAME_CHARS = 100


class LateError(KPError, TimeoutError):
    """A call took longer than it may."""


class BusyError(KPError, RuntimeError):
    """No call can be made, because late ones hang or no thread can be started."""


class _Call:
    __slots__ = ("error", "function", "over", "result")

    def __init__(self, function: Callable[[], Any]) -> None:
        self.function = function
        self.over = threading.Event()
        self.result: Any = None
        self.error: BaseException | None = None

    def make(self) -> None:
        try:
            # In a context of its own: `capture` is to record the agent's runs, not its judge's.
            self.result = Context().run(self.function)
        except BaseException as error:  # noqa: BLE001 - raised where it was called from
            self.error = error
        finally:
            self.over.set()


class _Line:
    """A thread that makes calls until it is given None."""

    def __init__(self, name: str) -> None:
        self.calls: queue.SimpleQueue[_Call | None] = queue.SimpleQueue()
        self.thread = threading.Thread(
            target=_make_calls, args=(self.calls,), name=f"{name} calls", daemon=True
        )
        self.thread.start()


def _make_calls(calls: queue.SimpleQueue[_Call | None]) -> None:
    with own_thread():
        while (call := calls.get()) is not None:
            call.make()
            del call


class Caller:
    """Makes calls one after another. Used by one thread at a time.

    Args:
        name: What its threads are called after.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self.reset()

    def reset(self) -> None:
        """Begin anew, as a forked child must: it has none of the parent's threads."""
        self._line: _Line | None = None
        self._hanging: list[_Line] = []

    @property
    def is_ready(self) -> bool:
        """Whether a call needs no new thread."""
        return self._line is not None

    def prepare(self) -> None:
        """Start the thread of the next call now.

        Raises:
            RuntimeError: The interpreter is ending, or there is no memory for a thread.
        """
        if self._line is None:
            self._line = line = _Line(self._name)
            weakref.finalize(self, line.calls.put, None).atexit = False

    def call(self, function: Callable[[], Result], timeout_s: float) -> Result:
        """Call `function` and return what it returns.

        Args:
            function: Called without arguments, on another thread and in an empty context.
            timeout_s: Longest wait, in seconds.

        Raises:
            LateError: It took longer, and goes on by itself.
            BusyError: It was not called.
            BaseException: What it raises.
        """
        self._hanging = [line for line in self._hanging if line.thread.is_alive()]
        if len(self._hanging) >= MOST_HANGING:
            raise BusyError(f"it is not called while {MOST_HANGING} late calls hang")
        try:
            self.prepare()
        except RuntimeError:
            raise BusyError("it is not called: no thread can be started") from None
        line = cast("_Line", self._line)
        call = _Call(function)
        line.calls.put(call)
        if not call.over.wait(timeout_s):
            self._line = None
            self._hanging.append(line)
            line.calls.put(None)
            raise LateError(f"it took longer than {timeout_s:g} s and is abandoned")
        if call.error is not None:
            raise call.error
        return cast("Result", call.result)


def name_of(function: object) -> str:
    """Return what a function is called: its `__name__`, or else the name of its type."""
    name = None
    with suppress(BaseException):  # it may be anything's
        name = getattr(function, "__name__", None)
    if not isinstance(name, str) or not name.strip():
        name = type(function).__name__
    return clean(name)[:_NAME_CHARS]


class _Local(threading.local):
    is_own = False


_local = _Local()


def is_own_thread() -> bool:
    """Whether this code runs on a thread of ours, which must not wait for itself."""
    return _local.is_own


@contextmanager
def own_thread() -> Iterator[None]:
    """A block in which this thread counts as one of ours."""
    before, _local.is_own = _local.is_own, True
    try:
        yield
    finally:
        _local.is_own = before


def disown_thread() -> None:
    """Have this thread count as the host's: in a forked child it is the only one."""
    _local.is_own = False
