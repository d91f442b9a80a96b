"""A model's message in parts: what it says, the provider's tools that it calls, and their results.

A provider's tools run inside one answer, so LangChain emits no events for them. Only the message
shows them: as blocks of its content or, in older forms, in its `additional_kwargs`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, NamedTuple

from kp_langchain.recording import provider_tools as table
from kp_langchain.recording.content_blocks import unwrap
from kp_langchain.recording.media import mark_of, media_mark
from kp_langchain.recording.messages import (
    additional_reasoning,
    additional_text,
    thought_text,
)
from kp_langchain.recording.plain_values import gist
from kp_langchain.recording.safe_reads import (
    MAPPING,
    MAX_ALL_ITEMS,
    MAX_DEPTH,
    MAX_ITEMS,
    default_on_error,
    list_items,
)

_MAX_JSON_CHARS = 50_000
# Keys of `additional_kwargs`: OpenAI's older form, and Groq's.
_ADDITIONAL = ("tool_outputs", "executed_tools")
_GROUNDING = "grounding_metadata"


class ModelText(NamedTuple):
    """What the model says or reasons.

    Attributes:
        text: The text.
    """

    text: str


class ProviderCall(NamedTuple):
    """A call of a tool that the provider runs.

    Attributes:
        ids: The ids by which a result may refer to it.
        name: The tool's name.
        input: Its input, as the message holds it.
        mcp_server: The MCP server that has the tool; None for the provider's own tools.
        request_id: The id of the request for approval that came before it.
        is_approval_request: Whether it is such a request itself.
    """

    ids: tuple[str, ...]
    name: str
    input: object
    mcp_server: str | None = None
    request_id: str | None = None
    is_approval_request: bool = False


class ProviderResult(NamedTuple):
    """The result of a call.

    Attributes:
        ids: The ids that the call may have; empty if it is the last one.
        name: The tool's name, as far as the result shows it.
        output: The output, as the message holds it.
        has_failed: Whether the call failed.
    """

    ids: tuple[str, ...]
    name: str
    output: object
    has_failed: bool


Part = ModelText | ProviderCall | ProviderResult


@default_on_error(())
def parts_of(message: object, limit: int) -> list[Part] | tuple[()]:
    """Return the parts of a model's message in order; none if it holds no tool of a provider.

    Args:
        message: The message.
        limit: Characters to keep of each text between two calls.
    """
    content = getattr(message, "content", None)
    extra = getattr(message, "additional_kwargs", None) or {}
    metadata = getattr(message, "response_metadata", None) or {}
    if not extra and _GROUNDING not in metadata and isinstance(content, str):  # like most
        return ()
    additional = [
        item for name in _ADDITIONAL if extra and name in extra for item in list_items(extra[name])
    ]
    blocks = list(map(_native, list_items(content)))
    calls = {id(block): _calls_and_results(block) for block in blocks if _role(block)}
    searches = _searches(metadata.get(_GROUNDING) or extra.get(_GROUNDING), calls)
    if not (calls or additional or searches):
        return ()
    user_call_ids = _user_call_ids(message)
    parts: list[Part] = [ModelText(additional_reasoning(extra, limit))]
    for block in additional:
        parts.extend(_calls_and_results(_openai_form(block)))
    parts.extend(searches)
    texts: list[Any] = []
    for block in blocks:
        block_calls = calls.get(id(block), ())
        if not block_calls or any(not user_call_ids.isdisjoint(one.ids) for one in block_calls):
            texts.append(block)
            continue
        parts.append(ModelText(thought_text(texts, limit)))
        parts.extend(block_calls)
        texts = []
    parts.append(ModelText(thought_text(content if isinstance(content, str) else texts, limit)))
    parts.append(ModelText(additional_text(extra, limit)))
    return _join_adjacent_texts(_without_preparations(parts))


def output_gist(output: object, limit: int) -> Any:
    """Return the `gist` of a provider's output, without ids and what only the provider can read."""
    return gist(_visible(output, [MAX_ALL_ITEMS], 0), limit)


def _native(block: Any) -> Any:
    """Return the provider's block for one that LangChain wrapped or converted."""
    block = unwrap(block)
    if isinstance(block, MAPPING) and block.get("type") == "image":
        extras = block.get("extras")
        if isinstance(extras, MAPPING) and ("revised_prompt" in extras or "status" in extras):
            call = {"type": "image_generation_call", "id": block.get("id"), "result": True}
            return {**extras, **call}
    return block


def _openai_form(block: Any) -> Any:
    """Return a block of Groq's in OpenAI's form; other blocks unchanged."""
    block = unwrap(block)
    if not isinstance(block, MAPPING) or _role(block):
        return block
    kind = block.get("type")
    tool = table.EXECUTED_TOOLS.get(kind) if isinstance(kind, str) else None
    name = tool or block.get("name") or kind
    if not isinstance(name, str) or not name:
        return block
    place = f"executed {block.get('index')}"
    call = {"type": f"{name}_call", "id": place, "name": name}
    return {**{key: block.get(key) for key in ("arguments", "output")}, **call}


def _role(block: Any) -> table.Role | None:
    return table.role_of(block.get("type")) if isinstance(block, MAPPING) else None


@default_on_error(())
def _calls_and_results(block: Any) -> list[ProviderCall | ProviderResult] | tuple[()]:
    role = _role(block)
    if role is None:
        return ()
    extras = block.get("extras")
    extras = extras if isinstance(extras, MAPPING) else {}
    parts_of_block = _call if role == "call" else _result
    return list(parts_of_block(block, extras, block["type"]))


def _call(
    block: Mapping[str, Any], extras: Mapping[str, Any], kind: str
) -> Iterator[ProviderCall | ProviderResult]:
    ids = _texts(block, table.ID_FIELDS)
    if not ids and kind in table.WITHOUT_ID:
        ids = (kind,)
    if not ids:
        return
    name = next(iter(_texts(block, ("name",))), "")
    if not name or name in table.NO_NAMES:
        name = next(iter(_texts(extras, ("tool_name",))), name or table.default_name(kind))
    if kind == "mcp_list_tools":
        name = kind
    server = (*_texts(block, table.SERVER_FIELDS), *_texts(extras, table.SERVER_FIELDS))
    request = _texts({**extras, **block}, ("approval_request_id",))
    yield ProviderCall(
        ids,
        name,
        _input(block, extras),
        mcp_server=next(iter(server), None),
        request_id=next(iter(request), None),
        is_approval_request=kind in table.APPROVAL_REQUESTS,
    )
    status, error = _status(block), block.get("error") or extras.get("error")
    output = None if kind == "mcp_list_tools" else _output(block)
    family = table.generated_media(kind)
    if output and family:
        output = mark_of(family)
    if error or status in table.FAILED_STATUS:
        yield ProviderResult(ids, name, error or output or status, has_failed=True)
    elif output is not None or (table.holds_its_result(kind) and status in table.FINISHED_STATUS):
        yield ProviderResult(ids, name, output, has_failed=False)


def _result(
    block: Mapping[str, Any], extras: Mapping[str, Any], kind: str
) -> Iterator[ProviderCall | ProviderResult]:
    ids = _texts(block, table.RESULT_ID_FIELDS)
    name = table.default_name(next(iter(_texts(extras, ("block_type",))), kind))
    output, status = _output(block), _status(block)
    if output is None and kind == "tool_search_output":
        output = block.get("tools")
    error = block.get("error") or extras.get("error")
    has_failed = (
        bool(error)
        or status in table.FAILED_STATUS
        or block.get("is_error") is True
        or block.get("outcome") not in table.GOOD_OUTCOMES
        or _is_error(output)
    )
    yield ProviderResult(ids, name, error or output or (status if has_failed else None), has_failed)


def _input(block: Mapping[str, Any], extras: Mapping[str, Any]) -> object:
    value: Any = None
    for field in table.INPUT_FIELDS:
        item = block.get(field)
        if isinstance(item, (str, *MAPPING)) and (field != "action" or isinstance(item, MAPPING)):
            value = value or item
    # A streamed input remains as the JSON text that its chunks add up to.
    value = value or next(
        iter((*_texts(block, ("partial_json",)), *_texts(extras, ("partial_json", "arguments")))),
        value,
    )
    if isinstance(value, str):
        value = _json_value(value)
    if value is None:
        rest = (key for key in islice(block, MAX_ITEMS) if key not in table.NOT_INPUT_FIELDS)
        value = {table.INPUT_NAMES.get(key, key): block[key] for key in rest}
    if not isinstance(value, MAPPING):
        return value
    return {
        key: item
        for key, item in islice(value.items(), MAX_ITEMS)
        if key != "sources" and not (isinstance(key, str) and table.is_sealed(key))
    }


def _json_value(text: str) -> object:
    if len(text) <= _MAX_JSON_CHARS:
        try:
            return json.loads(text)
        except (ValueError, RecursionError):
            pass
    return text


def _output(block: Mapping[str, Any]) -> Any:
    output = next(
        (block[field] for field in table.OUTPUT_FIELDS if block.get(field) is not None), None
    )
    if output is None and isinstance(action := block.get("action"), MAPPING):
        output = action.get("sources")
    return output


def _status(block: Mapping[str, Any]) -> str | None:
    status = block.get("status")
    return status if isinstance(status, str) else None


def _is_error(output: Any) -> bool:
    if isinstance(output, (list, tuple)):
        return bool(output) and isinstance(output[-1], MAPPING) and _is_error(output[-1])
    if not isinstance(output, MAPPING):
        return False
    if output.get("error_code") or str(output.get("type"))[-6:] == "_error":
        return True
    outcome = output.get("outcome")
    code = output.get("return_code")
    if isinstance(outcome, MAPPING):
        code = outcome.get("exit_code")
        if outcome.get("type") == "timeout":
            return True
    # A non-zero code alone is not an error: for some commands it means "no". An error also writes
    # to stderr.
    return bool(code and output.get("stderr"))


def _texts(block: Mapping[str, Any], fields: tuple[str, ...]) -> tuple[str, ...]:
    values = (block.get(field) for field in fields)
    return tuple(one for one in values if isinstance(one, str) and one)


def _user_call_ids(message: object) -> set[str]:
    """Return the ids of calls of the user's own tools, which are recorded when they run."""
    ids: set[str] = set()
    for name in ("tool_calls", "invalid_tool_calls"):
        for call in list_items(getattr(message, name, None)):
            if isinstance(call, MAPPING):
                ids.update(_texts(call, ("id",)))
    return ids


def _searches(
    grounding: object, calls: Mapping[int, Sequence[ProviderCall | ProviderResult]]
) -> list[Part]:
    """Return what Google's models looked up, which only the answer's metadata show."""
    if not isinstance(grounding, MAPPING):
        return []
    queries: list[Any] = []
    names: list[str] = []
    for field, name in table.GROUNDING_QUERIES.items():
        if items := list_items(grounding.get(field)):
            queries += items
            names.append(name)
    sources: list[Any] = []
    for field in table.GROUNDING_CHUNKS:
        for chunk in list_items(grounding.get(field)):
            for kind, name in table.GROUNDING_SOURCES.items():
                if isinstance(chunk, MAPPING) and chunk.get(kind):
                    sources.append(chunk[kind])
                    names.append(name)
    all_calls = (one for block_calls in calls.values() for one in block_calls)
    if not names or any(one.name.startswith("google_") for one in all_calls):
        return []
    ids = (_GROUNDING,)
    return [
        ProviderCall(ids, names[0], {"queries": queries} if queries else {}),
        ProviderResult(ids, names[0], sources, has_failed=False),
    ]


def _without_preparations(parts: list[Part]) -> Iterator[Part]:
    """Yield the parts without the provider's preparations, unless one failed."""
    preparations: dict[tuple[str, ...], ProviderCall] = {}
    for part in parts:
        if isinstance(part, ProviderCall) and part.name in table.PREPARATIONS:
            preparations[part.ids[:1]] = part
        elif isinstance(part, ProviderResult) and (call := preparations.pop(part.ids[:1], None)):
            if part.has_failed:
                yield from (call, part)
        else:
            yield part


def _join_adjacent_texts(parts: Iterator[Part]) -> list[Part]:
    """Return the parts with adjacent texts joined, and empty ones left out."""
    out: list[Part] = []
    for part in parts:
        if not isinstance(part, ModelText):
            out.append(part)
        elif part.text.strip():
            last = out[-1] if out else None
            if isinstance(last, ModelText):
                out[-1] = ModelText(f"{last.text}\n\n{part.text}")
            else:
                out.append(part)
    return out


@default_on_error(None)
def _visible(value: object, room: list[int], depth: int) -> Any:
    """Return a copy of a result without hidden fields, and with marks in place of media."""
    room[0] -= 1
    if room[0] <= 0 or depth > MAX_DEPTH:
        return "..."
    if isinstance(value, MAPPING):
        source = value.get("source")
        if isinstance(source, MAPPING) and source.get("type") == "text":  # a page that was fetched
            return source.get("data")
        if mark := media_mark(value):
            return mark
        out = {}
        for key, item in islice(value.items(), MAX_ITEMS):
            if table.is_hidden(key) or (key == "return_code" and item == 0):
                continue
            if not _is_empty(item) and not _is_empty(item := _visible(item, room, depth + 1)):
                out[key] = item
        if not out and value.get("file_id"):  # one that a program wrote
            return mark_of("file")
        if len(out) == 1 and not table.ONLY_FIELDS.isdisjoint(out):
            return next(iter(out.values()))
        return out
    if isinstance(value, (list, tuple)):
        items = (_visible(item, room, depth + 1) for item in value[:MAX_ITEMS])
        return [item for item in items if not _is_empty(item)]
    return value


def _is_empty(value: object) -> bool:
    return value is None or (isinstance(value, (str, list, dict)) and not value)
