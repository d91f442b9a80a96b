"""What commands print: lines and JSON that a terminal can be shown, whatever the texts hold."""

from __future__ import annotations

import json
import sys
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
