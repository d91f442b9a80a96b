"""The text of one block of a message's content."""

from __future__ import annotations

from typing import Any

from kp_langchain.recording.media import media_mark
from kp_langchain.recording.safe_reads import MAPPING, MAX_ITEMS

_TEXTUAL = frozenset({
    "text", "output_text", "refusal", "search_result", "reasoning", "thinking", "reasoning_content",
})  # fmt: skip


def unwrap(block: Any) -> Any:
    """Return the provider's own block if LangChain wrapped it as a `non_standard` one."""
    if isinstance(block, MAPPING) and block.get("type") == "non_standard":
        return block.get("value")
    return block


def is_content(block: object) -> bool:
    """Return whether `block` is a text, or a block of a kind that this module reads."""
    if isinstance(block, str):
        return True
    block = unwrap(block)
    if not isinstance(block, MAPPING):
        return False
    kind = block.get("type")
    return (isinstance(kind, str) and kind in _TEXTUAL) or bool(media_mark(block))


def block_text(block: object) -> str:
    """Return what a block says or reasons, or the mark for its media; "" for other blocks."""
    return spoken_text(block) or _block_reasoning(unwrap(block))


def spoken_text(block: object) -> str:
    """Return what a block says, or the mark for its media; "" for reasoning and other blocks."""
    if isinstance(block, str):
        return block
    block = unwrap(block)
    if not isinstance(block, MAPPING):
        return ""
    match block.get("type"):
        case "text" | "output_text" | None:
            text = block.get("text")
        case "refusal":
            text = block.get("refusal")
        case "search_result":  # of the user's own tool, for the model to quote
            text = _join_lines([block.get("title"), block.get("content")])
        case _:
            text = media_mark(block)
    return text if isinstance(text, str) else ""


def _block_reasoning(block: object) -> str:
    if not isinstance(block, MAPPING):
        return ""
    match block.get("type"):
        case "reasoning":
            return reasoning_text(block)
        case "thinking":
            return _join_lines(block.get("thinking"))
        case "reasoning_content":
            return reasoning_text(block.get("reasoning_content"))
    return ""


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
