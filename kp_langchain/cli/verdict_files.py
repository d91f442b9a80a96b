"""Files of verdicts, JSONL or CSV.

Each line has an id (`trace_id`, `id` or `run_id`), `success`, `confidence` and `note`.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator, Mapping
from pathlib import Path

from kp_langchain.cli.jsonl import LONGEST_LINE_BYTES, STDIN, file_errors, read_lines
from kp_langchain.errors import KPError, VerdictError
from kp_langchain.recording.outcome import read_success
from kp_langchain.verdict import RunVerdict, Verdict

_IDS = ("trace_id", "id", "run_id")
_AN_ID = "trace_id, id or run_id"
_SHOWN_CHARS = 40


def read_labels(file: str) -> Iterator[RunVerdict]:
    """Yield the lines of a file of verdicts.

    Args:
        file: A `.csv`, `.jsonl` or `.ndjson` file (`label` refuses others), or `-` for JSONL on
            standard input.

    Raises:
        KPError: The file cannot be read, or its header names no id.
    """
    rows = _csv_rows(file) if Path(file).suffix.lower() == ".csv" else _json_rows(file)
    for place, fields in rows:
        try:
            if isinstance(fields, KPError):
                raise fields
            yield RunVerdict(_id_in(fields), _verdict_in(fields), place=place)
        except KPError as error:
            yield RunVerdict(why=str(error), place=place)


def _json_rows(file: str) -> Iterator[tuple[str, Mapping[str, object] | KPError]]:
    name = "stdin" if file == STDIN else file
    for line in read_lines(file, lambda _: None):
        fields: object = KPError(f"longer than {LONGEST_LINE_BYTES >> 20} MB")
        if line.content is not None:
            try:
                fields = json.loads(line.content)
            except (ValueError, RecursionError):
                fields = KPError("not valid JSON")
        if not isinstance(fields, dict | KPError):
            fields = KPError("not a JSON object")
        yield f"{name}:{line.number}", fields


def _csv_rows(file: str) -> Iterator[tuple[str, Mapping[str, object] | KPError]]:
    with (
        file_errors(file, "read"),
        # Bytes that are not UTF-8 spoil only their own line.
        Path(file).open(encoding="utf-8-sig", errors="replace", newline="") as stream,
    ):
        first = next(stream, "")
        # Spreadsheets write the locale's delimiter.
        delimiter = max(",;\t", key=first.count)
        try:
            header = next(csv.reader([first], delimiter=delimiter), [])
        except csv.Error as error:
            raise KPError(f"{file}:1: not valid CSV: {error}") from None
        names = [name.strip().casefold() for name in header]
        if not set(names) & set(_IDS):
            raise KPError(
                f"{file} begins with {_quote(first.strip())}; its first line must name the "
                f"columns, one of them {_AN_ID}"
            )
        reader = csv.reader(stream, delimiter=delimiter, strict=True)
        while True:
            place = f"{file}:{reader.line_num + 2}"
            try:
                row = next(reader)
            except StopIteration:
                return
            except csv.Error as error:
                yield place, KPError(f"not valid CSV: {error}")
                continue
            if len(row) > len(names):
                yield place, KPError(f"{len(row)} fields, but the first line names {len(names)}")
            elif any(row):
                yield place, dict(zip(names, row, strict=False))


def _id_in(fields: Mapping[str, object]) -> str:
    for name in _IDS:
        value = fields.get(name)
        if isinstance(value, str) and value.strip():
            return value.strip()
    raise KPError(f"no {_AN_ID}")


def _verdict_in(fields: Mapping[str, object]) -> Verdict:
    success, confidence, note = (
        None if value is None or (isinstance(value, str) and not value.strip()) else value
        for value in (fields.get("success"), fields.get("confidence"), fields.get("note"))
    )
    try:
        success = None if success is None else read_success(success)
    except VerdictError as error:
        raise KPError(f"{error}; it is {_quote(fields['success'])}") from error
    if isinstance(confidence, str):
        try:
            confidence = float(confidence)
        except ValueError:
            raise KPError(
                f"confidence is {_quote(confidence)}; give a number from 0 to 1"
            ) from None
    return Verdict(success, confidence, note, source="label")  # type: ignore[arg-type]


def _quote(value: object) -> str:
    text = repr(value)
    return text if len(text) <= _SHOWN_CHARS else f"{text[:_SHOWN_CHARS]}..."
