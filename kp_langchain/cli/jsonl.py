"""Reading files of one JSON object a line, whatever the lines hold."""

from __future__ import annotations

import sys
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, cast

from kp_langchain.errors import KPError

STDIN = "-"
LONGEST_LINE_BYTES = 16 << 20
_SKIPPED_BYTES = 1 << 20  # of a longer line, at once


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


def read_lines(
    file: str, advance: Callable[[int], object], *, longest_bytes: int = LONGEST_LINE_BYTES
) -> Iterator[Line]:
    """Yield the lines of a file, or of standard input for `-`, reading as they are consumed.

    Skip blank lines, and a byte order mark at the beginning.

    Args:
        file: The file; decompressed if its name ends in `.gz`.
        advance: Called with the number of bytes read.
        longest_bytes: The length from which a line is not read.

    Raises:
        KPError: The file cannot be read.
    """
    number = 0
    with file_errors(file, "read"), _open(file) as stream:
        while raw := stream.readline(longest_bytes):
            number += 1
            advance(len(raw))
            content: bytes | None = raw.removeprefix(b"\xef\xbb\xbf" if number == 1 else b"")
            if len(raw) == longest_bytes and not raw.endswith(b"\n"):
                content = None
                while raw and not raw.endswith(b"\n"):
                    raw = stream.readline(_SKIPPED_BYTES)
                    advance(len(raw))
            content = content and content.strip()
            if content != b"":
                yield Line(file, number, content)


@contextmanager
def file_errors(name: str, action: str) -> Iterator[None]:
    """Raise errors of the operating system as a `KPError` that names the file.

    A `BrokenPipeError` passes: `main` handles it.

    Args:
        name: The file's name in the message.
        action: What could not be done: `read`, `opened` or `written`.

    Raises:
        KPError: The block raised an `OSError`.
    """
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        raise KPError(f"{name} cannot be {action}: {error.strerror or error}") from error
    except (EOFError, zlib.error) as error:  # of a compressed file
        raise KPError(f"{name} cannot be {action}: {error}") from error


@contextmanager
def _open(file: str) -> Iterator[BinaryIO]:
    if file == STDIN:
        yield sys.stdin.buffer
        return
    with Path(file).open("rb") as stream:
        if not file.endswith(".gz"):
            yield stream
            return
        import gzip

        with gzip.open(stream) as content:
            yield cast("BinaryIO", content)
