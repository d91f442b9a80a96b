"""`LineScorer`: scores the traces of JSONL lines, and resumes an output where it ends."""

from __future__ import annotations

import json
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kp_langchain.cli.jsonl import LONGEST_LINE_BYTES, STDIN, Line, read_lines
from kp_langchain.cli.resumable_output import Output, lines_at, lines_backwards
from kp_langchain.errors import CannotResumeError
from kp_langchain.near_names import warn_of_domain
from kp_langchain.printable import first_fault, printable_json

if TYPE_CHECKING:
    from kp_langchain.config import Settings
    from kp_langchain.schema import ReasoningTrace
    from kp_langchain.scoring.breakdown import ScoreBreakdown
    from kp_langchain.scoring.scorer import Scorer
    from kp_langchain.weights import ScoringWeights

# The lines of a group are held in memory together, and scored again if the process is killed before
# they are written.
_GROUP_LINES = 64
_GROUP_BYTES = 8 << 20


class LineScorer:
    """Score lines that hold traces, and count the results.

    Args:
        scorer: Scores the traces and remembers them.
        settings: Provide the thresholds of the domains.
        report: Called with each message for the user, a line of text.
        advance: Called with the number of bytes read.

    Attributes:
        scored: How many traces were scored.
        passed: How many of them reached their threshold.
        skipped: How many lines held no trace.
    """

    def __init__(
        self,
        scorer: Scorer,
        settings: Settings,
        *,
        report: Callable[[str], object],
        advance: Callable[[int], object],
    ) -> None:
        self._scorer = scorer
        self._settings = settings
        self._report = report
        self._advance = advance
        self.scored = self.passed = self.skipped = 0

    def summary(self) -> str:
        """Return the counts as a line of text."""
        return f"scored {self.scored:,}, of which passed {self.passed:,}; skipped {self.skipped:,}"

    def run(self, files: Sequence[str], out: str | None) -> None:
        """Score the lines of files and write one record for each trace.

        Args:
            files: The files, each once; `-` is standard input.
            out: The output file, which is resumed if it exists; None for standard output.

        Raises:
            BrokenPipeError: The reader of standard output closed it.
            CannotResumeError: The output file was not made from these files by this command.
            KPError: A file cannot be read or written.
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
        """Score lines, a group at a time.

        Yields:
            For each trace of a group, its line of JSON and whether the trace passed.
        """
        for group in _groups(lines):
            readable = []
            for line in group:
                try:
                    readable.append((line, read_trace(line.content)))
                except ValueError as error:
                    self.skipped += 1
                    self._report(f"{line.file}:{line.number}: {error}")
            traces = [trace for _, trace in readable]
            breakdowns = self._scorer.evaluate_many(traces, batch_size=_GROUP_LINES)
            yield [
                self._record(line, trace, breakdown)
                for (line, trace), breakdown in zip(readable, breakdowns, strict=True)
            ]

    def _record(
        self, line: Line, trace: ReasoningTrace, breakdown: ScoreBreakdown
    ) -> tuple[bytes, bool]:
        from kp_langchain.gate import decide, threshold_of

        domain = trace.metadata.task_domain
        warn_of_domain(domain, {*self._scorer.profiles, *self._settings.domains})
        configured = self._settings.policy_for(domain).threshold
        threshold = threshold_of(domain, configured).for_score(breakdown)
        passed = decide(breakdown.total, threshold) == "kept"
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
        """Return the lines of the files that the output has no record of yet."""
        if output.last is None:
            return chain.from_iterable(read_lines(file, self._advance) for file in files)
        last = output.last.values()
        file, number = last["source"]["file"], last["source"]["line"]
        if file not in files:
            raise CannotResumeError(f"its last line was made from {file}; give this file as well")
        self._report(f"resuming after {file}:{number}")
        position = files.index(file)
        for scored_file in files[:position]:
            self._advance(file_bytes(scored_file) or 0)
        lines = read_lines(file, self._advance)
        line = next((line for line in lines if line.number >= number), None)
        if line is None or not _holds(line, last["trace"]):
            raise CannotResumeError(
                f"its last line was made from {file}:{number}, which has changed"
            )
        later = (read_lines(file, self._advance) for file in files[position + 1 :])
        return chain(lines, chain.from_iterable(later))

    def _remember(self, out: str) -> None:
        """Fill the scorer's memory with what it held when the last line was written."""
        from pydantic import ValidationError

        from kp_langchain.novelty_sources import EMPTY_CACHE, NEAREST
        from kp_langchain.schema import ReasoningTrace

        capacity = self._scorer.max_remembered
        # Offsets of the newest records, and of the newest whose vectors are remembered, which can
        # be older ones.
        with_text: list[int] = []
        with_vector: list[int] = []
        for line in islice(lines_backwards(out), 1, None):  # without the rest after the last
            if len(with_text) < capacity:
                with_text.append(line.offset_bytes)
            elif not self._scorer.has_embedder or len(with_vector) >= capacity:
                break
            if line.values()["breakdown"]["novelty_source"] in (NEAREST, EMPTY_CACHE):
                with_vector.append(line.offset_bytes)
        offsets_bytes = sorted({*with_text, *with_vector[:capacity]})
        traces = (
            ReasoningTrace.model_validate(line.values()["trace"])
            for line in lines_at(out, offsets_bytes)
        )
        try:
            for _ in self._scorer.evaluate_many(traces, batch_size=_GROUP_LINES):
                pass
        except ValueError as error:
            fault = first_fault(error) if isinstance(error, ValidationError) else error
            raise CannotResumeError(f"a trace in it has been changed: {fault}") from error


def read_trace(content: bytes | None) -> ReasoningTrace:
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


def profiles(settings: Settings) -> Mapping[str, ScoringWeights]:
    """Return the weights that the settings give, by domain."""
    from kp_langchain.weights import PROFILES

    by_domain = {name: settings.policy_for(name).weights for name in (*PROFILES, *settings.domains)}
    return {domain: weights for domain, weights in by_domain.items() if weights is not None}


def file_bytes(file: str) -> int | None:
    """Return the size of a file, or None if it is not known in advance, as for a pipe."""
    status = None if file == STDIN else Path(file).stat()
    return status.st_size if status and stat.S_ISREG(status.st_mode) else None


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


def _holds(line: Line, trace: Mapping[str, Any]) -> bool:
    """Return whether `trace`, as an output has it, is that of `line`."""
    from kp_langchain.schema import ReasoningTrace

    try:
        of_line, of_output = read_trace(line.content), ReasoningTrace.model_validate(trace)
    except ValueError:
        return False
    return (of_line.task, of_line.steps, of_line.outcome) == (
        of_output.task,
        of_output.steps,
        of_output.outcome,
    )
