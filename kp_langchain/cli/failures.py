"""`review failures` and `label failures`: failures that are alike, and one verdict for a group."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from rich.rule import Rule
from rich.text import Text

from kp_langchain.calibration.failure_groups import failures_by_domain
from kp_langchain.calibration.tool_calls import calls_of
from kp_langchain.cli.label_next import read_key
from kp_langchain.cli.output import fact_table, indent, make_console, visible, warn
from kp_langchain.cli.run_view import call_text, print_steps, print_task, verdict_line
from kp_langchain.errors import StoreError, UnknownRunError
from kp_langchain.review.run_facts import flag_texts, outcome_text
from kp_langchain.text import count_text, one_line, short_id
from kp_langchain.verdict import Verdict

if TYPE_CHECKING:
    from rich.console import Console

    from kp_langchain.calibration.failure_groups import DomainFailures, FailureGroup
    from kp_langchain.schema import ReasoningTrace
    from kp_langchain.store import StoredRun, TraceStore

_ERROR_CHARS, _TEXT_CHARS, _OBJECTIVE_CHARS, _TITLE_CHARS = 1000, 300, 120, 200
_RUNS_SHOWN = 10
_NO_GROUPS = "No group of failures has a run to judge. See the groups: kp-langchain review failures"
_KEYS = "y all succeeded  n all failed  s skip  m more: the runs  q quit"


# ------------------------------------------------------------------ the groups


def print_failures(store: TraceStore, every: Sequence[DomainFailures], console: Console) -> None:
    """Print the failures of domains, and their groups, numbered.

    Args:
        store: The store of the runs.
        every: The failures of each domain.
        console: Where to print them.
    """
    number = 0
    for at, domain in enumerate(every):
        console.print(Text(("\n" if at else "") + visible(domain.text), "bold"))
        for group in domain.groups:
            number += 1
            console.print()
            _print_group(store, group, f"{number}. ", console)
        if domain.nearest is not None:
            nearest = domain.nearest
            text = f"The nearest may be chance: {_title(nearest)}; {nearest.rate_text}."
            console.print(Text(visible(text)))
    if any(group.unjudged for domain in every for group in domain.groups):
        console.print("\nOne verdict for all runs of a group: kp-langchain label failures")


def _print_group(store: TraceStore, group: FailureGroup, mark: str, console: Console) -> None:
    console.print(Text(mark).append(_title(group), "bold"))
    console.print(indent(Text(visible(group.rate_text))))
    console.print(indent(fact_table(_facts(store, group))))


def _title(group: FailureGroup) -> str:
    return visible(one_line(group.title, _TITLE_CHARS))


def _facts(store: TraceStore, group: FailureGroup) -> Iterator[tuple[str, str]]:
    run = _run(store, group.example)
    if run is not None:
        objective = one_line(" ".join(run.objective.split()), _OBJECTIVE_CHARS)
        yield "example", f"{short_id(run.trace_id)}  {objective}"
        yield "why (example)", one_line(_reason(store, run), _TEXT_CHARS)
    if group.otherwise is not None:
        yield "otherwise", one_line(group.otherwise, _TEXT_CHARS)
    if group.unjudged:
        number = len(group.unjudged)
        yield "no verdict", f"{count_text(number, 'run')} {'has' if number == 1 else 'have'} none"


def _reason(store: TraceStore, run: StoredRun) -> str:
    """Return why a run failed: the note of its newest verdict, or what speaks against it."""
    notes = [verdict.note for verdict in store.verdicts(run.trace_id) if verdict.note]
    return notes[-1] if notes else "; ".join(flag_texts(run)) or outcome_text(run)


def _telling_facts(
    store: TraceStore, run: StoredRun, trace: ReasoningTrace
) -> Iterator[tuple[str, str]]:
    """Yield what tells whether a run failed: its last error, flags, outcome and verdicts."""
    failed = [one for one in calls_of(trace.steps) if one.has_failed]
    if failed:
        yield "last error", one_line(call_text(failed[-1]), _ERROR_CHARS)
    for text in flag_texts(run):
        yield "flag", text
    yield "outcome", outcome_text(run)
    for verdict in store.verdicts(run.trace_id):
        yield "verdict", verdict_line(verdict)


def _run(store: TraceStore, trace_id: str) -> StoredRun | None:
    with suppress(UnknownRunError):  # it was deleted, and others' ids begin with its id
        return store.get(trace_id)
    return None


# ------------------------------------------------------------------ a verdict for a group


class GroupDialog:
    """Shows one group after the other, and stores a verdict on all its runs without one.

    Args:
        store: The store.
        domain: Only groups of this domain; None for all.
        give: Stores a verdict on the run of a trace id.
    """

    def __init__(
        self, store: TraceStore, domain: str | None, give: Callable[[str, Verdict], Any]
    ) -> None:
        self._store, self._give, self._console = store, give, make_console()
        every = failures_by_domain(store.signed_runs(domain=domain))
        self._groups = [(one, group) for one in every for group in one.groups if group.unjudged]

    def run(self) -> None:
        """Ask about each group, until the person ends it.

        Raises:
            KPError: The store cannot be read or written.
            KeyboardInterrupt: The person presses Ctrl-C. What was given stays stored.
        """
        for at, (domain, group) in enumerate(self._groups, start=1):
            self._console.clear()  # of a terminal that can do that
            self._console.print(Rule())
            self._console.print(Text(visible(domain.text)))
            self._console.print()
            mark = f"{at} of {len(self._groups)}  "
            _print_group(self._store, group, mark, self._console)
            if not self._take_answer(group):
                return
        text = "There is no other group." if self._groups else _NO_GROUPS
        self._console.print(text, soft_wrap=True)

    def _take_answer(self, group: FailureGroup) -> bool:
        """Ask until the answer can be used, and do what it says; return False to end."""
        number = len(group.unjudged)
        runs = count_text(number, "run")
        while True:
            match self._ask(f"{runs} without a verdict?  {_KEYS}"):
                case None:
                    warn("no answer: the input has ended")
                    return False
                case "q":
                    return False
                case "s":
                    return True
                case "m":
                    self._show_runs(group)
                case "y" | "n" as key:
                    word = "success" if key == "y" else "failure"
                    if self._ask(f"Give {runs} the verdict {word}?  y yes  n no") == "y":
                        self._give_all(group, success=key == "y")
                        return True
                case key:
                    if key and key.isprintable():
                        warn(f"{one_line(key, 20)} leads nowhere here")

    def _ask(self, question: str) -> str | None:
        self._console.print(Text(question, style="bold"), end=" ")
        key = read_key()
        self._console.print()
        return key

    def _show_runs(self, group: FailureGroup) -> None:
        for trace_id in group.unjudged[:_RUNS_SHOWN]:
            run = _run(self._store, trace_id)
            trace = None
            with suppress(StoreError):  # its body was changed by another program
                trace = None if run is None else run.trace
            if run is not None and trace is not None:
                self._console.print(Rule())
                print_task(run, self._console)
                self._console.print(fact_table(_telling_facts(self._store, run, trace)))
                print_steps(trace, self._console, all_by="")
        if (more := len(group.unjudged) - _RUNS_SHOWN) > 0:
            self._console.print(Text(f"... {count_text(more, 'more run')}", "bright_black"))

    def _give_all(self, group: FailureGroup, *, success: bool) -> None:
        """Store a verdict on the runs of a group that have none by now."""
        note = f"given to a group: {_title(group)}"
        given = 0
        for trace_id in group.unjudged:
            if any(one.success is not None for one in self._store.verdicts(trace_id)):
                continue
            with suppress(UnknownRunError):  # it was deleted meanwhile
                self._give(trace_id, Verdict(success, note=note, source="label"))
                given += 1
        word = "success" if success else "failure"
        self._console.print(Text(f"{count_text(given, 'run')}: {word}"))
