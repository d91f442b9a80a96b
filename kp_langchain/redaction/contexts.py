"""Secrets recognised by their context: URLs, SQL, calls, credential files, what a command prints."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from kp_langchain.redaction.field_names import classify_name
from kp_langchain.redaction.finders import ANY_DIGIT, Find, Finder
from kp_langchain.redaction.spans import Span, occurrences
from kp_langchain.redaction.tables import load_table
from kp_langchain.redaction.values import is_placeholder, looks_generated, looks_like_password

_AUTHORITY = re.compile(r"[^\s\"'<>`\\|]{1,1024}")
# A scheme, or nothing: //user:password@host
_BEFORE_SLASHES_REVERSED = re.compile(r":[A-Za-z0-9+.\-]|(?![\w:/])")
_PORT = re.compile(r"[0-9]{1,5}(?:[/?#,].*)?", re.DOTALL)
_HOST = re.compile(r"[\w.\-\[\]:]+", re.ASCII)

# INSERT INTO users (name, password) VALUES ('bob', '...'), ('eve', '...')
_INSERT = re.compile(
    r"\((?P<names>[\w`\"\[\], \t]{3,512})\)\s{0,8}values\s{0,8}(?P<rows>\([^\n]{1,4096})",
    re.IGNORECASE,
)
_SQL_VALUE = re.compile(
    r"""[ \t]{0,8}(?:N?'(?P<text>(?:[^'\\\n]|''|\\.){0,512})'
    |[^,'()\n]{1,64}(?:\([^()\n]{0,64}\))?)[ \t]{0,8}([,)]|$)""",
    re.VERBOSE,
)
_NEXT_ROW = re.compile(r"[ \t]{0,8},[ \t]{0,8}\(")
# .pgpass: host:port:database:user:password
_PGPASS = re.compile(
    r":(?:\d{2,5}|\*):[\w\-*]{1,64}:[\w.\-*@]{1,64}"
    r":(?P<secret>(?:[^\s:\"'\\]|\\[:\\]){4,200})"
)
_PGPASS_HOST = re.compile(r"(?:[A-Za-z0-9.\-]{1,80}|\*)(?=n\\|[\s\"'`>(=]|\Z)")
# user:password@tcp(host:3306)/db, oracle:thin:user/password@host
_TCP_REVERSED = re.compile(r"(?P<secret>[^\s\"'`/@]{1,200}):[\w.\-]")
_DRIVER_HOSTS = ("@tcp(", "@unix(")
# login('bob', '...'), HTTPBasicAuth('bob', '...'), auth=('bob', '...')
_PAIR_CALL = re.compile(
    r"\([ \t]{0,4}(?:username=|user=)?\\{0,40}[\"'][^\"'\n\\]{1,80}\\{0,40}[\"'][ \t]{0,4},[ \t]{0,4}"
    r"\\{0,40}[\"'](?P<secret>[^\"'\n\\]{3,200})"
)
_SIGN_IN_CALL = re.compile(
    r"(?:[lL]og_?[iI]n|authenticate|HTTP\w{0,8}Auth|[bB]asic_?[aA]uth|\bauth=?|Credentials?"
    r"|AuthProvider)\Z"
)
# A command that prints one secret, and the line after it.
_PRINTED = re.compile(
    r"""(?: (?:kubectl|oc)\ [^\n]{0,80}?get\ secrets?\b[^\n]{1,200}?(?:template|jsonpath|-d\b)
        | vault\ [^\n]{1,80}?-field | op\ read | (?:gcloud|gh)\ auth\ \S{0,20}token | pass\ show
        | az\ account\ get-access-token | az\ keyvault\ secret\ show | heroku\ auth:token
        | aws\ (?:ssm\ get-parameter|secretsmanager\ get-secret-value) | doppler\ secrets\ get
        | gcloud\ secrets\ versions\ access | security\ find-\w{1,16}-password
        )\b[^\n]{0,300}\n(?P<secret>[^\s{\[<"':]{6,4096})[ \t]*(?:\r?\n|\Z)""",
    re.VERBOSE,
)
_PRINTING = ("kubectl", "oc ", "vault ", "op read", "auth", "az ", "aws ", "doppler", "gcloud")
# kubectl create secret generic NAME --from-literal=KEY=...
_LITERAL = re.compile(
    r"--from-literal[= ][\"']?(?P<name>[\w.\-]{1,80})=(?P<secret>[^\s\"']{1,4096})"
)
_MAX_COMMAND = 400
_SECRET_MANIFEST = re.compile(r"^[ \t-]{0,40}kind:[ \t]{1,4}[\"']?Secret\b", re.MULTILINE)
_DATA = re.compile(r"^(?P<indent>[ \t]{0,40})(?:- )?(?:data|stringData):[ \t]*$", re.MULTILINE)
_YAML_LINE = re.compile(
    r"(?P<indent>[ \t]*)(?:[\w.\-\"'/]{1,253}:(?:[ \t]{1,8}|$))?(?P<marker>[|>][+\-]?$)?"
    r"[\"']?(?P<secret>[^\n]*?)[\"']?[ \t\r]*$"
)
# "credentials: bob / hunter22", "user bob / pass hunter22"
_CREDENTIALS = ("credential", "creds", "login", "log-in", "zugangsdaten", "identifiants", "user ")
_LOGIN_WITH_SLASH = re.compile(
    r"[\w\-]{4,12}(?: details)?[ \t]{0,2}(?:[:=]|are|is|)[ \t]{1,4}[\w.@\-]{2,64}[ \t]{0,2}[/|]"
    r"[ \t]{0,2}(?:pass |pw )?(?P<secret>(?=[^\s\"'`<>,;]{0,127}\d)[^\s\"'`<>,;/]{5,128})"
)


def _find_group(pattern: re.Pattern[str], kind: str) -> Find:
    """Return a finder of the group "secret" of each match of `pattern`."""

    def find(text: str, _low: str) -> Iterator[Span]:
        for match in pattern.finditer(text):
            if not is_placeholder(match["secret"]):
                yield Span(*match.span("secret"), kind)

    return find


def _find_before_host(text: str, low: str) -> Iterator[Span]:
    for at in occurrences(low, _DRIVER_HOSTS):
        password = _TCP_REVERSED.match(text[max(0, at - 266) : at][::-1])
        if password is not None and not is_placeholder(password["secret"][::-1]):
            yield Span(at - password.end("secret"), at, "password")


def _find_pgpass(text: str, _low: str) -> Iterator[Span]:
    for match in _PGPASS.finditer(text):
        if _PGPASS_HOST.match(text[max(0, match.start() - 81) : match.start()][::-1]):
            yield Span(*match.span("secret"), "password")


def _find_printed(text: str, _low: str) -> Iterator[Span]:
    for match in _PRINTED.finditer(text):
        if looks_like_password(match["secret"]) and "/" not in match["secret"][:8]:
            yield Span(*match.span("secret"), "secret")


def _find_literals(text: str, _low: str) -> Iterator[Span]:
    for match in _LITERAL.finditer(text):
        command = text[max(0, match.start() - _MAX_COMMAND) : match.start()]
        is_secret = "secret" in command or classify_name(match["name"])
        if is_secret and not is_placeholder(match["secret"]):
            yield Span(*match.span("secret"), "secret")


def _find_in_manifests(text: str, _low: str) -> Iterator[Span]:
    """Yield each value under `data` and `stringData` of Kubernetes' Secrets in YAML."""
    start = 0
    for document in text.split("\n---"):
        if _SECRET_MANIFEST.search(document):
            for block in _DATA.finditer(document):
                yield from _values_of_block(text, start + block.end() + 1, len(block["indent"]))
        start += len(document) + 4


def _values_of_block(text: str, at: int, indent: int) -> Iterator[Span]:
    """Yield the values of the lines from `at` on that are indented by more than `indent`."""
    while at < len(text):
        end = text.find("\n", at)
        end = len(text) if end < 0 else end
        line = _YAML_LINE.match(text, at, end)
        if line is None or len(line["indent"]) <= indent or at >= len(text):
            return
        if line["secret"] and not line["marker"] and not is_placeholder(line["secret"]):
            yield Span(*line.span("secret"), "secret")
        at = end + 1


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


def _find_in_urls(text: str, _low: str) -> Iterator[Span]:
    position = 0
    while (mark := text.find("//", position)) >= 0:
        position = mark + 2
        if _BEFORE_SLASHES_REVERSED.match(text[max(0, mark - 40) : mark][::-1]) is None:
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


def _finder_of_row(row: dict[str, Any]) -> Finder:
    find = _find_group(re.compile(row["expression"], re.VERBOSE | re.IGNORECASE), row["kind"])
    return Finder(find, tuple(row.get("symbols", ("",))), tuple(row["words"]))


FINDERS = (
    *map(_finder_of_row, load_table("contexts")["context"]),
    Finder(_find_in_urls, (":/",), ("//",)),
    Finder(_find_before_host, ("@:(",), _DRIVER_HOSTS),
    Finder(_find_printed, words=_PRINTING),
    Finder(_find_literals, ("-=",), ("--from-literal",)),
    Finder(_find_in_manifests, (":",), ("stringdata:", "data:")),
    Finder(_find_pgpass, (":" + ANY_DIGIT, ":*"), shortest=12),
    Finder(_find_in_inserts, ("()",), ("values",)),
)
"""Run before the finders of commands, other languages and sentences."""

LATE_FINDERS = (
    Finder(_find_in_calls, ("(,'", '(,"')),
    Finder(_find_logins_with_slash, ("/" + ANY_DIGIT, "|" + ANY_DIGIT), _CREDENTIALS),
)
"""Run after them."""
