"""`label next`: asks about one run after the other; one key gives the verdict."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import islice
from typing import TYPE_CHECKING, Any

import typer
from rich.rule import Rule
from rich.text import Text

from kp_langchain.calibration.next_to_label import TaskVerdict, next_to_label, shortfall
from kp_langchain.cli.output import counted, make_console, visible, warn
from kp_langchain.cli.run_view import call_lines, cut, print_whole
from kp_langchain.errors import StoreError, UnknownRunError
from kp_langchain.review.run_facts import claims_of
from kp_langchain.text import beside, one_line, short_id
from kp_langchain.verdict import Verdict

if TYPE_CHECKING:
    from kp_langchain.calibration.next_to_label import Offer
    from kp_langchain.cli.labelling import Labelling
    from kp_langchain.schema import ReasoningTrace
    from kp_langchain.store import StoredRun, TraceStore

NOTHING_TO_ASK = (
    "No run to ask about: all have a verdict, or their traces are no longer kept (see keep_days)."
)
_QUESTION = "Did it succeed?  y yes  n no  s skip  m more  b back  o note  q quit"
_ANSWERS = {
    "y": True, "yes": True, "n": False, "no": False,
    "s": "skip", "skip": "skip", "b": "back", "back": "back", "o": "note", "t": "note",
    "note": "note", "m": "more", "more": "more", "q": "quit", "quit": "quit",
}  # fmt: skip
_INTERRUPT = "\x03"
_LONGEST_LINE_BYTES = 1 << 16
_DOMAIN_CHARS = 60
_LABEL_WIDTH = 9
_PIPED_HEIGHT = 50
_ROOMY_HEIGHT = 30  # on a lower screen, what is said about the run has one line each
_LINES_BELOW = 4  # the question, the line that the cursor stands in, and two blank ones
_CLAIMS_SHOWN = 6


class NextRuns:
    """The runs of a store whose verdict helps most, in their order.

    Args:
        store: The store.
        domain: Only runs of this domain; None for all.
        limit: How many runs to offer at most.

    Attributes:
        offers: The runs that are offered. What turns out to be gone is removed.
        given: The verdicts that were given, by trace id.

    Raises:
        StoreError: The store cannot be read.
    """

    def __init__(self, store: TraceStore, domain: str | None, limit: int) -> None:
        self._store = store
        unlabelled = store.models.unlabelled(domain)
        self._verdicts = store.models.task_verdicts(domain)
        self.offers = list(islice(next_to_label(unlabelled, self._verdicts), limit))
        self._runs_without = Counter((run.domain, run.task) for run in unlabelled)
        self.given: dict[str, TaskVerdict] = {}

    def to_dicts(self) -> Iterator[dict[str, Any]]:
        """Yield the runs in their order as plain values, ready for JSON.

        Raises:
            StoreError: The store cannot be read.
        """
        for offer in self.offers:
            run = self._store.get(offer.run.trace_id)
            if run is not None:
                yield {
                    "trace_id": run.trace_id,
                    "domain": run.domain,
                    "objective": run.objective,
                    "confidence": run.confidence,
                    "confidence_source": run.confidence_source,
                    "model_confidence": offer.run.confidence,
                    "task_verdicts": offer.task_verdicts,
                    "choice": offer.choice,
                    "reason": offer.reason,
                }

    def load(self, offer: Offer) -> tuple[StoredRun, ReasoningTrace] | None:
        """Return a run with its trace; None if it is no longer to be asked about.

        That is one that is gone, or whose trace is, or on which somebody else gave a verdict.

        Raises:
            StoreError: The store cannot be read.
        """
        trace_id = offer.run.trace_id
        run = self._store.get(trace_id)
        if run is None:
            return None
        verdicts = self._store.verdicts(trace_id)
        if trace_id not in self.given and any(one.success is not None for one in verdicts):
            return None
        trace = None
        with suppress(StoreError):  # its body was changed by another program
            trace = run.trace
        return None if trace is None else (run, trace)

    def repeats(self, offer: Offer) -> str:
        """Return in words how other runs of the same task ended; "" if there are none."""
        domain, task = offer.run.domain, offer.run.task
        given = [one for key, one in self.given.items() if key != offer.run.trace_id]
        given = [one for one in given if (one.domain, one.task) == (domain, task)]
        before = [one for one in self._verdicts if (one.domain, one.task) == (domain, task)]
        waiting = self._runs_without[domain, task] - 1 - len(given)
        successes = sum(one.success for one in before + given)
        failures = len(before + given) - successes
        if not successes + failures + waiting:
            return ""
        more = counted(successes + failures + waiting, "more run")
        return (
            f"its task has {more}: {successes} succeeded, {failures} failed, "
            f"{waiting} without a verdict"
        )

    def progress(self, domain: str) -> str:
        """Return in words how many verdicts were given, and what a domain's model still needs."""
        verdicts = [one for one in (*self._verdicts, *self.given.values()) if one.domain == domain]
        successes = sum(one.success for one in verdicts)
        lacking = shortfall(verdicts)
        needs = [
            f"{kind}{counted(number, noun)}"
            for kind, number, noun in (
                ("", lacking.runs, "more verdict"),
                ("successes on ", lacking.successful_tasks, "more task"),
                ("failures on ", lacking.failed_tasks, "more task"),
            )
            if number
        ]
        model = f"a model needs {', '.join(needs)}" if needs else "enough for a model"
        return (
            f"{len(self.given)} of {len(self.offers)} verdicts given; "
            f"{one_line(domain, _DOMAIN_CHARS)}: "
            f"{successes} succeeded, {len(verdicts) - successes} failed; {model}"
        )


class Dialog:
    """Shows one run after the other, and writes the verdicts that a person gives.

    Args:
        runs: The runs.
        labelling: Writes the verdicts.
    """

    def __init__(self, runs: NextRuns, labelling: Labelling) -> None:
        self._runs, self._labelling, self._console = runs, labelling, make_console()
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
            loaded = self._runs.load(offer)
            if loaded is None:
                del offers[self._position]
                continue
            if self._console.is_terminal and not self._console.is_dumb_terminal:
                self._console.clear()
            else:
                self._console.print(Rule())
            for line in self._screen(offer, *loaded):
                self._console.print(line)
            if not self._take_answer(offer, *loaded):
                return
        self._console.print("There is no other run to ask about." if offers else NOTHING_TO_ASK)

    def _take_answer(self, offer: Offer, run: StoredRun, trace: ReasoningTrace) -> bool:
        """Ask until the answer can be used, and do what it says; return False to end."""
        while True:
            self._console.print(Text(_QUESTION, style="bold"), end=" ")
            key = _read_key()
            self._console.print()
            answer = None if key is None else _ANSWERS.get(key.lower())
            if key is None or answer == "quit":
                return False
            if answer == "more":
                print_whole(run, trace, self._console)
            elif answer == "note":
                self._console.print("Note: ", end="")
                self._note = (_read_line() or "").strip()
                self._console.print()
                return True
            elif isinstance(answer, bool):
                self._give(offer, success=answer)
                return True
            elif answer == "skip" or (answer == "back" and self._position):
                self._position += 1 if answer == "skip" else -1
                self._note = ""
                return True
            elif key.isprintable() and key:
                what = "is the key for the run before" if answer == "back" else "is none of these"
                warn(f"{one_line(key, 20)} {what}")

    def _give(self, offer: Offer, *, success: bool) -> None:
        run, verdict = offer.run, Verdict(success, note=self._note or None, source="label")
        self._note = ""
        try:
            changes = self._labelling.give(run.trace_id, verdict)
        except UnknownRunError:  # it was deleted meanwhile; loading it again finds that out
            return
        self._runs.given[run.trace_id] = TaskVerdict(run.domain, run.task, success)
        self._last_change = "; ".join(map(self._labelling.line, changes))
        self._position += 1

    # -------------------------------------------------------------- the screen

    def _screen(self, offer: Offer, run: StoredRun, trace: ReasoningTrace) -> list[Text]:
        """Return the lines of the screen, as many as fit the terminal and no wider than it."""
        console = self._console
        height = console.height if console.is_terminal else _PIPED_HEIGHT
        width = max(20, console.width - 1)  # a full line would make some terminals add an empty one
        inner, most = width - _LABEL_WIDTH, 1 if height < _ROOMY_HEIGHT else 4
        progress = [self._runs.progress(offer.run.domain)]
        if self._last_change:
            progress.append(f"last: {self._last_change}")
        head = [line for text in progress for line in self._wrap(text, width, most)]
        foot = [
            line
            for label, text in self._facts(offer, run, trace)
            for line in _labelled(label, self._wrap(text, inner, most))
        ]
        room = max(9, height - _LINES_BELOW - len(head) - len(foot))
        calls = call_lines(trace, inner)
        task, answer = (
            self._wrap(text.strip(), inner, room)
            for text in (run.objective, trace.outcome.result_summary or "(empty)")
        )
        wanted = {"task": task, "calls": calls, "answer": answer}
        # Each has a fair share of the room, and what shorter ones leave of theirs.
        limits = {}
        for number, label in enumerate(sorted(wanted, key=lambda one: len(wanted[one]))):
            limits[label] = min(len(wanted[label]), room // (3 - number))
            room -= limits[label]
        lines = [*head, Text()]
        for label, part in wanted.items():
            lines += _labelled(label, _fold(part, limits[label]))
        lines += [Text(), *foot]
        for line in lines:
            line.truncate(width, overflow="crop")
        return lines

    def _facts(
        self, offer: Offer, run: StoredRun, trace: ReasoningTrace
    ) -> Iterator[tuple[str, str]]:
        yield "claims", claims_of(trace).text(_CLAIMS_SHOWN) or "nothing to look up"
        outcome = "success" if run.success else "failure"
        source = f" ({run.confidence_source})" if run.confidence_source else ""
        value = beside(run.gated_value, run.threshold)
        yield (
            "so far",
            f"{run.decision}: {run.gate} {value}, threshold {run.threshold:.3f}; "
            f"{outcome}, confidence {run.confidence:.2f}{source}",
        )
        if repeats := self._runs.repeats(offer):
            yield "repeats", repeats
        yield (
            "run",
            f"{short_id(run.trace_id)}, {one_line(run.domain, _DOMAIN_CHARS)}, "
            f"{run.created_at:%Y-%m-%d %H:%M} UTC, {counted(run.n_steps, 'step')}; {offer.reason}",
        )
        given = self._runs.given.get(run.trace_id)
        if given is not None:
            yield "given", f"{'success' if given.success else 'failure'}; y or n replaces it"
        if self._note:
            yield "note", self._note

    def _wrap(self, text: str, width: int, limit: int) -> list[Text]:
        """Return a text as at most so many lines, of a longer one its beginning and its end."""
        if limit == 1:
            return [Text(cut(visible(text), width))]
        most = (limit + 1) * (
            width + 1
        )  # what so many lines hold, so that no megabytes are wrapped
        parts = [text] if len(text) <= 2 * most else [text[:most], text[-most:]]
        lines = [
            line
            for part in parts
            for line in Text(visible(part)).wrap(self._console, width, overflow="fold")
        ]
        return _fold(lines, limit)


def _labelled(label: str, lines: Sequence[Text]) -> Iterator[Text]:
    for number, line in enumerate(lines):
        beginning = Text((label if number == 0 else "").ljust(_LABEL_WIDTH), style="cyan")
        yield beginning + line


def _fold(lines: list[Text], limit: int) -> list[Text]:
    """Return at most `limit` lines: the first ones, a mark, and half as many of the last."""
    if len(lines) <= limit:
        return lines
    last = max((limit - 1) // 3, int(limit > 2))
    mark = Text("[... left out; m shows all ...]", style="dim")
    return [*lines[: limit - 1 - last], mark, *lines[len(lines) - last :]]


# ------------------------------------------------------------------ keys


def _read_key() -> str | None:
    """Return the next key of a terminal, or the next line of anything else; None at the end.

    On Unix, keys that were pressed before this is called do not count, so that a key that is hit
    twice answers one question only.

    Raises:
        KeyboardInterrupt: The key is Ctrl-C.
    """
    if sys.stdin is None or not sys.stdin.isatty():
        line = _read_line()
        return None if line is None else line.strip()
    keys = ""
    with suppress(EOFError, OSError):  # the key is Ctrl-D, or the terminal is gone
        keys = typer.getchar()
    if _INTERRUPT in keys:
        raise KeyboardInterrupt
    return keys[:1] or None  # an arrow or the like is several characters, the first an escape


def _read_line() -> str | None:
    """Return the next line without its end, cut to 64 KB; None at the end of the input."""
    if sys.stdin is None:
        return None
    # As bytes, because one that is not UTF-8 must not end the program.
    stream = sys.stdin.buffer
    line = part = stream.readline(_LONGEST_LINE_BYTES)
    while part and not part.endswith(b"\n"):
        part = stream.readline(_LONGEST_LINE_BYTES)
    return line.decode(errors="replace").rstrip("\r\n") if line else None
