"""How files are divided into blocks: at ends of lines; or a copy is, where that cannot be."""

from __future__ import annotations

import gzip
from collections.abc import Iterator
from itertools import islice
from typing import BinaryIO, Literal, NamedTuple

from kp_langchain.archive.files import Storage, name_of, opened
from kp_langchain.archive.sources import (
    Row,
    beginning_of,
    holds_calls,
    kind_in,
    read_lines,
    read_rows,
    rows_in,
)
from kp_langchain.archive.tables import row_group
from kp_langchain.importing.recorded_run import Unusable
from kp_langchain.parquet import load_extra, schema_of

Way = Literal["lines", "document", "copied"]
"""How a block is read: some lines of its file, all of it, or a row group of its copy."""

ROW_BYTES = 1 << 12
"""What a row takes about, where nothing more is known."""

_READ_BYTES = 1 << 20
_COPY = {"number": "integer", "content": "binary", "problem": "string"}


class Part(NamedTuple):
    """A part of a file.

    Attributes:
        rows: How many rows it has about.
        first: The number of its first row, from 1.
        start: Of lines, the byte where it begins; of a copy, the row group.
        size: Of lines, so many bytes.
    """

    rows: int
    first: int = 1
    start: int = 0
    size: int = 0


class FileParts(NamedTuple):
    """How a file is divided.

    Attributes:
        number: Its place among all files, from 0.
        way: How its parts are read.
        parts: The parts.
    """

    number: int
    way: Way
    parts: list[Part]


class FilePart(NamedTuple):
    """A part of a file, with what reads it.

    Attributes:
        file: The file.
        number: The place of that among all files, from 0.
        way: How it is read.
        part: Which rows of the file it has.
    """

    file: str
    number: int
    way: Way
    part: Part


class Block(NamedTuple):
    """Consecutive rows of one file, or of several small ones.

    Attributes:
        number: Its place among all blocks, from 0.
        parts: The parts.
    """

    number: int
    parts: tuple[FilePart, ...]


class Splitting(NamedTuple):
    """A file that is to be divided.

    Attributes:
        number: Its place among all files, from 0.
        file: The file.
        rows: How many rows a part has at most; a document is one part.
    """

    number: int
    file: str
    rows: int


def split_file(storage: Storage, folder: str, item: Splitting) -> FileParts:
    """Divide a file, and copy it if need be; nothing is parsed.

    Args:
        storage: Where copies go.
        folder: What a path is relative to.
        item: The file.

    Raises:
        KPError: It cannot be read, or its copy be written.
    """
    with opened(item.file, folder) as stream:
        beginning = beginning_of(stream)
        kind = kind_in(item.file, beginning)
        stream.seek(0)
        if kind == "document" or (kind == "parquet" and holds_calls(stream)):
            return FileParts(item.number, "document", [Part(max(1, len(beginning) // ROW_BYTES))])
        if kind == "lines" and not isinstance(stream.raw, gzip.GzipFile):
            return FileParts(item.number, "lines", list(_line_parts(stream, item.rows)))
        parts = _copy(storage, item, rows_in(item.file, stream, kind))
        return FileParts(item.number, "copied", list(parts))


def _line_parts(stream: BinaryIO, rows: int) -> Iterator[Part]:
    import numpy as np

    at = start = number = first = 0
    while content := stream.read(_READ_BYTES):
        ends = np.flatnonzero(np.frombuffer(content, np.uint8) == 0x0A) + 1
        for end in ends[first + rows - number - 1 :: rows].tolist():
            yield Part(rows, first + 1, start, at + end - start)
            start, first = at + end, first + rows
        at, number = at + len(content), number + len(ends)
    if at > start:
        yield Part(max(1, number - first), first + 1, start, at - start)


def _copy(storage: Storage, item: Splitting, rows: Iterator[Row]) -> Iterator[Part]:
    """Write rows into a Parquet file, and yield its row groups."""
    pa, parquet = load_extra("pyarrow", "pyarrow.parquet")
    of_copy = schema_of(_COPY)
    with (
        storage.writing(_copy_name(item.number)) as out,
        parquet.ParquetWriter(out, of_copy, compression="zstd") as writer,
    ):
        group = 0
        while part := list(islice(rows, item.rows)):
            held = [row.content for row in part]
            columns = {
                "number": [row.number for row in part],
                "content": [one if isinstance(one, bytes) else None for one in held],
                "problem": [one.why if isinstance(one, Unusable) else None for one in held],
            }
            writer.write_table(pa.table(columns, of_copy))
            yield Part(len(part), part[0].number, group)
            group += 1


def _copy_name(file_number: int) -> str:
    return f"_work/rows/{file_number:07}.rows"


def read_rows_of(storage: Storage, folder: str, block: Block) -> Iterator[Row]:
    """Yield the rows of a block.

    Args:
        storage: Where copies are.
        folder: What a path is relative to.
        block: The block.

    Raises:
        KPError: A file, or the copy, cannot be read.
    """
    for one in block.parts:
        yield from _rows_of_part(storage, folder, one)


def _rows_of_part(storage: Storage, folder: str, one: FilePart) -> Iterator[Row]:
    part, file = one.part, name_of(one.file)
    if one.way == "document":
        yield from read_rows(one.file, "document", folder)
    elif one.way == "lines":
        yield from read_lines(one.file, part.start, part.size, part.first, folder)
    else:
        table = row_group(storage, _copy_name(one.number), part.start)
        for number, content, problem in zip(*(column.to_pylist() for column in table), strict=True):
            row = Row(file, number, b"")
            yield row._replace(content=content if problem is None else Unusable(row.place, problem))
