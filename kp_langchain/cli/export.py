"""The command `export`: stored runs in files, as traces or in forms that other programs read."""

from __future__ import annotations

import sys
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from kp_langchain.cli.options import Database, new_app, open_store, takes_filters
from kp_langchain.cli.output import (
    STDIO,
    binary_output,
    folder_output,
    say_json,
    text_output,
    warn,
)
from kp_langchain.errors import KPError
from kp_langchain.text import count_text, counts_text

if TYPE_CHECKING:
    from collections import Counter

    from kp_langchain.exporting.conversations import FailingSteps
    from kp_langchain.exporting.selection import Request
    from kp_langchain.store import TraceStore

app = new_app()

_TRACE = "trace"
_SUFFIXES = (".jsonl", ".json", ".parquet")
_FormatName = Literal["trace", "openai", "sharegpt", "atif", "parquet", "otlp", "cases", "feedback"]


@app.command()
@takes_filters()
def export(
    filters: dict[str, Any],
    form: Annotated[_FormatName, typer.Option("--format", help="What is written.")] = "trace",
    every: Annotated[
        bool,
        typer.Option("--all", help="Also runs that did not pass, and traces that expire."),
    ] = False,
    limit: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="At most so many, the newest.")
    ] = None,
    with_identifiers: Annotated[
        bool,
        typer.Option(
            "--with-identifiers",
            help="Also traces of the privacy level private, which keep identifiers.",
        ),
    ] = False,
    all_namespaces: Annotated[
        bool,
        typer.Option(
            "--all-namespaces",
            help="Take runs of several namespaces into one export. Not for trace.",
        ),
    ] = False,
    per_task: Annotated[
        int | None,
        typer.Option(
            min=1,
            metavar="N",
            help="Take up to N runs of each task, the best ones. Not for trace. Default: 1.",
        ),
    ] = None,
    test_share: Annotated[
        float | None,
        typer.Option(
            min=0,
            max=1,
            metavar="SHARE",
            help="Put this share of the tasks into the split test. Not for trace. Default: 0.1.",
        ),
    ] = None,
    failing_steps: Annotated[
        Literal["mask", "drop", "keep"] | None,
        typer.Option(
            help="What to do with tool calls that failed (openai, sharegpt): give them no weight "
            "(mask), leave them out (drop), or keep them as they are (keep). Default: mask for "
            "openai, drop for sharegpt."
        ),
    ] = None,
    output: Annotated[
        str,
        typer.Option(
            "--output", "-o", metavar="PATH", help="Write to this file or folder; - for stdout."
        ),
    ] = STDIO,
    database: Database = None,
) -> None:
    """Write runs as JSON lines or in another format, the newest first.

    trace is the wire form of this package: traces that were kept, one a line. The other formats
    take runs that passed, and runs on which a verdict states success or failure; openai and
    sharegpt take successes of these. They have the best run of each task.

    A path with the ending of the format (.parquet, .json for cases, else .jsonl) is a file; openai
    and sharegpt write verdicts, scores and step marks into another one beside it, such as
    runs.marks.jsonl for runs.jsonl. Any other path is a folder, which must be new or empty: it gets
    the files train and test, split by task, and a card that says how many runs there are, from
    where, and what was removed. The trace format is always one file, whatever its name.

    The store has only redacted text, so nothing else is written. Traces of the privacy level
    private keep identifiers such as addresses, and are left out without --with-identifiers. Runs
    of several namespaces are refused without --all-namespaces, but in traces, each of which names
    its own as kp_namespace. Files are replaced in one step, and only you may read them.
    """
    options = (per_task, test_share, failing_steps, all_namespaces or None)
    if form == _TRACE and any(option is not None for option in options):
        raise typer.BadParameter(
            "--per-task, --test-share, --failing-steps and --all-namespaces are of no use for "
            "traces; give another --format"
        )
    if form == _TRACE:
        with open_store(database) as store:
            _export_traces(store, filters, output, every, limit, with_identifiers)
        return
    from kp_langchain.exporting.formats import FORMATS
    from kp_langchain.exporting.selection import Request

    definition = FORMATS[form]
    if failing_steps is not None and definition.failing_steps is None:
        raise typer.BadParameter(
            f"--failing-steps is of no use for {form}: only openai and sharegpt weigh calls"
        )
    request = Request(
        is_everything=every,
        with_identifiers=with_identifiers,
        successes_only=definition.failing_steps is not None,
        by_outcome=definition.by_outcome,
        per_task=per_task or 1,
        test_share=0.1 if test_share is None else test_share,
        limit=limit,
        mixes_namespaces=all_namespaces,
    )
    is_folder = _is_folder(output, form, definition.suffix)
    failing = failing_steps or definition.failing_steps or "keep"
    with open_store(database) as store:
        _export_runs(store, filters, form, request, failing, output, is_folder)


def _is_folder(output: str, form: str, suffix: str) -> bool:
    """Return whether a path is that of a folder, and not of a file with one of our suffixes."""
    path = Path(output)
    if output == STDIO or (path.suffix == suffix and not path.is_dir()):
        return False
    if path.suffix in _SUFFIXES and not path.is_dir():
        raise typer.BadParameter(
            f"{form} is written into a file that ends in {suffix}, or into a folder; {output} is "
            "neither"
        )
    return True


def _export_runs(
    store: TraceStore,
    filters: dict[str, Any],
    name: str,
    request: Request,
    failing: FailingSteps,
    output: str,
    is_folder: bool,
) -> None:
    from kp_langchain.exporting.exported_run import read_runs
    from kp_langchain.exporting.formats import FORMATS, write_file, write_folder
    from kp_langchain.exporting.selection import select_runs

    form = FORMATS[name]
    if output == STDIO and form.suffix == ".parquet" and sys.stdout.isatty():
        raise KPError("parquet is no text; give --output runs.parquet, or a folder")
    selection = select_runs(store, filters, request)
    runs = read_runs(store, selection.choices)
    if not is_folder:
        with ExitStack() as files:
            stream = files.enter_context(binary_output(output))
            marks = None
            if form.failing_steps is not None and output != STDIO:
                beside = str(Path(output).with_suffix(".marks.jsonl"))
                marks = files.enter_context(binary_output(beside))
            tally = write_file(runs, form, failing, stream, marks)
    elif selection.choices:
        with folder_output(output) as folder:
            tally = write_folder(runs, form, failing, folder, name, selection)
    else:
        raise KPError(
            f"nothing to export among {count_text(selection.matching, 'run')}."
            f"{_left_out(selection.left_out)} Label runs, or give --all"
        )
    to = "" if output == STDIO else f" to {output}"
    splits = f": {counts_text(tally.splits)}" if is_folder else ""
    left_out = _left_out(selection.left_out + tally.skipped)
    of_all = count_text(selection.matching, "run")
    warn(f"Exported {tally.count:,} of {of_all}{to}{splits}.{left_out}")
    if output == STDIO and form.failing_steps is not None:
        warn("Verdicts, scores, usage and step marks, and a card, need --output FOLDER.")


def _left_out(counts: Counter[str]) -> str:
    return f" Left out {counts.total():,}: {counts_text(counts)}." if counts else ""


def _export_traces(
    store: TraceStore,
    filters: dict[str, Any],
    output: str,
    every: bool,
    limit: int | None,
    with_identifiers: bool,
) -> None:
    if not every:
        filters.setdefault("decision", "kept")
    count = private_count = 0
    with text_output(output) as write:
        for trace, namespace, usage in store.traces_with_usage(with_expiring=every, **filters):
            if trace.metadata.privacy_level == "private" and not with_identifiers:
                private_count += 1
                continue
            of_run: dict[str, Any] = {} if namespace is None else {"kp_namespace": namespace}
            if usage is not None:
                of_run["kp_usage"] = usage.to_dict()
            say_json(of_run, trace.model_dump(mode="json"), write=write)
            count += 1
            if count == limit:
                break
    to = "" if output == STDIO else f" to {output}"
    left_out = (
        f" Left out {private_count} that keep identifiers (--with-identifiers)."
        if private_count
        else ""
    )
    warn(f"Exported {count_text(count, 'trace')}{to}.{left_out}")
