"""Files of JSON that commands read: one value a line, or documents over many lines."""

from __future__ import annotations

import json
import sys
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, cast

import typer

from kp_langchain.cli.output import STDIO, file_errors
from kp_langchain.errors import KPError
from kp_langchain.text import read_documents, read_json

LONGEST_LINE_BYTES = 16 << 20
"""A line of a trace or a verdict that is longer is not read."""

_LONGEST_VALUE_BYTES = 256 << 20
_SKIPPED_BYTES = 1 << 20  # of a longer line, at once


def check_files(files: Sequence[str]) -> None:
    """Check that each file is there, is no folder, and is given once.

    Raises:
        BadParameter: One is not.
    """
    for file in files:
        if files.count(file) > 1:
            raise typer.BadParameter(f"{file} is given more than once")
        if file == STDIO:
            continue
        try:
            Path(file).stat()
        except (OSError, ValueError) as error:
            why = getattr(error, "strerror", None) or error
            raise typer.BadParameter(f"{file}: {why}") from error
        if Path(file).is_dir():
            raise typer.BadParameter(f"{file} is a folder; give the files in it")


@dataclass(frozen=True, slots=True)
class Line:
    """A line that is not blank.

    Attributes:
        file: The file as the user named it, or `-`.
        number: The line's number, from 1.
        content: The line without surrounding white space; None if it is too long to be read.
    """

    file: str
    number: int
    content: bytes | None

    @property
    def place(self) -> str:
        """The file and the number, for messages."""
        return f"{'stdin' if self.file == STDIO else self.file}:{self.number}"


def read_lines(file: str, longest_bytes: int = LONGEST_LINE_BYTES) -> Iterator[Line]:
    """Yield the lines of a file, or of standard input for `-`, reading as they are consumed.

    Skip blank lines, and a byte order mark at the beginning.

    Args:
        file: The file; decompressed if its name ends in `.gz`.
        longest_bytes: The length from which a line is not read.

    Raises:
        KPError: The file cannot be read.
    """
    number = 0
    with _open(file) as stream:
        while raw := stream.readline(longest_bytes):
            number += 1
            content: bytes | None = raw.removeprefix(b"\xef\xbb\xbf" if number == 1 else b"")
            if len(raw) == longest_bytes and not raw.endswith(b"\n"):
                content = None
                while raw and not raw.endswith(b"\n"):
                    raw = stream.readline(_SKIPPED_BYTES)
            content = content and content.strip()
            if content != b"":
                yield Line(file, number, content)


@contextmanager
def _open(file: str) -> Iterator[BinaryIO]:
    if file == STDIO:
        yield sys.stdin.buffer
        return
    try:
        with file_errors(file, "read"), Path(file).open("rb") as stream:
            if not file.endswith(".gz"):
                yield stream
                return
            import gzip

            with gzip.open(stream) as content:
                yield cast("BinaryIO", content)
    except (EOFError, zlib.error) as error:  # of a compressed file
        raise KPError(f"{file} cannot be read: {error}") from error


def read_object(line: Line) -> dict[str, Any]:
    """Return the JSON object that a line holds.

    Raises:
        KPError: It holds none.
    """
    if line.content is None:
        raise KPError(f"longer than {LONGEST_LINE_BYTES >> 20} MB")
    try:
        value = json.loads(line.content)
    except (ValueError, RecursionError):
        raise KPError("not valid JSON") from None
    if not isinstance(value, dict):
        raise KPError("not a JSON object")
    return value


def read_values(file: str) -> Iterator[tuple[str, Any, str]]:
    """Yield the values of a file: one a line if its first line is one, else over many lines.

    Args:
        file: The file, decompressed if its name ends in `.gz`; or `-` for standard input.

    Yields:
        The file and the line where a value begins; the value; why it cannot be read, or "".

    Raises:
        KPError: The file cannot be read.
    """
    lines = read_lines(file, _LONGEST_VALUE_BYTES)
    first = next(lines, None)
    if first is None:
        return
    place, value, why = _value(first)
    if why and (first.content or b"").startswith((b"{", b"[")):
        yield from _documents(first, lines)
        return
    yield place, value, why
    yield from map(_value, lines)


def _documents(first: Line, lines: Iterator[Line]) -> Iterator[tuple[str, Any, str]]:
    # As one text, because a list of many short lines would take a hundred times their size.
    text, number = bytearray(first.content or b""), first.number
    for line in lines:
        gap = line.number - number  # with the blank lines between
        if line.content is None or len(text) + gap + len(line.content) > _LONGEST_VALUE_BYTES:
            size = _LONGEST_VALUE_BYTES >> 20
            yield first.place, None, f"neither one value a line, nor below {size} MB in all"
            return
        text += b"\n" * gap + line.content
        number = line.number
    for value, offset, why in read_documents(text):
        yield Line(first.file, first.number + offset, None).place, value, why


def _value(line: Line) -> tuple[str, Any, str]:
    if line.content is None:
        return line.place, None, f"longer than {_LONGEST_VALUE_BYTES >> 20} MB"
    try:
        return line.place, read_json(line.content), ""
    except ValueError as error:
        return line.place, None, str(error)
