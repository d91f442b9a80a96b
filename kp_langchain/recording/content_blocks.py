"""The text of one block of a message's content."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kp_langchain.recording.media import media_mark

_MOST_PARTS = 200
_TEXTUAL = frozenset({
    "text", "output_text", "refusal", "search_result", "reasoning", "thinking", "reasoning_content",
})  # fmt: skip
_MAPPING = (dict, Mapping)  # dict first: asking the abstract class costs ten times as much


def unwrapped(block: Any) -> Any:
    """Return the block itself where LangChain wrapped it, because its form has no name for it."""
    if isinstance(block, _MAPPING) and block.get("type") == "non_standard":
        return block.get("value")
    return block


def is_content(block: object) -> bool:
    """Return whether a text, or a block of a kind that is read here."""
    if isinstance(block, str):
        return True
    block = unwrapped(block)
    if not isinstance(block, _MAPPING):
        return False
    kind = block.get("type")
    return (isinstance(kind, str) and kind in _TEXTUAL) or bool(media_mark(block))


def block_text(block: object) -> str:
    """Return what a block says or reasons, or the mark for what is no text; else ""."""
    return said_text(block) or _reasoning(unwrapped(block))


def said_text(block: object) -> str:
    """Return what a block says, or the mark for what is no text; "" for reasoning."""
    if isinstance(block, str):
        return block
    block = unwrapped(block)
    if not isinstance(block, _MAPPING):
        return ""
    match block.get("type"):
        case "text" | "output_text" | None:
            text = block.get("text")
        case "refusal":
            text = block.get("refusal")
        case "search_result":  # of a tool of the caller's, for the model to quote
            text = _joined([block.get("title"), block.get("content")])
        case _:
            text = media_mark(block)
    return text if isinstance(text, str) else ""


def _reasoning(block: object) -> str:
    if not isinstance(block, _MAPPING):
        return ""
    match block.get("type"):
        case "reasoning":
            return reasoning_text(block)
        case "thinking":
            return _joined(block.get("thinking"))
        case "reasoning_content":
            return reasoning_text(block.get("reasoning_content"))
    return ""


def reasoning_text(value: object) -> str:
    """Return the text of a reasoning block, or of what stands for one beside the content."""
    if isinstance(value, _MAPPING):
        value = next(filter(None, map(value.get, ("reasoning", "text", "summary", "content"))), "")
    return _joined(value)


def _joined(value: object) -> str:
    if isinstance(value, str):
        return value
    if not isinstance(value, (list, tuple)):
        return ""
    parts = value[:_MOST_PARTS]
    texts = (part.get("text") if isinstance(part, _MAPPING) else part for part in parts)
    texts = (_joined(text) if isinstance(text, list) else text for text in texts)
    return "\n".join(text for text in texts if isinstance(text, str) and text)
