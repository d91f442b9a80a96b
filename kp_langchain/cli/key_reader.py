"""Answers of a person: keys of a terminal, or lines of a pipe."""

from __future__ import annotations

import sys
from contextlib import suppress

import typer

_INTERRUPT = "\x03"
_LONGEST_LINE_BYTES = 1 << 16


class KeyReader:
    """Reads one key after the other from a terminal, or one line from anything else."""

    def __init__(self) -> None:
        self._is_terminal = sys.stdin is not None and sys.stdin.isatty()

    def key(self) -> str | None:
        """Return the next key, or the next line without white space around it; None at the end.

        On Unix, keys of a terminal that were pressed before this is called do not count, so that a
        key that is hit twice answers one question only.

        Raises:
            KeyboardInterrupt: The key is Ctrl-C.
        """
        if not self._is_terminal:
            line = self.line()
            return None if line is None else line.strip()
        keys = ""
        with suppress(EOFError, OSError):  # the key is Ctrl-D, or the terminal is gone
            keys = typer.getchar()
        if _INTERRUPT in keys:
            raise KeyboardInterrupt
        return keys[:1] or None  # an arrow or the like is several characters, the first an escape

    def line(self) -> str | None:
        """Return the next line without its end, cut to 64 KB; None at the end of the input."""
        if sys.stdin is None:
            return None
        # As bytes, because one that is not UTF-8 must not end the program.
        stream = sys.stdin.buffer
        line = part = stream.readline(_LONGEST_LINE_BYTES)
        while part and not part.endswith(b"\n"):
            part = stream.readline(_LONGEST_LINE_BYTES)
        return line.decode(errors="replace").rstrip("\r\n") if line else None
