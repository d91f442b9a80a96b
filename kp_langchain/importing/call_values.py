"""What LangChain's tracers write of a call's inputs and outputs, as LangChain's own values."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from typing import Any

from kp_langchain.importing.langchain_values import message_in, openai_message, restore
from kp_langchain.importing.recorded_run import ModelAnswer, RecordedCall, RecordedKind


def chain_value(value: Any, wrapper: str) -> Any:
    """Return the inputs or outputs of a chain.

    Args:
        value: What was written.
        wrapper: The key under which tracers write what is not a mapping: `input` or `output`.
    """
    if isinstance(value, dict) and set(value) == {wrapper}:
        value = value[wrapper]
    return restore(value)


def model_inputs(value: Any) -> Any:
    """Return the messages or prompts that a model was given."""
    if not isinstance(value, dict):
        return restore(value)
    if "prompts" in value:
        return value["prompts"]
    messages = value.get("messages")
    if not isinstance(messages, list):
        return restore(value)
    if messages and isinstance(messages[0], list):  # LangChain writes a batch of one
        messages = messages[0]
    return [openai_message(one) or restore(one) for one in messages]


def model_answer(value: Any) -> ModelAnswer:
    """Return a model's answer from LangChain's generations, OpenAI's choices, or a message."""
    if isinstance(value, dict):
        generation = _first(value.get("generations"))
        if generation is not None:
            return _of_generation(generation)
        choice = _first(value.get("choices"))
        if choice is not None:
            message = openai_message(choice.get("message"))
            reason = choice.get("finish_reason")
            if message is not None and isinstance(reason, str):
                message.response_metadata = {"finish_reason": reason}
            return ModelAnswer(message, _text(choice.get("text")))
        if set(value) in ({"output"}, {"message"}):
            value = next(iter(value.values()))
    message = message_in(value) or openai_message(value)
    if message is not None:
        return ModelAnswer(message)
    return ModelAnswer(None, _text(value))


def _of_generation(generation: Mapping[str, Any]) -> ModelAnswer:
    message = message_in(generation.get("message"))
    info = generation.get("generation_info")
    return ModelAnswer(
        message, _text(generation.get("text")), info if isinstance(info, dict) else {}
    )


def _first(items: Any) -> Mapping[str, Any] | None:
    while isinstance(items, list) and items:
        items = items[0]
    return items if isinstance(items, dict) else None


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""


def tool_inputs(value: Any) -> Any:
    """Return what a tool was given; older tracers wrote the text of a dictionary."""
    if isinstance(value, dict) and set(value) == {"input"}:
        text = value["input"]
        if isinstance(text, str) and text.startswith("{'") and text.endswith("}"):
            try:
                inputs = ast.literal_eval(text)
            except (ValueError, SyntaxError, MemoryError, RecursionError):
                return text
            return inputs if isinstance(inputs, dict) else text
        return text
    return value


def call_output(kind: RecordedKind, value: Any) -> Any:
    """Return what a tool or retriever returned."""
    if isinstance(value, dict) and len(value) == 1 and kind == "retriever" and "documents" in value:
        return [_document(one) for one in value["documents"]] if _is_list(value) else None
    return chain_value(value, "output")


def _is_list(value: Mapping[str, Any]) -> bool:
    return isinstance(value["documents"], list)


def _document(value: Any) -> Any:
    page = value.get("page_content") if isinstance(value, dict) else None
    return restore({"page_content": page, "type": "Document"} if isinstance(page, str) else value)


def set_tool_call_ids(calls: list[RecordedCall]) -> None:
    """Give each tool call the id that its own output names, where the file does not name it.

    Args:
        calls: The calls of one run; changed.
    """
    for call in calls:
        if call.kind == "tool" and call.tool_call_id is None:
            call_id = getattr(call.output, "tool_call_id", None)
            call.tool_call_id = call_id if isinstance(call_id, str) and call_id else None
