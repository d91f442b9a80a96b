"""LangChain messages: how to find them in a value, and what each of them says.

Messages and LangGraph's commands are recognised by their shape, so neither has to be imported.

What a message says is text, reasoning, and marks in place of media: `[image]`, `[audio]`, `[video]`
or `[file: application/pdf]`. Nothing else of a picture, a recording or a document is kept: no data,
no address, no file name.
"""

from __future__ import annotations

import mimetypes
import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, Final

from kp_langchain.recording.safe_reads import (
    MAPPING,
    MAX_ALL_ITEMS,
    MAX_DEPTH,
    MAX_ITEMS,
    clip,
    default_on_error,
    field,
    join_texts,
)

NOT_A_MODEL: Final = frozenset({"human", "user", "tool", "system", "developer", "function"})
"""Roles and types of the messages that no model wrote: tags in them are text, not reasoning."""
_PLAIN = frozenset({dict, list, tuple, str, int, float, bool, type(None)})
_OF_COMMANDS = ("update", "resume", "goto")


# ------------------------------------------------------------------ messages in a value


def is_message(value: object) -> bool:
    """Return whether `value` is a LangChain message."""
    return (
        hasattr(value, "content")
        and isinstance(getattr(value, "type", None), str)
        and hasattr(value, "additional_kwargs")
    )


@default_on_error(False)
def is_command(value: object) -> bool:
    """Return whether `value` is a LangGraph `Command`."""
    return type(value) not in _PLAIN and all(hasattr(value, name) for name in _OF_COMMANDS)


@default_on_error(())
def messages_in(value: object) -> Sequence[Any]:
    """Return the messages that a node's output carries: plain, in a state, or in a `Command`.

    At most `MAX_ALL_ITEMS` of its items are read.
    """
    return [item for item in islice(_items(value, 0), MAX_ALL_ITEMS) if is_message(item)]


@default_on_error(())
def tool_messages_in(value: object) -> Sequence[Any]:
    """Return the messages in any form that answer a tool call, where `messages_in` looks."""
    # Imported here because it takes 0.2 s, unless an agent has loaded it.
    from kp_langchain.recording.provider_messages import read_messages

    answers: list[Any] = []
    for item in islice(_items(value, 0), MAX_ALL_ITEMS):
        if isinstance(item, MAPPING) and "tool_call_id" in item:
            answers += read_messages([item])  # type: ignore[list-item]
        elif hasattr(item, "tool_call_id"):
            answers.append(item)
    return answers


def _items(value: object, depth: int) -> Iterator[object]:
    if is_message(value) or depth >= MAX_DEPTH:
        yield value
    elif isinstance(value, MAPPING):
        for item in islice(value.values(), MAX_ITEMS):
            if isinstance(item, (list, tuple)):
                yield from item[-MAX_ITEMS:]
            else:
                yield item
    elif isinstance(value, (list, tuple)):
        for item in value[-MAX_ITEMS:]:
            if is_command(item):
                yield from _items(item, depth + 1)
            elif isinstance(item, tuple) and len(item) == 2 and isinstance(item[1], list):
                yield from item[1][-MAX_ITEMS:]  # a state's key and its value
            else:
                yield item
    elif is_command(value):
        yield from _items_of_command(value, depth + 1)


def _items_of_command(command: Any, depth: int) -> Iterator[object]:
    """Yield what a command updates a state with, and what it sends to the nodes that it starts."""
    update, goto = command.update, command.goto
    is_plain = isinstance(update, (*MAPPING, list, tuple))
    yield from _items(update if is_plain else getattr(update, "__dict__", None), depth)
    for target in goto[:MAX_ITEMS] if isinstance(goto, (list, tuple)) else (goto,):
        yield from _items(getattr(target, "arg", None), depth)


def role_and_content(message: object) -> tuple[object, object]:
    """Return who wrote a message and what it holds, from any form of message LangChain reads."""
    if (role := getattr(message, "type", None)) is not None:  # like most
        return role, getattr(message, "content", None)
    if isinstance(message, str):
        return "human", message
    if isinstance(message, (list, tuple)) and len(message) == 2:
        return message[0], message[1]
    return field(message, "role") or field(message, "type"), field(message, "content")


# ------------------------------------------------------------------ what a message says


@default_on_error("")
def message_text(message: object, limit: int) -> str:
    """Return the text and reasoning of a message, without signatures, images and the like."""
    content, extra = getattr(message, "content", None), additional_kwargs(message)
    is_from_model = getattr(message, "type", None) not in NOT_A_MODEL
    text = (thought_text if is_from_model else content_text)(content, limit)
    if not extra:
        return text
    return join_texts(
        (additional_reasoning(extra, limit), text, additional_text(extra, limit)), limit
    )


def additional_kwargs(message: object) -> Mapping[str, Any]:
    """Return a message's `additional_kwargs`, which some models fill in addition to the content."""
    extra = getattr(message, "additional_kwargs", None)
    return extra if extra and isinstance(extra, MAPPING) else {}


def additional_reasoning(extra: Mapping[str, Any], limit: int) -> str:
    """Return the reasoning in a message's `additional_kwargs`."""
    text = _reasoning_text(extra.get("reasoning_content") or extra.get("reasoning") or "")
    return clip(text, limit)


def additional_text(extra: Mapping[str, Any], limit: int) -> str:
    """Return what a model says in `additional_kwargs`: a refusal, or a recording of its voice."""
    audio = extra.get("audio")
    mark = mark_of("audio") if audio else ""
    texts = (mark, field(audio, "transcript"), extra.get("refusal"))
    return join_texts((clip(one, limit) for one in texts if isinstance(one, str)), limit, "\n")


def thought_text(content: object, limit: int) -> str:
    """Return what a model's content says and reasons, without the tags around its reasoning."""
    if not isinstance(content, str):
        content = content_text(content, limit)
    parts = _reasoning_parts(content)
    if not parts:
        return clip(content, limit)
    return join_texts((clip(part.strip(), limit) for part, _ in parts), limit)


def content_text(content: object, limit: int) -> str:
    """Return the text and reasoning blocks of a message's content, in order."""
    if isinstance(content, str):
        return clip(content, limit)
    if not isinstance(content, Sequence):
        return ""
    texts = (clip(block_text(block), limit) for block in islice(content, MAX_ITEMS))
    return join_texts(texts, limit, separator="\n")


def block_text(block: object, *, with_reasoning: bool = True) -> str:
    """Return what a block says or reasons, or the mark for its media; "" for other blocks."""
    if isinstance(block, str):
        return block
    block = unwrap(block)
    if not isinstance(block, MAPPING):
        return ""
    text: object
    match block.get("type"):
        case "text" | "output_text" | None:
            text = block.get("text")
        case "refusal":
            text = block.get("refusal")
        case "search_result":  # of the user's own tool, for the model to quote
            text = _join_lines([block.get("title"), block.get("content")])
        case "reasoning" | "thinking" | "reasoning_content" as kind if with_reasoning:
            text = _reasoning_text(block if kind == "reasoning" else block.get(kind))
        case _:
            text = media_mark(block)
    return text if isinstance(text, str) else ""


def _reasoning_text(value: object) -> str:
    """Return the text of a reasoning block, or of its counterpart in `additional_kwargs`."""
    if isinstance(value, MAPPING):
        value = next(filter(None, map(value.get, ("reasoning", "text", "summary", "content"))), "")
    return _join_lines(value)


def _join_lines(value: object) -> str:
    if isinstance(value, str):
        return value
    if not isinstance(value, (list, tuple)):
        return ""
    texts = (one.get("text") if isinstance(one, MAPPING) else one for one in value[:MAX_ITEMS])
    texts = (_join_lines(text) if isinstance(text, list) else text for text in texts)
    return "\n".join(text for text in texts if isinstance(text, str) and text)


def unwrap(block: Any) -> Any:
    """Return the provider's own block if LangChain wrapped it as a `non_standard` one."""
    if isinstance(block, MAPPING) and block.get("type") == "non_standard":
        return block.get("value")
    return block


_TEXTUAL = (
    "text", "output_text", "refusal", "search_result", "reasoning", "thinking", "reasoning_content",
)  # fmt: skip


def is_content_list(items: Sequence[object]) -> bool:
    """Return whether a list is a message's content, and not data whose items have a `type`."""
    return all(map(_is_block, items)) and any(map(is_content, items))


def is_content(block: object) -> bool:
    """Return whether `block` is a text, or a block of a kind that is read here."""
    block = unwrap(block)
    if not isinstance(block, MAPPING):
        return isinstance(block, str)
    return block.get("type") in _TEXTUAL or bool(media_mark(block))


def _is_block(item: object) -> bool:
    return isinstance(item, str) or (isinstance(item, MAPPING) and "type" in item)


# ------------------------------------------------------------------ reasoning between tags

# Tags count only where a model puts them: a text that shows them in code, or mentions them in a
# sentence, is an answer.
_TAG = re.compile(r"<(/?)think(?:ing)?>")
_OPENING = re.compile(r"\s*<think(?:ing)?>")
_CODE = re.compile(r"```.*?(?:```|\Z)|`[^`\n]+`", re.DOTALL)
_SEARCHED_CHARS = 200_000  # beyond, only the end of the first reasoning is searched for


def without_reasoning(text: str) -> str:
    """Return a model's text without the reasoning between tags."""
    parts = _reasoning_parts(text)
    if not parts:
        return text
    return "".join(part for part, is_reasoning in parts if not is_reasoning).strip()


def _reasoning_parts(text: str) -> list[tuple[str, bool]]:
    """Return the parts of a model's text in order, without the tags; none if it has no tags.

    Tags count at the beginning of the text and of a line; after the first one, everywhere. An
    opening tag that is never closed encloses all the rest if there was reasoning before. A text
    whose first tag is a closing one begins with reasoning: the templates of some models put the
    opening tag into the prompt.

    Returns:
        Each part, and whether it is reasoning.
    """
    if "<think" not in text and "</think" not in text:
        return []
    parts: list[tuple[str, bool]] = []
    at, is_inside = 0, False
    if opening := _OPENING.match(text):
        closing = _first_closing(text, opening.end())
        if closing is None:
            return [(text[opening.end() :], True)]
        parts.append((text[opening.end() : closing.start()], True))
        at = closing.end()
    blanked = text[:at] + _CODE.sub(_blank, text[at : at + _SEARCHED_CHARS])
    for number, tag in enumerate(_TAG.finditer(blanked, at)):
        is_closing = bool(tag[1])
        if parts and is_closing is not is_inside:
            continue
        if not parts and not _begins_reasoning(blanked, tag, is_first=number == 0):
            continue
        parts.append((text[at : tag.start()], is_closing))
        at, is_inside = tag.end(), not is_closing
    if is_inside and not any(is_reasoning for _, is_reasoning in parts):
        return []
    if parts:
        parts.append((text[at:], is_inside))
    return [part for part in parts if part[0].strip()] or parts


def _first_closing(text: str, start: int) -> re.Match[str] | None:
    """Return where the reasoning ends that a text begins with; code in it may show the tag."""
    searched = _CODE.sub(_blank, text[start : start + _SEARCHED_CHARS])
    closing = next((tag for tag in _TAG.finditer(searched) if tag[1]), None)
    # A stray backtick may have hidden the end.
    at = start if closing is None else start + closing.start()
    return next((tag for tag in _TAG.finditer(text, at) if tag[1]), None)


def _begins_reasoning(text: str, tag: re.Match[str], *, is_first: bool) -> bool:
    """Return whether a tag with none before it that counts stands where a model puts it."""
    begins_line = not text[text.rfind("\n", 0, tag.start()) + 1 : tag.start()].strip()
    if tag[1]:
        return is_first and (begins_line or text.startswith("\n\n", tag.end()))
    return begins_line


def _blank(code: re.Match[str]) -> str:
    return " " * len(code[0])


# ------------------------------------------------------------------ media

# Types of blocks in both of LangChain's forms, and in those of the providers.
_KINDS = {
    **dict.fromkeys(("image", "image_url", "input_image", "computer_screenshot"), "image"),
    **dict.fromkeys(("audio", "audio_url", "input_audio", "output_audio"), "audio"),
    **dict.fromkeys(("video", "video_url", "input_video"), "video"),
    **dict.fromkeys(
        ("file", "input_file", "document", "media", "file_data", "text-plain", "container_upload"),
        "file",
    ),
}
# Fields of a block that hold its content, or refer to it.
_CONTENT = frozenset({
    "base64", "data", "url", "file_id", "file_uri", "file_url", "file_data", "source",
    "source_type", "file", "image_url", "input_audio", "audio_url", "video_url", "image", "audio",
    "video", "document", "text",
})  # fmt: skip
# Other data with a type, such as the entries of a folder, have other fields as well.
_FIELDS = _CONTENT | {
    "type", "id", "index", "mime_type", "media_type", "mimeType", "format", "extras", "metadata",
    "video_metadata", "media_resolution", "detail", "cache_control", "title", "context",
    "citations", "filename", "name", "transcript", "expires_at",
}  # fmt: skip
_MIME_FIELDS = ("mime_type", "media_type", "mimeType", "file_data", "filename", "format")
_MIME = re.compile(r"(?:data:)?([a-z]{1,20}/[\w.+\-]{1,80})(?:[;,]|\Z)", re.IGNORECASE | re.ASCII)
_MAX_NAME_CHARS = 300


def media_mark(block: Mapping[Any, Any]) -> str:
    """Return the mark for an image, audio, video or file block; "" for any other value."""
    kind = block.get("type")
    kind = _KINDS.get(kind) if isinstance(kind, str) else None
    if kind is None or len(block) > len(_FIELDS):
        return ""
    fields = block.keys()
    if not fields <= _FIELDS or fields.isdisjoint(_CONTENT):
        return ""
    if kind != "file":
        return mark_of(kind)
    mime = next(filter(None, map(_mime_of, _holders(block))), "")
    family = mime.partition("/")[0]
    return mark_of(family) if family in ("image", "audio", "video") else mark_of(kind, mime)


def data_mark(value: Mapping[Any, Any]) -> str:
    """Return the mark for a block that holds the data of its media; "" for any other value.

    Outside a message's content, a mere reference to a file is data like any other.
    """
    mark = media_mark(value)
    return mark if mark and any(map(_holds_data, _holders(value))) else ""


def _holders(block: Mapping[Any, Any]) -> list[Mapping[Any, Any]]:
    """Return a block and the mappings in it: any of them may describe its media."""
    return [block, *(one for one in block.values() if isinstance(one, Mapping))]


def _holds_data(holder: Mapping[Any, Any]) -> bool:
    if any(holder.get(field) for field in ("base64", "data", "bytes", "file_data")):
        return True
    addresses = (holder.get("url"), holder.get("image_url"))
    return any(isinstance(one, str) and one.startswith("data:") for one in addresses)


def mark_of(kind: str, mime: str = "") -> str:
    """Return the mark for a kind of media."""
    return f"[{kind}: {mime}]" if mime else f"[{kind}]"


def _mime_of(holder: Mapping[Any, Any]) -> str:
    for name in _MIME_FIELDS:
        value = holder.get(name)
        if not isinstance(value, str):
            continue
        if match := _MIME.match(value):
            return match[1].lower()
        if name in ("filename", "format") and len(value) <= _MAX_NAME_CHARS:
            ending = value.rpartition(".")[2].lower()
            # Not `guess_type`, which reads files of the machine.
            if mime := mimetypes.types_map.get(f".{ending}"):
                return mime
    return ""
