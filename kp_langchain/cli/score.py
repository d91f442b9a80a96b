"""The command `score`: traces in, one JSON object a line, and out with their scores."""

from __future__ import annotations

import json
import os
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from io import FileIO
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kp_langchain.cli.json_files import LONGEST_LINE_BYTES, Line, check_files, read_lines
from kp_langchain.cli.options import INTERRUPTED, new_app
from kp_langchain.cli.output import file_errors, warn
from kp_langchain.text import first_fault, one_line, printable_json

if TYPE_CHECKING:
    from kp_langchain.config import Settings
    from kp_langchain.policy import ScoringWeights
    from kp_langchain.schema import ReasoningTrace
    from kp_langchain.scoring.breakdown import ScoreBreakdown
    from kp_langchain.scoring.scorer import Scorer

_SKIPPED = 1
_LONGEST_MESSAGE_CHARS = 2000
# Every output line begins with this; a file whose lines do not is not an output of the command.
_PREFIX = b'{"source":{"file":"'

app = new_app()


@app.command()
def score(
    files: Annotated[
        list[str],
        typer.Argument(metavar="FILE", help="Traces, one JSON object a line; - for stdin."),
    ],
    out: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="Write to this file instead of stdout."),
    ] = None,
) -> None:
    """Score traces, each compared with those before it, and write them with their scores.

    For each trace, one line of JSON is written: source (file and line), trace_id, domain, score,
    the domain's threshold, whether it passed, the breakdown, and the trace itself.

    A line that holds no trace is reported on stderr as FILE:LINE: reason, and skipped. If the file
    of --out exists, the command resumes after its last line: the result is the same as without the
    interruption.

    Exit status: 0, every line was scored; 1, some were skipped, or an error ended the command;
    2, wrong usage; 130, interrupted.
    """
    _check_usage(files, out)
    from kp_langchain.config import Settings
    from kp_langchain.scoring.scorer import Scorer

    settings = Settings()
    # Without novelty_ttl_s: the scores must not depend on when an interrupted command is resumed.
    scorer = Scorer(
        profiles=_profiles(settings),
        step_cap=settings.step_cap,
        max_remembered=settings.novelty_memory,
    )
    scoring = Scoring(scorer, settings)
    is_reader_gone = False
    try:
        scoring.run(files, out)
    except BrokenPipeError:
        is_reader_gone = True  # whoever reads the output needs no summary either
        raise
    except KeyboardInterrupt:
        warn("interrupted" + ("; the same command resumes from here" if out else ""))
        raise typer.Exit(INTERRUPTED) from None
    finally:
        if not is_reader_gone:
            counts = f"scored {scoring.scored:,}, of which passed {scoring.passed:,}"
            warn(f"{counts}; skipped {scoring.skipped:,}")
    if scoring.skipped:
        raise typer.Exit(_SKIPPED)


def _check_usage(files: Sequence[str], out: str | None) -> None:
    check_files(files)
    for file in files:
        if Path(file).exists() and not os.access(file, os.R_OK):
            raise typer.BadParameter(f"{file} may not be read by this user")
        if out and Path(out).exists() and Path(file).exists() and Path(out).samefile(file):
            raise typer.BadParameter(f"{out} is both input and output; give another --out")


def _profiles(settings: Settings) -> Mapping[str, ScoringWeights]:
    """Return the weights that the settings give, by domain."""
    from kp_langchain.policy import PROFILES

    by_domain = {name: settings.policy_for(name).weights for name in (*PROFILES, *settings.domains)}
    return {domain: weights for domain, weights in by_domain.items() if weights is not None}


class Scoring:
    """Scores the traces of JSON lines, and counts the results.

    Args:
        scorer: Scores the traces and remembers them.
        settings: Provide the thresholds of the domains.

    Attributes:
        scored: How many traces were scored.
        passed: How many of them reached their threshold.
        skipped: How many lines held no trace.
    """

    def __init__(self, scorer: Scorer, settings: Settings) -> None:
        self._scorer, self._settings = scorer, settings
        self.scored = self.passed = self.skipped = 0

    def run(self, files: Sequence[str], out: str | None) -> None:
        """Score the lines of files and write one record for each trace.

        Args:
            files: The files, each once; `-` is standard input.
            out: The output file, which is resumed if it exists; None for standard output.

        Raises:
            BadParameter: The output file was not made from these files by this command.
            BrokenPipeError: The reader of standard output closed it.
            KPError: A file cannot be read or written.
        """
        lines: Iterator[Line] = chain.from_iterable(map(read_lines, files))
        if out is not None and Path(out).is_file():
            lines = self._resume(files, out)
        name = "standard output" if out is None else out
        with file_errors(name, "opened"):
            # Not buffered: a line that was written is there even if the process is killed.
            file = FileIO(os.dup(1), "w") if out is None else FileIO(out, "a")
        with file:
            for record, passed in self._records(lines):
                rest = memoryview(record)
                with file_errors(name, "written"):
                    while rest:
                        rest = rest[os.write(file.fileno(), rest) :]
                self.scored += 1
                self.passed += passed

    def _records(self, lines: Iterable[Line]) -> Iterator[tuple[bytes, bool]]:
        """Yield for each trace its line of JSON, and whether it passed."""
        for line in lines:
            try:
                trace = _read_trace(line.content)
            except ValueError as error:
                self.skipped += 1
                message = f"{line.file}:{line.number}: {error}"
                warn(one_line(message, _LONGEST_MESSAGE_CHARS))
                continue
            yield self._record(line, trace, self._scorer.evaluate(trace))

    def _record(
        self, line: Line, trace: ReasoningTrace, breakdown: ScoreBreakdown
    ) -> tuple[bytes, bool]:
        from kp_langchain.config import warn_of_domain
        from kp_langchain.gate import decide, threshold_of

        domain = trace.metadata.task_domain
        warn_of_domain(domain, {*self._scorer.profiles, *self._settings.domains})
        configured = self._settings.policy_for(domain).threshold
        threshold = threshold_of(domain, configured).for_score(breakdown)
        passed = decide(breakdown.total, threshold) == "kept"
        trace.metadata.quality_score = breakdown.total
        values = {
            "source": {"file": line.file, "line": line.number},
            "trace_id": trace.id,
            "domain": domain,
            "score": breakdown.total,
            "threshold": threshold,
            "passed": passed,
            "breakdown": breakdown.to_dict(),
        }
        beginning = json.dumps(values, separators=(",", ":"))
        record = printable_json(f'{beginning[:-1]},"trace":{trace.model_dump_json()}}}')
        return f"{record}\n".encode(), passed

    def _resume(self, files: Sequence[str], out: str) -> Iterator[Line]:
        """Return the lines of the files that an output has no record of yet.

        Remove the incomplete line that a killed process may leave at its end, and remember the
        last traces.
        """
        written = _read_output(out, self._scorer.max_remembered)
        lines = chain.from_iterable(map(read_lines, files))
        if written.traces:
            if written.file not in files:
                raise _cannot_resume(out, f"its last line was made from {written.file}; give it")
            warn(f"resuming after {written.file}:{written.line}")
            lines = chain.from_iterable(map(read_lines, files[files.index(written.file) :]))
            line = next((one for one in lines if one.number >= written.line), None)
            if line is None or not _holds(line, written.traces[-1]):
                where = f"{written.file}:{written.line}"
                raise _cannot_resume(out, f"its last line was made from {where}, which has changed")
            for trace in written.traces:
                self._scorer.remember(trace)
        with file_errors(out, "written"):
            os.truncate(out, written.size_bytes)
        return lines


class _Written:
    """What an output holds: its last traces, where the last is from, the size of whole lines."""

    def __init__(self, most: int) -> None:
        self.traces: deque[ReasoningTrace] = deque(maxlen=most)
        self.file, self.line, self.size_bytes = "", 0, 0


def _read_output(out: str, most: int) -> _Written:
    from kp_langchain.schema import ReasoningTrace

    written = _Written(most)
    records: deque[Any] = deque(maxlen=most)
    with file_errors(out, "read"), Path(out).open("rb") as stream:
        try:
            for content in stream:
                is_ours = content.startswith(_PREFIX[: len(content)])
                if is_ours and not content.endswith(b"\n"):
                    break
                record = json.loads(content) if is_ours else {}
                written.file, written.line = record["source"]["file"], record["source"]["line"]
                records.append(record["trace"])
                written.size_bytes += len(content)
            written.traces.extend(map(ReasoningTrace.model_validate, records))
        except (ValueError, LookupError, TypeError, RecursionError):
            where = f"the content after byte {written.size_bytes}"
            raise _cannot_resume(out, f"{where} was not written by this command") from None
    return written


def _cannot_resume(out: str, why: str) -> typer.BadParameter:
    return typer.BadParameter(f"cannot resume {out}: {why}")


def _holds(line: Line, written: ReasoningTrace) -> bool:
    """Return whether a line holds the trace that an output has of it."""
    try:
        trace = _read_trace(line.content)
    except ValueError:
        return False
    return (trace.id, trace.task, trace.steps) == (written.id, written.task, written.steps)


def _read_trace(content: bytes | None) -> ReasoningTrace:
    """Return the trace that a line holds.

    Args:
        content: The line, or None for one that is too long.

    Raises:
        ValueError: The line holds no trace; the message says why.
    """
    from pydantic import ValidationError

    from kp_langchain.schema import ReasoningTrace

    if content is None:
        raise ValueError(f"longer than {LONGEST_LINE_BYTES >> 20} MB")
    try:
        trace = ReasoningTrace.model_validate_json(content)
    except ValidationError as error:
        raise ValueError(first_fault(error)) from None
    if b"NaN" in content or b"Infinity" in content:  # pydantic reads them as null in free fields
        json.loads(content, parse_constant=_refuse_constant)
    return trace


def _refuse_constant(constant: str) -> None:
    raise ValueError(f"Invalid JSON: {constant} is not valid in JSON")
