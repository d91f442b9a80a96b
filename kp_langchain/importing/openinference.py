"""OpenInference: what Phoenix, Arize and its instrumentations write into spans."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from kp_langchain.importing.langchain_values import (
    chain_value,
    model_answer,
    model_inputs,
    openai_message,
    set_values,
)
from kp_langchain.importing.recorded_run import (
    ModelAnswer,
    RecordedCall,
    RecordedKind,
    list_of,
    mapping_of,
)
from kp_langchain.importing.spans import Convention, Span, error_of_span, unflatten
from kp_langchain.text import read_json

_KIND = "openinference.span.kind"
_KINDS: Final[Mapping[str, RecordedKind]] = {
    "LLM": "model",
    "TOOL": "tool",
    "RETRIEVER": "retriever",
}


def _describes(span: Span) -> bool:
    return bool(span.text(_KIND))


def _set_call(span: Span, call: RecordedCall) -> None:
    call.kind = _kind(span)
    if call.kind == "tool":
        call.name = span.text("tool.name") or span.name
    call.metadata = mapping_of(span.attributes.get("metadata"))
    call.tags = list_of(span.attributes.get("tag.tags"))
    inputs, output = _value(span, "input"), _value(span, "output")
    call.error = error_of_span(span, has_output="output.value" in span.attributes)
    if call.kind == "model":
        call.inputs, call.output = _model_inputs(span, inputs), _model_answer(span, output)
    elif call.kind == "tool":
        call.inputs, call.output = inputs, chain_value(output, "output")
    else:
        set_values(call, inputs, output)


def _kind(span: Span) -> RecordedKind:
    kind = span.text(_KIND).upper()
    if kind == "AGENT":  # LangChain's instrumentation calls everything so that has such a name
        if "tool.name" in span.attributes:
            return "tool"
        if "llm.invocation_parameters" in span.attributes or "llm.model_name" in span.attributes:
            return "model"
    return _KINDS.get(kind, "chain")


def _value(span: Span, name: str) -> Any:
    text = span.attributes.get(f"{name}.value")
    if isinstance(text, str) and span.text(f"{name}.mime_type") == "application/json":
        try:
            return read_json(text)
        except ValueError:
            return text
    return text


def _model_inputs(span: Span, value: Any) -> Any:
    if isinstance(value, dict) and ("messages" in value or "prompts" in value):
        return model_inputs(value)
    messages = _messages(span, "llm.input_messages")
    if messages:
        return messages
    return value if isinstance(value, list) else [] if value is None else [value]


def _model_answer(span: Span, value: Any) -> ModelAnswer:
    answer = model_answer(value)
    if answer.message is None and (messages := _messages(span, "llm.output_messages")):
        return ModelAnswer(messages[0], answer.text, answer.info)
    return answer


def _messages(span: Span, prefix: str) -> list[Any]:
    """Return the messages whose parts are attributes of their own."""
    messages = []
    for item in unflatten(span.attributes, prefix):
        fields = mapping_of(item.get("message"))
        content: Any = fields.get("content")
        if content is None:
            parts = [_part(one, "message_content") for one in list_of(fields.get("contents"))]
            texts = [part["text"] for part in parts if isinstance(part.get("text"), str)]
            content = [{"type": "text", "text": text} for text in texts]
        calls = [_part(one, "tool_call") for one in list_of(fields.get("tool_calls"))]
        calls = [call for call in calls if call]
        message = openai_message({**fields, "content": content, "tool_calls": calls})
        if message is not None:
            messages.append(message)
    return messages


def _part(item: object, name: str) -> dict[str, Any]:
    return mapping_of(mapping_of(item).get(name))


OPENINFERENCE: Final = Convention("phoenix", _describes, _set_call)
