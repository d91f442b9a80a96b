"""What archives are read from: JSON in lines or documents, and Parquet, in files and behind URLs.

A source yields `Row`s, in order. Of lines and of Parquet each row stands alone, so that a part can
be read without the rest. The spans or calls of a run may be anywhere in their file, so such a file
is one document.
"""

from __future__ import annotations

import io
import json
import math
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from typing import TYPE_CHECKING, Any, BinaryIO, Literal, NamedTuple, cast

from kp_langchain._logging import describe_error
from kp_langchain.archive.files import Piped, check_unpacked, name_of, opened
from kp_langchain.errors import KPError
from kp_langchain.importing.json_lines import (
    LONGEST_LINE_BYTES,
    TOO_LONG,
    Line,
    is_one_value,
    lines_in,
    value_of_line,
    values_in,
)
from kp_langchain.importing.recorded_run import RecordedRun, Unusable
from kp_langchain.importing.spans import is_otlp
from kp_langchain.parquet import load_extra
from kp_langchain.text import json_or_text

if TYPE_CHECKING:
    from kp_langchain.importing.importer import FileReader

Kind = Literal["lines", "document", "parquet"]
"""How a file is read: line by line, as a whole, or row by row."""

Content = bytes | RecordedRun | Unusable
"""What a row holds: a trace or conversation as JSON, a recorded run, or why it is none of these."""

_PARQUET = b"PAR1"
_OF_LINES = (".jsonl", ".ndjson")
_OF_CALL = "run_type"  # a column of LangSmith's exports, whose rows are the calls of runs
_A_TRACE = (
    "a trace, and no longer the run that it was made of; kp-langchain score reads traces, import "
    "runs"
)
_PEEKED_BYTES = 1 << 20
_ROWS_AT_ONCE = 256
_NAMES_CHARS = 200


class Row(NamedTuple):
    """A row of a source.

    Attributes:
        file: The file, as `name_of` has it.
        number: The line, or the row of a Parquet file, from 1.
        content: What it holds.
    """

    file: str
    number: int
    content: Content

    @property
    def place(self) -> str:
        """The file and the number, for messages."""
        return Line(self.file, self.number, None).place


def beginning_of(stream: BinaryIO) -> bytes:
    """Return the first bytes of a file: more than a line, if it is not too long to be read."""
    content = stream.read(_PEEKED_BYTES)
    while b"\n" not in content and len(content) < LONGEST_LINE_BYTES:
        part = stream.read(_PEEKED_BYTES)
        if not part:
            break
        content += part
    return content


def kind_in(file: str, beginning: bytes) -> Kind:
    """Return how a file is to be read, by its beginning."""
    if _is_parquet(file, beginning):
        return "parquet"
    first, *others = [*islice(lines_in(file, io.BytesIO(beginning)), 2)] or [Line(file, 1, b"")]
    if first.content is None:
        return "document"
    if not is_one_value(first):
        # A broken line of traces, or the beginning of a value over many lines?
        has_lines = file.removesuffix(".gz").endswith(_OF_LINES)
        has_lines |= bool(others) and isinstance(value_of_line(others[0])[1], dict)
        return "lines" if has_lines else "document"
    value = value_of_line(first)[1]
    if is_trace(value):
        return "lines"
    from kp_langchain.importing.json_runs import runs_of_value  # loads LangChain

    return "document" if is_otlp(value) or runs_of_value(value) is not None else "lines"


def _is_parquet(file: str, beginning: bytes, *, is_pipe: bool = False) -> bool:
    is_parquet = beginning.startswith(_PARQUET)
    if is_pipe:
        check_unpacked(file, beginning)
        if is_parquet:
            raise KPError(f"Parquet cannot be read from a pipe ({file}); name the file")
    return is_parquet


# ------------------------------------------------------------------ rows


def read_groups(file: str) -> Iterator[list[Row]]:
    """Yield the rows of a source in groups, as they can be read; of a pipe, what has come.

    Args:
        file: A path, a URL, or `-`.

    Raises:
        KPError: It cannot be read.
    """
    with opened(file) as stream:
        is_pipe = isinstance(stream, Piped)
        if is_pipe:
            beginning = stream.peek(_PEEKED_BYTES)
            _is_parquet(file, beginning, is_pipe=True)
        else:
            beginning = beginning_of(stream)
            stream.seek(0)
        group: list[Row] = []
        for row in rows_in(file, stream, kind_in(file, beginning)):
            group.append(row)
            is_waiting = isinstance(stream, Piped) and not stream.has_line
            if len(group) >= _ROWS_AT_ONCE or is_waiting:
                yield group
                group = []
        if group:
            yield group


def read_rows(file: str, kind: Kind, folder: str = "") -> Iterator[Row]:
    """Yield the rows of a file.

    Args:
        file: A path or a URL.
        kind: How it is read.
        folder: What a path is relative to; by default the working folder.

    Raises:
        KPError: It cannot be read.
    """
    with opened(file, folder) as stream:
        yield from rows_in(file, stream, kind)


def read_lines(file: str, start: int, size: int, first: int, folder: str = "") -> Iterator[Row]:
    """Yield the rows of a part of a file of lines.

    Args:
        file: A path or a URL.
        start: The byte where the part begins.
        size: How many bytes it has.
        first: The number of its first line.
        folder: What a path is relative to; by default the working folder.

    Raises:
        KPError: It cannot be read.
    """
    with opened(file, folder) as stream:
        stream.seek(start)
        part = cast(BinaryIO, _Bounded(stream, size))
        yield from _lines(lines_in(name_of(file), part, first=first))


class _Bounded:
    """The next bytes of a stream, of which lines are read."""

    def __init__(self, stream: BinaryIO, size: int) -> None:
        self._stream, self._left = stream, size

    def readline(self, size: int) -> bytes:
        line = self._stream.readline(min(size, self._left))
        self._left -= len(line)
        return line


def rows_in(file: str, stream: io.BufferedReader, kind: Kind) -> Iterator[Row]:
    """Yield the rows of an open file, given how it is read."""
    name = name_of(file)
    if kind == "parquet" and not holds_calls(stream):
        return _parquet_rows(name, stream)
    if kind == "parquet":
        return _document(name, stream)
    return _document(name, stream) if kind == "document" else _lines(lines_in(name, stream))


def _lines(lines: Iterator[Line]) -> Iterator[Row]:
    for line in lines:
        content = Unusable(line.place, TOO_LONG) if line.content is None else line.content
        yield Row(line.file, line.number, content)


def _document(file: str, stream: io.BufferedReader) -> Iterator[Row]:
    from kp_langchain.importing.importer import FileReader  # loads LangChain

    reader = FileReader()

    def parts() -> Iterator[RecordedRun | Unusable | tuple[str, bytes]]:
        for place, value, why in _values(file, stream):
            if is_trace(value):
                yield place, json.dumps(value).encode()
            else:
                yield from _parts_of(reader, place, value, why)
        yield from reader.conclude()

    for part in parts():
        place, content = part if isinstance(part, tuple) else (part.place, part)
        number = place.rpartition(":")[2]
        yield Row(file, int(number) if number.isdecimal() else 0, content)


def _parts_of(
    reader: FileReader, place: str, value: Any, why: str
) -> Iterator[RecordedRun | Unusable]:
    """Yield the runs that are complete with a value, or why there is none."""
    if why:
        yield Unusable(place, why)
        return
    try:
        yield from reader.add(value, place)
    except Exception as error:  # noqa: BLE001 - one value costs one value
        yield Unusable(place, describe_error(error))


def is_trace(value: object) -> bool:
    """Return whether a JSON value looks like a trace in wire form."""
    return isinstance(value, dict) and {"steps", "metadata", "task"} <= value.keys()


# ------------------------------------------------------------------ Parquet


def _parquet_rows(file: str, stream: BinaryIO) -> Iterator[Row]:
    (parquet,) = load_extra("pyarrow.parquet")
    content = parquet.ParquetFile(stream)
    columns = ["trace"] if "trace" in content.schema_arrow.names else None
    number = 0
    for batch in content.iter_batches(_ROWS_AT_ONCE, columns=columns):
        for at in range(len(batch)):
            number += 1
            place = Row(file, number, b"").place
            try:  # one by one, because what one of them holds may be nothing that Python has
                held = _of_fields(place, batch.slice(at, 1).to_pylist()[0])
            except Exception as error:  # noqa: BLE001 - one row costs one row
                held = Unusable(place, describe_error(error))
            yield Row(file, number, held)


def holds_calls(stream: BinaryIO) -> bool:
    """Return whether rows of an open Parquet file are calls, of which several make a run."""
    (parquet,) = load_extra("pyarrow.parquet")
    names = parquet.ParquetFile(stream).schema_arrow.names
    stream.seek(0)
    return _OF_CALL in names and "trace" not in names


def _of_fields(place: str, fields: Mapping[str, Any]) -> bytes | Unusable:
    """Return what a row of Parquet holds as JSON: a trace, or the fields of a conversation."""
    if "trace" in fields:
        trace = fields["trace"]
        if isinstance(trace, str | bytes):
            return trace.encode() if isinstance(trace, str) else trace
        if isinstance(trace, Mapping):
            return json.dumps(_known(trace), default=str).encode()
        held = "is empty" if trace is None else f"holds {type(trace).__name__}; JSON is needed"
        return Unusable(place, f"its column trace {held}")
    known: dict[str, Any] = _known(fields)
    if known.get("success") in (0.0, 1.0):  # numbers are what a column with gaps has
        known["success"] = bool(known["success"])
    if "messages" in known:
        known["messages"] = json_or_text(known["messages"])
    elif not (is_trace(known) or _OF_CALL in known):
        names = ", ".join(fields)[:_NAMES_CHARS]
        return Unusable(place, f"no column trace or messages; there are {names}")
    return json.dumps(known, default=str).encode()


def _known(value: Any) -> Any:
    """Return a value without fields that are null or NaN: Parquet has all fields in all rows."""
    if isinstance(value, Mapping):
        return {name: _known(one) for name, one in value.items() if not _is_missing(one)}
    return [_known(one) for one in value] if isinstance(value, list) else value


def _is_missing(value: Any) -> bool:
    return value is None or (isinstance(value, float) and math.isnan(value))


# ------------------------------------------------------------------ values


def read_values(file: str) -> Iterator[tuple[str, Any, str]]:
    """Yield the JSON values of a source: those of lines or documents, or a row of Parquet each.

    Args:
        file: A path, a URL, or `-`.

    Yields:
        The file and the line where a value begins; the value; why it cannot be read, or "".

    Raises:
        KPError: The source cannot be read.
    """
    with opened(file) as stream:
        yield from _values(name_of(file), stream)


def _values(file: str, stream: io.BufferedReader) -> Iterator[tuple[str, Any, str]]:
    beginning = stream.peek(len(_PARQUET))
    if not _is_parquet(file, beginning, is_pipe=isinstance(stream, Piped)):
        yield from values_in(file, stream)
        return
    for row in _parquet_rows(file, stream):
        if isinstance(row.content, bytes):
            yield value_of_line(Line(row.file, row.number, row.content))
        elif isinstance(row.content, Unusable):
            yield row.place, None, row.content.why


def read_runs(files: Iterable[str]) -> Iterator[RecordedRun | Unusable]:
    """Yield the recorded runs of sources, over which a run may be spread; and what is none.

    Args:
        files: Paths and URLs, or `-`. Of one that cannot be read, what came before is yielded, and
            the others are.
    """
    from kp_langchain.importing.importer import FileReader

    reader = FileReader()
    for file in files:
        try:
            for place, value, why in read_values(file):
                yield from _parts_of(reader, place, value, _A_TRACE if is_trace(value) else why)
        except KPError as error:
            yield Unusable("error", str(error))
    yield from reader.conclude()
