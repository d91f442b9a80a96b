"""How far a value reaches: quoted, quoted in an escaped way, bare, or in a list or mapping."""

from __future__ import annotations

import re
from collections.abc import Iterator

from kp_langchain.redaction.quoting import closing_quote

# A quote as HTML, percent encoding and JSON escape it.
NAMED_QUOTE = r"&(?:quot|apos|#(?:34|39|x22|x27));|%2[27]|\\{1,40}u00(?:22|27)"
_NAMED_QUOTE = re.compile(NAMED_QUOTE)
_OPEN_QUOTE = re.compile(r"(?:[bBrRuUfFN]{1,2}(?=[\"']))?(\\{0,127})([\"'`])")
_BARE = re.compile(
    r"(?:\[REDACTED:[a-z0-9_#]{1,50}\]|[^\s\x00-\x1f\x7f\"'`,;<>(){}\[\]\\&|"
    r"\u3002\uff0c\uff1b\u3001\uff09\u300d]"
    r"|&(?![A-Za-z_][\w.\-]{0,40}=|amp;|#\d|quot;|apos;|&)|\\(?![nrtu\"'\\]))+"
)
_TO_LINE_END = re.compile(r"[^\n\r]+")
_MARK = re.compile(r"\\{0,127}[\"']|[{}\[\]]")
_IS_NAME = re.compile(r"\s{0,8}:")
_MAX_QUOTED = 16_384
_MAX_NAMED = 4096
_MAX_MARKS = 128  # brackets and names, not counting the values found
_MAX_INSIDE = 4  # levels of nesting


def strings_inside(text: str, at: int) -> Iterator[tuple[int, int]]:
    """Yield the strings that are values in the list or mapping that opens at `at`."""
    depth = 0
    patience = _MAX_MARKS
    while patience and (mark := _MARK.search(text, at, at + _MAX_QUOTED)) is not None:
        at = mark.end()
        patience -= 1
        if mark.group() in "{[":
            depth += 1
        elif mark.group() in "]}":
            depth -= 1
        elif (inner := quoted(text, mark.start())) is not None:
            close = _OPEN_QUOTE.match(text, inner[1])
            at = close.end() if close else inner[1]
            if not _IS_NAME.match(text, at):
                yield inner
                patience += 1
        if depth <= 0 or depth > _MAX_INSIDE:
            return


def quoted(text: str, at: int) -> tuple[int, int] | None:
    """Return the inside of the quoted string that opens at `at`."""
    opening = _OPEN_QUOTE.match(text, at)
    if opening is None:
        named = _NAMED_QUOTE.match(text, at)
        if named is None:
            return None
        end = text.find(named.group(), named.end(), named.end() + _MAX_NAMED)
        return (named.end(), end) if end >= 0 else None
    start = opening.end()
    if text.startswith(opening[2] * 2, start) and not opening[1]:
        start += 2
        end = text.find(opening[2] * 3, start, start + _MAX_QUOTED)
        return (start, end) if end > start else None
    closed = closing_quote(text, start, opening[2], len(opening[1]), _MAX_QUOTED)
    if closed is None:  # cut off: what is left of the line belongs to the value
        rest = _TO_LINE_END.match(text, start)
        return (start, rest.end()) if rest and text[start] not in "}],);:" else None
    return start, closed


def bare(text: str, at: int) -> tuple[int, int] | None:
    """Return the unquoted word at `at`, without the full stop of a sentence."""
    found = _BARE.match(text, at)
    if found is None:
        return None
    end = found.end()
    while end > at + 1 and text[end - 1] in ".:?":
        end -= 1
    return at, end


def opens_quote(text: str, at: int) -> bool:
    """Tell whether a quoted string opens at `at`."""
    return _OPEN_QUOTE.match(text, at) is not None


def to_line_end(text: str, at: int) -> tuple[int, int] | None:
    """Return what is left of the line at `at`."""
    rest = _TO_LINE_END.match(text, at)
    return rest.span() if rest else None
