"""Tables of figures without frames, indented under a headline."""

from __future__ import annotations

from rich.box import SIMPLE_HEAD
from rich.console import RenderableType
from rich.padding import Padding
from rich.table import Table

INDENT = "  "
"""What a report's parts are indented by."""


def plain_table(*headings: str, right: bool = False) -> Table:
    """Return a table that folds only its last column if there is no room.

    Args:
        headings: The headings of its columns.
        right: Whether all columns but the first hold figures, which are aligned on the right.
    """
    table = Table(box=SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0))
    for number, heading in enumerate(headings[:-1]):
        table.add_column(heading, no_wrap=True, justify="right" if right and number else "left")
    table.add_column(headings[-1], overflow="fold", justify="right" if right else "left")
    return table


def indent(table: RenderableType) -> RenderableType:
    """Return a table indented under its headline."""
    return Padding(table, (0, 0, 0, len(INDENT)))


def percent(share: float) -> str:
    """Return a share as a percentage, a small one with more digits."""
    return f"{share:.0%}" if share >= 0.01 or not share else f"{100 * share:.2g}%"
