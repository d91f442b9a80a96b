"""Files of one JSON object a line: read whatever they hold, and go on with one half written."""

from __future__ import annotations

import json
import os
import stat
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from io import FileIO
from pathlib import Path
from typing import Any, BinaryIO

from kp_langchain.errors import KPError

STDIN = "-"
LONGEST_LINE_BYTES = 16 << 20
_BLOCK_BYTES = 1 << 20
# A line written is longer than the line read, but not by so much.
_LONGEST_WRITTEN_BYTES = 8 * LONGEST_LINE_BYTES
# What every line written begins with. A file whose lines do not was made by something else.
_BEGINNING = b'{"source":{"file":"'


@dataclass(frozen=True, slots=True)
class Line:
    """A line that is not blank.

    Args:
        file: The file as it was named, or `-`.
        number: The line's number, from 1.
        content: The line without white space around it; None if it is too long to be read.
    """

    file: str
    number: int
    content: bytes | None


def read_lines(file: str, advance: Callable[[int], object]) -> Iterator[Line]:
    """Read the lines of a file, or of standard input for `-`, one at a time.

    Blank lines are passed over, and a byte order mark at the beginning.

    Args:
        file: The file.
        advance: Is told how many bytes were read.

    Raises:
        KPError: The file cannot be read.
    """
    number = 0
    with explained(file, "read"), _opened(file) as lines:
        while raw := lines.readline(LONGEST_LINE_BYTES):
            number += 1
            advance(len(raw))
            content: bytes | None = raw.removeprefix(b"\xef\xbb\xbf" if number == 1 else b"")
            while len(raw) == LONGEST_LINE_BYTES and not raw.endswith(b"\n"):
                raw = lines.readline(LONGEST_LINE_BYTES)
                advance(len(raw))
                content = None
            content = content and content.strip()
            if content != b"":
                yield Line(file, number, content)


@contextmanager
def _opened(file: str) -> Iterator[BinaryIO]:
    if file == STDIN:
        yield sys.stdin.buffer
        return
    with Path(file).open("rb") as lines:
        yield lines


class CannotGoOnError(KPError):
    """A file cannot be gone on with: it holds something else, or was made from something else."""


@dataclass(frozen=True, slots=True)
class Written:
    """A line of an output.

    Args:
        offset_bytes: Where it begins.
        content: The line.
    """

    offset_bytes: int
    content: bytes

    def values(self) -> dict[str, Any]:
        """Return what it holds.

        Raises:
            CannotGoOnError: It is no line of an output.
        """
        try:
            values = json.loads(self.content)
            source, novelty = values["source"], values["breakdown"]["novelty_source"]
            types = [(source["file"], str), (source["line"], int), (novelty, str)]
            if all(isinstance(value, kind) for value, kind in types):
                return {**values, "trace": dict(values["trace"])}
        except (ValueError, LookupError, TypeError, RecursionError):
            pass
        raise CannotGoOnError(
            f"what stands in it at byte {self.offset_bytes} was not written by this command"
        )

    def check_beginning(self) -> None:
        """Check that it may be the beginning of a line.

        Raises:
            CannotGoOnError: It is not.
        """
        if not _BEGINNING.startswith(self.content[: len(_BEGINNING)]):
            raise CannotGoOnError(
                f"it ends, from byte {self.offset_bytes}, with what this command does not write"
            )


class Output:
    """Where the lines go: a file, which is gone on with if it is there already, or standard output.

    Writes are not buffered: what was written is in the file, whatever becomes of this process. The
    beginning of a line that is left by that is removed when the file is gone on with.

    Args:
        path: The file; None for standard output.

    Attributes:
        last: The last line of a file that is gone on with.

    Raises:
        CannotGoOnError: The file ends with something that this command does not write.
        KPError: The file cannot be opened.
    """

    def __init__(self, path: str | None) -> None:
        self._name = "standard output" if path is None else path
        self.last: Written | None = None
        with explained(self._name, "opened"):
            self._file = FileIO(os.dup(1), "w") if path is None else FileIO(path, "a")
            regular = stat.S_ISREG(os.fstat(self._file.fileno()).st_mode)
        if path is not None and regular:
            lines = newest_first(path)
            half = next(lines)
            half.check_beginning()
            self.last = next(lines, None)
            if self.last is not None:
                self.last.values()
            self._file.truncate(half.offset_bytes)

    def __enter__(self) -> Output:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def write(self, lines: Iterable[bytes]) -> None:
        """Write lines, which end with a line feed.

        Raises:
            BrokenPipeError: Whoever read standard output has closed it.
            KPError: They cannot be written.
        """
        rest = memoryview(b"".join(lines))
        with explained(self._name, "written"):
            while rest:
                rest = rest[os.write(self._file.fileno(), rest) :]


def newest_first(path: str) -> Iterator[Written]:
    """Read a file backwards: what follows its last line feed, be it nothing, then line by line.

    Raises:
        KPError: It cannot be read.
    """
    with explained(path, "read"), Path(path).open("rb") as file:
        start = end = file.seek(0, os.SEEK_END)
        rest = b""
        while start > 0 and len(rest) <= _LONGEST_WRITTEN_BYTES:
            block_bytes = min(start, _BLOCK_BYTES)
            start = file.seek(start - block_bytes)
            rest, *lines = (file.read(block_bytes) + rest).split(b"\n")
            for line in reversed(lines):
                yield Written(end - len(line), line)
                end -= len(line) + 1
        yield Written(start, rest)


def written_at(path: str, offsets_bytes: Iterable[int]) -> Iterator[Written]:
    """Read the lines that begin at these places.

    Raises:
        KPError: The file cannot be read.
    """
    with explained(path, "read"), Path(path).open("rb") as file:
        for offset in offsets_bytes:
            file.seek(offset)
            yield Written(offset, file.readline())


@contextmanager
def explained(name: str, done: str) -> Iterator[None]:
    """Tell what the system says of a file as a `KPError`."""
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        raise KPError(f"{name} cannot be {done}: {error.strerror or error}") from error
