"""A score as a waterfall: what each dimension and rule adds, from zero to the total."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rich.table import Table
from rich.text import Text

from kp_langchain.cli.output import visible
from kp_langchain.scoring.dimensions import DIMENSIONS
from kp_langchain.scoring.rules import REASONS
from kp_langchain.scoring.worth import novelty_factor

if TYPE_CHECKING:
    from rich.console import Console

    from kp_langchain.scoring.breakdown import ScoreBreakdown

_WIDTH_FOR_REASONS = 110
_BAR_CELLS = 20
_FULL, _EMPTY, _MARK = "█", "·", "┃"
_ASCII = str.maketrans(_FULL + _EMPTY + _MARK, "#.|")


@dataclass(frozen=True, slots=True)
class _Row:
    """One row: what it is called, its figures, and from where to where its bar goes, 0 to 1."""

    label: str
    figures: str
    amount: str
    start: float
    end: float
    why: str = ""
    style: str = ""


def waterfall(
    breakdown: ScoreBreakdown, console: Console, *, gate: str, threshold: float, passed: bool
) -> Table:
    """Return a score as a table of steps from zero to the total, with a bar for each.

    Args:
        breakdown: The score.
        console: Where the table will be printed. If it is narrow, reasons have lines of their own.
        gate: Whether the score or the worth is held against the threshold.
        threshold: The threshold, 0 to 1; a mark shows it in the row of what is held against it.
        passed: Whether the run passed.
    """
    is_wide = console.width >= _WIDTH_FOR_REASONS
    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 1, 0, 0))
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True, justify="right")
    table.add_column(no_wrap=True, justify="right")
    table.add_column(no_wrap=True, width=_BAR_CELLS)
    table.add_column(overflow="fold", style="bright_black")
    for row in _rows(breakdown):
        is_gated = row.label == gate
        style = ("bold green" if passed else "bold") if is_gated else row.style
        bar = _bar(row, threshold if is_gated else None, style, console)
        why = Text(visible(row.why))
        table.add_row(
            Text(row.label, style=style), row.figures, Text(row.amount, style=style), bar,
            why if is_wide else "",
        )  # fmt: skip
    return table


def reasons(breakdown: ScoreBreakdown) -> Iterator[tuple[str, str]]:
    """Yield each part of a score and the reason for it, for consoles too narrow for both."""
    for row in _rows(breakdown):
        if row.why:
            yield row.label, row.why


def has_room_for_reasons(console: Console) -> bool:
    """Return whether `waterfall` shows the reasons beside the bars."""
    return console.width >= _WIDTH_FOR_REASONS


def _rows(breakdown: ScoreBreakdown) -> Iterator[_Row]:
    level = 0.0
    for definition in DIMENSIONS:
        one = breakdown.dimensions[definition.name]
        figures = f"{one.value:.3f} x {one.weight:.2f}"
        after = level + one.contribution
        yield _Row(
            definition.label, figures, f"{one.contribution:+.3f}", level, after, one.why, "cyan"
        )
        level = after
    for rule in breakdown.rules:
        change = rule.after - rule.before
        style = "yellow" if change < 0 else "cyan"
        why = REASONS.get(rule.name, "")
        yield _Row(rule.name, "rule", f"{change:+.3f}", rule.before, rule.after, why, style)
    yield _Row("score", "", f"{breakdown.total:.3f}", 0.0, breakdown.total)
    if breakdown.worth is not None:
        worth = breakdown.worth
        figures = f"{worth.confidence:.3f} x {novelty_factor(breakdown.novelty.value):.2f}"
        why = "confidence x (0.5 + novelty / 2)"
        yield _Row("worth", figures, f"{worth.value:.3f}", 0.0, worth.value, why)


def _bar(row: _Row, threshold: float | None, style: str, console: Console) -> Text:
    low, high = sorted((row.start, row.end))
    first, last = round(low * _BAR_CELLS), round(high * _BAR_CELLS)
    if last == first and high > low:  # however small, it is seen
        first, last = min(first, _BAR_CELLS - 1), min(first, _BAR_CELLS - 1) + 1
    cells = [_FULL if first <= at < last else _EMPTY for at in range(_BAR_CELLS)]
    mark = None
    if threshold is not None:
        mark = min(_BAR_CELLS - 1, int(threshold * _BAR_CELLS))
        cells[mark] = _MARK
    line = "".join(cells)
    text = Text(line.translate(_ASCII) if console.options.ascii_only else line, style=style)
    for at, cell in enumerate(cells):
        if cell == _EMPTY:
            text.stylize("not bold bright_black", at, at + 1)
    if mark is not None:
        text.stylize("yellow", mark, mark + 1)
    return text
