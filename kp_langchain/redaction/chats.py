"""Logs of chats in a value, in which one message may give the secret that the one before it asks for."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from kp_langchain.redaction.objects import has_type
from kp_langchain.redaction.questions import Secret, secrets_given

_AUTHOR_KEYS = ("role", "type", "from", "sender", "author", "user", "speaker")
_TEXT_KEYS = ("content", "text", "value", "message", "body")
_NO_SPEAKERS = frozenset(("system", "developer", "tool", "function"))


def answers_in(items: Sequence[Any]) -> Iterator[tuple[dict[Any, Any], str, list[Secret]]]:
    """Yield each message that gives secrets when asked: the message, the key of its text, the secrets.

    Args:
        items: The items of a list, which may be messages or anything else.
    """
    asker, question = "", ""
    for item in items:
        author, text = (_first(item, keys) for keys in (_AUTHOR_KEYS, _TEXT_KEYS))
        if author is None or text is None or author[1] in _NO_SPEAKERS:
            continue
        secrets = secrets_given(question, text[1]) if question and author[1] != asker else []
        if secrets:
            yield item, text[0], secrets
        asker, question = author[1], text[1]


def _first(item: Any, keys: Sequence[str]) -> tuple[str, str] | None:
    """Return the first of some keys whose value is a text, with the text; None if there is none."""
    if not has_type(item, dict):
        return None
    values = ((key, dict.get(item, key)) for key in keys)
    return next(((key, str.__str__(text)) for key, text in values if has_type(text, str)), None)
