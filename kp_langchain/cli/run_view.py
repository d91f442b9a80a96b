"""Runs in the terminal: a list, one in full, two side by side."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from rich.table import Table
from rich.text import Text

from kp_langchain.cli.output import Column, indent, list_table, make_table, visible
from kp_langchain.errors import UnknownRunError
from kp_langchain.review.recall_facts import (
    RecallFacts,
    credit_fields,
    credit_text,
    planted_text,
    recall_facts,
)
from kp_langchain.review.run_facts import align, calls_of, outcome_text
from kp_langchain.scoring.dimensions import DIMENSIONS
from kp_langchain.text import beside, one_line, printable, short_id

if TYPE_CHECKING:
    from rich.console import Console

    from kp_langchain.review.run_facts import TracedCall
    from kp_langchain.schema import ReasoningTrace, TraceStep
    from kp_langchain.scoring.dimensions import DimensionDefinition
    from kp_langchain.store import StoredRun, TraceStore
    from kp_langchain.verdict import Verdict

_WIDE, _WIDTH_FOR_REASONS, _WIDEST = 100, 110, 130
_BAR_CELLS, _WATERFALL_CELLS = 10, 20
_OBJECTIVE_CHARS, _RESULT_CHARS, _LINE_CHARS = 1000, 2000, 300
_STEP_STYLES = {"error_recovery": "yellow", "tool_call": "cyan"}
_CALLS_SHOWN, _SHOWN_TRACES, _CAUSES_NAMED = 8, 10, 2
_NAME_CHARS, _VALUE_CHARS, _ARGUMENTS_SHOWN = 60, 200, 3
_OUTPUT_CHARS, _OUTPUT_CHARS_BESIDE = 1000, 120


# ------------------------------------------------------------------ a list


def list_of_runs(
    runs: Sequence[StoredRun], console: Console, *, titles: Sequence[str] = ()
) -> Table:
    """Return scored runs as a table, one a row; the last column has what room is left.

    A wide console has room for the threshold as a number, and a wider one for the dimensions. There
    is a worth if any of the runs has one.

    Args:
        runs: The runs.
        console: Where the table will be printed.
        titles: A title for each run, in place of its id, its time and its objective.
    """
    title_of = dict(zip((run.trace_id for run in runs), titles, strict=False))
    time = "%Y-%m-%d %H:%M" if console.width >= _WIDEST else "%m-%d %H:%M"
    time = time if console.width >= _WIDE else "%m-%d"

    def decision(run: StoredRun) -> str:
        twin = run.twin_of or run.replaced_by
        return f"twin of {short_id(twin)}" if twin else run.decision

    columns: list[Column[StoredRun]] = [
        Column(title="run", text=lambda run: short_id(run.trace_id)),
        Column(title="time", text=lambda run: run.created_at.astimezone().strftime(time)),
        Column(title="domain", text=lambda run: one_line(run.domain, 16 if is_wide else 9)),
        *map(_dimension_column, DIMENSIONS),
        Column(title="score>", text=lambda run: f"{run.score:.3f}", style=_style),
        Column(title="worth>", text=lambda run: "" if run.worth is None else f"{run.worth:.3f}"),
        Column(title="of>", text=lambda run: f"{run.threshold:.2f}", from_width=_WIDE),
        Column(title="0 to 1", text=lambda run: _bar(
            0, run.gated_value, _BAR_CELLS, _style(run), console, mark=run.threshold
        )),
        Column(title="decision", text=decision, style=_style),
        Column(title="objective", text=lambda run: _shortened(run.objective)),
    ]  # fmt: skip
    is_wide = console.width >= _WIDE
    if titles:
        columns = [*columns[2:-1], Column(title="run", text=lambda run: title_of[run.trace_id])]
    if all(run.worth is None for run in runs):
        columns = [column for column in columns if column.title != "worth>"]
    return list_table(columns, runs, width=console.width)


def _dimension_column(dimension: DimensionDefinition) -> Column[StoredRun]:
    return Column(
        title=f"{dimension.headings[0]}>",
        text=lambda run: f"{run.breakdown.dimensions[dimension.name].value:.2f}",
        from_width=_WIDEST,
    )


def _style(run: StoredRun) -> str:
    return "green" if run.decision == "kept" else ""


def _bar(
    start: float, end: float, width: int, style: str, console: Console, *, mark: float | None
) -> Text:
    """Return what lies between two values from 0 to 1 as a bar, with a mark at a third."""
    low, high = sorted((start, end))
    first, last = round(low * width), round(high * width)
    if last == first and high > low:  # however small, it is seen
        first = min(first, width - 1)
        last = first + 1
    full, empty, line = "#.|" if console.options.ascii_only else "█·┃"
    text = Text(style=style)
    for at in range(width):
        if mark is not None and at == min(width - 1, int(mark * width)):
            text.append(line, "yellow")
        else:
            text.append(*((full, "") if first <= at < last else (empty, "bright_black")))
    return text


# ------------------------------------------------------------------ one in full


def print_run(store: TraceStore, run: StoredRun, console: Console, *, with_steps: bool) -> None:
    """Print a run: the waterfall of its score, what is known of it, its calls and its answer.

    Args:
        store: The store of the run.
        run: The run.
        console: Where to print it.
        with_steps: Whether to print every step whole, in place of one line a call.
    """
    print_task(run, console)
    value = beside(run.gated_value, run.threshold)
    heading = Text(run.decision, style=f"bold {_style(run)}")
    console.print(
        heading.append(f": {run.gate} {value}, threshold {run.threshold:.3f}\n", "not bold")
    )
    console.print(_waterfall(run, console))
    console.print()
    facts = list(_facts(store, run))
    if console.width < _WIDTH_FOR_REASONS:
        reasons = [(row.label, row.why) for row in run.breakdown.waterfall() if row.why]
        facts = [*reasons, *facts]
    console.print(fact_table(facts))
    console.print()
    trace = run.trace
    if trace is None:
        why = "the store does not have them"
        if run.withheld is not None:
            why = f"the run was withheld: {printable(run.withheld)}"
        elif run.decision != "kept":
            why += "; by default it keeps those of a run that did not pass for `keep_days` only"
        console.print(Text(f"The steps of this run are not kept: {why}."), soft_wrap=True)
        return
    if with_steps:
        print_whole(run, trace, console)
    else:
        print_steps(trace, console)
    if run.kept_until is not None:
        text = f"The steps are kept until {run.kept_until:%Y-%m-%d %H:%M} UTC."
        console.print(Text(text, "bright_black"))


def print_task(run: StoredRun, console: Console) -> None:
    """Print the beginning of a run's task, its ids, its time and its domain."""
    console.print(Text(one_line(run.objective, _OBJECTIVE_CHARS), style="bold"))
    at = run.created_at.astimezone()
    head = f"{run.trace_id}  {at:%Y-%m-%d %H:%M:%S}  {run.domain}  {run.framework or ''}"
    console.print(Text(printable(head).rstrip()), soft_wrap=True)


def print_steps(trace: ReasoningTrace, console: Console) -> None:
    """Print the tool calls of a trace, one a line, and the beginning of its answer."""
    lines = call_lines(trace, console.width - 3)
    console.print(Text(f"calls ({len(trace.steps)} steps; all of them: --steps)", "cyan"))
    for line in lines[:_CALLS_SHOWN]:
        console.print(Text(" ") + line, no_wrap=True, overflow="ellipsis")
    if (more := len(lines) - _CALLS_SHOWN) > 0:
        console.print(Text(f"   ... {more} more", "bright_black"))
    console.print(Text("answer", "cyan"))
    console.print(Text(one_line(trace.outcome.result_summary, _RESULT_CHARS) or "(empty)"))


def print_whole(run: StoredRun, trace: ReasoningTrace, console: Console) -> None:
    """Print the whole task of a run, every step and the whole answer.

    Their texts are indented, so that no line of them looks like one of ours.
    """
    console.print(Text("task", "cyan"))
    console.print(indent(Text(visible(run.objective))))
    console.print(Text("steps", "cyan"))
    for step in trace.steps:
        line = Text(f"{step.step_id}  ").append(step.type, _STEP_STYLES.get(step.type, ""))
        if step.tool:
            line.append(f"  {one_line(step.tool.name, _LINE_CHARS)}")
        if step.tries > 1:
            line.append(f"  tried {step.tries} times")
        if step.latency_ms is not None:
            line.append(f"  {step.latency_ms:.1f} ms", "bright_black")
        console.print(line)
        text = step.content if step.content is not None else str(step.input or "")
        console.print(indent(Text(visible(text))))
    console.print(Text("answer", "cyan"))
    console.print(indent(Text(visible(trace.outcome.result_summary) or "(empty)")))


def run_json(store: TraceStore, run: StoredRun) -> dict[str, Any]:
    """Return what `print_run` prints as plain values, without the trace."""
    nearest, recall = run.breakdown.nearest, recall_facts(store, run)
    other = None if nearest is None else _other(store, nearest.trace_id)
    return run.to_dict() | {
        "nearest_objective": None if other is None else other.objective,
        "verdicts": store.verdicts(run.trace_id),
        "shown": [
            asdict(one) | {"objective": recall.objectives.get(one.trace_id)} for one in recall.shown
        ],
        "credit": None if recall.credit is None else credit_fields(recall.credit),
        "planted": recall.planted,
    }


def _waterfall(run: StoredRun, console: Console) -> Table:
    """Return the score as steps from zero to the total, with the reasons if there is room."""
    table = Table.grid(padding=(0, 1, 0, 0))
    for layout in ({}, {"justify": "right"}, {"justify": "right"}, {"width": _WATERFALL_CELLS}):
        table.add_column(no_wrap=True, **layout)
    table.add_column(overflow="fold", style="bright_black")
    for row in run.breakdown.waterfall():
        style, mark = "", None
        if row.kind in ("dimension", "rule"):
            style = "yellow" if row.end < row.start else "cyan"
        elif row.kind == run.gate:
            style, mark = f"bold {_style(run)}", run.threshold
        table.add_row(
            Text(row.label, style=style),
            "rule" if row.kind == "rule" else row.figures,
            Text(row.amount, style=style),
            _bar(row.start, row.end, _WATERFALL_CELLS, style, console, mark=mark),
            Text(visible(row.why) if console.width >= _WIDTH_FOR_REASONS else ""),
        )
    return table


def _facts(store: TraceStore, run: StoredRun) -> Iterator[tuple[str, str]]:
    breakdown = run.breakdown
    nearest = breakdown.nearest
    if nearest is None:
        yield "nearest run", f"none was compared: {breakdown.novelty_source}"
    else:
        name = "a vector without a key" if nearest.trace_id is None else short_id(nearest.trace_id)
        objective = _objective_of(store, nearest.trace_id)
        yield "nearest run", f"{name}, similarity {nearest.similarity:.2f}{objective}"
    objective = _objective_of(store, run.twin_of or run.replaced_by)
    if run.twin_of is not None:
        similarity = 1.0 if run.similarity_to_twin is None else run.similarity_to_twin
        why = "which was kept; this one is not surer"
        yield "twin of", f"{short_id(run.twin_of)}, similarity {similarity:.2f}, {why}{objective}"
    elif run.replaced_by is not None:
        why = "which repeats it and was surer"
        yield "replaced by", f"{short_id(run.replaced_by)}, {why}{objective}"
    yield "outcome", outcome_text(run)
    yield "redacted", _counts(run.redactions) or "nothing"
    if run.dropped:
        yield "left out", f"{_counts(run.dropped)}, because the run was longer than the bounds"
    if run.withheld is not None:
        yield "withheld", f"it must never be contributed: {run.withheld}"
    keys = {
        "session": run.session, "thread": run.thread, "user": run.user_hash,
        "namespace": run.namespace, "name": run.run_name, "tags": ", ".join(run.tags),
    }  # fmt: skip
    if any(keys.values()):
        yield "found by", "  ".join(f"{key} {value}" for key, value in keys.items() if value)
    for verdict in store.verdicts(run.trace_id):
        yield "verdict", _verdict_line(verdict)
    yield from _recall_lines(recall_facts(store, run))
    profile = breakdown.profile
    yield "scored", f"in {breakdown.elapsed_ms:.0f} ms with the weights of profile {profile}"


def _recall_lines(recall: RecallFacts) -> Iterator[tuple[str, str]]:
    for one in recall.shown[:_SHOWN_TRACES]:
        objective = recall.objectives.get(one.trace_id)
        text = "" if objective is None else f": {_shortened(objective)}"
        held_out = "held out from " if one.held_out else ""
        similarity = f"similarity {one.similarity:.2f}"
        yield "shown to it", f"{held_out}{short_id(one.trace_id)}, {similarity}{text}"
    if (more := len(recall.shown) - _SHOWN_TRACES) > 0:
        yield "shown to it", f"and {more:,} more; all of them: --json"
    if recall.credit is not None:
        yield "credit", credit_text(recall.credit)
    if recall.planted is not None:
        yield "planted", planted_text(recall.planted)


def _other(store: TraceStore, trace_id: str | None) -> StoredRun | None:
    with suppress(UnknownRunError):  # it is gone, and others' ids begin with its id
        return None if trace_id is None else store.get(trace_id)
    return None


def _objective_of(store: TraceStore, trace_id: str | None) -> str:
    other = _other(store, trace_id)
    return "" if other is None else f": {_shortened(other.objective)}"


def _verdict_line(verdict: Verdict) -> str:
    success = {True: "success", False: "failure", None: "success not stated"}[verdict.success]
    confidence = "" if verdict.confidence is None else f", confidence {verdict.confidence:.2f}"
    note = f": {_shortened(verdict.note)}" if verdict.note else ""
    at = f"{verdict.at:%Y-%m-%d %H:%M} UTC"
    return f"{success}{confidence}, {at}, {verdict.source_text}{note}"


def _counts(counts: Mapping[str, int]) -> str:
    in_order = sorted(counts.items(), key=lambda pair: (-pair[1], pair[0]))
    return ", ".join(f"{name} {count}" for name, count in in_order)


def fact_table(facts: Sequence[tuple[str, str]]) -> Table:
    """Return facts, each with its label before it."""
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True, style="cyan")
    table.add_column(overflow="fold", ratio=1)
    before = ""
    for label, text in facts:
        table.add_row("" if label == before else label, Text(visible(text)))
        before = label
    return table


# ------------------------------------------------------------------ calls


def call_lines(trace: ReasoningTrace, width: int) -> list[Text]:
    """Return the tool calls of a trace, one a line, each with the beginning of its output.

    A `!` marks those that failed, or whose output reads like a failure.

    Args:
        trace: The trace.
        width: Cells to fill at most.
    """
    lines = []
    for one in calls_of(trace.steps):
        text = "" if one.call is None else _call_text(one.call)
        if one.output is not None:
            output = " ".join((one.output.content or "(empty)")[:_OUTPUT_CHARS].split())
            text = f"{one_line(text, max(20, width // 2))} -> {visible(output)}"
        mark, style = ("!", "yellow") if one.has_failed else (" ", "")
        lines.append(Text(f"{mark} {text}", style))
    return lines or [Text("none", style="dim")]


def _call_text(step: TraceStep) -> str:
    name = one_line(step.tool.name if step.tool else "", _NAME_CHARS) or "(no name)"
    values = list((step.input or {}).items())
    arguments = [
        _value(value) if len(values) == 1 else f"{one_line(key, _NAME_CHARS)}={_value(value)}"
        for key, value in values[:_ARGUMENTS_SHOWN]
    ]
    more = ["..."] if len(values) > _ARGUMENTS_SHOWN else []
    attempts = f" x{step.tries}" if step.tries > 1 else ""
    return f"{name}({', '.join(arguments + more)}){attempts}"


def _value(value: object) -> str:
    text = value[:_VALUE_CHARS] if isinstance(value, str) else str(value)[:_VALUE_CHARS]
    return printable(json.dumps(text, ensure_ascii=False) if isinstance(value, str) else text)


# ------------------------------------------------------------------ two side by side


def print_compared(left: StoredRun, right: StoredRun, console: Console) -> None:
    """Print two runs side by side: the differences of their scores, then their tool calls."""
    first, second = left.trace, right.trace
    rows: list[tuple[str, ...]] = [
        (label, text(left), text(right), "") for label, text in _TEXTS.items()
    ]
    for label, (before, after) in _figures(left, right).items():
        change = f"{after - before:+.3f}" if round(after - before, 3) else ""
        rows.append((label, f"{before:.3f}", f"{after:.3f}", change))
    answers = [one_line(one.outcome.result_summary, 500) if one else "(not kept)"
               for one in (first, second)]  # fmt: skip
    rows.append(("answer", *answers, ""))
    headings = "", short_id(left.trace_id), short_id(right.trace_id), "second - first>"
    console.print(_side_by_side(headings, rows, texts=(1, 2)))
    console.print(Text(_why_different(left, right)))
    if first is None or second is None:
        console.print("The steps of at least one of them are not kept, so they are not compared.")
        return
    calls: list[tuple[str, ...]] = []
    for row in align(calls_of(first.steps), calls_of(second.steps)):
        mark = "=" if row.is_same else "~"
        if row.left is None or row.right is None:
            mark = ">" if row.left is None else "<"
        calls.append((_beside(row.left), mark, _beside(row.right)))
    console.print(
        _side_by_side(("calls of the first", "", "calls of the second"), calls, texts=(0, 2))
    )
    console.print("= the same call   ~ the same tool   < only the first   > only the second")


def _side_by_side(
    headings: Sequence[str], rows: Iterable[Sequence[str]], *, texts: tuple[int, int]
) -> Table:
    """Return rows as a table of the terminal's width, whose columns of texts are folded."""
    table = make_table(headings, rows, fills=True)
    for at, column in enumerate(table.columns):
        column.no_wrap, column.overflow, column.min_width = False, "fold", None
        column.ratio = 1 if at in texts else None
    return table


def compared_json(left: StoredRun, right: StoredRun) -> tuple[dict[str, Any], Any]:
    """Return what `print_compared` prints as plain values, and the calls beside each other."""
    first, second = left.breakdown.dimensions, right.breakdown.dimensions
    changes = {name: second[name].contribution - first[name].contribution for name in first}
    values = {
        "left": left.to_dict(),
        "right": right.to_dict(),
        "differences": {"score": right.score - left.score, **changes},
    }
    traces = left.trace, right.trace
    if traces[0] is None or traces[1] is None:
        return values, None
    rows = align(calls_of(traces[0].steps), calls_of(traces[1].steps))
    calls = [
        {
            "left": _call_json(row.left),
            "right": _call_json(row.right),
            "same_input": row.is_same,
        }
        for row in rows
    ]
    return values, calls


_TEXTS: dict[str, Callable[[StoredRun], str]] = {
    "objective": lambda run: one_line(run.objective, _LINE_CHARS),
    "domain": lambda run: run.domain,
    "decision": lambda run: f"{run.decision}, threshold {run.threshold:.3f}",
    "outcome": outcome_text,
    "steps": lambda run: str(run.n_steps),
}


def _figures(left: StoredRun, right: StoredRun) -> dict[str, tuple[float, float]]:
    """Return what the scores of two runs are made of, and the scores, by label."""
    first, second = left.breakdown.dimensions, right.breakdown.dimensions
    figures = {
        one.label: (first[one.name].contribution, second[one.name].contribution)
        for one in DIMENSIONS
    }
    rules = [
        {rule.name: rule.after - rule.before for rule in run.breakdown.rules}
        for run in (left, right)
    ]
    for name in rules[0] | rules[1]:
        figures[name] = rules[0].get(name, 0.0), rules[1].get(name, 0.0)
    figures["score"] = left.score, right.score
    if left.worth is not None and right.worth is not None:
        figures["worth"] = left.worth, right.worth
    return figures


def _why_different(left: StoredRun, right: StoredRun) -> str:
    """Return in one sentence what the difference of two scores rests on."""
    figures = _figures(left, right)
    difference = right.score - left.score
    if not round(difference, 3):
        return "Both have the same score."
    changes = {
        label: second - first
        for label, (first, second) in figures.items()
        if label not in ("score", "worth") and (second - first) * difference > 0
    }
    most = sorted(changes.items(), key=lambda pair: -abs(pair[1]))[:_CAUSES_NAMED]
    causes = " and ".join(f"{label} ({change:+.3f})" for label, change in most)
    word = "higher" if difference > 0 else "lower"
    return f"The second scores {abs(difference):.3f} {word}, by {causes}."


def _beside(call: TracedCall | None) -> str:
    if call is None:
        return ""
    text = "(no call)" if call.call is None else _call_text(call.call)
    if call.output is None:
        return text
    beginning = " ".join((call.output.content or "")[:_OUTPUT_CHARS].split())
    output = one_line(beginning, _OUTPUT_CHARS_BESIDE) or "(empty)"
    return f"{'! ' if call.has_failed else ''}{text} -> {output}"


def _call_json(call: TracedCall | None) -> dict[str, Any] | None:
    if call is None:
        return None
    output = None if call.output is None else call.output.content
    return {"tool": call.tool, "input": call.input, "output": output, "failed": call.has_failed}


def _shortened(text: str) -> str:
    return one_line(" ".join(text.split()), _LINE_CHARS)
