"""The command `score`: traces in, one JSON object a line, and out with their scores."""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kp_langchain.cli.jsonl import STDIN
from kp_langchain.cli.line_scorer import LineScorer, file_bytes, profiles
from kp_langchain.errors import CannotResumeError
from kp_langchain.printable import one_line

if TYPE_CHECKING:
    from rich.progress import Progress

_SKIPPED, _INTERRUPTED = 1, 130
_LONGEST_MESSAGE_CHARS = 2000


def score(
    files: Annotated[
        list[str],
        typer.Argument(metavar="FILE...", help="Traces, one JSON object a line; - for stdin."),
    ],
    out: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="Write to this file instead of stdout."),
    ] = None,
) -> None:
    """Score traces, each compared with those before it, and write them with their scores.

    For each trace, one line of JSON is written: source (file and line), id, domain, score, the
    domain's threshold, whether it passed, the breakdown, and the trace itself.

    A line that holds no trace is reported on stderr as FILE:LINE: reason, and skipped. If the file
    of --out exists, the command resumes after its last line: the result is the same as without the
    interruption.

    Exit status: 0, every line was scored; 1, some were skipped, or an error ended the command;
    2, wrong usage; 130, interrupted.
    """
    _check_usage(files, out)
    from rich.text import Text

    with _progress_bar(files) as progress:

        def report(message: str) -> None:
            line = one_line(message, _LONGEST_MESSAGE_CHARS)
            progress.console.print(Text(line), soft_wrap=True)

        line_scorer = _line_scorer(
            report, lambda size_bytes: progress.advance(progress.task_ids[0], size_bytes)
        )
        _run(line_scorer, files, out, report)
    if line_scorer.skipped:
        raise typer.Exit(_SKIPPED)


def _line_scorer(report: Callable[[str], object], advance: Callable[[int], object]) -> LineScorer:
    from kp_langchain.config import Settings
    from kp_langchain.scoring.scorer import Scorer

    settings = Settings()
    # Without novelty_ttl_s: the scores must not depend on when an interrupted command is resumed.
    scorer = Scorer(
        profiles=profiles(settings),
        step_cap=settings.step_cap,
        max_remembered=settings.novelty_memory,
    )
    return LineScorer(scorer, settings, report=report, advance=advance)


def _run(
    line_scorer: LineScorer, files: Sequence[str], out: str | None, report: Callable[[str], object]
) -> None:
    is_reader_gone = False
    try:
        line_scorer.run(files, out)
    except BrokenPipeError:
        is_reader_gone = True  # whoever reads the output needs no summary either
        raise
    except KeyboardInterrupt:
        report("interrupted" + ("; the same command resumes from here" if out else ""))
        raise typer.Exit(_INTERRUPTED) from None
    except CannotResumeError as error:
        raise typer.BadParameter(f"cannot resume {out}: {error}") from error
    finally:
        if not is_reader_gone:
            report(line_scorer.summary())


def _check_usage(files: Sequence[str], out: str | None) -> None:
    for file in files:
        if files.count(file) > 1:
            raise typer.BadParameter(f"{file} is given more than once")
        if file == STDIN:
            continue
        try:
            status = Path(file).stat()
        except OSError as error:
            raise typer.BadParameter(f"{file}: {error.strerror}") from error
        if stat.S_ISDIR(status.st_mode):
            raise typer.BadParameter(f"{file} is a folder; give the files in it")
        if not os.access(file, os.R_OK):
            raise typer.BadParameter(f"{file} may not be read by this user")
        if out is not None and Path(out).exists() and Path(out).samefile(file):
            raise typer.BadParameter(f"{out} is both input and output; give another --out")


def _progress_bar(files: Sequence[str]) -> Progress:
    """Return a bar on stderr, shown if that is a terminal, whose one task counts the bytes read."""
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TimeRemainingColumn

    from kp_langchain.cli.console import make_console

    progress = Progress(
        BarColumn(),
        TaskProgressColumn(show_speed=False),
        TimeRemainingColumn(),
        console=make_console(stderr=True),
        disable=not sys.stderr.isatty(),
        transient=True,
    )
    sizes = [file_bytes(file) for file in files]
    progress.add_task("", total=None if None in sizes else sum(filter(None, sizes)))
    return progress
