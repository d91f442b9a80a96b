"""The command `patterns`: plans that recur among kept successes, and which are shown to runs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from contextlib import nullcontext
from typing import TYPE_CHECKING, Annotated

import typer

from kp_langchain.cli.options import (
    AsJson,
    AsJsonLines,
    Database,
    domain_hint,
    group_app,
    open_store,
    person,
)
from kp_langchain.cli.output import (
    Column,
    folder_output,
    make_console,
    print_list,
    say,
    say_json,
    warn,
)
from kp_langchain.errors import KPError
from kp_langchain.text import count_text, counts_text, one_line

if TYPE_CHECKING:
    from kp_langchain.recall.patterns import Mined, Pattern
    from kp_langchain.store import TraceStore

_WIDE = 100
_SHORTEST_PREFIX = 4
_SHORT_ID_CHARS = 8
_AGAIN = "admit again"

app = group_app(
    default="list",
    of_id="show",
    metavar="[ID | COMMAND [ARGS]...]",
    help="""Show plans that recur among kept successes: the same calls in at least three runs of
    three tasks.

    Without a command it lists them, and with an id it prints the SKILL.md of that pattern. They are
    looked for anew each time, among the newest 10,000 runs of a domain: about a millisecond a
    run.

    No run is shown one before you admit it.""",
)

_Ids = Annotated[
    list[str] | None,
    typer.Argument(metavar="ID", help="Ids or names, or the first 4 characters or more."),
]
_Domain = Annotated[str | None, typer.Option(help="Only this domain.")]
_Identifiers = Annotated[
    bool,
    typer.Option(
        "--with-identifiers",
        help="Also patterns of runs of the privacy level private, which keep identifiers.",
    ),
]


@app.command("list")
def list_patterns(
    domain: _Domain = None,
    database: Database = None,
    as_json: AsJsonLines = False,
) -> None:
    """List the patterns of each domain: that with most members comes first.

    Of so many of the successes as stand under `stated` a verdict says so; the others seem to be
    some.

    The state says whether runs may be shown it, and how much more often they succeeded with it. One
    that runs ended worse with is no longer shown, and neither is one of which a run was deleted: it
    is to be admitted again. --json prints the knowledge unit of each, a
    ToolCallPattern.
    """
    with open_store(database) as store:
        mined = _mine(store, domain)
        patterns = [one for of_domain in mined for one in of_domain.patterns]
        if as_json:
            from kp_langchain.recall.skill_file import unit_of

            for pattern in patterns:
                say_json({}, unit_of(pattern).model_dump(mode="json"))
            return
        states = _states(store)
        state: Column[Pattern] = Column(title="state", text=lambda one: states.get(one.id, ""))
        print_list((*_COLUMNS[:-2], state, *_COLUMNS[-2:]), patterns, as_json=False)
        runs = sum(one.runs for one in mined)
        left_out = counts_text(sum((one.left_out for one in mined), Counter()))
        of = f" of {one_line(domain, 100)}" if domain is not None else ""
        text = f"{count_text(len(patterns), 'pattern')} in {count_text(runs, 'run')}{of}."
        if left_out:
            text += f" Groups left out: {left_out}."
        say(text + ("" if runs else domain_hint(domain)))
        if patterns:
            say("One of them: kp-langchain patterns ID")
        for id_ in states.keys() - {one.id for one in patterns}:
            if not states[id_].startswith(_AGAIN):  # else there is nothing left of it
                say(f"{states[id_]}, and not among the runs any more: {id_}")


@app.command()
def show(
    pattern_id: Annotated[
        str, typer.Argument(metavar="ID", help="Its id or name, or the first 4 characters or more.")
    ],
    domain: _Domain = None,
    database: Database = None,
    as_json: AsJson = False,
) -> None:
    """Print the SKILL.md of a pattern; --json prints its knowledge unit, and its members."""
    from kp_langchain.recall.skill_file import skill_text, unit_of

    with open_store(database) as store:
        pattern = _find(_mine(store, domain), pattern_id)
    if as_json:
        unit = unit_of(pattern).model_dump(mode="json")
        say_json({"members": pattern.members}, {"pattern": unit})
    else:
        say(skill_text(pattern).rstrip("\n"))


@app.command()
def admit(
    pattern_ids: _Ids = None,
    every: Annotated[
        bool, typer.Option("--all", help="All that are listed, without those you rejected.")
    ] = False,
    domain: _Domain = None,
    database: Database = None,
) -> None:
    """Let runs be shown patterns as they are now. Read them first, with `show`.

    Admit one again to have its text and figures as later runs make them.
    """
    from kp_langchain.recall.admission import admit_patterns, obstacle_to

    if bool(pattern_ids) == every:
        raise typer.BadParameter("give either IDs or --all")
    with open_store(database) as store:
        mined = _mine(store, domain)
        if every:
            known = store.own_patterns.decided()
            rejected = {id_ for id_, one in known.items() if one.state == "rejected"}
            patterns = [
                one
                for of_domain in mined
                for one in of_domain.patterns
                if one.id not in rejected and not obstacle_to(one)
            ]
        else:
            patterns = [_find(mined, text) for text in pattern_ids or ()]
        admit_patterns(store, patterns, by=person())
    _report(patterns, "Admitted {}; runs may be shown {}.")


@app.command()
def reject(
    pattern_ids: Annotated[
        list[str], typer.Argument(metavar="ID", help="Ids or names, or the beginning of each.")
    ],
    domain: _Domain = None,
    database: Database = None,
) -> None:
    """Never show patterns to runs, whether they were admitted or not."""
    from kp_langchain.recall.admission import reject_patterns

    with open_store(database) as store:
        mined = _mine(store, domain)
        # One that was admitted may be of runs that are gone.
        gone = store.own_patterns.decided().keys() & set(pattern_ids)
        gone -= {one.id for of_domain in mined for one in of_domain.patterns}
        store.own_patterns.reject(*gone, by=person())
        patterns = [_find(mined, text) for text in pattern_ids if text not in gone]
        reject_patterns(store, patterns, by=person())
    _report([*patterns, *gone], "Rejected {}; no run is shown {}.")


def _report(patterns: Sequence[Pattern | str], line: str) -> None:
    """Print what was decided; `line` has places for how many, and for the pronoun."""
    text = line.format(count_text(len(patterns), "pattern"), "it" if len(patterns) == 1 else "them")
    ids = [one if isinstance(one, str) else f"{one.id}  {one.name}" for one in patterns]
    say("\n  ".join([text, *ids]) if ids else "Nothing changed.")


def _states(store: TraceStore) -> dict[str, str]:
    """Return by id whether patterns were admitted or rejected, with the credit of the former.

    One of which a run was deleted is to be admitted again.
    """
    from kp_langchain.recall.credit import NO_CREDIT, credits_of
    from kp_langchain.review.recall_facts import figures

    decided = store.own_patterns.decided()
    domains = {one.domain for one in decided.values()}
    credits_ = {name: credits_of(store.shown.outcome_counts(name)) for name in domains}
    states: dict[str, str] = {}
    for id_, one in decided.items():
        credit = credits_[one.domain].get(id_, NO_CREDIT)
        states[id_] = _AGAIN if one.state == "quarantined" else one.state
        if credit.shown:
            states[id_] += f", {'hurts ' if credit.hurts else ''}{figures(credit)}"
    return states


@app.command()
def export(
    folder: Annotated[str, typer.Argument(metavar="DIR", help="A new or empty folder.")],
    domain: _Domain = None,
    with_identifiers: _Identifiers = False,
    all_namespaces: Annotated[
        bool,
        typer.Option("--all-namespaces", help="Also patterns of namespaces, such as tenants."),
    ] = False,
    database: Database = None,
) -> None:
    """Write NAME/SKILL.md for each pattern, and all as knowledge units into patterns.jsonl.

    Rejected ones are left out. Only you may read the files. Look at them before you give them to
    others.
    """
    from kp_langchain.recall.skill_file import skill_text, unit_of

    with open_store(database) as store:
        patterns = [one for of_domain in _mine(store, domain) for one in of_domain.patterns]
        states = store.own_patterns.decided()
    chosen: list[Pattern] = []
    left_out: Counter[str] = Counter()
    for one in patterns:
        if one.id in states and states[one.id].state == "rejected":
            left_out["rejected"] += 1
        elif one.namespace is not None and not all_namespaces:
            left_out["of a namespace (--all-namespaces)"] += 1
        elif one.metadata.privacy_level == "private" and not with_identifiers:
            left_out["with identifiers (--with-identifiers)"] += 1
        else:
            chosen.append(one)
    reasons = ", ".join(f"{number} {why}" for why, number in left_out.items())
    left_out_text = f" Left out: {reasons}." if reasons else ""
    if not chosen:
        raise KPError(f"nothing to export.{left_out_text}")
    with folder_output(folder) as target:
        units = []
        for pattern in chosen:
            (target / pattern.name).mkdir(mode=0o700)
            (target / pattern.name / "SKILL.md").write_text(skill_text(pattern), encoding="utf-8")
            units.append(f"{unit_of(pattern).model_dump_json()}\n")
        (target / "patterns.jsonl").write_text("".join(units), encoding="utf-8")
    number = count_text(len(chosen), "pattern")
    warn(f"Exported {number} to {folder}.{left_out_text}")


# ------------------------------------------------------------------ the patterns


def _mine(store: TraceStore, domain: str | None) -> list[Mined]:
    from kp_langchain.recall.patterns import patterns_of

    domains = [domain] if domain is not None else sorted(set(store.figures()["domain"]))
    console = make_console(stderr=True)
    with console.status("Looking through runs") if console.is_terminal else nullcontext():
        return [patterns_of(store, name) for name in domains]


def _find(mined: list[Mined], text: str) -> Pattern:
    """Return the pattern that an id or a name means.

    Raises:
        KPError: There is none, or there are several.
    """
    from kp_langchain.schema import PATTERN_ID_PREFIX

    wanted = text.strip().lower().removeprefix(PATTERN_ID_PREFIX)
    names_of = [
        (one, (one.id.removeprefix(PATTERN_ID_PREFIX), one.name))
        for of_domain in mined
        for one in of_domain.patterns
    ]
    matches = [one for one, names in names_of if wanted in names]
    if not matches and len(wanted) >= _SHORTEST_PREFIX:
        matches = [one for one, names in names_of if any(name.startswith(wanted) for name in names)]
    if len(matches) == 1:
        return matches[0]
    shown = one_line(text, 100)
    if not matches:
        raise KPError(f"no pattern {shown!r}; list them: kp-langchain patterns")
    names = ", ".join(one.id for one in matches)
    raise KPError(f"{shown!r} may mean several; give more characters of the id: {names}")


def _short_id(pattern: Pattern) -> str:
    return pattern.id.rpartition(":")[2][:_SHORT_ID_CHARS]


_COLUMNS: tuple[Column[Pattern], ...] = (
    Column(title="pattern", text=_short_id),
    Column(title="domain", text=lambda one: one_line(one.domain, 16), from_width=_WIDE),
    Column(title="runs>", text=lambda one: f"{one.runs:,}"),
    Column(title="succeed>", text=lambda one: f"{one.success.value:.0%}"),
    Column(title="stated>", text=lambda one: f"{one.stated:,}"),
    Column(title="tasks>", text=lambda one: f"{one.tasks:,}"),
    Column(title="name", text=lambda one: one.name, from_width=_WIDE),
    Column(title="path", text=lambda one: one_line(" > ".join(one.tools), 300)),
)
