"""The command `label`: records verdicts on scored runs, and reports what they change."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kp_langchain.cli.contributions import current_registry
from kp_langchain.cli.json_option import AsJsonLines
from kp_langchain.cli.jsonl import STDIN
from kp_langchain.cli.labelling import Labelling, report
from kp_langchain.cli.store_option import Database, open_store
from kp_langchain.cli.verdict_files import read_labels
from kp_langchain.errors import KPError
from kp_langchain.verdict import RunVerdict, Verdict

if TYPE_CHECKING:
    from kp_langchain.store import TraceStore

_SUFFIXES = (".csv", ".jsonl", ".ndjson")
_SKIPPED, _INTERRUPTED = 1, 130
_PAGE = 1000
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
LangSmith = Annotated[
    bool, typer.Option("--langsmith", help="Feedback from LangSmith on these runs.")
]
Key = Annotated[
    str | None, typer.Option(help="The key of the feedback in LangSmith that means success.")
]
PassAt = Annotated[
    float, typer.Option(min=0, max=1, help="The LangSmith score from which a run succeeded.")
]
Next = Annotated[bool, typer.Option("--next", help="Ask about the runs whose verdict helps most.")]
Domain = Annotated[str | None, typer.Option(help="With --next: only runs of this domain.")]
Limit = Annotated[
    int | None,
    typer.Option(
        min=1, help=f"With --next: ask about at most this many; {_NEXT_LIMIT} if not set."
    ),
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
    langsmith: LangSmith = False,
    key: Key = None,
    pass_at: PassAt = 0.5,
    ask_next: Next = False,
    domain: Domain = None,
    limit: Limit = None,
    timeout: Timeout = 20.0,
    database: Database = None,
    as_json: AsJsonLines = False,
) -> None:
    """Record how runs really ended. They are scored again, and kept, contributed or withdrawn.

    A file has one verdict a line, with id (or trace_id, or run_id), success, and optionally
    confidence and note; the first line of a CSV names its columns. A line that cannot be used is
    reported on stderr as FILE:LINE: reason, and skipped.

    --next shows runs without a verdict, one a screen, tasks without a verdict first; keys answer:
    y (it succeeded), n, s (skip), m (more: the whole run), b (back), o (a note for the verdict to
    come), q (quit). Answers may also come through a pipe, one a line. With --json it lists these
    runs and asks nothing.

    Exit status: 0, every verdict was used; 1, some were skipped, or an error ended the command;
    2, wrong usage; 130, interrupted.
    """
    _check_options(
        [run_id is not None, file is not None, langsmith, ask_next],
        of_one_id=(success, confidence, note),
        of_langsmith=key,
        of_next=(domain, limit),
    )
    verdicts = None
    if run_id is not None:
        verdicts = _from_options(run_id, success, confidence, note)
    elif file is not None:
        verdicts = _from_file(file)
    with open_store(database) as store:
        if ask_next:
            _label_next(store, domain, limit or _NEXT_LIMIT, timeout, as_json=as_json)
            return
        if verdicts is None:
            verdicts = _from_langsmith(store, key, pass_at)
        labelling = Labelling(store, current_registry(), as_json=as_json)
        _run(labelling, lambda: labelling.run(verdicts), timeout)


def _check_options(
    ways: list[bool],
    *,
    of_one_id: tuple[object, ...],
    of_langsmith: object,
    of_next: tuple[object, ...],
) -> None:
    """Refuse options that do not belong together.

    Args:
        ways: Whether an id, a file, LangSmith and the next runs are wanted.
        of_one_id: The options that belong to an id.
        of_langsmith: The option that belongs to LangSmith.
        of_next: The options that belong to the next runs.

    Raises:
        BadParameter: Not exactly one way is wanted, or an option belongs to another one.
    """
    is_one_id, _, is_langsmith, is_next = ways
    if ways.count(True) != 1:
        raise typer.BadParameter("give one of ID, --from FILE, --langsmith and --next")
    if not is_one_id and any(value is not None for value in of_one_id):
        raise typer.BadParameter(
            "--success, --failure, --confidence and --note belong to one ID; "
            "the other ways bring their own"
        )
    if of_langsmith is not None and not is_langsmith:
        raise typer.BadParameter("--key belongs to --langsmith")
    if not is_next and any(value is not None for value in of_next):
        raise typer.BadParameter("--domain and --limit belong to --next")


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


def _from_langsmith(store: TraceStore, key: str | None, pass_at: float) -> Iterator[RunVerdict]:
    """Yield the feedback of LangSmith on the store's runs that the store does not have yet.

    Raises:
        KPError: LangSmith cannot be read, or has feedback under several keys and `key` is None.
    """
    from kp_langchain.integrations.langsmith import feedback

    trace_ids = dict(_run_ids(store))
    items = list(feedback(trace_ids, keys=() if key is None else (key,), pass_at=pass_at))
    by_key = Counter(item.key for item in items)
    if key is None and len(by_key) > 1:
        keys = ", ".join(f"{name} ({number})" for name, number in by_key.most_common(10))
        raise KPError(
            f"LangSmith has feedback under several keys: {keys}; choose the one that means "
            "success: --key NAME"
        )
    under = "".join(f" under {name!r}" for name in by_key)
    report(f"LangSmith has {len(items)} feedbacks{under} on {len(trace_ids)} runs.")
    for item in sorted(items, key=attrgetter("at")):
        if item.verdict is None or all(
            (verdict.at, verdict.source) != (item.verdict.at, item.verdict.source)
            for verdict in store.verdicts(trace_ids[item.run_id])
        ):
            yield item


def _run_ids(store: TraceStore) -> Iterator[tuple[str, str]]:
    """Yield the run id and the trace id of every run."""
    for offset in range(0, store.count(), _PAGE):
        for run in store.runs(limit=_PAGE, offset=offset, newest_first=False):
            yield run.run_id, run.trace_id
