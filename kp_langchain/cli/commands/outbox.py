"""The commands `outbox` and `outbox show`, `send`, `retry` and `drop`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Literal

import typer
from rich.text import Text

from kp_langchain.cli.json_option import AsJson, AsJsonLines
from kp_langchain.cli.output import json_fields, say, say_json, visible
from kp_langchain.cli.sending import (
    ContributionId,
    current_registry,
    find_contribution,
    require_registry,
    send_now,
    why_nothing_is_sent,
)
from kp_langchain.cli.store_option import Database, open_store
from kp_langchain.errors import KPError
from kp_langchain.printable import printable, short_id

if TYPE_CHECKING:
    from rich.console import RenderableType

    from kp_langchain.registry.client import Registry
    from kp_langchain.store import Contribution, TraceStore
    from kp_langchain.store.registry_units import ContributionState

outbox = typer.Typer(
    help="List runs that passed and go to a registry; `show`, `send`, `retry` and `drop` act on it."
)

_REASONS_SHOWN = 5


@outbox.callback(invoke_without_command=True)
def list_contributions(
    context: typer.Context,
    state: Annotated[
        Literal["pending", "sent", "dead", "withdrawn"] | None,
        typer.Option(help="Only contributions in this state."),
    ] = None,
    limit: Annotated[int, typer.Option(min=1, help="Show at most this many.")] = 30,
    database: Database = None,
    as_json: AsJsonLines = False,
) -> None:
    """List contributions; if nothing is being sent, say why."""
    if context.invoked_subcommand is not None:
        context.obj = database
        return
    from kp_langchain.cli.console import make_console

    with open_store(database) as store:
        contributions = store.outbox.entries(state=state, limit=limit)
        if as_json:
            for contribution in contributions:
                say_json(json_fields(contribution, without="body"))
            return
        counts = store.outbox.counts()
        console = make_console()
        if contributions:
            console.print(_table(contributions, datetime.now(UTC)))
        summary = ", ".join(f"{number} {name}" for name, number in counts.items())
        to_withdraw = len(store.outbox.to_withdraw())
        more = f"; {to_withdraw} to withdraw" if to_withdraw else ""
        console.print(f"{summary} in {store.location}{more}.", soft_wrap=True)
        for line in why_nothing_is_sent(store):
            console.print(line, soft_wrap=True)


@outbox.command()
def show(
    context: typer.Context,
    contribution_id: ContributionId,
    database: Database = None,
    as_json: AsJson = False,
) -> None:
    """Show one contribution, and the registry's answer to it."""
    from kp_langchain.cli.console import make_console

    with open_store(database or context.obj) as store:
        one = find_contribution(store, contribution_id)
        if as_json:
            say_json(json_fields(one, without="body"))
            return
        lines = [
            f"{one.trace_id}  {one.status}",
            f"for {one.registry}",
            f"queued {one.queued_at:%Y-%m-%d %H:%M:%S} UTC, last changed "
            f"{one.changed_at:%Y-%m-%d %H:%M:%S} UTC, attempts: {one.attempts}",
        ]
        if one.registry_id:
            lines.append(f"the registry's id: {one.registry_id}")
        if one.state == "pending" and one.attempts:
            lines.append(f"next attempt after {one.due_at:%Y-%m-%d %H:%M:%S} UTC")
        if one.reason:
            lines.append(f"reason: {one.reason}")
        lines += [
            f"  {issue.get('path') or '(whole trace)'}: {issue.get('message', '')}"
            for issue in one.issues or ()
        ]
        make_console().print(Text("\n".join(map(printable, lines))), soft_wrap=True)


@outbox.command()
def send(
    context: typer.Context,
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
    with open_store(database or context.obj) as store:
        pending = store.outbox.entries(state="pending", limit=None)
        for_others = [one for one in pending if one.registry != registry.url]
        before = store.outbox.counts()
        is_empty = send_now(store, registry, timeout)
        _print_sent(store, before)
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


def _print_sent(store: TraceStore, before: Mapping[ContributionState, int]) -> None:
    """Print how the outbox changed since the counts `before`."""
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
    pending = store.outbox.entries(state="pending", limit=None)
    remaining = [
        *((one, "is not withdrawn") for one in store.outbox.to_withdraw()),
        *((one, "is not sent") for one in pending),
    ]
    lines = [
        f"{one.trace_id} {what}: {one.reason}. Next attempt after "
        f"{one.due_at:%Y-%m-%d %H:%M:%S} UTC."
        for one, what in remaining
        if one.reason and one.registry == registry.url
    ]
    more = len(lines) - _REASONS_SHOWN
    return lines[:_REASONS_SHOWN] + ([f"And {more} more: kp-langchain outbox"] if more > 0 else [])


@outbox.command()
def retry(
    context: typer.Context, contribution_id: ContributionId, database: Database = None
) -> None:
    """Make a dead or pending contribution due now, for the registry of the settings."""
    registry = current_registry()
    with open_store(database or context.obj) as store, store.outbox.changing():
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
        store.outbox.settle(again, read=one)
        say(f"{one.trace_id} is pending for {url}; send it: kp-langchain outbox send")


@outbox.command()
def drop(
    context: typer.Context, contribution_id: ContributionId, database: Database = None
) -> None:
    """Remove an unsent contribution from the outbox; its run stays in the store."""
    with open_store(database or context.obj) as store, store.outbox.changing():
        one = find_contribution(store, contribution_id)
        if one.state == "sent":
            raise KPError(
                f"{one.trace_id} was sent; take it back: kp-langchain withdraw {one.trace_id}"
            )
        store.outbox.remove(one.trace_id)
        say(f"{one.trace_id} is no longer in the outbox")


def _table(contributions: Iterable[Contribution], now: datetime) -> RenderableType:
    """Return contributions as a table, one a row."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    table = Table(box=SIMPLE_HEAD, pad_edge=False, expand=True, padding=(0, 1, 0, 0))
    table.add_column("trace", no_wrap=True, min_width=8)
    table.add_column("state", no_wrap=True, min_width=9)
    table.add_column("age", justify="right", no_wrap=True)
    table.add_column("attempts", justify="right", no_wrap=True)
    table.add_column("registry's id, or reason", ratio=1, no_wrap=True, overflow="ellipsis")
    styles = {"sent": "green", "dead": "red", "pending": "yellow", "withdrawn": "bright_black"}
    for one in contributions:
        detail = one.registry_id if one.status == "sent" else one.reason
        table.add_row(
            Text(short_id(one.trace_id)),
            Text(one.status, style=styles[one.state]),
            _age((now - one.queued_at).total_seconds()),
            str(one.attempts),
            Text(visible(detail or "")),
        )
    return table


def _age(seconds: float) -> str:
    for unit, length_s in (("d", 86_400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * length_s:
            return f"{seconds / length_s:.0f} {unit}"
    return f"{max(0.0, seconds):.0f} s"
