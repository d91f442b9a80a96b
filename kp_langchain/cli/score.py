"""The command `score`: traces in, one JSON object a line, and out with their scores."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kp_langchain.cli.json_files import LONGEST_LINE_BYTES, Line, check_files, read_lines
from kp_langchain.cli.options import INTERRUPTED, new_app
from kp_langchain.cli.output import STDIO, say_json, text_output, warn
from kp_langchain.text import first_fault, one_line

if TYPE_CHECKING:
    from kp_langchain.config import Settings
    from kp_langchain.policy import ScoringWeights
    from kp_langchain.schema import ReasoningTrace
    from kp_langchain.scoring.scorer import Scorer

_SKIPPED = 1
_LONGEST_MESSAGE_CHARS = 2000

app = new_app()


@app.command()
def score(
    files: Annotated[
        list[str],
        typer.Argument(metavar="FILE", help="Traces, one JSON object a line; - for stdin."),
    ],
    out: Annotated[
        str, typer.Option(metavar="FILE", help="Write to this file; - for stdout.")
    ] = STDIO,
) -> None:
    """Score traces, each compared with those before it, and write them with their scores.

    For each trace, one line of JSON is written: source (file and line), trace_id, domain, score,
    the domain's threshold, whether it passed, the breakdown, and the trace itself.

    A line that holds no trace is reported on stderr as FILE:LINE: reason, and skipped. A file of
    --out is replaced when all is scored, and only you may read it.

    Exit status: 0, every line was scored; 1, some were skipped, or an error ended the command;
    2, wrong usage; 130, interrupted.
    """
    check_files(files)
    from kp_langchain.config import Settings
    from kp_langchain.scoring.scorer import Scorer

    settings = Settings()
    scorer = Scorer(
        profiles=_profiles(settings),
        step_cap=settings.step_cap,
        max_remembered=settings.novelty_memory,
    )
    counts: Counter[str] = Counter()
    lines = (line for file in files for line in read_lines(file))
    try:
        with text_output(out) as write:
            for line, trace in _read_traces(lines, counts):
                record = _record(line, trace, scorer, settings)
                counts["passed"] += record["passed"]
                counts["scored"] += 1
                say_json(record, {"trace": trace.model_dump(mode="json")}, write=write)
    except KeyboardInterrupt:
        warn(f"interrupted after {counts['scored']:,}")
        raise typer.Exit(INTERRUPTED) from None
    warn(
        f"scored {counts['scored']:,}, of which passed {counts['passed']:,}; "
        f"skipped {counts['skipped']:,}"
    )
    if counts["skipped"]:
        raise typer.Exit(_SKIPPED)


def _profiles(settings: Settings) -> Mapping[str, ScoringWeights]:
    """Return the weights that the settings give, by domain."""
    from kp_langchain.policy import PROFILES

    by_domain = {name: settings.policy_for(name).weights for name in (*PROFILES, *settings.domains)}
    return {domain: weights for domain, weights in by_domain.items() if weights is not None}


def _read_traces(
    lines: Iterable[Line], counts: Counter[str]
) -> Iterator[tuple[Line, ReasoningTrace]]:
    """Yield each line with its trace; report lines that hold none."""
    for line in lines:
        try:
            yield line, _read_trace(line.content)
        except ValueError as error:
            counts["skipped"] += 1
            warn(one_line(f"{line.place}: {error}", _LONGEST_MESSAGE_CHARS))


def _record(
    line: Line, trace: ReasoningTrace, scorer: Scorer, settings: Settings
) -> dict[str, Any]:
    """Return what is written of a trace beside the trace, which gets its score."""
    from kp_langchain.config import warn_of_domain
    from kp_langchain.gate import decide, threshold_of

    breakdown = scorer.evaluate(trace)
    domain = trace.metadata.task_domain
    warn_of_domain(domain, {*scorer.profiles, *settings.domains})
    configured = settings.policy_for(domain).threshold
    threshold = threshold_of(domain, configured).for_score(breakdown)
    trace.metadata.quality_score = breakdown.total
    return {
        "source": {"file": line.file, "line": line.number},
        "trace_id": trace.id,
        "domain": domain,
        "score": breakdown.total,
        "threshold": threshold,
        "passed": decide(breakdown.total, threshold) == "kept",
        "breakdown": breakdown.to_dict(),
    }


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
