"""What archives are read from: JSON in lines or documents, and Parquet, in files and behind URLs.

A source yields `Row`s, in order. Of lines and of Parquet, each row stands alone, so a part can be
read without the rest. The spans or calls of a run may be anywhere in their file, so such a file is
read as a whole.
"""

from __future__ import annotations

import io
import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from itertools import islice
from typing import TYPE_CHECKING, Any, BinaryIO, Literal, NamedTuple

from kp_langchain._logging import describe_error
from kp_langchain.archive.files import Piped, check_unpacked, load_extra, opened
from kp_langchain.errors import KPError
from kp_langchain.importing.json_lines import (
    STDIO,
    TOO_LONG,
    Line,
    is_one_value,
    lines_in,
    value_of_line,
    values_in,
)
from kp_langchain.importing.recorded_run import RecordedRun, Unusable
from kp_langchain.importing.spans import is_otlp
from kp_langchain.text import json_or_text

if TYPE_CHECKING:
    from kp_langchain.importing.importer import FileReader

Kind = Literal["lines", "whole", "parquet"]
"""How a file is read: line by line, as a whole, or row by row."""

Content = bytes | Mapping[str, Any] | RecordedRun | Unusable
"""What a row holds: a line, a trace in wire form, a recorded run, or why it is none of these."""

_PARQUET = b"PAR1"
_A_TRACE = (
    "a trace, and no longer the run that it was made of; kp-langchain score reads traces, import "
    "runs"
)
_PEEKED_BYTES = 1 << 20
_PARQUET_ROWS = 256


class Row(NamedTuple):
    """A row of a source.

    Attributes:
        file: The file as the user named it, or `-`.
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


class Part(NamedTuple):
    """A part of a source.

    Attributes:
        first: The number of its first row, from 1.
        start: Of lines, the byte where it begins; of Parquet, the row within the row group.
        size: So many bytes of lines, or rows of Parquet.
        group: Of Parquet, the row group.
    """

    first: int
    start: int
    size: int
    group: int = 0


def kind_of(file: str, folder: str = "") -> Kind:
    """Return how a file is to be read, by its beginning.

    Args:
        file: A path or a URL.
        folder: What a path is relative to; by default the working folder.

    Raises:
        KPError: It cannot be read, or is compressed.
    """
    with opened(file, folder) as stream:
        return _kind(file, stream.read(_PEEKED_BYTES))


def _kind(file: str, beginning: bytes) -> Kind:
    if _is_parquet(file, beginning):
        return "parquet"
    first, *others = [*islice(lines_in(file, io.BytesIO(beginning)), 2)] or [Line(file, 1, b"")]
    if not is_one_value(first):
        # A broken line of traces, or the beginning of a value over many lines?
        return "lines" if others and isinstance(value_of_line(others[0])[1], dict) else "whole"
    value = value_of_line(first)[1]
    if is_trace(value):
        return "lines"
    from kp_langchain.importing.json_runs import runs_of_value  # loads LangChain

    return "whole" if is_otlp(value) or runs_of_value(value) is not None else "lines"


def _is_parquet(file: str, beginning: bytes) -> bool:
    check_unpacked(file, beginning)
    if beginning.startswith(_PARQUET) and file == STDIO:
        raise KPError("Parquet cannot be read from standard input; name the file")
    return beginning.startswith(_PARQUET)


# ------------------------------------------------------------------ rows


def read_rows(file: str) -> Iterator[list[Row]]:
    """Yield the rows of a source in groups, as they can be read; of a pipe, what has come.

    Args:
        file: A path, a URL, or `-`.

    Raises:
        KPError: It cannot be read.
    """
    kind: Kind
    if file != STDIO and (kind := kind_of(file)) == "parquet":
        for part in parts_of(file, kind, _PARQUET_ROWS):
            yield list(read_part(file, kind, part))
        return
    with opened(file) as stream:
        if isinstance(stream, Piped):
            kind = _kind(file, stream.peek(_PEEKED_BYTES))
        rows = _whole(file, stream) if kind == "whole" else _lines(lines_in(file, stream))
        group: list[Row] = []
        for row in rows:
            group.append(row)
            is_waiting = isinstance(stream, Piped) and not stream.has_line
            if len(group) >= _PARQUET_ROWS or is_waiting:
                yield group
                group = []
        if group:
            yield group


def read_part(file: str, kind: Kind, part: Part, folder: str = "") -> Iterator[Row]:
    """Yield the rows of a part of a source.

    Args:
        file: A path or a URL.
        kind: How it is read.
        part: The part; a file that is read as a whole has one only.
        folder: What a path is relative to; by default the working folder.

    Raises:
        KPError: It cannot be read.
    """
    if kind == "parquet":
        yield from _parquet_rows(file, part, folder)
        return
    with opened(file, folder) as stream:
        if kind == "whole":
            yield from _whole(file, stream)
            return
        stream.seek(part.start)
        content = io.BytesIO(stream.read(part.size))
    yield from _lines(lines_in(file, content, first=part.first))


def _lines(lines: Iterator[Line]) -> Iterator[Row]:
    for line in lines:
        content = Unusable(line.place, TOO_LONG) if line.content is None else line.content
        yield Row(line.file, line.number, content)


def _whole(file: str, stream: BinaryIO) -> Iterator[Row]:
    from kp_langchain.importing.importer import FileReader  # loads LangChain

    reader = FileReader()

    def parts() -> Iterator[RecordedRun | Unusable | tuple[str, Mapping[str, Any]]]:
        for place, value, why in values_in(file, stream):
            if is_trace(value):
                yield place, value
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
        if not _is_parquet(file, stream.peek(len(_PARQUET))):
            yield from values_in(file, stream)
            return
    for part in parts_of(file, "parquet", _PARQUET_ROWS):
        for row in read_part(file, "parquet", part):
            if isinstance(row.content, bytes):
                yield value_of_line(Line(row.file, row.number, row.content))
            elif isinstance(row.content, Unusable):
                yield row.place, None, row.content.why
            else:
                yield row.place, row.content, ""


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


# ------------------------------------------------------------------ parts


def parts_of(file: str, kind: Kind, rows: int, folder: str = "") -> list[Part]:
    """Return the parts of a file, at most so many rows each; nothing is parsed.

    Args:
        file: A path or a URL.
        kind: How it is read; as a whole it is one part.
        rows: How many lines or rows of Parquet a part has at most.
        folder: What a path is relative to; by default the working folder.

    Raises:
        KPError: It cannot be read.
    """
    if kind == "parquet":
        with _parquet_file(file, folder) as parquet:
            return list(_row_parts(parquet, rows))
    with opened(file, folder) as stream:
        return [Part(1, 0, 0)] if kind == "whole" else list(_line_parts(stream, rows))


def _line_parts(stream: BinaryIO, rows: int) -> Iterator[Part]:
    import numpy as np

    at = start = number = first = 0
    while content := stream.read(_PEEKED_BYTES):
        ends = np.flatnonzero(np.frombuffer(content, np.uint8) == 0x0A) + 1
        for end in ends[first + rows - number - 1 :: rows].tolist():
            yield Part(first + 1, start, at + end - start)
            start, first = at + end, first + rows
        at, number = at + len(content), number + len(ends)
    if at > start:
        yield Part(first + 1, start, at - start)


def _row_parts(parquet: Any, rows: int) -> Iterator[Part]:
    """Yield the parts of a Parquet file, none over two row groups."""
    first = 1
    for group in range(parquet.num_row_groups):
        count = parquet.metadata.row_group(group).num_rows
        for start in range(0, count, rows):
            yield Part(first + start, start, min(rows, count - start), group)
        first += count


def _parquet_rows(file: str, part: Part, folder: str) -> Iterator[Row]:
    with _parquet_file(file, folder) as parquet:
        names = set(parquet.schema_arrow.names)
        columns = ["trace"] if "trace" in names else None
        batches = parquet.iter_batches(_PARQUET_ROWS, row_groups=[part.group], columns=columns)
        seen = 0
        for batch in batches:
            begin, end = max(part.start - seen, 0), part.start + part.size - seen
            if begin < len(batch) and end > 0:
                own = batch.slice(begin, min(end, len(batch)) - begin)
                for at, fields in enumerate(
                    own.to_pylist(), part.first + seen + begin - part.start
                ):
                    yield Row(file, at, _of_fields(Row(file, at, b"").place, fields))
            seen += len(batch)
            if seen >= part.start + part.size:
                return


@contextmanager
def _parquet_file(file: str, folder: str = "") -> Iterator[Any]:
    (parquet,) = load_extra("pyarrow.parquet")
    with opened(file, folder) as stream:
        yield parquet.ParquetFile(stream)


def _of_fields(place: str, fields: Mapping[str, Any]) -> Content:
    """Return what a row of Parquet holds: a trace as JSON, or the fields of a conversation."""
    if "trace" in fields:
        trace = fields["trace"]
        if isinstance(trace, str | bytes):
            return trace.encode() if isinstance(trace, str) else trace
        return Unusable(place, "its column trace is empty") if trace is None else dict(trace)
    known: dict[str, Any] = _without_nulls(fields)
    if "messages" in known:
        known["messages"] = json_or_text(known["messages"])
        return json.dumps(known, default=str).encode()
    if is_trace(known):
        return known
    names = ", ".join(fields)[:200]
    return Unusable(place, f"no column trace or messages; there are {names}")


def _without_nulls(value: Any) -> Any:
    """Return a value without the fields that are null: Parquet has all fields in all rows."""
    if isinstance(value, Mapping):
        return {name: _without_nulls(one) for name, one in value.items() if one is not None}
    return [_without_nulls(one) for one in value] if isinstance(value, list) else value
