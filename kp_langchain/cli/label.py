"""The command `label`: verdicts on runs that were scored, and what they change."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Optional

import typer

from kp_langchain.cli.contributions import configured, send_now, silence
from kp_langchain.cli.jsonl import STDIN
from kp_langchain.cli.output import say, say_json
from kp_langchain.cli.store_option import Database, has_registry, open_store
from kp_langchain.cli.verdict_files import read_labels
from kp_langchain.errors import KPError, UnknownRunError
from kp_langchain.gate import decision_word
from kp_langchain.printable import printable, short_id
from kp_langchain.verdict import RunVerdict, Verdict

if TYPE_CHECKING:
    from kp_langchain.registry.client import Registry
    from kp_langchain.store import Rescored, TraceStore

_SUFFIXES = (".csv", ".jsonl", ".ndjson")
_SKIPPED, _INTERRUPTED = 1, 130
_PAGE = 1000


def label(
    run: Annotated[
        Optional[str],  # noqa: UP045 - typer reads it at run time
        typer.Argument(metavar="[ID]", help="Trace id, run id, or its beginning."),
    ] = None,
    success: Annotated[
        Optional[bool],  # noqa: UP045
        typer.Option("--success/--failure", help="Whether the run reached its goal."),
    ] = None,
    confidence: Annotated[
        Optional[float],  # noqa: UP045
        typer.Option(min=0, max=1, help="How sure one can be of its result."),
    ] = None,
    note: Annotated[Optional[str], typer.Option(help="Why; it is redacted.")] = None,  # noqa: UP045
    file: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option("--from", metavar="FILE", help="Verdicts in a .jsonl or .csv; - for stdin."),
    ] = None,
    langsmith: Annotated[
        bool, typer.Option("--langsmith", help="Feedback given in LangSmith for these runs.")
    ] = False,
    key: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option(help="The key under which LangSmith has the feedback."),
    ] = None,
    pass_at: Annotated[
        float, typer.Option(min=0, max=1, help="A score in LangSmith from which a run succeeded.")
    ] = 0.5,
    timeout: Annotated[
        float, typer.Option(min=0, metavar="SECONDS", help="Take at most so long to send.")
    ] = 20.0,
    database: Database = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object a line.")] = False,
) -> None:
    """Say how runs really ended. They are scored again, and kept, contributed or withdrawn.

    A file has one verdict a line with id (or trace_id, or run_id), success, and if you like
    confidence and note; a CSV names its columns in the first line. A line that cannot be used is
    reported on stderr as FILE:LINE: reason, and skipped.

    Exit status: 0, every verdict was used; 1, some were skipped, or it had to stop and said why;
    2, wrong usage; 130, interrupted.
    """
    given = (success, confidence, note) != (None, None, None)
    _check(run, file, langsmith=langsmith, given=given, key=key)
    if run is not None and success is None and confidence is None:
        raise typer.BadParameter("say --success or --failure, or a --confidence")
    with open_store(database) as store:
        verdicts: Iterable[RunVerdict]
        if run is not None:
            verdicts = [RunVerdict(run, Verdict(success, confidence, note, source="label"))]
        elif file is not None:
            verdicts = read_labels(file)
        else:
            verdicts = _from_langsmith(store, key, pass_at)
        labelling = Labelling(store, configured(), as_json=as_json)
        try:
            labelling.run(verdicts)
        except KeyboardInterrupt:
            _tell("interrupted")
            raise typer.Exit(_INTERRUPTED) from None
        finally:
            labelling.conclude(timeout)
    if labelling.skipped or labelling.unknown:
        raise typer.Exit(_SKIPPED)


class Labelling:
    """Writes verdicts, prints what each changes, and counts.

    Args:
        store: Where the runs are.
        registry: Where what passes goes; None for nowhere.
        as_json: Print changes as JSON, and everything else on stderr.
    """

    def __init__(self, store: TraceStore, registry: Registry | None, *, as_json: bool) -> None:
        self._store, self._registry, self._as_json = store, registry, as_json
        self._has_registry = has_registry(store)
        self._say = _tell if as_json else _print
        self._done = False
        # By trace id, the decision as it was before the first verdict and as it is now.
        self._decisions: dict[str, tuple[str, str]] = {}
        self.skipped = self.unknown = 0

    def run(self, verdicts: Iterable[RunVerdict]) -> None:
        """Write the verdicts, one after the other.

        Raises:
            KPError: The store cannot be written; or the only verdict, which has no place, is of no
                run, or may be of several.
        """
        for one in verdicts:
            if one.verdict is None:
                self.skipped += 1
                _tell(printable(f"{one.place}: {one.why}"))
                continue
            try:
                changes = self._write(one.run_id, one.verdict)
            except UnknownRunError as error:
                if not one.place:
                    raise
                self.unknown += 1
                _tell(printable(f"{one.place}: {error}"))
                continue
            for change in changes:
                self._show(change)
        self._done = True

    def conclude(self, timeout_s: float) -> None:
        """Print a summary, and send what is to be sent or withdrawn now."""
        if not (self._done or self._decisions or self.skipped or self.unknown):
            return
        turns = Counter(self._decisions.values())
        skipped = f", skipped {self.skipped}" if self.skipped else ""
        self._say(
            f"Labelled {len(self._decisions)}, of which now {self._word('contributed')} "
            f"{turns['below_threshold', 'contributed']}, withdrawn "
            f"{turns['contributed', 'below_threshold']}; unknown {self.unknown}{skipped}."
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
        elif decision == "below_threshold" and change.score >= change.threshold:
            why = "is withheld" if change.kept else "is no longer kept"
            decision += f", because its trace {why}"
        _print(
            f"{short_id(change.trace_id)}  {printable(change.domain)}  "
            f"{'success' if change.success else 'failure'} {change.confidence:.2f}  "
            f"score {change.score_before:.3f} -> {change.score:.3f}  {decision}"
        )

    def _word(self, decision: str) -> str:
        return decision_word(decision, has_registry=self._has_registry)

    def _send(self, timeout_s: float) -> None:
        waiting = self._waiting()
        if not waiting:
            return
        from kp_langchain.config import Settings

        if self._registry is None:
            self._say(f"{waiting} wait for a registry, and none is configured (KP_REGISTRY_URL).")
        elif Settings().disabled:
            self._say(f"{waiting} wait to be sent or withdrawn: KP_DISABLED is set.")
        else:
            send_now(self._store, self._registry, timeout_s)
            left = self._waiting()
            self._say(f"Sent or withdrawn at {self._registry.url}: {waiting - left} of {waiting}.")
            if left:
                lines = silence(self._store)
                later = "The others wait; the next process that sends takes them, or: "
                self._say("\n".join([*lines, f"{later}kp-langchain outbox send"]))

    def _waiting(self) -> int:
        """How many of the labelled runs are to be sent, or withdrawn."""
        found = (self._store.outbox.get(trace_id) for trace_id in self._decisions)
        states = Counter(one.standing_in_words for one in found if one is not None)
        return states["pending"] + states["to replace"] + states["to withdraw"]


def _check(
    run: str | None, file: str | None, *, langsmith: bool, given: bool, key: str | None
) -> None:
    if [run is not None, file is not None, langsmith].count(True) != 1:
        raise typer.BadParameter("give one of ID, --from FILE and --langsmith")
    if given and run is None:
        raise typer.BadParameter(
            "--success, --failure, --confidence and --note belong to one ID; "
            "--from and --langsmith bring their own"
        )
    if key is not None and not langsmith:
        raise typer.BadParameter("--key belongs to --langsmith")
    if file is None or file == STDIN:
        return
    if Path(file).suffix.lower() not in _SUFFIXES:
        raise typer.BadParameter(f"{file} is none of {', '.join(_SUFFIXES)}")
    if not Path(file).is_file():
        raise typer.BadParameter(f"{file} is no file")


def _from_langsmith(store: TraceStore, key: str | None, pass_at: float) -> Iterator[RunVerdict]:
    from kp_langchain.integrations.langsmith import feedback

    trace_ids = dict(_run_ids(store))
    found = list(feedback(trace_ids, keys=() if key is None else (key,), pass_at=pass_at))
    by_key = Counter(one.key for one in found)
    if key is None and len(by_key) > 1:
        told = ", ".join(f"{name} ({number})" for name, number in by_key.most_common(10))
        raise KPError(
            f"LangSmith has feedback under several keys: {told}; say which of them tells whether a "
            "run succeeded: --key NAME"
        )
    _tell(f"LangSmith has {len(found)} feedbacks{_under(by_key)} on {len(trace_ids)} runs.")
    for one in sorted(found, key=attrgetter("at")):
        if one.verdict is None or all(
            (known.at, known.source) != (one.verdict.at, one.verdict.source)
            for known in store.verdicts(trace_ids[one.run_id])
        ):
            yield one


def _under(keys: Iterable[str]) -> str:
    return "".join(f" under {key!r}" for key in keys)


def _run_ids(store: TraceStore) -> Iterator[tuple[str, str]]:
    """The run id of every run, with a trace id of it."""
    for offset in range(0, store.count(), _PAGE):
        for run in store.runs(limit=_PAGE, offset=offset, newest_first=False):
            yield run.run_id, run.trace_id


def _print(line: str) -> None:
    say(line)


def _tell(line: str) -> None:
    say(line, file=sys.stderr)
