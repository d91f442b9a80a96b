"""Calls of the tools that a provider ran inside one answer of a model, as marks in the timeline."""

from __future__ import annotations

from collections.abc import Sequence

from kp_langchain.recording.calls import Call, CallKind
from kp_langchain.recording.clipping import clip, short_name
from kp_langchain.recording.message_parts import (
    Part,
    ProviderCall,
    ProviderResult,
    output_gist,
)
from kp_langchain.recording.plain_values import as_input
from kp_langchain.recording.run_record import RunRecord

_MAX_OPEN = 1000
_NO_REASON = "failed"  # if the provider gives none


def mark_parts(root: RunRecord, answer: Call, parts: Sequence[Part]) -> Call:
    """Add the parts of a model's answer to the timeline, as if an agent had run the tools.

    Args:
        root: The run; changed.
        answer: The model's call, which gets the first text as its own; changed.
        parts: The parts in order.

    Returns:
        The last call that began.
    """
    last = answer
    newest: Call | None = None
    for at, part in enumerate(parts):
        if isinstance(part, ProviderResult):
            # Google's results name no call: they belong to the last one.
            call = _take_open_call(root, part) if part.ids else newest
            call = call or _new_call(answer, "tool", part.name)
            call.is_incomplete = answer.is_incomplete
            _mark_end(root, call, part)
            continue
        if isinstance(part, ProviderCall):
            if (earlier := root.provider_calls.get(part.request_id or "")) is not None:
                _add_open_call(root, part.ids, earlier)  # approved after an earlier answer
                earlier.is_incomplete = answer.is_incomplete
                continue
            newest = last = _new_call(answer, "tool", part.name)
            last.is_incomplete = answer.is_incomplete or part.is_approval_request
            last.input = root.read(as_input, part.input)
            last.mcp_server = short_name(part.mcp_server) or None
            _add_open_call(root, part.ids, last)
        elif at:
            last = _new_call(answer, "model", answer.name)
            last.text = root.read(clip, part.text)
        else:
            answer.text = root.read(clip, part.text)
            continue
        root.mark("start", last)
    if root.last_call is answer:
        root.last_call = last
    return last


def _new_call(answer: Call, kind: CallKind, name: str) -> Call:
    call = Call(kind, short_name(name), object())  # a unique key: these calls are never retried
    call.has_ended = True
    call.is_incomplete, call.is_remote = answer.is_incomplete, answer.is_remote
    return call


def _add_open_call(root: RunRecord, ids: tuple[str, ...], call: Call) -> None:
    for one in ids:
        if len(root.provider_calls) < _MAX_OPEN:
            root.provider_calls[short_name(one)] = call


def _take_open_call(root: RunRecord, part: ProviderResult) -> Call | None:
    calls = [root.provider_calls.pop(short_name(one), None) for one in part.ids]
    return next((call for call in calls if call is not None), None)


def _mark_end(root: RunRecord, call: Call, part: ProviderResult) -> None:
    text = root.read(output_gist, part.output)
    call.has_failed = part.has_failed
    root.mark(call.set_result(text or _NO_REASON if part.has_failed else text), call)
