"""LangChain messages: how to find them in a value, and what each of them says.

Messages and LangGraph's commands are recognised by their shape, so neither has to be imported.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, Final

from kp_langchain.recording.content import (
    content_text,
    mark_of,
    reasoning_text,
    thought_text,
)
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


def is_message(value: object) -> bool:
    """Return whether `value` is a LangChain message."""
    return (
        hasattr(value, "content")
        and isinstance(getattr(value, "type", None), str)
        and hasattr(value, "additional_kwargs")
    )


def is_command(value: object) -> bool:
    """Return whether `value` is a LangGraph `Command`."""
    return type(value) not in _PLAIN and _is_command(value)


@default_on_error(False)
def _is_command(value: object) -> bool:
    return hasattr(value, "update") and hasattr(value, "resume") and hasattr(value, "goto")


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
                yield from _items_of_command(item, depth + 1)
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


def message_text(message: object, limit: int) -> str:
    """Return the text and reasoning of a message, without signatures, images and the like."""
    try:
        content, extra = getattr(message, "content", None), additional_kwargs(message)
        text_of = thought_text if is_from_model(message) else content_text
        text = text_of(content, limit)
        if not extra:
            return text
        parts = (additional_reasoning(extra, limit), text, additional_text(extra, limit))
        return join_texts(parts, limit)
    except Exception:  # noqa: BLE001 - the user's own message may do anything
        return ""


def is_from_model(message: object) -> bool:
    """Return whether a model wrote a message, so that tags in it may enclose reasoning."""
    return getattr(message, "type", None) not in NOT_A_MODEL


def additional_kwargs(message: object) -> Mapping[str, Any]:
    """Return a message's `additional_kwargs`, which some models fill in addition to the content."""
    extra = getattr(message, "additional_kwargs", None)
    return extra if extra and isinstance(extra, MAPPING) else {}


def additional_reasoning(extra: Mapping[str, Any], limit: int) -> str:
    """Return the reasoning in a message's `additional_kwargs`."""
    text = reasoning_text(extra.get("reasoning_content") or extra.get("reasoning") or "")
    return clip(text, limit)


def additional_text(extra: Mapping[str, Any], limit: int) -> str:
    """Return what a model says in `additional_kwargs`: a refusal, or a recording of its voice."""
    audio = extra.get("audio")
    mark = mark_of("audio") if audio else ""
    texts = (mark, field(audio, "transcript"), extra.get("refusal"))
    return join_texts((clip(one, limit) for one in texts if isinstance(one, str)), limit, "\n")


def role_and_content(message: object) -> tuple[object, object]:
    """Return who wrote a message and what it holds, from any form of message LangChain reads."""
    if (role := getattr(message, "type", None)) is not None:  # like most
        return role, getattr(message, "content", None)
    if isinstance(message, str):
        return "human", message
    if isinstance(message, (list, tuple)) and len(message) == 2:
        return message[0], message[1]
    return field(message, "role") or field(message, "type"), field(message, "content")
