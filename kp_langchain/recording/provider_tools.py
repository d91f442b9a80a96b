"""Calls of the tools that a provider ran inside one answer of a model, as parts of the answer.

LangChain emits no events for them. Only the message shows them: as blocks of its content or, in
older forms, in its `additional_kwargs`; Google's searches only in its metadata.

The ending of its type identifies a block, so new tools need no entry: OpenAI's items end in
`_call`, Anthropic's blocks in `_tool_use`, results in `_tool_result` or `_call_output`. The tables
hold the exceptions and the names of the fields.

`AIMessage.content_blocks` is no substitute. It knows only messages that name their provider. It
leaves out Google's searches and what Groq ran without JSON, puts the calls of OpenAI's older form
after the text, and raises for a block without its usual fields.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from itertools import islice
from typing import Any, Literal, NamedTuple

from kp_langchain.json_text import json_or_text
from kp_langchain.recording.messages import (
    additional_kwargs,
    additional_reasoning,
    additional_text,
    mark_of,
    media_mark,
    thought_text,
    unwrap,
)
from kp_langchain.recording.safe_reads import (
    MAPPING,
    MAX_ALL_ITEMS,
    MAX_DEPTH,
    MAX_ITEMS,
    default_on_error,
    field,
    list_items,
)
from kp_langchain.recording.values import gist

Role = Literal["call", "result"]
Fields = Mapping[str, Any]

# ------------------------------------------------------------------ the formats, as data

_MAX_TYPE_CHARS = 64
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
    "mcp_list_tools": ("call", "mcp_list_tools"),
    "server_tool_call_chunk": ("call", "server_tool"),
    "program": ("call", "program"),
    "program_output": ("result", "program"),
    "tool_search_output": ("result", "tool_search"),
}
# Items of OpenAI's that end in `_call` although their results come from somebody else.
_ANSWERED_ELSEWHERE = frozenset({
    "server_tool_call", "computer_call", "local_shell_call", "shell_call", "apply_patch_call",
    "tool_search_call",
})  # fmt: skip
_NO_NAMES = ("", "remote_mcp", "server_tool")  # the extras may have the real one
_APPROVAL_REQUEST = "mcp_approval_request"  # of a call that runs once a human approves it
_PREPARATION = "mcp_list_tools"  # recorded only if it fails
_ADDITIONAL = ("tool_outputs", "executed_tools")  # in `additional_kwargs`: OpenAI's, Groq's
_EXECUTED_TOOLS = {"search": "web_search", "python": "code_interpreter"}  # Groq's names

_ID_FIELDS = ("id", "call_id")
_RESULT_ID_FIELDS = ("tool_use_id", "tool_call_id", "call_id", "id")
_SERVER_FIELDS = ("server_label", "server_name")
_INPUT_FIELDS = ("args", "input", "arguments", "action")
_OUTPUT_FIELDS = ("output", "outputs", "results", "result", "content", "code_execution_result")
_FAILED_STATUS = frozenset({"failed", "incomplete", "error", "cancelled"})
_FINISHED_STATUS = frozenset({None, "completed", "success"})
_GOOD_OUTCOMES = frozenset({None, 0, 1, "OUTCOME_OK", "OUTCOME_UNSPECIFIED"})
# If a call has no field for its input, its input is all of its fields except these.
_NOT_INPUT_FIELDS = frozenset({
    "type", "id", "call_id", "status", "index", "name", "caller", "created_by", "execution",
    "pending_safety_checks", "approval_request_id", "extras", "toolset_name", "fingerprint",
    "cache_control", "phase", "error", "namespace", "partial_json", "container_id", "tools",
    *_SERVER_FIELDS, *_OUTPUT_FIELDS,
})  # fmt: skip
_INPUT_NAMES = {"executable_code": "code"}

# Google puts its searches into the answer's metadata: the queries, and their results.
GROUNDING = "grounding_metadata"
_GROUNDING_QUERIES = (
    "web_search_queries", "webSearchQueries", "image_search_queries", "retrieval_queries",
)  # fmt: skip
_GROUNDING_CHUNKS = ("grounding_chunks", "groundingChunks")
_GROUNDING_TOOLS = {
    "maps": "google_maps",
    "retrieved_context": "retrieval",
    "retrievedContext": "retrieval",
}

# Fields of results that no reader needs: ids, and what only the provider can read.
_HIDDEN = frozenset({
    "type", "id", "call_id", "item_id", "tool_use_id", "tool_call_id", "file_id", "container_id",
    "response_id", "vector_store_id", "index", "cache_control", "fingerprint",
})  # fmt: skip
# The value of one of these fields stands for a result that has no other field.
_ONLY_FIELDS = frozenset({
    "text", "logs", "error_code", "sources", "content", "output", "stdout", "stderr", "result",
    "results", "message", "url",
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
        request_id: The id of the request for approval that came before a call.
        is_approval_request: Whether a call is such a request itself.
    """

    role: Literal["text", "call", "result"]
    value: object
    name: str = ""
    ids: tuple[str, ...] = ()
    has_failed: bool = False
    mcp_server: str | None = None
    request_id: str | None = None
    is_approval_request: bool = False


def role_of(block: object) -> Role | None:
    """Return whether a block is a provider's call or result; None for other blocks."""
    kind = field(block, "type")
    return _role_of(kind) if type(kind) is str and len(kind) <= _MAX_TYPE_CHARS else None


@lru_cache(256)
def _role_of(kind: str) -> Role | None:
    if kind in _USER_TOOLS:
        return None
    if kind in _TYPES:
        return _TYPES[kind][0]
    if kind.endswith(_CALL_ENDINGS):
        return "call"
    return "result" if kind.endswith(_RESULT_ENDINGS) else None


def generated_media(block: object) -> str:
    """Return "image", "audio" or "video" for a call that generates such media; else ""."""
    kind = field(block, "type")
    family, _, rest = kind.partition("_") if isinstance(kind, str) else ("", "", "")
    return family if rest == "generation_call" and family in ("image", "audio", "video") else ""


def _default_name(kind: str) -> str:
    """Return the name of the tool that the type of a call or result implies."""
    if kind in _TYPES:
        return _TYPES[kind][1]
    for ending in (*_RESULT_ENDINGS, *_CALL_ENDINGS):
        kind = kind.removesuffix(ending)
    return kind


def _is_sealed(name: object) -> bool:
    """Return whether only the provider can read a field's value."""
    return isinstance(name, str) and (name.startswith("encrypted") or name.endswith("signature"))


# ------------------------------------------------------------------ the parts of a message


@default_on_error(())
def parts_of(message: object, limit: int) -> Sequence[Part]:
    """Return the parts of a model's message in order; none if it holds no tool of a provider.

    Args:
        message: The message.
        limit: Characters to keep of each text between two calls.
    """
    content, extra = getattr(message, "content", None), additional_kwargs(message)
    metadata = getattr(message, "response_metadata", None) or {}
    blocks = list(map(_native, list_items(content)))
    if not (extra or GROUNDING in metadata or any(map(role_of, blocks))):  # like most
        return ()
    items = (one for name in _ADDITIONAL for one in list_items(extra.get(name)))
    beside = [part for item in items for part in _parts_of_block(_openai_form(item))]
    inside: list[Part] = []
    texts: list[Any] = []
    for block in blocks:
        if parts := _parts_of_block(block):
            inside += (Part("text", thought_text(texts, limit)), *parts)
            texts = []
        else:
            texts.append(block)
    searches = _searches(metadata.get(GROUNDING) or extra.get(GROUNDING))
    if any(one.name.startswith("google_") for one in inside):
        searches = []  # the content shows the same
    if not (beside or searches or inside):
        return ()
    last = content if isinstance(content, str) else texts
    words = (thought_text(last, limit), additional_text(extra, limit))
    reasoning = Part("text", additional_reasoning(extra, limit))
    return _tidy([reasoning, *beside, *searches, *inside, *(Part("text", one) for one in words)])


def _tidy(parts: Iterable[Part]) -> list[Part]:
    """Return the parts with adjacent texts joined, without preparations that did not fail."""
    parts = list(parts)
    failed = {one.ids[:1] for one in parts if one.has_failed}
    hidden = {one.ids[:1] for one in parts if one.name == _PREPARATION} - failed
    out: list[Part] = []
    for part in parts:
        if part.role == "text":
            if not str(part.value).strip():
                continue
            if out and out[-1].role == "text":
                out[-1] = Part("text", f"{out[-1].value}\n\n{part.value}")
                continue
        elif part.ids[:1] in hidden:
            continue
        out.append(part)
    return out


def _native(block: Any) -> Any:
    """Return the provider's block for one that LangChain wrapped or converted."""
    block = unwrap(block)
    extras = field(block, "extras") if field(block, "type") == "image" else None
    if isinstance(extras, MAPPING) and ("revised_prompt" in extras or "status" in extras):
        call = {"type": "image_generation_call", "id": block.get("id"), "result": True}
        return {**extras, **call}
    return block


def _openai_form(block: Any) -> Any:
    """Return a block of Groq's in OpenAI's form; other blocks unchanged."""
    block = unwrap(block)
    kind = field(block, "type")
    if role_of(block) or not isinstance(kind, str) or not kind:
        return block
    name = _EXECUTED_TOOLS.get(kind) or field(block, "name") or kind
    call = {"type": f"{name}_call", "id": f"executed {block.get('index')}", "name": name}
    return {"arguments": block.get("arguments"), "output": block.get("output"), **call}


@default_on_error(())
def _parts_of_block(block: Any) -> Sequence[Part]:
    """Return a provider's call, its result, or both, as one block holds them."""
    role = role_of(block)
    if role is None:
        return ()
    kind = block["type"]
    extras = field(block, "extras")
    extras = extras if isinstance(extras, MAPPING) else {}
    status, error = _first_text(block, "status"), block.get("error") or extras.get("error")
    output = _output(block, kind)
    has_failed = (
        bool(error)
        or status in _FAILED_STATUS
        or block.get("is_error") is True
        or block.get("outcome") not in _GOOD_OUTCOMES
        or _is_error(output)
    )
    shown = error or output or (status if has_failed else None)
    if role == "result":
        name = _default_name(_first_text(extras, "block_type") or kind)
        return (Part("result", shown, name, _texts(block, _RESULT_ID_FIELDS), has_failed),)
    call = _call(block, extras, kind)
    if call is None:
        return ()
    holds_result = kind == _PREPARATION or (
        kind.endswith("_call") and kind not in _ANSWERED_ELSEWHERE
    )
    if has_failed or output is not None or (holds_result and status in _FINISHED_STATUS):
        return call, Part("result", shown, call.name, call.ids, has_failed)
    return (call,)


def _call(block: Fields, extras: Fields, kind: str) -> Part | None:
    # Google's call has no id in older releases.
    ids = _texts(block, _ID_FIELDS) or ((kind,) if kind == "executable_code" else ())
    if not ids:
        return None
    name = kind if kind == _PREPARATION else _first_text(block, "name") or ""
    if name in _NO_NAMES:
        name = _first_text(extras, "tool_name") or name or _default_name(kind)
    fields = {**extras, **block} if extras else block
    return Part(
        "call",
        _input(block, fields),
        name,
        ids,
        mcp_server=_first_text(fields, *_SERVER_FIELDS),
        request_id=_first_text(fields, "approval_request_id"),
        is_approval_request=kind == _APPROVAL_REQUEST,
    )


def _input(block: Fields, fields: Fields) -> object:
    candidates = [block.get(name) for name in _INPUT_FIELDS]
    candidates = [one for one in candidates if isinstance(one, (str, *MAPPING))]
    # A streamed input remains as the JSON text that its chunks add up to.
    candidates += _texts(fields, ("partial_json", "arguments"))
    value = next(filter(None, candidates), candidates[0] if candidates else None)
    value = json_or_text(value)
    if value is None:
        rest = (key for key in islice(block, MAX_ITEMS) if key not in _NOT_INPUT_FIELDS)
        value = {_INPUT_NAMES.get(key, key): block[key] for key in rest}
    if not isinstance(value, MAPPING):
        return value
    items = islice(value.items(), MAX_ITEMS)
    return {key: item for key, item in items if key != "sources" and not _is_sealed(key)}


def _output(block: Fields, kind: str) -> Any:
    if kind == "tool_search_output":
        return block.get("tools")
    outputs = (block[name] for name in _OUTPUT_FIELDS if block.get(name) is not None)
    output = next(outputs, field(block.get("action"), "sources"))
    family = generated_media(block)
    return mark_of(family) if output and family else output


def _is_error(output: Any) -> bool:
    if isinstance(output, (list, tuple)):
        output = output[-1] if output else None
    if not isinstance(output, MAPPING):
        return False
    outcome = output.get("outcome")
    if output.get("error_code") or str(output.get("type"))[-6:] == "_error":
        return True
    if field(outcome, "type") == "timeout":
        return True
    # A non-zero code alone is not an error: for some commands it means "no". An error also writes
    # to stderr.
    code = output.get("return_code") or field(outcome, "exit_code")
    return bool(code and output.get("stderr"))


def _texts(block: Fields, names: Iterable[str]) -> tuple[str, ...]:
    values = map(block.get, names)
    return tuple(one for one in values if isinstance(one, str) and one)


def _first_text(block: Fields, *names: str) -> str | None:
    return next(iter(_texts(block, names)), None)


def _searches(grounding: object) -> list[Part]:
    """Return what Google's models looked up, which only the answer's metadata show."""
    if not isinstance(grounding, MAPPING):
        return []
    queries = [one for key in _GROUNDING_QUERIES for one in list_items(grounding.get(key))]
    chunks = [one for key in _GROUNDING_CHUNKS for one in list_items(grounding.get(key))]
    sources = [
        (kind, source)
        for chunk in chunks
        if isinstance(chunk, MAPPING)
        for kind, source in islice(chunk.items(), MAX_ITEMS)
        if source
    ]
    if not (queries or sources):
        return []
    name = _GROUNDING_TOOLS.get(sources[0][0] if sources else "", "google_search")
    return [
        Part("call", {"queries": queries} if queries else {}, name, (GROUNDING,)),
        Part("result", [source for _, source in sources], name, (GROUNDING,)),
    ]


# ------------------------------------------------------------------ what results show


def output_gist(output: object, limit: int) -> Any:
    """Return the `gist` of a provider's output, without ids and what only the provider can read."""
    return gist(_visible(output, [MAX_ALL_ITEMS], 0), limit)


@default_on_error(None)
def _visible(value: object, room: list[int], depth: int) -> Any:
    """Return a copy of a result without hidden fields, and with marks in place of media."""
    room[0] -= 1
    if room[0] <= 0 or depth > MAX_DEPTH:
        return "..."
    if isinstance(value, (list, tuple)):
        items = (_visible(item, room, depth + 1) for item in value[:MAX_ITEMS])
        return [item for item in items if not _is_empty(item)]
    if not isinstance(value, Mapping):
        return value
    if field(source := value.get("source"), "type") == "text":  # a page that was fetched
        return field(source, "data")
    if mark := media_mark(value):
        return mark
    shown = {}
    for key, item in islice(value.items(), MAX_ITEMS):
        if isinstance(key, str) and key not in _HIDDEN and not _is_sealed(key):
            visible = _visible(item, room, depth + 1)
            if not _is_empty(visible):
                shown[key] = visible
    if shown.get("return_code") == 0:
        del shown["return_code"]
    if not shown and value.get("file_id"):  # one that a program wrote
        return mark_of("file")
    return next(iter(shown.values())) if len(shown) == 1 and shown.keys() <= _ONLY_FIELDS else shown


def _is_empty(value: object) -> bool:
    return value is None or (isinstance(value, (str, list, dict)) and not value)
