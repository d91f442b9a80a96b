"""Answers of graphs that run elsewhere, such as LangGraph's `RemoteGraph`.

Such a graph sends no events. Only the state that it returns shows what it did: the messages in it
are JSON objects, while those of a local graph are LangChain's own.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from typing import Any

from kp_langchain.recording.answer import messages_since
from kp_langchain.recording.calls import Call
from kp_langchain.recording.messages import is_command, is_message
from kp_langchain.recording.run_record import RunRecord
from kp_langchain.recording.safe_reads import MAPPING, MAX_ITEMS, default_on_error
from kp_langchain.recording.tool_answers import record_answer, record_model_answer

_TYPES = ("ai", "tool")
# Messages of its own that a node may add to those of the remote graph, as a supervisor does.
_MAX_ADDED = 2


def record_remote_answers(root: RunRecord, inputs: object, outputs: object) -> bool:
    """Record the answers and tool calls that only the state returned by a remote graph shows.

    Args:
        root: The run; changed.
        inputs: What the chain was given that returned the state.
        outputs: What it returned.

    Returns:
        Whether there are any.
    """
    last = root.last_call
    # Without ids, which a server gives, they may be a note of what was recorded already.
    messages = _remote_messages(inputs, outputs, needs_ids=last is not None and not last.is_remote)
    for message in messages:
        if message.type == "ai":
            model = root.last_call = Call("model", "", object())  # a unique key: no retries
            root.mark("start", model)
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
    return type(message) is dict and message.get("type") in _TYPES and "content" in message
