"""A model's message in parts: what it says, the provider's tools that it calls, and their results.

A provider's tools run inside one answer, so LangChain gives no event of them. All there is stands
in the message: as blocks of its content or, in older forms, beside it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, NamedTuple

from kp_langchain.recording import provider_tools as table
from kp_langchain.recording.content_blocks import unwrapped
from kp_langchain.recording.media import mark_of, media_mark
from kp_langchain.recording.messages import (
    MAPPING,
    MAX_ALL_ITEMS,
    MAX_DEPTH,
    MAX_ITEMS,
    contained,
    gist,
    reasoning_beside,
    said_beside,
    thought_text,
)

_LONGEST_JSON = 50_000
_BESIDE = ("tool_outputs", "executed_tools")  # in `additional_kwargs`: OpenAI's older form, Groq's
_GROUNDING = "grounding_metadata"


class Said(NamedTuple):
    """What the model said or thought."""

    text: str


class Called(NamedTuple):
    """A call of a tool that the provider runs.

    Args:
        ids: What its result may refer to.
        name: The tool's name.
        input: Its input, as it stands in the message.
        mcp_server: The MCP server that has the tool; None for the provider's own tools.
        request_id: The request for approval that came before it.
        waits: Whether it is such a request itself.
    """

    ids: tuple[str, ...]
    name: str
    input: object
    mcp_server: str | None = None
    request_id: str | None = None
    waits: bool = False


class Returned(NamedTuple):
    """What came back from a call.

    Args:
        ids: What the call may be known by; empty where the last one is meant.
        name: The tool's name, as far as the result tells it.
        output: The output, as it stands in the message.
        failed: Whether the call failed.
    """

    ids: tuple[str, ...]
    name: str
    output: object
    failed: bool


Part = Said | Called | Returned


@contained(())
def parts_of(message: object, limit: int) -> list[Part] | tuple[()]:
    """Return the parts of a model's message in order; none if no tool of a provider is in it.

    Args:
        message: The message.
        limit: Characters to keep of what is said between two calls.
    """
    content = getattr(message, "content", None)
    extra = getattr(message, "additional_kwargs", None) or {}
    metadata = getattr(message, "response_metadata", None) or {}
    if not extra and _GROUNDING not in metadata and isinstance(content, str):  # as most are
        return ()
    beside = [item for name in _BESIDE if extra and name in extra for item in _items(extra[name])]
    blocks = list(map(_native, content[:MAX_ALL_ITEMS])) if isinstance(content, list) else []
    calls = {id(block): _read(block) for block in blocks if _role(block)}
    searches = _searches(metadata.get(_GROUNDING) or extra.get(_GROUNDING), calls)
    if not (calls or beside or searches):
        return ()
    callers_own = _callers_own(message)
    parts: list[Part] = [Said(reasoning_beside(extra, limit))]
    for block in beside:
        parts.extend(_read(_executed(block)))
    parts.extend(searches)
    said: list[Any] = []
    for block in blocks:
        own = calls.get(id(block), ())
        if not own or any(not callers_own.isdisjoint(one.ids) for one in own):
            said.append(block)
            continue
        parts.append(Said(thought_text(said, limit)))
        parts.extend(own)
        said = []
    parts.append(Said(thought_text(content if isinstance(content, str) else said, limit)))
    parts.append(Said(said_beside(extra, limit)))
    return _joined(_without_preparations(parts))


def shown(output: object, limit: int) -> Any:
    """Return the `gist` of a provider's output: without ids and what only the provider can read."""
    return gist(_visible(output, [MAX_ALL_ITEMS], 0), limit)


def _items(value: object) -> list[Any]:
    return value[:MAX_ALL_ITEMS] if isinstance(value, list) else []


def _native(block: Any) -> Any:
    """Return the provider's block for one that LangChain wrapped or put into another form."""
    block = unwrapped(block)
    if isinstance(block, MAPPING) and block.get("type") == "image":
        extras = block.get("extras")
        if isinstance(extras, MAPPING) and ("revised_prompt" in extras or "status" in extras):
            call = {"type": "image_generation_call", "id": block.get("id"), "result": True}
            return {**extras, **call}
    return block


def _executed(block: Any) -> Any:
    """Return a tool that Groq ran in OpenAI's form; what is in that form as it is."""
    block = unwrapped(block)
    if not isinstance(block, MAPPING) or _role(block):
        return block
    kind = block.get("type")
    known = table.EXECUTED_TOOLS.get(kind) if isinstance(kind, str) else None
    name = known or block.get("name") or kind
    if not isinstance(name, str) or not name:
        return block
    place = f"executed {block.get('index')}"
    call = {"type": f"{name}_call", "id": place, "name": name}
    return {**{key: block.get(key) for key in ("arguments", "output")}, **call}


def _role(block: Any) -> table.Role | None:
    return table.role_of(block.get("type")) if isinstance(block, MAPPING) else None


@contained(())
def _read(block: Any) -> list[Called | Returned] | tuple[()]:
    role = _role(block)
    if role is None:
        return ()
    extras = block.get("extras")
    extras = extras if isinstance(extras, MAPPING) else {}
    read = _call if role == "call" else _result
    return list(read(block, extras, block["type"]))


def _call(
    block: Mapping[str, Any], extras: Mapping[str, Any], kind: str
) -> Iterator[Called | Returned]:
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
    yield Called(
        ids,
        name,
        _input(block, extras),
        mcp_server=next(iter(server), None),
        request_id=next(iter(request), None),
        waits=kind in table.APPROVAL_REQUESTS,
    )
    status, error = _status(block), block.get("error") or extras.get("error")
    output = None if kind == "mcp_list_tools" else _output(block)
    family = table.generated_media(kind)
    if output and family:
        output = mark_of(family)
    if error or status in table.FAILED_STATUS:
        yield Returned(ids, name, error or output or status, failed=True)
    elif output is not None or (table.holds_its_result(kind) and status in table.FINISHED_STATUS):
        yield Returned(ids, name, output, failed=False)


def _result(
    block: Mapping[str, Any], extras: Mapping[str, Any], kind: str
) -> Iterator[Called | Returned]:
    ids = _texts(block, table.RESULT_ID_FIELDS)
    name = table.default_name(next(iter(_texts(extras, ("block_type",))), kind))
    output, status = _output(block), _status(block)
    if output is None and kind == "tool_search_output":
        output = block.get("tools")
    error = block.get("error") or extras.get("error")
    failed = (
        bool(error)
        or status in table.FAILED_STATUS
        or block.get("is_error") is True
        or block.get("outcome") not in table.GOOD_OUTCOMES
        or _is_error(output)
    )
    yield Returned(ids, name, error or output or (status if failed else None), failed)


def _input(block: Mapping[str, Any], extras: Mapping[str, Any]) -> object:
    value: Any = None
    for field in table.INPUT_FIELDS:
        found = block.get(field)
        if isinstance(found, (str, *MAPPING)) and (field != "action" or isinstance(found, MAPPING)):
            value = value or found
    # A streamed input stays in the pieces in which it came, put together.
    value = value or next(
        iter((*_texts(block, ("partial_json",)), *_texts(extras, ("partial_json", "arguments")))),
        value,
    )
    if isinstance(value, str):
        value = _parsed(value)
    if value is None:
        rest = (key for key in islice(block, MAX_ITEMS) if key not in table.BESIDES_INPUT)
        value = {table.RENAMED.get(key, key): block[key] for key in rest}
    if not isinstance(value, MAPPING):
        return value
    return {
        key: item
        for key, item in islice(value.items(), MAX_ITEMS)
        if key != "sources" and not (isinstance(key, str) and table.is_sealed(key))
    }


def _parsed(text: str) -> object:
    if len(text) <= _LONGEST_JSON:
        try:
            return json.loads(text)
        except (ValueError, RecursionError):
            pass
    return text


def _output(block: Mapping[str, Any]) -> Any:
    found = next(
        (block[field] for field in table.OUTPUT_FIELDS if block.get(field) is not None), None
    )
    if found is None and isinstance(action := block.get("action"), MAPPING):
        found = action.get("sources")
    return found


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
    # Some commands answer "no" by their code; what goes wrong is written to stderr.
    return bool(code and output.get("stderr"))


def _texts(block: Mapping[str, Any], fields: tuple[str, ...]) -> tuple[str, ...]:
    values = (block.get(field) for field in fields)
    return tuple(one for one in values if isinstance(one, str) and one)


def _callers_own(message: object) -> set[str]:
    """The ids of calls of the caller's tools, which are recorded when they run."""
    ids: set[str] = set()
    for name in ("tool_calls", "invalid_tool_calls"):
        for call in _items(getattr(message, name, None)):
            if isinstance(call, MAPPING):
                ids.update(_texts(call, ("id",)))
    return ids


def _searches(grounding: object, calls: Mapping[int, Sequence[Called | Returned]]) -> list[Part]:
    """What Google's models looked up, of which only the metadata tell."""
    if not isinstance(grounding, MAPPING):
        return []
    queries: list[Any] = []
    names: list[str] = []
    for field, name in table.GROUNDING_QUERIES.items():
        if listed := _items(grounding.get(field)):
            queries += listed
            names.append(name)
    found: list[Any] = []
    for field in table.GROUNDING_CHUNKS:
        for chunk in _items(grounding.get(field)):
            for source, name in table.GROUNDING_SOURCES.items():
                if isinstance(chunk, MAPPING) and chunk.get(source):
                    found.append(chunk[source])
                    names.append(name)
    if not names or any(one.name.startswith("google_") for own in calls.values() for one in own):
        return []
    ids = (_GROUNDING,)
    return [
        Called(ids, names[0], {"queries": queries} if queries else {}),
        Returned(ids, names[0], found, failed=False),
    ]


def _without_preparations(parts: list[Part]) -> Iterator[Part]:
    """The parts without what a provider did to get ready, unless that failed."""
    waiting: dict[tuple[str, ...], Called] = {}
    for part in parts:
        if isinstance(part, Called) and part.name in table.PREPARATIONS:
            waiting[part.ids[:1]] = part
        elif isinstance(part, Returned) and (call := waiting.pop(part.ids[:1], None)):
            if part.failed:
                yield from (call, part)
        else:
            yield part


def _joined(parts: Iterator[Part]) -> list[Part]:
    """The parts with what is said in a row in one."""
    out: list[Part] = []
    for part in parts:
        if not isinstance(part, Said):
            out.append(part)
        elif part.text.strip():
            last = out[-1] if out else None
            if isinstance(last, Said):
                out[-1] = Said(f"{last.text}\n\n{part.text}")
            else:
                out.append(part)
    return out


def _visible(value: object, room: list[int], depth: int) -> Any:
    """A copy of a result without what is hidden from a reader, and with marks for media."""
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
