"""The command `kp-langchain`."""

from __future__ import annotations

import dataclasses
import json
import sys
from contextlib import suppress
from datetime import datetime
from io import StringIO
from typing import Annotated, Any, Literal, Optional

import typer
from rich.text import Text

from kp_langchain import __version__
from kp_langchain.cli import contributions
from kp_langchain.cli.calibrate import calibrate
from kp_langchain.cli.doctor import doctor
from kp_langchain.cli.label import label
from kp_langchain.cli.output import discard, is_closed_pipe, say, say_json
from kp_langchain.cli.score import score
from kp_langchain.cli.store_option import Database, has_registry, open_store
from kp_langchain.cli.trust import trust
from kp_langchain.cli.where_option import Where, keys_of
from kp_langchain.errors import KPError
from kp_langchain.gate import decision_word
from kp_langchain.printable import printable, short_id

_CLOSED_PIPE = 141  # as a shell has it of a command that SIGPIPE ended

app = typer.Typer(
    name="kp-langchain",
    help="Agent runs as scored, shareable knowledge.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
review = typer.Typer(help="List scored runs, newest first; `show` explains one.")
app.add_typer(review, name="review", invoke_without_command=True)
app.add_typer(contributions.outbox, name="outbox")
app.add_typer(calibrate, name="calibrate")
app.command()(contributions.withdraw)
app.command()(contributions.register)
app.command()(score)
app.command()(label)
app.command()(doctor)
app.command()(trust)


def main() -> None:
    """Run the command line; an error of this package ends it with its message and status 1.

    When the reader of the output closes its pipe, as `head` does, the command ends without a word
    and with status 141, like others on Unix.
    """
    try:
        status = _status()
    except (BrokenPipeError, SystemExit) as error:
        if not is_closed_pipe(error):
            raise
        discard(sys.stdout, sys.stderr)
        status = _CLOSED_PIPE
    sys.exit(status)


def _status() -> int:
    try:
        status = app(standalone_mode=False)
        if sys.stdout is not None:  # None where it was closed before this process began
            sys.stdout.flush()
    except KPError as error:
        from kp_langchain.cli.run_tables import make_console

        make_console(stderr=True).print(Text(f"error: {error}", style="red"), soft_wrap=True)
        return 1
    except typer.Abort:
        say("Aborted!", file=sys.stderr)
        return 1
    except OSError as error:
        if isinstance(error, BrokenPipeError) or error.filename is not None:
            raise
        discard(sys.stdout)
        say(f"error: the output cannot be written: {error.strerror}", file=sys.stderr)
        return 1
    except Exception as error:
        # Wrong usage: typer would print the arguments, such as names of files, as they are.
        show = getattr(error, "show", None)
        if show is None:
            raise
        told = StringIO()
        show(file=told)
        say(told.getvalue().rstrip("\n"), file=sys.stderr)
        return int(getattr(error, "exit_code", 1))
    return status if isinstance(status, int) else 0


def _version(wanted: bool) -> None:
    if wanted:
        print(f"kp-langchain {__version__}")  # noqa: T201
        raise typer.Exit


@app.callback()
def _root(
    _version_: Annotated[
        bool,
        typer.Option("--version", callback=_version, is_eager=True, help="Show the version."),
    ] = False,
) -> None:
    """Agent runs as scored, shareable knowledge."""


@review.callback()
def _list(
    context: typer.Context,
    domain: Annotated[Optional[str], typer.Option(help="Only this domain.")] = None,  # noqa: UP045
    decision: Annotated[
        Optional[Literal["kept", "contributed", "below_threshold"]],  # noqa: UP045
        typer.Option(help="Only runs with this decision."),
    ] = None,
    min_score: Annotated[float, typer.Option(help="Only runs that scored at least this.")] = 0.0,
    where: Where = None,
    limit: Annotated[int, typer.Option(min=1, help="At most so many.")] = 30,
    database: Database = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object a line.")] = False,
) -> None:
    if context.invoked_subcommand is not None:
        context.obj = database
        return
    from kp_langchain.cli.run_tables import make_console, runs_table
    from kp_langchain.near_names import near_name
    from kp_langchain.weights import PROFILES

    keys = keys_of(where)
    decision = "contributed" if decision == "kept" else decision
    with open_store(database) as store:
        runs = store.runs(
            domain=domain, decision=decision, min_score=min_score or None, limit=limit, **keys
        )
        total = store.count(domain=domain, decision=decision, min_score=min_score or None, **keys)
        if as_json:
            for run in runs:
                say_json(_as_json(run))
            return
        console = make_console()
        if not runs:
            hidden = store.count()
            but = f"; {hidden} others do not match" if hidden else ""
            meant = None if domain is None else near_name(domain, PROFILES)
            hint = f" Did you mean --domain {meant}?" if meant else ""
            console.print(f"No scored runs in {store.location}{but}.{hint}", soft_wrap=True)
            return
        rows = [(f"{short_id(run.trace_id)}  {run.objective}", run) for run in runs]
        passed = decision_word("contributed", has_registry=has_registry(store))
        console.print(runs_table(rows, console, first_column="run", passed_word=passed))
        console.print(
            f"{len(runs)} of {total} runs in {store.location}. "
            "Explain one: kp-langchain review show ID",
            soft_wrap=True,
            highlight=False,
        )


@review.command()
def show(
    context: typer.Context,
    run: Annotated[str, typer.Argument(metavar="ID", help="Trace id, run id, or its beginning.")],
    database: Database = None,
    as_json: Annotated[bool, typer.Option("--json", help="As one JSON object.")] = False,
) -> None:
    """Explain how one run got its score, and show its steps if they were kept."""
    from kp_langchain.cli.run_tables import keys_line, make_console, steps_table, verdict_line
    from kp_langchain.scoring.breakdown import ScoreBreakdown

    with open_store(database or context.obj) as store:
        found = store.get(run)
        if found is None:
            raise KPError(f"no run {run!r} in {store.location}; list them: kp-langchain review")
        trace = found.trace
        verdicts = store.verdicts(found.trace_id)
        if as_json:
            more = {
                "verdicts": [_as_json(verdict) for verdict in verdicts],
                "trace": trace.model_dump(mode="json") if trace else None,
            }
            say_json(_as_json(found) | more)
            return
        console = make_console()
        decision = decision_word(found.decision, has_registry=has_registry(store))
        console.print(Text(printable(found.objective), style="bold"))
        console.print(
            Text(
                f"{found.trace_id}  {found.created_at:%Y-%m-%d %H:%M:%S} UTC  "
                f"{printable(found.domain)}  {printable(found.framework or '')}\n"
                f"{decision}: {found.score:.3f} against a threshold of {found.threshold:.3f}"
            )
        )
        if keys := keys_line(found):
            console.print(Text(printable(keys)), soft_wrap=True)
        console.print(Text("\n" + ScoreBreakdown.from_dict(found.breakdown).text() + "\n"))
        for verdict in verdicts:
            console.print(Text(printable(verdict_line(verdict))), soft_wrap=True)
        if trace is None:
            console.print("The steps are not kept, because the run did not pass.")
            return
        console.print(steps_table(trace, console))
        if found.kept_until is not None:
            console.print(f"The steps are kept until {found.kept_until:%Y-%m-%d %H:%M} UTC.")
        console.print(Text(f"Result: {printable(trace.outcome.result_summary)}"))


def _as_json(run: Any) -> dict[str, Any]:
    fields = {field.name: getattr(run, field.name) for field in dataclasses.fields(run)}
    return {
        name: value.isoformat() if isinstance(value, datetime) else value
        for name, value in fields.items()
    }


@app.command()
def schema() -> None:
    """Print the JSON Schema of a ReasoningTrace."""
    from kp_langchain.schema import ReasoningTrace

    print(json.dumps(ReasoningTrace.model_json_schema(), indent=2))  # noqa: T201


@app.command()
def demo(
    model: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option(metavar="PROVIDER:NAME", help="A real chat model instead of the script."),
    ] = None,
    database: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option(help="Where to keep the runs; by default a file of the demo's own."),
    ] = None,
) -> None:
    """Run a few agents, score each run, and show what was kept and why."""
    from kp_langchain.cli.run_tables import make_console, runs_table
    from kp_langchain.config import Settings, data_dir
    from kp_langchain.demo.run import chat_model, run_tasks
    from kp_langchain.scoring.scorer import Scorer
    from kp_langchain.store import TraceStore

    console = make_console()
    settings = Settings()
    if settings.disabled:
        raise KPError("KP_DISABLED switches recording off, so there would be nothing to show")
    location = database or str(data_dir() / "demo.db")
    answering = chat_model(model) if model else None
    with TraceStore(location) as store:
        rows = []
        scorer = Scorer(step_cap=settings.step_cap, max_remembered=settings.novelty_memory)
        with console.status("Running agents and scoring what they did ..."):
            with suppress(KPError):  # the breakdowns say what is the matter with the model
                scorer.load()
            for task, scored in run_tasks(store, scorer, answering):
                stored = store.get(scored.trace.id) if scored else None
                if stored is not None and scored is not None:
                    rows.append((task.title, stored, scored))
        passed = decision_word("contributed", has_registry=has_registry(store))
        table = runs_table(
            [row[:2] for row in rows],
            console,
            first_column="run",
            passed_word=passed,
            with_time=False,  # all of now
        )
        console.print(table)
        kept = [row for row in rows if row[2].decision == "contributed"]
        best = max(rows, key=lambda row: row[1].score)
        console.print(Text(f"Why “{best[0]}” scored highest", style="bold"))
        console.print(Text(best[2].breakdown.text() + "\n"))
        console.print(
            Text(
                f"{passed.capitalize()}: {len(kept)} of {len(rows)} runs. Their traces, and the "
                f"breakdowns of all runs, lie in\n  {store.location}\n\n"
                "Go on with\n"
                f"  kp-langchain review --database {location}\n"
                f"  kp-langchain review show {short_id(best[1].trace_id)}"
                f" --database {location}\n"
                "  kp-langchain demo --model PROVIDER:NAME     the same tasks, a real model"
            ),
            soft_wrap=True,
        )
