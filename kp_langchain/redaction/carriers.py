"""Secrets known by what carries them: key blocks, URLs, HTTP schemes, command lines, SQL."""

from __future__ import annotations

import re
from collections.abc import Iterator

from kp_langchain.redaction.spans import Span
from kp_langchain.redaction.values import fills_the_place, looks_generated

_PEM_BEGIN = re.compile(r"-----BEGIN (?:[A-Z0-9]{1,20} ){0,4}PRIVATE KEY(?: BLOCK)?-----")
_PEM_BODY = re.compile(
    r"(?:[A-Za-z0-9+/=\s]|\\+[nrt]|(?:Proc-Type|DEK-Info|Version|Comment):[^\n\\]*)*"
)
_PEM_END = re.compile(r"-----END [A-Z0-9 ]{0,80}-----")
_MAX_PEM = 65_536

_AUTHORITY = re.compile(r"[^\s\"'<>`\\|]{1,1024}")
_SCHEME_REVERSED = re.compile(r"[A-Za-z0-9+.\-]{1,40}")
_PORT = re.compile(r"[0-9]{1,5}(?:[/?#,].*)?", re.DOTALL)
_HOST = re.compile(r"[\w.\-\[\]:]+", re.ASCII)

_BEARER = re.compile(r"bearer(?:[ \t]|%20|\+){1,4}([A-Za-z0-9._~+/=\-:|]{6,8192})", re.IGNORECASE)
_BASIC = re.compile(r"basic[ \t]{1,4}([A-Za-z0-9+/_\-]{6,4096}={0,2})", re.IGNORECASE)

# A command's own short flag for a password: the literal to look for, then the expression.
_ARGUMENT = r"(\\*[\"'])?(?P<secret>(?(1)[^\"'\n\\]{1,256}|[^\s\"'\\]{1,256}))"
_COMMANDS = (
    ("redis-cli", re.compile(r"redis-cli[^\n|;]{0,200}? -a[ \t]{1,8}" + _ARGUMENT)),
    (
        "mysql",
        re.compile(
            r"mysql(?:dump|admin|import|show|sh)?[ \t](?:[^\n|;]{0,200}?[ \t])?-p"
            r"(?=[^\s\-])" + _ARGUMENT
        ),
    ),
    ("sshpass", re.compile(r"sshpass[ \t]{1,8}-p[ \t]{0,8}" + _ARGUMENT)),
    (
        "curl",
        re.compile(
            r"curl[ \t](?:[^\n|;]{0,200}?[ \t])?-(?:u|-user)[ \t=]{0,8}(?:\\*[\"'])?"
            r"[^\s:\"'\\]{1,80}:(?P<secret>[^\s\"'\\]{1,256})"
        ),
    ),
    (
        "login",
        re.compile(
            r"(?:docker|podman|helm)[^\n|;]{0,80}? login[^\n|;]{0,200}? -p[ \t]{1,8}" + _ARGUMENT
        ),
    ),
    ("sqlcmd", re.compile(r"sqlcmd[^\n|;]{0,200}? -P[ \t]{0,8}" + _ARGUMENT)),
    (
        "identified by",
        re.compile(
            r"identified by[ \t]{1,8}(?:password )?(\\*[\"'])(?P<secret>[^\"'\n\\]{1,256})",
            re.IGNORECASE,
        ),
    ),
)


def find_carried(text: str, low: str) -> Iterator[Span]:
    """Yield the secrets in `text` that their surroundings give away.

    Args:
        text: Any text; the work grows linearly with its length.
        low: The same text in lower case, of the same length.
    """
    if "PRIVATE KEY" in text:
        yield from _key_blocks(text)
    if "://" in text:
        yield from _url_passwords(text)
    if "bearer" in low:
        for match in _BEARER.finditer(text):
            value = match[1].rstrip(".,:")
            if not fills_the_place(value) and _is_opaque(value):
                yield Span(match.start(1), match.start(1) + len(value), "authorization")
    if "basic" in low:
        for match in _BASIC.finditer(text):
            if _is_base64(match[1]):
                yield Span(*match.span(1), "authorization")
    for literal, pattern in _COMMANDS:
        if literal in low:
            for match in pattern.finditer(text):
                if not fills_the_place(match["secret"]):
                    yield Span(*match.span("secret"), "password")


def _is_opaque(value: str) -> bool:
    return len(value) >= 8 and (
        any(map(str.isdigit, value)) or (not value.islower() and not value.istitle())
    )


def _is_base64(value: str) -> bool:
    mixed = value.lower() != value and value.upper() != value and not value.istitle()
    return len(value) >= 8 and (value.endswith("=") or (mixed and any(map(str.isdigit, value))))


def _key_blocks(text: str) -> Iterator[Span]:
    position = 0
    while (begin := _PEM_BEGIN.search(text, position)) is not None:
        body = _PEM_BODY.match(text, begin.end(), begin.end() + _MAX_PEM)
        position = body.end() if body else begin.end()
        end = _PEM_END.match(text, position)
        if end is not None:
            position = end.end()
        yield Span(begin.start(), position, "private_key")


def _url_passwords(text: str) -> Iterator[Span]:
    position = 0
    while (mark := text.find("://", position)) >= 0:
        position = mark + 3
        if _SCHEME_REVERSED.match(text[max(0, mark - 40) : mark][::-1]) is None:
            continue
        authority = _AUTHORITY.match(text, position)
        if authority is None:
            continue
        run = authority.group()
        following = run.find("://")
        if following >= 0:
            run = run[:following]
        yield from _userinfo(run, position)
        position += len(run)


def _userinfo(run: str, offset: int) -> Iterator[Span]:
    """Yield the password in `user:password@host`, where it may itself hold `@`, `:` and `/`."""
    slash = min((at for at in map(run.find, "/?#") if at >= 0), default=len(run))
    at_sign = run.rfind("@", 0, slash)
    colon = run.find(":")
    if at_sign < 0:
        # A raw "/" inside the password hides the real host; a port before the "/" does not.
        if colon < 0 or colon > slash or _PORT.fullmatch(run, colon + 1):
            return
        at_sign = run.rfind("@")
        if at_sign < 0 or _HOST.match(run, at_sign + 1) is None:
            return
    if 0 <= colon < at_sign:
        password = run[colon + 1 : at_sign]
        if not fills_the_place(password):
            yield Span(offset + colon + 1, offset + at_sign, "password")
    elif looks_generated(run[:at_sign]):
        yield Span(offset, offset + at_sign, "token")
