"""What stands beside a secret that is also an ordinary word, and says that it is the secret here."""

from __future__ import annotations

import re
from functools import lru_cache

from kp_langchain.redaction.field_names import classify_secret
from kp_langchain.redaction.questions import TABLE
from kp_langchain.redaction.structures import KEYS, plain_key

_BEFORE = 64  # bytes
_AFTER = 48
_TYPED_KEYS = KEYS.value_keys | KEYS.text_keys | TABLE["typed_keys"]
_KEY_BEFORE = re.compile(r"([\w\-]{1,40})\\{0,3}[\"']?\s{0,2}[:=]\s{0,2}\\{0,3}[\"']\Z")
_CLOSING_QUOTE = re.compile(r"\\{0,3}[\"']")
_CLAUSE_END = re.compile(r"[.,;!?]\s|\n")
_WORD = re.compile(r"[^\W_]+(?:[_\-'][^\W_]+)*")
_JSON_NUMBER = re.compile(r"[:,\[]\s{0,4}\Z")
_JSON_NUMBER_END = re.compile(r"\s{0,4}[,\]}]")
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
    before = content[max(0, start - _BEFORE) : start].decode("utf-8", "ignore")
    after = content[end : end + _AFTER].decode("utf-8", "ignore")
    is_number = content[start:end].isdigit()
    if is_number and _JSON_NUMBER.search(before) and _JSON_NUMBER_END.match(after):
        return False  # a placeholder without quotes would break the JSON
    key = _KEY_BEFORE.search(before)
    if key and _CLOSING_QUOTE.match(after) and is_typed(key[1]):
        return True
    clause = _CLAUSE_END.split(before)[-1]
    words = _WORD.findall(clause.lower())
    if not TABLE["typing"].isdisjoint(words[-_MOST_WORDS:]):
        return True
    while words and words[-1] in TABLE["lead_ins"]:
        words.pop()
    if _ends_with_name(words, is_number=is_number):
        return True
    following = _WORD.findall(_CLAUSE_END.split(after)[0].lower())[: 2 * _MOST_WORDS]
    if not following or following[0] not in TABLE["naming"]:
        return False
    return any(
        _ends_with_name(following[:size], is_number=is_number)
        for size in range(2, len(following) + 1)
    )


def _ends_with_name(words: list[str], *, is_number: bool) -> bool:
    if is_number and words and words[-1] in TABLE["codes"]:
        return TABLE["no_codes"].isdisjoint(words)
    return any(
        classify_secret(" ".join(words[-size:])) is not None
        for size in range(1, min(_MOST_WORDS, len(words)) + 1)
    )
