"""The commands `label ID`, `next`, `import` and `pull`: verdicts on scored runs."""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from kp_langchain.cli.json_files import read_lines, read_object
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
from kp_langchain.cli.output import STDIO, file_errors, say, say_json, warn
from kp_langchain.cli.sending import current_registry, score_tools, send_due, send_scores
from kp_langchain.errors import KPError, UnknownRunError, VerdictError
from kp_langchain.printable import one_line, printable, short_id
from kp_langchain.verdict import RunVerdict, Verdict, counting

if TYPE_CHECKING:
    from kp_langchain.store import Rescored, TraceStore

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
        Tool | None, typer.Option(help="Ask in this tool, where people give verdicts there.")
    ] = None,
    queue: Annotated[
        str, typer.Option(metavar="NAME", help="With --ask-in: the tool's annotation queue.")
    ] = "kp_langchain",
    timeout: Timeout = 20.0,
    database: Database = None,
    as_json: AsJsonLines = False,
) -> None:
    """Ask about the runs whose verdict helps most, one a screen.

    Those of tasks without a verdict come first. Keys answer: y (it succeeded), n, s (skip), m
    (more: the whole run), b (back), o (a note for the verdict to come), q (quit). Answers may also
    come through a pipe, one a line. With --json it lists these runs and asks nothing. With --ask-in
    it puts them into a queue of a tool.
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

            ask_in_tool(store, ask_in, [offer.run.trace_id for offer in runs.offers], queue)
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


class Labelling:
    """Write verdicts, print what each one changes, and count.

    Args:
        store: The store with the runs.
        as_json: Print changes as JSON, and everything else on stderr.

    Attributes:
        skipped: How many lines held no verdict.
        unknown: How many verdicts were on a run that the store does not have.
    """

    def __init__(self, store: TraceStore, *, as_json: bool = False) -> None:
        self._store, self._as_json = store, as_json
        self._registry, self._tools = current_registry(), score_tools()
        self._is_complete = False
        # By trace id: the decision before the first verdict, and the decision now.
        self._decisions: dict[str, tuple[str, str]] = {}
        self.skipped = self.unknown = self._known = 0

    def run(self, verdicts: Iterable[RunVerdict]) -> None:
        """Write the verdicts, one after the other.

        Raises:
            KPError: The store or a file cannot be read or written.
            UnknownRunError: A verdict without a place, such as that of the command line, is on a
                run that the store does not have, or its id may mean several.
        """
        for entry in verdicts:
            if entry.verdict is None:
                self.skipped += 1
                warn(printable(f"{entry.place}: {entry.why}"))
                continue
            try:
                if entry.place and self._is_known(entry, entry.verdict):
                    self._known += 1
                    continue
                changes = self.give(entry.run_id, entry.verdict)
            except UnknownRunError as error:
                if not entry.place:
                    raise
                self.unknown += 1
                warn(printable(f"{entry.place}: {error}"))
                continue
            for change in changes:
                if self._as_json:
                    say_json(change)
                else:
                    say(self.line(change))
        self._is_complete = True

    def conclude(self, timeout_s: float) -> None:
        """Print a summary, then send and withdraw what the verdicts changed.

        Args:
            timeout_s: Seconds that sending may take.

        Raises:
            KPError: The store cannot be read or written, or the settings cannot be used.
        """
        if not (self._is_complete or self._decisions or self.skipped or self.unknown):
            return
        report = warn if self._as_json else say
        new = sum(now == "kept" != before for before, now in self._decisions.values())
        former = sum(before == "kept" != now for before, now in self._decisions.values())
        skipped = f", skipped {self.skipped}" if self.skipped else ""
        known = f", given before {self._known}" if self._known else ""
        report(
            f"Labelled {len(self._decisions)}, of which now kept {new}, no longer kept {former}; "
            f"unknown {self.unknown}{known}{skipped}."
        )
        send_due(self._store, self._registry, self._count_due, timeout_s, report)
        send_scores(self._store, timeout_s, report)

    def give(self, run_id: str, verdict: Verdict) -> list[Rescored]:
        """Write one verdict, count what it changes, and return that. Print nothing.

        Raises:
            KPError: The store cannot be read or written.
            UnknownRunError: The store does not have the run, or the id may mean several.
        """
        changes = self._store.report_outcome(
            run_id,
            success=verdict.success,
            confidence=verdict.confidence,
            note=verdict.note,
            source=verdict.source,
            at=verdict.at,
            by_model=verdict.by_model,
            registry=None if self._registry is None else self._registry.url,
            tools=self._tools,
        )
        for change in changes:
            first, _ = self._decisions.get(change.trace_id, (change.decision_before, ""))
            self._decisions[change.trace_id] = (first, change.decision)
        return changes

    def line(self, change: Rescored) -> str:
        """Return in one line what a verdict changed."""
        decision: str = change.decision
        if change.decision != change.decision_before:
            decision = f"{change.decision_before} -> {decision}"
        if change.twin_of is not None:
            decision += f", because it repeats {short_id(change.twin_of)}, which is kept"
        elif change.decision == "below_threshold" and change.gated_value >= change.threshold:
            reason = "is withheld" if change.kept else "is no longer kept"
            decision += f", because its trace {reason}"
        return (
            f"{short_id(change.trace_id)}  {printable(change.domain)}  "
            f"{'success' if change.success else 'failure'} {change.confidence:.2f}  "
            f"{change.gate} {change.gated_value_before:.3f} -> {change.gated_value:.3f}  {decision}"
        )

    def _is_known(self, entry: RunVerdict, verdict: Verdict) -> bool:
        """Return whether a verdict is stored already: its file or tool is read again.

        Where verdicts have a time, that tells; otherwise whether the one that counts says the same.
        Notes are not compared: they are redacted only when they are stored.
        """
        run = None
        with suppress(UnknownRunError):  # one run may have several traces
            run = self._store.get(entry.run_id)
        if run is None:
            return False
        verdicts = self._store.verdicts(run.trace_id)
        if entry.at is None and (current := counting(verdicts)) is not None:
            verdicts = [replace(current, at=verdict.at)]
        return replace(verdict, note=None) in [replace(one, note=None) for one in verdicts]

    def _count_due(self) -> int:
        """Return how many of the labelled runs are still to be sent or withdrawn."""
        contributions = (self._store.outbox.get(trace_id) for trace_id in self._decisions)
        states = Counter(one.status for one in contributions if one is not None)
        return states["pending"] + states["to replace"] + states["to withdraw"]


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
