"""The command `recall`: the examples that a run would be shown, and what they did for runs."""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kp_langchain.cli import recall_effect
from kp_langchain.cli.options import Database, domain_hint, new_app, open_store
from kp_langchain.cli.output import Column, make_console, print_list, say, say_json, warn
from kp_langchain.recall.credit import NO_CREDIT, credits_of
from kp_langchain.review.recall_facts import credit_text, figures
from kp_langchain.text import count_text, one_line, short_id

if TYPE_CHECKING:
    from kp_langchain.recall.credit import Credit
    from kp_langchain.recall.example_search import Example, Examples
    from kp_langchain.recall.few_shot import FewShot
    from kp_langchain.store import TraceStore
    from kp_langchain.store.recall_tasks import Eligibility

_EXAMPLES, _ROWS, _WIDE = 3, 30, 100
_EXPLAIN = (
    "Explain one: kp-langchain review ID\nExplain a pattern: kp-langchain patterns ID\n"
    "Explain a unit: kp-langchain registry quarantine show ID"
)
_OBJECTIVE_CHARS = 300
_TRUST = {
    "verdict": "success by a verdict",
    "own": "success, as the run ended",
    "registry": "success, as a registry claims",
}

app = new_app()


@app.command()
def recall(
    task: Annotated[
        str | None, typer.Argument(metavar="TASK", help="The task of a run, in words.")
    ] = None,
    domain: Annotated[
        str | None, typer.Option(help="The run's domain; with --credit or --effect, only this one.")
    ] = None,
    namespace: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="The run's namespace, such as a tenant's id."),
    ] = None,
    limit: Annotated[
        int | None,
        typer.Option(
            min=1,
            metavar="N",
            help="The N best traces; by default those that an agent is shown, at most "
            f"{_EXAMPLES}. With --credit {_ROWS}.",
        ),
    ] = None,
    floor: Annotated[
        float | None,
        typer.Option(
            metavar="0-1", help="Least similarity of tasks, 0 to 1; by default calibrated."
        ),
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
    all_calls: Annotated[
        bool,
        typer.Option(
            "--all-calls", help="With --few-shot: all calls of a run, not only those that decide."
        ),
    ] = False,
    credit: Annotated[
        bool, typer.Option("--credit", help="List the traces that runs were shown, best first.")
    ] = False,
    effect: Annotated[
        bool, typer.Option("--effect", help="Say what examples do for the runs of each domain.")
    ] = False,
    resume: Annotated[
        bool, typer.Option("--resume", help="Show examples again in the --domain, measured anew.")
    ] = False,
    stop: Annotated[
        bool, typer.Option("--stop", help="Show nothing more in the --domain.")
    ] = False,
    note: Annotated[
        str | None,
        typer.Option(metavar="TEXT", help="With --resume or --stop, why. Stored redacted."),
    ] = None,
    database: Database = None,
    as_json: Annotated[
        bool,
        typer.Option("--json", help="Print one JSON object; of --credit and --effect, one a line."),
    ] = False,
) -> None:
    """Show which kept traces a run with this task would be shown, or why none.

    --credit lists the traces that runs were shown, with their credit: how much more often runs
    succeed with the trace than without it. A trace that runs ended worse with is no longer shown.

    --effect compares, in each domain, runs with examples and runs that were held out from them, by
    their verdicts. Where runs ended worse with examples, nothing more is shown until you decide, by
    --resume or --stop.

    The first search in a domain embeds the tasks of its kept traces.
    """
    if [task is not None, credit, effect, resume, stop].count(True) != 1:
        raise typer.BadParameter(
            "give either a TASK or one of --credit, --effect, --resume and --stop"
        )
    if all_calls and not few_shot:
        raise typer.BadParameter("--all-calls belongs to --few-shot")
    if note is not None and not (resume or stop):
        raise typer.BadParameter("--note belongs to --resume or --stop")
    if domain is None and not (credit or effect):
        of = "run" if task is not None else "examples"
        raise typer.BadParameter(f"give the domain of the {of}: --domain NAME")
    with open_store(database) as store:
        if effect:
            recall_effect.print_effects(store, domain, as_json=as_json)
            return
        if domain is not None and (resume or stop):
            recall_effect.decide(store, domain, shows=resume, note=note, as_json=as_json)
            return
        if task is None or domain is None:
            _list_credits(store, domain, limit or _ROWS, as_json=as_json)
            return

        from kp_langchain.recall.example_search import AS_GOOD, ExampleSearch

        console = make_console(stderr=True)
        with console.status("Embedding tasks") if console.is_terminal else nullcontext():
            examples = ExampleSearch(store).find(
                task,
                domain=domain,
                namespace=namespace,
                limit=limit or _EXAMPLES,
                of_first=0.0 if limit else AS_GOOD,
                floor=floor,
                tools=tool or (),
            )
        text = examples.compose(calls="all" if all_calls else "deciding") if few_shot else None
        if text is not None and not as_json:
            _print_few_shot(examples, text)
        else:
            _print_examples(store, examples, domain, text, as_json=as_json)


# ------------------------------------------------------------------ what a run would be shown


def _print_few_shot(examples: Examples, few_shot: FewShot) -> None:
    """Print the text that a model would get on stdout, and why it lacks something on stderr."""
    if few_shot.text:
        say(few_shot.text)
    if len(few_shot.shown) < len(examples.matches):
        counts = f"{len(few_shot.shown)} of {len(examples.matches)}"
        warn(f"{counts} traces fit in the tokens that examples may have.")
    elif not examples.matches:
        warn(f"Nothing is shown: {examples.reason}.")


def _print_examples(
    store: TraceStore,
    examples: Examples,
    domain: str,
    few_shot: FewShot | None,
    *,
    as_json: bool,
) -> None:
    credits_ = credits_of(store.shown.outcome_counts(domain)) if examples.matches else {}
    if as_json:
        values: dict[str, Any] = {
            "domain": domain,
            "floor": examples.floor,
            "reason": examples.reason,
            "examples": [
                {
                    "trace_id": one.trace_id,
                    "rank": one.rank,
                    "similarity": one.similarity,
                    "trust": one.trust,
                    "credit": credits_.get(one.trace_id, NO_CREDIT),
                    "objective": _objective(one),
                }
                for one in examples.matches
            ],
        }
        say_json(values | ({} if few_shot is None else {"few_shot": few_shot.text}))
        return
    from rich.padding import Padding
    from rich.text import Text

    from kp_langchain.pattern_schema import ToolCallPattern
    from kp_langchain.recall.pattern_text import pattern_heading

    console = make_console()
    for one in examples.matches:
        credit = credits_.get(one.trace_id, NO_CREDIT)
        text = "none yet: shown to no run" if credit == NO_CREDIT else credit_text(credit)
        trust = _TRUST[one.trust]
        if isinstance(one.unit, ToolCallPattern):
            trust = pattern_heading(one.unit, one.trust)
        similarity = f"similarity {one.similarity:.2f}, {trust}"
        say(f"{one.rank}. {short_id(one.trace_id)}, {similarity}")
        for line in (f"credit {text}", one_line(_objective(one), _OBJECTIVE_CHARS)):
            console.print(Padding(Text(line), (0, 0, 0, 3), expand=False))
    if examples.matches:
        say(f"No trace is shown whose similarity is below {examples.floor:.2f}.\n{_EXPLAIN}")
        return
    console.print(Text(f"Nothing is shown: {examples.reason}."))
    if not store.count(domain=domain):
        say(f"No run of {one_line(domain, 100)} in {store.location}.{domain_hint(domain)}")


def _objective(example: Example) -> str:
    return " ".join(example.trace.task.objective.split())


# ------------------------------------------------------------------ credit


def _list_credits(store: TraceStore, domain: str | None, limit: int, *, as_json: bool) -> None:
    from kp_langchain.store.rows import clean_name

    if domain is None:
        counts = store.shown.outcome_counts_by_domain()
    else:
        counts = {clean_name(domain): store.shown.outcome_counts(domain)}
    ranked = [
        (name, trace_id, credit)
        for name, of_domain in counts.items()
        for trace_id, credit in credits_of(of_domain).items()
        if credit.shown
    ]
    ranked.sort(key=lambda one: (-one[2].value, -one[2].shown, one[1], one[0]))
    eligibility = store.recall_tasks.eligibility({trace_id for _, trace_id, _ in ranked[:limit]})
    rows = [_row(*one, eligibility.get(one[1])) for one in ranked[:limit]]
    print_list(_COLUMNS, rows, as_json=as_json)
    if rows and not as_json:
        traces = count_text(len(ranked), "trace that runs were", "traces that runs were")
        say(f"{len(rows):,} of {traces} shown, in {store.location}. {_EXPLAIN}")
    elif not as_json:
        of = "" if domain is None else f" of {one_line(domain, 100)}"
        say(f"No run{of} in {store.location} was shown a trace yet.")


def _row(domain: str, trace_id: str, credit: Credit, trace: Eligibility | None) -> dict[str, Any]:
    """Return the credit of a trace that runs of a domain were shown, as `--json` has it.

    `why_not` says why it is no longer shown: `hurts` (runs ended worse with it), `planted`
    (something in it looks like planted instructions), `not kept` (it is no kept success any more),
    or `deleted`.
    """
    why_not = None
    if trace is None:
        why_not = "deleted"
    elif not trace.is_open:
        why_not = "not kept"
    elif trace.planted is not None:
        why_not = "planted"
    elif credit.hurts and trace.domain == domain:  # only there does it count
        why_not = "hurts"
    return {
        "domain": domain,
        "trace_id": trace_id,
        "credit": credit,
        "why_not": why_not,
        "planted": trace and trace.planted,
        "objective": trace.objective if trace else "",
        "still_shown": why_not is None,
    }


def _style(row: dict[str, Any]) -> str:
    return "" if row["still_shown"] else "bright_black"


_COLUMNS: tuple[Column[dict[str, Any]], ...] = (
    Column(title="trace", text=lambda row: short_id(row["trace_id"]), style=_style),
    Column(title="domain", text=lambda row: one_line(row["domain"], 16), from_width=_WIDE),
    Column(title="credit>", text=lambda row: figures(row["credit"]), style=_style),
    Column(title="shown>", text=lambda row: f"{row['credit'].shown:,}"),
    Column(title="held out>", text=lambda row: f"{row['credit'].held_out:,}"),
    Column(
        title="still shown",
        text=lambda row: "yes" if row["still_shown"] else f"no: {row['why_not']}",
    ),
    Column(
        title="objective",
        text=lambda row: one_line(" ".join(row["objective"].split()), _OBJECTIVE_CHARS),
        style=_style,
    ),
)
