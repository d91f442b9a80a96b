"""Exceptions from the texts that tracers make of them."""

from __future__ import annotations

import ast
import asyncio
import re
from collections.abc import Mapping
from typing import Any, Final

from kp_langchain.importing.recorded_run import RecordedError

_CAUSES = re.compile(
    r"\nThe above exception was the direct cause of the following exception:\n"
    r"|\nDuring handling of the above exception, another exception occurred:\n"
)
_TRACEBACK = "Traceback (most recent call last):\n"
_FRAME = '  File "'
_LINE = re.compile(r"([A-Za-z_][\w.<>]*?)(?:: (.*))?\Z", re.DOTALL)
_CONSTRUCTOR = re.compile(r"([A-Za-z_]\w*)\(")
_UNNAMED = "Error"
# What LangGraph notes beside an exception, which a traceback shows behind its message.
_NOTE = "During task with name '"
_LONGEST_CHARS = 200_000


def error_in_text(text: str) -> RecordedError:
    """Return the error that LangChain's tracers write: its `repr`, and then its traceback."""
    start = _CONSTRUCTOR.match(text)
    before, mark, traceback = text.partition(_TRACEBACK)
    if start is None:
        return error_of("", before.strip() if mark else text, text)
    name = start[1]
    message = _only_argument(before, len(name))
    if not mark:
        return RecordedError(name, text if message is None else message)
    error = error_of(name, None, f"{mark}{traceback}")
    # A message may hold a traceback itself, or end with blanks; `repr` has it whole.
    if message and f"{name}: {message}".rstrip() in traceback:
        return RecordedError(name, message, error.causes)
    return error


def error_of(name: str, message: str | None, stacktrace: str) -> RecordedError:
    """Return an error with the causes that its traceback names.

    Args:
        name: Its class, perhaps with the module; "" if unknown.
        message: Its text; None to read it from the traceback.
        stacktrace: The traceback; "" if unknown.
    """
    sections = _CAUSES.split(stacktrace[-_LONGEST_CHARS:]) if _TRACEBACK in stacktrace else []
    causes = tuple(cause for one in sections[:-1] if (cause := _last_line(one)) is not None)
    if message is None or not name:
        last = _last_line(sections[-1]) if sections else None
        if last is not None:
            name, message = last if message is None else (last[0], message)
    return RecordedError(_without_module(name) or _UNNAMED, message or "", causes)


def _last_line(section: str) -> tuple[str, str] | None:
    """Return class and message of the exception that one traceback ends with."""
    lines = section.rstrip().split("\n")
    at = max((at for at, line in enumerate(lines) if line.startswith(_FRAME)), default=-1) + 1
    while at < len(lines) and (not lines[at] or lines[at][0].isspace()):
        at += 1
    if lines[-1].startswith(_NOTE):
        lines.pop()
    match = _LINE.match("\n".join(lines[at:]).strip().removeprefix(_TRACEBACK))
    return None if match is None else (_without_module(match[1]), match[2] or "")


def _only_argument(text: str, start: int) -> str | None:
    """Return the text of `repr(error)` for an exception of one text; None for others."""
    try:
        value = ast.literal_eval(text[start:].strip())
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return None
    return value if isinstance(value, str) else "" if value == () else None


def _without_module(name: str) -> str:
    return name.rpartition(".")[2]


class GraphBubbleUp(Exception):  # noqa: N818 - LangGraph's name
    """Stands for LangGraph's exception of that name, which carries control flow."""


class GraphInterrupt(GraphBubbleUp):
    """Stands for LangGraph's exception of that name, by which a graph pauses."""


# The recorder knows them by module and name, so LangGraph need not be imported.
GraphBubbleUp.__module__ = GraphInterrupt.__module__ = "langgraph.errors"

_KNOWN: Final[Mapping[str, type[BaseException]]] = {
    "CancelledError": asyncio.CancelledError,
    "GeneratorExit": GeneratorExit,
    "KeyboardInterrupt": KeyboardInterrupt,
    "SystemExit": SystemExit,
    "GraphInterrupt": GraphInterrupt,
    "NodeInterrupt": GraphInterrupt,
    "ParentCommand": GraphBubbleUp,
    "GraphBubbleUp": GraphBubbleUp,
}


class Exceptions:
    """The exceptions of one run: errors of equal name and message are one exception.

    The recorder tells by identity whether an exception that reaches a chain is recorded already.
    """

    def __init__(self) -> None:
        self._classes: dict[str, type[BaseException]] = dict(_KNOWN)
        self._exceptions: dict[tuple[str, str], BaseException] = {}

    def of(self, error: RecordedError) -> BaseException:
        """Return the exception that stands for an error, raised from its causes."""
        exception = self._of(error.name, error.message)
        inner = exception
        for name, message in reversed(error.causes):
            cause = self._of(name, message)
            if cause is exception or inner.__cause__ is not None:
                break
            inner.__cause__ = inner = cause
        return exception

    def _of(self, name: str, message: str) -> BaseException:
        key = (name, message)
        if key not in self._exceptions:
            self._exceptions[key] = self._class(name)(*([message] if message else []))
        return self._exceptions[key]

    def _class(self, name: str) -> Any:
        if name not in self._classes:
            self._classes[name] = type(name.replace("\0", "") or _UNNAMED, (Exception,), {})
        return self._classes[name]
