"""The command `score`: past runs with their scores, as JSON lines or as an archive of Parquet."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from pydantic import ValidationError

from kp_langchain.archive.engines import Engine, usable_cores
from kp_langchain.cli.options import INTERRUPTED, new_app, open_store
from kp_langchain.cli.output import STDIO, say_json, text_output, warn
from kp_langchain.cli.sources import Sources, files_of, progress_bar
from kp_langchain.config import Settings
from kp_langchain.errors import KPError
from kp_langchain.text import first_fault, one_line, printable

if TYPE_CHECKING:
    from kp_langchain.archive.rows import Problem, Tools
    from kp_langchain.archive.run import Progress, ScoredRows
    from kp_langchain.calibration.model import ConfidenceModel

_SKIPPED = 1
_LONGEST_MESSAGE_CHARS = 2000

app = new_app()


@app.command()
def score(
    sources: Sources,
    out: Annotated[
        str,
        typer.Option(
            metavar="DEST", help="A folder or URL, a file of JSON lines, or - for stdout."
        ),
    ] = STDIO,
    engine: Annotated[
        Engine | None, typer.Option(help="For a folder: processes of this machine, or Ray.")
    ] = None,
    workers: Annotated[
        int | None, typer.Option(min=1, help="For a folder: how many; one for each core.")
    ] = None,
    block_rows: Annotated[
        int | None,
        typer.Option(min=1, metavar="N", help="For a folder: rows that a worker takes; 500."),
    ] = None,
    model: Annotated[
        list[str] | None,
        typer.Option(metavar="FILE", help="A confidence model as JSON, for worth; repeatable."),
    ] = None,
    database: Annotated[
        str | None, typer.Option(help="A store whose confidence models are used, for worth.")
    ] = None,
) -> None:
    """Score past runs, each compared with those before it, and write them with their scores.

    A source holds traces, one JSON object a line, or a Parquet column trace or messages; or what
    import reads: spans in OTLP JSON, runs exported from LangSmith, conversations. Runs that are no
    traces yet are redacted first.

    To a file of JSON lines or stdout, each row is one line: source (file and line), trace_id,
    domain, score, the domain's threshold, whether it passed, the breakdown, and the trace. A folder
    or URL gets Parquet files below domain=/day=, for millions of rows, by many workers; the same
    command continues what was interrupted.

    A row that holds no trace is reported on stderr as FILE:LINE: reason, and skipped. A file of
    --out is replaced when all is scored, and only you may read it.

    Exit status: 0, every row was scored; 1, some were skipped, or an error ended the command;
    2, wrong usage; 130, interrupted.
    """
    from kp_langchain.archive.run import tools_of

    files, settings = files_of(sources), Settings()
    tools = tools_of(settings, models=_models(model or (), database))
    if not _is_jsonl(out):
        _score_into_folder(
            files, out, tools, engine or "local", workers or usable_cores(), block_rows
        )
        return
    of_folders = {"--engine": engine, "--workers": workers, "--block-rows": block_rows}
    for name, option in of_folders.items():
        if option is not None:
            raise typer.BadParameter(f"{name} is for a folder or URL; --out is {out}")
    _score_into_lines(files, out, tools)


def _is_jsonl(out: str) -> bool:
    """Return whether a destination is a file of JSON lines, and no folder or URL."""
    if out.endswith((".jsonl", ".ndjson")) and "://" in out:
        raise typer.BadParameter(f"--out {out}: JSON lines go to a file here; name a folder's URL")
    if out.endswith(".gz"):
        raise typer.BadParameter(f"--out {out}: nothing is compressed; name it without .gz")
    path = Path(out)
    is_file = "://" not in out and path.exists() and not path.is_dir()
    return out == STDIO or path.suffix in (".jsonl", ".ndjson") or is_file


def _models(files: Sequence[str], database: str | None) -> dict[str, ConfidenceModel]:
    """Return the confidence models of files, and else of a store, by domain.

    Raises:
        KPError: One cannot be read, or was made by another version.
    """
    from kp_langchain.archive.sources import read_values

    models: dict[str, ConfidenceModel] = {}
    if database is not None:
        with open_store(database) as store:
            models = {one.domain: one for one in store.models.installed()}
    for file in files:
        for place, value, why in read_values(file):
            model = _model(place, value, why)
            models[model.domain] = model
    for one in models.values():
        one.check_current()
    return models


def _model(place: str, value: object, why: str) -> ConfidenceModel:
    from kp_langchain.calibration.model import ConfidenceModel

    fields = value.get("model", value) if isinstance(value, dict) else {}
    try:
        return ConfidenceModel.from_dict(fields)
    except ValidationError as error:
        raise KPError(
            f"{printable(place)}: no confidence model ({why or first_fault(error)}); write one "
            "with: kp-langchain calibrate show --json"
        ) from None


# ------------------------------------------------------------------ JSON lines


def _score_into_lines(files: list[str], out: str, tools: Tools) -> None:
    from kp_langchain.archive.run import score_stream
    from kp_langchain.archive.tables import scored_trace

    counts: Counter[str] = Counter()
    try:
        with text_output(out) as write:
            for part in score_stream(files, tools):
                for row, facts in enumerate(part.rows.facts):
                    record = _record(part, row)
                    counts["passed"] += record["passed"]
                    counts["scored"] += 1
                    trace = scored_trace(facts["trace"], float(part.scores.total[row]))
                    say_json(record, {"trace": trace}, write=write)
                for problem in part.problems:
                    _report(problem)
                counts["skipped"] += len(part.problems)
    except KeyboardInterrupt:
        warn(f"interrupted after {counts['scored']:,}")
        raise typer.Exit(INTERRUPTED) from None
    _conclude(counts["scored"], counts["passed"], counts["skipped"])


def _record(part: ScoredRows, row: int) -> dict[str, Any]:
    """Return what is written of a row beside its trace."""
    from kp_langchain.archive.tables import breakdown_of

    facts, breakdown = part.rows.facts[row], breakdown_of(part.rows, part.scores, part.judged, row)
    return {
        "source": {"file": facts["file"], "line": facts["line"]},
        "trace_id": part.rows.traces.trace_ids[row],
        "domain": part.rows.traces.domains[row],
        "score": breakdown.total,
        "threshold": part.judged.thresholds[row],
        "passed": part.judged.passed[row],
        "breakdown": breakdown.to_dict(),
    }


def _report(problem: Problem) -> None:
    warn(one_line(f"{problem.place}: {problem.reason}", _LONGEST_MESSAGE_CHARS))


def _conclude(scored: int, passed: int, skipped: int) -> None:
    warn(f"scored {scored:,}, of which passed {passed:,}; skipped {skipped:,}")
    if skipped:
        raise typer.Exit(_SKIPPED)


# ------------------------------------------------------------------ an archive


def _score_into_folder(
    files: list[str],
    out: str,
    tools: Tools,
    engine: Engine,
    workers: int,
    block_rows: int | None,
) -> None:
    from kp_langchain.archive.files import is_below, is_pipe
    from kp_langchain.archive.run import score_archive

    files = [file for file in files if not is_below(file, out)]  # which it may have written
    if not files:
        raise typer.BadParameter(f"all sources are in {out}; name another destination")
    for file in files:
        if is_pipe(file):
            raise typer.BadParameter(f"{file} can be read only once; for a folder, name files")

    def report(now: Progress) -> None:
        for problem in now.problems:
            _report(problem)
        show(now.name, now.done, now.total, now.rows)

    try:
        with progress_bar("rows") as show:
            summary = score_archive(
                files,
                out,
                tools,
                engine=engine,
                workers=workers,
                block_rows=block_rows,
                report=report,
            )
    except KeyboardInterrupt:
        warn("interrupted; the same command continues")
        raise typer.Exit(INTERRUPTED) from None
    for reason, count in summary.unmeasured.items():
        warn(f"novelty of {count:,} was not measured: {reason}")
    if summary.skipped:
        warn(f"what was skipped: {out.rstrip('/')}/_errors/*.parquet")
    _conclude(summary.scored, summary.passed, summary.skipped)
