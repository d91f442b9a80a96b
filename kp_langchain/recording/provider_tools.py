"""Calls of the tools that a provider ran inside one answer of a model, as parts of the answer.

LangChain emits no events for them. Only the message shows them, as blocks of its content; Google's
searches only in its metadata.

The ending of its type identifies a block, so new tools need no entry: OpenAI's items end in
`_call`, Anthropic's blocks in `_tool_use`, results in `_tool_result` or `_call_output`. The tables
hold the exceptions and the names of the fields.

`AIMessage.content_blocks` is no substitute. It knows only messages that name their provider. It
leaves out Google's searches, and raises for a block without its usual fields.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from typing import Any, Literal, NamedTuple

from kp_langchain.recording.bounds import default_on_error, member
from kp_langchain.recording.values import (
    gist,
    media_mark,
    thought_text,
)
from kp_langchain.text import json_or_text
from kp_langchain.values import MAX_ALL_ITEMS, MAX_DEPTH, MAX_ITEMS

Role = Literal["call", "result"]
Fields = Mapping[str, Any]

# ------------------------------------------------------------------ the formats, as data

# The user's own tools, which are recorded when they run.
_USER_TOOLS = frozenset({
    "tool_call", "function_call", "custom_tool_call", "invalid_tool_call", "tool_use",
    "tool_result", "function_call_output", "custom_tool_call_output",
})  # fmt: skip
_CALL_ENDINGS = ("_call", "_tool_use")
_RESULT_ENDINGS = ("_tool_result", "_call_output")
# What the ending of the type does not tell: the role, and the name of the tool where a call carries
# none, as in LangChain's own form.
_TYPES: Mapping[str, tuple[Role, str]] = {
    "executable_code": ("call", "code_interpreter"),
    "code_execution_result": ("result", "code_interpreter"),
    "mcp_tool_use": ("call", "remote_mcp"),
    "mcp_tool_result": ("result", "remote_mcp"),
    "mcp_call": ("call", "remote_mcp"),
    "mcp_approval_request": ("call", "remote_mcp"),
}
# Items of OpenAI's that end in `_call` although their results come from somebody else.
_ANSWERED_ELSEWHERE = frozenset({
    "server_tool_call", "computer_call", "local_shell_call", "shell_call", "apply_patch_call",
    "tool_search_call",
})  # fmt: skip
_IMAGE_GENERATION = "image_generation_call"

_ID_FIELDS = ("id", "call_id")
_RESULT_ID_FIELDS = ("tool_use_id", "tool_call_id", "call_id", "id")
_SERVER_FIELDS = ("server_label", "server_name")
# A streamed input remains as the JSON text that its chunks add up to, in `partial_json`.
_INPUT_FIELDS = ("args", "input", "arguments", "action", "partial_json")
# The fields of a call that has none of them, and their names in the step.
_PARAMETERS = {
    "code": "code", "executable_code": "code", "language": "language", "queries": "queries",
    "revised_prompt": "revised_prompt", "output_format": "output_format",
}  # fmt: skip
_OUTPUT_FIELDS = ("output", "outputs", "results", "result", "content", "code_execution_result")
_FAILED_STATUS = ("failed", "incomplete", "error", "cancelled")
_FINISHED_STATUS = (None, "completed", "success")
_GOOD_OUTCOMES = (None, 0, 1, "OUTCOME_OK", "OUTCOME_UNSPECIFIED")

# Google puts its searches into the answer's metadata: the queries, and their results.
GROUNDING = "grounding_metadata"
_SEARCH = "google_search"

# Fields of results that no reader needs: ids, and what only the provider can read.
_HIDDEN = frozenset({
    "type", "id", "call_id", "item_id", "tool_use_id", "tool_call_id", "file_id", "container_id",
    "response_id", "vector_store_id", "index", "cache_control", "fingerprint",
})  # fmt: skip


class Part(NamedTuple):
    """A part of a model's answer.

    Attributes:
        role: What it is; "text" for what the model says or reasons.
        value: The text, the call's input or the result's output, as the message holds it.
        name: The tool's name, as far as the part shows it.
        ids: The ids of a call, or those that the call of a result may have; none if it is the last.
        has_failed: Whether the call of a result failed.
        mcp_server: The MCP server that has the tool; None for the provider's own tools.
        is_approval_request: Whether a call waits for a human's approval.
    """

    role: Literal["text", "call", "result"]
    value: object
    name: str = ""
    ids: tuple[str, ...] = ()
    has_failed: bool = False
    mcp_server: str | None = None
    is_approval_request: bool = False


def role_of(block: object) -> Role | None:
    """Return whether a block is a provider's call or result; None for other blocks."""
    kind = member(block, "type")
    if not isinstance(kind, str) or kind in _USER_TOOLS:
        return None
    if kind in _TYPES:
        return _TYPES[kind][0]
    if kind.endswith(_CALL_ENDINGS):
        return "call"
    return "result" if kind.endswith(_RESULT_ENDINGS) else None


def generated_image_mark(block: object) -> str:
    """Return the mark for the image that a call of a provider's tool generated; "" for others."""
    is_image = member(block, "type") == _IMAGE_GENERATION and member(block, "result")
    return "[image]" if is_image else ""


# ------------------------------------------------------------------ the parts of a message


def grounding_in(metadata: object) -> object:
    """Return what an answer's metadata say of the searches of a model of Google's, if anything."""
    return member(metadata, GROUNDING)


@default_on_error(())
def parts_of(content: object, metadata: object, limit: int) -> Sequence[Part]:
    """Return the parts of a model's message in order; none if it holds no tool of a provider.

    Args:
        content: The content of the message.
        metadata: Its `response_metadata`.
        limit: Characters to keep of each text between two calls.
    """
    blocks = content[:MAX_ALL_ITEMS] if isinstance(content, list) else []
    searches = _searches(grounding_in(metadata))
    if not searches and not any(map(role_of, blocks)):  # like most
        return ()
    parts = [*searches]
    texts: list[Any] = []
    for block in blocks:
        if role_of(block):
            parts += (Part("text", thought_text(texts, limit)), *_parts_of_block(block))
            texts = []
        else:
            texts.append(block)
    last = thought_text(content if isinstance(content, str) else texts, limit)
    parts.append(Part("text", last))
    return [one for one in parts if one.role != "text" or str(one.value).strip()]


@default_on_error(())
def _parts_of_block(block: Fields) -> Sequence[Part]:
    """Return a provider's call, its result, or both, as one block holds them."""
    kind, extras = block["type"], block.get("extras")
    fields = {**extras, **block} if isinstance(extras, dict) else block
    status, error, output = fields.get("status"), fields.get("error"), _output(fields)
    has_failed = (
        bool(error)
        or status in _FAILED_STATUS
        or fields.get("is_error") is True
        or fields.get("outcome") not in _GOOD_OUTCOMES
        or _is_error(output)
    )
    shown = error or output or (status if has_failed else None)
    name = _name(fields, kind)
    if role_of(block) == "result":
        return (Part("result", shown, name, _texts(fields, _RESULT_ID_FIELDS), has_failed),)
    ids, server = _texts(fields, _ID_FIELDS), _texts(fields, _SERVER_FIELDS)
    call = Part(
        "call",
        _input(fields),
        name,
        ids,
        mcp_server=server[0] if server else None,
        is_approval_request=kind == "mcp_approval_request",
    )
    holds_result = kind.endswith("_call") and kind not in _ANSWERED_ELSEWHERE
    if has_failed or output is not None or (holds_result and status in _FINISHED_STATUS):
        return call, Part("result", shown, name, ids, has_failed)
    return (call,)


def _name(fields: Fields, kind: str) -> str:
    # In LangChain's own form, the name of a call of MCP stands beside the name of its kind.
    name = fields.get("tool_name") or fields.get("name")
    if isinstance(name, str) and name:
        return name
    if kind in _TYPES:
        return _TYPES[kind][1]
    for ending in (*_RESULT_ENDINGS, *_CALL_ENDINGS):
        kind = kind.removesuffix(ending)
    return kind


def _input(fields: Fields) -> object:
    values = [fields[name] for name in _INPUT_FIELDS if isinstance(fields.get(name), (str, dict))]
    if not values:
        return {name: fields[key] for key, name in _PARAMETERS.items() if key in fields}
    value = json_or_text(next(filter(None, values), values[0]))
    if not isinstance(value, dict):
        return value
    items = islice(value.items(), MAX_ITEMS)
    return {key: item for key, item in items if key != "sources" and not _is_sealed(key)}


def _output(fields: Fields) -> Any:
    if mark := generated_image_mark(fields):
        return mark
    outputs = (fields[name] for name in _OUTPUT_FIELDS if fields.get(name) is not None)
    return next(outputs, member(fields.get("action"), "sources"))


def _is_error(output: Any) -> bool:
    last = output[-1] if isinstance(output, list) and output else output
    if not isinstance(last, dict):
        return False
    # A non-zero code alone is not an error: for some commands it means "no". An error also writes
    # to stderr.
    code = last.get("return_code") or member(last.get("outcome"), "exit_code")
    return bool(last.get("error_code") or (code and last.get("stderr")))


def _texts(fields: Fields, names: Iterable[str]) -> tuple[str, ...]:
    values = map(fields.get, names)
    return tuple(one for one in values if isinstance(one, str) and one)


def _searches(grounding: object) -> list[Part]:
    """Return what Google's models looked up, which only the answer's metadata show."""
    if not isinstance(grounding, dict):
        return []
    queries = grounding.get("web_search_queries")
    chunks = grounding.get("grounding_chunks")
    chunks = chunks[:MAX_ITEMS] if isinstance(chunks, list) else []
    sources = [source for chunk in chunks for source in chunk.values() if source]
    if not (queries or sources):
        return []
    return [
        Part("call", {"queries": queries} if queries else {}, _SEARCH, (GROUNDING,)),
        Part("result", sources, _SEARCH, (GROUNDING,)),
    ]


# ------------------------------------------------------------------ what results show


@default_on_error("")
def output_gist(output: object, limit: int) -> Any:
    """Return the `gist` of a provider's output, without ids and what only the provider can read."""
    return gist(_visible(output, 0), limit)


def _visible(value: Any, depth: int) -> Any:
    """Return a copy of a result without hidden fields, and with marks in place of media."""
    if depth > MAX_DEPTH:
        return "..."
    if isinstance(value, list):
        items = (_visible(item, depth + 1) for item in value[:MAX_ITEMS])
        return [item for item in items if not _is_empty(item)]
    if not isinstance(value, dict):
        return value
    source = value.get("source")
    if isinstance(source, dict) and source.get("type") == "text":  # a page that was fetched
        return source.get("data")
    if mark := media_mark(value):
        return mark
    shown = {
        key: item
        for key in islice(value, MAX_ITEMS)
        if key not in _HIDDEN and not _is_sealed(key)
        if not _is_empty(item := _visible(value[key], depth + 1))
    }
    if shown.get("return_code") == 0:
        del shown["return_code"]
    return next(iter(shown.values())) if len(shown) == 1 else shown


def _is_empty(value: object) -> bool:
    return value is None or (isinstance(value, (str, list, dict)) and not value)


def _is_sealed(name: object) -> bool:
    """Return whether only the provider can read a field's value."""
    return isinstance(name, str) and (name.startswith("encrypted") or name.endswith("signature"))
