"""Secrets that a value contains again: an agent types the password that its user told it.

One place names the secret; the others do not, so no finder would see it there.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable
from typing import Any

from kp_langchain.redaction.blobs import BLOB
from kp_langchain.redaction.identifiers import KINDS
from kp_langchain.redaction.spans import distinct_key, placeholder, starts_word
from kp_langchain.redaction.values import looks_like_bare_password

_SHORTEST = 8
_MOST = 200  # secrets of one value
_NUMBER = re.compile(r"[\d.eE+\-]*")  # JSON has it without quotes

Secrets = dict[str, str]
"""The kind of each secret."""


def note(secrets: Secrets, kind: str, match: str) -> None:
    """Add a match to `secrets` if it is so long and irregular that it is the same secret elsewhere."""
    is_secret = kind not in KINDS and kind != BLOB and len(match) >= _SHORTEST
    is_secret = is_secret and looks_like_bare_password(match) and not _NUMBER.fullmatch(match)
    if is_secret and len(secrets) < _MOST:
        secrets[match] = kind


def replace(value: Any, secrets: Secrets, counts: Counter[str]) -> Any:
    """Return a redacted value in which the secrets are replaced wherever else they occur.

    Args:
        value: What a `Walker` has returned.
        secrets: The secrets that it found.
        counts: The number of replacements per kind; updated.
    """
    kinds = {form: kind for secret, kind in secrets.items() for form in _forms(secret)}
    longest_first = sorted(kinds, key=len, reverse=True)
    pattern = re.compile(f"(?:{'|'.join(map(re.escape, longest_first))})(?![A-Za-z0-9])")

    def replaced(match: re.Match[str]) -> str:
        if not starts_word(match.string, match.start()):
            return match[0]
        counts[kinds[match[0]]] += 1
        return placeholder(kinds[match[0]])

    return _rebuild(value, lambda text: pattern.sub(replaced, text))


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


def _rebuild(value: Any, clean: Callable[[str], str]) -> Any:
    if isinstance(value, str):
        return clean(value)
    if isinstance(value, (bytes, bytearray)):
        text = clean(value.decode("utf-8", "surrogateescape"))
        return type(value)(text.encode("utf-8", "surrogateescape"))
    if isinstance(value, dict):
        result: dict[Any, Any] = {}
        for key, item in value.items():
            result[distinct_key(_rebuild(key, clean), result)] = _rebuild(item, clean)
        return result
    if isinstance(value, (list, set, frozenset)):
        return type(value)(_rebuild(item, clean) for item in value)
    if isinstance(value, tuple):
        items = [_rebuild(item, clean) for item in value]
        make: Callable[[list[Any]], Any] = getattr(type(value), "_make", tuple)
        return make(items)
    return value
