"""A command in a terminal of its own, as a person sees it and types into it."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import struct
import termios
import time
from collections.abc import Callable
from typing import Self

from tests import programs

_ESCAPE = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
_CLEAR = "\x1b[2J"
_DEADLINE_S = 600
_POLL_S = 0.02


class Terminal:
    """Runs `kp-langchain` with the words in a new terminal.

    Args:
        words: The words after the program's name.
        prompt: What the program prints each time before it waits for a key.
        columns: Width of the terminal.
        lines: Its height.
        environment: More variables.

    Attributes:
        output: What was printed so far, with its escapes.
        returncode: The exit status; None while it runs.
    """

    def __init__(
        self, *words: str, prompt: str, columns: int = 80, lines: int = 24, **environment: str
    ) -> None:
        self.output = ""
        self.returncode: int | None = None
        self._prompt, self._answered, self._bytes = prompt, 0, b""
        self._fd, inner = pty.openpty()
        fcntl.ioctl(inner, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
        shown = {key: value for key, value in os.environ.items() if key not in ("COLUMNS", "LINES")}
        with os.fdopen(inner, "r+b", buffering=0) as stream:
            self._process = programs.start(
                "-m", "kp_langchain", *words, stdin=stream, stdout=stream, stderr=stream,
                environment={**shown, "TERM": "xterm-256color", **environment},
            )  # fmt: skip

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()
        os.close(self._fd)

    @property
    def screens(self) -> list[str]:
        """What each screen showed, without escapes; the first stands before the first clearing."""
        parts = self.output.replace("\r\n", "\n").split(_CLEAR)
        return [_ESCAPE.sub("", part) for part in parts]

    def press(self, key: str) -> None:
        """Press a key as soon as the program waits for one."""
        self._read_until(lambda: self._is_asking() and not self._mode() & termios.ICANON)
        self._answered += 1
        os.write(self._fd, key.encode())

    def wait_for_question(self) -> None:
        """Wait until the program asks for the next key."""
        self._read_until(self._is_asking)

    def type(self, line: str, *, after: str) -> None:
        """Type a line as soon as the program printed a text and takes lines."""
        self._read_until(
            lambda: self.output.endswith(after) and bool(self._mode() & termios.ICANON)
        )
        os.write(self._fd, line.encode() + b"\n")

    def end(self) -> int:
        """Return the exit status when the program has ended, whose output is then complete."""
        self._read_until(lambda: False)
        self.returncode = self._process.wait()
        return self.returncode

    def _is_asking(self) -> bool:
        return self.output.count(self._prompt) > self._answered

    def _mode(self) -> int:
        mode: int = termios.tcgetattr(self._fd)[3]
        return mode

    def _read_until(self, is_there: Callable[[], bool]) -> None:
        """Read until a condition holds and nothing more is printed, or the program has ended."""
        deadline = time.monotonic() + _DEADLINE_S
        while time.monotonic() < deadline:
            if select.select([self._fd], [], [], _POLL_S)[0]:
                try:
                    part = os.read(self._fd, 1 << 16)
                except OSError:  # what Linux reports at the end
                    part = b""
                if not part:
                    return
                self._bytes += part
                self.output = self._bytes.decode(errors="replace")
            elif is_there():
                return
        raise AssertionError(f"nothing within {_DEADLINE_S} s after: {self.output[-2000:]}")
