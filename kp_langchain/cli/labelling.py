"""Verdicts from files and other tools, and `Labelling`, which stores them and reports changes."""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from kp_langchain.cli.json_files import read_lines, read_object
from kp_langchain.cli.output import counted, file_errors, say, say_json, warn
from kp_langchain.cli.sending import (
    current_registry,
    retry_less,
    score_tools,
    send_due,
    send_scores,
)
from kp_langchain.errors import KPError, UnknownRunError, VerdictError
from kp_langchain.text import one_line, printable, short_id
from kp_langchain.verdict import RunVerdict, Verdict, counting

if TYPE_CHECKING:
    from kp_langchain.store import Rescored, TraceStore

_IDS = ("trace_id", "id", "run_id")
_AN_ID = "trace_id, id or run_id"
_SHOWN_CHARS = 40


class Labelling:
    """Store verdicts, print what each one changes, and count.

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

    def store_all(self, verdicts: Iterable[RunVerdict]) -> None:
        """Store verdicts, one after the other.

        Raises:
            KPError: The store or a file cannot be read or written.
            UnknownRunError: A verdict without a place, such as that of the command line, is on a
                run that the store does not have, or its id may mean several.
        """
        for one in verdicts:
            if one.verdict is None:
                self.skipped += 1
                warn(printable(f"{one.place}: {one.why}"))
                continue
            try:
                if one.place and self._is_known(one, one.verdict):
                    self._known += 1
                    continue
                changes = self.store(one.run_id, one.verdict)
            except UnknownRunError as error:
                if not one.place:
                    raise
                self.unknown += 1
                warn(printable(f"{one.place}: {error}"))
                continue
            for change in changes:
                if self._as_json:
                    say_json(change)
                else:
                    say(change_text(change))
        self._is_complete = True

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
        return changes

    def conclude(self, timeout_s: float) -> None:
        """Print a summary, then send and withdraw what the verdicts changed.

        Do nothing if an error came before the first verdict.

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
        reason = "is withheld" if change.kept else "is no longer kept"
        decision += f", because its trace {reason}"
    return (
        f"{short_id(change.trace_id)}  {printable(change.domain)}  "
        f"{'success' if change.success else 'failure'} {change.confidence:.2f}  "
        f"{change.gate} {change.gated_value_before:.3f} -> {change.gated_value:.3f}  {decision}"
    )


# ------------------------------------------------------------------ files


def verdicts_in(file: str) -> Iterator[RunVerdict]:
    """Yield the verdicts of a file, one a line.

    Args:
        file: A `.csv`, `.jsonl` or `.ndjson` file, or `-` for JSON lines on standard input.

    Raises:
        KPError: The file cannot be read, or its header names no id.
    """
    rows = _csv_rows if Path(file).suffix.lower() == ".csv" else _json_rows
    for place, fields in rows(file):
        try:
            if isinstance(fields, KPError):
                raise fields
            yield RunVerdict(_id_in(fields), _verdict_in(fields), place=place)
        except KPError as error:
            yield RunVerdict(why=str(error), place=place)


_Row = tuple[str, Mapping[str, object] | KPError]


def _json_rows(file: str) -> Iterator[_Row]:
    for line in read_lines(file):
        try:
            yield line.place, read_object(line)
        except KPError as error:
            yield line.place, error


def _csv_rows(file: str) -> Iterator[_Row]:
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
        reader = csv.DictReader(stream, names, delimiter=delimiter, strict=True)
        while True:
            place = f"{file}:{reader.reader.line_num + 2}"
            try:
                row: dict[str, object] = next(reader)
            except StopIteration:
                return
            except csv.Error as error:
                yield place, KPError(f"not valid CSV: {error}")
            else:
                yield place, row if None not in row else KPError("more fields than in line 1")


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
        if isinstance(confidence, str):
            confidence = float(confidence)
    except VerdictError as error:
        raise KPError(f"{error}; it is {_quote(fields['success'])}") from error
    except ValueError:
        raise KPError(f"confidence is {_quote(confidence)}; give a number from 0 to 1") from None
    return Verdict(success, confidence, note, source="label")  # type: ignore[arg-type]


def _quote(value: object) -> str:
    return one_line(repr(value), _SHOWN_CHARS)


# ------------------------------------------------------------------ other tools


def verdicts_of_tool(
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
        KPError: The tool cannot be read, its package is not installed, it has none of the runs, or
            it has feedback under several keys and `key` is None.
    """
    from kp_langchain.integrations.tools import feedback_tool, verdicts_from

    retry_less()
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
    number, of = counted(len(verdicts), "feedback"), counted(runs, "run")
    warn(f"{tool.title} has {number}{under} on {of}.")


def ask_in_tool(store: TraceStore, name: str, trace_ids: list[str]) -> None:
    """Mark runs as to be judged in a tool, and print how many.

    Args:
        store: The store with the runs.
        name: The name of the tool.
        trace_ids: The ids of the runs' traces.

    Raises:
        KPError: The tool cannot be reached, or its package is not installed.
    """
    from kp_langchain.integrations.tools import feedback_tool

    retry_less()
    tool = feedback_tool(name)
    marked = 0
    for trace_id in trace_ids:
        scored = store.scored(trace_id)
        if scored is not None and name in scored.external_traces:
            tool.ask_for_verdict(scored, scored.external_traces[name])
            marked += 1
    say(
        f"{tool.title}: {marked} of {counted(len(trace_ids), 'run')} marked by kp_verdict_wanted; "
        "of the others it has no trace that is known here."
    )
