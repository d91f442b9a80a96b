"""LangChain's values from the JSON that tracers make of them: messages, documents, whole calls."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from contextlib import suppress
from types import SimpleNamespace
from typing import Any, Final

from langchain_core.documents import Document
from langchain_core.messages import (
    AIMessage,
    AIMessageChunk,
    BaseMessage,
    HumanMessage,
    HumanMessageChunk,
    SystemMessage,
    ToolMessage,
)

from kp_langchain.importing.recorded_run import ModelAnswer, RecordedCall, mapping_of, text_of
from kp_langchain.recording.from_messages import content_of, tool_call_fields

_CLASSES: Final[Mapping[str, type[BaseMessage]]] = {
    kind.__name__: kind
    for kind in (
        AIMessage,
        AIMessageChunk,
        HumanMessage,
        HumanMessageChunk,
        SystemMessage,
        ToolMessage,
    )
}
_TYPES: Final[Mapping[str, type[BaseMessage]]] = {
    kind.model_fields["type"].default: kind for kind in _CLASSES.values()
}
_ROLES: Final[Mapping[str, type[BaseMessage]]] = {
    "assistant": AIMessage,
    "ai": AIMessage,
    "model": AIMessage,
    "system": SystemMessage,
    "developer": SystemMessage,
    "tool": ToolMessage,
    "function": ToolMessage,
}
_FIELDS: Final = (
    "additional_kwargs", "response_metadata", "name", "id", "tool_calls", "invalid_tool_calls",
    "tool_call_id", "status",
)  # fmt: skip
_COMMAND: Final = frozenset({"graph", "update", "resume", "goto"})
_MAX_DEPTH = 60


def restore(value: Any, depth: int = 0) -> Any:
    """Return a value with the messages, documents and commands in it as objects again.

    Three forms of a message are known: LangChain's serialised constructor, its `message_to_dict`,
    and the fields of the object.

    Args:
        value: What JSON holds.
        depth: Levels of nesting above it.
    """
    if depth >= _MAX_DEPTH:
        return value
    if isinstance(value, list):
        return [restore(item, depth + 1) for item in value]
    if not isinstance(value, dict):
        return value
    if (message := message_in(value)) is not None:
        return message
    arguments: Any = value
    name = value.get("type")
    if value.get("lc") == 1 and "id" in value:
        arguments, name = value.get("kwargs"), _class_name(value)
        if not isinstance(arguments, dict):
            return value.get("repr") or value
    if name == "Document" and isinstance(page := arguments.get("page_content"), str):
        return Document(page)
    fields = {key: restore(item, depth + 1) for key, item in arguments.items()}
    return SimpleNamespace(**fields) if set(fields) == _COMMAND else fields


def message_in(value: Any) -> BaseMessage | None:
    """Return the message that a value is in one of LangChain's own forms; None if it is none."""
    if not isinstance(value, dict):
        return None
    if value.get("lc") == 1:
        kind, fields = _CLASSES.get(_class_name(value)), value.get("kwargs")
    else:
        kind, fields = _TYPES.get(text_of(value.get("type"))), value.get("data")
        if "additional_kwargs" in value or "response_metadata" in value:
            fields = value
    if kind is None or not isinstance(fields, dict) or "content" not in fields:
        return None
    return _message(kind, fields)


def message_of_role(role: object, content: Any, **fields: Any) -> BaseMessage:
    """Return a message by the role that OpenAI and others give it; unknown roles are a user's."""
    kind = _ROLES.get(text_of(role).lower(), HumanMessage)
    return _message(kind, {"content": content, **fields})


def _class_name(value: Mapping[str, Any]) -> str:
    """Return the name of the class whose serialised constructor a value is; "" if it is none."""
    path = value.get("id")
    return text_of(path[-1]) if isinstance(path, list) and path else ""


def _message(kind: type[BaseMessage], fields: Mapping[str, Any]) -> BaseMessage:
    """Return a message with its known fields; without them, if one of them cannot be used."""
    minimum: dict[str, Any] = {"tool_call_id": ""} if kind is ToolMessage else {}
    usable = dict(minimum)
    for name in _FIELDS:
        if name in kind.model_fields and fields.get(name) is not None:
            usable[name] = fields[name]
    content = content_of(fields)
    try:
        message = kind(content=content, **usable)
    except (ValueError, TypeError, AttributeError, KeyError, RecursionError):
        return kind(content=content, **minimum)
    if isinstance(message, AIMessage):
        message.usage_metadata = fields.get("usage_metadata")  # read with care, whatever it is
    return message


def openai_message(value: Any) -> BaseMessage | None:
    """Return the message that a dictionary in OpenAI's form describes; None if it is none."""
    if not isinstance(value, dict) or not isinstance(value.get("role"), str):
        return None
    content = value.get("content") or value.get("refusal") or ""
    fields: dict[str, Any] = {
        name: value[name] for name in ("name", "tool_call_id", "status", "id") if name in value
    }
    if calls := value.get("tool_calls"):
        fields |= tool_call_fields(calls)
    return message_of_role(value["role"], content, **fields)


# ------------------------------------------------------------------ calls


def chain_value(value: Any, wrapper: str) -> Any:
    """Return the inputs or outputs of a chain.

    Args:
        value: What was written.
        wrapper: The key under which tracers write what is no mapping: `input`, `query`, `output`.
    """
    if isinstance(value, dict) and set(value) == {wrapper}:
        value = value[wrapper]
    return restore(value)


def model_inputs(value: Any) -> list[Any]:
    """Return the messages or prompts that a model was given."""
    if isinstance(value, dict) and "prompts" in value:
        value = value["prompts"]
    elif isinstance(value, dict) and isinstance(value.get("messages"), list):
        messages = value["messages"]
        if messages and isinstance(messages[0], list):  # LangChain writes a batch of one
            messages = messages[0]
        return [openai_message(one) or restore(one) for one in messages]
    value = restore(value)
    return value if isinstance(value, list) else [] if value is None else [value]


def model_answer(value: Any) -> ModelAnswer:
    """Return a model's answer from LangChain's generations, OpenAI's choices, or a message."""
    if isinstance(value, dict):
        generation = _first(value.get("generations"))
        if generation is not None:
            message, text = message_in(generation.get("message")), text_of(generation.get("text"))
            info, details = generation.get("generation_info"), value.get("llm_output")
            return ModelAnswer(message, text, mapping_of(info), mapping_of(details))
        choice = _first(value.get("choices"))
        if choice is not None:
            message = openai_message(choice.get("message"))
            reason = choice.get("finish_reason")
            if message is not None and isinstance(reason, str):
                message.response_metadata = {"finish_reason": reason}
            details = {"token_usage": value.get("usage"), "model_name": value.get("model")}
            return ModelAnswer(message, text_of(choice.get("text")), details=details)
        if set(value) in ({"output"}, {"message"}):
            value = next(iter(value.values()))
    message = message_in(value) or openai_message(value)
    if message is not None:
        return ModelAnswer(message)
    return ModelAnswer(None, text_of(value))


def _first(items: Any) -> Mapping[str, Any] | None:
    while isinstance(items, list) and items:
        items = items[0]
    return items if isinstance(items, dict) else None


def tool_inputs(value: Any) -> Any:
    """Return what a tool was given; older tracers wrote the text of a dictionary."""
    if not (isinstance(value, dict) and set(value) == {"input"}):
        return value
    text = value["input"]
    if isinstance(text, str) and text.startswith("{'") and text.endswith("}"):
        with suppress(ValueError, SyntaxError, MemoryError, RecursionError):
            return ast.literal_eval(text)
    return text


def documents_in(value: Any) -> Any:
    """Return what a retriever returned."""
    documents = value.get("documents") if isinstance(value, dict) else None
    if not isinstance(documents, list):
        return chain_value(value, "output")
    pages = [one.get("page_content") if isinstance(one, dict) else None for one in documents]
    return [
        Document(page) if isinstance(page, str) else restore(one)
        for page, one in zip(pages, documents, strict=True)
    ]


def set_values(call: RecordedCall, inputs: Any, outputs: Any) -> None:
    """Set a call's inputs and output from what LangChain's tracers write of them."""
    match call.kind:
        case "model":
            call.inputs, call.output = model_inputs(inputs), model_answer(outputs)
        case "tool":
            call.inputs, call.output = tool_inputs(inputs), chain_value(outputs, "output")
        case "retriever":
            call.inputs, call.output = chain_value(inputs, "query"), documents_in(outputs)
        case "chain":
            call.inputs = chain_value(inputs, "input")
            call.output = chain_value(outputs, "output")
