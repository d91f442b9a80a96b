"""The commands `label ID`, `next`, `failures`, `import` and `pull`: verdicts on scored runs."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from kp_langchain.cli.options import (
    INTERRUPTED,
    AsJsonLines,
    Database,
    RunId,
    group_app,
    open_store,
    parse_time,
)
from kp_langchain.cli.outbox import SEND_TIMEOUT_S, current_registry, send_due
from kp_langchain.cli.output import STDIO, say, say_json, warn
from kp_langchain.cli.verdict_files import check_file, verdicts_in
from kp_langchain.config import Settings
from kp_langchain.errors import KPError, UnknownRunError
from kp_langchain.text import count_text, one_line, printable, short_id
from kp_langchain.verdict import RunVerdict, Verdict, counting

if TYPE_CHECKING:
    from kp_langchain.store import Rescored, TraceStore

_SKIPPED = 1
_SUFFIXES = (".csv", ".jsonl", ".ndjson")
# It sends through the telemetry of the agent's process, which a command does not have.
_NEEDS_THE_AGENT = "opentelemetry"
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
        float | None,
        typer.Option(min=0, max=1, metavar="0-1", help="How sure one can be of its result."),
    ] = None,
    note: Annotated[str | None, typer.Option(help="The reason; it is redacted.")] = None,
    database: Database = None,
    as_json: AsJsonLines = False,
) -> None:
    """Give the verdict on one run."""
    if success is None and confidence is None:
        raise typer.BadParameter("give --success or --failure, or a --confidence")
    verdict = RunVerdict(run_id, Verdict(success, confidence, note, source="label"))
    with open_store(database) as store:
        labelling = Labelling(store, as_json=as_json)
        _run(labelling, lambda: labelling.store_all([verdict]))


@app.command("next")
def ask_next(
    domain: Domain = None,
    limit: Annotated[
        int, typer.Option(min=1, metavar="N", help="Ask about at most this many.")
    ] = 50,
    database: Database = None,
    as_json: AsJsonLines = False,
) -> None:
    """Ask about the runs whose verdict helps most, one a screen.

    Those of tasks without a verdict come first, among them one of each kind of failure. Keys
    answer: y (it succeeded), n, s (skip), m (more: the whole run), b (back), o (a note for the
    verdict to come), q (quit). Answers may also come through a pipe, one a line. With --json it
    lists these runs and asks nothing.
    """
    from kp_langchain.cli.label_next import Dialog, next_offers, offers_json

    with open_store(database) as store:
        offers = next_offers(store, domain, limit + 1)
        if as_json:
            for values in offers_json(store, offers[:limit]):
                say_json(values)
        else:
            labelling = Labelling(store)

            def give(trace_id: str, verdict: Verdict) -> str:
                return "; ".join(map(change_text, labelling.store(trace_id, verdict)))

            dialog = Dialog(store, domain, offers[:limit], give, has_more=len(offers) > limit)
            _run(labelling, dialog.run)


@app.command("failures")
def ask_groups(domain: Domain = None, database: Database = None) -> None:
    """Ask about the groups of failures that are alike: one verdict for all runs without one.

    The groups are those of `review failures`. Keys answer: y (all succeeded), n (all failed), s
    (skip), m (more: the runs), q (quit). A second key confirms how many runs get the verdict.
    Answers may also come through a pipe, one a line.
    """
    from kp_langchain.cli.failures import GroupDialog

    with open_store(database) as store:
        labelling = Labelling(store)
        _run(labelling, GroupDialog(store, domain, labelling.store).run)


@app.command("import")
def import_verdicts(
    file: Annotated[
        str, typer.Argument(metavar="FILE", help="Verdicts in a .jsonl or .csv; - for stdin.")
    ],
    database: Database = None,
    as_json: AsJsonLines = False,
) -> None:
    """Read verdicts from a file, one a line.

    A line has id (or trace_id, or run_id), success, and optionally confidence and note; the first
    line of a CSV names its columns. A line that cannot be used is reported on stderr as
    FILE:LINE: reason, and skipped. Reading a file again changes nothing.
    """
    check_file(file)
    if file != STDIO and Path(file).suffix.lower() not in _SUFFIXES:
        raise typer.BadParameter(f"{file} is not a {', '.join(_SUFFIXES)} file")
    with open_store(database) as store:
        labelling = Labelling(store, as_json=as_json)
        _run(labelling, lambda: labelling.store_all(verdicts_in(file)))


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
        float,
        typer.Option(min=0, max=1, metavar="0-1", help="The score from which a run succeeded."),
    ] = 0.5,
    database: Database = None,
    as_json: AsJsonLines = False,
) -> None:
    """Read the feedback that people and models gave on the store's runs in another tool.

    What a model says counts less than what anybody else says. Reading it again changes nothing.
    """
    start = None if since is None else parse_time(since, "--since")
    with open_store(database) as store:
        verdicts = _verdicts_of_tool(store, tool, key=key, since=start, pass_at=pass_at)
        labelling = Labelling(store, as_json=as_json)
        _run(labelling, lambda: labelling.store_all(verdicts))


def _run(labelling: Labelling, give_verdicts: Callable[[], None]) -> None:
    """Give verdicts, then conclude, also after an interruption."""
    is_interrupted = False
    try:
        give_verdicts()
    except KeyboardInterrupt:
        warn("interrupted")
        is_interrupted = True
    labelling.conclude()
    if is_interrupted:
        raise typer.Exit(INTERRUPTED)
    if labelling.skip_count or labelling.unknown_count:
        raise typer.Exit(_SKIPPED)


# ------------------------------------------------------------------ storing verdicts


class Labelling:
    """Store verdicts, print what each one changes, and count.

    Args:
        store: The store with the runs.
        as_json: Print changes as JSON, and everything else on stderr.

    Attributes:
        skip_count: How many lines held no verdict.
        unknown_count: How many verdicts were on a run that the store does not have.
    """

    def __init__(self, store: TraceStore, *, as_json: bool = False) -> None:
        self._store, self._as_json = store, as_json
        self._registry, self._tools = current_registry(), _score_tools()
        # By trace id: the decision before the first verdict, and the decision now.
        self._decisions: dict[str, tuple[str, str]] = {}
        self._replaced_ids: set[str] = set()
        self.skip_count = self.unknown_count = self._known_count = 0

    def store_all(self, verdicts: Iterable[RunVerdict]) -> None:
        """Store verdicts, one after the other.

        Raises:
            KPError: The store or a file cannot be read or written.
            UnknownRunError: The store does not have the run of a verdict without a place, such as
                that of the command line, or its id may mean several.
        """
        for one in verdicts:
            if one.verdict is None:
                self.skip_count += 1
                warn(printable(f"{one.place}: {one.why}"))
                continue
            try:
                if one.place and self._is_known(one, one.verdict):
                    self._known_count += 1
                    continue
                changes = self.store(one.run_id, one.verdict)
            except UnknownRunError as error:
                if not one.place:
                    raise
                self.unknown_count += 1
                warn(printable(f"{one.place}: {error}"))
                continue
            for change in changes:
                if self._as_json:
                    say_json(change)
                else:
                    say(change_text(change))

    def store(self, run_id: str, verdict: Verdict) -> list[Rescored]:
        """Store one verdict, count what it changes, and return that. Print nothing.

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
            self._replaced_ids.update(change.replaces)
        return changes

    def conclude(self) -> None:
        """Print a summary, then send and withdraw what the verdicts changed.

        Raises:
            KPError: The store cannot be read or written, or the settings cannot be used.
        """
        report = warn if self._as_json else say
        new = sum(now == "kept" != before for before, now in self._decisions.values())
        former = sum(before == "kept" != now for before, now in self._decisions.values())
        former += len(self._replaced_ids - self._decisions.keys())
        skips = f", skipped {self.skip_count}" if self.skip_count else ""
        repeats = f", given before {self._known_count}" if self._known_count else ""
        report(
            f"Labelled {len(self._decisions)}, of which now kept {new}, no longer kept {former}; "
            f"unknown {self.unknown_count}{repeats}{skips}."
        )
        send_due(self._store, self._registry, self._count_due, report)
        _send_scores(self._store, report)

    def _is_known(self, one: RunVerdict, verdict: Verdict) -> bool:
        """Return whether a verdict is stored already: its file or tool is read again.

        Where verdicts have a time, that tells; otherwise whether the one that counts says the same.
        Notes are not compared: they are redacted only when they are stored.
        """
        run = None
        with suppress(UnknownRunError):  # one run may have several traces
            run = self._store.get(one.run_id)
        if run is None:
            return False
        verdicts = self._store.verdicts(run.trace_id)
        if one.at is None and (current := counting(verdicts)) is not None:
            verdicts = [replace(current, at=verdict.at)]
        return replace(verdict, note=None) in [replace(each, note=None) for each in verdicts]

    def _count_due(self) -> int:
        """Return how many of the labelled runs are still to be sent or withdrawn."""
        contributions = map(self._store.outbox.get, self._decisions)
        states = Counter(one.status for one in contributions if one is not None)
        return states["pending"] + states["to replace"] + states["to withdraw"]


def change_text(change: Rescored) -> str:
    """Return in one line what a verdict changed."""
    decision: str = change.decision
    if change.decision != change.decision_before:
        decision = f"{change.decision_before} -> {decision}"
    if change.twin_of is not None:
        decision += f", because it repeats {short_id(change.twin_of)}, which is kept"
    elif change.decision == "below_threshold" and change.gated_value >= change.threshold:
        reason = "is withheld" if change.has_trace else "is no longer kept"
        decision += f", because its trace {reason}"
    return (
        f"{short_id(change.trace_id)}  {printable(change.domain)}  "
        f"{'success' if change.success else 'failure'} {change.confidence:.2f}  "
        f"{change.gate} {change.gated_value_before:.3f} -> {change.gated_value:.3f}  {decision}"
    )


# ------------------------------------------------------------------ other tools


def _verdicts_of_tool(
    store: TraceStore, name: str, *, key: str | None, since: datetime | None, pass_at: float
) -> Iterator[RunVerdict]:
    """Yield the feedback of a tool on the store's runs, and report how much of it there is.

    Args:
        store: The store.
        name: The name of the tool.
        key: The key of the feedback that means success; None if all has one key.
        since: Only feedback that was given or changed at this time or later.
        pass_at: The lowest score of a run that succeeded, 0 to 1.

    Raises:
        KPError: The tool cannot be read, or its package is not installed. It has none of the runs,
            or feedback under several keys while `key` is None.
    """
    from kp_langchain.integrations.tools import feedback_tool, verdicts_from

    _retry_less()
    tool = feedback_tool(name)
    runs = len(store.external_traces.of_tool(name))
    if not runs:
        raise KPError(
            f"{store.location} has no run that {tool.title} is known to have; attach its tracer "
            f"and send_scores_to=[{name!r}]"
        )
    # Nothing may be stored before it is known that all has one key.
    verdicts = list(verdicts_from(tool, store, key=key, since=since, pass_at=pass_at))
    numbers = Counter(one.key for one in verdicts)
    if key is None and len(numbers) > 1:
        keys = ", ".join(f"{one} ({number})" for one, number in numbers.most_common())
        raise KPError(
            f"{tool.title} has feedback under several keys: {one_line(keys, 1000)}; choose the one "
            "that means success: --key NAME"
        )
    yield from verdicts
    under = "".join(f" under {one!r}" for one in numbers)
    number, of = count_text(len(verdicts), "feedback"), count_text(runs, "run")
    warn(f"{tool.title} has {number}{under} on {of}.")


def _score_tools() -> tuple[str, ...]:
    """Return the names of the tools that are sent scores; none if nothing is to be sent."""
    settings = Settings()
    return () if settings.disabled else settings.send_scores_to


def _retry_less() -> None:
    """Have clients give up in seconds where nothing answers; MLflow's tries for four minutes."""
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "2")


def _send_scores(store: TraceStore, report: Callable[[str], object]) -> None:
    """Send the scores that are still to be sent to other tools, and report how far that got.

    What is left after 20 s is sent by the next process.

    Args:
        store: The store with the runs.
        report: Given each line to print.

    Raises:
        KPError: The store cannot be read, or the settings cannot be used.
    """
    names = [name for name in _score_tools() if name != _NEEDS_THE_AGENT]
    if not names:
        return
    from kp_langchain.recording.bounds import Counters
    from kp_langchain.recording.score_receivers import ScoreSender, receivers_of
    from kp_langchain.store.jobs import drain

    _retry_less()
    senders = [ScoreSender(one, store, Counters()) for one in receivers_of(names)]
    drain([sender.loop for sender in senders], SEND_TIMEOUT_S)
    for sender in senders:
        counts = sender.counters.counts()
        done, rest = counts.get("scores_sent", 0), store.journal.jobs.count(sender.kind)
        due = done + counts.get("scores_failed", 0) + rest
        why = f" ({sender.failure})" if sender.failure else "; the others wait" if rest else ""
        if due:
            report(f"Scores sent to {sender.tool}: {done} of {due}{why}.")
