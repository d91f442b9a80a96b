"""What the commands that read archives share: their sources, and how they show what is done."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Annotated

import typer

from kp_langchain.cli.output import make_console, warn
from kp_langchain.errors import KPError, MissingExtraError

_SAID_EVERY_S = 60.0

Sources = Annotated[
    list[str],
    typer.Argument(
        metavar="SOURCE", help="Files, folders, patterns or URLs; - for standard input."
    ),
]


def files_of(sources: Sequence[str]) -> list[str]:
    """Return the files that sources stand for.

    Raises:
        BadParameter: There is none, or one is named twice.
        MissingExtraError: What opens them is not installed.
    """
    from kp_langchain.archive.files import find_files

    try:
        return find_files(sources)
    except MissingExtraError:
        raise
    except KPError as error:
        raise typer.BadParameter(str(error)) from error


@contextmanager
def progress_bar(
    unit: str, *, is_shown: bool = True
) -> Iterator[Callable[[str, int, int | None, int], object]]:
    """Yield what shows how far something is: on a terminal by a bar, else by a line each minute.

    It is called with the name of what is done, how many items of it are done, how many there are
    (None if that is not known), and how many units were done now.

    Args:
        unit: What is counted, in the plural.
        is_shown: Whether to show it.
    """
    from rich import progress

    has_bar = is_shown and sys.stderr.isatty()
    bar = progress.Progress(
        progress.TextColumn("{task.description}"),
        progress.BarColumn(),
        progress.MofNCompleteColumn(),
        progress.TextColumn("{task.fields[speed]}"),
        progress.TimeRemainingColumn(),
        console=make_console(stderr=True),
        disable=not has_bar,
        redirect_stdout=False,
    )
    tasks: dict[str, tuple[progress.TaskID, float]] = {}
    shown_at = said_at = time.monotonic()

    def show(name: str, done: int, total: int | None, units: int) -> None:
        nonlocal shown_at, said_at
        if name not in tasks:  # it began when what was before it ended
            tasks[name] = bar.add_task(name, total=total, speed=""), shown_at
        task, began_at = tasks[name]
        shown_at = time.monotonic()
        elapsed_s = shown_at - began_at
        speed = f"{units / elapsed_s:,.0f} {unit}/s" if units and elapsed_s else ""
        bar.update(task, completed=done, total=total, speed=speed)
        if is_shown and not has_bar and shown_at - said_at >= _SAID_EVERY_S:
            said_at = shown_at
            of_all = "" if total is None else f" of {total:,}"
            warn(" ".join([f"{name}: {done:,}{of_all}", *([speed] if speed else [])]))

    with bar:
        yield show
