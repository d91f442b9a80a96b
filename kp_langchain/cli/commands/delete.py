"""The command `delete`: deletes runs from the store, its file and the registry."""

from __future__ import annotations

from dataclasses import asdict
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kp_langchain.cli.deleting import Deleting, Timeout, Yes, describe
from kp_langchain.cli.json_option import AsJson
from kp_langchain.cli.output import say_json
from kp_langchain.cli.run_filter_options import Domain
from kp_langchain.cli.store_option import Database, open_store
from kp_langchain.cli.time_text import parse_age
from kp_langchain.cli.where_option import Where, parse_keys
from kp_langchain.errors import KPError
from kp_langchain.printable import printable

if TYPE_CHECKING:
    from kp_langchain.store.run_columns import Deletion

_INCOMPLETE = 1


def delete(
    run_ids: Annotated[
        list[str] | None,
        typer.Argument(metavar="ID", help="Trace ids, run ids, or the beginning of either."),
    ] = None,
    domain: Domain = None,
    older_than: Annotated[
        str | None,
        typer.Option(metavar="AGE", help="Only runs that began longer ago: 12h, 90d, 2w."),
    ] = None,
    where: Where = None,
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
    filters: dict[str, Any] = parse_keys(where)
    if domain is not None:
        filters["domain"] = domain
    if older_than is not None:
        filters["until"] = _time_before(older_than)
    if bool(run_ids) == bool(filters):
        raise typer.BadParameter("give either IDs, or some of --domain, --older-than and --where")
    with open_store(database) as store:
        plan = store.plan_deletion(*run_ids or (), **filters)
        deleting = Deleting(store, as_json=as_json)
        if not plan:
            deleting.say(f"No runs in {store.location} match; nothing was deleted.")
        elif dry_run:
            deleting.say(describe(plan))
            deleting.say("Nothing was deleted (--dry-run).")
        else:
            deleting.confirm(plan, is_confirmed=yes)
            with deleting.interruptible():
                deleting.delete(plan, timeout)
                deleting.compact()
        if as_json:
            say_json(_fields(plan) | asdict(deleting.result))
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


def _fields(plan: Deletion) -> dict[str, Any]:
    return {
        "selected": len(plan),
        "by_domain": dict(plan.by_domain),
        "unscored": len(plan.unscored),
        "paused": len(plan.paused),
        "at_registry": plan.at_registry,
    }
