"""One run in full: how it got its score, and what is known of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from rich.table import Table
from rich.text import Text

from kp_langchain.cli.next_run_screen import call_lines
from kp_langchain.cli.output import visible
from kp_langchain.cli.run_tables import keys_line, steps_table, verdict_line
from kp_langchain.cli.waterfall import has_room_for_reasons, reasons, waterfall
from kp_langchain.printable import beside, one_line, printable, short_id
from kp_langchain.review.recall_facts import RecallFacts, credit_text, planted_text
from kp_langchain.review.run_facts import outcome_text

if TYPE_CHECKING:
    from rich.console import Console

    from kp_langchain.schema import ReasoningTrace
    from kp_langchain.store import StoredRun
    from kp_langchain.verdict import Verdict

_OBJECTIVE_CHARS = 1000
_RESULT_CHARS = 2000
_CALLS_SHOWN = 8
_OTHER_OBJECTIVE_CHARS = 200
_SHOWN_TRACES = 10


@dataclass(frozen=True, slots=True)
class RunDetails:
    """One run with what the store has about it.

    Attributes:
        run: The run.
        trace: Its trace; None if it is not kept.
        verdicts: The verdicts on it, the oldest first.
        nearest: The remembered run that is most like it; None if the store does not have that.
        twin: The kept run that it repeats, or that took its place; None for neither.
        recall: What recall has to do with it.
    """

    run: StoredRun
    trace: ReasoningTrace | None
    verdicts: Sequence[Verdict]
    nearest: StoredRun | None = None
    twin: StoredRun | None = None
    recall: RecallFacts = field(default_factory=RecallFacts)


def print_details(details: RunDetails, console: Console, *, with_steps: bool) -> None:
    """Print a run: the waterfall of its score, where it comes from, its calls and its answer.

    Args:
        details: The run.
        console: Where to print it.
        with_steps: Whether to print every step whole, in place of one line a call.
    """
    run = details.run
    passed = run.decision == "kept"
    console.print(Text(printable(one_line(run.objective, _OBJECTIVE_CHARS)), style="bold"))
    console.print(
        Text(
            f"{run.trace_id}  {run.created_at.astimezone():%Y-%m-%d %H:%M:%S}  "
            f"{printable(run.domain)}  {printable(run.framework or '')}".rstrip()
        ),
        soft_wrap=True,
    )
    heading = Text(run.decision, style="bold green" if passed else "bold")
    value = beside(run.gated_value, run.threshold)
    heading.append(f": {run.gate} {value}, threshold {run.threshold:.3f}", "not bold")
    console.print(heading)
    console.print()
    breakdown = run.breakdown
    console.print(
        waterfall(breakdown, console, gate=run.gate, threshold=run.threshold, passed=passed)
    )
    console.print()
    facts = list(_facts(details))
    if not has_room_for_reasons(console):
        facts = [*reasons(breakdown), *facts]
    console.print(_fact_table(facts))
    console.print()
    _print_steps(details, console, with_steps=with_steps)


def print_whole(run: StoredRun, trace: ReasoningTrace, console: Console) -> None:
    """Print the whole task of a run, every step and the whole answer."""
    console.print(Text("task", "cyan"))
    console.print(Text(visible(run.objective)))
    console.print(steps_table(trace, console))
    console.print(Text("answer", "cyan"))
    console.print(Text(visible(trace.outcome.result_summary) or "(empty)"))


def _facts(details: RunDetails) -> Iterator[tuple[str, str]]:
    run, breakdown = details.run, details.run.breakdown
    if breakdown.nearest is None:
        yield "nearest run", f"none was compared: {breakdown.novelty_source}"
    else:
        yield (
            "nearest run",
            _other_run(breakdown.nearest.trace_id, breakdown.nearest.similarity, details.nearest),
        )
    objective = "" if details.twin is None else f": {_shortened(details.twin.objective)}"
    if run.twin_of is not None:
        similarity = 1.0 if run.similarity_to_twin is None else run.similarity_to_twin
        why = "which was kept; this one is not surer"
        yield "twin of", f"{short_id(run.twin_of)}, similarity {similarity:.2f}, {why}{objective}"
    elif run.replaced_by is not None:
        why = "which repeats it and was surer"
        yield "replaced by", f"{short_id(run.replaced_by)}, {why}{objective}"
    yield "outcome", outcome_text(run)
    yield "redacted", _redacted(run)
    if run.dropped:
        yield "left out", f"{_counts(run.dropped)}, because the run was longer than the bounds"
    if run.withheld is not None:
        yield "withheld", f"it must never be contributed: {run.withheld}"
    if keys := keys_line(run):
        yield "found by", keys
    for verdict in details.verdicts:
        yield "verdict", verdict_line(verdict)
    yield from _recall_facts(details.recall)
    yield (
        "scored",
        (f"in {breakdown.elapsed_ms:.0f} ms with the weights of profile {breakdown.profile}"),
    )


def _recall_facts(recall: RecallFacts) -> Iterator[tuple[str, str]]:
    for one in recall.shown[:_SHOWN_TRACES]:
        objective = recall.objectives.get(one.trace_id)
        text = "" if objective is None else f": {_shortened(objective)}"
        held_out = "held out from " if one.held_out else ""
        similarity = f"similarity {one.similarity:.2f}"
        yield "shown to it", f"{held_out}{short_id(one.trace_id)}, {similarity}{text}"
    if len(recall.shown) > _SHOWN_TRACES:
        more = len(recall.shown) - _SHOWN_TRACES
        yield "shown to it", f"and {more:,} more; all of them: --json"
    if recall.credit is not None:
        yield "credit", credit_text(recall.credit)
    if recall.planted is not None:
        yield "planted", planted_text(recall.planted)


def _other_run(trace_id: str | None, similarity: float, other: StoredRun | None) -> str:
    name = "a vector without a key" if trace_id is None else short_id(trace_id)
    objective = "" if other is None else f": {_shortened(other.objective)}"
    return f"{name}, similarity {similarity:.2f}{objective}"


def _redacted(run: StoredRun) -> str:
    if run.redactions is None:
        return "not counted by the version that stored this run"
    return _counts(run.redactions) or "nothing"


def _counts(counts: Mapping[str, int]) -> str:
    in_order = sorted(counts.items(), key=lambda pair: (-pair[1], pair[0]))
    return ", ".join(f"{name} {count}" for name, count in in_order)


def _fact_table(facts: Sequence[tuple[str, str]]) -> Table:
    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True, style="cyan")
    table.add_column(overflow="fold", ratio=1)
    before = ""
    for label, text in facts:
        table.add_row("" if label == before else label, Text(visible(text)))
        before = label
    return table


def _print_steps(details: RunDetails, console: Console, *, with_steps: bool) -> None:
    run, trace = details.run, details.trace
    if trace is None:
        console.print(Text(_why_no_steps(run)), soft_wrap=True)
        return
    if with_steps:
        console.print(steps_table(trace, console))
    else:
        lines = call_lines(trace, max(20, console.width - 3))
        console.print(Text(f"calls ({len(trace.steps)} steps; all of them: --steps)", "cyan"))
        for line in lines[:_CALLS_SHOWN]:
            console.print(Text(" ") + line, no_wrap=True, overflow="ellipsis")
        if len(lines) > _CALLS_SHOWN:
            console.print(Text(f"   ... {len(lines) - _CALLS_SHOWN} more", "bright_black"))
    result = trace.outcome.result_summary
    console.print(Text("answer", "cyan"))
    console.print(Text(visible(one_line(result, _RESULT_CHARS) or "(empty)")))
    if run.kept_until is not None:
        console.print(
            Text(f"The steps are kept until {run.kept_until:%Y-%m-%d %H:%M} UTC.", "bright_black")
        )


def _why_no_steps(run: StoredRun) -> str:
    """Return why the store does not have the steps of a run, as far as that is known."""
    if run.withheld is not None:
        return f"The steps are not kept, because the run was withheld: {printable(run.withheld)}."
    text = "The store does not have the steps of this run"
    if run.decision != "kept":
        text += "; by default it keeps those of a run that did not pass for `keep_days` only"
    return f"{text}."


def _shortened(text: str) -> str:
    return one_line(" ".join(text.split()), _OTHER_OBJECTIVE_CHARS)
