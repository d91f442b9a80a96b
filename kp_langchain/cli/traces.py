"""The commands `import`, `score` and `schema`: traces and runs in files."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kp_langchain.cli.json_files import check_files, read_lines, read_values
from kp_langchain.cli.options import (
    INTERRUPTED,
    AsJsonLines,
    Database,
    new_app,
)
from kp_langchain.cli.outbox import current_registry, send_due
from kp_langchain.cli.output import STDIO, say, say_json, text_output, warn
from kp_langchain.config import Settings, warn_of_domain
from kp_langchain.errors import KPError
from kp_langchain.gate import decide, threshold_of
from kp_langchain.importing.json_lines import TOO_LONG, Line
from kp_langchain.policy import PROFILES
from kp_langchain.schema import ReasoningTrace
from kp_langchain.text import first_fault, one_line, printable, short_id

if TYPE_CHECKING:
    from kp_langchain.importing.importer import Imported
    from kp_langchain.importing.recorded_run import RecordedRun
    from kp_langchain.policy import ScoringWeights
    from kp_langchain.scoring.scorer import Scorer

_SKIPPED = 1
_LONGEST_MESSAGE_CHARS, _REASON_CHARS = 2000, 500

_FATES = {
    "known": "known before",
    "paused": "paused",
    "cancelled": "cancelled",
    "unfinished": "without an end",
    "incomplete": "without their root",
    "empty": "without a step",
    "failed": "failed",
}

import_app, score_app, schema_app = new_app(), new_app(), new_app()


@schema_app.command()
def schema() -> None:
    """Print the JSON Schema of a ReasoningTrace."""
    print(json.dumps(ReasoningTrace.model_json_schema(), indent=2))  # noqa: T201


# ------------------------------------------------------------------ score


@score_app.command()
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
    breakdown = scorer.evaluate(trace)
    domain = trace.metadata.task_domain
    warn_of_domain(domain, {*scorer.profiles, *settings.domains})
    own_threshold = settings.policy_for(domain).threshold
    threshold = threshold_of(domain, own_threshold).for_score(breakdown)
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

    if content is None:
        raise ValueError(TOO_LONG)
    try:
        trace = ReasoningTrace.model_validate_json(content)
    except ValidationError as error:
        raise ValueError(first_fault(error)) from None
    if b"NaN" in content or b"Infinity" in content:  # pydantic reads them as null in free fields
        json.loads(content, parse_constant=_refuse_constant)
    return trace


def _refuse_constant(constant: str) -> None:
    raise ValueError(f"Invalid JSON: {constant} is not valid in JSON")


# ------------------------------------------------------------------ import


@import_app.command("import")
def import_runs(
    files: Annotated[list[str], typer.Argument(metavar="FILE", help="JSON or JSONL; - for stdin.")],
    domain: Annotated[
        str | None, typer.Option(help="The domain of all runs; by default what each one names.")
    ] = None,
    agent_id: Annotated[
        str | None, typer.Option(help="The agent that ran, such as kp:agent:desk.")
    ] = None,
    database: Database = None,
    as_json: AsJsonLines = False,
) -> None:
    """Record runs that other tools recorded: each is redacted, scored, gated and stored.

    Files hold spans in OTLP JSON (OpenInference, or OpenTelemetry's conventions for generative
    AI), runs exported from LangSmith, or conversations: one object with "messages" a line, and
    optionally id, domain, objective, success and confidence. A file whose first line is a JSON
    value is read line by line, any other as values over many lines.

    One line is printed for each new run: its id, domain, score, and decision. A run that the store
    has already is left out, so an interrupted import continues when it is started again. What
    cannot be used is reported on stderr as FILE:LINE: reason, and skipped.

    Exit status: 0, everything was used; 1, something was skipped, or an error ended the command;
    2, wrong usage; 130, interrupted.
    """
    check_files(files)
    if domain is not None and not domain.strip():
        raise typer.BadParameter("--domain is empty; give a name such as finance")
    from kp_langchain.importing.importer import Importer

    settings = Settings.current()
    if settings.disabled:
        raise KPError("recording is switched off (KP_DISABLED, or `disabled` in kp.toml)")
    report = warn if as_json else say
    fates: Counter[str] = Counter()
    kept_count = 0
    from kp_langchain.store import TraceStore

    with TraceStore(database or settings.database_url) as store:
        importer = Importer(store, settings, domain=domain or "default", agent_id=agent_id)
        try:
            for result in importer.run(_runs(files, domain, fates)):
                fates[result.fate] += 1
                kept_count += result.scored is not None and result.scored.decision == "kept"
                _say_imported(result, as_json=as_json)
        except KeyboardInterrupt:
            warn("interrupted; the same command continues")
            raise typer.Exit(INTERRUPTED) from None
        finally:
            importer.close()
            others = [f"{text} {fates[fate]}" for fate, text in _FATES.items() if fates[fate]]
            if fates["skipped"]:
                others.append(f"skipped {fates['skipped']}")
            report(
                ", ".join([f"Imported {fates['imported']}, of which kept {kept_count}", *others])
                + "."
            )

        def count_due() -> int:
            return store.outbox.counts()["pending"] if kept_count else 0

        send_due(store, current_registry(), count_due, report)
    if fates["skipped"] or fates["failed"]:
        raise typer.Exit(_SKIPPED)


def _runs(files: Sequence[str], domain: str | None, fates: Counter[str]) -> Iterator[RecordedRun]:
    """Yield the runs of all files, over which a run may be spread; report what cannot be used."""
    from kp_langchain.importing.importer import FileReader
    from kp_langchain.importing.recorded_run import Unusable

    reader = FileReader()

    def parts() -> Iterator[RecordedRun | Unusable]:
        for file in files:
            try:
                for place, value, why in read_values(file):
                    if why:
                        yield Unusable(place, why)
                    else:
                        yield from reader.add(value, place)
            except KPError as error:  # what was read of it, and the other files, are of use
                yield Unusable("error", str(error))
        yield from reader.conclude()

    for part in parts():
        if isinstance(part, Unusable):
            fates["skipped"] += 1
            warn(f"{printable(part.place)}: {one_line(part.why, _REASON_CHARS)}")
        else:
            yield part if domain is None else replace(part, domain=domain)


def _say_imported(result: Imported, *, as_json: bool) -> None:
    """Print a run, if it is new."""
    run = result.scored
    if run is None:
        return
    trace, total = run.trace, run.breakdown.total
    domain = trace.metadata.task_domain
    if not as_json:
        say(f"{short_id(trace.id)}  {printable(domain)}  {total:.3f}  {run.decision}")
        return
    say_json(
        {
            "trace_id": trace.id,
            "run_id": str(run.run_id),
            "source": result.run.place,
            "domain": domain,
            "score": total,
            "threshold": run.threshold,
            "success": trace.metadata.success,
            "confidence": trace.outcome.confidence,
            "decision": run.decision,
        }
    )
