"""Terminal tables and lines of scored runs."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import TYPE_CHECKING

from rich.box import SIMPLE_HEAD
from rich.cells import cell_len
from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from kp_langchain.cli.output import visible
from kp_langchain.gate.decision import decision_word
from kp_langchain.scoring.dimensions import DIMENSIONS

if TYPE_CHECKING:
    from kp_langchain.schema import ReasoningTrace
    from kp_langchain.store import StoredRun
    from kp_langchain.verdict import Verdict

_DIMENSIONS = tuple((*dimension.headings, dimension.name) for dimension in DIMENSIONS)
_BAR_CELLS = 12
_WIDTH_FOR_DIMENSIONS = 56 + 5 * len(_DIMENSIONS)
_WIDTH_OF_WORTH = 7
_WIDTH_FOR_WHOLE_NAMES = 64 + 8 * len(_DIMENSIONS)
_WIDTH_FOR_BAR = _WIDTH_FOR_WHOLE_NAMES + 16
_WIDTH_FOR_YEAR = _WIDTH_FOR_BAR + 16
_WIDTH_BESIDE_TOOL = 44  # number, step, some of the text, and milliseconds
_TOOL_WIDTH_MIN = 8
_ASCII = {"█": "#", "·": ".", "┃": "|"}


def runs_table(
    rows: Iterable[tuple[str, StoredRun]],
    console: Console,
    *,
    first_column: str,
    passed_word: str = "contributed",
    with_time: bool = True,
) -> Table:
    """Return scored runs as a table, one a row, with the worth if any of them has one.

    If the console is too narrow, parts are left out in this order: the year; the bar; the date of
    today's runs and the time of older ones; the dimensions.

    Args:
        rows: Pairs of the name in the first column and the run.
        console: Where the table will be printed.
        first_column: Heading of the first column.
        passed_word: The word for the decision on a run that passed.
        with_time: Whether to show the local time at which each run began.
    """
    rows = list(rows)
    with_worth = any(run.worth is not None for _, run in rows)
    width = console.width - _WIDTH_OF_WORTH * with_worth
    table = _empty_table(width, first_column, with_time=with_time, with_worth=with_worth)
    now = datetime.now().astimezone()
    for name, run in rows:
        passed = run.decision == "contributed"
        style = "green" if passed else "bright_black"
        cells: list[RenderableType] = [Text(visible(_short(name)))]
        if with_time:
            cells.append(_time(run.created_at, now, width))
        cells.append(Text(visible(run.domain)))
        if width >= _WIDTH_FOR_DIMENSIONS:
            values = run.breakdown.dimensions
            cells += (f"{values[key].value:.2f}" for *_, key in _DIMENSIONS)
        gated = "bold " + style
        cells.append(Text(f"{run.score:.3f}", style=gated if run.gate == "score" else ""))
        if with_worth:
            worth = "" if run.worth is None else f"{run.worth:.3f}"
            cells.append(Text(worth, style=gated if run.gate == "worth" else ""))
        cells.append(f"{run.threshold:.2f}")
        if width >= _WIDTH_FOR_BAR:
            ascii_only = console.options.ascii_only
            cells.append(_bar(run.gated_value, run.threshold, style, ascii_only=ascii_only))
        table.add_row(*cells, Text(passed_word if passed else _not_passed(run), style=style))
    return table


def _not_passed(run: StoredRun) -> str:
    word = decision_word(
        run.decision, has_registry=False, twin_of=run.twin_of, replaced_by=run.replaced_by
    )
    return "below" if word == "below_threshold" else word


def twin_line(run: StoredRun) -> str:
    """Return in one line which kept run this one repeats, or was replaced by; "" for neither."""
    if run.twin_of is not None:
        similarity = (
            "" if run.similarity_to_twin is None else f", similarity {run.similarity_to_twin:.2f}"
        )
        return f"twin of {run.twin_of}{similarity}; it is not surer than that one, which was kept"
    if run.replaced_by is not None:
        return f"replaced by {run.replaced_by}, which repeats it and was surer"
    return ""


def _empty_table(width: int, first_column: str, *, with_time: bool, with_worth: bool) -> Table:
    """Return the table with the columns that a width, without that of the worth, has room for."""
    has_whole_names = width >= _WIDTH_FOR_WHOLE_NAMES
    gap = 1 if has_whole_names else 0  # in addition to the box's own blank between columns
    table = Table(box=SIMPLE_HEAD, pad_edge=False, expand=True, padding=(0, gap, 0, 0))
    table.add_column(first_column, ratio=1, no_wrap=True, overflow="ellipsis", min_width=8)
    if with_time:
        table.add_column("time", no_wrap=True)
    domain_width = 16 if has_whole_names else 9
    table.add_column("domain", no_wrap=True, overflow="ellipsis", max_width=domain_width)
    for long, short, _ in _DIMENSIONS if width >= _WIDTH_FOR_DIMENSIONS else ():
        heading = long if has_whole_names else short
        table.add_column(heading, justify="right", no_wrap=True, min_width=len(heading))
    table.add_column("score", justify="right", no_wrap=True, min_width=5)
    if with_worth:
        table.add_column("worth", justify="right", no_wrap=True, min_width=5)
    table.add_column("of", justify="right", no_wrap=True, min_width=4)
    if width >= _WIDTH_FOR_BAR:
        table.add_column("0 to 1", no_wrap=True, min_width=_BAR_CELLS)
    table.add_column("decision", no_wrap=True)
    return table


def _bar(score: float, threshold: float, style: str, *, ascii_only: bool) -> Text:
    """Return a score or worth as a bar, with a mark at the threshold."""
    length = round(score * _BAR_CELLS)
    cells = ["█" if index < length else "·" for index in range(_BAR_CELLS)]
    mark = min(_BAR_CELLS - 1, int(threshold * _BAR_CELLS))
    cells[mark] = "┃"
    if ascii_only:
        cells = [_ASCII[cell] for cell in cells]
    text = Text("".join(cells), style=style)
    text.stylize("yellow", mark, mark + 1)
    return text


def _time(at: datetime, now: datetime, width: int) -> str:
    """Return the local time of a run, as much of it as a console of this width has room for."""
    local = at.astimezone(now.tzinfo)
    if width >= _WIDTH_FOR_YEAR:
        return f"{local:%Y-%m-%d %H:%M}"
    if width >= _WIDTH_FOR_WHOLE_NAMES:
        return f"{local:%m-%d %H:%M}"
    return f"{local:%H:%M}" if local.date() == now.date() else f"{local:%m-%d}"


def steps_table(trace: ReasoningTrace, console: Console) -> RenderableType:
    """Return the steps of a trace as a table, one a row; tool names get room before texts."""
    names = [visible(_short(step.tool.name)) if step.tool else "" for step in trace.steps]
    widest = max(_TOOL_WIDTH_MIN, min(console.width // 2, console.width - _WIDTH_BESIDE_TOOL))
    tool_width = min(max(map(cell_len, names), default=0), widest)
    gap = 1 if console.width >= _WIDTH_FOR_WHOLE_NAMES else 0
    table = Table(box=SIMPLE_HEAD, pad_edge=False, padding=(0, gap, 0, 0))
    table.add_column("#", justify="right")
    table.add_column("step", no_wrap=True)
    table.add_column("tool", overflow="fold", width=max(tool_width, len("tool")))
    table.add_column("what", ratio=1, overflow="fold")
    table.add_column("ms", justify="right", no_wrap=True)
    styles = {"error_recovery": "yellow", "tool_call": "cyan"}
    for step, name in zip(trace.steps, names, strict=True):
        text = step.content if step.content is not None else str(step.input or "")
        attempts = f" (tried {step.tries} times)" if step.tries > 1 else ""
        table.add_row(
            str(step.step_id),
            Text(step.type, style=styles.get(step.type, "")),
            Text(name),
            Text(visible(_short(text)) + attempts),
            "" if step.latency_ms is None else f"{step.latency_ms:.1f}",
        )
    return table


def keys_line(run: StoredRun) -> str:
    """Return the keys of a run in one line; "" if it has none."""
    keys = {
        "session": run.session,
        "thread": run.thread,
        "user": run.user_hash,
        "name": run.run_name,
        "tags": ", ".join(run.tags),
    }
    return "  ".join(f"{key} {value}" for key, value in keys.items() if value)


def verdict_line(verdict: Verdict) -> str:
    """Return a verdict in one line."""
    success = {True: "success", False: "failure", None: "success not stated"}[verdict.success]
    confidence = "" if verdict.confidence is None else f", confidence {verdict.confidence:.2f}"
    note = f": {_short(verdict.note)}" if verdict.note else ""
    return (
        f"verdict of {verdict.at:%Y-%m-%d %H:%M} UTC ({verdict.source}): "
        f"{success}{confidence}{note}"
    )


def _short(text: str, limit: int = 300) -> str:
    flat = " ".join(text.split())
    return flat if len(flat) <= limit else flat[: limit - 1] + "…"
