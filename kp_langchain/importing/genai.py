"""OpenTelemetry's conventions for generative AI, and what OpenLLMetry and LangSmith add to them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final
from uuid import UUID

from kp_langchain.importing.call_values import call_output, chain_value
from kp_langchain.importing.errors import error_in_text
from kp_langchain.importing.langchain_values import message_of_role, openai_message, restore
from kp_langchain.importing.langsmith_runs import set_values
from kp_langchain.importing.otlp_json import Span
from kp_langchain.importing.recorded_run import ModelAnswer, RecordedCall, RecordedKind
from kp_langchain.importing.span_calls import Convention, error_of_span, unflatten
from kp_langchain.json_text import json_or_text
from kp_langchain.recording.from_messages import tool_call_fields

_OPERATION = "gen_ai.operation.name"
_KINDS: Final[Mapping[str, RecordedKind]] = {
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


def _describes(span: Span) -> bool:
    names = (_OPERATION, "traceloop.span.kind", "langsmith.span.kind")
    return any(span.text(name) for name in names)


def _set_call(span: Span, call: RecordedCall) -> None:
    if kind := span.text("langsmith.span.kind"):
        call.kind = _LANGSMITH_KINDS.get(kind, "chain")
        _set_by_langsmith(span, call)
        return
    call.kind = _kind(span)
    if call.kind == "tool":
        call.name = span.text("gen_ai.tool.name") or span.text("traceloop.entity.name") or span.name
        call.tool_call_id = span.text("gen_ai.tool.call.id") or None
    elif call.kind == "chain":
        name = span.text("traceloop.entity.name") or span.text("gen_ai.agent.name")
        call.name = name or span.name
    elif call.kind == "retriever":
        name = span.text("traceloop.entity.name") or span.text("gen_ai.data_source.id")
        call.name = name or span.name
    _set_values(span, call)


def _kind(span: Span) -> RecordedKind:
    kind = _KINDS.get(span.text(_OPERATION))
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


def _set_values(span: Span, call: RecordedCall) -> None:
    entity_input = json_or_text(span.attributes.get("traceloop.entity.input"))
    entity_output = json_or_text(span.attributes.get("traceloop.entity.output"))
    given = entity_input if isinstance(entity_input, dict) else {}
    metadata = given.get("metadata")
    call.metadata = metadata if isinstance(metadata, dict) else {}
    tags = given.get("tags")
    call.tags = tags if isinstance(tags, list) else []
    returned = entity_output if isinstance(entity_output, dict) else {}
    has_output = bool(returned) or any(
        name in span.attributes for name in ("gen_ai.output.messages", "gen_ai.tool.call.result")
    )
    call.error = error_of_span(span, has_output=has_output)
    match call.kind:
        case "model":
            call.inputs = _messages(span, "gen_ai.input.messages") or _legacy(span, "prompt")
            answers = _messages(span, "gen_ai.output.messages") or _legacy(span, "completion")
            call.output = ModelAnswer(answers[0]) if answers else ModelAnswer(None)
        case "tool":
            _set_tool_values(span, call, given, returned)
        case "retriever":
            query = given.get("query", span.attributes.get("gen_ai.retrieval.query.text"))
            call.inputs = query
            documents = returned.get(
                "documents", json_or_text(span.attributes.get("gen_ai.retrieval.documents"))
            )
            call.output = call_output("retriever", {"documents": documents})
        case "chain":
            messages = _messages(span, "gen_ai.input.messages")
            call.inputs = {"messages": messages} if messages else None
            if "inputs" in given:
                call.inputs = chain_value(given["inputs"], "input")
            answers = _messages(span, "gen_ai.output.messages")
            call.output = {"messages": answers} if answers else None
            if "outputs" in returned:
                call.output = chain_value(returned["outputs"], "output")


def _set_tool_values(
    span: Span, call: RecordedCall, given: Mapping[str, Any], returned: Mapping[str, Any]
) -> None:
    if "input_str" in given:  # OpenLLMetry writes the arguments of its callback
        inputs = given.get("inputs")
        call.inputs = given["input_str"] if inputs is None else inputs
        options = given.get("kwargs")
        call_id = options.get("tool_call_id") if isinstance(options, dict) else None
        call.tool_call_id = call.tool_call_id or (call_id if isinstance(call_id, str) else None)
    else:
        call.inputs = json_or_text(span.attributes.get("gen_ai.tool.call.arguments"))
    if "output" in returned:
        call.output = restore(returned["output"])
    else:
        call.output = restore(json_or_text(span.attributes.get("gen_ai.tool.call.result")))


def _messages(span: Span, name: str) -> list[Any]:
    """Return the messages of an attribute: JSON, or OTLP's own lists and mappings."""
    items = json_or_text(span.attributes.get(name))
    messages: list[Any] = []
    for item in items if isinstance(items, list) else ():
        if isinstance(item, dict):
            messages.extend(_of_parts(item))
    return messages


def _of_parts(item: Mapping[str, Any]) -> list[Any]:
    """Return the messages that one entry is: each result of a tool is a message of its own."""
    parts = item.get("parts")
    if not isinstance(parts, list):
        return [message_of_role(item.get("role"), item.get("content"))]
    blocks: list[dict[str, Any]] = []
    calls: list[dict[str, Any]] = []
    results: list[Any] = []
    for part in parts:
        kind = part.get("type") if isinstance(part, dict) else None
        content = part.get("content") if isinstance(part, dict) else None
        if kind == "text" and isinstance(content, str):
            blocks.append({"type": "text", "text": content})
        elif kind == "reasoning" and isinstance(content, str):
            blocks.append({"type": "reasoning", "reasoning": content})
        elif kind == "tool_call":
            calls.append(part)
        elif kind == "tool_call_response":
            response = part.get("response", part.get("result"))
            content = (
                response
                if isinstance(response, str)
                else ""
                if response is None
                else [
                    response
                    if isinstance(response, dict)
                    else {"type": "text", "text": str(response)}
                ]
            )
            results.append(message_of_role("tool", content, tool_call_id=part.get("id")))
    if results and not blocks and not calls:
        return results
    is_text = len(blocks) == 1 and blocks[0]["type"] == "text"
    fields: dict[str, Any] = tool_call_fields(calls)
    if isinstance(reason := item.get("finish_reason"), str) and reason:
        fields["response_metadata"] = {"finish_reason": reason}
    content = blocks[0]["text"] if is_text else blocks or ""
    return [message_of_role(item.get("role"), content, **fields), *results]


def _legacy(span: Span, name: str) -> list[Any]:
    """Return the messages of the attributes that earlier versions of the convention had."""
    items = unflatten(span.attributes, f"gen_ai.{name}")
    messages = [
        openai_message(_with_functions(item))
        for item in (items if isinstance(items, list) else ())
        if isinstance(item, dict)
    ]
    return [message for message in messages if message is not None]


def _with_functions(item: Mapping[str, Any]) -> dict[str, Any]:
    return {**item, "role": item.get("role") or "assistant"}


def _run_id(span: Span) -> UUID | None:
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


GENAI: Final = Convention("opentelemetry", _describes, _set_call, _run_id)
