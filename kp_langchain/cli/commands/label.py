"""The command `label`: records verdicts on scored runs, and reports what they change."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from kp_langchain.cli.json_option import AsJsonLines
from kp_langchain.cli.jsonl import STDIN
from kp_langchain.cli.labelling import Labelling, report
from kp_langchain.cli.sending import current_registry
from kp_langchain.cli.store_option import Database, open_store
from kp_langchain.cli.time_text import parse_time
from kp_langchain.cli.tool_verdicts import ask_in_tool, tool_verdicts
from kp_langchain.cli.verdict_files import read_labels
from kp_langchain.integrations.tools import FEEDBACK_TOOLS
from kp_langchain.verdict import RunVerdict, Verdict

if TYPE_CHECKING:
    from kp_langchain.store import TraceStore

_SUFFIXES = (".csv", ".jsonl", ".ndjson")
_SKIPPED, _INTERRUPTED = 1, 130
_NEXT_LIMIT = 50

RunId = Annotated[
    str | None,
    typer.Argument(metavar="[ID]", help="Trace id, run id, or the beginning of either."),
]
Success = Annotated[
    bool | None, typer.Option("--success/--failure", help="Whether the run reached its goal.")
]
Confidence = Annotated[
    float | None, typer.Option(min=0, max=1, help="How sure one can be of its result.")
]
Note = Annotated[str | None, typer.Option(help="The reason; it is redacted.")]
File = Annotated[
    str | None,
    typer.Option("--from", metavar="FILE", help="Verdicts in a .jsonl or .csv; - for stdin."),
]
FromLangSmith = Annotated[
    bool, typer.Option("--from-langsmith", "--langsmith", help="Feedback in LangSmith.")
]
FromLangfuse = Annotated[bool, typer.Option("--from-langfuse", help="Scores in Langfuse.")]
FromPhoenix = Annotated[bool, typer.Option("--from-phoenix", help="Annotations in Phoenix.")]
FromOpik = Annotated[bool, typer.Option("--from-opik", help="Feedback scores in Opik.")]
FromMLflow = Annotated[bool, typer.Option("--from-mlflow", help="Feedback in MLflow.")]
Key = Annotated[str | None, typer.Option(help="Of a tool's feedback: the key that means success.")]
Since = Annotated[
    str | None,
    typer.Option(metavar="TIME", help="Of a tool's feedback: what is new since 2026-03-31, 7d."),
]
PassAt = Annotated[
    float,
    typer.Option(min=0, max=1, help="Of a tool's feedback: the score from which a run succeeded."),
]
Next = Annotated[bool, typer.Option("--next", help="Ask about the runs whose verdict helps most.")]
Domain = Annotated[str | None, typer.Option(help="With --next: only runs of this domain.")]
Limit = Annotated[
    int | None,
    typer.Option(
        min=1, help=f"With --next: ask about at most this many; {_NEXT_LIMIT} if not set."
    ),
]
AskIn = Annotated[
    Literal["langsmith", "langfuse", "phoenix", "opik", "mlflow"] | None,
    typer.Option(help="With --next: ask in this tool, where people give verdicts there."),
]
Queue = Annotated[
    str, typer.Option(metavar="NAME", help="With --ask-in: the tool's annotation queue.")
]
Timeout = Annotated[
    float, typer.Option(min=0, metavar="SECONDS", help="Take at most this long to send.")
]


def label(
    run_id: RunId = None,
    success: Success = None,
    confidence: Confidence = None,
    note: Note = None,
    file: File = None,
    from_langsmith: FromLangSmith = False,
    from_langfuse: FromLangfuse = False,
    from_phoenix: FromPhoenix = False,
    from_opik: FromOpik = False,
    from_mlflow: FromMLflow = False,
    key: Key = None,
    since: Since = None,
    pass_at: PassAt = 0.5,
    ask_next: Next = False,
    domain: Domain = None,
    limit: Limit = None,
    ask_in: AskIn = None,
    queue: Queue = "kp_langchain",
    timeout: Timeout = 20.0,
    database: Database = None,
    as_json: AsJsonLines = False,
) -> None:
    """Record how runs really ended. They are scored and decided on again.

    A file has one verdict a line, with id (or trace_id, or run_id), success, and optionally
    confidence and note; the first line of a CSV names its columns. A line that cannot be used is
    reported on stderr as FILE:LINE: reason, and skipped.

    --from-langsmith and the like read the feedback that people and models gave there on the
    store's runs. What a model says counts less than what anybody else says. Reading it again
    changes nothing.

    --next shows runs without a verdict, one a screen, tasks without a verdict first; keys answer:
    y (it succeeded), n, s (skip), m (more: the whole run), b (back), o (a note for the verdict to
    come), q (quit). Answers may also come through a pipe, one a line. With --json it lists these
    runs and asks nothing. With --ask-in it puts them into a queue of a tool.

    Exit status: 0, every verdict was used; 1, some were skipped, or an error ended the command;
    2, wrong usage; 130, interrupted.
    """
    flags = (from_langsmith, from_langfuse, from_phoenix, from_opik, from_mlflow)
    tools = [name for name, is_wanted in zip(FEEDBACK_TOOLS, flags, strict=True) if is_wanted]
    _check_options(
        [run_id is not None, file is not None, *tools, ask_next],
        of_one_id=(success, confidence, note),
        of_tool=(key, since),
        of_next=(domain, limit, ask_in),
    )
    if ask_in is not None and as_json:
        raise typer.BadParameter("--ask-in prints no JSON")
    verdicts = None
    if run_id is not None:
        verdicts = _from_options(run_id, success, confidence, note)
    elif file is not None:
        verdicts = _from_file(file)
    with open_store(database) as store:
        if ask_next and ask_in is not None:
            _ask_in_tool(store, ask_in, domain, limit or _NEXT_LIMIT, queue)
            return
        if ask_next:
            _label_next(store, domain, limit or _NEXT_LIMIT, timeout, as_json=as_json)
            return
        if verdicts is None:
            verdicts = tool_verdicts(
                store,
                tools[0],
                key=key,
                since=None if since is None else parse_time(since, "--since"),
                pass_at=pass_at,
            )
        labelling = Labelling(store, current_registry(), as_json=as_json)
        _run(labelling, lambda: labelling.run(verdicts), timeout)


def _check_options(
    ways: list[object],
    *,
    of_one_id: tuple[object, ...],
    of_tool: tuple[object, ...],
    of_next: tuple[object, ...],
) -> None:
    """Refuse options that do not belong together.

    Args:
        ways: Whether an id and a file are wanted, the tools that are, and whether the next runs.
        of_one_id: The options that belong to an id.
        of_tool: The options that belong to a tool.
        of_next: The options that belong to the next runs.

    Raises:
        BadParameter: Not exactly one way is wanted, or an option belongs to another one.
    """
    is_one_id, is_file, *tools, is_next = ways
    if len([way for way in (is_one_id, is_file, *tools, is_next) if way]) != 1:
        names = ", ".join(f"--from-{name}" for name in FEEDBACK_TOOLS)
        raise typer.BadParameter(f"give one of ID, --from FILE, {names} and --next")
    if not is_one_id and any(value is not None for value in of_one_id):
        raise typer.BadParameter(
            "--success, --failure, --confidence and --note belong to one ID; "
            "the other ways bring their own"
        )
    if not tools and any(value is not None for value in of_tool):
        raise typer.BadParameter("--key and --since belong to --from-langsmith and the like")
    if not is_next and any(value is not None for value in of_next):
        raise typer.BadParameter("--domain, --limit and --ask-in belong to --next")


def _label_next(
    store: TraceStore, domain: str | None, limit: int, timeout_s: float, *, as_json: bool
) -> None:
    from kp_langchain.cli.console import make_console
    from kp_langchain.cli.key_reader import KeyReader
    from kp_langchain.cli.next_runs import Dialog, NextRuns

    runs = NextRuns(store, domain=domain, limit=limit)
    if as_json:
        runs.print_json()
        return
    labelling = Labelling(store, current_registry(), as_json=False)
    dialog = Dialog(runs, labelling, make_console(), KeyReader())
    _run(labelling, dialog.run, timeout_s)


def _ask_in_tool(store: TraceStore, tool: str, domain: str | None, limit: int, queue: str) -> None:
    from kp_langchain.cli.next_runs import NOTHING_TO_ASK, NextRuns

    runs = NextRuns(store, domain=domain, limit=limit)
    if not runs.offers:
        report(NOTHING_TO_ASK)
        return
    ask_in_tool(store, tool, [offer.run.trace_id for offer in runs.offers], queue)


def _run(labelling: Labelling, give_verdicts: Callable[[], None], timeout_s: float) -> None:
    """Give verdicts, then conclude, also after an error or an interruption."""
    try:
        give_verdicts()
    except KeyboardInterrupt:
        report("interrupted")
        raise typer.Exit(_INTERRUPTED) from None
    finally:
        labelling.conclude(timeout_s)
    if labelling.skipped or labelling.unknown:
        raise typer.Exit(_SKIPPED)


def _from_options(
    run_id: str, success: bool | None, confidence: float | None, note: str | None
) -> Iterator[RunVerdict]:
    if success is None and confidence is None:
        raise typer.BadParameter("give --success or --failure, or a --confidence")
    return iter([RunVerdict(run_id, Verdict(success, confidence, note, source="label"))])


def _from_file(file: str) -> Iterator[RunVerdict]:
    if file != STDIN and Path(file).suffix.lower() not in _SUFFIXES:
        raise typer.BadParameter(f"{file} is not a {', '.join(_SUFFIXES)} file")
    if file != STDIN and not Path(file).is_file():
        raise typer.BadParameter(f"{file} is not a file")
    return read_labels(file)
