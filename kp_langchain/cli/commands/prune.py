"""The command `prune`: removes what the store no longer needs."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from kp_langchain.cli.deleting import Deleting, Timeout, Yes
from kp_langchain.cli.json_option import AsJson
from kp_langchain.cli.output import say_json
from kp_langchain.cli.store_option import Database, open_store

if TYPE_CHECKING:
    from kp_langchain.store.run_columns import Pruning

_INCOMPLETE = 1
_WORDS = {
    "expired_traces": ("expired trace", "expired traces"),
    "expired_pauses": ("expired pause", "expired pauses"),
    "contributions": ("contribution of a deleted run", "contributions of deleted runs"),
    "remembered": (
        "superfluous trace of the novelty memory",
        "superfluous traces of the novelty memory",
    ),
}


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
    ttl_ms = None if settings.novelty_ttl_s is None else settings.novelty_ttl_s * 1000
    with open_store(database) as store:
        deleting = Deleting(store, as_json=as_json)
        plan = store.plan_deletion(keep=keep) if keep else None
        if plan:
            deleting.confirm(plan, is_confirmed=yes)
        with deleting.interruptible():
            if plan:
                deleting.delete(plan, timeout)
            pruning = store.prune(max_remembered=settings.novelty_memory, ttl_ms=ttl_ms)
            deleting.say(_line(pruning))
            deleting.compact()
        if as_json:
            say_json(asdict(pruning) | asdict(deleting.result))
    if not deleting.result.is_complete:
        raise typer.Exit(_INCOMPLETE)


def _line(pruning: Pruning) -> str:
    """Return in one line what was removed."""
    parts = [
        f"{number} {_WORDS[name][number != 1]}"
        for name, number in asdict(pruning).items()
        if number
    ]
    return f"Removed {', '.join(parts)}." if parts else "Nothing else was superfluous."
