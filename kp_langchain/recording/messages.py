"""Text and plain JSON out of whatever LangChain hands over: bounded, never raising, no deep copies.

Everything here runs inside the user's agent, on values that belong to the user. So nothing is
changed, nothing is kept by reference, and nothing costs more than its bound: a tool output of
five megabytes is cut before it is looked at.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence, Set
from itertools import islice
from typing import Any

MAX_ITEMS = 200
MAPPING = (dict, Mapping)  # dict first: asking the abstract class costs ten times as much
_NOTE = re.compile(r"\.\.\. \[(\d+) more characters\]\Z")
MAX_DEPTH = 8

# The keys under which chains usually carry the task, most telling first.
OBJECTIVE_KEYS = (
    "objective", "task", "question", "query", "input", "user_input", "request", "goal", "message",
    "prompt", "text",
)  # fmt: skip
ANSWER_KEYS = ("output", "answer", "result", "response", "final_answer", "text", "content")


def clip(text: str, limit: int) -> str:
    """Return `text`, cut to `limit` characters; a cut text says how much is missing."""
    if len(text) <= limit:
        return text
    missing = len(text) - limit
    if (earlier := _NOTE.search(text, len(text) - 50)) is not None:  # it was cut before
        missing += int(earlier[1]) - len(earlier[0])
    note = f"... [{missing} more characters]"
    return text[: max(0, limit - len(note))] + note


def clean(text: str) -> str:
    """Replace what UTF-8 or a database cannot hold: lone surrogates and NUL."""
    if "\x00" in text:
        text = text.replace("\x00", "\ufffd")
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        text = text.encode("utf-8", "replace").decode("utf-8")
    return text


def describe(value: object, limit: int) -> str:
    """`str(value)` cut to `limit`; the type's name where `str` fails."""
    try:
        return clip(str(value), limit)
    except KeyboardInterrupt:
        raise
    except BaseException:  # noqa: BLE001 - somebody else's __str__, which may do anything
        return f"<{type(value).__name__}>"


def error_text(error: object, limit: int) -> str:
    """`TypeName: message` of an exception, cut to `limit`."""
    said = describe(error, limit)
    name = type(error).__name__
    return clip(f"{name}: {said}" if said else name, limit)


def plain(value: object, limit: int) -> Any:
    """Copy `value` into JSON-like form with at most about `limit` characters of text.

    Mappings become dicts, sequences and sets lists, numbers stay; other objects become text.
    Cycles end at `MAX_DEPTH`, long containers at `MAX_ITEMS`.
    """
    return _plain(value, [limit, MAX_ITEMS * 5], 0)


def text_size(value: object) -> int:
    """About how many characters a text or a value of `plain` holds, without writing it out."""
    if isinstance(value, str):
        return len(value)
    if isinstance(value, dict):
        return sum(map(len, value)) + sum(map(text_size, value.values()))
    return sum(map(text_size, value)) if isinstance(value, list) else 8


def _plain(value: object, budget: list[int], depth: int) -> Any:
    if value is None or value is True or value is False:
        return value
    budget[1] -= 1
    if isinstance(value, str):
        text = clip(str(value), max(budget[0], 0))
        budget[0] -= len(text)
        return text
    if isinstance(value, int) and -(2**53) <= value <= 2**53:
        return int(value)
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else describe(value, 10)
    if depth >= MAX_DEPTH or budget[0] <= 0 or budget[1] <= 0:
        return "..."
    if isinstance(value, MAPPING):
        out: dict[str, Any] = {}
        for key, item in value.items():
            if len(out) >= MAX_ITEMS or budget[1] <= 0:
                out["..."] = f"{len(value) - len(out)} more"
                break
            name = key if isinstance(key, str) else describe(key, 100)
            budget[0] -= len(name)
            out[clip(name, 200)] = _plain(item, budget, depth + 1)
        return out
    if isinstance(value, (list, tuple, Set)):
        items: list[Any] = []
        for item in value:
            if len(items) >= MAX_ITEMS or budget[1] <= 0:
                items.append(f"... {len(value) - len(items)} more")
                break
            items.append(_plain(item, budget, depth + 1))
        return items
    if isinstance(value, (bytes, bytearray, memoryview)):
        return f"<{len(value)} bytes>"
    text = as_text(value, max(budget[0], 0), depth + 1)
    budget[0] -= len(text)
    return text


def _fields(value: object) -> Mapping[str, object] | None:
    """The fields of a pydantic model or dataclass instance, by reference; None for others."""
    if isinstance(value, type):
        return None
    cls = type(value)
    if hasattr(cls, "model_fields") or hasattr(cls, "__dataclass_fields__"):
        found = getattr(value, "__dict__", None)
        return found if isinstance(found, Mapping) else None
    return None


def as_text(value: object, limit: int, depth: int = 0) -> str:
    """The text a reader would want of a tool's output or a run's result, cut to `limit`."""
    return written(gist(value, limit, depth), limit)


def written(gist: Any, limit: int) -> str:
    """What `gist` returned as text: structures are compact JSON."""
    return gist if isinstance(gist, str) else clip(_json(gist), limit)


def gist(value: object, limit: int, depth: int = 0) -> Any:
    """What a reader would want of a tool's output or a run's result, cut to `limit` characters.

    Messages give their text, documents their page content, commands the messages they carry,
    structures themselves in the form of `plain`, for `written` to write out when there is time.
    """
    if isinstance(value, str):
        return clip(value, limit)
    if value is None:
        return ""
    if isinstance(value, (bytes, bytearray, memoryview)):
        return f"<{len(value)} bytes>"
    if is_message(value):
        return message_text(value, limit)
    page = getattr(value, "page_content", None)
    if isinstance(page, str):
        return clip(page, limit)
    found = list(messages_in(value))
    if found:
        return _joined((message_text(message, limit) for message in found), limit)
    if isinstance(value, (list, tuple)) and value and hasattr(value[0], "page_content"):
        return _joined((as_text(item, limit) for item in value[:MAX_ITEMS]), limit)
    if isinstance(value, (list, tuple)) and value and all(map(_is_block, value[:MAX_ITEMS])):
        return content_text(value, limit)
    fields = _fields(value) if depth < MAX_DEPTH else None
    if isinstance(value, (Mapping, list, tuple, Set, int, float)) or fields is not None:
        shape = _plain(fields if fields is not None else value, [limit, MAX_ITEMS * 5], depth)
        return clip(shape, limit) if isinstance(shape, str) else shape
    return describe(value, limit)


def _json(shape: object) -> str:
    return json.dumps(shape, ensure_ascii=False, separators=(", ", ": "))


def _joined(texts: Iterator[str], limit: int, separator: str = "\n\n") -> str:
    parts: list[str] = []
    room = limit
    for text in texts:
        if text and room > 0:
            parts.append(text)
            room -= len(text)
    return clip(separator.join(parts), limit)


def is_message(value: object) -> bool:
    """Whether `value` is a LangChain message (told by its shape, so that no import is needed)."""
    return (
        hasattr(value, "content")
        and isinstance(getattr(value, "type", None), str)
        and hasattr(value, "additional_kwargs")
    )


def messages_in(value: object) -> Iterator[Any]:
    """Yield the messages that a node's output carries: plain, in a state, or in a `Command`."""
    if is_message(value):
        yield value
    elif isinstance(value, MAPPING):
        for item in islice(value.values(), MAX_ITEMS):
            if isinstance(item, (list, tuple)):
                yield from (entry for entry in item[-MAX_ITEMS:] if is_message(entry))
            elif is_message(item):
                yield item
    elif isinstance(value, (list, tuple)):
        for item in value[:MAX_ITEMS]:
            if is_message(item):
                yield item
            elif is_command(item):
                yield from messages_in(item.update)
    elif is_command(value):
        yield from messages_in(value.update)  # type: ignore[attr-defined]


def is_command(value: object) -> bool:
    """Whether `value` is a LangGraph `Command`."""
    return hasattr(value, "update") and hasattr(value, "resume") and hasattr(value, "goto")


def _is_block(item: object) -> bool:
    return isinstance(item, str) or (isinstance(item, MAPPING) and "type" in item)


def message_text(message: object, limit: int) -> str:
    """The text and reasoning of a message; signatures, images and the like are left out."""
    text = content_text(getattr(message, "content", None), limit)
    extra = getattr(message, "additional_kwargs", None)
    reasoning = extra.get("reasoning_content") if isinstance(extra, MAPPING) else None
    if isinstance(reasoning, str) and reasoning:
        return _joined(iter((reasoning[: limit + 1], text)), limit)
    return text


def content_text(content: object, limit: int) -> str:
    """The text and reasoning blocks of a message's content, in order."""
    if isinstance(content, str):
        return clip(content, limit)
    if not isinstance(content, Sequence):
        return ""
    return _joined(
        (_block_text(block)[: limit + 1] for block in content[:MAX_ITEMS]), limit, separator="\n"
    )


def _block_text(block: object) -> str:
    if isinstance(block, str):
        return block
    if not isinstance(block, MAPPING):
        return ""
    match block.get("type"):
        case "text" | "output_text":
            found = block.get("text")
        case "reasoning":
            found = block.get("reasoning") or block.get("text") or block.get("summary")
            if isinstance(found, (list, tuple)):
                found = "\n".join(
                    part["text"]
                    for part in found[:MAX_ITEMS]
                    if isinstance(part, Mapping) and isinstance(part.get("text"), str)
                )
        case "thinking":
            found = block.get("thinking")
        case "refusal":
            found = block.get("refusal")
        case _:
            found = None
    return found if isinstance(found, str) else ""


def last_human_text(messages: object, limit: int) -> str:
    """The text of the last human message in a list of messages in any of LangChain's forms."""
    if not isinstance(messages, (list, tuple)):
        return ""
    for message in islice(reversed(messages), MAX_ITEMS):
        role, content = _role_and_content(message)
        if role in ("human", "user"):
            return content_text(content, limit).strip()
    return ""


def _role_and_content(message: object) -> tuple[object, object]:
    if isinstance(message, str):
        return "human", message
    if isinstance(message, (list, tuple)) and len(message) == 2:
        return message[0], message[1]
    if isinstance(message, MAPPING):
        return message.get("role") or message.get("type"), message.get("content")
    return getattr(message, "type", None), getattr(message, "content", None)


def objective_in(inputs: object, limit: int) -> str:
    """The task that a run's inputs state, or "" where they state none.

    The last human message, else a usual key (`input`, `question`, ...), else the only text there.
    """
    if isinstance(inputs, str):
        return clip(inputs.strip(), limit)
    if is_message(inputs):
        return last_human_text([inputs], limit)
    if isinstance(inputs, (list, tuple)):
        return last_human_text(inputs, limit)
    to_messages = getattr(inputs, "to_messages", None)  # a prompt value
    if callable(to_messages):
        return last_human_text(to_messages(), limit)
    fields = inputs if isinstance(inputs, MAPPING) else _fields(inputs)
    if fields is None:
        return ""
    text = last_human_text(fields.get("messages"), limit)
    if text:
        return text
    for key in OBJECTIVE_KEYS:
        found = fields.get(key)
        if isinstance(found, str) and found.strip():
            return clip(found.strip(), limit)
        text = last_human_text(found, limit)
        if text:
            return text
    texts = [item for item in fields.values() if isinstance(item, str) and item.strip()]
    return clip(texts[0].strip(), limit) if len(texts) == 1 else ""


def answer_in(outputs: object, limit: int) -> Any:
    """The `gist` of the answer that a run's outputs hold; None where nothing was returned."""
    if outputs is None:
        return None
    if isinstance(outputs, MAPPING):
        if has_structure(outputs):
            return gist(outputs["structured_response"], limit)
        messages = outputs.get("messages")
        if isinstance(messages, (list, tuple)) and messages:
            return _answer_text(messages[-1], limit)
        for key in ANSWER_KEYS:
            if key in outputs:
                return gist(outputs[key], limit)
        return gist(outputs, limit) if outputs else ""
    return _answer_text(outputs, limit) if is_message(outputs) else gist(outputs, limit)


def has_structure(outputs: object) -> bool:
    """Whether an agent's outputs hold a structured response."""
    return isinstance(outputs, MAPPING) and outputs.get("structured_response") is not None


def _answer_text(message: object, limit: int) -> Any:
    if is_message(message):
        # Reasoning without a word to the user is no answer.
        return message_content_only(message, limit)
    role, content = _role_and_content(message)
    return content_text(content, limit) if role is not None else gist(message, limit)


def message_content_only(message: object, limit: int) -> str:
    """The text of a message without its reasoning."""
    content = getattr(message, "content", None)
    if isinstance(content, (list, tuple)):
        content = [
            block
            for block in content[:MAX_ITEMS]
            if isinstance(block, str)
            or (isinstance(block, MAPPING) and block.get("type") in ("text", "output_text"))
        ]
    return content_text(content, limit).strip()
