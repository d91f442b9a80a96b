"""What the attributes of spans say of an agent's run, by three conventions.

OpenInference: what Phoenix, Arize and its instrumentation of LangChain write. GenAI:
OpenTelemetry's conventions for generative AI, and what OpenLLMetry adds to them. LangSmith: what
its own exporter writes.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from itertools import count, takewhile
from typing import Any, Final
from uuid import UUID

from kp_langchain.importing.langchain_values import (
    chain_value,
    documents_in,
    message_of_role,
    restore,
    set_values,
)
from kp_langchain.importing.recorded_run import (
    ModelAnswer,
    RecordedCall,
    RecordedKind,
    error_in_text,
    kind_of,
    list_of,
    mapping_of,
    text_of,
    uuid_of,
)
from kp_langchain.importing.spans import Convention, Span
from kp_langchain.recording.from_messages import tool_call_fields
from kp_langchain.text import json_or_text, read_json

# ------------------------------------------------------------------ the usage of a model

_INPUT, _OUTPUT = "gen_ai.usage.input_tokens", "gen_ai.usage.output_tokens"
# Which attributes say it, the first that is there.
_TOKENS: Final[Mapping[str, tuple[str, ...]]] = {
    "input_tokens": ("llm.token_count.prompt", _INPUT, "gen_ai.usage.prompt_tokens"),
    "output_tokens": ("llm.token_count.completion", _OUTPUT, "gen_ai.usage.completion_tokens"),
}
_INPUT_DETAILS: Final[Mapping[str, tuple[str, ...]]] = {
    "cache_read": (
        "llm.token_count.prompt_details.cache_read",
        "gen_ai.usage.cache_read.input_tokens",
        "gen_ai.usage.cache_read_input_tokens",
    ),
    "cache_creation": (
        "llm.token_count.prompt_details.cache_write",
        "gen_ai.usage.cache_creation.input_tokens",
        "gen_ai.usage.cache_creation_input_tokens",
    ),
}
_OUTPUT_DETAILS: Final[Mapping[str, tuple[str, ...]]] = {
    "reasoning": (
        "llm.token_count.completion_details.reasoning",
        "gen_ai.usage.reasoning.output_tokens",
        "gen_ai.usage.reasoning_tokens",
    ),
}


def _set_usage(span: Span, call: RecordedCall) -> None:
    """Set which model answered, and its tokens, where the answer itself does not have them."""
    if not isinstance(call.output, ModelAnswer):
        return
    model = span.text("gen_ai.response.model", "llm.model_name", "gen_ai.request.model")
    usage: dict[str, Any] = _numbers(span, _TOKENS)
    if usage:
        usage["input_token_details"] = _numbers(span, _INPUT_DETAILS)
        usage["output_token_details"] = _numbers(span, _OUTPUT_DETAILS)
    of_span = {"model_name": model, "token_usage": usage}
    details = {**call.output.details, **{name: one for name, one in of_span.items() if one}}
    call.output = replace(call.output, details=details)


def _numbers(span: Span, names: Mapping[str, tuple[str, ...]]) -> dict[str, int]:
    numbers = {}
    for key, attributes in names.items():
        values = (span.attributes.get(name) for name in attributes)
        number = next((one for one in values if type(one) is int), None)
        if number is not None:
            numbers[key] = number
    return numbers


# ------------------------------------------------------------------ OpenInference

_OPENINFERENCE_KIND = "openinference.span.kind"


def _set_openinference_call(span: Span, call: RecordedCall) -> None:
    call.kind = _openinference_kind(span)
    call.metadata = mapping_of(span.attributes.get("metadata"))
    call.tags = list_of(span.attributes.get("tag.tags"))
    call.error = span.error(has_output="output.value" in span.attributes)
    inputs, output = _value_of(span, "input"), _value_of(span, "output")
    set_values(call, inputs, output)
    if call.kind == "model":
        call.tools = _openinference_tools(span)
    if call.kind == "tool":
        call.name = span.text("tool.name") or span.name
        call.inputs = inputs  # not the text of a mapping, as in LangSmith
    _set_usage(span, call)


def _openinference_kind(span: Span) -> RecordedKind:
    kind = span.text(_OPENINFERENCE_KIND)
    # LangChain's instrumentation calls everything an agent that has such a name.
    if kind.upper() == "AGENT":
        if "tool.name" in span.attributes:
            return "tool"
        if "llm.invocation_parameters" in span.attributes or "llm.model_name" in span.attributes:
            return "model"
    return kind_of(kind)


def _openinference_tools(span: Span) -> list[Any]:
    names = (f"llm.tools.{number}.tool.json_schema" for number in count())
    texts = takewhile(bool, map(span.text, names))
    return [tool for tool in map(json_or_text, texts) if isinstance(tool, dict)]


def _value_of(span: Span, name: str) -> Any:
    value = span.attributes.get(f"{name}.value")
    if isinstance(value, str) and span.text(f"{name}.mime_type") == "application/json":
        try:
            return read_json(value)
        except ValueError:
            return value
    return value


OPENINFERENCE: Final = Convention("phoenix", (_OPENINFERENCE_KIND,), _set_openinference_call)


# ------------------------------------------------------------------ LangSmith's exporter

_LANGSMITH_KIND = "langsmith.span.kind"
_LANGSMITH_METADATA = "langsmith.metadata."


def _set_langsmith_call(span: Span, call: RecordedCall) -> None:
    """Set what the exporter writes: the inputs and outputs of LangSmith's run, as JSON."""
    call.kind = kind_of(span.text(_LANGSMITH_KIND))
    call.name = span.text("gen_ai.tool.name", "langsmith.trace.name") or span.name
    call.tool_call_id = span.text("gen_ai.tool.call.id") or None
    call.metadata = {
        name.removeprefix(_LANGSMITH_METADATA): value
        for name, value in span.attributes.items()
        if name.startswith(_LANGSMITH_METADATA)
    }
    call.tags = [tag for tag in span.text("langsmith.span.tags").split(", ") if tag]
    # The status is of no use: the exporter calls a span good before the run has ended. Its error
    # wraps the text that LangSmith has of it.
    error = span.error(has_output=False)
    call.error = error and error_in_text(error.message)
    inputs, outputs = (span.attributes.get(f"gen_ai.{name}") for name in ("prompt", "completion"))
    set_values(call, json_or_text(inputs), json_or_text(outputs))
    _set_usage(span, call)


def _langsmith_run_id(span: Span) -> UUID | None:
    """Return the root run's id, of which LangSmith makes the ids of trace and span."""
    return UUID(span.trace_id) if span.trace_id.startswith(span.parent_id or "-") else None


LANGSMITH: Final = Convention(
    "opentelemetry", (_LANGSMITH_KIND,), _set_langsmith_call, _langsmith_run_id
)


# ------------------------------------------------------------------ GenAI and OpenLLMetry

_OPERATION, _TRACELOOP_KIND = "gen_ai.operation.name", "traceloop.span.kind"
_GENAI_KINDS: Final[Mapping[str, RecordedKind]] = {
    "chat": "model",
    "completion": "model",
    "generate_content": "model",
    "text_completion": "model",
    "execute_tool": "tool",
    "retrieval": "retriever",
    "vector_db_retrieve": "retriever",
}
_GENAI_NAMES: Final[Mapping[RecordedKind, tuple[str, ...]]] = {
    "chain": ("traceloop.entity.name", "gen_ai.agent.name"),
    "model": (),
    "tool": ("gen_ai.tool.name", "traceloop.entity.name"),
    "retriever": ("traceloop.entity.name", "gen_ai.data_source.id"),
}
_RUN_IDS = ("gen_ai.agent.id", "gen_ai.task.id")


def _set_genai_call(span: Span, call: RecordedCall) -> None:
    is_tool = span.text(_TRACELOOP_KIND) == "tool"
    call.kind = _GENAI_KINDS.get(span.text(_OPERATION), "tool" if is_tool else "chain")
    call.name = span.text(*_GENAI_NAMES[call.kind]) or span.name
    if call.kind in ("chain", "model"):
        definitions = list_of(json_or_text(span.attributes.get("gen_ai.tool.definitions")))
        call.tools = [{"function": one} for one in definitions if isinstance(one, dict)]
    # OpenLLMetry writes the arguments and the results of its callbacks.
    arguments = mapping_of(span.attributes.get("traceloop.entity.input"))
    results = mapping_of(span.attributes.get("traceloop.entity.output"))
    call.metadata, call.tags = mapping_of(arguments.get("metadata")), list_of(arguments.get("tags"))
    result = span.attributes.get("gen_ai.tool.call.result")
    answers = _messages(span, "gen_ai.output.messages")
    call.error = span.error(has_output=bool(results or answers) or result is not None)
    match call.kind:
        case "model":
            call.inputs = _messages(span, "gen_ai.input.messages")
            call.output = ModelAnswer(answers[0] if answers else None)
            _set_usage(span, call)
        case "tool":
            call.inputs = json_or_text(span.attributes.get("gen_ai.tool.call.arguments"))
            if "input_str" in arguments:
                inputs = arguments.get("inputs")
                call.inputs = arguments["input_str"] if inputs is None else inputs
            options = mapping_of(arguments.get("kwargs"))
            call_id = span.text("gen_ai.tool.call.id") or text_of(options.get("tool_call_id"))
            call.tool_call_id = call_id or None
            call.output = restore(results.get("output", json_or_text(result)))
            if call.error and isinstance(result, str) and not span.exception:
                # It returned the error to the model.
                call.output = message_of_role(
                    "tool", result, tool_call_id=call.tool_call_id or "", status="error"
                )
                call.error = None
        case "retriever":
            query = span.attributes.get("gen_ai.retrieval.query.text")
            call.inputs = arguments.get("query", query)
            documents = json_or_text(span.attributes.get("gen_ai.retrieval.documents"))
            call.output = documents_in({"documents": results.get("documents", documents)})
        case "chain":
            questions = _messages(span, "gen_ai.input.messages")
            call.inputs = _chain_value(arguments, "input", questions)
            call.output = _chain_value(results, "output", answers)


def _chain_value(values: Mapping[str, Any], wrapper: str, messages: list[Any]) -> Any:
    if f"{wrapper}s" in values:
        return chain_value(values[f"{wrapper}s"], wrapper)
    return {"messages": messages} if messages else None


def _messages(span: Span, name: str) -> list[Any]:
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


def _genai_run_id(span: Span) -> UUID | None:
    """Return the id of LangChain's run, where OpenLLMetry writes it."""
    if not span.text(_TRACELOOP_KIND):
        return None  # elsewhere an agent's id is the same for all its runs
    return next(filter(None, (uuid_of(span.text(name)) for name in _RUN_IDS)), None)


GENAI: Final = Convention(
    "opentelemetry", (_OPERATION, _TRACELOOP_KIND), _set_genai_call, _genai_run_id
)
