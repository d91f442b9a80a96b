"""The commands `label ID`, `next`, `import` and `pull`: verdicts on scored runs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Literal

import typer

from kp_langchain.cli.json_files import check_files
from kp_langchain.cli.labelling import Labelling, ask_in_tool, verdicts_in, verdicts_of_tool
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
from kp_langchain.cli.output import STDIO, say_json, warn
from kp_langchain.verdict import RunVerdict, Verdict

_SKIPPED = 1
_SUFFIXES = (".csv", ".jsonl", ".ndjson")
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
        _run(labelling, lambda: labelling.store_all([verdict]), timeout)


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
    check_files([file])
    if file != STDIO and Path(file).suffix.lower() not in _SUFFIXES:
        raise typer.BadParameter(f"{file} is not a {', '.join(_SUFFIXES)} file")
    with open_store(database) as store:
        labelling = Labelling(store, as_json=as_json)
        _run(labelling, lambda: labelling.store_all(verdicts_in(file)), timeout)


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
    start = None if since is None else parse_time(since, "--since")
    with open_store(database) as store:
        verdicts = verdicts_of_tool(store, tool, key=key, since=start, pass_at=pass_at)
        labelling = Labelling(store, as_json=as_json)
        _run(labelling, lambda: labelling.store_all(verdicts), timeout)


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
