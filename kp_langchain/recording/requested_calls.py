"""Tool calls that a model asked for, until they are answered.

Some never become a run of a tool: the tool is unknown, a limit is reached, a human refuses, a node
of the graph answers in the tool's place. Others begin and are given up. Whoever answers such a call
does so with a message that has its id.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kp_langchain.recording.messages import MAPPING, MAX_ITEMS, attribute, clip, contained

if TYPE_CHECKING:
    from kp_langchain.recording.record import Call

_MAX_REQUESTS = 1000
_MAX_NAME_CHARS = 200


@dataclass(frozen=True, slots=True)
class RequestedCall:
    """A tool call as a model asked for it.

    Args:
        call_id: Its id; the tool's answer names it.
        name: The tool's name.
        arguments: The user's own value, read only once it is known that no tool begins the call.
        model: The call of the model that asked.
        error: Why the arguments cannot be read; empty if they can.
    """

    call_id: str
    name: str
    arguments: object
    model: Call | None
    error: object = ""


def requests_in(message: object, field: str, model: Call | None) -> Iterator[RequestedCall]:
    """Read the calls that a model's message asks for.

    Args:
        message: The model's message.
        field: `tool_calls`, or `invalid_tool_calls` for those that cannot be parsed.
        model: The call of the model, if it matters.
    """
    listed = attribute(message, field)
    if not isinstance(listed, (list, tuple)):
        return
    for request in listed[:MAX_ITEMS]:
        if isinstance(request, MAPPING):
            call_id, name = request.get("id"), request.get("name")
            yield RequestedCall(
                call_id if isinstance(call_id, str) else "",
                clip(name, _MAX_NAME_CHARS) if isinstance(name, str) else "",
                request.get("args"),
                model,
                request.get("error") or "",
            )


class RequestedCalls:
    """The calls of one run that nobody has answered yet."""

    __slots__ = ("_begun", "_by_id", "_unparsed")

    def __init__(self) -> None:
        self._by_id: dict[str, RequestedCall] = {}
        self._begun: dict[str, Call] = {}
        self._unparsed: dict[str, Call] = {}

    def __bool__(self) -> bool:
        return bool(self._by_id or self._begun)

    def add(self, request: RequestedCall) -> None:
        """Remember a call; of those beyond the bound nothing is recorded unless a tool begins."""
        if request.call_id and len(self._by_id) < _MAX_REQUESTS:
            self._by_id[request.call_id] = request

    def add_unparsed(self, call_id: str, failed: Call) -> None:
        """Remember a call that is recorded as failed because its arguments cannot be parsed."""
        if call_id and len(self._unparsed) < _MAX_REQUESTS:
            self._unparsed[call_id] = failed

    def take(self, call_id: object) -> RequestedCall | None:
        """Forget the call of this id, and return it."""
        return self._by_id.pop(call_id, None) if isinstance(call_id, str) else None

    def begin(self, call: Call, arguments: object) -> None:
        """Note that a tool begins a call now.

        Some tools begin without the id: a node calls them with the arguments alone, and older
        releases of langchain-core do not hand it on. Then it is the call with the same name, and
        if there are several, the one with the same arguments.
        """
        if call.tool_call_id is None:
            call.tool_call_id = self._id_by_name(call.name, arguments)
        if (call_id := call.tool_call_id) is None:
            return
        self._by_id.pop(call_id, None)
        if len(self._begun) < _MAX_REQUESTS:
            self._begun[call_id] = call
        if (failed := self._unparsed.pop(call_id, None)) is not None:
            failed.void = True  # somebody could parse them

    def _id_by_name(self, name: str, arguments: object) -> str | None:
        alike = [one for one in list(self._by_id.values()) if one.name == name]
        same = (one for one in alike if len(alike) > 1 and _equal(one.arguments, arguments))
        request = next(same, alike[0] if alike else None)
        return None if request is None else request.call_id

    def answer(self, call_id: object) -> Call | None:
        """Forget the call of this id that a tool began, and return it."""
        return self._begun.pop(call_id, None) if isinstance(call_id, str) else None

    def asked_by(self, model: Call | None) -> list[RequestedCall]:
        """Return the calls that one answer of a model asked for."""
        return [one for one in list(self._by_id.values()) if one.model is model]

    def continue_from(self, earlier: RequestedCalls) -> None:
        """Take over the calls that a paused run left."""
        self._by_id = {**earlier._by_id, **self._by_id}


@contained(False)
def _equal(one: object, other: object) -> bool:
    return bool(one == other)
