"""The commands `review list`, `show`, `stats`, `failures` and `compare`."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from kp_langchain.cli.options import (
    Archive,
    AsJson,
    AsJsonLines,
    Database,
    Limit,
    RunId,
    domain_hint,
    group_app,
    open_archive,
    open_store,
    takes_filters,
)
from kp_langchain.cli.output import (
    fact_table,
    indent,
    make_console,
    make_table,
    percent,
    say_json,
    visible,
)
from kp_langchain.errors import KPError
from kp_langchain.text import bounded_text, count_text, counts_text, one_line

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from kp_langchain.calibration.basis import Basis
    from kp_langchain.review.stats import AtThreshold, DomainStats
    from kp_langchain.store import StoredRun, TraceStore

_STEPS_AROUND = (-10, -5, -2, -1, 0, 1, 2, 5, 10)  # hundredths
_THRESHOLDS_SHOWN, _DOMAIN_CHARS = 4, 20
_FACTS_OF_ARCHIVES = ("thresholds", "compared", "recovered errors")  # others are not known there
_DOMAINS_EXAMINED, _DOMAINS_NAMED = 30, 3

app = group_app(
    default="list",
    of_id="show",
    metavar="[ID | COMMAND [ARGS]...]",
    help="""List scored runs, newest first; explain one, compare two, or sum up whole domains and
    their failures.

    Without a command it lists, and with the id of a run it shows that run.""",
)


@app.command("list")
@takes_filters()
def list_runs(
    filters: dict[str, Any],
    sort: Annotated[
        Literal["time", "score", "novelty"],
        typer.Option(help="The newest, the highest score, or the highest novelty first."),
    ] = "time",
    limit: Limit = 30,
    database: Database = None,
    as_json: AsJsonLines = False,
) -> None:
    """List scored runs, newest first."""
    from kp_langchain.config import current_prices
    from kp_langchain.store.selection import MOST_COUNTED

    prices = current_prices()
    with open_store(database) as store:
        runs = store.runs(sort=sort, limit=limit, **filters)
        if as_json:
            for run in runs:
                say_json(run.to_dict(), {"cost": prices.cost(run.usage, run.created_at)})
        elif runs:
            from kp_langchain.cli.run_view import list_of_runs

            console = make_console()
            console.print(list_of_runs(runs, console, prices=prices))
            number = store.count(most=MOST_COUNTED + 1, **filters)
            total = bounded_text(number, MOST_COUNTED, "run")
            text = f"{len(runs):,} of {total} in {store.location}. Explain one: "
            console.print(f"{text}kp-langchain review ID", soft_wrap=True)
            domains = list(dict.fromkeys(run.domain for run in runs))[:_DOMAINS_EXAMINED]
            bases = store.models.bases(domains)
            _print_bases({name: one for name, one in bases.items() if one.is_missing}, console)
        else:
            _print_no_runs(store, filters)


def _print_bases(bases: Mapping[str, Basis], console: Console) -> None:
    """Print what decisions rest on, a line for all domains of which the same is to be said."""
    domains: defaultdict[str, list[str]] = defaultdict(list)
    for domain, basis in bases.items():
        domains[basis.text].append(one_line(domain, _DOMAIN_CHARS))
    for text, names in domains.items():
        more = len(names) - _DOMAINS_NAMED
        which = ", ".join(names[:_DOMAINS_NAMED]) + (f" and {more} more" if more > 0 else "")
        console.print(visible(f"{which}: {text}"))


def _print_no_runs(store: TraceStore, filters: Mapping[str, Any]) -> None:
    number = store.count()
    beginning = f"No run of {number:,} matches" if number else "No scored runs"
    text = f"{beginning} in {store.location}.{domain_hint(filters.get('domain'))}"
    make_console().print(text, soft_wrap=True)


@app.command()
def show(
    run_id: RunId,
    steps: Annotated[bool, typer.Option("--steps", help="Show every step whole.")] = False,
    database: Database = None,
    as_json: AsJson = False,
) -> None:
    """Explain how one run got its score, and show its calls and its answer."""
    from kp_langchain.cli.run_view import print_run, run_json

    with open_store(database) as store:
        run = _run(store, run_id)
        if as_json:
            trace = run.trace
            body = None if trace is None else trace.model_dump(mode="json")
            say_json(run_json(store, run), {"trace": body})
        else:
            print_run(store, run, make_console(), with_steps=steps)


@app.command()
def compare(
    first: RunId, second: RunId, database: Database = None, as_json: AsJson = False
) -> None:
    """Show the differences of two runs: what their scores are made of, and their tool calls."""
    from kp_langchain.cli.compare import compared_json, print_compared

    with open_store(database) as store:
        runs = _run(store, first), _run(store, second)
        if as_json:
            say_json(compared_json(*runs))
        else:
            print_compared(*runs, make_console())


def _run(store: TraceStore, run_id: str) -> StoredRun:
    run = store.get(run_id)
    if run is None:
        raise KPError(f"no run {run_id!r} in {store.location}; list them: kp-langchain review")
    return run


# ------------------------------------------------------------------ stats


@app.command()
@takes_filters("domain", "since", "until", "where")
def stats(
    filters: dict[str, Any],
    archive: Archive = None,
    database: Database = None,
    as_json: AsJsonLines = False,
) -> None:
    """Show how many runs each domain keeps, and which dimension and rule costs most.

    With one domain it also shows its parts, its rules, its scores as a histogram, what would pass
    at other thresholds, and what its runs took.
    """
    from kp_langchain.config import current_prices
    from kp_langchain.review.stats import stats_of

    if archive is not None:
        figures = open_archive(archive, filters, database).figures()
        if not _say_stats(stats_of(figures), None, as_json=as_json):
            make_console().print(f"No run matches in {visible(archive)}.", soft_wrap=True)
        return
    with open_store(database) as store:
        figures = store.domain_figures(**filters)
        bases = store.models.bases(list(figures))
        every = stats_of(figures, bases, current_prices())
        if not _say_stats(every, bases, as_json=as_json):
            _print_no_runs(store, filters)
        elif not as_json and (line := _waiting_line(store)):
            make_console().print(line, soft_wrap=True)


def _say_stats(
    every: Sequence[DomainStats], bases: Mapping[str, Basis] | None, *, as_json: bool
) -> bool:
    """Print statistics; return whether anything was to be said.

    Args:
        every: Those of each domain.
        bases: What decisions in a store rest on; None for an archive.
        as_json: Whether to print JSON.
    """
    if as_json:
        for one in every:
            say_json(one.to_dict())
    elif every:
        console = make_console()
        _print_stats(every, console, has_store=bases is not None)
        if bases and len(every) > 1:
            _print_bases(bases, console)
    return as_json or bool(every)


@app.command()
@takes_filters("domain", "since", "until", "where")
def failures(
    filters: dict[str, Any], database: Database = None, as_json: AsJsonLines = False
) -> None:
    """Show failures that are alike: what such runs have in common, and how many of them failed.

    Runs are alike that take the same tools in the same order, have the same last error, get no
    answer from the same tool, repeat a call, or say that they were unable. A group is shown if more
    of its runs failed than chance explains. Verdicts say which runs failed; without, how they
    ended.
    """
    from kp_langchain.calibration.failure_groups import failures_by_domain

    with open_store(database) as store:
        every = failures_by_domain(store.signed_runs(**filters))
        if as_json:
            for one in every:
                say_json(one.to_dict())
        elif every:
            from kp_langchain.cli.failures import print_failures

            print_failures(store, every, make_console())
        else:
            _print_no_runs(store, filters)


def _print_stats(every: Sequence[DomainStats], console: Console, *, has_store: bool) -> None:
    from rich.text import Text

    headings = "domain", "runs>", "kept>", ">", "median>", "of>", "0 to 1", "right by verdict>"
    table = make_table(headings)
    for one in every:
        table.add_row(
            Text(one_line(one.domain, _DOMAIN_CHARS)),
            f"{one.runs:,}",
            f"{one.kept:,}",
            percent(one.kept_share),
            f"{one.median:.2f}",
            _threshold_text(one.threshold),
            _sparkline(one, console),
            f"{one.successes}/{one.labelled}" if one.labelled else "none",
        )
    console.print(table)
    console.print()
    for one in every:
        console.print(Text(visible(one.explanation())))
    if len(every) == 1:
        _print_domain(every[0], console, has_store=has_store)
    else:
        console.print(Text("\nOne domain in full: kp-langchain review stats --domain NAME"))


def _threshold_text(threshold: float) -> str:
    return f"{threshold:.2f}" if threshold <= 1 else "none passes"


def _waiting_line(store: TraceStore) -> str:
    """Return in one line which runs are in no statistics yet, or got stuck; "" for none."""
    outbox = store.outbox.counts()
    waiting = {
        "wait for their score": store.journal.waiting(),
        "wait for a human": store.paused.count(),
        "wait to be sent": outbox["pending"],
        "were refused by the registry": outbox["dead"],
    }
    parts = [f"{number:,} {what}" for what, number in waiting.items() if number]
    return f"Besides: {'; '.join(parts)}." if parts else ""


def _sparkline(one: DomainStats, console: Console) -> Text:
    """Return the histogram in one line; bins from the threshold on are green."""
    from rich.text import Text

    levels = " .:-=+*#%" if console.options.ascii_only else " ▁▂▃▄▅▆▇█"
    highest = max(one.histogram)
    text = Text("", end="")
    for number, count in enumerate(one.histogram, start=1):
        level = 0 if not count else max(1, round(count / highest * (len(levels) - 1)))
        text.append(levels[level], "green" if number / len(one.histogram) > one.threshold else "")
    return text


def _print_domain(one: DomainStats, console: Console, *, has_store: bool) -> None:
    from rich.text import Text

    console.print(Text(f"\nWhat costs {one.gate}, on the average", "bold"))
    parts = make_table(("part", "median>", "weight>", "lost>"))
    for part in one.parts:
        in_the_median = "-" if part.median is None else f"{part.median:.2f}"
        parts.add_row(part.label, in_the_median, f"{part.weight:.2f}", f"{part.lost:.3f}")
    console.print(indent(parts))
    if one.rules:
        console.print(Text("\nRules", "bold"))
        rules = make_table(("rule", "runs>", "each>", "lost their pass>"))
        for rule in one.rules:
            change = f"{rule.change:+.2f}"
            rules.add_row(rule.name, f"{rule.runs:,}", change, f"{rule.passes_lost:,}")
        console.print(indent(rules))
    console.print(Text("\nWhat would pass if each threshold judged all of these runs", "bold"))
    curve = make_table(("threshold", "pass>", "share>", "successes by verdict>"))
    for point in _points_around(one):
        share = percent(point.runs / one.judged)
        successes = f"{point.successes} of {point.labelled}" if point.labelled else "no verdicts"
        threshold = _threshold_text(point.threshold)
        mark = " in force" if threshold == _threshold_text(one.threshold) else ""
        curve.add_row(f"{threshold}{mark}", f"{point.runs:,}", share, successes)
    console.print(indent(curve))
    if one.usage:
        console.print(Text("\nWhat a run took, on the average", "bold"))
        console.print(indent(_usage_table(one)))
        text = "  spent for one: what all runs took together, divided by the number of these"
        if unpriced := one.usage[0].unpriced:
            text += f"\n  cost: without {count_text(unpriced, 'run')} by models without a price"
        console.print(Text(text, "bright_black"))
    console.print()
    console.print(
        fact_table(fact for fact in _facts(one) if has_store or fact[0] in _FACTS_OF_ARCHIVES)
    )


def _usage_table(one: DomainStats) -> Table:
    table = make_table(("runs", ">", "tokens>", "took>", "cost>", "spent for one>"))
    for group in one.usage:
        table.add_row(group.runs, f"{group.count:,}", *group.cells())
    return table


def _points_around(one: DomainStats) -> list[AtThreshold]:
    """Return points of the curve at and beside the present threshold."""
    present = round(one.threshold * (len(one.curve) - 1))
    beside = (present + step for step in _STEPS_AROUND)
    return [one.curve[at] for at in beside if 0 <= at < len(one.curve)]


def _facts(one: DomainStats) -> Iterator[tuple[str, str]]:
    yield "basis", one.basis
    verdicts = "none; give some: kp-langchain label next"
    if one.labelled:
        of_kept = f"{one.kept_successes:,} of {one.kept_labelled:,}"
        runs = count_text(one.labelled, "run")
        verdicts = f"{runs}, {one.successes:,} succeeded; of the kept ones {of_kept}"
    yield "verdicts", verdicts
    thresholds: Counter[str] = Counter()
    for at, number in one.thresholds:
        thresholds[_threshold_text(at)] += number
    if len(thresholds) > 1:
        most = thresholds.most_common(_THRESHOLDS_SHOWN)
        yield "thresholds", ", ".join(f"{at} for {count_text(n, 'run')}" for at, n in most)
    yield "twins", count_text(one.twins, "run")
    yield "compared", f"{count_text(one.compared, 'run')} with others of their task"
    if one.vetoed:
        vetoed = count_text(sum(one.vetoed.values()), "run")
        yield "vetoed", f"{vetoed}: {counts_text(one.vetoed)}"
    yield "recovered errors", count_text(one.recovered, "run")
    redactions = f"in {count_text(one.redacted_runs, 'run')}: {counts_text(one.redactions)}"
    yield "redacted", redactions if one.redactions else "nothing"
    yield "dropped", counts_text(one.dropped) or "nothing"
    if one.withheld:
        yield "withheld", f"{count_text(one.withheld, 'run')}, because they could not be redacted"
