"""The task that a run's inputs state."""

from __future__ import annotations

from itertools import islice

from kp_langchain.recording.clipping import clip
from kp_langchain.recording.messages import content_text, is_message, role_and_content
from kp_langchain.recording.plain_values import fields_of
from kp_langchain.recording.safe_reads import MAPPING, MAX_ITEMS, default_on_error

# The keys under which chains usually carry the task, the most telling first.
_KEYS = (
    "objective", "task", "question", "query", "input", "user_input", "request", "goal", "message",
    "prompt", "text",
)  # fmt: skip


@default_on_error("")
def objective_in(inputs: object, limit: int) -> str:
    """Return the task that a run's inputs state; "" if they state none.

    It is the last human message, else the text under a usual key (`input`, `question`, ...), else
    the only text among the inputs.

    Args:
        inputs: The inputs of the run, as LangChain hands them over.
        limit: Characters to keep.
    """
    if isinstance(inputs, str):
        return clip(inputs.strip(), limit)
    if is_message(inputs):
        return _last_human_text([inputs], limit)
    if isinstance(inputs, (list, tuple)):
        return _last_human_text(inputs, limit)
    to_messages = getattr(inputs, "to_messages", None)  # a prompt value
    if callable(to_messages):
        return _last_human_text(to_messages(), limit)
    fields = inputs if isinstance(inputs, MAPPING) else fields_of(inputs)
    if fields is None:
        return ""
    text = _last_human_text(fields.get("messages"), limit)
    if text:
        return text
    for key in _KEYS:
        value = fields.get(key)
        if isinstance(value, str) and value.strip():
            return clip(value.strip(), limit)
        text = _last_human_text(value, limit)
        if text:
            return text
    items = islice(fields.values(), MAX_ITEMS)
    texts = (item for item in items if isinstance(item, str) and item.strip())
    first = next(texts, "")
    return clip(first.strip(), limit) if next(texts, None) is None else ""


def _last_human_text(messages: object, limit: int) -> str:
    """Return the text of the last human message in a list of messages in any of their forms."""
    if not isinstance(messages, (list, tuple)):
        return ""
    for message in islice(reversed(messages), MAX_ITEMS):
        role, content = role_and_content(message)
        if role in ("human", "user"):
            return content_text(content, limit).strip()
    return ""
