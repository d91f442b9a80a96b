"""The formats of an export, each declared once, and the files that an export writes."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
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

    def value_of(self, run: ExportedRun) -> Any:
        """Return what is written of a run; raise `ValueError` or the like if it has no form."""

    def write(self, value: Any) -> None:
        """Write what `value_of` returned."""

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
        failing_steps: In what agents are trained on, what becomes of calls that failed, unless
            something else is asked for. Only successes are of use there, and verdicts and step
            marks go beside. None for all else.
        by_outcome: Whether right and wrong runs of a task are of use side by side.
        is_table: Whether `datasets` reads it as rows of one form.
        other_files: Further files by name.
    """

    about: str
    open: Callable[[BinaryIO, FailingSteps], Writer]
    suffix: str = ".jsonl"
    stem: str = ""
    failing_steps: FailingSteps | None = None
    by_outcome: bool = False
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
        self._stream, self._json_of = stream, value_of
        self._head, self._between, self._tail = head, between, tail
        self._before = head

    def value_of(self, run: ExportedRun) -> str:
        """Return the line of a run."""
        text = json.dumps(self._json_of(run), ensure_ascii=False, allow_nan=False)
        return printable_json(text.encode(errors="replace").decode())

    def write(self, value: str) -> None:
        """Write a line."""
        self._stream.write(f"{self._before}{value}".encode())
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
            failing_steps="mask",
            is_table=True,
        ),
        "sharegpt": Format(
            about="conversations with tool calls, in ShareGPT's form",
            open=_conversations(sharegpt_example),
            failing_steps="drop",
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
    runs: Iterable[ExportedRun | str],
    form: Format,
    failing: FailingSteps,
    stream: BinaryIO,
    marks: BinaryIO | None = None,
) -> Tally:
    """Write runs into one file, and return what was written.

    Args:
        runs: The runs; for one that cannot be read, why.
        form: The format.
        failing: What becomes of failing steps in conversations.
        stream: The file.
        marks: A file for what the format has no room for: verdicts, scores, step marks.
    """
    tally = Tally()
    with _closing(form.open(stream, failing)) as writer, ExitStack() as files:
        writers = [writer]
        if marks is not None:
            writers.append(files.enter_context(_closing(LineWriter(marks, _annotations))))
        for run in runs:
            _add(run, writers, tally)
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
                writers[file] = files.enter_context(_closing(open_(stream, failing)))
            return writers[file]

        for run in runs:
            of_run = []
            if not isinstance(run, str):
                of_run.append(writer_of(form.file_name(run.split), form.open))
                if form.failing_steps is not None:
                    of_run.append(writer_of(_MARKS, _lines(_annotations)))
            _add(run, of_run, tally)
    splits = {one: form.file_name(one) for one in tally.splits} if form.is_table else {}
    about = f"{name}: {form.about}"
    text = card(name, about, tally, selection, splits=splits, has_marks=_MARKS in writers)
    texts = {**form.other_files, _CARD: text}
    for file, text in texts.items():
        (folder / file).touch(_OWNER_ONLY, exist_ok=False)
        (folder / file).write_text(text, encoding="utf-8")
    return tally


@contextmanager
def _closing(writer: Writer) -> Iterator[Writer]:
    """Close a writer as the block ends; an error of the block is what is raised, if there is one.

    Args:
        writer: The writer.
    """
    try:
        yield writer
    except BaseException:
        with suppress(Exception):
            writer.close()
        raise
    writer.close()


def _annotations(run: ExportedRun) -> dict[str, Any]:
    return run.annotations()


def _add(run: ExportedRun | str, writers: Iterable[Writer], tally: Tally) -> None:
    """Write a run, unless it has no form in one of the files, and count it."""
    if isinstance(run, str):
        tally.skipped[run] += 1
        return
    try:
        values = [(writer, writer.value_of(run)) for writer in writers]
        tally.add(run)
    except UnwritableError as error:
        tally.skipped[str(error)] += 1
    except (ValueError, TypeError, RecursionError, OverflowError) as error:
        tally.skipped[f"without a form in this format ({type(error).__name__})"] += 1
    else:
        for writer, value in values:
            writer.write(value)
