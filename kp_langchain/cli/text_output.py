"""Where a command writes lines: standard output, or a file that appears when it is complete."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from kp_langchain.cli.jsonl import STDIN, file_errors
from kp_langchain.errors import KPError

_SQLITE = b"SQLite format 3\0"

STDOUT = STDIN
"""What names standard output, too: `-`."""


@contextmanager
def text_output(file: str) -> Iterator[Callable[[str], object]]:
    """Yield a function that writes text.

    A file appears, or is replaced, as the block ends; if that raises, it is as it was. Only its
    owner may read it.

    Args:
        file: The file, or `-` for standard output.

    Raises:
        KPError: The file is a SQLite database, or cannot be written.
    """
    if file == STDOUT:
        yield sys.stdout.write
        sys.stdout.flush()  # so that a closed pipe is noticed here
        return
    target = Path(file).resolve()  # a link stays, and what it leads to is replaced
    if target.exists() and not target.is_file():
        raise KPError(f"{file} is not a file; give a file's path, or - for standard output")
    if _is_database(target):
        raise KPError(f"{file} is a database, perhaps a store; choose another file")
    with file_errors(file, "written"):
        descriptor, name = tempfile.mkstemp(prefix=f".{target.name[:100]}.", dir=target.parent)
        temporary = Path(name)
        try:
            with os.fdopen(descriptor, "w", encoding="utf-8", errors="replace") as stream:
                yield stream.write
                stream.flush()
                os.fsync(descriptor)
            temporary.replace(target)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise


def _is_database(path: Path) -> bool:
    try:
        with path.open("rb") as stream:
            return stream.read(len(_SQLITE)) == _SQLITE
    except OSError:
        return False
