"""Secrets recognised by what surrounds them: commands, URLs, SQL, manifests, forms, columns of tables."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from functools import partial
from itertools import cycle
from typing import Any, NamedTuple

from kp_langchain.redaction.fields import (
    SensitiveField,
    classify_name,
    classify_secret,
    is_phrase,
    is_placeholder,
    is_random,
    is_sensitive,
    split_name,
)
from kp_langchain.redaction.finders import Finder, stems_in
from kp_langchain.redaction.spans import Span, lazy_pattern, load_table, occurrences
from kp_langchain.redaction.structures import (
    KEYS,
    NamedField,
    column_fields,
    element_field,
    plain_key,
)

# ------------------------------------------------------------------ commands, URLs, SQL, manifests

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
_COPY_TO = r"copy[ ][\w.\"]{1,120}[ ]?\((?P<names>[\w`\", \t]{3,512})\)[ ]from[ ]stdin"
_COPY = lazy_pattern(_COPY_TO + r"(?![^\n]{0,120}csv)[^\n]{0,120}\n")
_COPY_CSV = lazy_pattern(_COPY_TO + r"[^\n]{0,120}csv[^\n]{0,120}\n")
_COPIED_VALUE, _COPIED_CSV = (
    lazy_pattern(rf"(?!\\\.)(?P<text>[^{sign}\n]{{0,512}})[{sign}\n]") for sign in ("\t", ",")
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
    pattern = lazy_pattern(expression, re.VERBOSE)
    before = lazy_pattern(row.get("before", ""))

    def find(text: str, low: str) -> Iterator[Span]:
        source = low if row.get("any_case") else text
        for match in pattern.finditer(source):
            field, name = _field_of(match, kind)
            if field and before.search(source[max(0, match.start() - _MAX_BEFORE) : match.start()]):
                start, end = match.span("secret")
                if is_sensitive(text[start:end], name, field):
                    yield Span(start, end, field.kind)

    return Finder(find, tuple(row.get("words", ())), is_named=row.get("named", False))


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


def _find_in_statements(text: str, low: str) -> Iterator[Span]:
    """Yield the values of sensitive columns that an INSERT, or a COPY of PostgreSQL, writes."""
    forms = ((_INSERT, _SQL_VALUE), (_COPY, _COPIED_VALUE), (_COPY_CSV, _COPIED_CSV))
    for statement, value_of_column in forms:
        for match in statement.finditer(low):
            columns = [classify_secret(name.strip(' \t`"[]')) for name in match["names"].split(",")]
            at = match.end()
            for column in cycle(columns) if any(columns) else ():
                value = value_of_column.match(text, at)
                if value is None:
                    break
                if column and is_sensitive(value["text"] or "", "", column):
                    yield Span(*value.span("text"), column.kind)
                at = value.end()


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


# ------------------------------------------------------------------ columns of tables

# What the headers of numbers of persons contain, and that of a table of names and values.
_MORE_STEMS = tuple(
    (
        "value passport dni cpf cnpj pesel bsn nhs nino ni_no nir aadhaar utr tfn fiscal steuer "
        "personnummer tax_ phone mobile 身份 주민"
    ).split()
)
_MAX_LINE = 500
_NO_HEADER = lazy_pattern(r"[=:{}<>\[\]@$%&!?\\~]|\.(?:[ \n]|$)")
_PIPES = str.maketrans("│┃║┆┊╎", "||||||")
_DOUBLE_PIPES = lazy_pattern(r"^!|!!|\|\|")
_RULE = lazy_pattern(r"[\s|+:=_\-\u2500-\u257f]{3,}")
_SEPARATED = lazy_pattern(r"\S+(?: \S+)*")
# What separates the cells of a line, and the expression of a cell.
_CELL = {
    sign: lazy_pattern(rf"(?<![^{sign}])(?: ?\"(?:[^\"]|\"\")*\" ?|[^{sign}]*)(?![^{sign}])")
    for sign in "|\t,;"
} | {"  ": _SEPARATED}
_WRAPPINGS = "\"'`*"
_PASSWORD = SensitiveField("password")
_SIGNS_OF_DATA = ",;\t"
_KINDS_OF_WORDS = frozenset(("password", "pin", "otp", "cvv"))

Cells = list[tuple[int, int]]
Places = Callable[[str], Cells]


class _Header(NamedTuple):
    """The header of a table.

    Attributes:
        sign: What separates its cells.
        cells: The start and end of each cell in the line.
        fields: The sensitive field of each column; empty in a table of names and values.
        name_at: The column of names in a table of names and values.
        value_at: The column of values in it.
    """

    sign: str
    cells: Cells
    fields: list[NamedField]
    name_at: int = 0
    value_at: int = 0

    def values(self, line: str, cells: Cells) -> Iterator[tuple[NamedField, tuple[int, int]]]:
        """Yield the field and name of each value of a row, and its start and end in the line."""
        if self.fields or not cells:
            yield from zip(self.fields, cells, strict=False)
        else:
            name = _unwrap(line, *cells[self.name_at])[0]
            yield (classify_name(name), name), cells[self.value_at]


def _find(text: str, low: str, *, places: Places, identifiers: bool) -> Iterator[Span]:
    """Yield the values below headers.

    Args:
        text: The whole text.
        low: The text in lower case.
        places: Returns the places of what a header contains, in order.
        identifiers: Whether columns that identify a person count as sensitive.
    """
    end = 0
    for first, last in places(low) if "\n" in text else ():
        if first < end:
            continue
        start = text.rfind("\n", end, first) + 1 or end
        end = _line_end(text, last)
        header = _read_header(text, start, end) if 3 < end - start <= _MAX_LINE else None
        if header is None:
            continue
        for at, line, cells in _rows(text, end, header):
            end = at + len(line)
            for (field, name), cell in header.values(line, cells):
                value, place = _unwrap(line, *cell)
                is_wanted = field is not None and (identifiers or not field.is_identifier)
                if field and is_wanted and _is_value(value, name, field, header.sign):
                    yield Span(at + place, at + place + len(value), field.kind)


def _places_of_more_stems(low: str) -> Cells:
    return sorted((at, at) for at in occurrences(low, _MORE_STEMS))


def _plain(line: str) -> str:
    """Return a line, of the same length, with the sign "|" for all signs of that meaning."""
    line = line.translate(_PIPES)
    return _DOUBLE_PIPES.sub(lambda sign: "|".rjust(len(sign[0])), line)


def _line_end(text: str, at: int) -> int:
    end = text.find("\n", at)
    return len(text) if end < 0 else end


def _split(line: str, sign: str) -> Cells:
    """Return the start and end of each cell of a line; of no cell if it does not have the sign."""
    return [match.span() for match in _CELL[sign].finditer(line)] if sign in line else []


def _read_header(text: str, start: int, end: int) -> _Header | None:
    """Return the header that the line at `text[start:end]` is, or None."""
    line = _plain(text[start:end])
    if end == len(text) or _NO_HEADER.search(line) or not any(sign in line for sign in _CELL):
        return None
    after = _plain(text[end + 1 : min(_line_end(text, end + 1), end + _MAX_LINE)])
    for sign in _CELL:
        cells = _split(line, sign)
        names = [_unwrap(line, *cell)[0] for cell in cells]
        if len(cells) < 2 or not (_RULE.fullmatch(after) or _needs_no_rule(line, sign, names)):
            continue
        if fields := column_fields(names, classify_name):
            return _Header(sign, cells, fields)
        plain = [name.lower().replace(" ", "") for name in names]
        name_at, value_at = (
            next((at for at, name in enumerate(plain) if name in keys), None)
            for keys in (KEYS.name_keys, KEYS.value_keys)
        )
        if name_at is not None and value_at is not None:
            return _Header(sign, cells, [], name_at, value_at)
    return None


def _needs_no_rule(line: str, sign: str, names: list[str]) -> bool:
    """Return whether a line is a header although no rule follows, rather than a list of words."""
    if sign == "  ":
        return len(names) > 2 or all(name[:1].isupper() for name in names)
    return f"{sign} " not in line or (len(names) > 2 and max(name.count(" ") for name in names) < 2)


def _rows(text: str, end: int, header: _Header) -> Iterator[tuple[int, str, Cells]]:
    """Yield the start, the text and the cells of each line below a header that ends at `end`."""
    while end < len(text):
        start, end = end + 1, _line_end(text, end + 1)
        line = _plain(text[start:end])
        if _RULE.fullmatch(line):
            yield start, line, []
            continue
        cells = _split(line, header.sign)
        if header.sign == "  ":
            cells = _align(cells, header.cells)
        if len(cells) != len(header.cells):
            return
        yield start, line, cells


def _align(cells: Cells, header: Cells) -> Cells:
    """Return the cells of a row under each cell of the header; numbers may be aligned right."""
    if len(cells) < 2:
        return []
    return [
        next((cell for cell in cells if cell[0] < end and start < cell[1]), (0, 0))
        for start, end in header
    ]


def _unwrap(line: str, start: int, end: int) -> tuple[str, int]:
    """Return the content of a cell without spaces and quotes around it, and where it starts."""
    cell = line[start:end].rstrip()
    content = cell.lstrip()
    while len(content) > 1 and content[0] == content[-1] and content[0] in _WRAPPINGS:
        content = content[1:-1]
        cell = cell[:-1]
    content = content.removeprefix('"')  # the cell goes on in the next line
    return content, start + len(cell) - len(content)


def _is_value(value: str, name: str, field: SensitiveField, sign: str = "") -> bool:
    """Return whether the content of a cell is a value rather than a remark or another name."""
    if not field.is_identifier and " " in value:
        return field == _PASSWORD and sign in _SIGNS_OF_DATA and is_phrase(value)
    # A column "Secret" or "Token" may also have names of secrets, or words of a text.
    may_be_word = field.kind in _KINDS_OF_WORDS or field.is_identifier
    is_random = len(value) >= 8 and any(map(str.isdigit, value)) and any(map(str.isalpha, value))
    return (may_be_word or is_random) and is_sensitive(value, name, field)


_CONTEXTS = load_table("contexts")["context"]
CERTAIN = (
    *(_finder_of_row(row) for row in _CONTEXTS if row.get("certain")),
    Finder(_find_in_urls, ("//",)),
    Finder(_find_in_manifests, ("stringdata:", "data:"), is_named=True),
    Finder(_find_in_statements, ("values", "from stdin"), is_named=True),
)
"""Contexts that leave no doubt."""
_OTHERS = (
    *(_finder_of_row(row) for row in _CONTEXTS if not row.get("certain")),
    *map(_finder_of_row, load_table("commands")["command"]),
)


def finders(*, identifiers: bool) -> tuple[Finder, ...]:
    """Return the finders of secrets by what surrounds them, also in the columns of tables.

    Args:
        identifiers: Whether columns that identify a person count as sensitive.
    """
    find = partial(_find, identifiers=identifiers)
    return (
        *CERTAIN,
        *_OTHERS,
        Finder(partial(find, places=stems_in), is_named=True),
        Finder(partial(find, places=_places_of_more_stems), words=_MORE_STEMS),
    )
