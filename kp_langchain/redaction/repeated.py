"""Secrets that a value contains again: an agent types the password that its user told it.

One place names the secret; the others do not, so no finder would see it there.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable
from typing import Any

from ahocorasick_rs import BytesAhoCorasick, MatchKind

from kp_langchain.redaction.blobs import BLOB
from kp_langchain.redaction.field_names import SensitiveField
from kp_langchain.redaction.identifiers import KINDS
from kp_langchain.redaction.scalars import quote_scalars
from kp_langchain.redaction.spans import distinct_key, placeholder, starts_word
from kp_langchain.redaction.values import is_unmistakable, looks_like_bare_password

_LONG = 12
_MAX_BACKSLASHES = 32
_MOST = 200  # secrets of one value
_OTHER_KINDS = frozenset((BLOB, "session", "cookie"))
_PASSWORD = SensitiveField("password")
# JSON has numbers without quotes; what has slashes may be a path.
_PATH_OR_NUMBER = re.compile(r"/|\A[\d.eE+\-]*\Z")

Secrets = dict[str, str]
"""The kind of each secret."""


def note(secrets: Secrets, kind: str, match: str) -> None:
    """Add a match to `secrets` if it is so irregular that it is the same secret elsewhere."""
    if (
        kind in KINDS
        or kind in _OTHER_KINDS
        or len(secrets) >= _MOST
        or _PATH_OR_NUMBER.search(match)
    ):
        return
    is_long = len(match) >= _LONG and looks_like_bare_password(match)
    if is_long or is_unmistakable(match, _PASSWORD):
        secrets[match] = kind


def replace(value: Any, secrets: Secrets, counts: Counter[str]) -> Any:
    """Return a redacted value in which the secrets are replaced wherever else they occur.

    Args:
        value: What a `Walker` has returned.
        secrets: The secrets that it found.
        counts: The number of replacements per kind; updated.
    """
    kinds = {form: kind for secret, kind in secrets.items() for form in _forms(secret)}
    forms = [form.encode("utf-8", "surrogatepass") for form in kinds]
    search = BytesAhoCorasick(forms, matchkind=MatchKind.LeftmostLongest)

    def clean(text: str) -> str:
        content = text.encode("utf-8", "surrogatepass")
        found = search.find_matches_as_indexes(content)
        if not found:
            return text
        characters = content.decode("latin-1")  # one for each byte
        pieces, position = [], 0
        for number, start, end in found:
            if _is_word(characters, start, end):
                kind = kinds[forms[number].decode("utf-8", "surrogatepass")]
                counts[kind] += 1
                pieces += [content[position:start], placeholder(kind).encode()]
                position = end
        clean_text = b"".join([*pieces, content[position:]]).decode("utf-8", "surrogatepass")
        return quote_scalars(text, clean_text)

    return _rebuild(value, clean, {})


def _is_word(text: str, start: int, end: int) -> bool:
    """Return whether `text[start:end]` is no part of a longer word or escape."""
    before = text[max(0, start - _MAX_BACKSLASHES) : start]
    if (len(before) - len(before.rstrip("\\"))) % 2:
        return False  # the "n" of a line break
    return starts_word(text, start) and not (
        text[end : end + 1].isascii() and text[end : end + 1].isalnum()
    )


def _forms(secret: str) -> set[str]:
    """Return how a secret is written in a text, in JSON, in JSON within JSON, and in Python."""
    forms = {secret, repr(secret)[1:-1]}
    for _ in range(2):
        forms |= {
            json.dumps(form, ensure_ascii=is_ascii)[1:-1]
            for form in forms
            for is_ascii in (True, False)
        }
    return forms


def _rebuild(value: Any, clean: Callable[[str], str], known: dict[int, Any]) -> Any:
    """Return `value` with all texts cleaned; `known` has the containers that were rebuilt."""
    if isinstance(value, str):
        return clean(value)
    if isinstance(value, (bytes, bytearray)):
        text = clean(value.decode("utf-8", "surrogateescape"))
        return type(value)(text.encode("utf-8", "surrogateescape"))
    if not isinstance(value, (dict, list, tuple, set, frozenset)):
        return value
    if id(value) not in known:
        known[id(value)] = _rebuild_container(value, clean, known)
    return known[id(value)]


def _rebuild_container(value: Any, clean: Callable[[str], str], known: dict[int, Any]) -> Any:
    if isinstance(value, dict):
        result: dict[Any, Any] = {}
        for key, item in value.items():
            new_key = distinct_key(_rebuild(key, clean, known), result)
            result[new_key] = _rebuild(item, clean, known)
        return result
    items = [_rebuild(item, clean, known) for item in value]
    make: Callable[[list[Any]], Any] = getattr(type(value), "_make", type(value))
    return make(items)
