"""Tool calls whose spans name neither the request nor the names of their arguments.

A span of OpenInference holds the value of a tool's only argument, without its name. The request of
the model, or the input of the node around the tool, has both.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from kp_langchain.importing.recorded_run import ModelAnswer, RecordedCall


def set_requested_inputs(calls: Sequence[RecordedCall]) -> None:
    """Give tool calls the ids, and where names are missing the arguments, of their requests.

    Args:
        calls: The calls of one run; changed.
    """
    by_id = {call.id: call for call in calls}
    by_request_id: dict[str, Mapping[str, Any]] = {}
    by_name: dict[str, list[Mapping[str, Any]]] = {}
    for call in calls:
        for request in _requests(call):
            if by_request_id.setdefault(request["id"], request) is request:
                by_name.setdefault(request["name"], []).append(request)
    taken = {call.tool_call_id for call in calls if call.tool_call_id}
    for call in sorted(calls, key=lambda call: call.started_ns):
        if call.kind != "tool":
            continue
        parent = by_id.get(call.parent_id) if call.parent_id is not None else None
        nearby = [] if parent is None else list(_tool_calls(parent.inputs))
        if call.tool_call_id is not None:
            requested = by_request_id.get(call.tool_call_id)
            candidates = [one for one in nearby if one["id"] == call.tool_call_id]
            candidates += [] if requested is None else [requested]
        else:
            candidates = [*nearby, *by_name.get(call.name, ())]
            if len(nearby) != 1:  # a node of one call may make it again
                candidates = [one for one in candidates if one["id"] not in taken]
        match = next((one for one in candidates if _fits(one, call)), None)
        if match is None:
            continue
        call.tool_call_id = match["id"]
        taken.add(match["id"])
        if not isinstance(call.inputs, dict):
            call.inputs = match["args"]


def _requests(call: RecordedCall) -> Iterator[Mapping[str, Any]]:
    if isinstance(call.output, ModelAnswer):
        for request in getattr(call.output.message, "tool_calls", None) or ():
            if isinstance(request.get("id"), str) and request["id"]:
                yield request


def _tool_calls(value: Any) -> Iterator[Mapping[str, Any]]:
    """Yield the tool calls that a node's input holds."""
    for item in value if isinstance(value, list) else [value]:
        one = item.get("tool_call", item) if isinstance(item, dict) else None
        if (
            isinstance(one, dict)
            and one.get("type") == "tool_call"
            and isinstance(one.get("id"), str)
            and isinstance(one.get("args"), dict)
        ):
            yield {"name": one.get("name"), "id": one["id"], "args": one["args"]}


def _fits(request: Mapping[str, Any], call: RecordedCall) -> bool:
    """Return whether the input of a tool may be that of a request."""
    arguments, inputs = request["args"], call.inputs
    if request["name"] != call.name:
        return False
    if isinstance(inputs, dict):
        return bool(inputs == arguments)
    if len(arguments) != 1:
        return not arguments and inputs in (None, "")
    value = next(iter(arguments.values()))
    return inputs == value or (isinstance(inputs, str) and inputs == json.dumps(value))
