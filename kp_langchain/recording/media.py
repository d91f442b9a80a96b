"""Marks in place of media: `[image]`, `[audio]`, `[video]`, `[file: application/pdf]`.

Nothing else of a picture, a recording or a document is kept: no data, no address, no file name.
"""

from __future__ import annotations

import mimetypes
import re
from collections.abc import Iterator, Mapping
from typing import Any

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
