"""Long base64: images, sound and documents inside messages. Its length and hash are kept of it."""

from __future__ import annotations

import base64
import binascii
import hashlib
import re
from collections.abc import Iterator

from kp_langchain.redaction.finders import ANY_DIGIT, Finder
from kp_langchain.redaction.spans import Span

BLOB = "blob"

_SHORTEST = 1024  # an icon may stay: it costs little, and a reader may want it
_RUN = re.compile(
    r"(?:data:[\w.+\-]{1,40}/[\w.+\-]{1,80}(?:;[\w=.\-]{1,80}){0,4};base64,)?"
    r"(?<![A-Za-z0-9+/_\-=])[A-Za-z0-9+/_\-]{1024,}={0,2}(?![A-Za-z0-9+/_\-=])"
    # As mail and many programs wrap it.
    r"|(?<![A-Za-z0-9+/_\-=])(?:[A-Za-z0-9+/]{60,76}(?:\r?\n|\\n)){13,}[A-Za-z0-9+/]{0,76}={0,2}"
)
_LINE_END = re.compile(r"\r?\n|\\n")
_LONG = re.compile(r"[A-Za-z0-9+/_\-]{60}")
_TYPE_BEFORE = re.compile(r"data:([\w.+\-]{1,40}/[\w.+\-]{1,80})")


def _find(text: str, _low: str) -> Iterator[Span]:
    if len(text) < _SHORTEST or _LONG.search(text) is None:
        return
    for match in _RUN.finditer(text):
        if _is_base64(match.group().rpartition(",")[2]):
            yield Span(*match.span(), BLOB)


def summary(found: str) -> str:
    """Return what stands for a blob: its type if it tells, its bytes, its hash."""
    named = _TYPE_BEFORE.match(found)
    _, _, content = found.rpartition(",")
    data = _decoded(content)
    if data is None:
        data = content.encode("ascii", "replace")
    return summary_of_bytes(data, f"{named[1]} " if named else "")


def summary_of_bytes(data: bytes, kind: str = "") -> str:
    """Return what stands for binary data: its length and hash, after what kind it is."""
    return f"[BLOB:{kind}{len(data)} bytes sha256:{hashlib.sha256(data).hexdigest()[:16]}]"


def _is_base64(run: str) -> bool:
    """Tell base64 from hexadecimal numbers, long names and rows of dashes: it mixes everything."""
    head = run[: _SHORTEST // 4]
    upper, lower = sum(map(str.isupper, head)), sum(map(str.islower, head))
    digits = sum(map(str.isdigit, head))
    return min(upper, lower, 4 * digits) >= len(head) // 8 and _decoded(run) is not None


def _decoded(run: str) -> bytes | None:
    body = _LINE_END.sub("", run).rstrip("=").translate(str.maketrans("-_", "+/"))
    try:
        return base64.b64decode(body + "=" * (-len(body) % 4), validate=True)
    except (binascii.Error, ValueError):
        return None


FINDERS = (Finder(_find, (ANY_DIGIT,)),)
"""For base64 that is at least 1,024 characters long."""
