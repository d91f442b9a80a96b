"""Secrets recognised by their context: URLs, HTTP schemes, SQL, calls, credential files."""

from __future__ import annotations

import re
from collections.abc import Iterator

from kp_langchain.redaction.field_names import classify_name
from kp_langchain.redaction.finders import ANY_DIGIT, Find, Finder
from kp_langchain.redaction.spans import Span, occurrences
from kp_langchain.redaction.values import is_placeholder, looks_generated

_AUTHORITY = re.compile(r"[^\s\"'<>`\\|]{1,1024}")
_SCHEME_REVERSED = re.compile(r"[A-Za-z0-9+.\-]{1,40}")
_PORT = re.compile(r"[0-9]{1,5}(?:[/?#,].*)?", re.DOTALL)
_HOST = re.compile(r"[\w.\-\[\]:]+", re.ASCII)

_BEARER = re.compile(r"bearer(?:[ \t]|%20|\+){1,4}([A-Za-z0-9._~+/=\-:|]{6,8192})", re.IGNORECASE)
_BASIC = re.compile(r"basic[ \t]{1,4}([A-Za-z0-9+/_\-]{6,4096}={0,2})", re.IGNORECASE)

_IDENTIFIED_BY = re.compile(
    r"identified(?:[ \t]with[ \t][\w.]{1,40})?[ \t]by[ \t]{1,8}(?:password )?(\\*[\"'])"
    r"(?P<secret>[^\"'\n\\]{1,256})",
    re.IGNORECASE,
)
# INSERT INTO users (name, password) VALUES ('bob', '...'), ('eve', '...')
_INSERT = re.compile(
    r"\((?P<names>[\w`\"\[\], \t]{3,512})\)\s{0,8}values\s{0,8}(?P<rows>\([^\n]{1,4096})",
    re.IGNORECASE,
)
_SQL_VALUE = re.compile(
    r"[ \t]{0,8}(?:N?'(?P<text>(?:[^'\\\n]|''|\\.){0,512})'|[^,'()\n]{1,64}(?:\([^()\n]{0,64}\))?)[ \t]{0,8}([,)]|$)"
)
_NEXT_ROW = re.compile(r"[ \t]{0,8},[ \t]{0,8}\(")
# .pgpass: host:port:database:user:password
_PGPASS = re.compile(r":(?:\d{2,5}|\*):[\w\-*]{1,64}:[\w.\-*]{1,64}:(?P<secret>[^\s:\"'\\]{4,200})")
_PGPASS_HOST = re.compile(r"(?:[A-Za-z0-9.\-]{1,80}|\*)(?=n\\|[\s\"'`>]|\Z)")
# user:password@tcp(host:3306)/db, oracle:thin:user/password@host
_TCP = re.compile(r"[\w.\-]{1,64}:(?P<secret>[^\s\"'`/]{1,200}?)@(?:tcp|unix)\(")
_ORACLE = re.compile(r"oracle:\w{2,8}:[\w.\-]{1,64}/(?P<secret>[^\s\"'`/]{1,200}?)@")
_SLASHES = re.compile(r"//(?<![\w:/]//)[\w.\-]{1,64}:(?P<secret>[^\s\"'`/@]{3,200})@[\w.\-]{1,120}")
# login('bob', '...'), HTTPBasicAuth('bob', '...'), auth=('bob', '...')
_PAIR_CALL = re.compile(
    r"\([ \t]{0,4}(?:username=|user=)?\\{0,40}[\"'][^\"'\n\\]{1,80}\\{0,40}[\"'][ \t]{0,4},[ \t]{0,4}"
    r"\\{0,40}[\"'](?P<secret>[^\"'\n\\]{3,200})"
)
_SIGN_IN_CALL = re.compile(
    r"(?:[lL]og_?[iI]n|authenticate|HTTP\w{0,8}Auth|[bB]asic_?[aA]uth|\bauth=?|Credentials?|AuthProvider)\Z"
)
# BUNDLE_GEMS__CONTRIBSYS__COM=ab12cd34:ef56ab78, bundler's credentials for a host
_BUNDLE = re.compile(r"BUNDLE_[A-Z0-9_]{3,80}=[\"']?(?P<secret>[^\s:\"']{4,64}:[^\s\"']{4,64})")
# "credentials: bob / hunter22", "user bob / pass hunter22"
_CREDENTIALS = ("credential", "creds", "login", "log-in", "zugangsdaten", "identifiants", "user ")
_LOGIN_WITH_SLASH = re.compile(
    r"[\w\-]{4,12}[ \t]{0,2}(?:[:=]|are|is|)[ \t]{1,4}[\w.@\-]{2,64}[ \t]{0,2}[/|][ \t]{0,2}"
    r"(?:pass |pw )?(?P<secret>(?=[^\s\"'`<>,;]{0,127}\d)[^\s\"'`<>,;/]{5,128})"
)


def _find_bearers(text: str, low: str) -> Iterator[Span]:
    for at in occurrences(low, ("bearer",)):
        bearer = _BEARER.match(text, at)
        value = bearer[1].rstrip(".,:") if bearer else ""
        if bearer and not is_placeholder(value) and _is_opaque(value):
            yield Span(bearer.start(1), bearer.start(1) + len(value), "authorization")


def _find_basic(text: str, low: str) -> Iterator[Span]:
    for at in occurrences(low, ("basic",)):
        basic = _BASIC.match(text, at)
        if basic and _is_base64(basic[1]):
            yield Span(*basic.span(1), "authorization")


def _find_group(pattern: re.Pattern[str]) -> Find:
    """Return a finder of passwords: the group "secret" of each match of `pattern`."""

    def find(text: str, _low: str) -> Iterator[Span]:
        for match in pattern.finditer(text):
            if not is_placeholder(match["secret"]):
                yield Span(*match.span("secret"), "password")

    return find


def _find_pgpass(text: str, _low: str) -> Iterator[Span]:
    for match in _PGPASS.finditer(text):
        if _PGPASS_HOST.match(text[max(0, match.start() - 81) : match.start()][::-1]):
            yield Span(*match.span("secret"), "password")


def _find_in_calls(text: str, _low: str) -> Iterator[Span]:
    for match in _PAIR_CALL.finditer(text):
        if _SIGN_IN_CALL.search(text[max(0, match.start() - 32) : match.start()]):
            yield Span(*match.span("secret"), "password")


def _find_logins_with_slash(text: str, low: str) -> Iterator[Span]:
    for at in occurrences(low, _CREDENTIALS):
        login = _LOGIN_WITH_SLASH.match(text, at)
        if login is not None and not is_placeholder(login["secret"]):
            yield Span(*login.span("secret"), "password")


def _find_in_inserts(text: str, _low: str) -> Iterator[Span]:
    """Yield the values of sensitive columns in `INSERT INTO t (a, password) VALUES (1, 'x')`."""
    for match in _INSERT.finditer(text):
        columns = [classify_name(name.strip(' \t`"[]')) for name in match["names"].split(",")]
        if not any(columns):
            continue
        at: int | None = match.start("rows") + 1
        while at is not None:
            for column in columns:
                value = _SQL_VALUE.match(text, at, match.end())
                if value is None:
                    return
                if (
                    column
                    and value["text"]
                    and not column.is_identifier
                    and not is_placeholder(value["text"])
                ):
                    yield Span(*value.span("text"), column.kind)
                at = value.end()
            row = _NEXT_ROW.match(text, at, match.end())
            at = row.end() if row else None


def _is_opaque(value: str) -> bool:
    return len(value) >= 8 and (
        any(map(str.isdigit, value)) or (not value.islower() and not value.istitle())
    )


def _is_base64(value: str) -> bool:
    is_mixed_case = value.lower() != value and value.upper() != value and not value.istitle()
    return len(value) >= 8 and (
        value.endswith("=") or (is_mixed_case and any(map(str.isdigit, value)))
    )


def _find_in_urls(text: str, _low: str) -> Iterator[Span]:
    position = 0
    while (mark := text.find("://", position)) >= 0:
        position = mark + 3
        if _SCHEME_REVERSED.match(text[max(0, mark - 40) : mark][::-1]) is None:
            continue
        authority = _AUTHORITY.match(text, position)
        if authority is None:
            continue
        address = authority.group()
        following = address.find("://")
        if following >= 0:
            address = address[:following]
        yield from _userinfo(address, position)
        position += len(address)


def _userinfo(address: str, offset: int) -> Iterator[Span]:
    """Yield the password in `user:password@host`; it may contain `@`, `:` and `/`."""
    slash = min((at for at in map(address.find, "/?#") if at >= 0), default=len(address))
    at_sign = address.rfind("@", 0, slash)
    colon = address.find(":")
    if at_sign < 0:
        # A "/" in the password hides the host, unless what comes before it is host and port.
        if colon < 0 or colon > slash or _PORT.fullmatch(address, colon + 1):
            return
        at_sign = address.rfind("@")
        if at_sign < 0 or _HOST.match(address, at_sign + 1) is None:
            return
    if 0 <= colon < at_sign:
        password = address[colon + 1 : at_sign]
        if not is_placeholder(password):
            yield Span(offset + colon + 1, offset + at_sign, "password")
    elif looks_generated(address[:at_sign]):
        yield Span(offset, offset + at_sign, "token")


FINDERS = (
    Finder(_find_in_urls, ("://",)),
    Finder(_find_bearers, words=("bearer",)),
    Finder(_find_basic, ("=", ANY_DIGIT), ("basic",)),
    Finder(_find_group(_IDENTIFIED_BY), ("'", '"'), ("identified",)),
    Finder(_find_group(_TCP), ("@:(",), ("@tcp(", "@unix(")),
    Finder(_find_group(_ORACLE), ("@:/",), ("oracle:",)),
    Finder(_find_group(_SLASHES), ("@:/",), ("//",)),
    Finder(_find_group(_BUNDLE), ("_=:",), ("bundle_",)),
    Finder(_find_pgpass, (":",)),
    Finder(_find_in_inserts, ("()",), ("values",)),
)
"""Run before the finders of commands, other languages and sentences."""

LATE_FINDERS = (
    Finder(_find_in_calls, ("(,'", '(,"')),
    Finder(_find_logins_with_slash, ("/" + ANY_DIGIT, "|" + ANY_DIGIT), _CREDENTIALS),
)
"""Run after them."""
