"""The command `recall`: what a run would be shown, and what it did for runs to be shown that."""

from __future__ import annotations

import sys
from contextlib import nullcontext
from typing import TYPE_CHECKING, Annotated

import typer

from kp_langchain.cli.output import say, say_json
from kp_langchain.cli.store_option import Database, open_store
from kp_langchain.near_names import near_name

if TYPE_CHECKING:
    from collections.abc import Collection

    from kp_langchain.cli.recall_tables import CreditRow
    from kp_langchain.recall.example import Examples
    from kp_langchain.store import TraceStore

_EXAMPLES, _ROWS = 1, 30


def recall(
    task: Annotated[
        str | None, typer.Argument(metavar="TASK", help="The task of a run, in words.")
    ] = None,
    domain: Annotated[
        str | None, typer.Option(help="The run's domain; with --credit, only this domain.")
    ] = None,
    namespace: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="The run's namespace, such as a tenant's id."),
    ] = None,
    limit: Annotated[
        int | None,
        typer.Option(min=1, help=f"At most so many traces: {_EXAMPLES}, or {_ROWS} with --credit."),
    ] = None,
    floor: Annotated[
        float | None,
        typer.Option(help="Least similarity of tasks, 0 to 1; by default calibrated."),
    ] = None,
    tool: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME", help="A tool that the agent has; may be repeated. By default all."
        ),
    ] = None,
    few_shot: Annotated[
        bool, typer.Option("--few-shot", help="Print the text that a model would get.")
    ] = False,
    credit: Annotated[
        bool, typer.Option("--credit", help="List the traces that runs were shown, best first.")
    ] = False,
    database: Database = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object; with --credit, one a line.")
    ] = False,
) -> None:
    """Show which kept traces a run with this task would be shown, or why none.

    --credit lists the traces that runs were shown: by how much more of these runs succeeded than
    of the runs that were held out from the trace. One that runs ended worse with is no longer
    shown.

    The first search in a domain embeds the tasks of its kept traces.
    """
    if (task is None) is not credit:
        raise typer.BadParameter("give either a TASK or --credit")
    if credit:
        if namespace is not None or floor is not None or tool or few_shot:
            raise typer.BadParameter("--namespace, --floor, --tool and --few-shot belong to a TASK")
        with open_store(database) as store:
            _list_credits(store, domain, limit or _ROWS, as_json=as_json)
        return
    if domain is None:
        raise typer.BadParameter("give the domain of the run: --domain NAME")
    with open_store(database) as store:
        examples = _find(
            store, task or "", domain, namespace, limit or _EXAMPLES, floor, tool or ()
        )
        if few_shot and not as_json:
            _print_few_shot(examples)
        else:
            _print_examples(store, examples, domain, few_shot=few_shot, as_json=as_json)


def _find(
    store: TraceStore,
    task: str,
    domain: str,
    namespace: str | None,
    limit: int,
    floor: float | None,
    tools: Collection[str],
) -> Examples:
    from kp_langchain.cli.console import make_console
    from kp_langchain.recall.example_search import ExampleSearch

    console = make_console(stderr=True)
    with console.status("Embedding tasks") if console.is_terminal else nullcontext():
        return ExampleSearch(store).find(
            task, domain=domain, namespace=namespace, limit=limit, floor=floor, tools=tools
        )


def _print_few_shot(examples: Examples) -> None:
    """Print the text that a model would get on stdout, and why it lacks something on stderr."""
    composed = examples.compose()
    if composed.text:
        say(composed.text)
    if len(composed.shown) < len(examples.found):
        shown = f"{len(composed.shown)} of {len(examples.found)}"
        say(f"{shown} traces fit in the tokens that examples may have.", file=sys.stderr)
    elif not examples.found:
        say(f"Nothing is shown: {examples.reason}.", file=sys.stderr)


def _print_examples(
    store: TraceStore, examples: Examples, domain: str, *, few_shot: bool, as_json: bool
) -> None:
    from kp_langchain.cli.recall_tables import examples_json, print_examples
    from kp_langchain.recall.credit import credits_of

    credits_ = credits_of(store.shown.outcome_counts(domain)) if examples.found else {}
    if as_json:
        say_json(examples_json(examples, credits_, domain, with_text=few_shot))
        return
    from kp_langchain.cli.console import make_console

    print_examples(examples, credits_, make_console())
    if not examples.found and not store.count(domain=domain):
        from kp_langchain.weights import PROFILES

        near = near_name(domain, PROFILES)
        hint = f" Did you mean --domain {near}?" if near else ""
        say(f"No run of {domain} in {store.location}.{hint}")


def _list_credits(store: TraceStore, domain: str | None, limit: int, *, as_json: bool) -> None:
    from kp_langchain.cli.recall_tables import credit_json, credit_rows, print_credits

    rows, total = credit_rows(store, domain, limit)
    if as_json:
        for row in rows:
            say_json(credit_json(row))
    elif rows:
        from kp_langchain.cli.console import make_console

        print_credits(rows, make_console(), with_domain=domain is None)
        say(_below(rows, total, store.location))
    else:
        of = "" if domain is None else f" of {domain}"
        say(f"No run{of} in {store.location} was shown a trace yet.")


def _below(rows: list[CreditRow], total: int, location: str) -> str:
    from kp_langchain.cli.recall_tables import EXPLAIN

    traces = "trace that runs were" if total == 1 else "traces that runs were"
    return f"{len(rows):,} of {total:,} {traces} shown, in {location}. {EXPLAIN}"
