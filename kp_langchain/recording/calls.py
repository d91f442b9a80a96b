"""Calls of models, tools and retrievers, the timeline of a run, and what exceptions mean for it.

Some tool calls that a model asks for never become a run of a tool: the tool is unknown, a limit is
reached, a human rejects it, or a node of the graph answers in the tool's place. Others begin and
are cancelled. Whoever answers such a call does so with a message that has its id.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from kp_langchain.recording.bounds import NAME_CHARS, default_on_error, member, short_name
from kp_langchain.recording.values import as_text, gist_text, thought_text
from kp_langchain.values import MAPPING, MAX_ITEMS, clip, join_texts

CallKind = Literal["model", "tool", "retriever", "chain"]
Mark = Literal["start", "end", "error"]
"""What one entry of a run's timeline records of a call."""

_SHORTEST_QUOTE = 12
_MAX_REQUESTS = 1000


@dataclass(slots=True, eq=False)
class Call:
    """One call of a model, tool or retriever; or a chain that raised an error of its own.

    Attributes:
        kind: What was called.
        name: The name of the model, tool or retriever; "" if unknown, or for a chain.
        key: Equal for all attempts of one call, and for nothing else.
        started_s: When it began, in seconds of the recorder's clock; None if that is not known.
        latency_ms: Milliseconds that it took; None while it runs, or if no run of its own began.
        model: Of a model, the name by which it was asked or answered; "" if unknown.
        provider: Who serves it, by LangChain's metadata; "" if unknown.
        tokens: What a model's answer says of its tokens, the user's own value.
        is_inner: Whether it is a call of LangChain's own, such as one that summarises messages.
        input: The input of a tool or retriever, in the form of `plain`.
        mcp_server: The MCP server that has the tool, if its metadata name one.
        tool_call_id: The id of the request for a tool call, by which the model knows it.
        text: What it returned: a text, or a structure until `write_out`.
        error: Why it failed: a text, or a structure until `write_out`.
        has_ended: Whether it returned or raised.
        has_failed: Whether it raised an error, or returned a message that says so.
        is_cancelled: Whether it was cancelled.
        is_rejected: Whether a human rejected it.
        is_after_rejection: Whether it ended when a human's last decision was a rejection.
        is_incomplete: Whether it belongs to an answer that was refused, withheld or cut off, or
            waits for an approval.
        refusal: The words in which a model refused; "" if it did not.
        offers_choice: Whether a model could choose between several tools, by what it was asked.
        is_void: Whether it leaves no step, because it is made again after a pause, is recorded
            elsewhere in the timeline, or is not the agent's own.
        returns_examples: Whether it is, or contains, the search that found the run's examples.
    """

    kind: CallKind
    name: str
    key: object
    started_s: float | None = None
    latency_ms: float | None = None
    model: str = ""
    provider: str = ""
    tokens: object = None
    is_inner: bool = False
    input: dict[str, Any] | None = None
    mcp_server: str | None = None
    tool_call_id: str | None = None
    text: Any = ""
    error: Any = ""
    has_ended: bool = False
    has_failed: bool = False
    is_cancelled: bool = False
    is_rejected: bool = False
    is_after_rejection: bool = False
    is_incomplete: bool = False
    refusal: str = ""
    offers_choice: bool = False
    is_void: bool = False
    returns_examples: bool = False

    def end(self, at_s: float | None) -> None:
        """Note that it ended, and how long it took.

        Args:
            at_s: When that was, as `started_s`.
        """
        self.has_ended = True
        if at_s is not None and self.started_s is not None:
            self.latency_ms = max(0.0, at_s - self.started_s) * 1000

    def set_result(self, text: Any) -> Mark:
        """Set `text`, or `error` if it has failed; return the mark for the timeline."""
        if self.has_failed:
            self.error = text
            return "error"
        self.text = text
        return "end"

    def write_out(self, limit: int) -> None:
        """Turn what it returned into text of at most `limit` characters, which takes time."""
        if self.kind == "model":
            self.text = thought_text(self.text, limit)
        self.text, self.error = gist_text(self.text, limit), gist_text(self.error, limit)

    def leave_to(self, result: Any, limit: int) -> None:
        """Leave no step if the result of its only caller contains its own text or error."""
        self.write_out(limit)
        own_result = self.error if self.has_failed else self.text
        if own_result and isinstance(own_result, str) and isinstance(result, str):
            # A message that a tool returns as it is becomes text by `str`. A short word may stand
            # in any text.
            is_inside = len(own_result) >= _SHORTEST_QUOTE and own_result in result
            self.is_void = (
                self.is_void or own_result == result or is_inside or repr(own_result) in result
            )

    def reject(self) -> None:
        """Turn a failure into a human's rejection, whose words are the call's text."""
        self.has_failed, self.is_rejected = False, True
        self.text, self.error = self.error, ""


class Timeline:
    """The first and the last marks of a run: starts, ends and errors of calls.

    Args:
        max_marks: The most marks to keep.

    Attributes:
        dropped: The number of marks that were dropped from the middle.
    """

    __slots__ = ("_first", "_last", "_max_first", "dropped")

    def __init__(self, max_marks: int) -> None:
        max_last = max_marks // 2
        self._max_first = max_marks - max_last
        self._first: list[tuple[Mark, Call]] = []
        self._last: deque[tuple[Mark, Call]] = deque(maxlen=max_last)
        self.dropped = 0

    def __len__(self) -> int:
        return len(self._first) + len(self._last)

    def __iter__(self) -> Iterator[tuple[Mark, Call]]:
        yield from self._first
        yield from self._last

    def calls(self) -> list[Call]:
        """Return its calls, each once, in the order in which they came first."""
        return list(dict.fromkeys(call for _, call in self))

    def add(self, mark: Mark, call: Call) -> None:
        """Add a start, end or error of `call`."""
        if len(self._first) < self._max_first:
            self._first.append((mark, call))
            return
        if len(self._last) == self._last.maxlen:
            self.dropped += 1
        self._last.append((mark, call))

    def joined_to(self, earlier: Timeline) -> Timeline:
        """Return a timeline of `earlier` and then this one, of as many marks as `earlier` keeps."""
        joined = Timeline(earlier._max_first + (earlier._last.maxlen or 0))
        joined.dropped = earlier.dropped + self.dropped
        for mark, call in (*earlier, *self):
            joined.add(mark, call)
        return joined


# ------------------------------------------------------------------ requested calls


@dataclass(slots=True, eq=False)
class RequestedCall:
    """A tool call as a model asked for it.

    Attributes:
        call_id: Its id, which the tool's answer names; "" if it has none.
        name: The tool's name; "" if the call only gives an answer its form.
        arguments: The user's own value, read only once it is known that no tool begins the call.
        model: The call of the model that asked, if known.
        error: Why the arguments cannot be parsed; empty if they can.
    """

    call_id: str
    name: str
    arguments: object
    model: Call | None = None
    error: object = ""


def requests_in(requests: object, model: Call | None) -> Iterator[RequestedCall]:
    """Yield the tool calls that a model's message asks for.

    Args:
        requests: The message's `tool_calls`, or its `invalid_tool_calls` that cannot be parsed.
        model: The call of the model; None if it does not matter.
    """
    if not isinstance(requests, (list, tuple)):
        return
    for request in requests[:MAX_ITEMS]:
        if isinstance(request, MAPPING):
            call_id = request.get("id")
            yield RequestedCall(
                call_id if isinstance(call_id, str) else "",
                short_name(request.get("name")),
                request.get("args"),
                model,
                request.get("error") or "",
            )


class RequestedCalls:
    """The tool calls of one run that nobody has answered yet. It is true if there are any.

    Attributes:
        is_resumed: Whether others were requested before a pause, and become known once the run
            has ended.
    """

    __slots__ = ("_accepted", "_begun_ids", "_by_id", "_open", "_unparsed", "is_resumed")

    def __init__(self) -> None:
        self._accepted: list[RequestedCall] = []  # structured answers
        self._by_id: dict[str, RequestedCall] = {}  # no tool has begun them
        self._open: dict[str, Call] = {}  # a tool has begun them
        self._begun_ids: set[str] = set()  # a tool has ever begun them, or they are answered
        self._unparsed: dict[str, Call] = {}
        self.is_resumed = False

    def __bool__(self) -> bool:
        return bool(self._by_id or self._open)

    @property
    def may_be_answered(self) -> bool:
        """Whether a message may answer a call that no tool has answered."""
        return self.is_resumed or bool(self)

    def __iter__(self) -> Iterator[RequestedCall]:
        """Iterate over a copy of the calls that no tool has begun."""
        return iter(list(self._by_id.values()))

    def add(self, request: RequestedCall) -> None:
        """Add a call; beyond the bound it is ignored, and recorded only if a tool begins it."""
        if request.call_id and len(self._by_id) < _MAX_REQUESTS:
            self._by_id[request.call_id] = request

    def add_unparsed(self, call_id: str, failure: Call) -> None:
        """Add a call that is recorded as failed because its arguments cannot be parsed."""
        if call_id and len(self._unparsed) < _MAX_REQUESTS:
            self._unparsed[call_id] = failure

    def take(self, call_id: object) -> RequestedCall | None:
        """Remove and return the call of this id that no tool has begun.

        One that was requested before a pause is returned without its name.
        """
        if not isinstance(call_id, str):
            return None
        request = self._by_id.pop(call_id, None)
        is_earlier = self.is_resumed and call_id not in self._begun_ids
        if request is None and is_earlier and len(self._begun_ids) < _MAX_REQUESTS:
            request = RequestedCall(call_id, "", {})
            self._begun_ids.add(call_id)
        return request

    def accept(self, call_id: object) -> None:
        """Note that the call of this id is an answer in a structure, which was accepted as such."""
        request = self._by_id.pop(call_id, None) if isinstance(call_id, str) else None
        if request is not None and len(self._accepted) < _MAX_REQUESTS:
            self._accepted.append(replace(request, name=""))

    @property
    def decisions(self) -> list[RequestedCall]:
        """The calls of a run that has ended which nobody made: structures, such as a route."""
        return [*self._accepted, *self]

    def begin(self, call: Call, arguments: object) -> None:
        """Note that a tool begins a call now, and find the call's id if the tool does not know it.

        Some tools begin without the id: a node calls them with the arguments alone, and older
        releases of langchain-core do not pass it on. Then the call is found by its name and, if
        several calls have that name, by its arguments.
        """
        if call.tool_call_id is None:
            call.tool_call_id = self._id_by_name(call.name, arguments)
        if (call_id := call.tool_call_id) is None:
            return
        self._by_id.pop(call_id, None)
        if (failure := self._unparsed.pop(call_id, None)) is not None:
            failure.is_void = True  # the agent could parse the arguments
        if len(self._begun_ids) < _MAX_REQUESTS:
            self._begun_ids.add(call_id)
            self._open[call_id] = call

    def _id_by_name(self, name: str, arguments: object) -> str | None:
        namesakes = [one for one in self if one.name == name]
        same = (one for one in namesakes if len(namesakes) > 1 and _equal(one.arguments, arguments))
        request = next(same, namesakes[0] if namesakes else None)
        return None if request is None else request.call_id

    def answer(self, call_id: object) -> Call | None:
        """Remove and return the call of this id that a tool has begun."""
        return self._open.pop(call_id, None) if isinstance(call_id, str) else None

    def pause(self, call: Call) -> None:
        """Note that a tool paused the run in the middle of this call, to make it again later."""
        if (call_id := call.tool_call_id) is not None:
            self._open.pop(call_id, None)
            self._begun_ids.discard(call_id)
            self.add(RequestedCall(call_id, call.name, call.input))

    def of_model(self, model: Call | None) -> list[RequestedCall]:
        """Return the calls that one answer of a model asked for."""
        return [one for one in self if one.model is model]

    def add_earlier(self, earlier: RequestedCalls) -> None:
        """Add the calls that nobody had answered when the run paused, nor since."""
        self._accepted = [*earlier._accepted, *self._accepted]
        left = {one.call_id: one for one in earlier if one.call_id not in self._begun_ids}
        self._by_id = {**left, **self._by_id}


@default_on_error(False)
def _equal(one: object, other: object) -> bool:
    return bool(one == other)


# ------------------------------------------------------------------ exceptions

Meaning = Literal["error", "interrupt", "handoff", "cancelled"]
_CANCELLED = (
    asyncio.CancelledError,
    concurrent.futures.CancelledError,
    GeneratorExit,
    KeyboardInterrupt,
    SystemExit,
)
# By name, so that LangGraph and greenlet need not be imported.
_BY_NAME: dict[tuple[str, str], Meaning] = {
    ("langgraph.errors", "GraphInterrupt"): "interrupt",
    ("langgraph.errors", "GraphBubbleUp"): "handoff",
    ("greenlet", "GreenletExit"): "cancelled",
}
_MAX_MEMBERS = 8  # of a group
_MAX_CAUSES = 8


def meaning_of(error: object) -> Meaning:
    """Return whether an exception is an error, LangGraph's pause or hand-off, or a cancellation."""
    for base in type(error).__mro__:
        if (meaning := _BY_NAME.get((base.__module__, base.__name__))) is not None:
            return meaning
    return "cancelled" if isinstance(error, _CANCELLED) else "error"


def _members_of(error: object) -> Sequence[object]:
    """Return the first exceptions of a group; none of other exceptions."""
    members = member(error, "exceptions") if isinstance(error, BaseExceptionGroup) else None
    return members[:_MAX_MEMBERS] if isinstance(members, tuple) else ()


def error_text(error: object, limit: int) -> str:
    """Return `TypeName: message` of an exception, cut to `limit`; for a group, with those in it."""
    text, *members = (_own_text(one, limit) for one in (error, *_members_of(error)))
    return clip(f"{text} ({join_texts(members, limit, '; ')})", limit) if members else text


def _own_text(error: object, limit: int) -> str:
    message = as_text(error, limit)
    name = clip(type(error).__name__, NAME_CHARS)
    return clip(f"{name}: {message}" if message else name, limit)


@default_on_error(False)
def stems_from(error: BaseException, error_ids: Sequence[int]) -> bool:
    """Return whether an exception, a cause of it or one in its group has one of these ids."""
    cause: BaseException | None = error if error_ids else None
    for _ in range(_MAX_CAUSES):
        if cause is None:
            return False
        if any(id(one) in error_ids for one in (cause, *_members_of(cause))):
            return True
        cause = cause.__cause__ or cause.__context__
    return False
