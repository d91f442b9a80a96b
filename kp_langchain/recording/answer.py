"""The answer that a run's outputs hold."""

from __future__ import annotations

from typing import Any

from kp_langchain.recording.clipping import clip, join_texts
from kp_langchain.recording.content_blocks import spoken_text
from kp_langchain.recording.media import mark_of
from kp_langchain.recording.messages import (
    NOT_A_MODEL,
    additional_kwargs,
    additional_text,
    content_text,
    is_from_model,
    is_message,
    role_and_content,
)
from kp_langchain.recording.plain_values import gist
from kp_langchain.recording.provider_tools import generated_media, role_of
from kp_langchain.recording.reasoning import split_reasoning
from kp_langchain.recording.safe_reads import (
    MAPPING,
    MAX_ALL_ITEMS,
    default_on_error,
    list_items,
)

_KEYS = ("output", "answer", "result", "response", "final_answer", "text", "content")


@default_on_error(None)
def answer_in(outputs: object, limit: int) -> Any:
    """Return the `gist` of the answer that a run's outputs hold; None where nothing was returned.

    Args:
        outputs: What the run returned.
        limit: Characters to keep.
    """
    if outputs is None:
        return None
    if isinstance(outputs, MAPPING):
        if (response := structured_response_in(outputs)) is not None:
            return gist(response, limit)
        messages = outputs.get("messages")
        if isinstance(messages, (list, tuple)) and messages:
            return _last_message(messages[-1], limit)
        for key in _KEYS:
            if key in outputs:
                return _value(outputs[key], limit)
        return gist(outputs, limit) if outputs else ""
    return _last_message(outputs, limit) if is_message(outputs) else _value(outputs, limit)


@default_on_error(None)
def structured_response_in(outputs: object) -> Any:
    """Return the structured response that an agent's outputs hold; None if they hold none."""
    return outputs.get("structured_response") if isinstance(outputs, MAPPING) else None


def _value(value: object, limit: int) -> Any:
    # A parser returns a model's text as it is, reasoning included.
    return gist(_without_reasoning(value) if isinstance(value, str) else value, limit)


def _last_message(message: object, limit: int) -> Any:
    if is_message(message):
        return _message_answer(message, limit)
    role, content = role_and_content(message)
    if role is None:
        return gist(message, limit)
    text = content_text(content, limit)
    return text if role in NOT_A_MODEL else _without_reasoning(text)


def _message_answer(message: object, limit: int) -> str:
    """Return the text of a message without its reasoning, which alone is not an answer.

    Where the model had the provider run tools, what it says after the last of them is its answer.
    """
    content, extra = getattr(message, "content", None), additional_kwargs(message)
    answer_of = _without_reasoning if is_from_model(message) else str
    if isinstance(content, str):
        text = clip(answer_of(content).strip(), limit)
        return join_texts(iter((text, additional_text(extra, limit))), limit) if extra else text
    blocks = content[:MAX_ALL_ITEMS] if isinstance(content, (list, tuple)) else []
    kinds = [block.get("type") if isinstance(block, MAPPING) else None for block in blocks]
    last = max((at for at, kind in enumerate(kinds, 1) if role_of(kind)), default=0)
    for part in (blocks[last:], blocks if last else ()):
        texts = (clip(answer_of(spoken_text(block)), limit) for block in part)
        if text := join_texts(texts, limit, separator="\n").strip():
            break
    text = join_texts(iter((text, additional_text(extra, limit))), limit)
    return text or _generated_media_marks([*blocks, *list_items(extra.get("tool_outputs"))], limit)


def _without_reasoning(text: str) -> str:
    return split_reasoning(text)[1]


def _generated_media_marks(blocks: list[Any], limit: int) -> str:
    """Return marks for the media that a provider's tool generated: an answer may be just that."""
    results = (one for one in blocks if isinstance(one, MAPPING) and one.get("result"))
    families = (
        generated_media(kind) for one in results if isinstance(kind := one.get("type"), str)
    )
    return join_texts((mark_of(family) for family in families if family), limit, separator="\n")
