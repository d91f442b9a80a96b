"""The formats of an export, each declared once, and the files that an export writes."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, BinaryIO, Protocol

from kp_langchain.exporting.card import Tally, card
from kp_langchain.exporting.cases import CASES_HEAD, CASES_MODULE, CASES_TAIL, case, feedback
from kp_langchain.exporting.conversations import (
    FailingSteps,
    UnwritableError,
    openai_example,
    sharegpt_example,
)
from kp_langchain.exporting.spans import spans_document
from kp_langchain.exporting.trajectories import trajectory
from kp_langchain.text import printable_json

if TYPE_CHECKING:
    from kp_langchain.exporting.exported_run import ExportedRun
    from kp_langchain.exporting.selection import Selection

_OWNER_ONLY = 0o600
_CARD, _MARKS = "README.md", "marks.jsonl"


class Writer(Protocol):
    """Writes the runs of one file."""

    def add(self, run: ExportedRun) -> None:
        """Write a run; raise `ValueError` or the like, and write nothing, if it has no form."""

    def close(self) -> None:
        """Write what ends the file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Format:
    """A form in which runs are exported.

    Attributes:
        about: What it is, in a few words.
        open: Returns the writer of a new file.
        suffix: What the names of its files end in.
        stem: The name of its only file; "" for `train` and `test`.
        successes_only: Whether only successes are of use.
        by_outcome: Whether right and wrong runs of a task are of use side by side.
        has_marks_beside: Whether its own form has no room for verdicts and step marks.
        is_table: Whether `datasets` reads it as rows of one form.
        other_files: Further files by name.
    """

    about: str
    open: Callable[[BinaryIO, FailingSteps], Writer]
    suffix: str = ".jsonl"
    stem: str = ""
    successes_only: bool = False
    by_outcome: bool = False
    has_marks_beside: bool = False
    is_table: bool = False
    other_files: Mapping[str, str] = field(default_factory=dict)

    def file_name(self, split: str) -> str:
        """Return the name of the file with the runs of a split."""
        return f"{self.stem or split}{self.suffix}"


class LineWriter:
    """Writes each run as a line of JSON in UTF-8.

    Args:
        stream: The file.
        value_of: Returns what is written of a run.
        head: What the file begins with.
        between: What stands between two lines.
        tail: What the file ends with, if it has a line.
    """

    def __init__(
        self,
        stream: BinaryIO,
        value_of: Callable[[ExportedRun], Any],
        head: str = "",
        between: str = "\n",
        tail: str = "\n",
    ) -> None:
        self._stream, self._value_of = stream, value_of
        self._head, self._between, self._tail = head, between, tail
        self._before = head

    def add(self, run: ExportedRun) -> None:
        """Write a run."""
        text = json.dumps(self._value_of(run), ensure_ascii=False, allow_nan=False)
        line = printable_json(text.encode(errors="replace").decode())
        self._stream.write(f"{self._before}{line}".encode())
        self._before = self._between

    def close(self) -> None:
        """End the file."""
        is_empty = self._before == self._head
        text = self._head + self._tail if is_empty else self._tail
        if self._head or not is_empty:
            self._stream.write(text.encode())


def _lines(
    value_of: Callable[[ExportedRun], Any], *text: str
) -> Callable[[BinaryIO, FailingSteps], Writer]:
    return lambda stream, _: LineWriter(stream, value_of, *text)


def _conversations(
    value_of: Callable[[ExportedRun, FailingSteps], Any],
) -> Callable[[BinaryIO, FailingSteps], Writer]:
    return lambda stream, failing: LineWriter(stream, lambda run: value_of(run, failing))


def _parquet(stream: BinaryIO, _: FailingSteps) -> Writer:
    from kp_langchain.exporting.tables import ParquetWriter

    return ParquetWriter(stream)


FORMATS: Mapping[str, Format] = MappingProxyType(
    {
        "openai": Format(
            about="conversations with tool calls, for fine-tuning",
            open=_conversations(openai_example),
            successes_only=True,
            has_marks_beside=True,
            is_table=True,
        ),
        "sharegpt": Format(
            about="conversations with tool calls, in ShareGPT's form",
            open=_conversations(sharegpt_example),
            successes_only=True,
            has_marks_beside=True,
            is_table=True,
        ),
        "atif": Format(about="trajectories in Harbor's form, ATIF 1.7", open=_lines(trajectory)),
        "parquet": Format(
            about="one row for each run", open=_parquet, suffix=".parquet", is_table=True
        ),
        "otlp": Format(
            about="spans by OpenTelemetry's conventions for generative AI",
            open=_lines(spans_document),
        ),
        "cases": Format(
            about="cases of pydantic-evals, with a module for pytest",
            open=_lines(case, CASES_HEAD, ",\n", CASES_TAIL),
            suffix=".json",
            stem="cases",
            other_files={"test_cases.py": CASES_MODULE},
        ),
        "feedback": Format(
            about="scores, verdicts and notes, for GEPA and MLflow's judges",
            open=_lines(feedback),
            by_outcome=True,
        ),
    }
)
"""Each format by the name that `--format` knows it by."""


# ------------------------------------------------------------------ files


def write_file(
    runs: Iterable[ExportedRun | str], form: Format, failing: FailingSteps, stream: BinaryIO
) -> Tally:
    """Write runs into one file, and return what was written.

    Args:
        runs: The runs; for one that cannot be read, why.
        form: The format.
        failing: What becomes of failing steps in conversations.
        stream: The file.
    """
    tally = Tally()
    writer = form.open(stream, failing)
    for run in runs:
        _add(run, writer, tally)
    writer.close()
    return tally


def write_folder(
    runs: Iterable[ExportedRun | str],
    form: Format,
    failing: FailingSteps,
    folder: Path,
    name: str,
    selection: Selection,
) -> Tally:
    """Write a dataset into an empty folder, and return what was written.

    That is a file for each split, a card, and the step marks beside, where the format has no room.

    Args:
        runs: The runs; for one that cannot be read, why.
        form: The format.
        failing: What becomes of failing steps in conversations.
        folder: The folder.
        name: The name of the format.
        selection: How the runs were chosen, for the card.
    """
    tally = Tally()
    writers: dict[str, Writer] = {}
    with ExitStack() as files:

        def writer_of(file: str, open_: Callable[[BinaryIO, FailingSteps], Writer]) -> Writer:
            if file not in writers:
                stream = files.enter_context((folder / file).open("xb"))
                (folder / file).chmod(_OWNER_ONLY)
                writers[file] = open_(stream, failing)
            return writers[file]

        for run in runs:
            if isinstance(run, str):
                tally.skipped[run] += 1
                continue
            writer = writer_of(form.file_name(run.split), form.open)
            if _add(run, writer, tally) and form.has_marks_beside:
                writer_of(_MARKS, _lines(lambda one: one.annotations())).add(run)
        for writer in writers.values():
            writer.close()
    splits = {one: form.file_name(one) for one in tally.splits} if form.is_table else {}
    about = f"{name}: {form.about}"
    text = card(name, about, tally, selection, splits=splits, has_marks=_MARKS in writers)
    texts = {**form.other_files, _CARD: text}
    for file, text in texts.items():
        (folder / file).touch(_OWNER_ONLY, exist_ok=False)
        (folder / file).write_text(text, encoding="utf-8")
    return tally


def _add(run: ExportedRun | str, writer: Writer, tally: Tally) -> bool:
    """Write a run and count it; return whether it has a form."""
    if isinstance(run, str):
        tally.skipped[run] += 1
        return False
    try:
        writer.add(run)
    except UnwritableError as error:
        tally.skipped[str(error)] += 1
        return False
    except (ValueError, TypeError, RecursionError, OverflowError) as error:
        tally.skipped[f"without a form in this format ({type(error).__name__})"] += 1
        return False
    tally.add(run)
    return True
