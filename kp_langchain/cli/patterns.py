"""The command `patterns`: plans that recur among kept successes, and their SKILL.md."""

from __future__ import annotations

from collections import Counter
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

app = group_app(
    default="list",
    of_id="show",
    metavar="[ID | COMMAND [ARGS]...]",
    help="""Show plans that recur among kept successes: the same calls in at least three runs of
    three tasks.

    Without a command it lists them, and with an id it prints the SKILL.md of that pattern. They are
    looked for anew each time, among the newest 10,000 runs of a domain: about a millisecond a
    run.""",
)

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

    --json prints the knowledge unit of each, a ToolCallPattern.
    """
    with open_store(database) as store:
        mined = _mine(store, domain)
        patterns = [one for of_domain in mined for one in of_domain.patterns]
        if as_json:
            from kp_langchain.recall.skill_file import unit_of

            for pattern in patterns:
                say_json({}, unit_of(pattern).model_dump(mode="json"))
            return
        print_list(_COLUMNS, patterns, as_json=False)
        runs = sum(one.runs for one in mined)
        left_out = counts_text(sum((one.left_out for one in mined), Counter()))
        of = f" of {one_line(domain, 100)}" if domain is not None else ""
        text = f"{count_text(len(patterns), 'pattern')} in {count_text(runs, 'run')}{of}."
        if left_out:
            text += f" Groups left out: {left_out}."
        say(text + ("" if runs else domain_hint(domain)))
        if patterns:
            say("One of them: kp-langchain patterns ID")


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
def export(
    folder: Annotated[str, typer.Argument(metavar="DIR", help="A new or empty folder.")],
    domain: _Domain = None,
    with_identifiers: _Identifiers = False,
    database: Database = None,
) -> None:
    """Write NAME/SKILL.md for each pattern, and all as knowledge units into patterns.jsonl.

    Only you may read the files. Look at them before you give them to others.
    """
    from kp_langchain.recall.skill_file import skill_text, unit_of

    with open_store(database) as store:
        patterns = [one for of_domain in _mine(store, domain) for one in of_domain.patterns]
    chosen = [
        one for one in patterns if with_identifiers or one.metadata.privacy_level != "private"
    ]
    if not chosen:
        raise KPError(f"nothing to export.{_left_out(len(patterns))}")
    with folder_output(folder) as target:
        units = []
        for pattern in chosen:
            (target / pattern.name).mkdir(mode=0o700)
            (target / pattern.name / "SKILL.md").write_text(skill_text(pattern), encoding="utf-8")
            units.append(f"{unit_of(pattern).model_dump_json()}\n")
        (target / "patterns.jsonl").write_text("".join(units), encoding="utf-8")
    number = count_text(len(chosen), "pattern")
    warn(f"Exported {number} to {folder}.{_left_out(len(patterns) - len(chosen))}")


def _left_out(number: int) -> str:
    return f" Left out {number} that keep identifiers (--with-identifiers)." if number else ""


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
    Column(title="tasks>", text=lambda one: f"{one.tasks:,}"),
    Column(title="name", text=lambda one: one.name, from_width=_WIDE),
    Column(title="path", text=lambda one: one_line(" > ".join(one.tools), 300)),
)
