"""The commands `store delete`, `store prune` and `store migrate`."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kp_langchain.cli.options import (
    INTERRUPTED,
    AsJson,
    Database,
    new_app,
    open_store,
    takes_filters,
)
from kp_langchain.cli.outbox import current_registry, send_due
from kp_langchain.cli.output import say, say_json, warn
from kp_langchain.config import Settings
from kp_langchain.errors import KPError, StoreError
from kp_langchain.text import count_text, one_line, short_id

if TYPE_CHECKING:
    from kp_langchain.store import Deletion, TraceStore

_INCOMPLETE = 1
_DOMAINS_SHOWN, _DOMAIN_CHARS = 6, 60
_RUNS_SHOWN, _SHOWN_CHARS = 20, 60
_PRUNED = {
    "expired_traces": ("expired trace", "expired traces"),
    "expired_pauses": ("expired pause", "expired pauses"),
    "remembered": (
        "trace beyond the novelty memory",
        "traces beyond the novelty memory",
    ),
}
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Delete without asking.")]

app = new_app(help="Delete runs for good, remove what the store no longer needs, and migrate it.")


@app.command()
@takes_filters("domain", "since", "until", "where")
def delete(
    filters: dict[str, Any],
    run_ids: Annotated[
        list[str] | None,
        typer.Argument(metavar="ID", help="Trace ids, run ids, or the first 4 characters or more."),
    ] = None,
    keep: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Of these, all but the newest N.")
    ] = None,
    yes: Yes = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show what would be deleted, and delete nothing.")
    ] = False,
    database: Database = None,
    as_json: AsJson = False,
) -> None:
    """Delete runs for good: from the store, its file, and the registry they were sent to.

    Name the runs by their ids, or select them by options, of which a run must fit all. --until 90d
    means those that began longer ago. Other processes forget them within a
    minute. What the registry does not delete now is withdrawn by the next process that sends.

    Exit status: 0, all of it is gone; 1, something is left to withdraw or to compact, or an error
    or your answer ended the command; 2, wrong usage; 130, interrupted.
    """
    if bool(run_ids) == bool(filters or keep):
        raise typer.BadParameter(
            "give either IDs, or some of --domain, --since, --until, --where and --keep"
        )
    report = warn if as_json else say
    deleted = to_withdraw = 0
    is_compacted = None
    with open_store(database) as store:
        plan = store.deletions.plan(*run_ids or (), keep=keep or 0, **filters)
        if not plan:
            report(f"No runs in {store.location} match; nothing was deleted.")
        elif dry_run:
            report(_describe(plan))
            for run in map(store.get, plan.trace_ids[:_RUNS_SHOWN]):
                if run is not None:
                    report(f"  {short_id(run.trace_id)}  {one_line(run.objective, _SHOWN_CHARS)}")
            report("Nothing was deleted (--dry-run).")
        else:
            _confirm(plan, report, is_confirmed=yes)
            with _interruptible():
                to_withdraw = _delete(store, plan, report)
                deleted = len(plan)
                is_compacted = _compact(store, report)
        if as_json:
            values = {
                "selected": len(plan),
                "by_domain": dict(plan.by_domain),
                "unscored": len(plan.unscored),
                "paused": len(plan.paused),
                "at_registry": plan.at_registry,
                "deleted": deleted,
                "to_withdraw": to_withdraw,
                "is_compacted": is_compacted,
            }
            say_json(values)
    if to_withdraw or is_compacted is False:
        raise typer.Exit(_INCOMPLETE)


@app.command()
def prune(database: Database = None, as_json: AsJson = False) -> None:
    """Remove what the store no longer needs, and give back the room.

    That is: expired traces, runs that waited too long for a human, and what is beyond the bounds of
    the novelty memory. Scores and kept traces stay.

    Exit status: 0, all was removed; 1, something is left to compact, or an error ended the command;
    2, wrong usage; 130, interrupted.
    """
    settings = Settings()
    report = warn if as_json else say
    with open_store(database) as store, _interruptible():
        counts = asdict(store.deletions.prune(max_remembered=settings.novelty_memory))
        parts = [count_text(number, *_PRUNED[name]) for name, number in counts.items() if number]
        report(f"Removed {', '.join(parts)}." if parts else "Nothing to remove.")
        is_compacted = _compact(store, report)
        if as_json:
            say_json(counts | {"is_compacted": is_compacted})
    if not is_compacted:
        raise typer.Exit(_INCOMPLETE)


@app.command()
def migrate(database: Database = None) -> None:
    """Create the tables of a store, or bring those of an earlier version up to this one.

    A process that records does that itself, if its user may. Run this before, as the owner of the
    tables, where agents may not change them. Processes of the release before go on meanwhile, and
    afterwards.
    """
    from kp_langchain.store import TraceStore
    from kp_langchain.store.migrations import schema_version

    with TraceStore(database) as store:
        store.database.open()
        say(f"{store.location} has schema version {schema_version()}.")


@contextmanager
def _interruptible() -> Iterator[None]:
    """Say what an interruption leaves, and end the command with 130."""
    try:
        yield
    except KeyboardInterrupt:
        warn("interrupted; what is deleted already stays deleted")
        raise typer.Exit(INTERRUPTED) from None


def _confirm(plan: Deletion, report: Callable[[str], None], *, is_confirmed: bool) -> None:
    """Show what would be deleted, and ask, unless that is confirmed already.

    Raises:
        KPError: There is nobody to ask.
        Abort: The answer was no.
    """
    report(_describe(plan))
    if is_confirmed:
        return
    if not sys.stdin.isatty():
        raise KPError(
            "nothing was deleted, because there is no terminal to ask at; to delete without "
            "a question, add --yes; to see what would be deleted, --dry-run"
        )
    typer.confirm("Delete them for good?", abort=True, err=True)


def _delete(store: TraceStore, plan: Deletion, report: Callable[[str], None]) -> int:
    """Delete runs, and withdraw what a registry has of them; return how many it may still have.

    Raises:
        KPError: The store cannot be written, or the settings cannot be used.
    """
    # Settings that cannot be used end the command before it has deleted anything.
    registry = current_registry() if plan.at_registry else None
    store.deletions.carry_out(plan)
    report(f"Deleted {count_text(len(plan), 'run')} from {store.location}.")
    if not plan.at_registry:
        return 0
    trace_ids = set(plan.trace_ids)

    def count_due() -> int:
        return sum(one.trace_id in trace_ids for one in store.outbox.to_withdraw())

    try:
        return send_due(store, registry, count_due, report)
    except KPError as error:  # the next process that sends withdraws them
        to_withdraw = count_due()
        report(f"{to_withdraw} are not withdrawn yet: {error}")
        return to_withdraw


def _compact(store: TraceStore, report: Callable[[str], None]) -> bool:
    """Return whether the room of what was deleted is given back; report what keeps it from that."""
    problem = "another process kept reading it"
    try:
        if store.compact():
            report("Compacted the store's file.")
            return True
    except StoreError as error:
        problem = str(error)
    report(
        f"Files of the store may still have text of deleted runs: {problem}. "
        "Try that again later: kp-langchain store prune"
    )
    return False


def _describe(plan: Deletion) -> str:
    """Return in one line what a plan would delete."""
    first = list(plan.by_domain.items())[:_DOMAINS_SHOWN]
    parts = [f"{one_line(domain, _DOMAIN_CHARS)} {number}" for domain, number in first]
    if more := len(plan.by_domain) - len(first):
        parts.append(f"{more} more domains")
    if plan.unscored:
        parts.append(f"not scored yet {len(plan.unscored)}")
    if plan.paused:
        parts.append(f"paused {len(plan.paused)}")
    line = f"{count_text(len(plan), 'run')}: {', '.join(parts)}."
    if plan.at_registry:
        line += f" {plan.at_registry} of them were sent to a registry and are withdrawn there."
    return line
