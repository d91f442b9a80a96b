"""`label --next`: asks about one run after the other; one key gives the verdict."""

from __future__ import annotations

from collections import Counter
from itertools import islice
from typing import TYPE_CHECKING

from rich.rule import Rule
from rich.text import Text

from kp_langchain.calibration.next_to_label import (
    Offer,
    TaskVerdict,
    next_to_label,
    shortfall,
)
from kp_langchain.cli.labelling import report
from kp_langchain.cli.next_run_screen import NextRun, screen_lines
from kp_langchain.cli.output import say_json
from kp_langchain.cli.run_details import print_whole
from kp_langchain.errors import StoreError, UnknownRunError
from kp_langchain.printable import one_line
from kp_langchain.verdict import Verdict

if TYPE_CHECKING:
    from rich.console import Console

    from kp_langchain.cli.key_reader import KeyReader
    from kp_langchain.cli.labelling import Labelling
    from kp_langchain.store import TraceStore

_QUESTION = "Did it succeed?  y yes  n no  s skip  m more  b back  o note  q quit"
_ANSWERS = {
    "y": True, "yes": True, "n": False, "no": False,
    "s": "skip", "skip": "skip", "b": "back", "back": "back", "o": "note", "t": "note",
    "note": "note", "m": "more", "more": "more", "q": "quit", "quit": "quit",
}  # fmt: skip
NOTHING_TO_ASK = (
    "No run to ask about: all have a verdict, or their traces are no longer kept (see keep_days)."
)
_DOMAIN_CHARS = 60


class NextRuns:
    """The runs of a store whose verdict helps most, in their order.

    Args:
        store: The store.
        domain: Only runs of this domain; None for all.
        limit: How many runs to offer at most.

    Attributes:
        offers: The runs that are offered. What turns out to be gone is removed.

    Raises:
        StoreError: The store cannot be read.
    """

    def __init__(self, store: TraceStore, *, domain: str | None, limit: int) -> None:
        self._store = store
        unlabelled = store.models.unlabelled(domain)
        self._verdicts = store.models.task_verdicts(domain)
        self.offers = list(islice(next_to_label(unlabelled, self._verdicts), limit))
        self._runs_without = Counter((run.domain, run.task) for run in unlabelled)
        self._given: dict[str, TaskVerdict] = {}  # by trace id

    def print_json(self) -> None:
        """Print the runs in their order, one JSON object a line.

        Raises:
            StoreError: The store cannot be read.
        """
        for offer in self.offers:
            run = self._store.get(offer.run.trace_id)
            if run is not None:
                say_json(
                    {
                        "id": run.trace_id,
                        "domain": run.domain,
                        "objective": run.objective,
                        "confidence": run.confidence,
                        "confidence_source": run.confidence_source,
                        "model_confidence": offer.run.confidence,
                        "task_verdicts": offer.task_verdicts,
                        "choice": offer.choice,
                        "reason": offer.reason,
                    }
                )

    def load(self, offer: Offer, *, note: str) -> NextRun | None:
        """Return what the screen shows of a run; None if it is no longer to be asked about.

        That is one that is gone, or whose trace is, or on which somebody else gave a verdict.

        Args:
            offer: The run.
            note: The note for the verdict to come.

        Raises:
            StoreError: The store cannot be read.
        """
        trace_id, task = offer.run.trace_id, (offer.run.domain, offer.run.task)
        run = self._store.get(trace_id)
        given = self._given.get(trace_id)
        if run is None or (given is None and self._has_verdict(trace_id)):
            return None
        try:
            trace = run.trace
        except StoreError:  # its body was changed by another program
            return None
        if trace is None:
            return None
        others = [verdict for key, verdict in self._given.items() if key != trace_id]
        given_on_task = [one for one in others if (one.domain, one.task) == task]
        before = [one for one in self._verdicts if (one.domain, one.task) == task]
        successes = sum(one.success for one in before + given_on_task)
        return NextRun(
            offer=offer,
            run=run,
            trace=trace,
            waiting=self._runs_without[task] - 1 - len(given_on_task),
            successes=successes,
            failures=len(before + given_on_task) - successes,
            given=None if given is None else given.success,
            note=note,
        )

    def add(self, offer: Offer, *, success: bool) -> None:
        """Count a verdict that was given on a run, in place of an earlier one."""
        run = offer.run
        self._given[run.trace_id] = TaskVerdict(run.domain, run.task, success)

    def progress(self, domain: str) -> str:
        """Return in words how many verdicts were given, and what a domain's model still needs."""
        verdicts = [one for one in (*self._verdicts, *self._given.values()) if one.domain == domain]
        successes = sum(one.success for one in verdicts)
        lacking = shortfall(verdicts)
        needs = [
            f"{kind} {number} more {noun}{'' if number == 1 else 's'}".strip()
            for kind, number, noun in (
                ("", lacking.runs, "verdict"),
                ("successes on", lacking.successful_tasks, "task"),
                ("failures on", lacking.failed_tasks, "task"),
            )
            if number
        ]
        model = f"a model needs {', '.join(needs)}" if needs else "enough for a model"
        return (
            f"{len(self._given)} of {len(self.offers)} verdicts given; "
            f"{one_line(domain, _DOMAIN_CHARS)}: "
            f"{successes} succeeded, {len(verdicts) - successes} failed; {model}"
        )

    def _has_verdict(self, trace_id: str) -> bool:
        return any(verdict.success is not None for verdict in self._store.verdicts(trace_id))


class Dialog:
    """Shows one run after the other, and writes the verdicts that a person gives.

    Args:
        runs: The runs.
        labelling: Writes the verdicts.
        console: Where the runs are shown.
        keys: Where the answers come from.
    """

    def __init__(
        self, runs: NextRuns, labelling: Labelling, console: Console, keys: KeyReader
    ) -> None:
        self._runs, self._labelling, self._console, self._keys = runs, labelling, console, keys
        self._position = 0
        self._note = self._last_change = ""

    def run(self) -> None:
        """Ask until all runs were shown, or the person ends it.

        Raises:
            KPError: The store cannot be read or written.
            KeyboardInterrupt: The person presses Ctrl-C. What was given stays written.
        """
        offers = self._runs.offers
        while self._position < len(offers):
            offer = offers[self._position]
            next_run = self._runs.load(offer, note=self._note)
            if next_run is None:
                del offers[self._position]
                continue
            self._show(next_run)
            if not self._take_answer(next_run):
                return
        self._console.print("There is no other run to ask about." if offers else NOTHING_TO_ASK)

    def _show(self, next_run: NextRun) -> None:
        progress = [self._runs.progress(next_run.offer.run.domain)]
        if self._last_change:
            progress.append(f"last: {self._last_change}")
        if self._console.is_terminal and not self._console.is_dumb_terminal:
            self._console.clear()
        else:
            self._console.print(Rule())
        for line in screen_lines(next_run, progress, self._console):
            self._console.print(line)

    def _take_answer(self, next_run: NextRun) -> bool:
        """Ask until the answer can be used, and do what it says; return False to end."""
        offer = next_run.offer
        while True:
            self._console.print(Text(_QUESTION, style="bold"), end=" ")
            key = self._keys.key()
            self._console.print()
            answer = None if key is None else _ANSWERS.get(key.lower())
            if key is None or answer == "quit":
                return False
            if isinstance(answer, bool):
                self._give(offer, success=answer)
                return True
            if answer == "more":
                print_whole(next_run.run, next_run.trace, self._console)
                continue
            if answer == "note":
                self._console.print("Note: ", end="")
                self._note = (self._keys.line() or "").strip()
                self._console.print()
                return True
            if answer == "skip" or (answer == "back" and self._position):
                self._position += 1 if answer == "skip" else -1
                self._note = ""
                return True
            if key.isprintable() and key:
                what = "is the key for the run before" if answer == "back" else "is none of these"
                report(f"{one_line(key, 20)} {what}")

    def _give(self, offer: Offer, *, success: bool) -> None:
        verdict = Verdict(success, note=self._note or None, source="label")
        self._note = ""
        try:
            changes = self._labelling.give(offer.run.trace_id, verdict)
        except UnknownRunError:  # it was deleted meanwhile; loading it again finds that out
            return
        self._runs.add(offer, success=success)
        self._last_change = "; ".join(map(self._labelling.line, changes))
        self._position += 1
