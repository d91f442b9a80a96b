"""The commands `registry outbox list`, `show`, `send`, `retry` and `drop`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from kp_langchain.cli.options import AsJson, AsJsonLines, Database, Limit, group_app, open_store
from kp_langchain.cli.output import Column, list_table, make_console, say, say_json
from kp_langchain.cli.sending import (
    current_registry,
    require_registry,
    send_now,
    why_nothing_is_sent,
)
from kp_langchain.errors import KPError
from kp_langchain.text import one_line, printable, short_id

if TYPE_CHECKING:
    from kp_langchain.registry.client import Registry
    from kp_langchain.store import Contribution, TraceStore
    from kp_langchain.store.registry_units import ContributionState

_REASONS_SHOWN = 5
_DETAIL_CHARS = 300
_STYLES = {"sent": "green", "dead": "red", "pending": "yellow", "withdrawn": "bright_black"}
ContributionId = Annotated[
    str, typer.Argument(metavar="ID", help="Trace id or its beginning, or the registry's id.")
]

app = group_app(default="list", help="List runs that passed and go to a registry; act on them.")


@app.command("list")
def list_contributions(
    state: Annotated[
        Literal["pending", "sent", "dead", "withdrawn"] | None,
        typer.Option(help="Only contributions in this state."),
    ] = None,
    limit: Limit = 30,
    database: Database = None,
    as_json: AsJsonLines = False,
) -> None:
    """List contributions; if nothing is being sent, say why."""
    with open_store(database) as store:
        contributions = store.outbox.contributions(state=state, limit=limit)
        if as_json:
            for contribution in contributions:
                _say_contribution(contribution)
            return
        console = make_console()
        if contributions:
            console.print(list_table(_COLUMNS, contributions, width=console.width))
        summary = ", ".join(f"{number} {name}" for name, number in store.outbox.counts().items())
        to_withdraw = len(store.outbox.to_withdraw())
        more = f"; {to_withdraw} to withdraw" if to_withdraw else ""
        say(f"{summary} in {store.location}{more}.")
        for line in why_nothing_is_sent(store):
            say(line)


@app.command()
def show(
    contribution_id: ContributionId, database: Database = None, as_json: AsJson = False
) -> None:
    """Show one contribution, and the registry's answer to it."""
    with open_store(database) as store:
        one = find_contribution(store, contribution_id)
    if as_json:
        _say_contribution(one)
        return
    say(printable(f"{one.trace_id}  {one.status}"))
    say(printable(f"for {one.registry}"))
    say(
        f"queued {one.queued_at:%Y-%m-%d %H:%M:%S} UTC, last changed "
        f"{one.changed_at:%Y-%m-%d %H:%M:%S} UTC, attempts: {one.attempts}"
    )
    if one.registry_id:
        say(printable(f"the registry's id: {one.registry_id}"))
    if one.state == "pending" and one.attempts:
        say(f"next attempt after {one.due_at:%Y-%m-%d %H:%M:%S} UTC")
    if one.reason:
        say(printable(f"reason: {one.reason}"))
    for issue in one.issues or ():
        place = issue.get("path") or "(whole trace)"
        say(printable(f"  {place}: {issue.get('message', '')}"))


@app.command()
def send(
    timeout: Annotated[
        float, typer.Option(min=0, metavar="SECONDS", help="Take at most this long.")
    ] = 60.0,
    database: Database = None,
) -> None:
    """Send pending contributions now, even if the registry refused the key before."""
    from kp_langchain.config import Settings

    settings = Settings()
    if settings.disabled:
        raise KPError("KP_DISABLED is set, so nothing is sent; unset it")
    registry = require_registry(settings)
    with open_store(database) as store:
        pending = store.outbox.contributions(state="pending", limit=None)
        for_others = [one for one in pending if one.registry != registry.url]
        before = store.outbox.counts()
        is_empty = send_now(store, registry, timeout)
        _say_sent(store, before)
        if for_others:
            say(
                f"{len(for_others)} of these are meant for another registry "
                f"({for_others[0].registry}); `outbox retry ID` readdresses one to {registry.url}."
            )
        if not is_empty:
            reasons = [*_reasons(store, registry), *why_nothing_is_sent(store)]
            for line in reasons or ["The time ran out before all was sent; raise --timeout."]:
                say(line)
            raise typer.Exit(1)


def _say_sent(store: TraceStore, before: Mapping[ContributionState, int]) -> None:
    """Say how the outbox changed since the counts `before`."""
    counts = store.outbox.counts()
    to_withdraw = len(store.outbox.to_withdraw())
    withdrawals = counts["withdrawn"] - before["withdrawn"]
    say(
        f"Sent {counts['sent'] - before['sent'] + withdrawals}, refused "
        f"{counts['dead'] - before['dead']}, still pending {counts['pending']}"
        f"{f', withdrawn {withdrawals}' if withdrawals else ''}"
        f"{f', still to withdraw {to_withdraw}' if to_withdraw else ''}."
    )


def _reasons(store: TraceStore, registry: Registry) -> list[str]:
    """Return, as lines to print, why contributions were not withdrawn or not sent."""
    remaining = [
        *((one, "is not withdrawn") for one in store.outbox.to_withdraw()),
        *((one, "is not sent") for one in store.outbox.contributions(state="pending", limit=None)),
    ]
    lines = [
        f"{one.trace_id} {what}: {one.reason}. Next attempt after "
        f"{one.due_at:%Y-%m-%d %H:%M:%S} UTC."
        for one, what in remaining
        if one.reason and one.registry == registry.url
    ]
    more = len(lines) - _REASONS_SHOWN
    hint = [f"And {more} more: kp-langchain registry outbox"] if more > 0 else []
    return lines[:_REASONS_SHOWN] + hint


@app.command()
def retry(contribution_id: ContributionId, database: Database = None) -> None:
    """Make a dead or pending contribution due now, for the registry of the settings."""
    registry = current_registry()
    with open_store(database) as store, store.outbox.changing():
        one = find_contribution(store, contribution_id)
        if one.state not in ("dead", "pending"):
            raise KPError(
                f"{one.trace_id} is {one.state}; only dead or pending ones can be retried"
            )
        now = datetime.now(UTC)
        url = registry.url if registry else one.registry
        again = replace(one, state="pending", due_at=now, changed_at=now, registry=url)
        if url != one.registry:
            again = replace(again, first_attempt_at=None, registry_id=None)
        store.outbox.record_answer(again, read=one)
        say(f"{one.trace_id} is pending for {url}; send it: kp-langchain registry outbox send")


@app.command()
def drop(contribution_id: ContributionId, database: Database = None) -> None:
    """Remove an unsent contribution from the outbox; its run stays in the store."""
    with open_store(database) as store, store.outbox.changing():
        one = find_contribution(store, contribution_id)
        if one.state == "sent":
            hint = f"take it back: kp-langchain registry withdraw {one.trace_id}"
            raise KPError(f"{one.trace_id} was sent; {hint}")
        store.outbox.remove(one.trace_id)
        say(f"{one.trace_id} is no longer in the outbox")


def find_contribution(store: TraceStore, contribution_id: str) -> Contribution:
    """Return an entry of the outbox.

    Args:
        store: The store with the outbox.
        contribution_id: Trace id or its beginning, or the registry's id.

    Raises:
        KPError: There is no such entry.
    """
    contribution = store.outbox.get(contribution_id)
    if contribution is None:
        raise KPError(
            f"nothing {contribution_id!r} in the outbox of {store.location}; "
            "list it: kp-langchain registry outbox"
        )
    return contribution


def _say_contribution(contribution: Contribution) -> None:
    values = asdict(contribution)
    del values["body"]
    say_json(values)


def _detail(one: Contribution) -> str:
    detail = one.registry_id if one.status == "sent" else one.reason
    return one_line(detail or "", _DETAIL_CHARS)


_COLUMNS: tuple[Column[Contribution], ...] = (
    Column(title="trace", text=lambda one: short_id(one.trace_id)),
    Column(title="state", text=lambda one: one.status, style=lambda one: _STYLES[one.state]),
    Column(title="age>", text=lambda one: _age(datetime.now(UTC) - one.queued_at)),
    Column(title="attempts>", text=lambda one: str(one.attempts)),
    Column(title="registry's id, or reason", text=_detail),
)


def _age(age: timedelta) -> str:
    seconds = age.total_seconds()
    for unit, length_s in (("d", 86_400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * length_s:
            return f"{seconds / length_s:.0f} {unit}"
    return f"{max(0.0, seconds):.0f} s"
