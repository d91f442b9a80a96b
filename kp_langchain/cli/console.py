"""The terminal that tables and styled text are printed on."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from kp_langchain.cli.output import visible

_PIPED_WIDTH = 160


class _SafeConsole(Console):
    """Replace characters that would control the terminal; the only escapes are rich's own."""

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterator[Segment]:
        for segment in super().render(renderable, options):
            if segment.control or segment.text.isprintable():
                yield segment
            else:
                yield Segment(visible(segment.text), segment.style)


def make_console(**options: Any) -> Console:
    """Return a console as wide as the terminal; output to a pipe is not cut to 80 columns.

    It prints text as it is, without interpreting markup: text of a run may look like some.

    Args:
        options: Further arguments of rich's `Console`.
    """
    plain = {"highlight": False, "markup": False, "emoji": False, **options}
    console: Console = _SafeConsole(**plain)
    if not console.is_terminal and "COLUMNS" not in os.environ:
        console = _SafeConsole(width=_PIPED_WIDTH, **plain)
    return console
