"""The JSON values in a file to import: one a line, or one document over many lines."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from typing import Any

from kp_langchain.cli.jsonl import STDIN, Line, read_lines
from kp_langchain.recording.json_text import read_documents, read_json

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
    collected, is_whole = _collect(first, lines)
    documents = _documents(file, collected) if is_whole else []
    if documents and not documents[-1].why:
        yield from documents
    elif any(map(_is_object, collected[1:])):
        yield from map(_value, chain(collected, lines))  # some lines at the beginning are damaged
    elif is_whole:
        yield from documents
    else:
        size = _LONGEST_BYTES >> 20
        yield JsonValue(value.place, why=f"neither one value a line, nor below {size} MB in all")


def _documents(file: str, lines: list[Line]) -> list[JsonValue]:
    """Return the values that follow each other over many lines, up to the first that is cut off."""
    return [
        JsonValue(_place(file, lines[number].number), value, why)
        for value, number, why in read_documents([one.content or b"" for one in lines])
    ]


def _is_object(line: Line) -> bool:
    """Return whether a line is an object by itself, which no line of an indented document is."""
    content = line.content or b""
    return content[:1] == b"{" and content[-1:] == b"}" and bool(_value(line).value)


def _collect(first: Line, lines: Iterator[Line]) -> tuple[list[Line], bool]:
    """Return lines, and whether they are all and not too long to be one document."""
    collected, size_bytes = [first], len(first.content or b"")
    for line in lines:
        collected.append(line)
        size_bytes += len(line.content or b"")
        if line.content is None or size_bytes > _LONGEST_BYTES:
            return collected, False
    return collected, True


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
