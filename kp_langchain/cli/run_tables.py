"""Terminal tables and lines of scored runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any

from rich.box import SIMPLE_HEAD
from rich.cells import cell_len
from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from kp_langchain.cli.output import visible
from kp_langchain.printable import short_id
from kp_langchain.scoring.dimensions import DIMENSIONS

if TYPE_CHECKING:
    from kp_langchain.schema import ReasoningTrace
    from kp_langchain.store import StoredRun
    from kp_langchain.verdict import Verdict

_WIDE, _WIDTH_FOR_DIMENSIONS, _WIDTH_FOR_YEAR = 100, 130, 160
_WIDTH_BESIDE_TOOL = 44  # number, step, some of the text, and milliseconds
_TOOL_WIDTH_MIN = 8
_NARROW_BAR_CELLS, _BAR_CELLS = 8, 12
_ASCII = {"█": "#", "·": ".", "┃": "|"}


@dataclass(frozen=True, slots=True)
class _Column:
    """A column of a table of runs: its heading, what a run has in it, and how rich lays it out."""

    heading: str
    cell: Callable[[StoredRun], RenderableType]
    layout: Mapping[str, Any] = field(default_factory=dict)


def review_table(runs: Sequence[StoredRun], console: Console) -> Table:
    """Return scored runs as a table, one a row; the objective has what room is left.

    A wide console has room for the date, the threshold as a number, and the dimensions. There is a
    worth if any of the runs has one.

    Args:
        runs: The runs.
        console: Where the table will be printed.
    """
    width = console.width
    now = datetime.now().astimezone()
    columns = [
        _Column("run", lambda run: Text(short_id(run.trace_id)), {"max_width": 20}),
        _Column("time", lambda run: _time(run.created_at, now, width)),
        _domain_column(width),
        *_value_columns(runs, console),
        _Column(
            "objective",
            lambda run: Text(visible(_short(run.objective))),
            {"ratio": 1, "overflow": "ellipsis", "min_width": 8},
        ),
    ]
    return _table(columns, runs, width)


def titled_table(titles: Sequence[str], runs: Sequence[StoredRun], console: Console) -> Table:
    """Return scored runs as a table, each with a title in place of time and objective.

    Args:
        titles: The title of each run.
        runs: The runs.
        console: Where the table will be printed.
    """
    by_id = {run.trace_id: title for title, run in zip(titles, runs, strict=True)}
    columns = [
        _Column(
            "run",
            lambda run: Text(visible(_short(by_id[run.trace_id]))),
            {"ratio": 1, "overflow": "ellipsis", "min_width": 8},
        ),
        _domain_column(console.width),
        *_value_columns(runs, console),
    ]
    return _table(columns, runs, console.width)


def _table(columns: Sequence[_Column], runs: Sequence[StoredRun], width: int) -> Table:
    gap = 1 if width >= _WIDE else 0  # in addition to the box's own blank between columns
    table = Table(box=SIMPLE_HEAD, pad_edge=False, expand=True, padding=(0, gap, 0, 0))
    for column in columns:
        table.add_column(column.heading, **{"no_wrap": True, **column.layout})
    for run in runs:
        table.add_row(*(column.cell(run) for column in columns))
    return table


def _domain_column(width: int) -> _Column:
    layout = {"overflow": "ellipsis", "max_width": 16 if width >= _WIDE else 9}
    return _Column("domain", lambda run: Text(visible(run.domain)), layout)


def _value_columns(runs: Sequence[StoredRun], console: Console) -> Iterator[_Column]:
    """Yield the columns of dimensions, score, worth, threshold, bar and decision."""
    width, right = console.width, {"justify": "right"}
    if width >= _WIDTH_FOR_DIMENSIONS:
        for one in DIMENSIONS:
            yield _Column(one.headings[0], partial(_dimension, one.name), right)
    yield _Column("score", lambda run: Text(f"{run.score:.3f}", _style(run, "score")), right)
    if any(run.worth is not None for run in runs):
        yield _Column("worth", _worth, right)
    if width >= _WIDE:
        yield _Column("of", lambda run: f"{run.threshold:.2f}", right)
    cells = _BAR_CELLS if width >= _WIDE else _NARROW_BAR_CELLS
    yield _Column("0 to 1", lambda run: _bar(run, cells, console), {"min_width": cells})
    yield _Column("decision", lambda run: Text(_decision(run), _style(run)))


def _dimension(name: str, run: StoredRun) -> str:
    return f"{run.breakdown.dimensions[name].value:.2f}"


def _worth(run: StoredRun) -> Text:
    return Text("" if run.worth is None else f"{run.worth:.3f}", _style(run, "worth"))


def _passed(run: StoredRun) -> bool:
    return run.decision == "kept"


def _style(run: StoredRun, of: str = "") -> str:
    """Return the style of a run's decision, bold for what was gated; none for the other figure."""
    if of not in ("", run.gate):
        return ""
    color = "green" if _passed(run) else "bright_black"
    return f"bold {color}" if of else color


def _decision(run: StoredRun) -> str:
    """Return the decision on a run; of a twin also of which one."""
    other = run.twin_of or run.replaced_by
    if run.decision == "twin" and other is not None:
        return f"twin of {short_id(other)}"
    return run.decision


def _bar(run: StoredRun, width: int, console: Console) -> Text:
    """Return what was gated of a run as a bar, with a mark at the threshold."""
    mark = min(width - 1, int(run.threshold * width))
    length = round(min(1.0, max(0.0, run.gated_value)) * width)
    # However near the threshold, one sees on which side of its mark the value is.
    length = max(length, mark + 2) if run.gated_value >= run.threshold else min(length, mark)
    cells = ["█" if index < length else "·" for index in range(width)]
    cells[mark] = "┃"
    if console.options.ascii_only:
        cells = [_ASCII[cell] for cell in cells]
    text = Text("".join(cells), style=_style(run))
    text.stylize("yellow", mark, mark + 1)
    return text


def _time(at: datetime, now: datetime, width: int) -> str:
    """Return the local time of a run, as much of it as a console of this width has room for."""
    local = at.astimezone(now.tzinfo)
    if width >= _WIDTH_FOR_YEAR:
        return f"{local:%Y-%m-%d %H:%M}"
    if width >= _WIDE:
        return f"{local:%m-%d %H:%M}"
    return f"{local:%H:%M}" if local.date() == now.date() else f"{local:%m-%d}"


def steps_table(trace: ReasoningTrace, console: Console) -> RenderableType:
    """Return the steps of a trace as a table, whole; tool names get room before texts."""
    names = [visible(_short(step.tool.name)) if step.tool else "" for step in trace.steps]
    widest = max(_TOOL_WIDTH_MIN, min(console.width // 2, console.width - _WIDTH_BESIDE_TOOL))
    tool_width = min(max(map(cell_len, names), default=0), widest)
    gap = 1 if console.width >= _WIDE else 0
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
            Text(visible(text) + attempts),
            "" if step.latency_ms is None else f"{step.latency_ms:.1f}",
        )
    return table


def keys_line(run: StoredRun) -> str:
    """Return the keys of a run in one line; "" if it has none."""
    keys = {
        "session": run.session,
        "thread": run.thread,
        "user": run.user_hash,
        "namespace": run.namespace,
        "name": run.run_name,
        "tags": ", ".join(run.tags),
    }
    return "  ".join(f"{key} {value}" for key, value in keys.items() if value)


def verdict_line(verdict: Verdict) -> str:
    """Return a verdict in one line."""
    success = {True: "success", False: "failure", None: "success not stated"}[verdict.success]
    confidence = "" if verdict.confidence is None else f", confidence {verdict.confidence:.2f}"
    note = f": {_short(verdict.note)}" if verdict.note else ""
    at = f"{verdict.at:%Y-%m-%d %H:%M} UTC"
    return f"{success}{confidence}, {at}, {verdict.source_text}{note}"


def _short(text: str, limit: int = 300) -> str:
    flat = " ".join(text.split())
    return flat if len(flat) <= limit else flat[: limit - 1] + "…"
