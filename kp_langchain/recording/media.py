"""Marks for what is no text: `[image]`, `[audio]`, `[video]`, `[file: application/pdf]`.

Nothing else is kept of a picture, a recording or a document: no data, no address, no name.
"""

from __future__ import annotations

import mimetypes
import re
from collections.abc import Iterator, Mapping
from typing import Any

# What LangChain (both its forms) and the providers call their blocks.
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
# A block holds its content, or the way to it, in one of these.
_CONTENT = frozenset({
    "base64", "data", "url", "file_id", "file_uri", "file_url", "file_data", "source",
    "source_type", "file", "image_url", "input_audio", "audio_url", "video_url", "image", "audio",
    "video", "document", "text",
})  # fmt: skip
# Data that merely have a type, such as the entries of a folder, have other fields, too.
_FIELDS = _CONTENT | {
    "type", "id", "index", "mime_type", "media_type", "mimeType", "format", "extras", "metadata",
    "video_metadata", "media_resolution", "detail", "cache_control", "title", "context",
    "citations", "filename", "name", "transcript", "expires_at",
}  # fmt: skip
_MIME_FIELDS = ("mime_type", "media_type", "mimeType")
_MIME = re.compile(r"[a-z]{1,20}/[\w.+\-]{1,80}", re.IGNORECASE | re.ASCII)
_DATA_URL = re.compile(r"data:([a-z]{1,20}/[\w.+\-]{1,80})[;,]", re.IGNORECASE | re.ASCII)
_LONGEST_NAME = 300


def media_mark(block: Mapping[Any, Any]) -> str:
    """Return the mark for an image, audio, video or file block; "" for everything else."""
    kind = block.get("type")
    kind = _KINDS.get(kind) if isinstance(kind, str) else None
    if kind is None or len(block) > len(_FIELDS):
        return ""
    fields = block.keys()
    if not fields <= _FIELDS or fields.isdisjoint(_CONTENT):
        return ""
    return mark_of(kind, _mime_of(block) if kind == "file" else "")


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
        if isinstance(value, str) and (found := _DATA_URL.match(value)):
            yield found[1].lower()
    for field in ("filename", "name", "format"):
        value = holder.get(field)
        if isinstance(value, str) and len(value) <= _LONGEST_NAME:
            _, dot, ending = value.rpartition(".")
            # The table alone: to guess, `mimetypes` reads the machine's files.
            mime = mimetypes.types_map.get(f".{ending.lower()}")
            if mime and (dot or field == "format"):
                yield mime
