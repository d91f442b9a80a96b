"""LangChain messages: how to find them in a value, and what each of them says.

Messages and LangGraph's commands are recognised by their shape, so neither has to be imported.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, Final

from kp_langchain._host_exceptions import raised_by_host
from kp_langchain.recording.clipping import clip, join_texts
from kp_langchain.recording.content_blocks import block_text, is_content, reasoning_text
from kp_langchain.recording.media import mark_of
from kp_langchain.recording.reasoning import reasoning_parts
from kp_langchain.recording.safe_reads import (
    MAPPING,
    MAX_ALL_ITEMS,
    MAX_DEPTH,
    MAX_ITEMS,
    default_on_error,
)

NOT_A_MODEL: Final = frozenset({"human", "user", "tool", "system", "developer", "function"})
"""Roles and types of the messages that no model wrote: tags in them are text, not reasoning."""
_NO_COMMAND = (dict, list, str, type(None))


def is_message(value: object) -> bool:
    """Return whether `value` is a LangChain message."""
    return (
        hasattr(value, "content")
        and isinstance(getattr(value, "type", None), str)
        and hasattr(value, "additional_kwargs")
    )


def is_command(value: object) -> bool:
    """Return whether `value` is a LangGraph `Command`."""
    return type(value) not in _NO_COMMAND and _is_command(value)


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
        return _message_text(message, limit)
    except BaseException as error:  # the user's own message may do anything
        if raised_by_host(error):
            raise
        return ""


def _message_text(message: object, limit: int) -> str:
    content, extra = getattr(message, "content", None), additional_kwargs(message)
    text = thought_text(content, limit) if is_from_model(message) else content_text(content, limit)
    if not extra:
        return text
    parts = (additional_reasoning(extra, limit), text, additional_text(extra, limit))
    return join_texts(iter(parts), limit)


def is_from_model(message: object) -> bool:
    """Return whether a model wrote a message, so that tags in it may enclose reasoning."""
    return getattr(message, "type", None) not in NOT_A_MODEL


def thought_text(content: object, limit: int) -> str:
    """Return what a model's content says and reasons, without the tags around its reasoning."""
    if not isinstance(content, str):
        content = content_text(content, limit)
    parts = reasoning_parts(content)
    if not parts:
        return clip(content, limit)
    return join_texts((clip(part.strip(), limit) for part, _ in parts), limit)


def content_text(content: object, limit: int) -> str:
    """Return the text and reasoning blocks of a message's content, in order."""
    if isinstance(content, str):
        return clip(content, limit)
    if not isinstance(content, Sequence):
        return ""
    return join_texts(
        (clip(block_text(block), limit) for block in islice(content, MAX_ITEMS)),
        limit,
        separator="\n",
    )


def is_content_list(items: Sequence[object]) -> bool:
    """Return whether a list is a message's content, and not data whose items have a `type`."""
    return all(map(_is_block, items)) and any(map(is_content, items))


def _is_block(item: object) -> bool:
    return isinstance(item, str) or (isinstance(item, MAPPING) and "type" in item)


def additional_kwargs(message: object) -> Mapping[str, Any]:
    """Return a message's `additional_kwargs`, which some models fill in addition to the content."""
    extra = getattr(message, "additional_kwargs", None)
    return extra if extra and isinstance(extra, MAPPING) else {}


def additional_reasoning(extra: Mapping[str, Any], limit: int) -> str:
    """Return the reasoning in a message's `additional_kwargs`."""
    if not extra:
        return ""
    text = reasoning_text(extra.get("reasoning_content") or extra.get("reasoning") or "")
    return clip(text, limit)


def additional_text(extra: Mapping[str, Any], limit: int) -> str:
    """Return what a model says in `additional_kwargs`: a refusal, or a recording of its voice."""
    if not extra:
        return ""
    audio, refusal = extra.get("audio"), extra.get("refusal")
    transcript = audio.get("transcript") if isinstance(audio, MAPPING) else None
    texts = (mark_of("audio") if audio else "", transcript, refusal)
    return join_texts((clip(one, limit) for one in texts if isinstance(one, str)), limit, "\n")


def role_and_content(message: object) -> tuple[object, object]:
    """Return who wrote a message and what it holds, from any form of message LangChain reads."""
    if is_message(message):  # like most
        return message.type, message.content  # type: ignore[attr-defined]
    if isinstance(message, str):
        return "human", message
    if isinstance(message, (list, tuple)) and len(message) == 2:
        return message[0], message[1]
    if isinstance(message, MAPPING):
        return message.get("role") or message.get("type"), message.get("content")
    return getattr(message, "type", None), getattr(message, "content", None)
