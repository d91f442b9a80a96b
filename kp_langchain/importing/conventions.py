"""What the attributes of spans say of an agent's run, by two conventions.

OpenInference: what Phoenix, Arize and its instrumentations write. GenAI: OpenTelemetry's
conventions for generative AI, and what OpenLLMetry and LangSmith add to them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final
from uuid import UUID

from kp_langchain.importing.langchain_values import (
    chain_value,
    documents_in,
    message_of_role,
    model_answer,
    model_inputs,
    openai_message,
    restore,
    set_values,
)
from kp_langchain.importing.recorded_run import (
    ModelAnswer,
    RecordedCall,
    RecordedKind,
    error_in_text,
    list_of,
    mapping_of,
    text_of,
)
from kp_langchain.importing.spans import Convention, Span, error_of_span, unflatten
from kp_langchain.recording.from_messages import tool_call_fields
from kp_langchain.text import json_or_text, read_json

# ------------------------------------------------------------------ OpenInference

_OPENINFERENCE_KIND = "openinference.span.kind"
_OPENINFERENCE_KINDS: Final[Mapping[str, RecordedKind]] = {
    "LLM": "model",
    "TOOL": "tool",
    "RETRIEVER": "retriever",
}


def _is_openinference(span: Span) -> bool:
    return bool(span.text(_OPENINFERENCE_KIND))


def _set_openinference_call(span: Span, call: RecordedCall) -> None:
    call.kind = _openinference_kind(span)
    if call.kind == "tool":
        call.name = span.text("tool.name") or span.name
    call.metadata = mapping_of(span.attributes.get("metadata"))
    call.tags = list_of(span.attributes.get("tag.tags"))
    inputs, output = _read_value(span, "input"), _read_value(span, "output")
    call.error = error_of_span(span, has_output="output.value" in span.attributes)
    if call.kind == "model":
        call.inputs, call.output = _model_inputs(span, inputs), _model_answer(span, output)
    elif call.kind == "tool":
        call.inputs, call.output = inputs, chain_value(output, "output")
    else:
        set_values(call, inputs, output)


def _openinference_kind(span: Span) -> RecordedKind:
    kind = span.text(_OPENINFERENCE_KIND).upper()
    if kind == "AGENT":  # LangChain's instrumentation calls everything so that has such a name
        if "tool.name" in span.attributes:
            return "tool"
        if "llm.invocation_parameters" in span.attributes or "llm.model_name" in span.attributes:
            return "model"
    return _OPENINFERENCE_KINDS.get(kind, "chain")


def _read_value(span: Span, name: str) -> Any:
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
    messages = _numbered_messages(span, "llm.input_messages")
    if messages:
        return messages
    return value if isinstance(value, list) else [] if value is None else [value]


def _model_answer(span: Span, value: Any) -> ModelAnswer:
    answer = model_answer(value)
    if answer.message is None and (messages := _numbered_messages(span, "llm.output_messages")):
        return ModelAnswer(messages[0], answer.text, answer.info)
    return answer


def _numbered_messages(span: Span, prefix: str) -> list[Any]:
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


OPENINFERENCE: Final = Convention("phoenix", _is_openinference, _set_openinference_call)


# ------------------------------------------------------------------ GenAI

_OPERATION = "gen_ai.operation.name"
_GENAI_KINDS: Final[Mapping[str, RecordedKind]] = {
    "chat": "model",
    "completion": "model",
    "generate_content": "model",
    "text_completion": "model",
    "execute_tool": "tool",
    "retrieval": "retriever",
    "vector_db_retrieve": "retriever",
}
_LANGSMITH_KINDS: Final[Mapping[str, RecordedKind]] = {
    "llm": "model",
    "tool": "tool",
    "retriever": "retriever",
}
_LANGSMITH_METADATA = "langsmith.metadata."
_RUN_IDS = ("gen_ai.agent.id", "gen_ai.task.id")


def _is_genai(span: Span) -> bool:
    names = (_OPERATION, "traceloop.span.kind", "langsmith.span.kind")
    return any(span.text(name) for name in names)


def _set_genai_call(span: Span, call: RecordedCall) -> None:
    if kind := span.text("langsmith.span.kind"):
        call.kind = _LANGSMITH_KINDS.get(kind, "chain")
        _set_by_langsmith(span, call)
        return
    call.kind = _genai_kind(span)
    if call.kind == "tool":
        call.name = span.text("gen_ai.tool.name") or span.text("traceloop.entity.name") or span.name
        call.tool_call_id = span.text("gen_ai.tool.call.id") or None
    elif call.kind == "chain":
        name = span.text("traceloop.entity.name") or span.text("gen_ai.agent.name")
        call.name = name or span.name
    elif call.kind == "retriever":
        name = span.text("traceloop.entity.name") or span.text("gen_ai.data_source.id")
        call.name = name or span.name
    _set_genai_values(span, call)


def _genai_kind(span: Span) -> RecordedKind:
    kind = _GENAI_KINDS.get(span.text(_OPERATION))
    if kind is None and span.text("traceloop.span.kind") == "tool":
        return "tool"
    return kind or "chain"


def _set_by_langsmith(span: Span, call: RecordedCall) -> None:
    """Set what LangSmith's own exporter writes: the inputs and outputs of its run, as JSON."""
    call.name = span.text("gen_ai.tool.name") or span.text("langsmith.trace.name") or span.name
    call.tool_call_id = span.text("gen_ai.tool.call.id") or None
    call.metadata = {
        name.removeprefix(_LANGSMITH_METADATA): value
        for name, value in span.attributes.items()
        if name.startswith(_LANGSMITH_METADATA)
    }
    call.tags = [tag for tag in span.text("langsmith.span.tags").split(", ") if tag]
    outputs = span.attributes.get("gen_ai.completion")
    # The status is of no use: the exporter calls a span good before the run has ended.
    error = error_of_span(span, has_output=False)
    # Its exporter wraps the text that LangSmith has of the error.
    call.error = error and error_in_text(error.message)
    set_values(call, json_or_text(span.attributes.get("gen_ai.prompt")), json_or_text(outputs))


def _set_genai_values(span: Span, call: RecordedCall) -> None:
    # OpenLLMetry writes the arguments and the results of its callbacks.
    arguments = mapping_of(span.attributes.get("traceloop.entity.input"))
    results = mapping_of(span.attributes.get("traceloop.entity.output"))
    call.metadata, call.tags = mapping_of(arguments.get("metadata")), list_of(arguments.get("tags"))
    has_output = bool(results) or any(
        name in span.attributes for name in ("gen_ai.output.messages", "gen_ai.tool.call.result")
    )
    call.error = error_of_span(span, has_output=has_output)
    match call.kind:
        case "model":
            call.inputs = _genai_messages(span, "gen_ai.input.messages") or _legacy(span, "prompt")
            answers = _genai_messages(span, "gen_ai.output.messages") or _legacy(span, "completion")
            call.output = ModelAnswer(answers[0] if answers else None)
        case "tool":
            call.inputs = json_or_text(span.attributes.get("gen_ai.tool.call.arguments"))
            if "input_str" in arguments:
                inputs, options = arguments.get("inputs"), mapping_of(arguments.get("kwargs"))
                call.inputs = arguments["input_str"] if inputs is None else inputs
                call_id = call.tool_call_id or text_of(options.get("tool_call_id"))
                call.tool_call_id = call_id or None
            result = json_or_text(span.attributes.get("gen_ai.tool.call.result"))
            call.output = restore(results.get("output", result))
        case "retriever":
            query = span.attributes.get("gen_ai.retrieval.query.text")
            call.inputs = arguments.get("query", query)
            documents = json_or_text(span.attributes.get("gen_ai.retrieval.documents"))
            call.output = documents_in({"documents": results.get("documents", documents)})
        case "chain":
            call.inputs = _chain_value(span, "gen_ai.input.messages", arguments, "input")
            call.output = _chain_value(span, "gen_ai.output.messages", results, "output")


def _chain_value(span: Span, name: str, values: Mapping[str, Any], wrapper: str) -> Any:
    if f"{wrapper}s" in values:
        return chain_value(values[f"{wrapper}s"], wrapper)
    messages = _genai_messages(span, name)
    return {"messages": messages} if messages else None


def _genai_messages(span: Span, name: str) -> list[Any]:
    """Return the messages of an attribute: JSON, or OTLP's own lists and mappings."""
    items = list_of(json_or_text(span.attributes.get(name)))
    return [one for item in items if isinstance(item, dict) for one in _of_parts(item)]


def _of_parts(item: Mapping[str, Any]) -> list[Any]:
    """Return the messages that one item is: each result of a tool is a message of its own."""
    parts = item.get("parts")
    if not isinstance(parts, list):
        return [message_of_role(item.get("role"), item.get("content"))]
    blocks: list[dict[str, Any]] = []
    calls: list[dict[str, Any]] = []
    results: list[Any] = []
    for part in map(mapping_of, parts):
        kind, content = part.get("type"), part.get("content")
        if kind == "text" and isinstance(content, str):
            blocks.append({"type": "text", "text": content})
        elif kind == "reasoning" and isinstance(content, str):
            blocks.append({"type": "reasoning", "reasoning": content})
        elif kind == "tool_call":
            calls.append(part)
        elif kind == "tool_call_response":
            response = part.get("response", part.get("result", ""))
            text = response if isinstance(response, str) else json.dumps(response)
            results.append(message_of_role("tool", text, tool_call_id=part.get("id")))
    if results and not blocks and not calls:
        return results
    fields: dict[str, Any] = tool_call_fields(calls)
    if reason := text_of(item.get("finish_reason")):
        fields["response_metadata"] = {"finish_reason": reason}
    is_text = len(blocks) == 1 and blocks[0]["type"] == "text"
    content = blocks[0]["text"] if is_text else blocks or ""
    return [message_of_role(item.get("role"), content, **fields), *results]


def _legacy(span: Span, name: str) -> list[Any]:
    """Return the messages of the numbered attributes that OpenLLMetry wrote earlier."""
    items = unflatten(span.attributes, f"gen_ai.{name}")
    messages = [openai_message(one | {"role": one.get("role") or "assistant"}) for one in items]
    return [message for message in messages if message is not None]


def _genai_run_id(span: Span) -> UUID | None:
    """Return the id of LangChain's run, where an exporter writes it."""
    if span.text("langsmith.span.kind"):
        # LangSmith makes the trace's id, and that of a span above the root, of the root run's.
        return UUID(span.trace_id) if span.trace_id.startswith(span.parent_id or "-") else None
    if not span.text("traceloop.span.kind"):
        return None  # elsewhere an agent's id is the same for all its runs
    for name in _RUN_IDS:
        try:
            return UUID(span.text(name))
        except ValueError:
            continue
    return None


GENAI: Final = Convention("opentelemetry", _is_genai, _set_genai_call, _genai_run_id)
