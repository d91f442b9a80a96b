"""What becomes of the tool calls that a run's models ask for.

Some of them never become a run of a tool: the tool is unknown, a limit is reached, a human rejects
it, or a node of the graph answers in the tool's place. Others begin and are cancelled. Whoever
answers such a call does so with a message that has its id. Each is recorded as if a tool had run.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import takewhile
from typing import TYPE_CHECKING, Any, Literal

from kp_langchain.recording.bounds import default_on_error, member
from kp_langchain.recording.calls import Call, RequestedCall, requests_in
from kp_langchain.recording.values import (
    as_input,
    as_text,
    is_command,
    message_text,
    messages_in,
    role_and_content,
)
from kp_langchain.values import MAX_ITEMS

if TYPE_CHECKING:
    from kp_langchain.recording.run_record import RunRecord

_UNPARSED = "the arguments of the call cannot be parsed"


def record_requests(root: RunRecord, model: Call, message: object) -> bool:
    """Note the tool calls that a model's answer asks for; those that cannot be parsed fail at once.

    Args:
        root: The run; changed.
        model: The call of the model.
        message: The answer.

    Returns:
        Whether there are any that can be parsed.
    """
    requests = member(message, "tool_calls")
    for request in requests_in(requests, model):
        root.requested_calls.add(request)
    for request in requests_in(member(message, "invalid_tool_calls") or (), model):
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


def record_answers(root: RunRecord, outputs: object) -> None:
    """Record the requested calls that a chain's outputs answer.

    Args:
        root: The run; changed.
        outputs: What the chain returned.
    """
    messages = messages_in(outputs)
    answers = [message for message in messages if role_and_content(message)[0] == "tool"]
    if not answers:
        return
    requests = (member(message, "tool_calls") for message in messages)
    # in the same outputs
    requested_here = {one.call_id for each in requests for one in requests_in(each, None)}
    for message in answers:
        call_id = member(message, "tool_call_id")
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
    messages = outputs.get("messages") if isinstance(outputs, dict) else None
    if not isinstance(messages, list) or not messages:
        return
    for last_request in requests_in(member(messages[-1], "tool_calls"), None):
        if (request := root.requested_calls.take(last_request.call_id)) is not None:
            call = begin_requested(root, request)
            # One without a name was requested before a pause.
            call.is_rejected = _may_be_rejected(root) and not request.name


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
    call_id = member(message, "tool_call_id")
    requests = root.requested_calls
    request, call = requests.take(call_id), requests.answer(call_id)
    has_failed = is_refused or member(message, "status") == "error"
    if request is not None:
        call = begin_requested(root, request)
        # One without a name was requested before a pause.
        call.is_rejected = has_failed and by_human and not request.name
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
    if member(output, "tool_call_id") is not None:  # like most
        return output
    outputs = output[:MAX_ITEMS] if type(output) is list else (output,)
    if not any(map(is_command, outputs)):
        return output
    ids = [(member(one, "tool_call_id"), one) for one in messages_in(output)]
    of_call = [one for own_id, one in ids if own_id == call_id or (call_id is None and own_id)]
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
        update = member(output, "update") if is_command(output) else output
        if not isinstance(update, dict):
            continue
        if "structured_response" in update:
            return "refused" if update["structured_response"] is None else "accepted"
        last = messages_in(update)[-1:]
        if last and member(last[0], "status") != "error":
            text = member(last[0], "content")
            if isinstance(text, str) and text.startswith("Error: "):
                return "refused"
    return None
