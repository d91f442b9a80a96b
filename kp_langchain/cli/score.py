"""The command `score`: traces in, one JSON object a line, and out with their scores."""

from __future__ import annotations

import json
import os
import stat
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Optional

import typer

from kp_langchain.cli.jsonl import (
    LONGEST_LINE_BYTES,
    STDIN,
    CannotGoOnError,
    Line,
    Output,
    newest_first,
    read_lines,
    written_at,
)
from kp_langchain.near_names import warn_of_domain
from kp_langchain.printable import one_line, printable_json

if TYPE_CHECKING:
    from rich.progress import Progress

    from kp_langchain.config import Settings
    from kp_langchain.schema import ReasoningTrace
    from kp_langchain.scoring.breakdown import ScoreBreakdown
    from kp_langchain.scoring.scorer import Scorer
    from kp_langchain.weights import ScoringWeights

# What is scored together is held together, and done again if the process is killed meanwhile.
_GROUP_LINES = 64
_GROUP_BYTES = 8 << 20
_SKIPPED, _INTERRUPTED = 1, 130
_LONGEST_MESSAGE_CHARS = 2000


def score(
    files: Annotated[
        list[str],
        typer.Argument(metavar="FILE...", help="Traces, one JSON object a line; - for stdin."),
    ],
    out: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option(metavar="FILE", help="Write to this file instead of stdout."),
    ] = None,
) -> None:
    """Score traces, each in the light of those before it, and write them with their scores.

    Of each trace comes one line of JSON: source (file and line), id, domain, score, the domain's
    threshold, whether it passed, the breakdown, and the trace itself.

    A line that is no trace is reported on stderr as FILE:LINE: reason, and skipped. If the file
    of --out is there already, scoring goes on after its last line, as if it had never stopped.

    Exit status: 0, every line was scored; 1, some were skipped, or it had to stop and said why;
    2, wrong usage; 130, interrupted.
    """
    _check(files, out)
    from rich.text import Text

    from kp_langchain.config import Settings
    from kp_langchain.scoring.scorer import Scorer

    settings = Settings()
    with _progress(files) as progress:

        def tell(message: str) -> None:
            line = one_line(message, _LONGEST_MESSAGE_CHARS)
            progress.console.print(Text(line), soft_wrap=True)

        scoring = Scoring(
            # Without novelty_ttl_s: what was scored before must not depend on when it is resumed.
            Scorer(
                profiles=profiles(settings),
                step_cap=settings.step_cap,
                max_remembered=settings.novelty_memory,
            ),
            settings,
            tell=tell,
            advance=lambda size_bytes: progress.advance(progress.task_ids[0], size_bytes),
        )
        wanted = True
        try:
            scoring.run(files, out)
        except BrokenPipeError:
            wanted = False  # whoever reads has enough, of the summary, too
            raise
        except KeyboardInterrupt:
            tell("interrupted" + ("; the same command goes on from here" if out else ""))
            raise typer.Exit(_INTERRUPTED) from None
        except CannotGoOnError as error:
            raise typer.BadParameter(f"{out} cannot be gone on with: {error}") from error
        finally:
            if wanted:
                tell(scoring.summary())
    if scoring.skipped:
        raise typer.Exit(_SKIPPED)


class Scoring:
    """Scores lines that hold traces and counts what became of them.

    Args:
        scorer: Scores and remembers.
        settings: Where the thresholds of the domains are found.
        tell: Is told what the user should know, a line at a time.
        advance: Is told how many bytes were read.
    """

    def __init__(
        self,
        scorer: Scorer,
        settings: Settings,
        *,
        tell: Callable[[str], object],
        advance: Callable[[int], object],
    ) -> None:
        self._scorer = scorer
        self._settings = settings
        self._tell = tell
        self._advance = advance
        self.scored = self.passed = self.skipped = 0

    def summary(self) -> str:
        """Return the counts in words."""
        return f"scored {self.scored:,}, of which passed {self.passed:,}; skipped {self.skipped:,}"

    def run(self, files: Sequence[str], out: str | None) -> None:
        """Score the lines of files and write the records.

        Args:
            files: The files, each once; `-` is standard input.
            out: Where to; a file that is there already is gone on with. None is standard output.

        Raises:
            CannotGoOnError: The file was not made from these files by this command.
            KPError: Something cannot be read or written.
        """
        with Output(out) as output:
            lines = self._lines_after(files, output)
            if out is not None and output.last is not None:
                self._remember(out)
            for records in self.records(lines):
                output.write(content for content, _ in records)
                self.scored += len(records)
                self.passed += sum(passed for _, passed in records)

    def records(self, lines: Iterable[Line]) -> Iterator[list[tuple[bytes, bool]]]:
        """Score lines, some at a time.

        Yields:
            The lines of JSON that come of them, each with whether the trace passed.
        """
        for group in _groups(lines):
            readable = []
            for line in group:
                try:
                    readable.append((line, read_trace(line.content)))
                except ValueError as error:
                    self.skipped += 1
                    self._tell(f"{line.file}:{line.number}: {error}")
            traces = [trace for _, trace in readable]
            breakdowns = self._scorer.evaluate_many(traces, batch_size=_GROUP_LINES)
            yield [
                self._record(line, trace, breakdown)
                for (line, trace), breakdown in zip(readable, breakdowns, strict=True)
            ]

    def _record(
        self, line: Line, trace: ReasoningTrace, breakdown: ScoreBreakdown
    ) -> tuple[bytes, bool]:
        from kp_langchain.gate import decide, default_threshold

        domain = trace.metadata.task_domain
        warn_of_domain(domain, {*self._scorer.profiles, *self._settings.domains})
        threshold = self._settings.policy_for(domain).threshold
        if threshold is None:
            threshold = default_threshold(domain, novelty_measured=breakdown.nearest is not None)
        passed = decide(breakdown.total, threshold) == "contributed"
        trace.metadata.quality_score = breakdown.total
        values = {
            "source": {"file": line.file, "line": line.number},
            "id": trace.id,
            "domain": domain,
            "score": breakdown.total,
            "threshold": threshold,
            "passed": passed,
            "breakdown": breakdown.to_dict(),
        }
        beginning = json.dumps(values, separators=(",", ":"))
        record = printable_json(f'{beginning[:-1]},"trace":{trace.model_dump_json()}}}')
        return f"{record}\n".encode(), passed

    def _lines_after(self, files: Sequence[str], output: Output) -> Iterator[Line]:
        """The lines that come after what was written before."""
        if output.last is None:
            return chain.from_iterable(read_lines(file, self._advance) for file in files)
        last = output.last.values()
        file, number = last["source"]["file"], last["source"]["line"]
        if file not in files:
            raise CannotGoOnError(f"its last line was made from {file}; give this file as well")
        self._tell(f"going on after {file}:{number}")
        at = files.index(file)
        for done in files[:at]:
            self._advance(_size_bytes(done) or 0)
        lines = read_lines(file, self._advance)
        line = next((line for line in lines if line.number >= number), None)
        if line is None or not _is_of(line, last["trace"]):
            raise CannotGoOnError(f"its last line was made from {file}:{number}, which has changed")
        later = (read_lines(file, self._advance) for file in files[at + 1 :])
        return chain(lines, chain.from_iterable(later))

    def _remember(self, out: str) -> None:
        """Let the scorer remember what it did when the last line was written."""
        from kp_langchain.schema import ReasoningTrace
        from kp_langchain.scoring.sources import EMPTY_CACHE, NEAREST

        room = self._scorer.max_remembered
        texts: list[int] = []  # where the lines stand whose texts are remembered, newest first
        vectors: list[int] = []  # and those with vectors, which can be older
        for written in islice(newest_first(out), 1, None):  # without what follows the last
            if len(texts) < room:
                texts.append(written.offset_bytes)
            elif not self._scorer.has_embedder or len(vectors) >= room:
                break
            if written.values()["breakdown"]["novelty_source"] in (NEAREST, EMPTY_CACHE):
                vectors.append(written.offset_bytes)
        offsets_bytes = sorted({*texts, *vectors[:room]})
        traces = (
            ReasoningTrace.model_validate(written.values()["trace"])
            for written in written_at(out, offsets_bytes)
        )
        try:
            for _ in self._scorer.evaluate_many(traces, batch_size=_GROUP_LINES):
                pass
        except ValueError as error:
            raise CannotGoOnError(f"a trace in it has been changed: {error}") from error


def read_trace(content: bytes | None) -> ReasoningTrace:
    """Return the trace that a line holds.

    Args:
        content: The line, or None for one that is too long.

    Raises:
        ValueError: It holds none; the message says why.
    """
    from pydantic import ValidationError

    from kp_langchain.schema import ReasoningTrace

    if content is None:
        raise ValueError(f"longer than {LONGEST_LINE_BYTES >> 20} MB")
    try:
        trace = ReasoningTrace.model_validate_json(content)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False, include_context=False)[0]
        place = ".".join(map(str, first["loc"]))
        more = error.error_count() - 1
        raise ValueError(
            f"{place}{': ' if place else ''}{first['msg'].removeprefix('Value error, ')}"
            f"{f' (and {more} more)' if more else ''}"
        ) from None
    if b"NaN" in content or b"Infinity" in content:  # in a field that takes anything, as null
        json.loads(content, parse_constant=_refuse_constant)
    return trace


def _refuse_constant(constant: str) -> None:
    raise ValueError(f"Invalid JSON: {constant} is no number of JSON")


def profiles(settings: Settings) -> Mapping[str, ScoringWeights]:
    """Return the weights that the settings give, by domain."""
    from kp_langchain.weights import PROFILES

    weights = {name: settings.policy_for(name).weights for name in (*PROFILES, *settings.domains)}
    return {domain: given for domain, given in weights.items() if given is not None}


def _groups(lines: Iterable[Line]) -> Iterator[list[Line]]:
    group: list[Line] = []
    size_bytes = 0
    for line in lines:
        group.append(line)
        size_bytes += len(line.content or b"")
        if len(group) == _GROUP_LINES or size_bytes >= _GROUP_BYTES:
            yield group
            group, size_bytes = [], 0
    if group:
        yield group


def _is_of(line: Line, trace: Mapping[str, Any]) -> bool:
    """Tell whether `trace`, as it was written, was made from `line`."""
    from kp_langchain.schema import ReasoningTrace

    try:
        read, written = read_trace(line.content), ReasoningTrace.model_validate(trace)
    except ValueError:
        return False
    return (read.task, read.steps, read.outcome) == (written.task, written.steps, written.outcome)


def _check(files: Sequence[str], out: str | None) -> None:
    for file in files:
        if files.count(file) > 1:
            raise typer.BadParameter(f"{file} is given more than once")
        if file == STDIN:
            continue
        try:
            found = Path(file).stat()
        except OSError as error:
            raise typer.BadParameter(f"{file}: {error.strerror}") from error
        if stat.S_ISDIR(found.st_mode):
            raise typer.BadParameter(f"{file} is a folder; give the files in it")
        if not os.access(file, os.R_OK):
            raise typer.BadParameter(f"{file} may not be read by this user")
        if out is not None and Path(out).exists() and Path(out).samefile(file):
            raise typer.BadParameter(f"{out} is to be read and to be written; give another --out")


def _size_bytes(file: str) -> int | None:
    """The size of a file, or None if it is not known in advance."""
    found = None if file == STDIN else Path(file).stat()
    return found.st_size if found and stat.S_ISREG(found.st_mode) else None


def _progress(files: Sequence[str]) -> Progress:
    """A bar on stderr, if that is a terminal, with one task, which counts the bytes read."""
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TimeRemainingColumn

    from kp_langchain.cli.run_tables import make_console

    progress = Progress(
        BarColumn(),
        TaskProgressColumn(show_speed=False),
        TimeRemainingColumn(),
        console=make_console(stderr=True),
        disable=not sys.stderr.isatty(),
        transient=True,
    )
    sizes = [_size_bytes(file) for file in files]
    progress.add_task("", total=None if None in sizes else sum(filter(None, sizes)))
    return progress
