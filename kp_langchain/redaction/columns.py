"""Values in the columns of a table in a text, where the header says that they are sensitive.

Read are CSV, TSV, Markdown, psql, mysql, box drawing, HTML, and columns of fixed width as kubectl
and pandas print them; also tables whose rows are a name and a value.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from functools import partial
from itertools import pairwise
from typing import NamedTuple

from kp_langchain.redaction.field_names import SensitiveField, classify_name
from kp_langchain.redaction.finders import Finder
from kp_langchain.redaction.spans import Span, occurrences
from kp_langchain.redaction.stems import stems_in
from kp_langchain.redaction.structures import NAME_KEYS, VALUE_KEYS, NamedField, column_fields
from kp_langchain.redaction.values import is_sensitive

# What the headers of numbers of persons contain, and that of a table of names and values.
_MORE_STEMS = tuple(
    (
        "value passport dni cpf cnpj pesel bsn nhs nino ni_no nir aadhaar utr tfn fiscal steuer "
        "personnummer tax_ phone mobile 身份 주민"
    ).split()
)
_MAX_LINE = 500
_NO_HEADER = re.compile(r"[=:{}<>\[\]@$%&!?\\~]|\.(?:[ \n]|$)")
_SIGN = re.compile(r"[|,;\t│┃║┆┊╎]|  ")
_PIPES = str.maketrans("│┃║┆┊╎", "||||||")
_RULE = re.compile(r"[\s|+:=_\-\u2500-\u257f]{3,}")
_SEPARATED = re.compile(r"\S+(?: \S+)*")
_HTML_CELL = re.compile(r"<t[hd](?:\s[^<>]{0,200})?>([^<>]{0,400})</t[hd]>")
_HTML_ROW = re.compile(r"<tr(?:\s[^<>]{0,200})?>")
_MAX_HTML_GAP = 4000
_WRAPPINGS = "\"'`*"
_KINDS_OF_WORDS = frozenset(("password", "pin", "otp", "cvv"))

Cells = list[tuple[int, int]]


def _split_at(sign: str) -> Callable[[str], Cells]:
    cell = re.compile(rf"( ?\"(?:[^\"]|\"\")*\" ?(?=[{sign}]|\Z)|[^{sign}]*)(?:[{sign}]|\Z)")

    def split(line: str) -> Cells:
        if sign not in line:
            return []
        cells = [match.span(1) for match in cell.finditer(line)]
        return cells if line.endswith(sign) else cells[:-1]  # the last match is empty

    return split


def _split_at_gaps(line: str) -> Cells:
    return [match.span() for match in _SEPARATED.finditer(line)] if "  " in line else []


_SPLITTERS = {
    "|": _split_at("|"),
    "\t": _split_at("\t"),
    ",": _split_at(","),
    ";": _split_at(";"),
    "  ": _split_at_gaps,
}


class _Header(NamedTuple):
    """The header of a table.

    Attributes:
        sign: What separates its cells.
        cells: The start and end of each cell in the line.
        fields: The sensitive field of each column; empty if no column has one.
        name_at: The column of names in a table of names and values.
        value_at: The column of values in it, or -1.
    """

    sign: str
    cells: Cells
    fields: list[NamedField]
    name_at: int = -1
    value_at: int = -1


def _find(text: str, low: str, *, identifiers: bool) -> Iterator[Span]:
    end = 0
    more_stems = ((at, at) for at in occurrences(low, _MORE_STEMS))
    for first, last in sorted([*stems_in(low), *more_stems]):
        if first < end:
            continue
        start = text.rfind("\n", end, first) + 1 or end
        end = _line_end(text, last)
        if end == len(text) or not _may_be_header(text[start:end]):
            continue
        before = text[text.rfind("\n", max(0, start - _MAX_LINE), start - 1) + 1 : start - 1]
        header = _read_header(text[start:end], before if start else "", _line_after(text, end))
        if header is not None:
            end, cells = _cells_of_table(text, end, header)
            for field, span in cells:
                if identifiers or not field.is_identifier:
                    yield Span(*span, field.kind)


def _may_be_header(line: str) -> bool:
    """Return whether a line has separators, and nothing that is not in a header."""
    if not 3 < len(line) <= _MAX_LINE or _NO_HEADER.search(line):
        return False
    return _SIGN.search(line) is not None


def _line_end(text: str, at: int) -> int:
    end = text.find("\n", at)
    return len(text) if end < 0 else end


def _line_after(text: str, end: int) -> str:
    return text[end + 1 : min(_line_end(text, end + 1), end + _MAX_LINE)]


def _read_header(line: str, before: str, after: str) -> _Header | None:
    """Return the header that `line` is, given the lines around it, or None."""
    line, before, after = (
        part.translate(_PIPES) for part in (line, before[:_MAX_LINE], after[:_MAX_LINE])
    )
    for sign, split in _SPLITTERS.items():
        if sign not in line:
            continue
        cells = split(line)
        if len(cells) < 2 or (len(split(before)) == len(cells) and not _RULE.fullmatch(before)):
            continue  # a row in the middle of a table
        names = [_unwrap(line, *cell)[0] for cell in cells]
        fields = column_fields(names, classify_name)
        plain = [name.lower().replace(" ", "") for name in names]
        value_at = next((place for place, name in enumerate(plain) if name in VALUE_KEYS), -1)
        name_at = next((place for place, name in enumerate(plain) if name in NAME_KEYS), -1)
        if not fields and (value_at < 0 or name_at < 0):
            continue
        if _RULE.fullmatch(after) or _needs_no_rule(line, sign, names):
            return _Header(sign, cells, fields, name_at, value_at)
    return None


def _needs_no_rule(line: str, sign: str, names: list[str]) -> bool:
    """Return whether a line is a header although no rule follows, rather than a list of words."""
    if sign == "|":
        return " |" not in line and not line.startswith("|")
    if sign == "  ":
        return len(names) > 2 or all(name[:1].isupper() for name in names)
    return f"{sign} " not in line or (len(names) > 2 and max(name.count(" ") for name in names) < 2)


def _cells_of_table(
    text: str, end: int, header: _Header
) -> tuple[int, list[tuple[SensitiveField, tuple[int, int]]]]:
    """Return where the table ends, and the field, start and end of each sensitive cell.

    Args:
        text: The whole text.
        end: Where the header's line ends.
        header: The header.
    """
    split = _SPLITTERS[header.sign]
    sensitive_cells = []
    while end < len(text):
        start = end + 1
        row_end = _line_end(text, start)
        line = text[start:row_end].translate(_PIPES)
        if not _RULE.fullmatch(line):
            cells = split(line)
            if header.sign == "  ":
                cells = _align(cells, header.cells)
            if len(cells) != len(header.cells):
                break
            for field, name, cell in _fields_of_row(line, cells, header):
                value, first = _unwrap(line, *cell)
                if _is_value(value, name, field):
                    span = (start + first, start + first + len(value))
                    sensitive_cells.append((field, span))
        end = row_end
    return end, sensitive_cells


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
) -> Iterator[tuple[SensitiveField, str, tuple[int, int]]]:
    """Yield the field of each sensitive cell, its name, and its start and end in the line."""
    if header.fields:
        for (field, name), cell in zip(header.fields, cells, strict=True):
            if field is not None:
                yield field, name, cell
    else:
        name = _unwrap(line, *cells[header.name_at])[0]
        field = classify_name(name)
        if field is not None:
            yield field, name, cells[header.value_at]


def _unwrap(line: str, start: int, end: int) -> tuple[str, int]:
    """Return the content of a cell without spaces and quotes around it, and where it starts."""
    cell = line[start:end].rstrip()
    content = cell.lstrip()
    while len(content) > 1 and content[0] == content[-1] and content[0] in _WRAPPINGS:
        content = content[1:-1]
        cell = cell[:-1]
    return content, start + len(cell) - len(content)


def _is_value(value: str, name: str, field: SensitiveField) -> bool:
    """Return whether the content of a cell is a value rather than a remark or another name."""
    if not field.is_identifier and " " in value:
        return False
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
    return (
        Finder(partial(_find, identifiers=identifiers), words=("\n",)),
        Finder(partial(_find_in_html, identifiers=identifiers), ("<>",), ("<th",)),
    )
