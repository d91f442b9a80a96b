"""A score as a waterfall in the terminal."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from rich.table import Table
from rich.text import Text

from kp_langchain.cli.output import visible

if TYPE_CHECKING:
    from rich.console import Console

    from kp_langchain.scoring.breakdown import ScoreBreakdown
    from kp_langchain.scoring.waterfall import WaterfallRow

_WIDTH_FOR_REASONS = 110
_BAR_CELLS = 20
_FULL, _EMPTY, _MARK = "█", "·", "┃"
_ASCII = str.maketrans(_FULL + _EMPTY + _MARK, "#.|")


def waterfall(
    breakdown: ScoreBreakdown, console: Console, *, gate: str, threshold: float, passed: bool
) -> Table:
    """Return a score as a table of steps from zero to the total, with a bar for each.

    Args:
        breakdown: The score.
        console: Where the table will be printed. If it is narrow, the reasons are left out.
        gate: Whether the score or the worth is held against the threshold.
        threshold: The threshold, 0 to 1; a mark shows it in the row of what is held against it.
        passed: Whether the run passed.
    """
    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 1, 0, 0))
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True, justify="right")
    table.add_column(no_wrap=True, justify="right")
    table.add_column(no_wrap=True, width=_BAR_CELLS)
    table.add_column(overflow="fold", style="bright_black")
    for row in breakdown.waterfall():
        is_gated = row.kind == gate
        style = _style(row, is_gated=is_gated, passed=passed)
        table.add_row(
            Text(row.label, style=style),
            "rule" if row.kind == "rule" else row.figures,
            Text(row.amount, style=style),
            _bar(row, threshold if is_gated else None, style, console),
            Text(visible(row.why if has_room_for_reasons(console) else "")),
        )
    return table


def reasons(breakdown: ScoreBreakdown) -> Iterator[tuple[str, str]]:
    """Yield each part of a score and the reason for it, for consoles too narrow for both."""
    for row in breakdown.waterfall():
        if row.why:
            yield row.label, row.why


def has_room_for_reasons(console: Console) -> bool:
    """Return whether `waterfall` shows the reasons beside the bars."""
    return console.width >= _WIDTH_FOR_REASONS


def _style(row: WaterfallRow, *, is_gated: bool, passed: bool) -> str:
    if row.kind in ("dimension", "rule"):
        return "yellow" if row.end < row.start else "cyan"
    return ("bold green" if passed else "bold") if is_gated else ""


def _bar(row: WaterfallRow, threshold: float | None, style: str, console: Console) -> Text:
    low, high = sorted((row.start, row.end))
    first, last = round(low * _BAR_CELLS), round(high * _BAR_CELLS)
    if last == first and high > low:  # however small, it is seen
        first = min(first, _BAR_CELLS - 1)
        last = first + 1
    cells = [_FULL if first <= at < last else _EMPTY for at in range(_BAR_CELLS)]
    mark = None if threshold is None else min(_BAR_CELLS - 1, int(threshold * _BAR_CELLS))
    if mark is not None:
        cells[mark] = _MARK
    text = Text(style=style)
    for cell in cells:
        shown = cell.translate(_ASCII) if console.options.ascii_only else cell
        text.append(shown, {_EMPTY: "not bold bright_black", _MARK: "yellow"}.get(cell, ""))
    return text
