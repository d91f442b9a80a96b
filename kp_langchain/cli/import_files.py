"""The JSON values in a file to import: one a line, or one document over many lines."""

from __future__ import annotations

import io
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain, islice
from typing import Any

from kp_langchain.cli.jsonl import STDIN, Line, read_lines
from kp_langchain.json_text import read_documents, read_json

_LONGEST_BYTES = 256 << 20
_OPENING = (b"{", b"[")


@dataclass(frozen=True, slots=True)
class JsonValue:
    """A value that a file holds.

    Attributes:
        place: The file and the line where it begins, for messages.
        value: The value.
        why: Why it cannot be read; "" if it can.
    """

    place: str
    value: Any = None
    why: str = ""


def read_values(file: str) -> Iterator[JsonValue]:
    """Yield the values of a file, or of standard input for `-`.

    Args:
        file: The file; decompressed if its name ends in `.gz`.

    Raises:
        KPError: The file cannot be read.
    """
    lines = read_lines(file, lambda _: None, longest_bytes=_LONGEST_BYTES)
    first = next(lines, None)
    if first is None:
        return
    value = _value(first)
    if not value.why or first.content is None or first.content[:1] not in _OPENING:
        yield value
        yield from map(_value, lines)
        return
    text, rest = _collect(first.content, first.number, lines)
    documents = _documents(file, text, first.number) if rest is None else []
    if documents and not documents[-1].why:
        yield from documents
    elif any(map(_is_object, islice(_lines(file, text, first.number), 1, None))):
        # Some lines at the beginning are damaged.
        yield from map(_value, chain(_lines(file, text, first.number), rest or ()))
    elif rest is None:
        yield from documents
    else:
        size = _LONGEST_BYTES >> 20
        yield JsonValue(value.place, why=f"neither one value a line, nor below {size} MB in all")


def _collect(
    content: bytes, number: int, lines: Iterator[Line]
) -> tuple[bytearray, Iterator[Line] | None]:
    """Return the text of lines, and the rest of them if all are too long to be one document.

    As one text, because a list of many short lines would take a hundred times their size.

    Args:
        content: The first line.
        number: Its number.
        lines: The lines after it.
    """
    text = bytearray(content)
    for line in lines:
        gap = line.number - number  # with the blank lines between
        if line.content is None or len(text) + gap + len(line.content) > _LONGEST_BYTES:
            return text, chain([line], lines)
        text += b"\n" * gap + line.content
        number = line.number
    return text, None


def _lines(file: str, text: bytearray, number: int) -> Iterator[Line]:
    """Yield the lines of a text again, the first of which has this number."""
    with io.BytesIO(text) as stream:
        for at, line in enumerate(stream, number):
            if content := line.strip():
                yield Line(file, at, content)


def _documents(file: str, text: bytearray, first: int) -> list[JsonValue]:
    """Return the values that follow each other over many lines, up to the first that is cut off."""
    return [
        JsonValue(_place(file, first + number), value, why)
        for value, number, why in read_documents(text)
    ]


def _is_object(line: Line) -> bool:
    """Return whether a line is an object by itself, which no line of an indented document is."""
    content = line.content or b""
    return content[:1] == b"{" and content[-1:] == b"}" and bool(_value(line).value)


def _value(line: Line) -> JsonValue:
    place = _place(line.file, line.number)
    if line.content is None:
        return JsonValue(place, why=f"longer than {_LONGEST_BYTES >> 20} MB")
    try:
        return JsonValue(place, read_json(line.content))
    except ValueError as error:
        return JsonValue(place, why=str(error))


def _place(file: str, number: int) -> str:
    return f"{'stdin' if file == STDIN else file}:{number}"
