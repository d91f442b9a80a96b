"""The options that select runs, and the filters that they mean."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from kp_langchain.cli.time_text import parse_time
from kp_langchain.cli.where_option import parse_keys
from kp_langchain.errors import KPError

if TYPE_CHECKING:
    from kp_langchain.store.run_columns import RunFilters

Domain = Annotated[str | None, typer.Option(help="Only this domain.")]
Decision = Annotated[
    Literal["kept", "below_threshold", "twin"] | None,
    typer.Option(help="Only runs with this decision."),
]
MinScore = Annotated[float | None, typer.Option(help="Only runs that scored at least this.")]
Since = Annotated[
    str | None,
    typer.Option(metavar="TIME", help="Only runs since: 2026-03-31, 2026-03-31T18:00, 7d, 12h."),
]
Until = Annotated[
    str | None, typer.Option(metavar="TIME", help="Only runs that began before this time.")
]
Search = Annotated[
    str | None, typer.Option(metavar="WORDS", help="Only runs whose objective has these words.")
]
Rule = Annotated[str | None, typer.Option(help="Only runs that this rule applied to.")]
Tool = Annotated[str | None, typer.Option(help="Only runs that used this tool.")]
RecoveredErrors = Annotated[
    bool, typer.Option("--recovered-errors", help="Only runs that went on after an error.")
]
NearDuplicates = Annotated[
    bool,
    typer.Option("--near-duplicates", help="Only runs that repeat a kept one, or were replaced."),
]
Session = Annotated[str | None, typer.Option(help="Only runs of this session.")]
Tag = Annotated[str | None, typer.Option(help="Only runs with this tag.")]


def run_filters(
    *,
    domain: str | None = None,
    decision: str | None = None,
    min_score: float | None = None,
    since: str | None = None,
    until: str | None = None,
    search: str | None = None,
    rule: str | None = None,
    tool: str | None = None,
    recovered_errors: bool = False,
    near_duplicates: bool = False,
    session: str | None = None,
    tag: str | None = None,
    where: Iterable[str] | None = None,
) -> RunFilters:
    """Return the filters for `TraceStore.runs` that options mean, without those not given.

    Raises:
        KPError: A time cannot be read, there is no such rule, or `where` cannot be used.
    """
    from kp_langchain.scoring.rules import REASONS

    if rule is not None and rule not in REASONS:
        raise KPError(f"--rule {rule}: there is no such rule; the rules are {', '.join(REASONS)}")
    keys = parse_keys(where)
    for name, value in (("session", session), ("tag", tag)):
        if value is not None and keys.setdefault(name, value) != value:
            raise KPError(f"--{name} and --where {name}=... differ; give one of them")
    filters: dict[str, Any] = keys | {
        "domain": domain,
        "decision": decision,
        "min_score": min_score,
        "since": None if since is None else parse_time(since, "--since"),
        "until": None if until is None else parse_time(until, "--until"),
        "search": search,
        "rule": rule,
        "tool": tool,
        "recovered_errors": recovered_errors or None,
        "near_duplicates": near_duplicates or None,
    }
    given: RunFilters = {name: value for name, value in filters.items() if value is not None}  # type: ignore[assignment]
    return given
