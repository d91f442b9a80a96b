"""Blocks of key material: PEM, OpenPGP, PuTTY, OpenVPN, keys as XML or JSON."""

from __future__ import annotations

import re
from collections.abc import Iterator

from kp_langchain.redaction.finders import Finder
from kp_langchain.redaction.spans import Span

_BEGIN = re.compile(
    r"-{4,5} ?BEGIN (?:[A-Z0-9]{1,20} ){0,4}"
    r"(?:PRIVATE KEY(?: BLOCK)?|OpenVPN Static key V1|OpenVPN tls-crypt-v2 client key) ?-{4,5}"
)
_END = re.compile(r"-{4,5} ?END [A-Za-z0-9 \-]{0,80}?-{4,5}")
_BODY = re.compile(
    r"(?:(?:Proc-Type|DEK-Info|Version|Comment|Subject):[^\n\\]*|[A-Za-z0-9+/=\s]|\\+[nrt]|%0[AaDd]"
    r"|[\"'] ?\+\s{0,8}[\"']|[>|*#])*"
)
_MAX_BLOCK = 65_536
_PUTTY = re.compile(
    r"Private-Lines: ?\d{1,4}(?:\\{1,16}[nr]|\s){1,8}(?P<body>[A-Za-z0-9+/=\s\\]{16,16384}?)"
    r"(?=Private-(?:MAC|Hash)|[^A-Za-z0-9+/=\s\\]|\Z)"
)
_XML = re.compile(r"<(?:D|P|Q|DP|DQ|InverseQ)>(?P<body>[A-Za-z0-9+/=\s]{16,2048})</")
_JWK = re.compile(
    r"\"(?:d|p|q|dp|dq|qi|k)\\{0,8}\"\s{0,4}:\s{0,4}\\{0,8}\"(?P<body>[A-Za-z0-9_\-+/=]{20,2048})"
)
_PARTS = (("Private-Lines", _PUTTY), ("RSAKeyValue", _XML), ('"kty', _JWK), ('"oct', _JWK))


def _find_armoured(text: str, _low: str) -> Iterator[Span]:
    if "BEGIN" not in text:
        return
    begins = [match.span() for match in _BEGIN.finditer(text)]
    for place, (start, inside) in enumerate(begins):
        following = begins[place + 1][0] if place + 1 < len(begins) else len(text)
        last = min(following, inside + _MAX_BLOCK)
        end = _END.search(text, inside, last)
        if end is not None:
            yield Span(start, end.end(), "private_key")
            continue
        body = _BODY.match(text, inside, last)
        yield Span(start, body.end() if body else inside, "private_key")


def _find_parts(text: str, _low: str) -> Iterator[Span]:
    for literal, pattern in _PARTS:
        if literal in text:
            for match in pattern.finditer(text):
                yield Span(*match.span("body"), "private_key")


FINDERS = (Finder(_find_armoured, ("-",)), Finder(_find_parts, ("-:", "<>", '":')))
