"""Tool calls that no tool's own run shows: requested by a model, and answered by somebody else.

A node of the graph, a limit, middleware or a human may answer a requested call with a message, or
nobody may answer it at all. Each is recorded as if a tool had run, and so is each tool that a
provider ran inside an answer.

A graph that runs elsewhere, such as LangGraph's `RemoteGraph`, sends no events. Only the state that
it returns shows what it did: the messages in it are JSON objects, while those of a local graph are
LangChain's own.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice, takewhile
from typing import Any, Literal

from kp_langchain.recording.answers import (
    ended_early,
    messages_since,
    refusal_in,
    structured_response_in,
)
from kp_langchain.recording.calls import (
    Call,
    CallKind,
    RequestedCall,
    UnnamedCallKey,
    requests_in,
)
from kp_langchain.recording.messages import (
    is_command,
    is_message,
    message_text,
    messages_in,
    tool_messages_in,
)
from kp_langchain.recording.provider_tools import GROUNDING, Part, output_gist, parts_of
from kp_langchain.recording.run_record import RunRecord
from kp_langchain.recording.safe_reads import (
    MAPPING,
    MAX_ITEMS,
    attribute,
    clip,
    default_on_error,
    short_name,
)
from kp_langchain.recording.values import as_input, as_text

_REMOTE_TYPES = ("ai", "tool")
# Messages of its own that a node may add to those of a remote graph, as a supervisor does.
_MAX_ADDED = 2
_UNPARSED = "the arguments of the call cannot be parsed"
_MAX_OPEN = 1000
_NO_REASON = "failed"  # if a provider gives none


def record_model_answer(root: RunRecord, call: Call, message: object) -> bool:
    """Record what a model answered, and the tool calls that it made or asks for.

    Args:
        root: The run; changed.
        call: The call of the model; changed.
        message: The answer.

    Returns:
        Whether it asks for tool calls.
    """
    content, metadata = attribute(message, "content"), attribute(message, "response_metadata")
    call.is_incomplete = call.is_incomplete or (bool(metadata) and ended_early(metadata))
    last = call
    is_short = type(content) is str and len(content) <= root.raw_text_chars
    if is_short and _is_plain(message, metadata):
        call.text, call.has_tags = root.read(clip, content), True
    else:
        refusal = clip(refusal_in(message), root.raw_text_chars)
        call.is_incomplete = call.is_incomplete or bool(refusal)
        if parts := parts_of(message, root.raw_text_chars):
            last = _record_parts(root, call, parts)
        else:
            call.text = root.read(message_text, message)
        last.refusal = refusal
    return _record_requests(root, last, message)


def _is_plain(message: object, metadata: object) -> bool:
    """Return whether a message with a text as its content holds nothing else, like most."""
    extra = attribute(message, "additional_kwargs")
    has_more = type(extra) is not dict or any(extra.values())
    return not has_more and type(metadata) is dict and GROUNDING not in metadata


def _record_parts(root: RunRecord, answer: Call, parts: Sequence[Part]) -> Call:
    """Record the parts of a model's answer, as if an agent had run the provider's tools.

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
        if part.role == "result":
            # Google's results name no call: they belong to the last one.
            call = _take_open_call(root, part.ids) if part.ids else newest
            call = call or _new_call(answer, "tool", part.name)
            call.is_incomplete, call.has_failed = answer.is_incomplete, part.has_failed
            text = root.read(output_gist, part.value)
            root.timeline.add(call.set_result(text or _NO_REASON * part.has_failed), call)
        elif part.role == "call":
            if (earlier := root.provider_calls.get(part.request_id or "")) is not None:
                _add_open_call(root, part.ids, earlier)  # approved after an earlier answer
                earlier.is_incomplete = answer.is_incomplete
                continue
            newest = last = _new_call(answer, "tool", part.name)
            last.is_incomplete = answer.is_incomplete or part.is_approval_request
            last.input = root.read(as_input, part.value)
            last.mcp_server = short_name(part.mcp_server) or None
            _add_open_call(root, part.ids, last)
            root.timeline.add("start", last)
        else:
            if at:
                last = _new_call(answer, "model", answer.name)
                root.timeline.add("start", last)
            last.text = root.read(clip, part.value)
    if root.state.last_call is answer:
        root.state.last_call = last
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


def _take_open_call(root: RunRecord, ids: tuple[str, ...]) -> Call | None:
    calls = [root.provider_calls.pop(short_name(one), None) for one in ids]
    return next(filter(None, calls), None)


def _record_requests(root: RunRecord, model: Call, message: object) -> bool:
    """Note the tool calls that a model's answer asks for; those that cannot be parsed fail at once.

    Args:
        root: The run; changed.
        model: The call of the model.
        message: The answer.

    Returns:
        Whether there are any that can be parsed.
    """
    requests = attribute(message, "tool_calls")
    for request in requests_in(requests, model):
        root.requested_calls.add(request)
    for request in requests_in(attribute(message, "invalid_tool_calls"), model):
        call = begin_requested(root, request)
        call.has_ended = call.has_failed = True
        call.error = root.read(as_text, request.error) or _UNPARSED
        root.timeline.add("error", call)
        root.requested_calls.add_unparsed(request.call_id, call)
    return bool(requests)


def begin_requested(root: RunRecord, request: RequestedCall) -> Call:
    """Record the start of a requested call that no tool begins, and return the call."""
    call = Call("tool", request.name, ("tool", request.call_id))
    call.input = root.read(as_input, request.arguments)
    root.timeline.add("start", call)
    return call


def may_be_answered(root: RunRecord) -> bool:
    """Return whether a message may answer a tool call that no tool has answered."""
    return bool(root.requested_calls) or root.resumption is not None


def record_answers(root: RunRecord, outputs: object) -> None:
    """Record the requested calls that a chain's outputs answer.

    Args:
        root: The run; changed.
        outputs: What the chain returned.
    """
    messages = messages_in(outputs)
    answers = [message for message in messages if message.type == "tool"]
    if not answers:
        return
    models = (message for message in messages if message.type == "ai")
    requests = (attribute(message, "tool_calls") for message in models)
    # in the same outputs
    requested_here = {one.call_id for each in requests for one in requests_in(each, None)}
    for message in answers:
        call_id = attribute(message, "tool_call_id")
        verdict = _structure_verdict(outputs) if call_id in requested_here else None
        if verdict == "accepted":
            root.requested_calls.accept(call_id)
        else:
            is_refused = verdict == "refused"
            record_answer(root, message, is_refused, by_human=_may_be_rejected(root))


def record_answers_in_input(root: RunRecord, messages: object) -> None:
    """Record the requested calls whose answers only a model's input shows.

    A loop within one function keeps such answers to itself; others come from `update_state`.

    Args:
        root: The run; changed.
        messages: The model's input.
    """
    for message in _last_tool_messages(messages):
        record_answer(root, message, by_human=root.human.decision != "approved")


def record_unanswered(root: RunRecord, outputs: object) -> None:
    """Record the tool calls that the last message of a run asks for and that nobody made.

    Args:
        root: The run; changed.
        outputs: What the run returned.
    """
    messages = outputs.get("messages") if isinstance(outputs, MAPPING) else None
    if not isinstance(messages, list) or not messages:
        return
    if structured_response_in(outputs) is not None:
        return
    for last_request in requests_in(attribute(messages[-1], "tool_calls"), None):
        if (request := root.requested_calls.take(last_request.call_id)) is not None:
            call = begin_requested(root, request)
            has_waited = root.requested_calls.has_waited(request.call_id)
            call.is_rejected = _may_be_rejected(root) and has_waited


def record_answer(
    root: RunRecord, message: object, is_refused: bool = False, *, by_human: bool
) -> Call | None:
    """Record what answers a call that no tool ended, and return the call if there is one.

    Args:
        root: The run; changed.
        message: The answer.
        is_refused: Whether it says that a structured answer is wrong.
        by_human: Whether a human rejected the call if the answer says that it failed and the run
            had paused before it.
    """
    call_id = attribute(message, "tool_call_id")
    requested = root.requested_calls
    request, call = requested.take(call_id), requested.answer(call_id)
    has_failed = is_refused or attribute(message, "status") == "error"
    if request is not None:
        call = begin_requested(root, request)
        call.is_rejected = has_failed and by_human and requested.has_waited(call_id)
    elif call is None and root.is_awaiting_first_half and requested.is_unseen(call_id):
        # The request is known once the first half is read; see `name_answers`.
        call = Call("tool", "", UnnamedCallKey(call_id, by_human))
        root.timeline.add("start", call)
    if call is None:
        return None
    call.has_ended, call.is_cancelled = True, False
    call.has_failed = has_failed and not call.is_rejected
    root.timeline.add(call.set_result(root.read(message_text, message)), call)
    return call


def _may_be_rejected(root: RunRecord) -> bool:
    """Return whether a human may have rejected a call."""
    return root.human.decision in ("rejected", "unclear")


def answer_to_call(output: object, call_id: str | None) -> Any:
    """Return what answers a tool's call: the tool's output or, of a command, one of its messages.

    A tool that hands over to another agent returns the whole conversation with its command.

    Args:
        output: What the tool returned.
        call_id: The id of the call; None if it is unknown, and the last tool message answers it.
    """
    if attribute(output, "tool_call_id") is not None:  # like most
        return output
    outputs = output[:MAX_ITEMS] if type(output) is list else (output,)
    if not any(map(is_command, outputs)):
        return output
    answers = tool_messages_in(output)
    of_call = [one for one in answers if call_id in (None, attribute(one, "tool_call_id"))]
    return of_call[-1] if of_call else None


@default_on_error(())
def _last_tool_messages(messages: object) -> Sequence[Any]:
    """Return the tool messages at the end of a model's input, in order."""
    if not isinstance(messages, (list, tuple)):
        return ()
    last = reversed(messages[-MAX_ITEMS:])
    answers = list(takewhile(lambda one: getattr(one, "type", None) == "tool", last))
    return answers[::-1]


@default_on_error(None)
def _structure_verdict(outputs: object) -> Literal["accepted", "refused"] | None:
    """Return whether langchain's agent accepted a structured answer, by its model node's output.

    An accepted answer is in the state. For a refused one, older releases leave out the key, so only
    the text of the message shows it.
    """
    for output in outputs if isinstance(outputs, (list, tuple)) else (outputs,):
        update = attribute(output, "update") if is_command(output) else output
        if not isinstance(update, MAPPING):
            continue
        if "structured_response" in update:
            return "refused" if update["structured_response"] is None else "accepted"
        last = messages_in(update)[-1:]
        if last and attribute(last[0], "status") != "error":
            text = attribute(last[0], "content")
            if isinstance(text, str) and text.startswith("Error: "):
                return "refused"
    return None


def record_remote_answers(root: RunRecord, inputs: object, outputs: object) -> bool:
    """Record the answers and tool calls that only the state returned by a remote graph shows.

    Args:
        root: The run; changed.
        inputs: What the chain was given that returned the state.
        outputs: What it returned.

    Returns:
        Whether there are any.
    """
    last = root.state.last_call
    # Without ids, which a server gives, they may be a note of what was recorded already.
    messages = _remote_messages(inputs, outputs, needs_ids=last is not None and not last.is_remote)
    for message in messages:
        if message.type == "ai":
            model = root.state.last_call = Call("model", "", object())  # a unique key: no retries
            root.timeline.add("start", model)
            model.has_ended = model.is_remote = True
            record_model_answer(root, model, message)
        elif (call := record_answer(root, message, by_human=False)) is not None:
            call.is_remote = True
    return bool(messages)


@default_on_error(())
def _remote_messages(inputs: object, outputs: object, *, needs_ids: bool) -> Sequence[Any]:
    if is_message(outputs):  # like many
        return ()
    state: Any = outputs.update if is_command(outputs) else outputs  # type: ignore[attr-defined]
    if not isinstance(state, MAPPING):
        return ()
    for key, messages in islice(state.items(), MAX_ITEMS):
        if isinstance(inputs, MAPPING) and key not in inputs:
            continue  # such as a log of what was recorded already
        if isinstance(messages, list) and any(map(_is_remote, messages[-1 - _MAX_ADDED :])):
            given = inputs.get(key) if isinstance(inputs, MAPPING) else inputs
            new = [one for one in messages_since(given, messages) if _is_remote(one)]
            if needs_ids and not any(one.get("id") for one in new):
                return ()
            # Imported here because it takes 0.2 s, unless an agent has loaded it.
            from kp_langchain.recording.provider_messages import read_messages

            return read_messages(new[::-1])
    return ()


def _is_remote(message: object) -> bool:
    return type(message) is dict and message.get("type") in _REMOTE_TYPES and "content" in message
