"""Whether an exception came from outside: from a signal handler, not from the code around it.

Python runs a signal handler in the middle of whatever the main thread executes, and what the
handler raises surfaces there: a server's `sys.exit`, a task queue's time limit. So does what a
debugger raises, or another thread by `PyThreadState_SetAsyncExc`. Code that keeps its own failures
from its host has to let those pass.
"""

from __future__ import annotations

import signal
import sys
from _signal import getsignal  # type: ignore[import-not-found]  # without an enum for each
from collections.abc import Callable, Iterator
from functools import partial
from itertools import pairwise
from types import CodeType, FrameType
from typing import Any

# Where no code of a user's stands: an exit that surfaces there was not asked for by what it reads.
_KNOWN = sys.stdlib_module_names | {"kp_langchain", "langchain_core", "langgraph", "pydantic"}
_VARARGS = 0x04  # inspect.CO_VARARGS
_MOST_ARGUMENTS = 8


def came_from_outside(error: BaseException) -> bool:
    """Return whether the exception being handled was raised by none of the code that was called.

    True for every `KeyboardInterrupt`; for what a signal handler or a debugger raised; and for an
    exit or cancellation that surfaced in code which raises none.

    Args:
        error: The exception, in the `except` block that caught it.
    """
    if isinstance(error, KeyboardInterrupt):
        return True
    frames = list(_frames(error))
    handlers = _signal_handlers()
    if any(frame.f_code in handlers or _interrupts_its_caller(frame) for frame in frames):
        return True
    return (
        not isinstance(error, Exception)
        and type(error).__module__ != "pyo3_runtime"  # a Rust library's panic: its own failure
        and all(_module(frame) in _KNOWN for frame in frames)
    )


def _frames(error: BaseException) -> Iterator[FrameType]:
    traceback = error.__traceback__
    while traceback is not None:
        yield traceback.tb_frame
        traceback = traceback.tb_next


def _module(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__", "")).partition(".")[0]


def _interrupts_its_caller(frame: FrameType) -> bool:
    """Whether it was called as only the interpreter calls: with the frame that it interrupts."""
    code, caller = frame.f_code, frame.f_back
    if caller is None or (code.co_argcount < 2 and not code.co_flags & _VARARGS):
        return False
    values = frame.f_locals
    given = [values.get(name) for name in code.co_varnames[: code.co_argcount]]
    if code.co_flags & _VARARGS:
        rest = values.get(code.co_varnames[code.co_argcount + code.co_kwonlyargcount])
        given += rest[:_MOST_ARGUMENTS] if isinstance(rest, tuple) else ()
    return any(
        (second is caller and isinstance(first, int))  # handler(signum, frame)
        or (first is caller and isinstance(second, str))  # trace(frame, event, arg)
        for first, second in pairwise(given)
    )


def _signal_handlers() -> set[CodeType]:
    """The code of the handlers that are set: one may have let go of the frame it was given."""
    handlers = filter(callable, map(getsignal, range(1, signal.NSIG)))
    return {code for code in map(_code, handlers) if code is not None}


def _code(handler: Callable[..., Any]) -> CodeType | None:
    while isinstance(handler, partial):
        handler = handler.func
    function = getattr(handler, "__func__", handler)
    if not hasattr(function, "__code__"):  # an object to be called
        function = getattr(type(handler), "__call__", None)  # noqa: B004 - its code is wanted
    code = getattr(function, "__code__", None)
    return code if isinstance(code, CodeType) else None
