"""What stands beside a secret that is also an ordinary word, and says that it is the secret here."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from functools import lru_cache
from itertools import islice
from typing import Any

from kp_langchain.redaction.field_names import classify_secret
from kp_langchain.redaction.lazy_pattern import lazy_pattern
from kp_langchain.redaction.questions import TABLE
from kp_langchain.redaction.structures import KEYS, plain_key

_BEFORE = 64  # bytes
_AFTER = 48
_TYPED_KEYS = KEYS.value_keys | KEYS.text_keys | TABLE["typed_keys"]
_KEY_BEFORE = lazy_pattern(r"([\w\-]{1,40})\\{0,3}[\"']?\s{0,2}[:=]\s{0,2}\\{0,3}[\"'] {0,4}\Z")
_CLOSING_QUOTE = lazy_pattern(r"[ .,;!]{0,4}\\{0,3}[\"']")
_KEY_BEFORE_NUMBER = lazy_pattern(r"[^\\][\"']([\w\-]{1,40})[\"']\s{0,2}:\s{0,4}\Z")
# Where a string of JSON or Python begins and ends: what is outside is beside another value.
_STRING_START = lazy_pattern(r"[{\[,:]\s*\\{0,8}[\"'](?!.*[{\[,:]\s*\\{0,8}[\"'])", re.DOTALL)
_STRING_END = lazy_pattern(r"\\{0,8}[\"']\s*(?:[,:\]}]|\Z)")
_CLAUSE_END = lazy_pattern(r"[.,;!?]\s|\n")
_AROUND_WORD = " \"'`)]"
_WORD = lazy_pattern(r"[^\W_]+(?:[_\-'][^\W_]+)*")
_JSON_NUMBER = lazy_pattern(r"[:,\[]\s{0,40}\Z")
_JSON_NUMBER_END = lazy_pattern(r"\s{0,40}[,\]}]")
_CLAUSE_IS_OVER = lazy_pattern(r"[\"'`)\]]{0,3}(?:\s{0,4}\Z|[.,;!?](?:\s|\Z)|\n)")
_TYPED_WORD = lazy_pattern(r"[^\W_]{4,32}(?:[\-.][^\W_]{2,32}){0,8}")
_MOST_TYPED = 50
_MOST_PLACES = 50
_MOST_WORDS = 3  # of a name, and between a verb and what was typed


@lru_cache(maxsize=1024)
def is_typed(key: str | None) -> bool:
    """Return whether the key of a mapping says that its value is typed or answered."""
    return key is not None and len(key) < 40 and plain_key(key) in _TYPED_KEYS


def marks(content: bytes, start: int, end: int) -> bool:
    """Return whether something beside `content[start:end]` says that it is a secret.

    That is the name of a secret, a verb of typing, or the key of a text that is typed.

    Args:
        content: A text in UTF-8.
        start: Where the word starts that is the secret elsewhere.
        end: Where it ends.
    """
    before, after = _around(content, start, end)
    is_number = content[start:end].isdigit()
    if is_json_number(content, start, end):
        key = _KEY_BEFORE_NUMBER.search(before)
        return key is not None and is_typed(key[1])
    key = _KEY_BEFORE.search(before)
    if key and _CLOSING_QUOTE.match(after) and is_typed(key[1]):
        return True
    words, after = _clause_and_rest(content, start, end)
    is_over = _CLAUSE_IS_OVER.match(after) is not None
    following = _WORD.match(after.lstrip(_AROUND_WORD).lower())
    is_object = is_over or following is None or following[0] in TABLE["after_typed"]
    if is_object and not TABLE["typing"].isdisjoint(words[-_MOST_WORDS:]):
        return True
    if is_over:
        if words[-1:] and words[-1] in TABLE["used"] and TABLE["users"].intersection(words[-2:-1]):
            return True
        if words and not is_number and TABLE["lead_ins"].issuperset(words):
            return True  # the answer "it is ..."
    return kind_beside(content, start, end) is not None


def is_json_number(content: bytes, start: int, end: int) -> bool:
    """Return whether `content[start:end]` is a number that is a value or an item of JSON."""
    before, after = _around(content, start, end)
    is_number = content[start:end].isdigit() and _JSON_NUMBER.search(before)
    return bool(is_number and _JSON_NUMBER_END.match(after))


def kind_beside(content: bytes, start: int, end: int) -> str | None:
    """Return the kind of secret that a name beside `content[start:end]` says it is, if one does.

    Args:
        content: A text in UTF-8.
        start: Where the word starts.
        end: Where it ends.
    """
    words, after = _clause_and_rest(content, start, end)
    is_number = content[start:end].isdigit()
    while words and words[-1] in TABLE["lead_ins"]:
        words.pop()
    kind = _kind_of_last(words, is_number=is_number)
    if kind is not None:
        return kind
    following = _WORD.findall(_CLAUSE_END.split(after)[0].lower())[: 2 * _MOST_WORDS]
    if not following or following[0] not in TABLE["naming"]:
        return None
    sizes = range(2, len(following) + 1)
    kinds = (_kind_of_last(following[:size], is_number=is_number) for size in sizes)
    return next(filter(None, kinds), None)


def typed_secrets(parts: Iterable[Any]) -> Iterator[tuple[str, str]]:
    """Yield kind and text of each ordinary word that one part types and another calls a secret.

    "Log in as bob, password sunflower" alone might say anything about the password.

    Args:
        parts: The texts and the inputs of a run.
    """
    texts, typed = [], set[str]()
    for part in parts:
        if isinstance(part, str):
            texts.append(part)
        elif isinstance(part, dict):
            typed.update(_typed_words(part))
    words = {word: word.encode() for word in sorted(typed)[:_MOST_TYPED]}
    for text in texts if words else ():
        content = b""
        for word, form in words.items():
            if word not in text:
                continue
            content = content or text.encode("utf-8", "surrogatepass")
            for start in islice(occurrences_of_word(content, form), _MOST_PLACES):
                kind = kind_beside(content, start, start + len(form))
                if kind is not None:
                    yield kind, word
                    break


def occurrences_of_word(content: bytes, word: bytes) -> Iterator[int]:
    """Yield the start of each place at which `content` has a whole word."""
    start = content.find(word)
    while start >= 0:
        end = start + len(word)
        if (
            not content[max(0, start - 1) : start].isalnum()
            and not content[end : end + 1].isalnum()
        ):
            yield start
        start = content.find(word, end)


def _typed_words(inputs: dict[Any, Any]) -> Iterator[str]:
    for key, value in inputs.items():
        if isinstance(value, str) and isinstance(key, str) and is_typed(key):
            if _TYPED_WORD.fullmatch(value.strip()):
                yield value.strip()
        elif isinstance(value, dict):
            yield from _typed_words(value)


def _around(content: bytes, start: int, end: int) -> tuple[str, str]:
    before = content[max(0, start - _BEFORE) : start].decode("utf-8", "ignore")
    return before, content[end : end + _AFTER].decode("utf-8", "ignore")


def _clause_and_rest(content: bytes, start: int, end: int) -> tuple[list[str], str]:
    """Return the words of a clause up to `start`, and what follows `end`, in the same string."""
    before, after = _around(content, start, end)
    opening, closing = _STRING_START.search(before), _STRING_END.search(after)
    clause = _CLAUSE_END.split(before[opening.end() if opening else 0 :])[-1]
    return _WORD.findall(clause.lower()), after[: closing.start() if closing else None]


def _kind_of_last(words: list[str], *, is_number: bool) -> str | None:
    """Return the kind of secret whose name the last of some words are, if they are one."""
    if is_number and words and words[-1] in TABLE["codes"]:
        return "otp" if TABLE["no_codes"].isdisjoint(words) else None
    for size in range(1, min(_MOST_WORDS, len(words)) + 1):
        field = classify_secret(" ".join(words[-size:]))
        if field is not None and field.is_strong:
            return field.kind
    return None
