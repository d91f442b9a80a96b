"""Files of JSON that commands read: one value a line, or documents over many lines."""

from __future__ import annotations

import gzip
import json
import sys
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO, cast

import typer

from kp_langchain.cli.output import STDIO, file_errors
from kp_langchain.errors import KPError
from kp_langchain.text import read_documents, read_json

LONGEST_LINE_BYTES = 16 << 20
"""A line of a trace or a verdict that is longer is not read."""

_LONGEST_VALUE_BYTES = 256 << 20
_PART_BYTES = 1 << 16
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


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


def read_lines(file: str) -> Iterator[Line]:
    """Yield the lines of a file, or of standard input for `-`, reading as they are consumed.

    Skip blank lines, and a byte order mark at the beginning.

    Args:
        file: The file; decompressed if its name ends in `.gz`.

    Raises:
        KPError: The file cannot be read.
    """
    with _open(file) as stream:
        yield from _lines(file, stream, LONGEST_LINE_BYTES)


def _lines(file: str, stream: BinaryIO, longest_bytes: int) -> Iterator[Line]:
    number = 0
    while raw := stream.readline(longest_bytes):
        number += 1
        content: bytes | None = raw.removeprefix(_BYTE_ORDER_MARK if number == 1 else b"").strip()
        if len(raw) == longest_bytes and not raw.endswith(b"\n"):
            content = None
            while raw and not raw.endswith(b"\n"):
                raw = stream.readline(_PART_BYTES)
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
    with _open(file) as stream:
        lines = _lines(file, stream, _LONGEST_VALUE_BYTES)
        first = next(lines, None)
        if first is None:
            return
        place, value, why = _value(first)
        if not why or not (first.content or b"").startswith((b"{", b"[")):
            yield place, value, why
            yield from map(_value, lines)
            return
        # In parts, because a buffer is as large as what may be read.
        parts = iter(partial(stream.read, _PART_BYTES), b"")
        rest = b"".join(islice(parts, _LONGEST_VALUE_BYTES // _PART_BYTES))
        text = b"\n".join([first.content or b"", rest])
        if stream.read(1):
            size = f"{_LONGEST_VALUE_BYTES >> 20} MB"
            yield place, None, f"neither one value a line, nor below {size} in all"
            return
        for value, offset, why in read_documents(text):
            yield Line(file, first.number + offset, None).place, value, why


def _value(line: Line) -> tuple[str, Any, str]:
    if line.content is None:
        return line.place, None, f"longer than {_LONGEST_VALUE_BYTES >> 20} MB"
    try:
        return line.place, read_json(line.content), ""
    except ValueError as error:
        return line.place, None, str(error)
