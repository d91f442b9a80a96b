"""The commands `review`, which lists scored runs, and `review show`, `stats` and `compare`."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from kp_langchain.cli.json_option import AsJson, AsJsonLines
from kp_langchain.cli.output import json_fields, say_json
from kp_langchain.cli.run_filter_options import (
    Decision,
    Domain,
    MinScore,
    NearDuplicates,
    RecoveredErrors,
    Rule,
    Search,
    Session,
    Since,
    Tag,
    Tool,
    Until,
    run_filters,
)
from kp_langchain.cli.store_option import Database, open_store
from kp_langchain.cli.where_option import Where
from kp_langchain.errors import KPError, UnknownRunError

if TYPE_CHECKING:
    from kp_langchain.cli.run_details import RunDetails
    from kp_langchain.store import StoredRun, TraceStore
    from kp_langchain.store.run_columns import RunFilters

review = typer.Typer(
    help="List scored runs; `show` explains one, `compare` two, `stats` whole domains."
)

RunId = Annotated[
    str, typer.Argument(metavar="ID", help="Trace id, run id, or the beginning of either.")
]
Sort = Annotated[
    Literal["score", "novelty", "time"],
    typer.Option(help="The newest, the highest score, or the highest novelty first."),
]
Limit = Annotated[int, typer.Option(min=1, help="Show at most this many.")]
WithSteps = Annotated[bool, typer.Option("--steps", help="Show every step whole.")]


@review.callback(invoke_without_command=True)
def list_runs(
    context: typer.Context,
    domain: Domain = None,
    decision: Decision = None,
    min_score: MinScore = None,
    since: Since = None,
    until: Until = None,
    search: Search = None,
    rule: Rule = None,
    tool: Tool = None,
    recovered_errors: RecoveredErrors = False,
    near_duplicates: NearDuplicates = False,
    session: Session = None,
    tag: Tag = None,
    where: Where = None,
    sort: Sort = "time",
    limit: Limit = 30,
    database: Database = None,
    as_json: AsJsonLines = False,
) -> None:
    """List scored runs, newest first."""
    if context.invoked_subcommand is not None:
        context.obj = database
        return
    filters = run_filters(
        domain=domain,
        decision=decision,
        min_score=min_score,
        since=since,
        until=until,
        search=search,
        rule=rule,
        tool=tool,
        recovered_errors=recovered_errors,
        near_duplicates=near_duplicates,
        session=session,
        tag=tag,
        where=where,
    )
    with open_store(database) as store:
        runs = store.runs(sort=sort, limit=limit, **filters)
        if as_json:
            for run in runs:
                say_json(run.to_dict())
        elif runs:
            _print_runs(store, runs, store.count(**filters))
        else:
            _print_no_runs(store, filters)


def _print_runs(store: TraceStore, runs: list[StoredRun], total: int) -> None:
    from kp_langchain.cli.console import make_console
    from kp_langchain.cli.run_tables import review_table

    console = make_console()
    console.print(review_table(runs, console))
    console.print(
        f"{len(runs):,} of {total:,} {'run' if total == 1 else 'runs'} in {store.location}. "
        "Explain one: kp-langchain review show ID",
        soft_wrap=True,
    )


def _print_no_runs(store: TraceStore, filters: RunFilters) -> None:
    from kp_langchain.cli.console import make_console
    from kp_langchain.near_names import near_name
    from kp_langchain.weights import PROFILES

    number = store.count()
    beginning = f"No run of {number:,} matches" if number else "No scored runs"
    domain = filters.get("domain")
    near = None if domain is None else near_name(domain, PROFILES)
    hint = f" Did you mean --domain {near}?" if near else ""
    make_console().print(f"{beginning} in {store.location}.{hint}", soft_wrap=True)


@review.command()
def show(
    context: typer.Context,
    run_id: RunId,
    steps: WithSteps = False,
    database: Database = None,
    as_json: AsJson = False,
) -> None:
    """Explain how one run got its score, and show its calls and its answer."""
    with open_store(database or context.obj) as store:
        details = _details(store, run_id)
        if as_json:
            say_json(_details_json(details))
            return
        from kp_langchain.cli.console import make_console
        from kp_langchain.cli.run_details import print_details

        print_details(details, make_console(), with_steps=steps)


@review.command()
def stats(
    context: typer.Context,
    domain: Domain = None,
    since: Since = None,
    until: Until = None,
    where: Where = None,
    database: Database = None,
    as_json: AsJsonLines = False,
) -> None:
    """Show how many runs each domain keeps, and which dimension and rule costs most.

    With one domain it also shows its parts, its rules, its scores as a histogram, and what would
    pass at other thresholds.
    """
    from kp_langchain.review.stats import domain_stats

    filters = run_filters(domain=domain, since=since, until=until, where=where)
    with open_store(database or context.obj) as store:
        every = domain_stats(store.summaries(**filters))
        if as_json:
            for one in every:
                say_json(one.to_dict())
        elif every:
            from kp_langchain.cli.console import make_console
            from kp_langchain.cli.stats_tables import print_stats, waiting_line

            console = make_console()
            print_stats(every, console)
            if line := waiting_line(store):
                console.print(line, soft_wrap=True)
        else:
            _print_no_runs(store, filters)


@review.command()
def compare(
    context: typer.Context,
    first: RunId,
    second: RunId,
    database: Database = None,
    as_json: AsJson = False,
) -> None:
    """Show two runs side by side: their scores, and their steps aligned by tool calls."""
    from kp_langchain.cli.compared_runs import compared_json, print_compared

    with open_store(database or context.obj) as store:
        left, right = _details(store, first), _details(store, second)
        if as_json:
            say_json(compared_json(left, right))
            return
        from kp_langchain.cli.console import make_console

        print_compared(left, right, make_console())


def _details(store: TraceStore, run_id: str) -> RunDetails:
    """Return a run with what the store has about it.

    Raises:
        KPError: There is no such run, the id may mean several, or the store cannot be read.
    """
    from kp_langchain.cli.run_details import RunDetails
    from kp_langchain.review.recall_facts import recall_facts

    run = store.get(run_id)
    if run is None:
        raise KPError(f"no run {run_id!r} in {store.location}; list them: kp-langchain review")
    nearest = run.breakdown.nearest
    return RunDetails(
        run=run,
        trace=run.trace,
        verdicts=store.verdicts(run.trace_id),
        nearest=_other(store, None if nearest is None else nearest.trace_id),
        twin=_other(store, run.twin_of or run.replaced_by),
        recall=recall_facts(store, run),
    )


def _other(store: TraceStore, trace_id: str | None) -> StoredRun | None:
    with suppress(UnknownRunError):  # it is gone, and others' ids begin with its id
        return None if trace_id is None else store.get(trace_id)
    return None


def _details_json(details: RunDetails) -> dict[str, object]:
    from kp_langchain.review.recall_facts import credit_fields

    nearest, trace, recall = details.nearest, details.trace, details.recall
    return details.run.to_dict() | {
        "nearest_objective": None if nearest is None else nearest.objective,
        "verdicts": [json_fields(verdict) for verdict in details.verdicts],
        "shown": [
            json_fields(one) | {"objective": recall.objectives.get(one.trace_id)}
            for one in recall.shown
        ],
        "credit": None if recall.credit is None else credit_fields(recall.credit),
        "planted": recall.planted,
        "trace": None if trace is None else trace.model_dump(mode="json"),
    }
