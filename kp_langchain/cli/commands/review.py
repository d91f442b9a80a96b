"""The commands `review`, which lists scored runs, and `review show`, which explains one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

import typer
from rich.text import Text

from kp_langchain.cli.json_option import AsJson, AsJsonLines
from kp_langchain.cli.output import json_fields, say_json
from kp_langchain.cli.store_option import Database, has_registry, open_store
from kp_langchain.cli.where_option import Where, parse_keys
from kp_langchain.errors import KPError
from kp_langchain.gate.decision import decision_word
from kp_langchain.printable import printable, short_id

if TYPE_CHECKING:
    from rich.console import Console

    from kp_langchain.schema import ReasoningTrace
    from kp_langchain.store import StoredRun, TraceStore
    from kp_langchain.verdict import Verdict

review = typer.Typer(help="List scored runs, newest first; `show` explains one.")


@review.callback(invoke_without_command=True)
def list_runs(
    context: typer.Context,
    domain: Annotated[str | None, typer.Option(help="Only this domain.")] = None,
    decision: Annotated[
        Literal["kept", "contributed", "below_threshold"] | None,
        typer.Option(help="Only runs with this decision."),
    ] = None,
    min_score: Annotated[float, typer.Option(help="Only runs that scored at least this.")] = 0.0,
    where: Where = None,
    limit: Annotated[int, typer.Option(min=1, help="Show at most this many.")] = 30,
    database: Database = None,
    as_json: AsJsonLines = False,
) -> None:
    """List scored runs, newest first."""
    if context.invoked_subcommand is not None:
        context.obj = database
        return
    filters = parse_keys(where) | {
        "domain": domain,
        "decision": "contributed" if decision == "kept" else decision,
        "min_score": min_score or None,
    }
    with open_store(database) as store:
        runs = store.runs(limit=limit, **filters)
        total = store.count(**filters)
        if as_json:
            for run in runs:
                say_json(run.to_dict())
        elif runs:
            _print_runs(store, runs, total)
        else:
            _print_no_runs(store, domain)


def _print_runs(store: TraceStore, runs: list[StoredRun], total: int) -> None:
    from kp_langchain.cli.console import make_console
    from kp_langchain.cli.run_tables import runs_table

    console = make_console()
    rows = [(f"{short_id(run.trace_id)}  {run.objective}", run) for run in runs]
    passed_word = decision_word("contributed", has_registry=has_registry(store))
    console.print(runs_table(rows, console, first_column="run", passed_word=passed_word))
    console.print(
        f"{len(runs)} of {total} runs in {store.location}. "
        "Explain one: kp-langchain review show ID",
        soft_wrap=True,
    )


def _print_no_runs(store: TraceStore, domain: str | None) -> None:
    from kp_langchain.cli.console import make_console
    from kp_langchain.near_names import near_name
    from kp_langchain.weights import PROFILES

    number = store.count()
    others = f"; {number} others do not match" if number else ""
    near = None if domain is None else near_name(domain, PROFILES)
    hint = f" Did you mean --domain {near}?" if near else ""
    make_console().print(f"No scored runs in {store.location}{others}.{hint}", soft_wrap=True)


@review.command()
def show(
    context: typer.Context,
    run_id: Annotated[
        str, typer.Argument(metavar="ID", help="Trace id, run id, or the beginning of either.")
    ],
    database: Database = None,
    as_json: AsJson = False,
) -> None:
    """Explain how one run got its score, and show its steps if they were kept."""
    from kp_langchain.cli.console import make_console

    with open_store(database or context.obj) as store:
        run = store.get(run_id)
        if run is None:
            raise KPError(f"no run {run_id!r} in {store.location}; list them: kp-langchain review")
        trace = run.trace
        verdicts = store.verdicts(run.trace_id)
        if as_json:
            say_json(
                run.to_dict()
                | {
                    "verdicts": [json_fields(verdict) for verdict in verdicts],
                    "trace": trace.model_dump(mode="json") if trace else None,
                }
            )
            return
        console = make_console()
        decision = decision_word(
            run.decision,
            has_registry=has_registry(store),
            twin_of=run.twin_of,
            replaced_by=run.replaced_by,
        )
        _print_score(console, run, verdicts, decision)
        if trace is None:
            console.print(Text(_why_no_steps(run)), soft_wrap=True)
        else:
            _print_trace(console, run, trace)


def _print_score(console: Console, run: StoredRun, verdicts: list[Verdict], decision: str) -> None:
    from kp_langchain.cli.run_tables import keys_line, twin_line, verdict_line

    console.print(Text(printable(run.objective), style="bold"))
    console.print(
        Text(
            f"{run.trace_id}  {run.created_at:%Y-%m-%d %H:%M:%S} UTC  "
            f"{printable(run.domain)}  {printable(run.framework or '')}\n"
            f"{decision}: {run.gate} {run.gated_value:.3f}, threshold {run.threshold:.3f}"
        )
    )
    if twin := twin_line(run):
        console.print(Text(printable(twin)), soft_wrap=True)
    if keys := keys_line(run):
        console.print(Text(printable(keys)), soft_wrap=True)
    console.print(Text("\n" + run.breakdown.text() + "\n"))
    for verdict in verdicts:
        console.print(Text(printable(verdict_line(verdict))), soft_wrap=True)


def _why_no_steps(run: StoredRun) -> str:
    """Return why the store does not have the steps of a run, as far as that is known."""
    if run.withheld is not None:
        return f"The steps are not kept, because the run was withheld: {printable(run.withheld)}."
    text = "The store does not have the steps of this run"
    if run.decision == "below_threshold":
        text += "; by default it keeps those of a run that did not pass for `keep_days` only"
    return f"{text}."


def _print_trace(console: Console, run: StoredRun, trace: ReasoningTrace) -> None:
    from kp_langchain.cli.run_tables import steps_table

    console.print(steps_table(trace, console))
    if run.kept_until is not None:
        console.print(f"The steps are kept until {run.kept_until:%Y-%m-%d %H:%M} UTC.")
    console.print(Text(f"Result: {printable(trace.outcome.result_summary)}"))
