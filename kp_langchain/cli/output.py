"""What commands print: lines and JSON that a terminal can be shown, whatever the texts hold."""

from __future__ import annotations

import json
import os
import sys
from contextlib import suppress
from typing import TextIO

from kp_langchain.printable import printable, printable_json


def visible(text: str) -> str:
    """Return text without what a terminal would obey; its lines stay lines."""
    return printable(text, keep="\n")


def say(text: str, *, file: TextIO | None = None) -> None:
    """Print text on standard output, or to another file, as a terminal can be shown it."""
    print(visible(text), file=file or sys.stdout)


def say_json(value: object) -> None:
    """Print a value as one line of JSON."""
    print(printable_json(json.dumps(value, ensure_ascii=False)))  # noqa: T201


def is_closed_pipe(error: BaseException | None) -> bool:
    """Return whether an exception came of a reader that closed its end of the output."""
    while error is not None and not isinstance(error, BrokenPipeError):
        error = error.__context__  # typer and rich make a SystemExit of it
    return error is not None


def discard(*streams: TextIO) -> None:
    """Let go of what is buffered, which the interpreter would try to write when it ends."""
    for stream in streams:
        # One that is no file, or closed, is not written at the end.
        with suppress(AttributeError, OSError, ValueError):
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, stream.fileno())
            os.close(nowhere)
