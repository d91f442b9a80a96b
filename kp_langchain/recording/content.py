"""What the content of a message says: text, reasoning, and marks in place of media.

A mark is `[image]`, `[audio]`, `[video]` or `[file: application/pdf]`. Nothing else of a picture, a
recording or a document is kept: no data, no address, no file name.
"""

from __future__ import annotations

import mimetypes
import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

from kp_langchain.recording.safe_reads import MAPPING, MAX_ITEMS, clip, join_texts

_TEXTUAL = frozenset({
    "text", "output_text", "refusal", "search_result", "reasoning", "thinking", "reasoning_content",
})  # fmt: skip


# ------------------------------------------------------------------ texts


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
            text = reasoning_text(block if kind == "reasoning" else block.get(kind))
        case _:
            text = media_mark(block)
    return text if isinstance(text, str) else ""


def reasoning_text(value: object) -> str:
    """Return the text of a reasoning block, or of its counterpart in `additional_kwargs`."""
    if isinstance(value, MAPPING):
        value = next(filter(None, map(value.get, ("reasoning", "text", "summary", "content"))), "")
    return _join_lines(value)


def _join_lines(value: object) -> str:
    if isinstance(value, str):
        return value
    if not isinstance(value, (list, tuple)):
        return ""
    parts = value[:MAX_ITEMS]
    texts = (part.get("text") if isinstance(part, MAPPING) else part for part in parts)
    texts = (_join_lines(text) if isinstance(text, list) else text for text in texts)
    return "\n".join(text for text in texts if isinstance(text, str) and text)


def unwrap(block: Any) -> Any:
    """Return the provider's own block if LangChain wrapped it as a `non_standard` one."""
    if isinstance(block, MAPPING) and block.get("type") == "non_standard":
        return block.get("value")
    return block


def is_content_list(items: Sequence[object]) -> bool:
    """Return whether a list is a message's content, and not data whose items have a `type`."""
    return all(map(_is_block, items)) and any(map(is_content, items))


def is_content(block: object) -> bool:
    """Return whether `block` is a text, or a block of a kind that this module reads."""
    if isinstance(block, str):
        return True
    block = unwrap(block)
    if not isinstance(block, MAPPING):
        return False
    kind = block.get("type")
    return (isinstance(kind, str) and kind in _TEXTUAL) or bool(media_mark(block))


def _is_block(item: object) -> bool:
    return isinstance(item, str) or (isinstance(item, MAPPING) and "type" in item)


# ------------------------------------------------------------------ reasoning between tags

# Tags count only where a model puts them: a text that shows them in code, or mentions them in a
# sentence, is an answer.
_TAG = re.compile(r"<(/?)think(?:ing)?>")
_OPENING = re.compile(r"\s*<think(?:ing)?>")
_CODE = re.compile(r"```.*?```|`[^`\n]+`", re.DOTALL)
_CODE_LEFT_OPEN = re.compile(r"```.*?(?:```|\Z)|`[^`\n]+`", re.DOTALL)
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
    opening tag that is never closed encloses all the rest. A text whose first tag is a closing one
    begins with reasoning: the templates of some models put the opening tag into the prompt.

    Returns:
        Each part, and whether it is reasoning.
    """
    if "<think" not in text and "</think" not in text:
        return []
    parts: list[tuple[str, bool]] = []
    at = _leading(text, parts)
    has_reasoning = at > 0
    outside_code = _CODE_LEFT_OPEN.sub(_blank, text[at : at + _SEARCHED_CHARS])
    text, at = text[at:], 0
    begin: re.Match[str] | None = None
    for tag in _TAG.finditer(outside_code):
        if begin is None:
            if not tag[1] and (has_reasoning or _begins_line(outside_code, tag.start())):
                begin = tag
        elif tag[1]:
            parts.append((text[at : begin.start()], False))
            parts.append((text[begin.end() : tag.start()], True))
            at, begin, has_reasoning = tag.end(), None, True
    if begin is not None and has_reasoning:
        parts.append((text[at : begin.start()], False))
        parts.append((text[begin.end() :], True))
    elif has_reasoning:
        parts.append((text[at:], False))
    return [part for part in parts if part[0].strip()] or parts


def _leading(text: str, parts: list[tuple[str, bool]]) -> int:
    """Add the reasoning that a text begins with to `parts`; return the position after it."""
    outside_code = _CODE.sub(_blank, text[:_SEARCHED_CHARS])
    opening = _OPENING.match(text)
    start = opening.end() if opening else 0
    closing = next(
        (tag for tag in _TAG.finditer(outside_code, start) if tag[1] or not opening), None
    )
    if opening:
        # A stray backtick may have hidden the end.
        closing = closing or next((tag for tag in _TAG.finditer(text, start) if tag[1]), None)
    elif closing is None or not closing[1] or not _stands_alone(outside_code, closing):
        return 0
    end = len(text) if closing is None else closing.start()
    parts.append((text[start:end], True))
    return end if closing is None else closing.end()


def _stands_alone(text: str, tag: re.Match[str]) -> bool:
    return _begins_line(text, tag.start()) or text.startswith("\n\n", tag.end())


def _begins_line(text: str, at: int) -> bool:
    return not text[text.rfind("\n", 0, at) + 1 : at].strip()


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
_NAMED_BY_MIME = ("image", "audio", "video")
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
_MIME_FIELDS = ("mime_type", "media_type", "mimeType")
_MIME = re.compile(r"[a-z]{1,20}/[\w.+\-]{1,80}", re.IGNORECASE | re.ASCII)
_DATA_URL = re.compile(r"data:([a-z]{1,20}/[\w.+\-]{1,80})[;,]", re.IGNORECASE | re.ASCII)
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
    return mark_of(kind, _mime_of(block) if kind == "file" else "")


def data_mark(value: Mapping[Any, Any]) -> str:
    """Return the mark for a block that holds the data of its media; "" for any other value.

    Outside a message's content, a mere reference to a file is data like any other.
    """
    mark = media_mark(value)
    if not mark:
        return ""
    holders = [value, *(one for one in value.values() if isinstance(one, Mapping))]
    return mark if any(map(_holds_data, holders)) else ""


def _holds_data(holder: Mapping[Any, Any]) -> bool:
    if any(holder.get(field) for field in ("base64", "data", "bytes", "file_data")):
        return True
    addresses = (holder.get("url"), holder.get("image_url"))
    return any(isinstance(one, str) and one.startswith("data:") for one in addresses)


def mark_of(kind: str, mime: str = "") -> str:
    """Return the mark for a kind of media, or for a file by its MIME type."""
    if kind == "file" and (family := mime.partition("/")[0]) in _NAMED_BY_MIME:
        kind, mime = family, ""
    return f"[{kind}: {mime}]" if mime else f"[{kind}]"


def _mime_of(block: Mapping[Any, Any]) -> str:
    holders = [block, *(one for one in block.values() if isinstance(one, Mapping))]
    return next((mime for holder in holders for mime in _mimes(holder)), "")


def _mimes(holder: Mapping[Any, Any]) -> Iterator[str]:
    for field in _MIME_FIELDS:
        value = holder.get(field)
        if isinstance(value, str) and _MIME.fullmatch(value):
            yield value.lower()
    for field in _CONTENT:
        value = holder.get(field)
        if isinstance(value, str) and (match := _DATA_URL.match(value)):
            yield match[1].lower()
    for field in ("filename", "name", "format"):
        value = holder.get(field)
        if isinstance(value, str) and len(value) <= _MAX_NAME_CHARS:
            _, dot, ending = value.rpartition(".")
            # Not `guess_type`, which reads files of the machine.
            mime = mimetypes.types_map.get(f".{ending.lower()}")
            if mime and (dot or field == "format"):
                yield mime
