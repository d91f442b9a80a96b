"""Tool calls that a model asked for, until they are answered.

Some never become a run of a tool: the tool is unknown, a limit is reached, a human refuses, a node
of the graph answers in the tool's place. Others begin and are given up. Whoever answers such a call
does so with a message that has its id.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from kp_langchain.recording.messages import MAPPING, MAX_ITEMS, attribute, clip, contained

if TYPE_CHECKING:
    from kp_langchain.recording.run_record import Call, RunRecord

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
    model: Call | None = None
    error: object = ""


class UnnamedCall(NamedTuple):
    """The key of a call that is answered here and was asked for before a pause elsewhere.

    Args:
        call_id: Its id.
        by_human: Whether the answer follows from what a human decided.
    """

    call_id: str
    by_human: bool


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

    __slots__ = ("_begun", "_begun_ids", "_by_id", "_paused", "_unparsed", "_waited")

    def __init__(self) -> None:
        self._by_id: dict[str, RequestedCall] = {}
        self._begun: dict[str, Call] = {}
        self._begun_ids: set[str] = set()
        self._waited: set[str] = set()
        self._paused: dict[str, str] = {}
        self._unparsed: dict[str, Call] = {}

    def __bool__(self) -> bool:
        return bool(self._by_id or self._begun)

    def __iter__(self) -> Iterator[RequestedCall]:
        return iter(list(self._by_id.values()))

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
        if len(self._begun_ids) < _MAX_REQUESTS:
            self._begun_ids.add(call_id)
        if (failed := self._unparsed.pop(call_id, None)) is not None:
            failed.void = True  # somebody could parse them

    def _id_by_name(self, name: str, arguments: object) -> str | None:
        alike = [one for one in self if one.name == name]
        same = (one for one in alike if len(alike) > 1 and _equal(one.arguments, arguments))
        request = next(same, alike[0] if alike else None)
        return None if request is None else request.call_id

    def answer(self, call_id: object) -> Call | None:
        """Forget the call of this id that a tool began, and return it."""
        return self._begun.pop(call_id, None) if isinstance(call_id, str) else None

    def wait(self) -> None:
        """Note that the run paused before these calls were begun."""
        self._waited = set(self._by_id)

    def has_waited(self, call_id: str) -> bool:
        """Whether the run paused before this call was answered."""
        return call_id in self._waited

    def pause(self, call: Call) -> None:
        """Note that a tool asks a human while it does this call, which begins again then."""
        if (call_id := call.tool_call_id) is not None:
            self._begun.pop(call_id, None)
            self.add(RequestedCall(call_id, call.name, call.input))
            self.add_paused(call_id, call.name)

    def add_paused(self, call_id: str, name: str) -> None:
        """Note that the tool of this name has asked a human while it did this call."""
        if len(self._paused) < _MAX_REQUESTS:
            self._paused[call_id] = name

    @property
    def paused(self) -> Mapping[str, str]:
        """The calls in which a tool has asked a human: their ids, and the tools' names."""
        return self._paused

    def is_unknown(self, call_id: object) -> bool:
        """Whether neither a model asked for this call nor a tool began it, as far as is known."""
        return isinstance(call_id, str) and call_id not in self._begun_ids

    def asked_by(self, model: Call | None) -> list[RequestedCall]:
        """Return the calls that one answer of a model asked for."""
        return [one for one in self if one.model is model]

    def continue_from(self, earlier: RequestedCalls) -> None:
        """Take over the calls that a paused run left."""
        self._by_id = {**earlier._by_id, **self._by_id}
        self._waited |= earlier._waited
        self._paused = {**earlier._paused, **self._paused}


@contained(False)
def _equal(one: object, other: object) -> bool:
    return bool(one == other)


def name_answers(calls: Sequence[Call], earlier: RunRecord | None) -> None:
    """Complete the calls that were answered before it was known what had been asked for.

    Args:
        calls: What was recorded since the run was resumed.
        earlier: What was recorded before; None if that is lost. Then they are left out.
    """
    without_id = [one.name for one in calls if one.kind == "tool" and one.tool_call_id is None]
    for call in calls:
        if not isinstance(unnamed := call.key, UnnamedCall):
            continue
        call.key = ("tool", unnamed.call_id)
        request = None if earlier is None else earlier.requested.take(unnamed.call_id)
        if earlier is None or request is None:
            call.void = True
        elif request.name in without_id:  # a tool did it, and was not given the id
            without_id.remove(request.name)
            call.void = True
        else:
            call.name = request.name
            call.input = request.arguments if isinstance(request.arguments, dict) else {}
            if call.failed and unnamed.by_human:
                call.failed, call.rejected = False, True
                call.text, call.error = call.error, ""


def note_rejections(record: RunRecord) -> None:
    """Tell the calls that a human rejected, whom the tool itself had asked, from failed ones.

    Args:
        record: The run, together with what it recorded before its pauses.
    """
    paused = record.requested.paused
    names = set(paused.values())
    for _, call in record.timeline():
        has_asked = call.name in names if call.tool_call_id is None else call.tool_call_id in paused
        if call.failed and call.after_no and has_asked:
            call.failed, call.rejected = False, True
            call.text, call.error = call.error, ""
