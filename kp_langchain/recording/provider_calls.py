"""Calls of the tools that a provider ran inside one answer of a model, as marks in the timeline.

LangChain emits no events for them. Only the message shows them: as blocks of its content or, in
older forms, in its `additional_kwargs`.

`AIMessage.content_blocks` is no substitute. It knows only messages that name their provider. It
leaves out Google's searches and what Groq ran without JSON, puts the calls of OpenAI's older form
after the text, and raises for a block without its usual fields.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from typing import Any, NamedTuple

from kp_langchain.json_text import json_or_text
from kp_langchain.recording import provider_tools as table
from kp_langchain.recording.calls import Call, CallKind
from kp_langchain.recording.content import mark_of, thought_text, unwrap
from kp_langchain.recording.messages import additional_kwargs, additional_reasoning, additional_text
from kp_langchain.recording.run_record import RunRecord
from kp_langchain.recording.safe_reads import (
    MAPPING,
    MAX_ITEMS,
    clip,
    default_on_error,
    field,
    list_items,
    short_name,
)
from kp_langchain.recording.values import as_input

_MAX_OPEN = 1000
_NO_REASON = "failed"  # if the provider gives none

Fields = Mapping[str, Any]


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
    content, extra = getattr(message, "content", None), additional_kwargs(message)
    metadata = getattr(message, "response_metadata", None) or {}
    blocks = list(map(_native, list_items(content)))
    if not (extra or table.GROUNDING in metadata or any(map(_role, blocks))):  # like most
        return ()
    items = (one for name in table.ADDITIONAL for one in list_items(extra.get(name)))
    beside = [part for item in items for part in _calls_and_results(_openai_form(item))]
    user_call_ids = _user_call_ids(message)
    inside: list[Part] = []
    texts: list[Any] = []
    for block in blocks:
        calls = _calls_and_results(block) if _role(block) else ()
        if calls and all(user_call_ids.isdisjoint(one.ids) for one in calls):
            inside += (ModelText(thought_text(texts, limit)), *calls)
            texts = []
        else:
            texts.append(block)
    searches = _searches(metadata.get(table.GROUNDING) or extra.get(table.GROUNDING), inside)
    if not (beside or searches or inside):
        return ()
    last = content if isinstance(content, str) else texts
    words = (thought_text(last, limit), additional_text(extra, limit))
    reasoning = ModelText(additional_reasoning(extra, limit))
    return _tidy([reasoning, *beside, *searches, *inside, *map(ModelText, words)])


def _tidy(parts: Iterable[Part]) -> list[Part]:
    """Return the parts with adjacent texts joined, without preparations that did not fail."""
    out: list[Part] = []
    preparations: dict[tuple[str, ...], ProviderCall] = {}
    for part in parts:
        if isinstance(part, ModelText):
            if not part.text.strip():
                continue
            if out and isinstance(out[-1], ModelText):
                out[-1] = ModelText(f"{out[-1].text}\n\n{part.text}")
                continue
        elif isinstance(part, ProviderCall):
            if part.name == table.PREPARATION:
                preparations[part.ids[:1]] = part
                continue
        elif call := preparations.pop(part.ids[:1], None):
            if not part.has_failed:
                continue
            out.append(call)
        out.append(part)
    return out


def _user_call_ids(message: object) -> set[str]:
    """Return the ids of calls of the user's own tools, which are recorded when they run."""
    names = ("tool_calls", "invalid_tool_calls")
    calls = (call for name in names for call in list_items(getattr(message, name, None)))
    return {call_id for call in calls if isinstance(call_id := field(call, "id"), str)}


def _native(block: Any) -> Any:
    """Return the provider's block for one that LangChain wrapped or converted."""
    kind = field(block, "type")
    if kind == "non_standard":
        return unwrap(block)
    extras = field(block, "extras") if kind == "image" else None
    if isinstance(extras, MAPPING) and ("revised_prompt" in extras or "status" in extras):
        call = {"type": "image_generation_call", "id": block.get("id"), "result": True}
        return {**extras, **call}
    return block


def _openai_form(block: Any) -> Any:
    """Return a block of Groq's in OpenAI's form; other blocks unchanged."""
    block = unwrap(block)
    kind = field(block, "type")
    tool = table.EXECUTED_TOOLS.get(kind) if isinstance(kind, str) else None
    name = tool or field(block, "name") or kind
    if _role(block) or not isinstance(name, str) or not name:
        return block
    call = {"type": f"{name}_call", "id": f"executed {block.get('index')}", "name": name}
    return {"arguments": block.get("arguments"), "output": block.get("output"), **call}


def _role(block: Any) -> table.Role | None:
    return table.role_of(field(block, "type"))


@default_on_error(())
def _calls_and_results(block: Any) -> Sequence[ProviderCall | ProviderResult]:
    role = _role(block)
    if role is None:
        return ()
    kind = block["type"]
    extras = field(block, "extras")
    extras = extras if isinstance(extras, MAPPING) else {}
    status, error = _first_text(block, "status"), block.get("error") or extras.get("error")
    output = _output(block, kind)
    has_failed = (
        bool(error)
        or status in table.FAILED_STATUS
        or block.get("is_error") is True
        or block.get("outcome") not in table.GOOD_OUTCOMES
        or _is_error(output)
    )
    shown = error or output or (status if has_failed else None)
    if role == "result":
        name = table.default_name(_first_text(extras, "block_type") or kind)
        return (ProviderResult(_texts(block, table.RESULT_ID_FIELDS), name, shown, has_failed),)
    call = _call(block, extras, kind)
    if call is None:
        return ()
    is_over = table.holds_its_result(kind) and status in table.FINISHED_STATUS
    if has_failed or output is not None or is_over:
        return call, ProviderResult(call.ids, call.name, shown, has_failed)
    return (call,)


def _call(block: Fields, extras: Fields, kind: str) -> ProviderCall | None:
    ids = _texts(block, table.ID_FIELDS) or ((kind,) if kind in table.WITHOUT_ID else ())
    if not ids:
        return None
    name = kind if kind == table.PREPARATION else _first_text(block, "name") or ""
    if name in table.NO_NAMES:
        name = _first_text(extras, "tool_name") or name or table.default_name(kind)
    fields = {**extras, **block} if extras else block
    return ProviderCall(
        ids,
        name,
        _input(block, fields),
        mcp_server=_first_text(fields, *table.SERVER_FIELDS),
        request_id=_first_text(fields, "approval_request_id"),
        is_approval_request=kind == table.APPROVAL_REQUEST,
    )


def _input(block: Fields, fields: Fields) -> object:
    candidates = [block.get(name) for name in table.INPUT_FIELDS]
    candidates = [one for one in candidates if isinstance(one, (str, *MAPPING))]
    # A streamed input remains as the JSON text that its chunks add up to.
    candidates += _texts(fields, ("partial_json", "arguments"))
    value = next(filter(None, candidates), candidates[0] if candidates else None)
    value = json_or_text(value)
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


def _output(block: Fields, kind: str) -> Any:
    if kind == "tool_search_output":
        return block.get("tools")
    outputs = (block[name] for name in table.OUTPUT_FIELDS if block.get(name) is not None)
    output = next(outputs, field(block.get("action"), "sources"))
    family = table.generated_media(kind)
    return mark_of(family) if output and family else output


def _is_error(output: Any) -> bool:
    if isinstance(output, (list, tuple)):
        output = output[-1] if output else None
    if not isinstance(output, MAPPING):
        return False
    if output.get("error_code") or str(output.get("type"))[-6:] == "_error":
        return True
    outcome, code = output.get("outcome"), output.get("return_code")
    if isinstance(outcome, MAPPING):
        code = outcome.get("exit_code")
        if outcome.get("type") == "timeout":
            return True
    # A non-zero code alone is not an error: for some commands it means "no". An error also writes
    # to stderr.
    return bool(code and output.get("stderr"))


def _texts(block: Fields, names: Iterable[str]) -> tuple[str, ...]:
    values = map(block.get, names)
    return tuple(one for one in values if isinstance(one, str) and one)


def _first_text(block: Fields, *names: str) -> str | None:
    return next(iter(_texts(block, names)), None)


def _searches(grounding: object, inside: Iterable[Part]) -> list[Part]:
    """Return what Google's models looked up, which only the answer's metadata show.

    Args:
        grounding: These metadata.
        inside: The parts that the content shows, which may be the same searches.
    """
    if not isinstance(grounding, MAPPING):
        return []
    queries: list[Any] = []
    sources: list[Any] = []
    names: list[str] = []
    for key, name in table.GROUNDING_QUERIES.items():
        if items := list_items(grounding.get(key)):
            queries += items
            names.append(name)
    chunks = (one for key in table.GROUNDING_CHUNKS for one in list_items(grounding.get(key)))
    for chunk in chunks:
        for kind, name in table.GROUNDING_SOURCES.items():
            if source := field(chunk, kind):
                sources.append(source)
                names.append(name)
    shown = (one.name for one in inside if not isinstance(one, ModelText))
    if not names or any(name.startswith("google_") for name in shown):
        return []
    ids = (table.GROUNDING,)
    return [
        ProviderCall(ids, names[0], {"queries": queries} if queries else {}),
        ProviderResult(ids, names[0], sources, has_failed=False),
    ]


# ------------------------------------------------------------------ marks


def mark_parts(root: RunRecord, answer: Call, parts: Sequence[Part]) -> Call:
    """Add the parts of a model's answer to the timeline, as if an agent had run the tools.

    Args:
        root: The run; changed.
        answer: The model's call, which gets the first text as its own; changed.
        parts: The parts in order.

    Returns:
        The last call that began.
    """
    last = answer
    newest: Call | None = None
    for at, part in enumerate(parts):
        if isinstance(part, ProviderResult):
            # Google's results name no call: they belong to the last one.
            call = _take_open_call(root, part.ids) if part.ids else newest
            call = call or _new_call(answer, "tool", part.name)
            call.is_incomplete, call.has_failed = answer.is_incomplete, part.has_failed
            text = root.read(table.output_gist, part.output)
            text = text or _NO_REASON if part.has_failed else text
            root.timeline.add(call.set_result(text), call)
            continue
        if isinstance(part, ProviderCall):
            if (earlier := root.provider_calls.get(part.request_id or "")) is not None:
                _add_open_call(root, part.ids, earlier)  # approved after an earlier answer
                earlier.is_incomplete = answer.is_incomplete
                continue
            newest = last = _new_call(answer, "tool", part.name)
            last.is_incomplete = answer.is_incomplete or part.is_approval_request
            last.input = root.read(as_input, part.input)
            last.mcp_server = short_name(part.mcp_server) or None
            _add_open_call(root, part.ids, last)
        elif at:
            last = _new_call(answer, "model", answer.name)
            last.text = root.read(clip, part.text)
        else:
            answer.text = root.read(clip, part.text)
            continue
        root.timeline.add("start", last)
    if root.state.last_call is answer:
        root.state.last_call = last
    return last


def _new_call(answer: Call, kind: CallKind, name: str) -> Call:
    call = Call(kind, short_name(name), object())  # a unique key: these calls are never retried
    call.has_ended = True
    call.is_incomplete, call.is_remote = answer.is_incomplete, answer.is_remote
    return call


def _add_open_call(root: RunRecord, ids: tuple[str, ...], call: Call) -> None:
    for one in ids:
        if len(root.provider_calls) < _MAX_OPEN:
            root.provider_calls[short_name(one)] = call


def _take_open_call(root: RunRecord, ids: tuple[str, ...]) -> Call | None:
    calls = [root.provider_calls.pop(short_name(one), None) for one in ids]
    return next(filter(None, calls), None)
