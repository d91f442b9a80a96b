"""`RecordedRun`: a run as another tool recorded it, in one form for all formats.

And exceptions from the texts that tracers make of them.
"""

from __future__ import annotations

import ast
import asyncio
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final, Literal
from uuid import UUID, uuid5

from kp_langchain.gate.run import ExternalTrace
from kp_langchain.text import json_or_text
from kp_langchain.verdict import Verdict

RecordedKind = Literal["chain", "model", "tool", "retriever"]
_KINDS: Final[Mapping[str, RecordedKind]] = {
    "llm": "model",
    "chat_model": "model",
    "tool": "tool",
    "retriever": "retriever",
}

_NAMESPACE: Final = UUID("6f3a1c52-9d0e-5b47-8a61-2c4be0d7f915")


@dataclass(frozen=True, slots=True)
class RecordedError:
    """Why a call failed.

    Attributes:
        name: The name of the exception's class, without its module.
        message: Its text.
    """

    name: str
    message: str


@dataclass(frozen=True, slots=True)
class ModelAnswer:
    """What a model returned.

    Attributes:
        message: The message of a chat model; None for plain text.
        text: The text, read only without a message.
        info: LangChain's `generation_info`.
        details: LangChain's `llm_output`: the name of the model, and its tokens, where the message
            does not have them.
    """

    message: Any = None
    text: str = ""
    info: Mapping[str, Any] = field(default_factory=dict)
    details: Mapping[str, Any] = field(default_factory=dict)


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
        place: Where it was read, for messages: a file and a line.
        external_traces: The tool that recorded it, and its ids.
        inputs: What it was given: the messages or prompts of a model, the query of a retriever.
        output: What it returned; of a model, a `ModelAnswer`.
        error: Why it failed; None if it did not.
        metadata: LangChain's metadata.
        tags: LangChain's tags.
        tool_call_id: The id by which a model requested it.
        tools: The definitions of the tools that a model could ask for, or those of a whole agent.
    """

    kind: RecordedKind
    id: UUID
    parent_id: UUID | None
    name: str
    started_ns: int
    ended_ns: int | None
    place: str
    external_traces: Mapping[str, ExternalTrace]
    inputs: Any = None
    output: Any = None
    error: RecordedError | None = None
    metadata: Mapping[str, Any] = field(default_factory=dict)
    tags: Sequence[Any] = ()
    tool_call_id: str | None = None
    tools: Sequence[Any] = ()


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


def kind_of(name: object) -> RecordedKind:
    """Return what LangChain's tracers mean by the name of a kind; any other is a chain."""
    return _KINDS.get(text_of(name).lower(), "chain")


def uuid_of(value: object) -> UUID | None:
    """Return the UUID that a text is; None if it is none."""
    try:
        return UUID(text_of(value))
    except ValueError:
        return None


def id_from(name: str) -> UUID:
    """Return an id that is the same for the same name, whenever it is imported."""
    return uuid5(_NAMESPACE, name)


def runs_of_calls(calls: Iterable[RecordedCall]) -> Iterator[RecordedRun | Unusable]:
    """Yield the runs that calls make up, by the time at which they began.

    A call whose parent is not among them is a root. Of calls of one id, the first that ended
    counts. Calls that are part of themselves, through their parents, are no run.

    Args:
        calls: The calls, in any order; tool calls get the ids that their own outputs name, where
            the file names none.
    """
    by_id: dict[UUID, RecordedCall] = {}
    for call in calls:
        earlier = by_id.get(call.id)
        if earlier is None or (earlier.ended_ns is None and call.ended_ns is not None):
            by_id[call.id] = call
    children: dict[UUID | None, list[RecordedCall]] = {}
    for call in sorted(by_id.values(), key=_start_order):
        children.setdefault(call.parent_id if call.parent_id in by_id else None, []).append(call)
        if call.kind == "tool" and call.tool_call_id is None:
            call.tool_call_id = text_of(getattr(call.output, "tool_call_id", None)) or None
    for root in children.get(None, ()):
        run: list[RecordedCall] = []
        waiting = [root]
        while waiting:
            call = waiting.pop()
            del by_id[call.id]
            run.append(call)
            waiting.extend(reversed(children.get(call.id, ())))
        yield RecordedRun(
            root.id,
            root.place,
            run,
            external_traces=root.external_traces,
            is_incomplete=root.parent_id is not None,
        )
    for call in by_id.values():
        yield Unusable(call.place, f"run {call.name or call.id} is part of itself")


def _start_order(call: RecordedCall) -> tuple[int, float, str]:
    # LangChain's own ids are ordered by time as well.
    return call.started_ns, float("inf") if call.ended_ns is None else call.ended_ns, str(call.id)


# ------------------------------------------------------------------ errors

_TRACEBACK = "Traceback (most recent call last):\n"
_FRAME = '  File "'
# What LangGraph notes beside an exception, which a traceback shows behind its message.
_NOTE = "\nDuring task with name '"
_CONSTRUCTOR = re.compile(r"([A-Za-z_]\w*)\(")
_CLASS_AND_TEXT = re.compile(r"^([A-Za-z_][\w.]*)(?:: (.*))?\s*\Z", re.MULTILINE | re.DOTALL)
_UNNAMED = "Error"


def error_in_text(text: str) -> RecordedError:
    """Return the error that LangChain's tracers write: its `repr`, and then its traceback."""
    written, _, traceback = text.partition(_TRACEBACK)
    written, name = written.strip(), ""
    if (constructor := _CONSTRUCTOR.match(written)) is not None:
        name = constructor[1]
        with suppress(ValueError, SyntaxError, MemoryError, RecursionError):
            argument = ast.literal_eval(written[len(name) :])
            message = argument if isinstance(argument, str) else ""
            # The text of a KeyError has quotes.
            if not traceback or f"{name}: {message}".rstrip() in traceback:
                return RecordedError(name, message)
    last_frame = traceback.rpartition(_FRAME)[2].partition(_NOTE)[0]
    if (match := _CLASS_AND_TEXT.search(last_frame)) is not None:
        return error_of(match[1], (match[2] or "").strip())
    return error_of(name, written)


def error_of(name: str, message: str) -> RecordedError:
    """Return an error.

    Args:
        name: Its class, perhaps with the module; "" if unknown.
        message: Its text.
    """
    return RecordedError(name.rpartition(".")[2] or _UNNAMED, message)


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


class Exceptions(dict[RecordedError, BaseException]):
    """The exceptions of one run: errors of equal name and message are one exception.

    The recorder tells by identity whether an exception that reaches a chain is recorded already.
    """

    def __missing__(self, error: RecordedError) -> BaseException:
        name = error.name.replace("\0", "") or _UNNAMED
        kind = _KNOWN.get(name) or type(name, (Exception,), {})
        self[error] = kind(*([error.message] if error.message else []))
        return self[error]
