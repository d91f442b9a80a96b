"""`RecordedRun`: a run as another tool recorded it, in one form for all formats.

And exceptions from the texts that tracers make of them.
"""

from __future__ import annotations

import ast
import asyncio
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal
from uuid import UUID, uuid5

from kp_langchain.gate.run import ExternalTrace
from kp_langchain.text import json_or_text
from kp_langchain.verdict import Verdict

RecordedKind = Literal["chain", "model", "tool", "retriever"]

_NAMESPACE: Final = UUID("6f3a1c52-9d0e-5b47-8a61-2c4be0d7f915")


@dataclass(frozen=True, slots=True)
class RecordedError:
    """Why a call failed.

    Attributes:
        name: The name of the exception's class, without its module.
        message: Its text.
        causes: Name and message of the exceptions that it was raised from.
    """

    name: str
    message: str
    causes: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class ModelAnswer:
    """What a model returned.

    Attributes:
        message: The message of a chat model; None for plain text.
        text: The text, read only without a message.
        info: LangChain's `generation_info`.
    """

    message: Any
    text: str = ""
    info: Mapping[str, Any] = field(default_factory=dict)


@dataclass(slots=True, eq=False)
class RecordedCall:
    """A chain, or a call of a model, tool or retriever.

    Attributes:
        kind: What it is.
        id: Its id.
        parent_id: The id of what it is part of; None for a root.
        name: Its name.
        started_ns: When it began, in nanoseconds since 1970.
        ended_ns: When it ended; None if that was not recorded.
        inputs: What it was given: the messages or prompts of a model, the query of a retriever.
        output: What it returned; of a model, a `ModelAnswer`.
        error: Why it failed; None if it did not.
        metadata: LangChain's metadata.
        tags: LangChain's tags.
        tool_call_id: The id by which a model requested it.
    """

    kind: RecordedKind
    id: UUID
    parent_id: UUID | None
    name: str
    started_ns: int
    ended_ns: int | None
    inputs: Any = None
    output: Any = None
    error: RecordedError | None = None
    metadata: Mapping[str, Any] = field(default_factory=dict)
    tags: Sequence[Any] = ()
    tool_call_id: str | None = None


@dataclass(frozen=True, slots=True)
class RecordedRun:
    """A run: a root, and everything that it called.

    Attributes:
        run_id: The id under which the run is stored.
        place: Where it was read, for messages: a file and a line.
        calls: The root first, then the others, each behind what it is part of and its elder
            siblings.
        messages: In place of `calls`, the conversation that a message line holds.
        domain: The domain that the file states; "" if it states none.
        objective: The task that the file states; "" if it states none.
        metadata: For `messages`, LangChain's metadata of the root run.
        tags: For `messages`, its tags.
        name: For `messages`, its name.
        started_ns: When the conversation of `messages` began; None if that is not earlier.
        verdict: How it ended, if the file states that.
        external_traces: The tool that recorded it, and its ids.
        is_incomplete: Whether it is a part of another run, whose root was not read.
    """

    run_id: UUID
    place: str
    calls: Sequence[RecordedCall] = ()
    messages: Sequence[Any] = ()
    domain: str = ""
    objective: str = ""
    metadata: Mapping[str, Any] = field(default_factory=dict)
    tags: Sequence[Any] = ()
    name: str = ""
    started_ns: int | None = None
    verdict: Verdict | None = None
    external_traces: Mapping[str, ExternalTrace] = field(default_factory=dict)
    is_incomplete: bool = False


@dataclass(frozen=True, slots=True)
class Unusable:
    """Something in a file that is no run.

    Attributes:
        place: Where it stands.
        why: Why it cannot be used.
    """

    place: str
    why: str


def text_of(value: object) -> str:
    """Return a value that is a text; "" for any other."""
    return value if isinstance(value, str) else ""


def list_of(value: object) -> list[Any]:
    """Return a value that is a list; an empty one for any other."""
    return value if isinstance(value, list) else []


def mapping_of(value: object) -> dict[str, Any]:
    """Return a value that is a mapping, or a JSON text of one; an empty one for any other."""
    value = json_or_text(value)
    return value if isinstance(value, dict) else {}


def id_from(name: str) -> UUID:
    """Return an id that is the same for the same name, whenever it is imported."""
    return uuid5(_NAMESPACE, name)


def set_tool_call_ids(calls: Iterable[RecordedCall]) -> None:
    """Give each tool call the id that its own output names, where the file does not name it.

    Args:
        calls: The calls of one run; changed.
    """
    for call in calls:
        if call.kind == "tool" and call.tool_call_id is None:
            call_id = getattr(call.output, "tool_call_id", None)
            call.tool_call_id = call_id if isinstance(call_id, str) and call_id else None


def in_order(
    calls: Iterable[RecordedCall],
) -> tuple[list[list[RecordedCall]], list[RecordedCall]]:
    """Group calls into runs.

    A call whose parent is not among them is a root. Of calls of one id, the first that ended
    counts.

    Args:
        calls: The calls, in any order.

    Returns:
        The runs by the time at which they began, each in the order of `RecordedRun.calls`; and the
        calls that are part of themselves, through their parents.
    """
    by_id: dict[UUID, RecordedCall] = {}
    for call in calls:
        earlier = by_id.get(call.id)
        if earlier is None or (earlier.ended_ns is None and call.ended_ns is not None):
            by_id[call.id] = call
    children: dict[UUID | None, list[RecordedCall]] = {}
    for call in sorted(by_id.values(), key=_start_order):
        children.setdefault(call.parent_id if call.parent_id in by_id else None, []).append(call)
    runs = []
    for root in children.get(None, ()):
        run: list[RecordedCall] = []
        waiting = [root]
        while waiting:
            call = waiting.pop()
            by_id.pop(call.id)
            run.append(call)
            waiting.extend(reversed(children.get(call.id, ())))
        runs.append(run)
    return runs, list(by_id.values())


def _start_order(call: RecordedCall) -> tuple[int, float, str]:
    # LangChain's own ids are ordered by time as well.
    return call.started_ns, float("inf") if call.ended_ns is None else call.ended_ns, str(call.id)


# ------------------------------------------------------------------ errors

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
