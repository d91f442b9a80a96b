"""Logs of chats, in which one message may give the secret that the one before it asks for."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

from kp_langchain.redaction.field_names import word_set
from kp_langchain.redaction.finders import NON_ASCII, Finder
from kp_langchain.redaction.lazy_pattern import lazy_pattern
from kp_langchain.redaction.objects import has_type
from kp_langchain.redaction.questions import Secret, secrets_given
from kp_langchain.redaction.spans import Span

_AUTHOR_KEYS = ("role", "type", "from", "sender", "author", "user", "speaker")
_TEXT_KEYS = ("content", "text", "value", "message", "body")
_LINE = lazy_pattern(
    r"^[ \t]{0,8}(?:\[[^\]\n]{1,24}\][ \t]{0,4}|\d\d?:\d\d(?::\d\d)?[ \t]{1,4})?"
    r"(?P<speaker>[*<]{0,2}[^\W\d_][\w .'\-]{0,24}[*>]{0,2})[ \u00a0]?[:>：][ \t*]{0,4}(?P<text>\S[^\n]*)$",
    re.MULTILINE,
)
_QUESTION_MARKS = frozenset("?？؟;")
_SIGNS = " *<>"
_ROLES = word_set(
    "user human customer client caller me assistant agent bot ai system support operator q a"
)
_NO_SPEAKERS = frozenset(("system", "developer", "tool", "function"))


def answers_in(items: Sequence[Any]) -> Iterator[tuple[int, str, list[Secret]]]:
    """Yield each message that gives secrets when asked: its place, the key of its text, the secrets.

    Args:
        items: The items of a list, which may be messages or anything else.
    """
    asker, question = "", ""
    for place, item in enumerate(items):
        author, text = (_first(item, keys) for keys in (_AUTHOR_KEYS, _TEXT_KEYS))
        if author is None or text is None or author[1] in _NO_SPEAKERS:
            continue
        secrets = secrets_given(question, text[1]) if question and author[1] != asker else []
        if secrets:
            yield place, text[0], secrets
        asker, question = author[1], text[1]


def _first(item: Any, keys: Sequence[str]) -> tuple[str, str] | None:
    """Return the first of some keys whose value is a text, with the text; None if there is none."""
    if not has_type(item, dict):
        return None
    values = ((key, dict.get(item, key)) for key in keys)
    return next(((key, str.__str__(text)) for key, text in values if has_type(text, str)), None)


def _find_in_transcripts(text: str, _low: str) -> Iterator[Span]:
    """Yield each secret that a line gives, in "Agent: What is the PIN? / Client: 4471"."""
    speaker, question = "", ""
    for line in _LINE.finditer(text):
        may_ask = question.count(" ") > 1 or not _QUESTION_MARKS.isdisjoint(question)
        if may_ask and _may_speak(speaker) and line["speaker"].strip(_SIGNS) != speaker:
            for kind, secret in secrets_given(question, line["text"]):
                start = text.find(secret, *line.span("text"))
                if start >= 0 and not secret.isalpha():
                    yield Span(start, start + len(secret), kind)
        speaker, question = line["speaker"].strip(_SIGNS), line["text"]


def _may_speak(name: str) -> bool:
    """Return whether a name is that of a person or a role, and not of a setting."""
    return not name[:1].islower() or name in _ROLES


FINDERS = (Finder(_find_in_transcripts, symbols=(":", ">", NON_ASCII), is_named=True),)
