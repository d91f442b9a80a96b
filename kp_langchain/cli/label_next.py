"""`label next`: asks about one run after the other; one key gives the verdict."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from itertools import islice
from typing import TYPE_CHECKING, Any

import typer
from rich.rule import Rule
from rich.text import Text

from kp_langchain.calibration.next_to_label import TaskVerdict, next_to_label, shortfall
from kp_langchain.cli.output import fact_table, make_console, warn
from kp_langchain.cli.run_view import print_steps, print_task, print_whole
from kp_langchain.errors import StoreError, UnknownRunError
from kp_langchain.review.run_facts import claims_of
from kp_langchain.text import count_text, one_line, printable, short_id
from kp_langchain.verdict import Verdict

if TYPE_CHECKING:
    from kp_langchain.calibration.next_to_label import Offer
    from kp_langchain.schema import ReasoningTrace
    from kp_langchain.store import StoredRun, TraceStore

_NOTHING_TO_ASK = (
    "No run to ask about: all have a verdict, or their traces are no longer kept (see keep_days)."
)
_LIMIT_REACHED = (
    "The limit is reached, and there are more runs: run this again, or with a higher --limit."
)
_QUESTION = "Did it succeed?  y yes  n no  s skip  m more  b back  o note  q quit"
_INTERRUPT = "\x03"
_DOMAIN_CHARS = 60
_CLAIMS_SHOWN = 6


def next_offers(store: TraceStore, domain: str | None, limit: int) -> list[Offer]:
    """Return the runs whose verdict helps most, in their order.

    Args:
        store: The store.
        domain: Only runs of this domain; None for all.
        limit: How many runs to offer at most.
    """
    offers = next_to_label(store.models.unlabelled(domain), store.models.task_verdicts(domain))
    return list(islice(offers, limit))


def offers_json(store: TraceStore, offers: Sequence[Offer]) -> Iterator[dict[str, Any]]:
    """Yield the runs of offers as plain values, ready for JSON."""
    for offer in offers:
        run = store.get(offer.run.trace_id)
        if run is not None:
            yield {
                "trace_id": run.trace_id,
                "domain": run.domain,
                "objective": run.objective,
                "confidence": run.confidence,
                "confidence_source": run.confidence_source,
                "task_verdicts": offer.task_verdicts,
                "reason": offer.reason,
            }


class Dialog:
    """Shows one run after the other, and stores the verdicts that a person gives.

    Args:
        store: The store.
        domain: The only domain of the runs; None for all.
        offers: The runs.
        give: Stores a verdict on the run of a trace id, and returns in words what that changed.
        has_more: Whether there are runs beyond those of the offers.
    """

    def __init__(
        self,
        store: TraceStore,
        domain: str | None,
        offers: Sequence[Offer],
        give: Callable[[str, Verdict], str],
        *,
        has_more: bool = False,
    ) -> None:
        self._store, self._store_verdict, self._console = store, give, make_console()
        self._offers = list(offers)  # without those that turn out to be gone
        self._has_more = has_more
        self._verdicts_before = store.models.task_verdicts(domain)
        self._own_verdicts: dict[str, TaskVerdict] = {}  # by trace id
        self._position = 0
        self._note = self._last_change = ""

    def run(self) -> None:
        """Ask until all runs were shown, or the person ends it.

        Raises:
            KPError: The store cannot be read or written.
            KeyboardInterrupt: The person presses Ctrl-C. What was given stays stored.
        """
        while self._position < len(self._offers):
            offer = self._offers[self._position]
            run_and_trace = self._load(offer)
            if run_and_trace is None:
                del self._offers[self._position]
                continue
            self._show(offer, *run_and_trace)
            if not self._take_answer(offer, run_and_trace[1]):
                return
        end = "There is no other run to ask about." if self._offers else _NOTHING_TO_ASK
        self._console.print(_LIMIT_REACHED if self._has_more else end)

    def _load(self, offer: Offer) -> tuple[StoredRun, ReasoningTrace] | None:
        """Return a run with its trace; None if it is no longer to be asked about.

        That is one that is gone, or whose trace is, or on which somebody else gave a verdict.
        """
        trace_id = offer.run.trace_id
        run = self._store.get(trace_id)
        if run is None:
            return None
        verdicts = self._store.verdicts(trace_id)
        if trace_id not in self._own_verdicts and any(one.success is not None for one in verdicts):
            return None
        trace = None
        with suppress(StoreError):  # its body was changed by another program
            trace = run.trace
        return None if trace is None else (run, trace)

    def _progress(self, domain: str) -> str:
        """Return in words how many verdicts were given, and what a domain's model still needs."""
        verdicts = [
            one
            for one in (*self._verdicts_before, *self._own_verdicts.values())
            if one.domain == domain
        ]
        successes = sum(one.success for one in verdicts)
        lacking = shortfall(verdicts)
        needs = "enough for a confidence model: kp-langchain calibrate"
        if lacking.runs:
            verb = "gives" if lacking.runs == 1 else "give"
            needs = f"{count_text(lacking.runs, 'more verdict')} {verb} a provisional model"
        elif lacking.successful_tasks or lacking.failed_tasks:
            needs = "a confidence model needs successes and failures on more tasks"
        return (
            f"{len(self._own_verdicts)} of {len(self._offers)} verdicts given; "
            f"{one_line(domain, _DOMAIN_CHARS)}: "
            f"{successes} succeeded, {len(verdicts) - successes} failed; {needs}"
        )

    def _show(self, offer: Offer, run: StoredRun, trace: ReasoningTrace) -> None:
        console = self._console
        console.clear()  # of a terminal that can do that
        console.print(Rule())
        console.print(Text(self._progress(run.domain)))
        if self._last_change:
            console.print(Text(f"last: {self._last_change}"))
        console.print()
        print_task(run, console)
        print_steps(trace, console, all_by="m")
        console.print()
        console.print(fact_table(self._facts(offer, run, trace)))

    def _facts(
        self, offer: Offer, run: StoredRun, trace: ReasoningTrace
    ) -> Iterator[tuple[str, str]]:
        yield "claims", claims_of(trace).text(_CLAIMS_SHOWN) or "nothing to look up"
        outcome = "success" if run.success else "failure"
        source = f" ({run.confidence_source})" if run.confidence_source else ""
        yield (
            "so far",
            f"{run.decision}: {printable(run.reason)}; "
            f"{outcome}, confidence {run.confidence:.2f}{source}",
        )
        yield "asked as", f"{short_id(run.trace_id)}: {offer.reason}"
        earlier = self._own_verdicts.get(run.trace_id)
        if earlier is not None:
            yield "given", f"{'success' if earlier.success else 'failure'}; y or n replaces it"
        if self._note:
            yield "note", self._note

    def _take_answer(self, offer: Offer, trace: ReasoningTrace) -> bool:
        """Ask until the answer can be used, and do what it says; return False to end."""
        while True:
            self._console.print(Text(_QUESTION, style="bold"), end=" ")
            key = read_key()
            self._console.print()
            match key:
                case None | "q":
                    if key is None and not self._own_verdicts:
                        warn("no answer: the input has ended")
                    return False
                case "m":
                    print_whole(trace, self._console)
                    continue
                case "o":
                    self._console.print("Note: ", end="")
                    self._note = sys.stdin.readline().strip()
                    self._console.print()
                case "y" | "n":
                    self._give(offer, success=key == "y")
                case "s":
                    self._move(1)
                case "b" if self._position:
                    self._move(-1)
                case _:
                    if key.isprintable() and key:
                        warn(f"{one_line(key, 20)} leads nowhere here")
                    continue
            return True

    def _move(self, by: int) -> None:
        self._position += by
        self._note = ""

    def _give(self, offer: Offer, *, success: bool) -> None:
        run, verdict = offer.run, Verdict(success, note=self._note or None, source="label")
        try:
            self._last_change = self._store_verdict(run.trace_id, verdict)
        except UnknownRunError:  # it was deleted meanwhile; loading it again finds that out
            return
        self._own_verdicts[run.trace_id] = TaskVerdict(
            run.domain, run.task, success, run.digest, run.signs
        )
        self._move(1)
        if self._position == len(self._offers):
            self._console.print(Text(self._last_change))


def read_key() -> str | None:
    """Return the next key of a terminal, or the next line; None at the end.

    Raises:
        KeyboardInterrupt: The key is Ctrl-C.
    """
    if not sys.stdin.isatty():
        line = sys.stdin.readline()
        return line.strip().lower() if line else None
    keys = ""
    with suppress(EOFError, OSError):  # the key is Ctrl-D, or the terminal is gone
        keys = typer.getchar()
    if _INTERRUPT in keys:
        raise KeyboardInterrupt
    return keys[:1].lower() or None  # an arrow or the like is several characters
