"""The command `patterns`: plans that recur among kept successes, and which are shown to runs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from contextlib import nullcontext
from typing import TYPE_CHECKING, Annotated, NamedTuple

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
    from kp_langchain.store.registry_units import PulledUnit

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

    Without a command it lists them, and with an id it prints that pattern. They are
    looked for anew each time, among the newest 10,000 runs of a domain: about a millisecond a
    run.

    No run is shown one before you admit it.""",
)

_Ids = Annotated[
    list[str],
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
    as_mined: Annotated[
        bool, typer.Option("--now", help="Of an admitted one, too, what it is now.")
    ] = False,
    database: Database = None,
    as_json: AsJson = False,
) -> None:
    """Print the SKILL.md of a pattern; of an admitted one, what runs are shown.

    --json prints its knowledge unit, its members and its digest.
    """
    from kp_langchain.recall.admission import digest_of
    from kp_langchain.recall.few_shot import to_few_shot
    from kp_langchain.recall.skill_file import skill_text, unit_of

    with open_store(database) as store:
        found = _find(store, domain, pattern_id)
        stored = None if as_mined else store.own_patterns.unit(found.id)
    now = found.mined
    if stored is not None and found.decided is not None:
        unit, digest, members = stored, found.decided.digest, found.decided.members
        text = to_few_shot(stored)
    elif now is not None:
        unit, digest, members = unit_of(now), digest_of(now), now.members
        text = skill_text(now).rstrip("\n")
    else:
        raise KPError(f"{found.id} is not among the runs any more, and its text is not stored")
    if as_json:
        say_json({"members": members, "digest": digest}, {"pattern": unit.model_dump(mode="json")})
        return
    say(f"{text}\n\ndigest: {digest}")
    if now is None:
        say("It is not among the runs any more.")
    elif digest_of(now) != digest:
        say(f"Its runs now make something else of it: kp-langchain patterns show {found.id} --now")


@app.command()
def admit(
    pattern_ids: _Ids,
    digest: Annotated[
        str | None,
        typer.Option(
            metavar="DIGEST", help="What `show` printed: admit the one ID only if it is still that."
        ),
    ] = None,
    domain: _Domain = None,
    database: Database = None,
) -> None:
    """Let runs be shown patterns as they are now. Read them first, with `show`.

    Admit one again to have its text and figures as later runs make them; `show --now` prints them.
    """
    from kp_langchain.recall.admission import admit_patterns, digest_of

    if digest is not None and len(pattern_ids) != 1:
        raise typer.BadParameter("--digest belongs to one ID")
    with open_store(database) as store:
        patterns: list[Pattern] = []
        for found in _find_all(store, domain, pattern_ids):
            if found.mined is None:
                raise KPError(f"{found.id} is not among the runs any more, so nothing is admitted")
            if digest not in (None, digest_of(found.mined)):
                raise KPError(
                    f"{found.id} has another digest; read what it is now, and give the digest that "
                    f"stands there: kp-langchain patterns show {found.id} --now"
                )
            patterns.append(found.mined)
        admit_patterns(store, patterns, by=person())
    _report(patterns, "Admitted {}; runs may be shown {}.")


@app.command()
def reject(pattern_ids: _Ids, domain: _Domain = None, database: Database = None) -> None:
    """Never show patterns to runs, whether they were admitted or not."""
    from kp_langchain.recall.admission import reject_patterns

    with open_store(database) as store:
        found = _find_all(store, domain, pattern_ids)
        patterns = [one.mined for one in found if one.mined is not None]
        gone = [one.id for one in found if one.mined is None]
        store.own_patterns.reject(*gone, by=person())
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

    domains = [domain] if domain is not None else sorted(store.domain_figures())
    console = make_console(stderr=True)
    with console.status("Looking through runs") if console.is_terminal else nullcontext():
        return [patterns_of(store, name) for name in domains]


class _Found(NamedTuple):
    """A pattern among the runs, or one that a person decided on, or both."""

    id: str
    name: str
    mined: Pattern | None
    decided: PulledUnit | None


def _known(store: TraceStore, domain: str | None) -> list[_Found]:
    """Return the patterns, without those of which nothing is left."""
    mined = {one.id: one for of_domain in _mine(store, domain) for one in of_domain.patterns}
    decided = {
        id_: one
        for id_, one in store.own_patterns.decided().items()
        if domain in (None, one.domain) and (id_ in mined or one.state != "quarantined")
    }
    known: list[_Found] = []
    for id_ in mined | decided:
        unit = None if id_ in mined else store.own_patterns.unit(id_)
        name = mined[id_].name if id_ in mined else getattr(unit, "name", "")
        known.append(_Found(id_, name, mined.get(id_), decided.get(id_)))
    return known


def _find(store: TraceStore, domain: str | None, text: str) -> _Found:
    return _find_all(store, domain, [text])[0]


def _find_all(store: TraceStore, domain: str | None, texts: Sequence[str]) -> list[_Found]:
    """Return the patterns that ids or names mean, each once.

    Raises:
        KPError: One means none, or several.
    """
    known = _known(store, domain)
    return list({(one := _match(known, text)).id: one for text in texts}.values())


def _match(known: Sequence[_Found], text: str) -> _Found:
    from kp_langchain.pattern_schema import PATTERN_ID_PREFIX

    wanted = text.strip().lower().removeprefix(PATTERN_ID_PREFIX)
    names_of = [(one, (one.id.removeprefix(PATTERN_ID_PREFIX), one.name)) for one in known]
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
