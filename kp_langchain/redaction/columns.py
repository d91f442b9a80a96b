"""Values in the columns of a table in a text, where the header says that they are sensitive.

Read are CSV, TSV, Markdown, psql, mysql, box drawing, HTML, and columns of fixed width as kubectl
and pandas print them; also tables whose rows are a name and a value.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from itertools import pairwise
from typing import NamedTuple

from kp_langchain.redaction.field_names import SensitiveField, classify_name
from kp_langchain.redaction.finders import Finder
from kp_langchain.redaction.lazy_pattern import lazy_pattern
from kp_langchain.redaction.spans import Span, occurrences
from kp_langchain.redaction.stems import stems_in
from kp_langchain.redaction.structures import KEYS, NamedField, column_fields
from kp_langchain.redaction.values import is_phrase, is_sensitive

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
_HTML_CELL = lazy_pattern(r"<t[hd](?:\s[^<>]{0,200})?>([^<>]{0,400})</t[hd]>")
_HTML_ROW = lazy_pattern(r"<tr(?:\s[^<>]{0,200})?>")
_MAX_HTML_GAP = 4000
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
            for (field, name), cell in _fields_of_row(line, cells, header):
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
    before, after = "", text[end + 1 : min(_line_end(text, end + 1), end + _MAX_LINE)]
    if start:
        before = text[text.rfind("\n", max(0, start - _MAX_LINE), start - 1) + 1 : start - 1]
    before, after = _plain(before), _plain(after)
    for sign in _CELL:
        cells = _split(line, sign)
        if len(cells) < 2 or (
            len(_split(before, sign)) == len(cells) and not _RULE.fullmatch(before)
        ):
            continue  # a row in the middle of a table
        names = [_unwrap(line, *cell)[0] for cell in cells]
        header = _header_of_names(names, sign, cells)
        if header and (_RULE.fullmatch(after) or _needs_no_rule(line, sign, names)):
            return header
    return None


def _header_of_names(names: list[str], sign: str, cells: Cells) -> _Header | None:
    """Return the header with these names of columns, or None if none says anything."""
    fields = column_fields(names, classify_name)
    if fields:
        return _Header(sign, cells, fields)
    plain = [name.lower().replace(" ", "") for name in names]
    name_at, value_at = (
        next((place for place, name in enumerate(plain) if name in keys), None)
        for keys in (KEYS.name_keys, KEYS.value_keys)
    )
    if name_at is None or value_at is None:
        return None
    return _Header(sign, cells, [], name_at, value_at)


def _needs_no_rule(line: str, sign: str, names: list[str]) -> bool:
    """Return whether a line is a header although no rule follows, rather than a list of words."""
    if sign == "|":
        is_plain = " |" not in line and not line.startswith("|")
        return is_plain or all(name[:1].isupper() for name in names)
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


def _fields_of_row(
    line: str, cells: Cells, header: _Header
) -> Iterator[tuple[NamedField, tuple[int, int]]]:
    """Yield the field and name of each cell of a row, and its start and end in the line."""
    if header.fields:
        yield from zip(header.fields, cells, strict=False)
    elif cells:
        name = _unwrap(line, *cells[header.name_at])[0]
        yield (classify_name(name), name), cells[header.value_at]


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


def _find_in_html(text: str, low: str, *, identifiers: bool) -> Iterator[Span]:
    fields: list[NamedField] = []
    rows = [match.start() for match in _HTML_ROW.finditer(text)]
    for start, end in pairwise([*rows, len(text)]):
        cells = list(_HTML_CELL.finditer(text, start, min(end, start + _MAX_HTML_GAP)))
        header = column_fields([cell[1].strip() for cell in cells], classify_name)
        if len(header) > 1 and "<th" in low[start:end]:
            fields = header
        elif len(fields) == len(cells):
            for (field, name), cell in zip(fields, cells, strict=True):
                is_wanted = field is not None and (identifiers or not field.is_identifier)
                if field and is_wanted and _is_value(cell[1], name, field):
                    yield Span(*cell.span(1), field.kind)


def finders(*, identifiers: bool) -> tuple[Finder, ...]:
    """Return the finders of values in the columns of tables.

    Args:
        identifiers: Whether columns that identify a person count as sensitive.
    """
    find = partial(_find, identifiers=identifiers)
    return (
        Finder(partial(find, places=stems_in), is_named=True),
        Finder(partial(find, places=_places_of_more_stems), words=_MORE_STEMS),
        Finder(partial(_find_in_html, identifiers=identifiers), ("<>",), ("<th",)),
    )
