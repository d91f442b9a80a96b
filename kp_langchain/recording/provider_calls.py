"""Steps of the tools that a provider ran inside one answer of a model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from kp_langchain.recording.message_parts import Called, Part, Returned, shown
from kp_langchain.recording.messages import as_input, clip
from kp_langchain.recording.run_record import Call, RunRecord, short_name

_MOST_OPEN = 1000
_NO_REASON = "failed"  # where the provider gives none
Keep = Callable[[Callable[[Any, int], Any], Any], Any]


def mark_parts(root: RunRecord, answer: Call, parts: Sequence[Part], keep: Keep) -> Call:
    """Add the parts of a model's answer to the timeline, as if an agent had run the tools.

    Args:
        root: The run.
        answer: The model's call; what it says first is its text.
        parts: The parts in order.
        keep: Reads a text or an input within what the run has room for.

    Returns:
        The last call that began.
    """
    last = answer
    newest: Call | None = None
    for at, part in enumerate(parts):
        if isinstance(part, Returned):
            # Google's results name no call: the last one is meant.
            call = _open_call(root, part) if part.ids else newest
            call = call or _new_call("tool", part.name)
            call.stopped = answer.stopped
            _mark_end(root, call, part, keep)
            continue
        if isinstance(part, Called):
            if (earlier := root.provider_calls.get(part.request_id or "")) is not None:
                _remember(root, part.ids, earlier)  # it was asked for, and is approved now
                earlier.stopped = answer.stopped
                continue
            newest = last = _new_call("tool", part.name)
            last.stopped = answer.stopped or part.waits
            last.input = keep(as_input, part.input)
            last.mcp_server = short_name(part.mcp_server) or None
            _remember(root, part.ids, last)
        elif at:
            last = _new_call("model", answer.name)
            last.stopped = answer.stopped
            last.text = keep(clip, part.text)
        else:
            answer.text = keep(clip, part.text)
            continue
        root.mark("start", last)
    if root.last_call is answer:
        root.last_call = last
    return last


def _new_call(kind: Any, name: str) -> Call:
    call = Call(kind, short_name(name), object())  # each is its own: nothing is tried again
    call.answered = True
    return call


def _remember(root: RunRecord, ids: tuple[str, ...], call: Call) -> None:
    for one in ids:
        if len(root.provider_calls) < _MOST_OPEN:
            root.provider_calls[short_name(one)] = call


def _open_call(root: RunRecord, part: Returned) -> Call | None:
    found = [root.provider_calls.pop(short_name(one), None) for one in part.ids]
    return next((call for call in found if call is not None), None)


def _mark_end(root: RunRecord, call: Call, part: Returned, keep: Keep) -> None:
    text = keep(shown, part.output)
    call.failed = part.failed
    if part.failed:
        call.error = text or _NO_REASON
    else:
        call.text = text
    root.mark("error" if part.failed else "end", call)
