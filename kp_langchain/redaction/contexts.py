"""Secrets recognised by their context: the rows of two tables, URLs, SQL, Kubernetes' Secrets."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import cycle
from typing import Any

from kp_langchain.redaction.field_names import SensitiveField, classify_name, split_name
from kp_langchain.redaction.finders import Finder
from kp_langchain.redaction.lazy_pattern import lazy_pattern
from kp_langchain.redaction.spans import Span, cached_pattern, occurrences
from kp_langchain.redaction.structures import KEYS, NamedField, element_field, plain_key
from kp_langchain.redaction.tables import load_table
from kp_langchain.redaction.values import is_placeholder, is_random, is_sensitive

# The notation of commands.toml.
_PARTS = {
    "{secret}": (
        r"(?!-)(?P<quote>\\*[\"'])?"
        r"(?P<secret>(?(quote)(?:[^\"'\n\\]|'\\''|'\"'\"'|(?!(?P=quote))[\"']){1,256}|[^\s\"'\\]{1,256}))"
    ),
    "{word}": r"(?P<secret>[^\s\"'\\]{1,256})",
    "{args}": r"(?:[^\n|;]{0,200}?[ \t])?",
    "{user}": r"[^\s:\"'\\]{1,80}",
    "[\"']?": r"(?:\\*[\"'])?",
    "[ =]": r"[ \t=]{1,8}",
    " ": r"(?:[ \t]{1,8})",
}
_PART = lazy_pattern("|".join(map(re.escape, _PARTS)))
_MAX_BEFORE = 160

_AUTHORITY = lazy_pattern(r"[^\s\"'<>`\\|]{1,1024}")
# A scheme, or nothing: //user:password@host
_BEFORE_SLASHES_REVERSED = lazy_pattern(r":[A-Za-z0-9+.\-]|(?![\w:/])")
_PORT = lazy_pattern(r"[0-9]{1,5}(?:[/?#,].*)?", re.DOTALL)
_HOST = lazy_pattern(r"[\w.\-\[\]:]+", re.ASCII)

# INSERT INTO users (name, password) VALUES ('bob', '...'), ('eve', '...')
_INSERT = lazy_pattern(r"\((?P<names>[\w`\"\[\], \t]{3,512})\)\s{0,8}values\s{0,8}\(")
_SQL_VALUE = lazy_pattern(
    r"""(?:\s{0,40},\s{0,40}\()?\s{0,40}
    (?:N?'(?P<text>(?:[^'\\\n]|''|\\.){0,512})'|[^,'()\n]{1,64}(?:\([^()\n]{0,64}\))?)
    \s{0,40}(?:[,)]|\Z)""",
    re.VERBOSE,
)
_COPY = lazy_pattern(
    r"copy[ ][\w.\"]{1,120}[ ]?\((?P<names>[\w`\", \t]{3,512})\)[ ]from[ ]stdin(?P<options>[^\n]{0,120})\n"
)
_SECRET_MANIFEST = lazy_pattern(r"^[ \t-]{0,40}kind:[ \t]{1,4}[\"']?Secret\b", re.MULTILINE)
_DATA = lazy_pattern(r"^(?P<indent>[ \t]{0,40})(?:- )?(?:data|stringData):[ \t]*\n", re.MULTILINE)
_YAML_LINE = lazy_pattern(
    r"(?P<indent>[ \t]*)(?:(?P<name>[\w.\-\"'/]{1,253}):(?:[ \t]{1,8}|$))?(?P<marker>[|>][+\-]?$)?"
    r"[\"']?(?P<secret>[^\n]*?)[\"']?[ \t\r]*(?:\n|\Z)",
    re.MULTILINE,
)


def _finder_of_row(row: dict[str, Any]) -> Finder:
    """Return the finder of a row of `contexts.toml` or `commands.toml`."""
    expression = row.get("expression") or _expand(row["pattern"])
    kind = SensitiveField(row.get("kind", "password"), is_strong=not row.get("weak"))
    before = lazy_pattern(row.get("before", ""))
    starts = row.get("starts", ())

    def find(text: str, low: str) -> Iterator[Span]:
        source = low if row.get("any_case") else text
        pattern = cached_pattern(expression, re.VERBOSE)
        places = sorted(occurrences(low, starts))
        for match in _matches_at(places, pattern, source) if starts else pattern.finditer(source):
            field, name = _field_of(match, kind)
            if field and before.search(source[max(0, match.start() - _MAX_BEFORE) : match.start()]):
                start, end = match.span("secret")
                if is_sensitive(text[start:end], name, field):
                    yield Span(start, end, field.kind)

    symbols, words = row.get("symbols", ("",)), row.get("words", starts)
    return Finder(find, tuple(symbols), tuple(words), is_named=row.get("named", False))


def _matches_at(
    places: list[int], pattern: re.Pattern[str], source: str
) -> Iterator[re.Match[str]]:
    """Yield the matches that start at one of `places`, without those within an earlier match."""
    end = 0
    for at in places:
        match = pattern.match(source, at) if at >= end else None
        if match is not None:
            end = match.end()
            yield match


def _expand(pattern: str) -> str:
    """Return the regular expression that a command writes in the notation of the table."""
    start = r"(?<![\w\-.])" if pattern[0].isalnum() else ""
    return start + _PART.sub(lambda part: _PARTS[part.group()], pattern)


def _field_of(match: re.Match[str], kind: SensitiveField) -> NamedField:
    """Return the field of a match, and its name: an element of a form says it, or the row does."""
    groups = match.groupdict()
    if "element" not in groups:
        return kind, ""
    element = groups["element"] or groups.get("bare_element") or ""
    return element_field(element, classify_name) or (None, "")


def _find_in_manifests(text: str, _low: str) -> Iterator[Span]:
    """Yield each value under `data` and `stringData` of Kubernetes' Secrets in YAML."""
    start = 0
    for document in text.split("\n---"):
        if _SECRET_MANIFEST.search(document):
            for block in _DATA.finditer(document):
                yield from _values_of_block(text, start + block.end(), len(block["indent"]))
        start += len(document) + 4


def _values_of_block(text: str, at: int, indent: int) -> Iterator[Span]:
    """Yield the values of the lines from `at` on that are indented by more than `indent`."""
    while (line := _YAML_LINE.match(text, at)) and len(line["indent"]) > indent:
        words = split_name(line["name"] or "") or [""]
        is_plain = not KEYS.plain_keys.isdisjoint((plain_key(line["name"] or ""), words[-1]))
        if line["secret"] and not (is_plain or line["marker"] or is_placeholder(line["secret"])):
            yield Span(*line.span("secret"), "secret")
        at = line.end()


def _find_in_inserts(text: str, low: str) -> Iterator[Span]:
    """Yield the values of sensitive columns in `INSERT INTO t (a, password) VALUES (1, 'x')`."""
    for match in _INSERT.finditer(low):
        columns = [classify_name(name.strip(' \t`"[]')) for name in match["names"].split(",")]
        at = match.end()
        for column in cycle(columns) if any(columns) else ():
            value = _SQL_VALUE.match(text, at)
            if value is None:
                break
            if column and not column.is_identifier and not is_placeholder(value["text"] or ""):
                yield Span(*value.span("text"), column.kind)
            at = value.end()


def _find_in_copies(text: str, low: str) -> Iterator[Span]:
    """Yield the values of sensitive columns below `COPY t (a, password) FROM stdin;`."""
    for match in _COPY.finditer(low):
        columns = [classify_name(name.strip(' \t`"')) for name in match["names"].split(",")]
        sign = "," if "csv" in match["options"] else "\t"
        at = match.end()
        while any(columns) and at < len(text) and not text.startswith("\\.", at):
            line_end = text.find("\n", at)
            cells = text[at : line_end if line_end >= 0 else len(text)].split(sign)
            if len(cells) != len(columns):
                break
            for column, cell in zip(columns, cells, strict=True):
                if column and not column.is_identifier and is_sensitive(cell, "", column):
                    yield Span(at, at + len(cell), column.kind)
                at += len(cell) + 1


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
        if is_random(address[:colon]):
            yield Span(offset, offset + colon, "token")
        password = address[colon + 1 : at_sign]
        if not is_placeholder(password):
            yield Span(offset + colon + 1, offset + at_sign, "password")
    elif is_random(address[:at_sign]):
        yield Span(offset, offset + at_sign, "token")


COMMANDS = tuple(map(_finder_of_row, load_table("commands")["command"]))
_CONTEXTS = load_table("contexts")["context"]
CERTAIN = (
    *(_finder_of_row(row) for row in _CONTEXTS if row.get("certain")),
    Finder(_find_in_urls, (":/",), ("//",)),
    Finder(_find_in_manifests, (":",), ("stringdata:", "data:"), is_named=True),
    Finder(_find_in_copies, ("()",), ("from stdin",), is_named=True),
    Finder(_find_in_inserts, ("()",), ("values",), is_named=True),
)
FINDERS = (*CERTAIN, *(_finder_of_row(row) for row in _CONTEXTS if not row.get("certain")))
"""All contexts; those of `CERTAIN` leave no doubt."""
