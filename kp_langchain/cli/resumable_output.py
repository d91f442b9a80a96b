"""The output of `score`: a JSONL file that an interrupted run of the command resumes."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from io import FileIO
from pathlib import Path
from typing import Any

from kp_langchain.cli.jsonl import LONGEST_LINE_BYTES, file_errors
from kp_langchain.errors import CannotResumeError

_BLOCK_BYTES = 1 << 20
# An output line is longer than its input line, but not by this much.
_LONGEST_RECORD_BYTES = 8 * LONGEST_LINE_BYTES
# Every output line begins with this; a file whose lines do not is not an output of the command.
_PREFIX = b'{"source":{"file":"'


@dataclass(frozen=True, slots=True)
class OutputLine:
    """A line of an output.

    Attributes:
        offset_bytes: Where it begins in the file.
        content: The line without its line feed.
    """

    offset_bytes: int
    content: bytes

    def values(self) -> dict[str, Any]:
        """Return the JSON object that the line holds.

        Raises:
            CannotResumeError: The line is not one that this command writes.
        """
        try:
            values = json.loads(self.content)
            source, novelty = values["source"], values["breakdown"]["novelty_source"]
            types = [(source["file"], str), (source["line"], int), (novelty, str)]
            if all(isinstance(value, kind) for value, kind in types):
                return {**values, "trace": dict(values["trace"])}
        except (ValueError, LookupError, TypeError, RecursionError):
            pass
        raise CannotResumeError(
            f"the content at byte {self.offset_bytes} was not written by this command"
        )

    def check_beginning(self) -> None:
        """Check that an incomplete line may be the beginning of an output line.

        Raises:
            CannotResumeError: It is not.
        """
        if not _PREFIX.startswith(self.content[: len(_PREFIX)]):
            raise CannotResumeError(
                f"the content from byte {self.offset_bytes} on was not written by this command"
            )


class Output:
    """Where the lines go: standard output, or a file, which is resumed if it exists.

    Writes are not buffered: a line that was written is in the file even if the process is killed.
    Resuming removes the incomplete line that a killed process may leave at the end.

    Args:
        path: The file; None for standard output.

    Attributes:
        last: The last complete line of a file that is resumed; None if there is none.

    Raises:
        CannotResumeError: The file ends with something that this command does not write.
        KPError: The file cannot be opened.
    """

    def __init__(self, path: str | None) -> None:
        self._name = "standard output" if path is None else path
        self.last: OutputLine | None = None
        with file_errors(self._name, "opened"):
            self._file = FileIO(os.dup(1), "w") if path is None else FileIO(path, "a")
            is_regular = stat.S_ISREG(os.fstat(self._file.fileno()).st_mode)
        if path is not None and is_regular:
            try:
                self._resume(path)
            except BaseException:
                self._file.close()
                raise

    def _resume(self, path: str) -> None:
        lines = lines_backwards(path)
        incomplete = next(lines)
        incomplete.check_beginning()
        self.last = next(lines, None)
        if self.last is not None:
            self.last.values()
        self._file.truncate(incomplete.offset_bytes)

    def __enter__(self) -> Output:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def write(self, lines: Iterable[bytes]) -> None:
        """Write lines, each of which ends with a line feed.

        Raises:
            BrokenPipeError: The reader of standard output closed it.
            KPError: They cannot be written.
        """
        rest = memoryview(b"".join(lines))
        with file_errors(self._name, "written"):
            while rest:
                rest = rest[os.write(self._file.fileno(), rest) :]


def lines_backwards(path: str) -> Iterator[OutputLine]:
    """Yield the lines of a file from its end: first what follows the last line feed, maybe empty.

    Raises:
        KPError: The file cannot be read.
    """
    with file_errors(path, "read"), Path(path).open("rb") as file:
        start = end = file.seek(0, os.SEEK_END)
        rest = b""
        while start > 0 and len(rest) <= _LONGEST_RECORD_BYTES:
            block_bytes = min(start, _BLOCK_BYTES)
            start = file.seek(start - block_bytes)
            rest, *lines = (file.read(block_bytes) + rest).split(b"\n")
            for line in reversed(lines):
                yield OutputLine(end - len(line), line)
                end -= len(line) + 1
        yield OutputLine(start, rest)


def lines_at(path: str, offsets_bytes: Iterable[int]) -> Iterator[OutputLine]:
    """Yield the lines that begin at these offsets of a file.

    Raises:
        KPError: The file cannot be read.
    """
    with file_errors(path, "read"), Path(path).open("rb") as file:
        for offset in offsets_bytes:
            file.seek(offset)
            yield OutputLine(offset, file.readline())
