"""The commands `label ID`, `next`, `import` and `pull`: verdicts on scored runs."""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from kp_langchain.cli.json_files import read_lines, read_object
from kp_langchain.cli.labelling import Labelling
from kp_langchain.cli.options import (
    INTERRUPTED,
    AsJsonLines,
    Database,
    RunId,
    Timeout,
    group_app,
    open_store,
    parse_time,
)
from kp_langchain.cli.output import STDIO, file_errors, say_json, warn
from kp_langchain.errors import KPError, VerdictError
from kp_langchain.text import one_line
from kp_langchain.verdict import RunVerdict, Verdict

if TYPE_CHECKING:
    pass

_SKIPPED = 1
_SUFFIXES = (".csv", ".jsonl", ".ndjson")
_IDS = ("trace_id", "id", "run_id")
_AN_ID = "trace_id, id or run_id"
_SHOWN_CHARS = 40
Tool = Literal["langsmith", "langfuse", "phoenix", "opik", "mlflow"]
Domain = Annotated[str | None, typer.Option(help="Only runs of this domain.")]

app = group_app(
    default="give",
    of_id="give",
    metavar="ID | COMMAND [ARGS]...",
    help="""Record how runs really ended. They are scored and decided on again.

    With the id of a run, give the verdict on that one.

    Exit status: 0, every verdict was used; 1, some were skipped, or an error ended the command;
    2, wrong usage; 130, interrupted.""",
)


@app.command("give", hidden=True)
def give_one(
    run_id: RunId,
    success: Annotated[
        bool | None, typer.Option("--success/--failure", help="Whether the run reached its goal.")
    ] = None,
    confidence: Annotated[
        float | None, typer.Option(min=0, max=1, help="How sure one can be of its result.")
    ] = None,
    note: Annotated[str | None, typer.Option(help="The reason; it is redacted.")] = None,
    timeout: Timeout = 20.0,
    database: Database = None,
    as_json: AsJsonLines = False,
) -> None:
    """Give the verdict on one run."""
    if success is None and confidence is None:
        raise typer.BadParameter("give --success or --failure, or a --confidence")
    verdict = RunVerdict(run_id, Verdict(success, confidence, note, source="label"))
    with open_store(database) as store:
        labelling = Labelling(store, as_json=as_json)
        _run(labelling, lambda: labelling.run([verdict]), timeout)


@app.command("next")
def ask_next(
    domain: Domain = None,
    limit: Annotated[int, typer.Option(min=1, help="Ask about at most this many.")] = 50,
    ask_in: Annotated[
        Tool | None, typer.Option(help="Mark the runs in this tool by kp_verdict_wanted instead.")
    ] = None,
    timeout: Timeout = 20.0,
    database: Database = None,
    as_json: AsJsonLines = False,
) -> None:
    """Ask about the runs whose verdict helps most, one a screen.

    Those of tasks without a verdict come first. Keys answer: y (it succeeded), n, s (skip), m
    (more: the whole run), b (back), o (a note for the verdict to come), q (quit). Answers may also
    come through a pipe, one a line. With --json it lists these runs and asks nothing. With --ask-in
    it marks them in a tool, where people find them by that score.
    """
    from kp_langchain.cli.label_next import NOTHING_TO_ASK, Dialog, NextRuns

    if ask_in is not None and as_json:
        raise typer.BadParameter("--ask-in prints no JSON")
    with open_store(database) as store:
        runs = NextRuns(store, domain, limit)
        if as_json:
            for values in runs.to_dicts():
                say_json(values)
        elif ask_in is None:
            labelling = Labelling(store)
            _run(labelling, Dialog(runs, labelling).run, timeout)
        elif runs.offers:
            from kp_langchain.cli.tool_verdicts import ask_in_tool

            ask_in_tool(store, ask_in, [offer.run.trace_id for offer in runs.offers])
        else:
            warn(NOTHING_TO_ASK)


@app.command("import")
def import_verdicts(
    file: Annotated[
        str, typer.Argument(metavar="FILE", help="Verdicts in a .jsonl or .csv; - for stdin.")
    ],
    timeout: Timeout = 20.0,
    database: Database = None,
    as_json: AsJsonLines = False,
) -> None:
    """Read verdicts from a file, one a line.

    A line has id (or trace_id, or run_id), success, and optionally confidence and note; the first
    line of a CSV names its columns. A line that cannot be used is reported on stderr as
    FILE:LINE: reason, and skipped. Reading a file again changes nothing.
    """
    if file != STDIO and Path(file).suffix.lower() not in _SUFFIXES:
        raise typer.BadParameter(f"{file} is not a {', '.join(_SUFFIXES)} file")
    if file != STDIO and not Path(file).is_file():
        raise typer.BadParameter(f"{file} is not a file")
    with open_store(database) as store:
        labelling = Labelling(store, as_json=as_json)
        _run(labelling, lambda: labelling.run(read_labels(file)), timeout)


@app.command()
def pull(
    tool: Annotated[Tool, typer.Argument(metavar="TOOL", help="The tool to read from.")],
    key: Annotated[
        str | None, typer.Option(help="The key of the feedback that means success.")
    ] = None,
    since: Annotated[
        str | None, typer.Option(metavar="TIME", help="Only what is new since 2026-03-31, 7d.")
    ] = None,
    pass_at: Annotated[
        float, typer.Option(min=0, max=1, help="The score from which a run succeeded.")
    ] = 0.5,
    timeout: Timeout = 20.0,
    database: Database = None,
    as_json: AsJsonLines = False,
) -> None:
    """Read the feedback that people and models gave on the store's runs in another tool.

    What a model says counts less than what anybody else says. Reading it again changes nothing.
    """
    from kp_langchain.cli.tool_verdicts import tool_verdicts

    start = None if since is None else parse_time(since, "--since")
    with open_store(database) as store:
        verdicts = tool_verdicts(store, tool, key=key, since=start, pass_at=pass_at)
        labelling = Labelling(store, as_json=as_json)
        _run(labelling, lambda: labelling.run(verdicts), timeout)


def _run(labelling: Labelling, give_verdicts: Callable[[], None], timeout_s: float) -> None:
    """Give verdicts, then conclude, also after an error or an interruption."""
    try:
        give_verdicts()
    except KeyboardInterrupt:
        warn("interrupted")
        raise typer.Exit(INTERRUPTED) from None
    finally:
        labelling.conclude(timeout_s)
    if labelling.skipped or labelling.unknown:
        raise typer.Exit(_SKIPPED)


# ------------------------------------------------------------------ files of verdicts


def read_labels(file: str) -> Iterator[RunVerdict]:
    """Yield the lines of a file of verdicts.

    Args:
        file: A `.csv`, `.jsonl` or `.ndjson` file, or `-` for JSON lines on standard input.

    Raises:
        KPError: The file cannot be read, or its header names no id.
    """
    if Path(file).suffix.lower() == ".csv":
        yield from _csv_labels(file)
        return
    for line in read_lines(file):
        try:
            fields = read_object(line)
        except KPError as error:
            yield RunVerdict(why=str(error), place=line.place)
        else:
            yield _label_in(fields, line.place)


def _csv_labels(file: str) -> Iterator[RunVerdict]:
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
        reader = csv.reader(stream, delimiter=delimiter, strict=True)
        while True:
            place = f"{file}:{reader.line_num + 2}"
            try:
                row = next(reader)
            except StopIteration:
                return
            except csv.Error as error:
                yield RunVerdict(why=f"not valid CSV: {error}", place=place)
                continue
            if len(row) > len(names):
                why = f"{len(row)} fields, but the first line names {len(names)}"
                yield RunVerdict(why=why, place=place)
            elif any(row):
                yield _label_in(dict(zip(names, row, strict=False)), place)


def _label_in(fields: Mapping[str, object], place: str) -> RunVerdict:
    """Return the verdict of a line, or why it holds none."""
    try:
        return RunVerdict(_id_in(fields), _verdict_in(fields), place=place)
    except KPError as error:
        return RunVerdict(why=str(error), place=place)


def _id_in(fields: Mapping[str, object]) -> str:
    for name in _IDS:
        value = fields.get(name)
        if isinstance(value, str) and value.strip():
            return value.strip()
    raise KPError(f"no {_AN_ID}")


def _verdict_in(fields: Mapping[str, object]) -> Verdict:
    from kp_langchain.recording.outcome import read_success

    success, confidence, note = (
        None if isinstance(value, str) and not value.strip() else value
        for value in map(fields.get, ("success", "confidence", "note"))
    )
    try:
        success = None if success is None else read_success(success)
    except VerdictError as error:
        raise KPError(f"{error}; it is {_quote(fields['success'])}") from error
    if isinstance(confidence, str):
        try:
            confidence = float(confidence)
        except ValueError:
            text = _quote(confidence)
            raise KPError(f"confidence is {text}; give a number from 0 to 1") from None
    return Verdict(success, confidence, note, source="label")  # type: ignore[arg-type]


def _quote(value: object) -> str:
    return one_line(repr(value), _SHOWN_CHARS)
