"""JSON in a file: one value a line, or values over many lines."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from itertools import chain, islice
from typing import Any, BinaryIO

from kp_langchain.text import read_documents, read_json

STDIO = "-"
"""What names standard input or output in place of a file."""

LONGEST_LINE_BYTES = 16 << 20
"""A line of a trace or a verdict that is longer is not read."""

LONGEST_VALUE_BYTES = 256 << 20
"""A line, or a document over many lines, of recorded runs that is longer is not read."""

TOO_LONG = "too long to be read"
"""Why such a line is not read."""

_PART_BYTES = 1 << 16
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


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


def lines_in(
    file: str, stream: BinaryIO, longest_bytes: int = LONGEST_LINE_BYTES, *, first: int = 1
) -> Iterator[Line]:
    """Yield the lines of a stream, reading as they are consumed.

    Skip blank lines, and a byte order mark at the beginning of a file.

    Args:
        file: The file's name.
        stream: Its content, or what follows of it.
        longest_bytes: A longer line is yielded without its content.
        first: The number of the first line of the stream.
    """
    number = first - 1
    while raw := stream.readline(longest_bytes):
        number += 1
        content: bytes | None = raw.removeprefix(_BYTE_ORDER_MARK if number == 1 else b"").strip()
        if len(raw) == longest_bytes and not raw.endswith(b"\n"):
            content = None
            while raw and not raw.endswith(b"\n"):
                raw = stream.readline(_PART_BYTES)
        if content != b"":
            yield Line(file, number, content)


def values_in(file: str, stream: BinaryIO) -> Iterator[tuple[str, Any, str]]:
    """Yield the values of a stream: one a line if its first line is one, else over many lines.

    Args:
        file: The file's name.
        stream: Its content.

    Yields:
        The file and the line where a value begins; the value; why it cannot be read, or "".
    """
    lines = lines_in(file, stream, LONGEST_VALUE_BYTES)
    first = next(lines, None)
    if first is None:
        return
    if is_one_value(first):
        yield from map(value_of_line, chain([first], lines))
        return
    # In parts, because a buffer is as large as what may be read.
    parts = iter(partial(stream.read, _PART_BYTES), b"")
    rest = b"".join(islice(parts, LONGEST_VALUE_BYTES // _PART_BYTES))
    text = b"\n".join([first.content or b"", rest])
    if stream.read(1):
        size = f"{LONGEST_VALUE_BYTES >> 20} MB"
        yield first.place, None, f"neither one value a line, nor below {size} in all"
        return
    for value, offset, why in read_documents(text):
        yield Line(file, first.number + offset, None).place, value, why


def is_one_value(first: Line) -> bool:
    """Return whether a line is a value, or nothing that a value over many lines begins with."""
    return not value_of_line(first)[2] or not (first.content or b"").startswith((b"{", b"["))


def value_of_line(line: Line) -> tuple[str, Any, str]:
    """Return where a line stands, its value, and why that cannot be read, or ""."""
    if line.content is None:
        return line.place, None, TOO_LONG
    try:
        return line.place, read_json(line.content), ""
    except ValueError as error:
        return line.place, None, str(error)
