"""Long base64 (images, sound, documents) in messages, replaced by its length and hash."""

from __future__ import annotations

import base64
import binascii
import hashlib
from collections.abc import Iterator

from kp_langchain.redaction.finders import ANY_DIGIT, Finder
from kp_langchain.redaction.lazy_pattern import lazy_pattern
from kp_langchain.redaction.spans import DIGITS, LETTERS, Span, character_classes, class_table

BLOB = "blob"

_MIN_CHARS = 1024  # a small icon is kept
_RUN = lazy_pattern(
    r"(?:data:[\w.+\-]{1,40}/[\w.+\-]{1,80}(?:;[\w=.\-]{1,80}){0,4};base64,)?"
    r"(?<![A-Za-z0-9+/_\-=])[A-Za-z0-9+/_\-]{1024,}={0,2}(?![A-Za-z0-9+/_\-=])"
    # Wrapped into lines, as mail and many programs do.
    r"|(?<![A-Za-z0-9+/_\-=])(?:[A-Za-z0-9+/]{60,76}(?:\r?\n|\\n)){13,}[A-Za-z0-9+/]{0,76}={0,2}"
)
_LINE_END = lazy_pattern(r"\r?\n|\\n")
_BASE64_CLASS = class_table(LETTERS + DIGITS + "+/_-")
_LONG_RUN = b"\1" * 60
_TYPE_BEFORE = lazy_pattern(r"data:([\w.+\-]{1,40}/[\w.+\-]{1,80})")


def _find(text: str, _low: str) -> Iterator[Span]:
    if _LONG_RUN not in character_classes(text, _BASE64_CLASS):
        return
    for match in _RUN.finditer(text):
        if _is_base64(match.group().rpartition(",")[2]):
            yield Span(*match.span(), BLOB)


def summary(blob: str) -> str:
    """Return what replaces a blob: its media type if stated, its length and its hash."""
    media_type = _TYPE_BEFORE.match(blob)
    _, _, content = blob.rpartition(",")
    data = _decode(content)
    if data is None:
        data = content.encode("ascii", "replace")
    return summary_of_bytes(data, f"{media_type[1]} " if media_type else "")


def summary_of_bytes(data: bytes, kind: str = "") -> str:
    """Return what replaces binary data: its length and hash, after `kind`."""
    return f"[BLOB:{kind}{len(data)} bytes sha256:{hashlib.sha256(data).hexdigest()[:16]}]"


def _is_base64(run: str) -> bool:
    """Return whether a run is base64, rather than hexadecimal, a long name or a row of dashes.

    Base64 mixes upper case, lower case and digits.
    """
    head = run[: _MIN_CHARS // 4]
    upper, lower = sum(map(str.isupper, head)), sum(map(str.islower, head))
    digits = sum(map(str.isdigit, head))
    return min(upper, lower, 4 * digits) >= len(head) // 8 and _decode(run) is not None


def _decode(run: str) -> bytes | None:
    body = _LINE_END.sub("", run).rstrip("=").translate(str.maketrans("-_", "+/"))
    try:
        return base64.b64decode(body + "=" * (-len(body) % 4), validate=True)
    except (binascii.Error, ValueError):
        return None


FINDERS = (Finder(_find, (ANY_DIGIT,), shortest=_MIN_CHARS),)
"""Find base64 of at least 1,024 characters."""
