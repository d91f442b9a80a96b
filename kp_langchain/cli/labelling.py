"""`Labelling`: writes verdicts, and reports what they change. `label` and `report` use it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from kp_langchain.cli.output import say, say_json, warn
from kp_langchain.cli.sending import current_registry, score_tools, send_due, send_scores
from kp_langchain.errors import UnknownRunError
from kp_langchain.text import printable, short_id
from kp_langchain.verdict import counting

if TYPE_CHECKING:
    from kp_langchain.store import Rescored, TraceStore
    from kp_langchain.verdict import RunVerdict, Verdict


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
