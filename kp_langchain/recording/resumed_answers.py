"""Answers to tool calls that are understood only once a resumed run is joined to its first half.

A resumed run may answer a tool call whose name and arguments are recorded only in the first half.
And whether a tool failed or a human rejected its call depends on which tools had asked a human
before the pause.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from kp_langchain.recording.calls import Call
from kp_langchain.recording.requested_calls import RequestedCalls, UnnamedCallKey


def name_answers(calls: Sequence[Call], earlier: RequestedCalls | None) -> None:
    """Complete the calls that were answered before their requests were known.

    Args:
        calls: The calls since the run was resumed; changed.
        earlier: The calls requested before the pause; None if they are lost. Then calls answered
            without a request leave no step.
    """
    names_without_id = [
        one.name for one in calls if one.kind == "tool" and one.tool_call_id is None
    ]
    for call in calls:
        if not isinstance(key := call.key, UnnamedCallKey):
            continue
        call.key = ("tool", key.call_id)
        request = None if earlier is None else earlier.take(key.call_id)
        if request is None:
            call.is_void = True
        elif request.name in names_without_id:  # a tool that did not know the id answered it
            names_without_id.remove(request.name)
            call.is_void = True
        else:
            call.name = request.name
            call.input = request.arguments if isinstance(request.arguments, dict) else {}
            if call.has_failed and key.by_human:
                call.reject()


def note_rejections(calls: Iterable[Call], names_of_paused: Mapping[str, str]) -> None:
    """Mark failed calls as rejected if the tool had asked a human who refused.

    Args:
        calls: The calls of the whole run; changed.
        names_of_paused: The calls in which a tool had asked: tools' names by call ids.
    """
    names = set(names_of_paused.values())
    for call in calls:
        call_id = call.tool_call_id
        has_asked = call.name in names if call_id is None else call_id in names_of_paused
        if call.has_failed and call.is_after_rejection and has_asked:
            call.reject()
