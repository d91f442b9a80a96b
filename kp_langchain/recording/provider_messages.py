"""Messages in the forms of OpenAI and Anthropic, for LangChain to read.

LangChain's own conversion raises for a whole conversation if the arguments of one call are empty or
cut off, or its id is missing, and does not know `function_call`, `tool_use` and `tool_result`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from langchain_core.messages import (
    BaseMessage,
    MessageLikeRepresentation,
    ToolMessage,
    convert_to_messages,
)
from pydantic import ValidationError

from kp_langchain.json_text import json_or_text
from kp_langchain.printable import first_fault

_ASSISTANT = ("assistant", "ai")
_UNREADABLE = (
    *(KeyError, TypeError, AttributeError, ValueError),
    *(NotImplementedError, RecursionError),
)


def read_messages(messages: Iterable[MessageLikeRepresentation]) -> list[BaseMessage]:
    """Return messages in any form that LangChain reads as messages.

    Raises:
        ValueError: Something in them cannot be read.
    """
    if isinstance(messages, str):
        raise ValueError("messages is one text; give a list of messages")  # noqa: TRY004
    number = 0

    def numbered() -> Iterator[Any]:
        nonlocal number
        for number, message in enumerate(messages, 1):  # noqa: B007
            yield message

    try:
        return [
            message
            for one in _with_langchain_calls(numbered())
            for message in convert_to_messages([one])
        ]
    except _UNREADABLE as error:
        # The error's own text may quote what was said.
        why = first_fault(error) if isinstance(error, ValidationError) else type(error).__name__
        raise ValueError(
            f"the messages cannot be read, at number {number} ({why}); each needs a role and "
            "content, and each tool call a name"
        ) from error


def _with_langchain_calls(messages: Iterable[Any]) -> Iterator[Any]:
    """Yield messages, those of dictionaries that call a tool or answer a call as LangChain's own.

    Args:
        messages: Messages in any form.

    Raises:
        ValueError: LangChain cannot read such a message, or it calls a tool without a name.
    """
    function_id = ""  # a legacy call has no id; its answer comes next
    for number, message in enumerate(messages):
        role = message.get("role") if isinstance(message, dict) else None
        if role in _ASSISTANT and (calls := _calls_of(message, f"function-{number}")):
            function_id = f"function-{number}" if "function_call" in message else function_id
            yield _with_calls(message, calls)
        elif role == "function":
            yield _tool_message(message, function_id)
        elif role == "tool" and _text(message, "tool_call_id") is None:
            yield _tool_message(message, "")
        elif role == "user" and (results := _blocks(message, "tool_result")):
            yield from (_tool_message(one, _text(one, "tool_use_id") or "") for one in results)
            others = [block for block in message["content"] if block not in results]
            if others:
                yield {**message, "content": others}
        else:
            yield message


def tool_call_fields(calls: Any) -> dict[str, list[dict[str, Any]]]:
    """Return `tool_calls` and `invalid_tool_calls` for an `AIMessage`.

    Args:
        calls: Requests in OpenAI's form or in LangChain's.
    """
    good: list[dict[str, Any]] = []
    bad: list[dict[str, Any]] = []
    for call in calls if isinstance(calls, Sequence) and not isinstance(calls, str) else ():
        if not isinstance(call, dict):
            continue
        function = call.get("function")
        if not isinstance(function, dict):
            function = call
        names = {"name": _text(function, "name") or "", "id": _text(call, "id")}
        arguments = json_or_text(function.get("arguments", function.get("args")) or {})
        if isinstance(arguments, dict):
            good.append({**names, "args": arguments, "type": "tool_call"})
        else:
            unread = {"args": str(arguments), "error": None, "type": "invalid_tool_call"}
            bad.append({**names, **unread})
    return {"tool_calls": good, "invalid_tool_calls": bad}


def _calls_of(message: dict[str, Any], function_id: str) -> list[Any]:
    """Return the calls that a message of a model requests, in OpenAI's form or LangChain's."""
    if isinstance(calls := message.get("tool_calls"), list) and calls:
        return calls
    if isinstance(function := message.get("function_call"), dict):
        return [{"id": function_id, "function": function}]
    return [
        {"id": block.get("id"), "name": block.get("name"), "args": block.get("input")}
        for block in _blocks(message, "tool_use")
    ]


def _with_calls(message: dict[str, Any], calls: list[Any]) -> BaseMessage:
    own = {key: message[key] for key in message if key not in ("tool_calls", "function_call")}
    (read,) = convert_to_messages([{**own, "content": content_of(message)}])
    fields = tool_call_fields(calls)
    names = [call["name"] for call in (*fields["tool_calls"], *fields["invalid_tool_calls"])]
    if len(names) < len(calls) or not all(names):
        raise ValueError("a tool call without a name")
    return read.model_copy(update=fields)


def _tool_message(holder: dict[str, Any], call_id: str) -> ToolMessage:
    status = "error" if holder.get("is_error") is True else "success"
    name = _text(holder, "name")
    return ToolMessage(content_of(holder), tool_call_id=call_id, name=name, status=status)


def _blocks(message: dict[str, Any], kind: str) -> list[dict[str, Any]]:
    content = message.get("content")
    blocks = content if isinstance(content, list) else ()
    return [one for one in blocks if isinstance(one, dict) and one.get("type") == kind]


def content_of(holder: Mapping[str, Any]) -> Any:
    """Return the content of a message or block in a form that LangChain's messages can have."""
    content = holder.get("content")
    if isinstance(content, list) and all(isinstance(part, str | dict) for part in content):
        return content
    return content if isinstance(content, str) else "" if content is None else str(content)


def _text(holder: Mapping[str, Any], key: str) -> str | None:
    value = holder.get(key)
    return value if isinstance(value, str) else None
