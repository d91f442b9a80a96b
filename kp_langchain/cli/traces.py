"""The commands `import` and `schema`: runs in files."""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import typer

from kp_langchain.archive.engines import Engine
from kp_langchain.cli.options import (
    INTERRUPTED,
    AsJsonLines,
    Database,
    new_app,
)
from kp_langchain.cli.outbox import current_registry, send_due
from kp_langchain.cli.output import say, say_json, warn
from kp_langchain.cli.sources import Sources, files_of, progress_bar
from kp_langchain.config import Settings
from kp_langchain.errors import KPError
from kp_langchain.schema import ReasoningTrace
from kp_langchain.text import one_line, printable, short_id

if TYPE_CHECKING:
    from kp_langchain.importing.importer import Imported
    from kp_langchain.importing.recorded_run import RecordedRun

_SKIPPED = 1
_REASON_CHARS = 500

_FATES = {
    "known": "known before",
    "paused": "paused",
    "cancelled": "cancelled",
    "unfinished": "without an end",
    "incomplete": "without their root",
    "empty": "without a step",
    "failed": "failed",
}

import_app, schema_app = new_app(), new_app()


@schema_app.command()
def schema() -> None:
    """Print the JSON Schema of a ReasoningTrace."""
    print(json.dumps(ReasoningTrace.model_json_schema(), indent=2))  # noqa: T201


# ------------------------------------------------------------------ import


@import_app.command("import")
def import_runs(
    sources: Sources,
    domain: Annotated[
        str | None, typer.Option(help="The domain of all runs; by default what each one names.")
    ] = None,
    agent_id: Annotated[
        str | None, typer.Option(help="The agent that ran, such as kp:agent:desk.")
    ] = None,
    engine: Annotated[
        Engine, typer.Option(help="What workers are: processes of this machine, or Ray's.")
    ] = "local",
    workers: Annotated[
        int,
        typer.Option(
            min=1, metavar="N", help="How many embed texts, each with the model (230 MB) in memory."
        ),
    ] = 1,
    database: Database = None,
    as_json: AsJsonLines = False,
) -> None:
    """Record runs that other tools recorded: each is redacted, scored, gated and stored.

    Sources hold spans in OTLP JSON (OpenInference, or OpenTelemetry's conventions for generative
    AI), runs exported from LangSmith, or conversations: one object with "messages" a line, and
    optionally id, domain, objective, success and confidence; or Parquet with these columns. A file
    whose first line is a JSON value is read line by line, any other as values over many lines.

    One line is printed for each new run: its id, domain, score, and decision. A run that the store
    has already is left out, so an interrupted import continues when it is started again. What
    cannot be used is reported on stderr as FILE:LINE: reason, and skipped.

    Nearly all time goes to the embedding model. More workers run it ahead; runs are still recorded
    by this process, in their order, with the same result.

    Exit status: 0, everything was used; 1, something was skipped, or an error ended the command;
    2, wrong usage; 130, interrupted.
    """
    files = files_of(sources)
    if domain is not None and not domain.strip():
        raise typer.BadParameter("--domain is empty; give a name such as finance")
    from kp_langchain.archive.import_workers import embedding_ahead
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
            with (
                embedding_ahead(importer, settings, engine, workers) as ahead,
                progress_bar("runs", is_shown=not sys.stdout.isatty()) as show,
            ):
                for done, result in enumerate(importer.run(ahead(_runs(files, domain, fates))), 1):
                    fates[result.fate] += 1
                    kept_count += result.scored is not None and result.scored.decision == "kept"
                    _say_imported(result, as_json=as_json)
                    show("import", done, None, fates["imported"])
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
    """Yield the runs of all files; report what cannot be used."""
    from kp_langchain.archive.sources import read_runs
    from kp_langchain.importing.recorded_run import Unusable

    for part in read_runs(files):
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
