"""Recognise exceptions of the host that surface in this package's code.

Python runs a signal handler in the middle of whatever the main thread executes, and an exception of
the handler surfaces there: a server's `sys.exit`, a task queue's time limit. The same holds for an
exception of a debugger, or one set by another thread with `PyThreadState_SetAsyncExc`. Code that
suppresses its own failures must let these exceptions pass.
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

# Modules that contain no user code and raise no exits: an exit that surfaces there is the host's.
_LIBRARIES = sys.stdlib_module_names | {"kp_langchain", "langchain_core", "langgraph", "pydantic"}
_VARARGS = 0x04  # inspect.CO_VARARGS
_MOST_ARGUMENTS = 8


def raised_by_host(error: BaseException) -> bool:
    """Return whether the host raised `error`, rather than the code that was called.

    True for every `KeyboardInterrupt`, for an exception of a signal handler or a debugger, and for
    an exit or cancellation that surfaces in code that raises none.

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
        and all(_module(frame) in _LIBRARIES for frame in frames)
    )


def _frames(error: BaseException) -> Iterator[FrameType]:
    traceback = error.__traceback__
    while traceback is not None:
        yield traceback.tb_frame
        traceback = traceback.tb_next


def _module(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__", "")).partition(".")[0]


def _interrupts_its_caller(frame: FrameType) -> bool:
    """Return whether the frame is a call by the interpreter: an argument is its caller's frame."""
    code, caller = frame.f_code, frame.f_back
    if caller is None or (code.co_argcount < 2 and not code.co_flags & _VARARGS):
        return False
    values = frame.f_locals
    arguments = [values.get(name) for name in code.co_varnames[: code.co_argcount]]
    if code.co_flags & _VARARGS:
        rest = values.get(code.co_varnames[code.co_argcount + code.co_kwonlyargcount])
        arguments += rest[:_MOST_ARGUMENTS] if isinstance(rest, tuple) else ()
    return any(
        (second is caller and isinstance(first, int))  # handler(signum, frame)
        or (first is caller and isinstance(second, str))  # trace(frame, event, arg)
        for first, second in pairwise(arguments)
    )


def _signal_handlers() -> set[CodeType]:
    """Return the code of the installed handlers; one may no longer hold its frame argument."""
    handlers = filter(callable, map(getsignal, range(1, signal.NSIG)))
    return {code for code in map(_code, handlers) if code is not None}


def _code(handler: Callable[..., Any]) -> CodeType | None:
    while isinstance(handler, partial):
        handler = handler.func
    function = getattr(handler, "__func__", handler)
    if not hasattr(function, "__code__"):  # a callable object
        function = getattr(type(handler), "__call__", None)  # noqa: B004 - its code is wanted
    code = getattr(function, "__code__", None)
    return code if isinstance(code, CodeType) else None
