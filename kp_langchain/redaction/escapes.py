r"""Texts whose letters JSON wrote as escapes: `\\u5bc6\\u7801` read as the word it is."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Callable

from kp_langchain.redaction.spans import Span

_ESCAPED = re.compile(r"\\{1,16}u([0-9a-fA-F]{4})")
# Letters of other alphabets, and their own signs, blanks and digits.
_READ = re.compile("[\u00a0-\u1fff\u2007-\u2015\u202f\u2192\u2e80-\ud7ff\uff00-\uff5e]")


def read_escapes(text: str) -> tuple[str, Callable[[Span], Span]] | None:
    """Read the escapes in `text` that stand for letters outside ASCII.

    Args:
        text: Any text; the work grows linearly with its length.

    Returns:
        The text as it reads, and a function from its spans to spans of `text`; None when there
        are no such escapes.
    """
    if "\\u" not in text:
        return None
    pieces: list[str] = []
    starts: list[int] = []  # of each piece in the text as it reads, and as it is written
    written: list[int] = []
    done = length = 0
    for match in _ESCAPED.finditer(text):
        letter = chr(int(match[1], 16))
        if not _READ.match(letter):
            continue
        for piece, at in ((text[done : match.start()], done), (letter, match.start())):
            pieces.append(piece)
            starts.append(length)
            written.append(at)
            length += len(piece)
        done = match.end()
    if not pieces:
        return None
    pieces.append(text[done:])
    starts.append(length)
    written.append(done)

    def place(at: int) -> int:
        piece = bisect_right(starts, at) - 1
        return written[piece] + at - starts[piece]

    return "".join(pieces), lambda span: Span(place(span.start), place(span.end), span.kind)
