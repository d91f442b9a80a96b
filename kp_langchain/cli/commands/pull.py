"""The command `pull`: reads traces of a registry into quarantine."""

from __future__ import annotations

import sys
import time
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kp_langchain.cli.json_option import AsJson
from kp_langchain.cli.output import say, say_json
from kp_langchain.cli.sending import require_registry
from kp_langchain.cli.store_option import Database, open_store
from kp_langchain.errors import KPError

if TYPE_CHECKING:
    from kp_langchain.recall.quarantine import Pull

_NOT_READ, _INTERRUPTED = 1, 130
_SOON_S = 2.0  # a wait that is not worth a line
# What became of units that are there now, and of those that were not taken.
_FATES = {
    "new": "new",
    "changed": "changed, and quarantined again",
    "unchanged": "unchanged",
}
_NOT_TAKEN = {
    "rejected": "rejected before",
    "own run": "a run of this store",
    "other registry": "pulled from another registry before",
    "too large": "too large",
}


def pull(
    domain: Annotated[str, typer.Option(help="The domain whose traces to read.")],
    min_quality: Annotated[
        float | None,
        typer.Option(min=0, max=1, help="Only traces whose contributor claims at least this."),
    ] = None,
    query: Annotated[
        str | None, typer.Option(metavar="TEXT", help="Only traces with these words.")
    ] = None,
    limit: Annotated[int, typer.Option(min=1, max=5000, help="Read at most this many.")] = 200,
    offset: Annotated[
        int, typer.Option(min=0, help="Leave out this many, those that claim most.")
    ] = 0,
    admit_clean: Annotated[
        bool, typer.Option("--admit-clean", help="Admit those in which nothing was found.")
    ] = False,
    registry: Annotated[
        str | None,
        typer.Option(metavar="URL", help="The registry; by default that of the settings."),
    ] = None,
    timeout: Annotated[
        float, typer.Option(min=0, metavar="SECONDS", help="Take at most this long.")
    ] = 60.0,
    database: Database = None,
    as_json: AsJson = False,
) -> None:
    """Read traces of a registry into quarantine, where they wait to be admitted.

    Each is redacted by your rules and searched for planted instructions. No run is shown one before
    it is admitted: by `quarantine admit`, or here by --admit-clean, which leaves those in which
    something was found, and those that changed at the registry, to you. What a trace says of its
    own quality and success is only a claim.

    Exit status: 0, all that was asked for was read, usable or not; 1, the registry kept some back,
    or an error ended the command; 2, wrong usage; 130, interrupted.
    """
    from kp_langchain.config import Settings
    from kp_langchain.recall.quarantine import pull as pull_units

    settings = Settings()
    if settings.disabled:
        raise KPError("KP_DISABLED is set, so nothing is pulled; unset it")
    client = require_registry(settings, registry)
    with open_store(database) as store:
        try:
            pulled = pull_units(
                store,
                client,
                domain=domain,
                q=query,
                min_quality=min_quality,
                limit=limit,
                offset=offset,
                timeout_s=timeout,
                admit_clean=admit_clean,
                sleep=_wait,
            )
        except KeyboardInterrupt:
            say("interrupted; what is in quarantine already stays there", file=sys.stderr)
            raise typer.Exit(_INTERRUPTED) from None
    if as_json:
        say_json(_fields(pulled))
    else:
        for line in _lines(pulled):
            say(line)
    if pulled.answer.kind != "done":
        raise typer.Exit(_NOT_READ)


def _wait(seconds: float) -> None:
    if seconds > _SOON_S:
        say(f"Waiting {seconds:.0f} s for the registry's limit of requests.", file=sys.stderr)
    time.sleep(seconds)


def _lines(pulled: Pull) -> list[str]:
    """Return what a pull did, as lines to print."""
    of = "" if pulled.total is None else f" of {pulled.total}"
    fates = [f"{pulled.fates[fate]} {word}" for fate, word in _FATES.items() if pulled.fates[fate]]  # type: ignore[index]
    what = f": {', '.join(fates)}" if fates else ""
    lines = [f"Read {pulled.read}{of} traces of {pulled.domain} from {pulled.registry}{what}."]
    not_taken = {
        _NOT_TAKEN[fate]: number for fate, number in pulled.fates.items() if fate in _NOT_TAKEN
    }
    reasons = [f"{number} {reason}" for reason, number in _most_first(pulled.skipped | not_taken)]
    if reasons:
        lines.append(f"Not taken: {'; '.join(reasons)}.")
    if pulled.with_findings:
        lines.append(
            f"{pulled.with_findings} may hold planted instructions: kp-langchain quarantine"
        )
    if pulled.admitted:
        lines.append(f"Admitted {pulled.admitted} in which nothing was found.")
    if pulled.answer.kind != "done":
        lines.append(f"Not all was read: {pulled.answer.reason}.")
    if pulled.next_offset is not None:
        lines.append(f"There may be more: --offset {pulled.next_offset}")
    return lines


def _most_first(counts: dict[str, int]) -> list[tuple[str, int]]:
    return sorted(counts.items(), key=lambda item: (-item[1], item[0]))


def _fields(pulled: Pull) -> dict[str, Any]:
    values = asdict(pulled)
    values |= {"fates": dict(pulled.fates), "skipped": dict(pulled.skipped)}
    answer = {"kind": pulled.answer.kind, "reason": pulled.answer.reason}
    return values | {"answer": answer}
