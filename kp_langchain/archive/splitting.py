"""How files are divided into blocks: at ends of lines; or a copy is, where that cannot be."""

from __future__ import annotations

import gzip
from collections.abc import Iterator
from itertools import islice
from typing import BinaryIO, Literal, NamedTuple

from kp_langchain.archive.files import Storage, name_of, opened
from kp_langchain.archive.sources import Row, beginning_of, kind_in, read_lines, read_rows, rows_in
from kp_langchain.importing.recorded_run import Unusable
from kp_langchain.parquet import load_extra, schema_of

Way = Literal["lines", "document", "copied"]
"""How a block is read: some lines of its file, all of it, or a row group of its copy."""

_READ_BYTES = 1 << 20
_COPY = {"number": "integer", "content": "binary", "problem": "string"}


class Part(NamedTuple):
    """A part of a file.

    Attributes:
        first: The number of its first row, from 1.
        start: Of lines, the byte where it begins; of a copy, the row group.
        size: Of lines, so many bytes; of a copy, rows.
    """

    first: int
    start: int
    size: int


class FileParts(NamedTuple):
    """How a file is divided.

    Attributes:
        number: Its place among all files, from 0.
        way: How its parts are read.
        parts: The parts, a block each.
    """

    number: int
    way: Way
    parts: list[Part]


class Block(NamedTuple):
    """Consecutive rows of one file.

    Attributes:
        number: Its place among all blocks, from 0.
        file: The file.
        file_number: The place of that among all files, from 0.
        way: How it is read.
        part: Which rows of the file it has.
    """

    number: int
    file: str
    file_number: int
    way: Way
    part: Part


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
        kind = kind_in(item.file, beginning_of(stream))
        stream.seek(0)
        if kind == "document":
            return FileParts(item.number, "document", [Part(1, 0, 0)])
        if kind == "lines" and not isinstance(stream.raw, gzip.GzipFile):
            return FileParts(item.number, "lines", list(_line_parts(stream, item.rows)))
        rows = rows_in(item.file, stream, kind)
        return FileParts(item.number, "copied", list(_copy(storage, item, rows)))


def _line_parts(stream: BinaryIO, rows: int) -> Iterator[Part]:
    import numpy as np

    at = start = number = first = 0
    while content := stream.read(_READ_BYTES):
        ends = np.flatnonzero(np.frombuffer(content, np.uint8) == 0x0A) + 1
        for end in ends[first + rows - number - 1 :: rows].tolist():
            yield Part(first + 1, start, at + end - start)
            start, first = at + end, first + rows
        at, number = at + len(content), number + len(ends)
    if at > start:
        yield Part(first + 1, start, at - start)


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
            yield Part(part[0].number, group, len(part))
            group += 1


def _copy_name(file_number: int) -> str:
    return f"_work/rows/{file_number:07}.rows"


def read_block_rows(storage: Storage, folder: str, block: Block) -> Iterator[Row]:
    """Yield the rows of a block.

    Args:
        storage: Where copies are.
        folder: What a path is relative to.
        block: The block.

    Raises:
        KPError: Its file, or the copy, cannot be read.
    """
    part, file = block.part, name_of(block.file)
    if block.way == "document":
        yield from read_rows(block.file, "document", folder)
    elif block.way == "lines":
        yield from read_lines(block.file, part.start, part.size, part.first, folder)
    else:
        (parquet,) = load_extra("pyarrow.parquet")
        with storage.open(_copy_name(block.file_number)) as stream:
            table = parquet.ParquetFile(stream).read_row_group(part.start)
        for number, content, problem in zip(*(column.to_pylist() for column in table), strict=True):
            row = Row(file, number, b"")
            yield row._replace(content=content if problem is None else Unusable(row.place, problem))
