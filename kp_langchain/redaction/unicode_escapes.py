r"""Decode the letters that JSON writes as escapes: `\\u5bc6\\u7801`."""

from __future__ import annotations

from collections.abc import Callable

from kp_langchain.redaction.lazy_pattern import lazy_pattern
from kp_langchain.redaction.spans import Span

_ESCAPED = lazy_pattern(r"\\{1,16}u([0-9a-fA-F]{4})")
# Characters of other alphabets, and those that serialisers of JSON for web pages escape.
_READ = lazy_pattern("[=&<>\x1b\u00a0-\u1fff\u2007-\u2015\u202f\u2192\u2e80-\ud7ff\uff00-\uff5e]")


def decode_escapes(text: str) -> tuple[str, Callable[[Span], Span]] | None:
    """Decode the escapes in `text` that stand for letters outside ASCII, or for `=&<>` and ESC.

    Args:
        text: Any text; takes time linear in its length.

    Returns:
        The decoded text, and a function that maps its spans to spans of `text`; None if there are
        no such escapes.
    """
    if "\\u" not in text:
        return None
    pieces: list[str] = []
    origins: list[int] = []  # of each decoded character: its place in `text`
    position = 0
    for match in _ESCAPED.finditer(text):
        letter = chr(int(match[1], 16))
        if _READ.match(letter):
            pieces += [text[position : match.start()], letter]
            origins += range(position, match.start() + 1)
            position = match.end()
    if not pieces:
        return None
    origins += range(position, len(text) + 1)
    decoded = "".join([*pieces, text[position:]])
    return decoded, lambda span: Span(origins[span.start], origins[span.end], span.kind)
