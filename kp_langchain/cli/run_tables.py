"""Scored runs as a terminal shows them."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from datetime import datetime
from typing import TYPE_CHECKING, Any

from rich.box import SIMPLE_HEAD
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from kp_langchain.cli.output import visible
from kp_langchain.printable import short_id
from kp_langchain.scoring.breakdown import ScoreBreakdown
from kp_langchain.scoring.dimensions import DIMENSIONS

if TYPE_CHECKING:
    from kp_langchain.schema import ReasoningTrace
    from kp_langchain.store import Contribution, StoredRun
    from kp_langchain.verdict import Verdict

_DIMENSIONS = tuple((*dimension.headings, dimension.name) for dimension in DIMENSIONS)
_BAR = 12
_WIDTH_FOR_DIMENSIONS = 56 + 5 * len(_DIMENSIONS)
_WIDTH_FOR_WHOLE_NAMES = 64 + 8 * len(_DIMENSIONS)
_WIDTH_FOR_BAR = _WIDTH_FOR_WHOLE_NAMES + 16
_WIDTH_FOR_YEAR = _WIDTH_FOR_BAR + 16
_WIDTH_BESIDE_TOOL = 44  # number, step, some of the text, and milliseconds
_TOOL_WIDTH_MIN = 8
_ASCII = {"█": "#", "·": ".", "┃": "|"}


class _SafeConsole(Console):
    """Shows whatever it is given as characters to be seen, and adds colours of its own alone."""

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterator[Segment]:
        for segment in super().render(renderable, options):
            if segment.control or segment.text.isprintable():
                yield segment
            else:
                yield Segment(visible(segment.text), segment.style)


def make_console(**options: Any) -> Console:
    """A console as wide as the terminal; what is piped elsewhere is not cut to 80 columns.

    It takes texts as they are: no markup, of which theirs may look like some.
    """
    plain = {"highlight": False, "markup": False, "emoji": False, **options}
    console: Console = _SafeConsole(**plain)
    if not console.is_terminal and "COLUMNS" not in os.environ:
        console = _SafeConsole(width=_PIPED_WIDTH, **plain)
    return console


_PIPED_WIDTH = 160


def runs_table(
    rows: Iterable[tuple[str, StoredRun]],
    console: Console,
    *,
    first_column: str,
    passed_word: str = "contributed",
    with_time: bool = True,
) -> Table:
    """Lay scored runs out, one a row.

    What the console has no room for goes in this order: the year, the bar, the day of a run of
    today and the time of day of others, the dimensions.

    Args:
        rows: Pairs of the name in the first column and the run.
        console: Where it is to be shown.
        first_column: Heading of the first column.
        passed_word: What to call the decision on a run that passed.
        with_time: Whether to show the local time at which each run began.
    """
    with_dimensions = console.width >= _WIDTH_FOR_DIMENSIONS
    with_bar = console.width >= _WIDTH_FOR_BAR
    whole_names = console.width >= _WIDTH_FOR_WHOLE_NAMES
    domain_width = 16 if whole_names else 9
    now = datetime.now().astimezone()
    gap = 1 if whole_names else 0  # besides the blank that the box has between columns
    table = Table(box=SIMPLE_HEAD, pad_edge=False, expand=True, padding=(0, gap, 0, 0))
    table.add_column(first_column, ratio=1, no_wrap=True, overflow="ellipsis", min_width=8)
    if with_time:
        table.add_column("time", no_wrap=True)
    table.add_column("domain", no_wrap=True, overflow="ellipsis", max_width=domain_width)
    for long, short, _ in _DIMENSIONS if with_dimensions else ():
        heading = long if whole_names else short
        table.add_column(heading, justify="right", no_wrap=True, min_width=len(heading))
    table.add_column("score", justify="right", no_wrap=True, min_width=5)
    table.add_column("of", justify="right", no_wrap=True, min_width=4)
    if with_bar:
        table.add_column("0 to 1", no_wrap=True, min_width=_BAR)
    table.add_column("decision", no_wrap=True)
    for name, run in rows:
        passed = run.decision == "contributed"
        style = "green" if passed else "bright_black"
        cells: list[RenderableType] = [Text(visible(_short(name)))]
        if with_time:
            cells.append(_time(run.created_at, now, console.width))
        cells.append(Text(visible(run.domain)))
        if with_dimensions:
            values = ScoreBreakdown.from_dict(run.breakdown).dimensions
            cells += (f"{values[key].value:.2f}" for *_, key in _DIMENSIONS)
        cells += (Text(f"{run.score:.3f}", style="bold " + style), f"{run.threshold:.2f}")
        if with_bar:
            cells.append(
                _bar(run.score, run.threshold, style, ascii_only=console.options.ascii_only)
            )
        table.add_row(*cells, Text(passed_word if passed else "below", style=style))
    return table


def _bar(score: float, threshold: float, style: str, *, ascii_only: bool) -> Text:
    """The score as a bar, with a mark where the threshold stands."""
    filled = round(score * _BAR)
    cells = ["█" if at < filled else "·" for at in range(_BAR)]
    mark = min(_BAR - 1, int(threshold * _BAR))
    cells[mark] = "┃"
    if ascii_only:
        cells = [_ASCII[cell] for cell in cells]
    text = Text("".join(cells), style=style)
    text.stylize("yellow", mark, mark + 1)
    return text


def _time(at: datetime, now: datetime, width: int) -> str:
    """The local time of a run, as much of it as a console of this width has room for."""
    local = at.astimezone(now.tzinfo)
    if width >= _WIDTH_FOR_YEAR:
        return f"{local:%Y-%m-%d %H:%M}"
    if width >= _WIDTH_FOR_WHOLE_NAMES:
        return f"{local:%m-%d %H:%M}"
    return f"{local:%H:%M}" if local.date() == now.date() else f"{local:%m-%d}"


def steps_table(trace: ReasoningTrace, console: Console) -> RenderableType:
    """The steps of a kept trace, one a row; names of tools come before the texts for room."""
    names = [visible(_short(step.tool.name)) if step.tool else "" for step in trace.steps]
    left = max(_TOOL_WIDTH_MIN, min(console.width // 2, console.width - _WIDTH_BESIDE_TOOL))
    room = min(max(map(cell_len, names), default=0), left)
    gap = 1 if console.width >= _WIDTH_FOR_WHOLE_NAMES else 0
    table = Table(box=SIMPLE_HEAD, pad_edge=False, padding=(0, gap, 0, 0))
    table.add_column("#", justify="right")
    table.add_column("step", no_wrap=True)
    table.add_column("tool", overflow="fold", width=max(room, len("tool")))
    table.add_column("what", ratio=1, overflow="fold")
    table.add_column("ms", justify="right", no_wrap=True)
    styles = {"error_recovery": "yellow", "tool_call": "cyan"}
    for step, name in zip(trace.steps, names, strict=True):
        what = step.content if step.content is not None else str(step.input or "")
        again = f" (tried {step.tries} times)" if step.tries > 1 else ""
        table.add_row(
            str(step.step_id),
            Text(step.type, style=styles.get(step.type, "")),
            Text(name),
            Text(visible(_short(what)) + again),
            "" if step.latency_ms is None else f"{step.latency_ms:.1f}",
        )
    return table


def keys_line(run: StoredRun) -> str:
    """What a run is found by, in one line; "" where there is nothing."""
    keys = {
        "session": run.session,
        "thread": run.thread,
        "user": run.user_hash,
        "name": run.run_name,
        "tags": ", ".join(run.tags),
    }
    return "  ".join(f"{key} {value}" for key, value in keys.items() if value)


def verdict_line(verdict: Verdict) -> str:
    """What somebody said of a run, in one line."""
    said = {True: "success", False: "failure", None: "no word on success"}[verdict.success]
    sure = "" if verdict.confidence is None else f", confidence {verdict.confidence:.2f}"
    note = f": {_short(verdict.note)}" if verdict.note else ""
    return f"verdict of {verdict.at:%Y-%m-%d %H:%M} UTC ({verdict.source}): {said}{sure}{note}"


def contributions_table(found: Iterable[Contribution], now: datetime) -> RenderableType:
    """Lay contributions out, one a row."""
    table = Table(box=SIMPLE_HEAD, pad_edge=False, expand=True, padding=(0, 1, 0, 0))
    table.add_column("trace", no_wrap=True, min_width=8)
    table.add_column("state", no_wrap=True, min_width=9)
    table.add_column("age", justify="right", no_wrap=True)
    table.add_column("tries", justify="right", no_wrap=True)
    table.add_column("the registry's id, or why not", ratio=1, no_wrap=True, overflow="ellipsis")
    styles = {"sent": "green", "dead": "red", "pending": "yellow", "withdrawn": "bright_black"}
    for one in found:
        why = one.registry_id if one.standing_in_words == "sent" else one.reason
        table.add_row(
            Text(short_id(one.trace_id)),
            Text(one.standing_in_words, style=styles[one.state]),
            _age((now - one.queued_at).total_seconds()),
            str(one.attempts),
            Text(visible(why or "")),
        )
    return table


def _age(seconds: float) -> str:
    for unit, length_s in (("d", 86_400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * length_s:
            return f"{seconds / length_s:.0f} {unit}"
    return f"{max(0.0, seconds):.0f} s"


def _short(text: str, limit: int = 300) -> str:
    flat = " ".join(text.split())
    return flat if len(flat) <= limit else flat[: limit - 1] + "…"
