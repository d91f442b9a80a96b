"""Make texts of a registry safe to store, log and show."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

from pydantic import SecretStr

from kp_langchain.redaction import redact

MAX_TEXT_CHARS = 300
"""The longest text of a registry that is stored, logged or shown."""

_MAX_READ_CHARS = 4000
_QUOTE_CHARS = 24


def parse_json(body: bytes | None) -> Any:
    """Return the content of a JSON document, or None if it cannot be parsed."""
    try:
        return json.loads(body or b"")
    except (ValueError, RecursionError):
        return None


def safe_texts(
    texts: Sequence[str], key: SecretStr | None = None, request_body: bytes = b""
) -> list[str]:
    """Return the texts of a registry as lines of at most 300 characters that are safe to show.

    Unprintable characters, the key, other secrets, and quotations of 24 or more characters from the
    request are removed.

    Args:
        texts: The texts.
        key: The API key of the request.
        request_body: The body of the request.
    """
    # Shortened only after the key is removed: part of a key would no longer be found.
    lines = [_to_line(text) for text in texts]
    if key is not None:
        lines = [line.replace(key.get_secret_value(), "[REDACTED:api_key]") for line in lines]
    lines = [str(redact(line[:_MAX_READ_CHARS]).value) for line in lines]
    lines = _remove_quotations(lines, request_body)
    return [
        line if len(line) <= MAX_TEXT_CHARS else line[: MAX_TEXT_CHARS - 1] + "…" for line in lines
    ]


def _to_line(text: str) -> str:
    return " ".join("".join(char if char.isprintable() else " " for char in text).split())


def _remove_quotations(lines: list[str], request_body: bytes) -> list[str]:
    parts = {line[start : start + _QUOTE_CHARS] for line in lines for start in _starts(line)}
    if not parts or not request_body:
        return lines
    sent_text = "\n".join(
        [
            _to_line(request_body.decode(errors="replace")),
            *map(_to_line, _strings(parse_json(request_body))),
        ]
    )
    quotations = {
        part
        for start in _starts(sent_text)
        if (part := sent_text[start : start + _QUOTE_CHARS]) in parts
    }
    return [_remove_parts(line, quotations) for line in lines] if quotations else lines


def _remove_parts(line: str, parts_to_remove: set[str]) -> str:
    pieces: list[str] = []
    cut_to = 0
    for start in _starts(line):
        if line[start : start + _QUOTE_CHARS] in parts_to_remove:
            if start > cut_to or not pieces:  # otherwise it continues the previous part
                pieces.append(line[cut_to:start])
            cut_to = start + _QUOTE_CHARS
    return "[…]".join([*pieces, line[cut_to:]])


def _starts(text: str) -> range:
    return range(len(text) - _QUOTE_CHARS + 1)


def _strings(content: Any) -> Iterator[str]:
    """Yield the strings in a JSON document, in any order."""
    stack = [content]
    while stack:
        value = stack.pop()
        if isinstance(value, str):
            yield value
        elif isinstance(value, dict):
            stack.extend(value.values())
        elif isinstance(value, list):
            stack.extend(value)
