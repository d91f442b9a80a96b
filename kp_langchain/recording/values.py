"""Readable text and plain JSON from whatever LangChain hands over, within bounds.

Nothing costs more than its bound: a tool's output of five megabytes is cut before it is read, and
large structures are written out as JSON only later, on the engine's thread; see `gist` and
`gist_text`.

What a message says is text, reasoning, and marks in place of media: `[image]`, `[audio]`, `[video]`
or `[file]`. Nothing else of a picture, a recording or a document is kept: no data, no address, no
file name. Messages and LangGraph's commands are recognised by their shape, so neither has to be
imported.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, Final

from kp_langchain import values
from kp_langchain.recording.bounds import NAME_CHARS, default_on_error, member
from kp_langchain.values import (
    EXACT_INTEGERS,
    MAX_ALL_ITEMS,
    MAX_DEPTH,
    MAX_ITEMS,
    clip,
    join_texts,
    text_size,
)

NOT_A_MODEL: Final = frozenset({"human", "user", "tool", "system", "developer", "function"})
"""Roles and types of the messages that no model wrote: tags in them are text, not reasoning."""
_PLAIN = frozenset({dict, list, tuple, str, int, float, bool, type(None)})
_OF_COMMANDS = ("update", "resume", "goto")


# ------------------------------------------------------------------ messages in a value


def is_message(value: object) -> bool:
    """Return whether `value` is a LangChain message, or a tool's message in a dict."""
    if type(value) is dict:
        return "tool_call_id" in value and "content" in value
    return hasattr(value, "additional_kwargs") and isinstance(getattr(value, "type", None), str)


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


def _items(value: object, depth: int) -> Iterator[object]:
    if is_message(value) or depth >= MAX_DEPTH:
        yield value
    elif isinstance(value, dict):
        for item in islice(value.values(), MAX_ITEMS):
            yield from item[-MAX_ITEMS:] if isinstance(item, (list, tuple)) else (item,)
    elif isinstance(value, (list, tuple)):
        for item in value[-MAX_ITEMS:]:
            yield from _items(item, depth + 1) if is_command(item) else (item,)
    elif is_command(value):
        # What it updates a state with, and what it sends to the nodes that it starts.
        yield from _items(value.update, depth + 1)  # type: ignore[attr-defined]
        goto = value.goto  # type: ignore[attr-defined]
        for target in goto[:MAX_ITEMS] if isinstance(goto, (list, tuple)) else (goto,):
            yield from _items(getattr(target, "arg", None), depth + 1)


def role_and_content(message: object) -> tuple[object, object]:
    """Return who wrote a message and what it holds, from any form of message LangChain reads."""
    if (role := getattr(message, "type", None)) is not None:  # like most
        return role, getattr(message, "content", None)
    if isinstance(message, str):
        return "human", message
    if isinstance(message, (list, tuple)) and len(message) == 2:
        return message[0], message[1]
    return member(message, "role") or member(message, "type"), member(message, "content")


# ------------------------------------------------------------------ what a message says


def message_text(message: object, limit: int) -> str:
    """Return the text and reasoning of a message, without signatures, images and the like."""
    role, content = role_and_content(message)
    extra = additional_kwargs(message)
    text = (content_text if role in NOT_A_MODEL else thought_text)(content, limit)
    if not extra:
        return text
    return join_texts(
        (additional_reasoning(extra, limit), text, additional_text(extra, limit)), limit
    )


def additional_kwargs(message: object) -> Mapping[str, Any]:
    """Return a message's `additional_kwargs`, which some models fill in addition to the content."""
    extra = member(message, "additional_kwargs")
    return extra if isinstance(extra, dict) else {}


def additional_reasoning(extra: Mapping[str, Any], limit: int) -> str:
    """Return the reasoning in a message's `additional_kwargs`."""
    text = extra.get("reasoning_content") or extra.get("reasoning")
    return clip(text, limit) if isinstance(text, str) else ""


def additional_text(extra: Mapping[str, Any], limit: int) -> str:
    """Return what a model says in `additional_kwargs`: the words of its voice, or a refusal."""
    texts = (member(extra.get("audio"), "transcript"), extra.get("refusal"))
    return join_texts((clip(one, limit) for one in texts if isinstance(one, str)), limit, "\n")


def thought_text(content: object, limit: int) -> str:
    """Return what a model's content says and reasons, without the tags around its reasoning."""
    text = content if isinstance(content, str) else content_text(content, limit)
    parts = reasoning_parts(text)
    if len(parts) == 1:
        return clip(text, limit)
    return join_texts((clip(part.strip(), limit) for part, _ in parts), limit)


def content_text(content: object, limit: int) -> str:
    """Return the text and reasoning blocks of a message's content, in order."""
    if isinstance(content, str):
        return clip(content, limit)
    if not isinstance(content, (list, tuple)):
        return ""
    texts = (clip(block_text(block), limit) for block in content[:MAX_ITEMS])
    return join_texts(texts, limit, separator="\n")


def block_text(block: object, *, with_reasoning: bool = True) -> str:
    """Return what a block says or reasons, or the mark for its media; "" for other blocks."""
    if isinstance(block, str):
        return block
    if not isinstance(block, dict):
        return ""
    text: object
    match block.get("type"):
        case "text" | "output_text" | None:
            text = block.get("text")
        case "refusal":
            text = block.get("refusal")
        case "search_result":  # of the user's own tool, for the model to quote
            text = f"{block.get('title')}\n{_join_lines(block.get('content'))}"
        case "reasoning" if with_reasoning:
            text = _join_lines(block.get("reasoning") or block.get("summary"))
        case "thinking" if with_reasoning:
            text = _join_lines(block.get("thinking"))
        case "reasoning_content" if with_reasoning:
            text = member(block.get("reasoning_content"), "text")
        case _:
            text = media_mark(block)
    return text if isinstance(text, str) else ""


def _join_lines(value: object) -> object:
    if not isinstance(value, list):
        return value
    texts = (member(one, "text") for one in value[:MAX_ITEMS])
    return "\n".join(text for text in texts if isinstance(text, str))


_OPENING = re.compile(r"\s*<think(?:ing)?>")
_CLOSING = re.compile(r"</think(?:ing)?>")


def reasoning_parts(text: str) -> list[tuple[str, bool]]:
    """Return the parts of a model's text in order, without the tags around its reasoning.

    Tags count where the text begins with them: elsewhere it may be about the tags. The templates of
    some models put the opening tag into the prompt. Then the closing one counts if it begins a
    line, or ends a paragraph.

    Returns:
        Each part, and whether it is reasoning.
    """
    if "<think" not in text and "</think" not in text:  # like most
        return [(text, False)]
    reasoning, rest = _leading_reasoning(text)
    return [(reasoning, True), (rest, False)]


def _leading_reasoning(text: str) -> tuple[str, str]:
    """Return the reasoning that a text begins with, and the text after it."""
    opening = _OPENING.match(text)
    closing = _CLOSING.search(text, opening.end() if opening else 0)
    if opening:
        start, stop = closing.span() if closing else (len(text), len(text))
        return text[opening.end() : start], text[stop:]
    if closing is None or "<think" in text[: closing.start()]:
        return "", text
    begins_line = not text[text.rfind("\n", 0, closing.start()) + 1 : closing.start()].strip()
    if begins_line or text.startswith("\n\n", closing.end()):
        return text[: closing.start()], text[closing.end() :]
    return "", text


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
_TEXTUAL = (
    "text", "output_text", "refusal", "search_result", "reasoning", "thinking", "reasoning_content",
)  # fmt: skip


def media_mark(block: Mapping[Any, Any]) -> str:
    """Return the mark for an image, audio, video or file block; "" for any other value."""
    kind = block.get("type")
    kind = _KINDS.get(kind) if isinstance(kind, str) else None
    if kind is None or _CONTENT.isdisjoint(block):
        return ""
    family = str(block.get("mime_type")).partition("/")[0]
    return f"[{family if kind == 'file' and family in ('image', 'audio', 'video') else kind}]"


def data_mark(value: Mapping[Any, Any]) -> str:
    """Return the mark for a block that holds the data of its media; "" for any other value.

    Outside a message's content, a mere reference to a file is data like any other.
    """
    if not (mark := media_mark(value)):  # like most
        return ""
    holders = (value, *(one for one in value.values() if isinstance(one, dict)))
    return mark if any(map(_holds_data, holders)) else ""


def _holds_data(holder: Mapping[Any, Any]) -> bool:
    if any(holder.get(name) for name in ("base64", "data", "bytes", "file_data")):
        return True
    addresses = (holder.get("url"), holder.get("image_url"))
    return any(isinstance(one, str) and one.startswith("data:") for one in addresses)


def _is_content(block: object) -> bool:
    """Return whether an item of a list stands in a message's content, and is no mere data."""
    if not isinstance(block, dict):
        return isinstance(block, str)
    return block.get("type") in _TEXTUAL or bool(data_mark(block))


# ------------------------------------------------------------------ plain JSON

_PLAIN_TYPES = (str, int, bool, type(None))


def plain(value: object, limit: int) -> Any:
    """Return `kp_langchain.values.plain`, with messages, documents and media as text."""
    return values.plain(value, limit, _text_of)


def _text_of(value: object, limit: int) -> str | None:
    """Return the text of a message or document, or the mark for media; None for other values."""
    if type(value) is dict:
        return data_mark(value) or None
    if isinstance(value, (list, tuple)):
        return None
    if is_message(value):
        return message_text(value, limit)
    page = getattr(value, "page_content", None)
    return clip(page, limit) if isinstance(page, str) else None


def as_input(inputs: object, limit: int) -> dict[str, Any]:
    """Return a tool's input in the form of `plain`, as a dict."""
    if type(inputs) is dict and len(inputs) <= MAX_ITEMS:
        copy = dict(inputs)  # first, because another thread may change it
        if _is_plain(copy, limit):
            return copy
    copy = plain(inputs, limit)
    return copy if isinstance(copy, dict) else {"input": copy}


def _is_plain(inputs: dict[Any, Any], limit: int) -> bool:
    """Return whether a dict holds only texts, integers and the like that `plain` would only copy.

    Most inputs of tools do, and `plain` would take 10 microseconds of the agent's time.
    """
    for key, value in inputs.items():
        if type(key) is not str or len(key) > NAME_CHARS or type(value) not in _PLAIN_TYPES:
            return False
        if type(value) is int and not -EXACT_INTEGERS <= value <= EXACT_INTEGERS:
            return False
    return text_size(inputs) < limit


# ------------------------------------------------------------------ readable text


def as_text(value: object, limit: int) -> str:
    """Return what a reader would want of a value as text, cut to `limit`; see `gist`."""
    return gist_text(gist(value, limit), limit)


def gist_text(gist: Any, limit: int) -> str:
    """Return what `gist` returned as text: structures become compact JSON."""
    if isinstance(gist, str):
        return gist
    return clip(json.dumps(gist, ensure_ascii=False, separators=(", ", ": ")), limit)


def gist(value: object, limit: int) -> Any:
    """Return what a reader would want of a tool's output or a run's result, cut to `limit`.

    Messages give their text, documents their page content, commands the messages they carry.
    Structures are copied in the form of `plain`, which `gist_text` writes out when there is time.
    """
    if value is None:
        return ""
    if type(value) is str:  # like most
        return clip(value, limit)
    text = _text_of_messages(value, limit)
    if text is not None:
        return text
    copy = plain(value, limit)
    return clip(copy, limit) if isinstance(copy, str) else copy


def _text_of_messages(value: object, limit: int) -> Any:
    """Return what messages, documents and contents of messages say; None for other values."""
    if is_message(value):
        return message_text(value, limit) or _data_of(value, limit)
    if isinstance(value, (list, tuple)) and value and hasattr(value[0], "page_content"):
        return join_texts((as_text(item, limit) for item in value[:MAX_ITEMS]), limit)
    if messages := messages_in(value):
        texts = (message_text(message, limit) for message in messages)
        return join_texts(texts, limit) or _data_of(value, limit)
    if isinstance(value, (list, tuple)) and value and all(map(_is_content, value[:MAX_ITEMS])):
        return content_text(value, limit)
    return (data_mark(value) or None) if type(value) is dict else None


def _data_of(value: object, limit: int) -> Any:
    """Return the content of a tool's message that says nothing in words; "" of other values."""
    role, content = role_and_content(value)
    return plain(content, limit) if role == "tool" and content else ""
