"""Tool calls that a model asked for, until they are answered.

Some never become a run of a tool: the tool is unknown, a limit is reached, a human rejects it, or a
node of the graph answers in the tool's place. Others begin and are cancelled. Whoever answers such
a call does so with a message that has its id.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from kp_langchain.recording.calls import Call
from kp_langchain.recording.safe_reads import (
    MAPPING,
    MAX_ITEMS,
    default_on_error,
    short_name,
)

_MAX_REQUESTS = 1000


class RequestedCall(NamedTuple):
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


class UnnamedCallKey(NamedTuple):
    """The key of a call that is answered here but was requested elsewhere, before a pause.

    Attributes:
        call_id: The id of the call.
        by_human: Whether the answer follows from a human's decision.
    """

    call_id: str
    by_human: bool


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
    """The tool calls of one run that nobody has answered yet. It is true if there are any."""

    __slots__ = (
        "_accepted", "_by_id", "_earlier", "_earlier_ids", "_names_of_paused", "_open",
        "_seen_ids", "_unparsed", "_waiting_ids",
    )  # fmt: skip

    def __init__(self) -> None:
        self._accepted: list[RequestedCall] = []  # structured answers
        self._by_id: dict[str, RequestedCall] = {}  # no tool has begun them
        self._earlier: dict[str, RequestedCall] = {}  # the same, from before a pause
        self._earlier_ids: set[str] = set()  # all that were ever added to them
        self._open: dict[str, Call] = {}  # a tool has begun them
        self._seen_ids: set[str] = set()  # a tool has ever begun them
        self._waiting_ids: set[str] = set()  # no tool had begun them when the run paused
        self._names_of_paused: dict[str, str] = {}
        self._unparsed: dict[str, Call] = {}

    def __bool__(self) -> bool:
        return bool(self._by_id or self._earlier or self._open)

    def __iter__(self) -> Iterator[RequestedCall]:
        """Iterate over a copy of the calls that no tool has begun."""
        return iter({**self._earlier, **self._by_id}.values())

    def add(self, request: RequestedCall) -> None:
        """Add a call; beyond the bound it is ignored, and recorded only if a tool begins it."""
        if request.call_id and len(self._by_id) < _MAX_REQUESTS:
            self._by_id[request.call_id] = request

    def add_unparsed(self, call_id: str, failure: Call) -> None:
        """Add a call that is recorded as failed because its arguments cannot be parsed."""
        if call_id and len(self._unparsed) < _MAX_REQUESTS:
            self._unparsed[call_id] = failure

    def take(self, call_id: object) -> RequestedCall | None:
        """Remove and return the call of this id that no tool has begun."""
        if not isinstance(call_id, str):
            return None
        return self._by_id.pop(call_id, self._earlier.pop(call_id, None))

    def accept(self, call_id: object) -> None:
        """Note that the call of this id is an answer in a structure, which was accepted as such."""
        if (request := self.take(call_id)) is not None and len(self._accepted) < _MAX_REQUESTS:
            self._accepted.append(request._replace(name=""))

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
        if len(self._seen_ids) < _MAX_REQUESTS:
            self._seen_ids.add(call_id)
        self.take(call_id)  # after it was seen; see `add_earlier`
        if len(self._open) < _MAX_REQUESTS:
            self._open[call_id] = call
        if (failure := self._unparsed.pop(call_id, None)) is not None:
            failure.is_void = True  # the agent could parse the arguments

    def _id_by_name(self, name: str, arguments: object) -> str | None:
        namesakes = [one for one in self if one.name == name]
        same = (one for one in namesakes if len(namesakes) > 1 and _equal(one.arguments, arguments))
        request = next(same, namesakes[0] if namesakes else None)
        return None if request is None else request.call_id

    def answer(self, call_id: object) -> Call | None:
        """Remove and return the call of this id that a tool has begun."""
        return self._open.pop(call_id, None) if isinstance(call_id, str) else None

    def wait(self) -> None:
        """Note that the run paused before a tool began these calls."""
        self._waiting_ids = {*self._earlier, *self._by_id}

    def has_waited(self, call_id: str) -> bool:
        """Return whether the run paused before a tool began this call."""
        return call_id in self._waiting_ids

    def pause(self, call: Call) -> None:
        """Note that a tool paused the run in the middle of this call, to make it again later."""
        if (call_id := call.tool_call_id) is not None:
            self._open.pop(call_id, None)
            self.add(RequestedCall(call_id, call.name, call.input))
            self.add_paused(call_id, call.name)

    def add_paused(self, call_id: str, name: str) -> None:
        """Note that the tool of this name paused the run in the middle of this call."""
        if len(self._names_of_paused) < _MAX_REQUESTS:
            self._names_of_paused[call_id] = name

    @property
    def names_of_paused(self) -> Mapping[str, str]:
        """The calls in which a tool paused the run, to ask a human: tools' names by call ids."""
        return self._names_of_paused

    def is_unseen(self, call_id: object) -> bool:
        """Return whether this is the id of a call that no tool has begun."""
        return isinstance(call_id, str) and call_id not in self._seen_ids

    def of_model(self, model: Call | None) -> list[RequestedCall]:
        """Return the calls that one answer of a model asked for."""
        return [one for one in self if one.model is model]

    def add_earlier(self, earlier: RequestedCalls) -> None:
        """Add the calls that nobody had answered when the run paused, each only once.

        Can be called again after the store has extended `earlier`; calls added the first time are
        not added again, because they may have been answered since. Tools may begin them meanwhile,
        in other threads.
        """
        self._accepted, earlier._accepted = [*earlier._accepted, *self._accepted], []
        for call_id, request in {**earlier._earlier, **earlier._by_id}.items():
            if call_id not in self._earlier_ids:
                self._earlier_ids.add(call_id)
                self._earlier[call_id] = request
                if call_id in self._seen_ids:  # asked last: whoever begins it now takes it away
                    self._earlier.pop(call_id, None)
        self._waiting_ids |= earlier._waiting_ids
        self._names_of_paused = {**earlier._names_of_paused, **self._names_of_paused}


@default_on_error(False)
def _equal(one: object, other: object) -> bool:
    return bool(one == other)
