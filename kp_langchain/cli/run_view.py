"""Runs in the terminal: a list, one in full."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from rich.table import Table
from rich.text import Text

from kp_langchain.calibration.basis import basis_of_run
from kp_langchain.calibration.tool_calls import calls_of
from kp_langchain.cli.output import Column, fact_table, indent, list_table, visible
from kp_langchain.config import current_prices
from kp_langchain.errors import UnknownRunError
from kp_langchain.gate.check import waits
from kp_langchain.review.recall_facts import (
    RecallFacts,
    credit_text,
    planted_text,
    recall_facts,
)
from kp_langchain.review.run_facts import (
    agreement_text,
    flag_texts,
    outcome_text,
    replaced_text,
    twin_text,
)
from kp_langchain.review.usage_facts import (
    cost_text,
    seconds_text,
    tokens_text,
    usage_facts,
)
from kp_langchain.text import (
    count_text,
    counts_text,
    one_line,
    printable,
    short_id,
)

if TYPE_CHECKING:
    from rich.console import Console

    from kp_langchain.calibration.tool_calls import TracedCall
    from kp_langchain.prices import Prices
    from kp_langchain.schema import ReasoningTrace, TraceStep
    from kp_langchain.store import StoredRun, TraceStore
    from kp_langchain.verdict import Verdict

_WIDE, _WIDER = 100, 130
_BAR_CELLS, _WATERFALL_CELLS = 10, 20
_OBJECTIVE_CHARS, _RESULT_CHARS, _LINE_CHARS = 1000, 2000, 300
_STEP_STYLES = {"error_recovery": "yellow", "tool_call": "cyan"}
_CALLS_SHOWN, _TRACES_SHOWN, _ARGUMENTS_SHOWN = 8, 10, 3
_NAME_CHARS, _VALUE_CHARS, _OUTPUT_CHARS = 60, 200, 1000


# ------------------------------------------------------------------ a list


def list_of_runs(
    runs: Sequence[StoredRun],
    console: Console,
    *,
    titles: Sequence[str] = (),
    prices: Prices | None = None,
) -> Table:
    """Return scored runs as a table, one a row; the last column has what room is left.

    A wide console has room for the threshold as a number, a wider one for what each run took. There
    is a worth, and what runs took, if any of them has it.

    Args:
        runs: The runs.
        console: Where the table will be printed.
        titles: A title for each run, in place of its id, its time and its objective.
        prices: What models cost; None to leave that, tokens and seconds out.
    """
    title_of = dict(zip((run.trace_id for run in runs), titles, strict=False))
    is_wide = console.width >= _WIDE
    time = "%Y-%m-%d %H:%M" if is_wide else "%m-%d"

    def decision(run: StoredRun) -> str:
        if run.veto is not None:
            return f"veto:{run.veto}" if is_wide else "veto"
        if run.replaced_by is not None:
            return f"replaced by {short_id(run.replaced_by)}"
        if run.twin_of is not None:
            return f"twin of {short_id(run.twin_of)}"
        return run.decision

    columns: list[Column[StoredRun]] = [
        Column(title="run", text=lambda run: short_id(run.trace_id)),
        Column(title="time", text=lambda run: run.created_at.astimezone().strftime(time)),
        Column(title="domain", text=lambda run: one_line(run.domain, 16 if is_wide else 9)),
        Column(title="score>", text=lambda run: f"{run.score:.3f}", style=_style),
        Column(title="worth>", text=lambda run: "" if run.worth is None else f"{run.worth:.3f}"),
        Column(
            title="of>",
            text=lambda run: "" if _waits(run) else f"{run.threshold:.2f}",
            from_width=_WIDE,
        ),
        Column(title="0 to 1", text=lambda run: _bar(
            0, run.gated_value, _BAR_CELLS, _style(run), console,
            mark=None if _waits(run) else run.threshold,
        )),
        *_usage_columns(runs, prices),
        Column(title="decision", text=decision, style=_style),
        Column(title="objective", text=lambda run: _shorten(run.objective)),
    ]  # fmt: skip
    if titles:
        columns = [*columns[2:-1], Column(title="run", text=lambda run: title_of[run.trace_id])]
    if all(run.worth is None for run in runs):
        columns = [column for column in columns if column.title != "worth>"]
    return list_table(columns, runs, width=console.width)


def _usage_columns(runs: Sequence[StoredRun], prices: Prices | None) -> Iterator[Column[StoredRun]]:
    """Yield the columns of what runs took, those that say something of any of them."""
    if prices is None:
        return

    def tokens(run: StoredRun) -> str:
        known = None if run.usage is None else run.usage.tokens
        return "" if known is None else tokens_text(known.total_tokens)

    def took(run: StoredRun) -> str:
        return "" if run.usage is None else seconds_text(run.usage.duration_ms)

    def cost(run: StoredRun) -> str:
        return cost_text(prices.cost(run.usage, run.created_at))

    for title, text in {"tokens>": tokens, "took>": took, "cost>": cost}.items():
        if any(map(text, runs)):
            yield Column(title=title, text=text, from_width=_WIDER)


def _waits(run: StoredRun) -> bool:
    return waits(run.gate, run.threshold)


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
    heading = Text(run.decision, style=f"bold {_style(run)}")
    console.print(heading.append(f": {printable(run.reason)}\n", "not bold"))
    console.print(_waterfall(run, console))
    console.print()
    console.print(fact_table(_facts(store, run)))
    console.print()
    trace = run.trace
    if trace is None:
        why = run.withheld or "see keep and keep_days of the domain's policy"
        text = f"The steps of this run are not kept: {printable(why)}."
        console.print(Text(text), soft_wrap=True)
    elif with_steps:
        print_whole(trace, console)
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


def print_steps(trace: ReasoningTrace, console: Console, *, all_by: str = "--steps") -> None:
    """Print the tool calls of a trace, one a line, and the beginning of its answer.

    A `!` marks those that failed, or whose output reads like a failure.

    Args:
        trace: The trace.
        console: Where to print it.
        all_by: The option or key that shows all steps; empty if there is none.
    """
    calls = calls_of(trace.steps)
    steps = count_text(len(trace.steps), "step")
    where = f"{'; all of them' if calls else ''}: {all_by}" if all_by else ""
    hint = f"{'' if calls else 'none '}({steps}{where})"
    console.print(Text(f"calls {hint}", "cyan"))
    for call in calls[:_CALLS_SHOWN]:
        mark, style = ("!", "yellow") if call.has_failed else (" ", "")
        line = Text(f" {mark} {call_text(call)}", style)
        console.print(line, no_wrap=True, overflow="ellipsis")
    if (more := len(calls) - _CALLS_SHOWN) > 0:
        console.print(Text(f"   ... {more} more", "bright_black"))
    console.print(Text("answer", "cyan"))
    console.print(Text(one_line(trace.outcome.result_summary, _RESULT_CHARS) or "(empty)"))


def print_whole(
    trace: ReasoningTrace, console: Console, *, spell: Callable[[str], str] = visible
) -> None:
    """Print the whole task of a trace, every step and the whole answer.

    Their texts are indented, so that no line of them looks like one of ours.

    Args:
        trace: The trace.
        console: Where to print it.
        spell: Returns a line of a text as it is safe to print.
    """

    def print_text(*texts: str | None) -> None:
        for text in texts:
            if text:
                lines = "\n".join(map(spell, text.split("\n")))
                console.print(indent(Text(lines)))

    console.print(Text("task", "cyan"))
    print_text(trace.task.objective, _json(trace.task.input_schema))
    console.print(Text("steps", "cyan"))
    for step in trace.steps:
        line = Text(f"{step.step_id}  ").append(step.type, _STEP_STYLES.get(step.type, ""))
        if step.tool:
            server = f" of {step.tool.mcp_server}" if step.tool.mcp_server else ""
            line.append(f"  {one_line(step.tool.name + server, _LINE_CHARS)}")
        if step.tries > 1:
            line.append(f"  tried {step.tries} times")
        if step.latency_ms is not None:
            line.append(f"  {step.latency_ms:.1f} ms", "bright_black")
        console.print(line)
        print_text(_json(step.input), step.content, step.output_summary)
    console.print(Text("answer", "cyan"))
    print_text(trace.outcome.result_summary or "(empty)")


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False) if value else ""


def run_json(store: TraceStore, run: StoredRun) -> dict[str, Any]:
    """Return what `print_run` prints as plain values, without the trace."""
    nearest, recall = run.breakdown.nearest, recall_facts(store, run)
    other = None if nearest is None else _other(store, nearest.trace_id)
    return run.to_dict() | {
        "nearest_objective": None if other is None else other.objective,
        "basis": _basis(store, run),
        "cost": current_prices().cost(run.usage, run.created_at),
        "verdicts": store.verdicts(run.trace_id),
        "shown": [
            asdict(one) | {"objective": recall.objectives.get(one.trace_id)} for one in recall.shown
        ],
        "credit": recall.credit,
        "planted": recall.planted,
    }


def _waterfall(run: StoredRun, console: Console) -> Table:
    """Return the score as steps from zero to the total, with bars if there is room."""
    table = Table.grid(padding=(0, 1, 0, 0))
    for justify in ("left", "right", "right", "left"):
        table.add_column(no_wrap=True, justify=justify)
    table.add_column(overflow="fold", style="bright_black")
    for row in run.breakdown.waterfall():
        style, mark = "", None
        if row.kind in ("dimension", "rule"):
            style = "yellow" if row.end < row.start else "cyan"
        elif row.kind == run.gate:
            style, mark = f"bold {_style(run)}", run.threshold
        bar = _bar(row.start, row.end, _WATERFALL_CELLS, style, console, mark=mark)
        table.add_row(
            Text(row.label, style=style),
            "rule" if row.kind == "rule" else row.figures,
            Text(row.amount, style=style),
            bar if console.width >= _WIDE else "",
            Text(visible(row.why)),
        )
    return table


def _facts(store: TraceStore, run: StoredRun) -> Iterator[tuple[str, str]]:
    breakdown = run.breakdown
    nearest = breakdown.nearest
    if nearest is None:
        yield "nearest run", f"none was compared: {breakdown.novelty_source}"
    else:
        what = f"similarity {nearest.similarity:.2f}"
        yield "nearest run", _other_line(store, nearest.trace_id, what)
    if run.twin_of is not None:
        twin = _other(store, run.twin_of)
        why = "which was kept; this one is not surer"
        if twin is not None and twin.replaced_by is not None:
            why = f"which {short_id(twin.replaced_by)} has replaced since"
        yield "twin of", _other_line(store, run.twin_of, f"{twin_text(run)}, {why}")
    elif run.replaced_by is not None:
        yield "replaced by", _other_line(store, run.replaced_by, replaced_text(run))
    if (agreement := agreement_text(run)) is not None:
        yield "agreement", agreement
    for text in flag_texts(run):
        yield "flag", text
    yield "basis", _basis(store, run)
    yield "outcome", outcome_text(run)
    yield from usage_facts(run.usage, current_prices(), run.created_at)
    yield "redacted", counts_text(run.redactions) or "nothing"
    if run.dropped:
        yield "left out", f"{counts_text(run.dropped)}, because the run was longer than the bounds"
    if run.withheld is not None:
        yield "withheld", f"it must never be contributed: {run.withheld}"
    keys = {
        "session": run.session, "thread": run.thread, "user": run.user_hash,
        "namespace": run.namespace, "name": run.run_name, "tags": ", ".join(run.tags),
    }  # fmt: skip
    if any(keys.values()):
        yield "keys", "  ".join(f"{key} {value}" for key, value in keys.items() if value)
    for verdict in store.verdicts(run.trace_id):
        yield "verdict", verdict_line(verdict)
    yield from _recall_lines(recall_facts(store, run))
    profile = breakdown.profile
    yield "scored", f"in {breakdown.elapsed_ms:.0f} ms with the weights of profile {profile}"


def _basis(store: TraceStore, run: StoredRun) -> str:
    """Return what the decision on a run rests on, and what would give its domain a better basis."""
    basis = store.models.bases([run.domain]).get(run.domain)
    if run.breakdown.worth is None and basis is not None and basis.is_missing:
        return basis.text
    return basis_of_run(run.breakdown, run.gate, run.threshold)


def _recall_lines(recall: RecallFacts) -> Iterator[tuple[str, str]]:
    for one in recall.shown[:_TRACES_SHOWN]:
        objective = recall.objectives.get(one.trace_id)
        text = "" if objective is None else f": {_shorten(objective)}"
        held_out = "held out from " if one.held_out else ""
        similarity = f"similarity {one.similarity:.2f}"
        yield "shown to it", f"{held_out}{short_id(one.trace_id)}, {similarity}{text}"
    if (more := len(recall.shown) - _TRACES_SHOWN) > 0:
        yield "shown to it", f"and {more:,} more; all of them: --json"
    if recall.credit is not None:
        yield "credit", credit_text(recall.credit)
    if recall.planted is not None:
        yield "planted", planted_text(recall.planted)


def _other(store: TraceStore, trace_id: str | None) -> StoredRun | None:
    with suppress(UnknownRunError):  # it is gone, and others' ids begin with its id
        return None if trace_id is None else store.get(trace_id)
    return None


def _other_line(store: TraceStore, trace_id: str | None, what: str) -> str:
    """Return another run's id, what is said of it, and its objective if the store has it."""
    other = _other(store, trace_id)
    name = "no run" if trace_id is None else short_id(trace_id)
    return f"{name}, {what}{f': {_shorten(other.objective)}' if other else ''}"


def verdict_line(verdict: Verdict) -> str:
    """Return a verdict in one line."""
    success = {True: "success", False: "failure", None: "success not stated"}[verdict.success]
    confidence = "" if verdict.confidence is None else f", confidence {verdict.confidence:.2f}"
    note = f": {_shorten(verdict.note)}" if verdict.note else ""
    at = f"{verdict.at:%Y-%m-%d %H:%M} UTC"
    return f"{success}{confidence}, {at}, {verdict.source_text}{note}"


# ------------------------------------------------------------------ calls


def call_text(call: TracedCall) -> str:
    """Return a tool call in one line, with the beginning of its output."""
    text = "" if call.call is None else _arguments(call.call)
    if call.output is None:
        return text
    beginning = " ".join((call.output.content or "(empty)")[:_OUTPUT_CHARS].split())
    return f"{text} -> {one_line(beginning, _OUTPUT_CHARS)}"


def _arguments(step: TraceStep) -> str:
    name = one_line(step.tool.name if step.tool else "", _NAME_CHARS) or "(no name)"
    values = {
        one_line(key, _NAME_CHARS): one_line(
            json.dumps(value, ensure_ascii=False, default=str), _VALUE_CHARS
        )
        for key, value in list((step.input or {}).items())[:_ARGUMENTS_SHOWN]
    }
    arguments = [*values.values()] if len(values) == 1 else [f"{k}={v}" for k, v in values.items()]
    if len(step.input or ()) > _ARGUMENTS_SHOWN:
        arguments.append("...")
    attempts = f" x{step.tries}" if step.tries > 1 else ""
    return f"{name}({', '.join(arguments)}){attempts}"


def _shorten(text: str) -> str:
    return one_line(" ".join(text.split()), _LINE_CHARS)
