"""Blocks of key material: PEM, OpenPGP, OpenVPN."""

from __future__ import annotations

from collections.abc import Iterator

from kp_langchain.redaction.finders import Finder
from kp_langchain.redaction.lazy_pattern import lazy_pattern
from kp_langchain.redaction.spans import Span

_BEGIN = lazy_pattern(
    r"-{4,5} ?BEGIN (?:[A-Z0-9]{1,20} ){0,4}"
    r"(?:PRIVATE KEY(?: BLOCK)?|OpenVPN Static key V1|OpenVPN tls-crypt-v2 client key) ?-{4,5}"
)
_END = lazy_pattern(r"-{4,5} ?END [A-Za-z0-9 \-]{0,80}?-{4,5}")
_BODY = lazy_pattern(
    r"(?:(?:Proc-Type|DEK-Info|Version|Comment|Subject):[^\n\\]*|[A-Za-z0-9+/=\s]|\\+[nrt]|%0[AaDd]"
    r"|[\"'],?\s{0,64}\+?\s{0,64}[\"']|[>|*#])*"
)
_MAX_BLOCK = 65_536
_KEY_MATERIAL = lazy_pattern(r"[A-Za-z0-9+/]{10}")
_PRIVATE_KEY_END = lazy_pattern(
    r"-{4,5} ?END (?:[A-Z0-9]{1,20} ){0,4}PRIVATE KEY(?: BLOCK)? ?-{4,5}"
)
_LINE_BREAK = r"(?:\s|[nrt]\\{1,16}){1,8}"
# Read backwards from an END: the last line, full lines, and the rest of the first line.
_BODY_REVERSED = lazy_pattern(
    rf"(?:{_LINE_BREAK}[A-Za-z0-9+/=]*(?!\\))?(?:{_LINE_BREAK}[A-Za-z0-9+/]{{16,}}(?!\\))*"
    rf"(?:{_LINE_BREAK}[A-Za-z0-9+/]{{1,15}}(?=\s*[^A-Za-z0-9+/\s\\]|\Z))?"
)


def _find_armoured(text: str, _low: str) -> Iterator[Span]:
    begins = [match.span() for match in _BEGIN.finditer(text)]
    for place, (start, inside) in enumerate(begins):
        following = begins[place + 1][0] if place + 1 < len(begins) else len(text)
        last = min(following, inside + _MAX_BLOCK)
        end = _END.search(text, inside, last)
        body = _BODY.match(text, inside, last)
        last = end.end() if end else body.end() if body else inside
        if _KEY_MATERIAL.search(text, inside, last):
            yield Span(start, last, "private_key")
    last = 0
    for end in _PRIVATE_KEY_END.finditer(text, 0, begins[0][0] if begins else len(text)):
        # The start of the block is cut off.
        before = text[max(last, end.start() - _MAX_BLOCK) : end.start()]
        body = _BODY_REVERSED.match(before[::-1])
        yield Span(end.start() - (body.end() if body else 0), end.end(), "private_key")
        last = end.end()


FINDERS = (Finder(_find_armoured, ("-",), ("private key", "openvpn")),)
