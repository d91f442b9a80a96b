"""The command `label`: records verdicts on scored runs, and reports what they change."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kp_langchain.cli.contributions import current_registry, send_now, why_nothing_is_sent
from kp_langchain.cli.json_option import AsJsonLines
from kp_langchain.cli.jsonl import STDIN
from kp_langchain.cli.output import say, say_json
from kp_langchain.cli.store_option import Database, has_registry, open_store
from kp_langchain.cli.verdict_files import read_labels
from kp_langchain.errors import KPError, UnknownRunError
from kp_langchain.gate.decision import decision_word
from kp_langchain.printable import printable, short_id
from kp_langchain.verdict import RunVerdict, Verdict

if TYPE_CHECKING:
    from kp_langchain.registry.client import Registry
    from kp_langchain.store import Rescored, TraceStore

_SUFFIXES = (".csv", ".jsonl", ".ndjson")
_SKIPPED, _INTERRUPTED = 1, 130
_PAGE = 1000


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
    timeout: Timeout = 20.0,
    database: Database = None,
    as_json: AsJsonLines = False,
) -> None:
    """Record how runs really ended. They are scored again, and kept, contributed or withdrawn.

    A file has one verdict a line, with id (or trace_id, or run_id), success, and optionally
    confidence and note; the first line of a CSV names its columns. A line that cannot be used is
    reported on stderr as FILE:LINE: reason, and skipped.

    Exit status: 0, every verdict was used; 1, some were skipped, or an error ended the command;
    2, wrong usage; 130, interrupted.
    """
    if [run_id is not None, file is not None, langsmith].count(True) != 1:
        raise typer.BadParameter("give one of ID, --from FILE and --langsmith")
    if run_id is None and (success, confidence, note) != (None, None, None):
        raise typer.BadParameter(
            "--success, --failure, --confidence and --note belong to one ID; "
            "--from and --langsmith bring their own"
        )
    if key is not None and not langsmith:
        raise typer.BadParameter("--key belongs to --langsmith")
    verdicts = None
    if run_id is not None:
        verdicts = _from_options(run_id, success, confidence, note)
    elif file is not None:
        verdicts = _from_file(file)
    with open_store(database) as store:
        if verdicts is None:
            verdicts = _from_langsmith(store, key, pass_at)
        _write(Labelling(store, current_registry(), as_json=as_json), verdicts, timeout)


def _write(labelling: Labelling, verdicts: Iterable[RunVerdict], timeout_s: float) -> None:
    try:
        labelling.run(verdicts)
    except KeyboardInterrupt:
        _report("interrupted")
        raise typer.Exit(_INTERRUPTED) from None
    finally:
        labelling.conclude(timeout_s)
    if labelling.skipped or labelling.unknown:
        raise typer.Exit(_SKIPPED)


class Labelling:
    """Write verdicts, print what each one changes, and count.

    Args:
        store: The store with the runs.
        registry: Where runs that pass are contributed; None for nowhere.
        as_json: Print changes as JSON, and everything else on stderr.

    Attributes:
        skipped: How many lines held no verdict.
        unknown: How many verdicts were on a run that the store does not have.
    """

    def __init__(self, store: TraceStore, registry: Registry | None, *, as_json: bool) -> None:
        self._store, self._registry, self._as_json = store, registry, as_json
        self._has_registry = has_registry(store)
        self._say = _report if as_json else say
        self._is_complete = False
        # By trace id: the decision before the first verdict, and the decision now.
        self._decisions: dict[str, tuple[str, str]] = {}
        self.skipped = self.unknown = 0

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
                _report(printable(f"{entry.place}: {entry.why}"))
                continue
            try:
                changes = self._write(entry.run_id, entry.verdict)
            except UnknownRunError as error:
                if not entry.place:
                    raise
                self.unknown += 1
                _report(printable(f"{entry.place}: {error}"))
                continue
            for change in changes:
                self._show(change)
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
        changes = Counter(self._decisions.values())
        skipped = f", skipped {self.skipped}" if self.skipped else ""
        self._say(
            f"Labelled {len(self._decisions)}, of which now {self._word('contributed')} "
            f"{changes['below_threshold', 'contributed']}, withdrawn "
            f"{changes['contributed', 'below_threshold']}; unknown {self.unknown}{skipped}."
        )
        self._send(timeout_s)

    def _write(self, run_id: str, verdict: Verdict) -> list[Rescored]:
        return self._store.report_outcome(
            run_id,
            success=verdict.success,
            confidence=verdict.confidence,
            note=verdict.note,
            source=verdict.source,
            at=verdict.at,
            registry=None if self._registry is None else self._registry.url,
        )

    def _show(self, change: Rescored) -> None:
        first, _ = self._decisions.get(change.trace_id, (change.decision_before, ""))
        self._decisions[change.trace_id] = (first, change.decision)
        if self._as_json:
            say_json(asdict(change))
            return
        before, decision = map(self._word, (change.decision_before, change.decision))
        if decision != before:
            decision = f"{before} -> {decision}"
        elif decision == "below_threshold" and change.gated_value >= change.threshold:
            reason = "is withheld" if change.kept else "is no longer kept"
            decision += f", because its trace {reason}"
        say(
            f"{short_id(change.trace_id)}  {printable(change.domain)}  "
            f"{'success' if change.success else 'failure'} {change.confidence:.2f}  "
            f"{change.gate} {change.gated_value_before:.3f} -> {change.gated_value:.3f}  {decision}"
        )

    def _word(self, decision: str) -> str:
        return decision_word(decision, has_registry=self._has_registry)

    def _send(self, timeout_s: float) -> None:
        due = self._due()
        if not due:
            return
        from kp_langchain.config import Settings

        if self._registry is None:
            self._say(f"{due} wait for a registry, and none is configured (KP_REGISTRY_URL).")
        elif Settings().disabled:
            self._say(f"{due} wait to be sent or withdrawn: KP_DISABLED is set.")
        else:
            send_now(self._store, self._registry, timeout_s)
            remaining = self._due()
            self._say(f"Sent or withdrawn at {self._registry.url}: {due - remaining} of {due}.")
            if remaining:
                for line in why_nothing_is_sent(self._store):
                    self._say(line)
                self._say(
                    "The others wait; the next process that sends takes them, or: "
                    "kp-langchain outbox send"
                )

    def _due(self) -> int:
        """Return how many of the labelled runs are still to be sent or withdrawn."""
        contributions = (self._store.outbox.get(trace_id) for trace_id in self._decisions)
        states = Counter(one.status for one in contributions if one is not None)
        return states["pending"] + states["to replace"] + states["to withdraw"]


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
    _report(f"LangSmith has {len(items)} feedbacks{under} on {len(trace_ids)} runs.")
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


def _report(line: str) -> None:
    say(line, file=sys.stderr)
