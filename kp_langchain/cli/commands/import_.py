"""The command `import`: records runs from the files of other tracers."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from kp_langchain.cli.json_option import AsJsonLines
from kp_langchain.cli.jsonl import STDIN
from kp_langchain.cli.output import say, say_json
from kp_langchain.cli.sending import current_registry, send_due
from kp_langchain.cli.store_option import Database
from kp_langchain.errors import KPError
from kp_langchain.printable import one_line, printable, short_id

if TYPE_CHECKING:
    from kp_langchain.importing.importer import Imported
    from kp_langchain.importing.recorded_run import RecordedRun, Unusable
    from kp_langchain.store import TraceStore

_SKIPPED, _INTERRUPTED = 1, 130
_LONGEST_MESSAGE_CHARS = 500
_FATES = {
    "known": "known before",
    "paused": "paused",
    "cancelled": "cancelled",
    "unfinished": "without an end",
    "incomplete": "without their root",
    "empty": "without a step",
    "failed": "failed",
}

Files = Annotated[
    list[str], typer.Argument(metavar="FILE...", help="JSON or JSONL, also .gz; - for stdin.")
]
Format = Annotated[
    Literal["auto", "openinference", "genai", "langsmith", "messages"],
    typer.Option("--format", help="What the files hold; by default told from the content."),
]
Domain = Annotated[
    str | None, typer.Option(help="The domain of all runs; by default what each one names.")
]
AgentId = Annotated[str | None, typer.Option(help="The agent that ran, such as kp:agent:desk.")]
Timeout = Annotated[
    float, typer.Option(min=0, metavar="SECONDS", help="Take at most this long to send.")
]


def import_(
    files: Files,
    format: Format = "auto",  # noqa: A002 - the option's name
    domain: Domain = None,
    agent_id: AgentId = None,
    timeout: Timeout = 20.0,
    database: Database = None,
    as_json: AsJsonLines = False,
) -> None:
    """Record runs that other tools recorded: each is redacted, scored, gated and stored.

    Files hold spans in OTLP JSON (OpenInference, or OpenTelemetry's conventions for generative
    AI), runs exported from LangSmith, or conversations: one object with "messages" a line, and
    optionally id, domain, objective, success and confidence.

    One line is printed for each new run: its id, domain, score, and decision. A run that the store
    has already is left out, so an interrupted import continues when it is started again. What
    cannot be used is reported on stderr as FILE:LINE: reason, and skipped.

    Exit status: 0, everything was used; 1, something was skipped, or an error ended the command;
    2, wrong usage; 130, interrupted.
    """
    _check_usage(files, domain)
    from kp_langchain.config import Settings
    from kp_langchain.store import TraceStore

    settings = Settings.current()
    if settings.disabled:
        raise KPError("recording is switched off (KP_DISABLED, or `disabled` in kp.toml)")
    with TraceStore(database or settings.database_url) as store:
        report = _Report(store, as_json=as_json)
        try:
            _import_all(store, report, files, format, domain, agent_id)
        except KeyboardInterrupt:
            _warn("interrupted; the same command continues")
            raise typer.Exit(_INTERRUPTED) from None
        finally:
            report.conclude()
        send_due(store, current_registry(), report.count_due, timeout, report.say)
    if report.skipped or report.counts["failed"]:
        raise typer.Exit(_SKIPPED)


def _check_usage(files: Sequence[str], domain: str | None) -> None:
    for file in files:
        if files.count(file) > 1:
            raise typer.BadParameter(f"{file} is given more than once")
        if file == STDIN:
            continue
        try:
            is_folder = Path(file).is_dir()
            Path(file).stat()
        except (OSError, ValueError) as error:
            why = getattr(error, "strerror", None) or error
            raise typer.BadParameter(f"{file}: {why}") from error
        if is_folder:
            raise typer.BadParameter(f"{file} is a folder; give the files in it")
    if domain is not None and not domain.strip():
        raise typer.BadParameter("--domain is empty; give a name such as finance")


def _import_all(
    store: TraceStore,
    report: _Report,
    files: Sequence[str],
    format: str,  # noqa: A002
    domain: str | None,
    agent_id: str | None,
) -> None:
    from kp_langchain.config import Settings
    from kp_langchain.importing.importer import Importer

    importer = Importer(store, Settings.current(), domain=domain or "default", agent_id=agent_id)
    try:
        for imported in importer.run(_runs(files, format, domain, report)):
            report.add(imported)
    finally:
        importer.close()


def _runs(
    files: Sequence[str],
    format: str,  # noqa: A002
    domain: str | None,
    report: _Report,
) -> Iterator[RecordedRun]:
    """Yield the runs of all files, over which a run may be spread; report what cannot be used."""
    from kp_langchain.cli.import_files import read_values
    from kp_langchain.importing.importer import FORMATS, FileReader
    from kp_langchain.importing.recorded_run import Unusable

    reader = FileReader(next((one for one in FORMATS if one == format), None))

    def parts() -> Iterator[RecordedRun | Unusable]:
        for file in files:
            try:
                for one in read_values(file):
                    if one.why:
                        yield Unusable(one.place, one.why)
                    else:
                        yield from reader.add(one.value, one.place)
            except KPError as error:  # what was read of it, and the other files, are of use
                report.skip_file(error)
        yield from reader.conclude()

    for part in parts():
        if isinstance(part, Unusable):
            report.skip(part)
        else:
            yield part if domain is None else replace(part, domain=domain)


class _Report:
    """Prints what becomes of each run, and counts.

    Args:
        store: The store.
        as_json: Print runs as JSON, and everything else on stderr.

    Attributes:
        counts: How many runs had each fate.
        skipped: How many parts of the files could not be used.
    """

    def __init__(self, store: TraceStore, *, as_json: bool) -> None:
        self._store, self._as_json = store, as_json
        self.counts: Counter[str] = Counter()
        self._kept = 0
        self.skipped = 0
        self.say = _warn if as_json else say

    def add(self, imported: Imported) -> None:
        """Print a run, if it is new."""
        self.counts[imported.fate] += 1
        scored = imported.scored
        if scored is None:
            return
        trace, decision = scored.trace, scored.decision
        self._kept += decision == "kept"
        domain = trace.metadata.task_domain
        if self._as_json:
            say_json(
                {
                    "trace_id": trace.id,
                    "run_id": str(scored.run_id),
                    "source": imported.run.place,
                    "domain": domain,
                    "score": scored.breakdown.total,
                    "threshold": scored.threshold,
                    "success": trace.metadata.success,
                    "confidence": trace.outcome.confidence,
                    "decision": decision,
                }
            )
            return
        say(f"{short_id(trace.id)}  {printable(domain)}  {scored.breakdown.total:.3f}  {decision}")

    def skip(self, part: Unusable) -> None:
        """Report a part of a file that cannot be used."""
        self.skipped += 1
        _warn(f"{printable(part.place)}: {one_line(part.why, _LONGEST_MESSAGE_CHARS)}")

    def skip_file(self, error: KPError) -> None:
        """Report a file that cannot be read to its end."""
        self.skipped += 1
        _warn(f"error: {error}")

    def conclude(self) -> None:
        """Print the counts."""
        others = "".join(
            f", {text} {self.counts[fate]}" for fate, text in _FATES.items() if self.counts[fate]
        )
        skipped = f", skipped {self.skipped}" if self.skipped else ""
        self.say(
            f"Imported {self.counts['imported']}, of which kept {self._kept}{others}{skipped}."
        )

    def count_due(self) -> int:
        """Return how many traces wait to be sent, if any of them was imported."""
        return self._store.outbox.counts().get("pending", 0) if self._kept else 0


def _warn(line: str) -> None:
    say(line, file=sys.stderr)
