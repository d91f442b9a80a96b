"""Files of verdicts: JSON lines or CSV."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Mapping
from pathlib import Path

import typer

from kp_langchain.archive.files import check_unpacked, is_file, opened
from kp_langchain.cli.output import STDIO, file_errors
from kp_langchain.errors import KPError, VerdictError
from kp_langchain.importing.json_lines import lines_in, value_of_line
from kp_langchain.text import one_line
from kp_langchain.verdict import RunVerdict, Verdict

_IDS = ("trace_id", "id", "run_id")
_AN_ID = "trace_id, id or run_id"
_SHOWN_CHARS = 40


def check_file(file: str) -> None:
    """Check that a file is there, and is no folder.

    Raises:
        BadParameter: It is not.
    """
    try:
        if file == STDIO or is_file(file):
            return
    except KPError as error:
        raise typer.BadParameter(str(error)) from error
    raise typer.BadParameter(f"{file} is a folder; give the files in it")


def verdicts_in(file: str) -> Iterator[RunVerdict]:
    """Yield the verdicts of a file, one a line; of a line that holds none, why.

    Args:
        file: A `.csv`, `.jsonl` or `.ndjson` file, or `-` for JSON lines on standard input.

    Raises:
        KPError: The file cannot be read, or its header names no id.
    """
    rows = _csv_rows if Path(file).suffix.lower() == ".csv" else _json_rows
    for place, fields, why in rows(file):
        if why:
            yield RunVerdict(why=why, place=place)
            continue
        try:
            yield RunVerdict(_id_in(fields), _verdict_in(fields), place=place)
        except (ValueError, KPError) as error:
            yield RunVerdict(why=str(error), place=place)


_Row = tuple[str, Mapping[str, object], str]
"""A place, the fields there, and why there are none."""


def _json_rows(file: str) -> Iterator[_Row]:
    with opened(file) as stream:
        check_unpacked(file, stream.peek(2))
        for place, value, why in map(value_of_line, lines_in(file, stream)):
            is_object = isinstance(value, dict)
            fields = value if is_object else {}
            yield place, fields, why or ("" if is_object else "not a JSON object")


def _csv_rows(file: str) -> Iterator[_Row]:
    with (
        file_errors(file, "read"),
        # Bytes that are not UTF-8 spoil only their own line.
        Path(file).open(encoding="utf-8-sig", errors="replace", newline="") as stream,
    ):
        first = next(stream, "")
        # Spreadsheets write the locale's delimiter.
        delimiter = max(",;\t", key=first.count)
        names = [name.strip(' "\r\n').casefold() for name in first.split(delimiter)]
        if not set(names) & set(_IDS):
            raise KPError(
                f"{file} begins with {_quote(first.strip())}; its first line must name the "
                f"columns, one of them {_AN_ID}"
            )
        reader = csv.DictReader(stream, names, delimiter=delimiter, strict=True)
        while True:
            place = f"{file}:{reader.reader.line_num + 2}"
            try:
                row: dict[str, object] = next(reader)
            except StopIteration:
                return
            except csv.Error as error:
                yield place, {}, f"not valid CSV: {error}"
            else:
                yield place, row, "more fields than in line 1" if None in row else ""


def _id_in(fields: Mapping[str, object]) -> str:
    for name in _IDS:
        value = fields.get(name)
        if isinstance(value, str) and value.strip():
            return value.strip()
    raise ValueError(f"no {_AN_ID}")


def _verdict_in(fields: Mapping[str, object]) -> Verdict:
    from kp_langchain.recording.outcome import read_success

    success, confidence, note = (
        None if isinstance(value, str) and not value.strip() else value
        for value in map(fields.get, ("success", "confidence", "note"))
    )
    if isinstance(confidence, str):
        try:
            confidence = float(confidence)
        except ValueError:
            number = _quote(confidence)
            raise ValueError(f"confidence is {number}; give a number from 0 to 1") from None
    try:
        success = None if success is None else read_success(success)
    except VerdictError as error:
        raise ValueError(f"{error}; it is {_quote(success)}") from error
    return Verdict(success, confidence, note, source="label")  # type: ignore[arg-type]


def _quote(value: object) -> str:
    return one_line(repr(value), _SHOWN_CHARS)
