"""The commands `store delete` and `store prune`."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kp_langchain.cli.options import (
    INTERRUPTED,
    AsJson,
    Database,
    Timeout,
    new_app,
    open_store,
    parse_age,
    takes_filters,
)
from kp_langchain.cli.output import counted, say, say_json, warn
from kp_langchain.cli.sending import current_registry, send_due
from kp_langchain.errors import KPError, StoreError
from kp_langchain.text import one_line, printable, short_id

if TYPE_CHECKING:
    from kp_langchain.store import Deletion, TraceStore

_INCOMPLETE = 1
_DOMAINS_SHOWN, _DOMAIN_CHARS = 6, 60
_RUNS_SHOWN, _SHOWN_CHARS = 20, 60
_END_OF_TIME = datetime.max.replace(tzinfo=UTC)
_PRUNED = {
    "expired_traces": ("expired trace", "expired traces"),
    "expired_pauses": ("expired pause", "expired pauses"),
    "contributions": ("contribution of a deleted run", "contributions of deleted runs"),
    "remembered": (
        "superfluous trace of the novelty memory",
        "superfluous traces of the novelty memory",
    ),
}
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Delete without asking.")]

app = new_app(help="Delete runs for good, and give back the room of what is superfluous.")


@app.command()
@takes_filters("domain", "since", "until", "where")
def delete(
    filters: dict[str, Any],
    run_ids: Annotated[
        list[str] | None,
        typer.Argument(metavar="ID", help="Trace ids, run ids, or the beginning of either."),
    ] = None,
    older_than: Annotated[
        str | None,
        typer.Option(metavar="AGE", help="Only runs that began longer ago: 12h, 90d, 2w."),
    ] = None,
    yes: Yes = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show what would be deleted, and delete nothing.")
    ] = False,
    timeout: Timeout = 20.0,
    database: Database = None,
    as_json: AsJson = False,
) -> None:
    """Delete runs for good: from the store, its file, and the registry they were sent to.

    Name the runs by their ids, or select them by options: only runs that fit all of these are
    deleted. Other processes forget them within a minute. What the registry does not delete now is
    withdrawn by the next process that sends.

    Exit status: 0, all of it is gone; 1, something is left to withdraw or to compact, or an error
    or your answer ended the command; 2, wrong usage; 130, interrupted.
    """
    if older_than is not None:
        filters["until"] = min(_time_before(older_than), filters.get("until", _END_OF_TIME))
    if bool(run_ids) == bool(filters):
        raise typer.BadParameter(
            "give either IDs, or some of --domain, --since, --until, --older-than and --where"
        )
    with open_store(database) as store:
        plan = store.deletions.plan(*run_ids or (), **filters)
        deleting = _Deleting(store, as_json=as_json)
        if not plan:
            deleting.say(f"No runs in {store.location} match; nothing was deleted.")
        elif dry_run:
            deleting.say(_describe(plan))
            for run in map(store.get, plan.trace_ids[:_RUNS_SHOWN]):
                if run is not None:
                    deleting.say(
                        f"  {short_id(run.trace_id)}  {one_line(run.objective, _SHOWN_CHARS)}"
                    )
            deleting.say("Nothing was deleted (--dry-run).")
        else:
            deleting.confirm(plan, is_confirmed=yes)
            with deleting.interruptible():
                deleting.delete(plan, timeout)
                deleting.compact()
        if as_json:
            of_plan = {
                "selected": len(plan),
                "by_domain": dict(plan.by_domain),
                "unscored": len(plan.unscored),
                "paused": len(plan.paused),
                "at_registry": plan.at_registry,
            }
            say_json(of_plan | asdict(deleting.result))
    if not deleting.result.is_complete:
        raise typer.Exit(_INCOMPLETE)


@app.command()
def prune(
    keep: Annotated[
        int | None,
        typer.Option(min=1, metavar="N", help="Delete all runs but the newest N."),
    ] = None,
    yes: Yes = False,
    timeout: Timeout = 20.0,
    database: Database = None,
    as_json: AsJson = False,
) -> None:
    """Remove what the store no longer needs, and give back the room.

    That is: traces that were kept for some days only and have expired, runs that waited too long
    for a human, what is left of deleted runs, and what is beyond the bounds of the novelty memory.
    Scores and kept traces stay, but for those that --keep deletes, as `delete` does.

    Exit status: 0, all was removed; 1, something is left to withdraw or to compact, or an error or
    your answer ended the command; 2, wrong usage; 130, interrupted.
    """
    from kp_langchain.config import Settings

    settings = Settings()
    with open_store(database) as store:
        deleting = _Deleting(store, as_json=as_json)
        plan = store.deletions.plan(keep=keep) if keep else None
        if plan:
            deleting.confirm(plan, is_confirmed=yes)
        with deleting.interruptible():
            if plan:
                deleting.delete(plan, timeout)
            pruning = store.deletions.prune(max_remembered=settings.novelty_memory)
            removed = asdict(pruning)
            parts = [counted(number, *_PRUNED[name]) for name, number in removed.items() if number]
            deleting.say(
                f"Removed {', '.join(parts)}." if parts else "Nothing else was superfluous."
            )
            deleting.compact()
        if as_json:
            say_json(removed | asdict(deleting.result))
    if not deleting.result.is_complete:
        raise typer.Exit(_INCOMPLETE)


def _time_before(older_than: str) -> datetime:
    if older_than.strip().lower().endswith("m"):  # minutes elsewhere, and months to many
        raise KPError(
            f"--older-than {printable(older_than)}: write hours, days or weeks: 12h, 90d, 2w"
        )
    try:
        return datetime.now(UTC) - parse_age(older_than, "--older-than")
    except OverflowError:
        raise KPError(
            f"--older-than {printable(older_than)}: that is before the first day of the calendar"
        ) from None


@dataclass(slots=True)
class _Result:
    """What a command deleted, and what is left to be done.

    Attributes:
        deleted: How many runs it deleted.
        to_withdraw: How many of them a registry still has, or may have.
        is_compacted: Whether no file of the store has text of deleted runs any more; None if the
            command did not try.
    """

    deleted: int = 0
    to_withdraw: int = 0
    is_compacted: bool | None = None

    @property
    def is_complete(self) -> bool:
        """Whether nothing is left to be done."""
        return not self.to_withdraw and self.is_compacted is not False


class _Deleting:
    """Delete runs of a store, and report each step.

    Args:
        store: The store.
        as_json: Report on stderr, because stdout gets JSON.
    """

    def __init__(self, store: TraceStore, *, as_json: bool) -> None:
        self._store, self._as_json = store, as_json
        self.say = warn if as_json else say
        self.result = _Result()

    @contextmanager
    def interruptible(self) -> Iterator[None]:
        """Say what an interruption leaves, and end the command with 130."""
        try:
            yield
        except KeyboardInterrupt:
            self.say("interrupted; what is deleted already stays deleted")
            raise typer.Exit(INTERRUPTED) from None

    def confirm(self, plan: Deletion, *, is_confirmed: bool) -> None:
        """Show what would be deleted, and ask, unless that is confirmed already.

        Raises:
            KPError: There is nobody to ask.
            Abort: The answer was no.
        """
        self.say(_describe(plan))
        if is_confirmed:
            return
        if not sys.stdin.isatty():
            raise KPError(
                "nothing was deleted, because there is no terminal to ask at; to delete without "
                "a question, add --yes; to see what would be deleted, --dry-run"
            )
        typer.confirm("Delete them for good?", abort=True, err=self._as_json)

    def delete(self, plan: Deletion, timeout_s: float) -> None:
        """Delete runs, and withdraw what a registry has of them.

        Args:
            plan: What to delete.
            timeout_s: Seconds that withdrawing may take.

        Raises:
            KPError: The store cannot be written, or the settings cannot be used.
        """
        # Settings that cannot be used end the command before it has deleted anything.
        registry = current_registry() if plan.at_registry else None
        self._store.deletions.carry_out(plan)
        self.result.deleted = len(plan)
        self.say(f"Deleted {counted(len(plan), 'run')} from {self._store.location}.")
        if not plan.at_registry:
            return
        trace_ids = set(plan.trace_ids)

        def count_due() -> int:
            return sum(one.trace_id in trace_ids for one in self._store.outbox.to_withdraw())

        self.result.to_withdraw = count_due()
        try:
            left = send_due(self._store, registry, count_due, timeout_s, self.say)
            self.result.to_withdraw = left
        except KPError as error:  # the next process that sends withdraws them
            self.say(f"{self.result.to_withdraw} are not withdrawn yet: {error}")

    def compact(self) -> None:
        """Give back the room of what was deleted; what keeps that from being done is reported."""
        problem = "another process kept reading it"
        try:
            self.result.is_compacted = self._store.compact()
        except StoreError as error:
            self.result.is_compacted, problem = False, str(error)
        if self.result.is_compacted:
            self.say("Gave back the room.")
        else:
            self.say(
                f"Files of the store may still have text of deleted runs: {problem}. "
                "Try that again later: kp-langchain store prune"
            )


def _describe(plan: Deletion) -> str:
    """Return in one line what a plan would delete."""
    shown = list(plan.by_domain.items())[:_DOMAINS_SHOWN]
    parts = [f"{one_line(domain, _DOMAIN_CHARS)} {number}" for domain, number in shown]
    if more := len(plan.by_domain) - len(shown):
        parts.append(f"{more} more domains")
    if plan.unscored:
        parts.append(f"not scored yet {len(plan.unscored)}")
    if plan.paused:
        parts.append(f"paused {len(plan.paused)}")
    line = f"{counted(len(plan), 'run')}: {', '.join(parts)}."
    if plan.at_registry:
        line += f" {plan.at_registry} of them were sent to a registry and are withdrawn there."
    return line
