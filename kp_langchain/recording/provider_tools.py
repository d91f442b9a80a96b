"""The formats in which providers describe the tools that they run themselves, as data.

The ending of its type identifies a call, so new tools need no entry: OpenAI's items end in `_call`,
Anthropic's blocks in `_tool_use`, results in `_tool_result` or `_call_output`. The tables hold the
exceptions and the names of the fields.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from itertools import islice
from typing import Any, Literal

from kp_langchain.recording.content import mark_of, media_mark
from kp_langchain.recording.safe_reads import (
    MAX_ALL_ITEMS,
    MAX_DEPTH,
    MAX_ITEMS,
    default_on_error,
    field,
)
from kp_langchain.recording.values import gist

Role = Literal["call", "result"]

_MAX_TYPE_CHARS = 64

# The user's own tools, which are recorded when they run.
_USER_TOOLS = frozenset({
    "tool_call", "function_call", "custom_tool_call", "invalid_tool_call", "tool_use",
    "tool_result", "function_call_output", "custom_tool_call_output",
})  # fmt: skip

_CALL_ENDINGS = ("_call", "_tool_use")
_RESULT_ENDINGS = ("_tool_result", "_call_output")
_OTHER_CALLS = frozenset({
    "server_tool_call_chunk", "executable_code", "program", "mcp_list_tools",
    "mcp_approval_request",
})  # fmt: skip
_OTHER_RESULTS = frozenset({"code_execution_result", "tool_search_output", "program_output"})

# Items of OpenAI's that end in `_call` although their results come from somebody else.
_ANSWERED_ELSEWHERE = frozenset({
    "server_tool_call", "computer_call", "local_shell_call", "shell_call", "apply_patch_call",
    "tool_search_call",
})  # fmt: skip

# Names of tools whose calls carry none, as in LangChain's own form.
_NAMES = {
    "executable_code": "code_interpreter",
    "code_execution_result": "code_interpreter",
    "mcp_tool_use": "remote_mcp",
    "mcp_tool_result": "remote_mcp",
    "mcp_call": "remote_mcp",
    "mcp_approval_request": "remote_mcp",
    "server_tool_call_chunk": "server_tool",
    "program_output": "program",
    "tool_search_output": "tool_search",
}
NO_NAMES = frozenset({"", "remote_mcp", "server_tool"})  # the extras may have the real one

APPROVAL_REQUEST = "mcp_approval_request"  # of a call that runs once a human approves it
PREPARATION = "mcp_list_tools"  # recorded only if it fails

# Keys of `additional_kwargs`: OpenAI's older form, and Groq's.
ADDITIONAL = ("tool_outputs", "executed_tools")
# Groq's names for the tools of its compound models.
EXECUTED_TOOLS = {"search": "web_search", "python": "code_interpreter"}

ID_FIELDS = ("id", "call_id")
WITHOUT_ID = frozenset({"executable_code"})  # as Google's is in older releases
RESULT_ID_FIELDS = ("tool_use_id", "tool_call_id", "call_id", "id")
SERVER_FIELDS = ("server_label", "server_name")
INPUT_FIELDS = ("args", "input", "arguments", "action")
OUTPUT_FIELDS = ("output", "outputs", "results", "result", "content", "code_execution_result")
FAILED_STATUS = frozenset({"failed", "incomplete", "error", "cancelled"})
FINISHED_STATUS = frozenset({None, "completed", "success"})
GOOD_OUTCOMES = frozenset({None, 0, 1, "OUTCOME_OK", "OUTCOME_UNSPECIFIED"})

# If a call has no field for its input, its input is all of its fields except these.
NOT_INPUT_FIELDS = frozenset({
    "type", "id", "call_id", "status", "index", "name", "caller", "created_by", "execution",
    "pending_safety_checks", "approval_request_id", "extras", "toolset_name", "fingerprint",
    "cache_control", "phase", "error", "namespace", "partial_json", "container_id", "tools",
    *SERVER_FIELDS, *OUTPUT_FIELDS,
})  # fmt: skip
INPUT_NAMES = {"executable_code": "code"}

# Google puts its searches into the answer's metadata: the queries, and their results.
GROUNDING = "grounding_metadata"
GROUNDING_QUERIES = {
    "web_search_queries": "google_search",
    "webSearchQueries": "google_search",
    "image_search_queries": "google_search",
    "retrieval_queries": "retrieval",
}
GROUNDING_CHUNKS = ("grounding_chunks", "groundingChunks")
GROUNDING_SOURCES = {
    "web": "google_search",
    "image": "google_search",
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


def role_of(kind: object) -> Role | None:
    """Return whether a block of this type is a provider's call or result; None for other blocks."""
    return _role_of(kind) if type(kind) is str and len(kind) <= _MAX_TYPE_CHARS else None


@lru_cache(256)
def _role_of(kind: str) -> Role | None:
    if kind in _USER_TOOLS:
        return None
    if kind in _OTHER_CALLS or kind.endswith(_CALL_ENDINGS):
        return "call"
    if kind in _OTHER_RESULTS or kind.endswith(_RESULT_ENDINGS):
        return "result"
    return None


def generated_media(kind: object) -> str:
    """Return "image", "audio" or "video" for a call that generates such media; else ""."""
    family, _, rest = kind.partition("_") if isinstance(kind, str) else ("", "", "")
    return family if rest == "generation_call" and family in ("image", "audio", "video") else ""


def holds_its_result(kind: str) -> bool:
    """Return whether a call of this type holds its own result, once there is one."""
    return kind == PREPARATION or (kind.endswith("_call") and kind not in _ANSWERED_ELSEWHERE)


def default_name(kind: str) -> str:
    """Return the name of the tool that the type of a call or result implies."""
    if kind in _NAMES:
        return _NAMES[kind]
    for ending in (*_RESULT_ENDINGS, *_CALL_ENDINGS):
        if kind.endswith(ending):
            return kind[: -len(ending)]
    return kind


def is_sealed(name: str) -> bool:
    """Return whether only the provider can read a field's value."""
    return name.startswith("encrypted") or name.endswith("signature")


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
        if not isinstance(key, str) or key in _HIDDEN or is_sealed(key) or _is_empty(item):
            continue
        if not _is_empty(visible := _visible(item, room, depth + 1)):
            shown[key] = visible
    if shown.get("return_code") == 0:
        del shown["return_code"]
    if not shown and value.get("file_id"):  # one that a program wrote
        return mark_of("file")
    return next(iter(shown.values())) if len(shown) == 1 and shown.keys() <= _ONLY_FIELDS else shown


def _is_empty(value: object) -> bool:
    return value is None or (isinstance(value, (str, list, dict)) and not value)
