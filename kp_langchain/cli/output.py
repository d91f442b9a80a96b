"""Plain lines and JSON on standard output, safe for a terminal whatever the text holds."""

from __future__ import annotations

import dataclasses
import io
import json
import os
import sys
from contextlib import suppress
from datetime import datetime
from typing import Any, TextIO

from kp_langchain.printable import printable, printable_json


def visible(text: str) -> str:
    """Return `text` without the characters that control a terminal; line feeds stay."""
    return printable(text, keep="\n")


def say(text: str, *, file: TextIO | None = None) -> None:
    """Print `text` on standard output or on another file, safe for a terminal."""
    # The end of the line is not left to `print`, which writes it by itself: a log record of another
    # thread would come in between.
    print(f"{visible(text)}\n", end="", file=file or sys.stdout)


def say_json(value: object) -> None:
    """Print a value as one line of JSON."""
    say(json_line(value, is_unicode=takes_unicode(sys.stdout)))


def json_line(value: object, *, is_unicode: bool) -> str:
    """Return a value as one line of JSON, safe for a terminal.

    Args:
        value: The value.
        is_unicode: Whether characters beyond ASCII may stay as they are.
    """
    return printable_json(json.dumps(value, ensure_ascii=not is_unicode))


def takes_unicode(stream: TextIO | None) -> bool:
    """Return whether a stream can write every character."""
    return (getattr(stream, "encoding", None) or "utf-8").lower().startswith("utf")


def json_fields(record: Any, *, without: str = "") -> dict[str, Any]:
    """Return the public fields of a dataclass, ready for JSON; times as ISO 8601 text.

    Args:
        record: An instance of a dataclass.
        without: A field to leave out.
    """
    names = (field.name for field in dataclasses.fields(record))
    values = {
        name: getattr(record, name)
        for name in names
        if not name.startswith("_") and name != without
    }
    return {
        name: value.isoformat() if isinstance(value, datetime) else value
        for name, value in values.items()
    }


def is_closed_pipe(error: BaseException | None) -> bool:
    """Return whether an exception arose because the reader closed its end of the output."""
    while error is not None and not isinstance(error, BrokenPipeError):
        error = error.__context__  # typer and rich turn it into a SystemExit
    return error is not None


def replace_unencodable(*streams: TextIO | None) -> None:
    """Write `?` for characters that a terminal's encoding lacks, instead of failing on them."""
    for stream in streams:
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")


def discard(*streams: TextIO) -> None:
    """Discard buffered output, which the interpreter would try to write at exit."""
    for stream in streams:
        # A stream that is closed, or is not a file, is not written at exit.
        with suppress(AttributeError, OSError, ValueError):
            null = os.open(os.devnull, os.O_WRONLY)
            os.dup2(null, stream.fileno())
            os.close(null)
