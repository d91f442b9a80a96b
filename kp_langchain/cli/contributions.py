"""The commands about what goes to a registry: `outbox ...`, `register`, `withdraw`."""

from __future__ import annotations

import os
from dataclasses import replace
from datetime import UTC, datetime
from shlex import quote
from typing import TYPE_CHECKING, Annotated, Any, Literal, Optional

import typer
from rich.text import Text

from kp_langchain.cli.output import say, say_json, visible
from kp_langchain.cli.store_option import Database, open_store
from kp_langchain.errors import KPError
from kp_langchain.printable import printable

if TYPE_CHECKING:
    from kp_langchain.config import Settings
    from kp_langchain.registry.client import Registry
    from kp_langchain.store import Contribution, TraceStore

outbox = typer.Typer(
    help="List what passed and goes to a registry; `show`, `send`, `retry` and `drop` act on it."
)

_GET_KEY = "get one: kp-langchain register --agent-id kp:agent:NAME"
_SHOWN = 5

Id = Annotated[
    str, typer.Argument(metavar="ID", help="Trace id or its beginning, or the registry's id.")
]


@outbox.callback(invoke_without_command=True)
def _list(
    context: typer.Context,
    state: Annotated[
        Optional[Literal["pending", "sent", "dead", "withdrawn"]],  # noqa: UP045
        typer.Option(help="Only those in this state."),
    ] = None,
    limit: Annotated[int, typer.Option(min=1, help="At most so many.")] = 30,
    database: Database = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object a line.")] = False,
) -> None:
    if context.invoked_subcommand is not None:
        context.obj = database
        return
    from kp_langchain.cli.run_tables import contributions_table, make_console

    with open_store(database) as store:
        found = store.outbox.entries(state=state, limit=limit)
        if as_json:
            for one in found:
                say_json(_as_json(one))
            return
        counts = store.outbox.counts()
        console = make_console()
        if found:
            console.print(contributions_table(found, datetime.now(UTC)))
        told = ", ".join(f"{number} {name}" for name, number in counts.items())
        to_withdraw = len(store.outbox.to_withdraw())
        more = f"; {to_withdraw} to withdraw" if to_withdraw else ""
        console.print(f"{told} in {store.location}{more}.", soft_wrap=True)
        for line in silence(store):
            console.print(line, soft_wrap=True)


def silence(store: TraceStore) -> list[str]:
    """Say what keeps pending ones from being sent."""
    from kp_langchain.registry.client import ANONYMOUS
    from kp_langchain.registry.pace import wait_s

    registry = configured()
    if registry is None:
        return ["No registry is configured (KP_REGISTRY_URL), so nothing is sent."]
    if registry.key_id == ANONYMOUS:
        return [f"Nothing is sent to {registry.url}, because there is no key for it; {_GET_KEY}."]
    standing = store.outbox.standing(registry.url, registry.key_id)
    seconds = wait_s(standing, datetime.now(UTC))
    if seconds <= 0.0:
        return []
    return [f"Nothing is sent to {registry.url} for {seconds:.0f} s: {standing.quiet_reason}."]


@outbox.command()
def show(
    context: typer.Context,
    contribution: Id,
    database: Database = None,
    as_json: Annotated[bool, typer.Option("--json", help="As one JSON object.")] = False,
) -> None:
    """Show one contribution, with what the registry said of it."""
    from kp_langchain.cli.run_tables import make_console

    with open_store(database or context.obj) as store:
        one = _found(store, contribution)
        if as_json:
            say_json(_as_json(one))
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
            lines.append(f"to be tried again after {one.due_at:%Y-%m-%d %H:%M:%S} UTC")
        if one.reason:
            lines.append(f"reason: {one.reason}")
        lines += [
            f"  {issue.get('path') or '(whole)'}: {issue.get('message', '')}"
            for issue in one.issues or ()
        ]
        make_console().print(Text("\n".join(map(printable, lines))), soft_wrap=True)


@outbox.command()
def send(
    context: typer.Context,
    timeout: Annotated[
        float, typer.Option(min=0, metavar="SECONDS", help="Take at most so long.")
    ] = 60.0,
    database: Database = None,
) -> None:
    """Send what is pending, now, also after the registry refused the key."""
    from kp_langchain.cli.run_tables import make_console
    from kp_langchain.config import Settings

    if Settings().disabled:
        raise KPError("KP_DISABLED is set, so nothing is sent; unset it")
    registry = _needed()
    with open_store(database or context.obj) as store:
        elsewhere = [
            one
            for one in store.outbox.entries(state="pending", limit=None)
            if one.registry != registry.url
        ]
        before = store.outbox.counts()
        done = send_now(store, registry, timeout)
        counts = store.outbox.counts()
        to_withdraw = store.outbox.to_withdraw()
        withdrawn = counts["withdrawn"] - before["withdrawn"]
        console = make_console()
        console.print(
            f"Sent {counts['sent'] - before['sent'] + withdrawn}, refused "
            f"{counts['dead'] - before['dead']}, still pending {counts['pending']}"
            f"{f', withdrawn {withdrawn}' if withdrawn else ''}"
            f"{f', still to withdraw {len(to_withdraw)}' if to_withdraw else ''}.",
            soft_wrap=True,
        )
        if elsewhere:
            console.print(
                f"{len(elsewhere)} of these are meant for another registry "
                f"({elsewhere[0].registry}); `outbox retry ID` readdresses one to {registry.url}.",
                soft_wrap=True,
            )
        if not done:
            lines = [*_left_over(store, to_withdraw, registry), *silence(store)]
            for line in lines or ["The time was over before all was sent; give --timeout more."]:
                console.print(Text(visible(line)), soft_wrap=True)
            raise typer.Exit(1)


def _left_over(store: TraceStore, to_withdraw: list[Contribution], registry: Registry) -> list[str]:
    """Say why contributions were not sent, or not withdrawn."""
    waiting = [
        *((one, "is not withdrawn") for one in to_withdraw),
        *((one, "is not sent") for one in store.outbox.entries(state="pending", limit=None)),
    ]
    told = [
        f"{one.trace_id} {what}: {one.reason}. Asked again after "
        f"{one.due_at:%Y-%m-%d %H:%M:%S} UTC."
        for one, what in waiting
        if one.reason and one.registry == registry.url
    ]
    more = len(told) - _SHOWN
    return told[:_SHOWN] + ([f"And {more} more: kp-langchain outbox"] if more > 0 else [])


def send_now(store: TraceStore, registry: Registry, timeout_s: float) -> bool:
    """Send and withdraw what is to be, also after the registry refused the key.

    Args:
        store: Where it waits.
        registry: Where it goes.
        timeout_s: Seconds to take at most.

    Returns:
        Whether nothing is left.
    """
    from kp_langchain.registry.sender import sender_for

    with store.outbox.changing():
        standing = store.outbox.standing(registry.url, registry.key_id)
        if standing.stopped:
            store.outbox.save(replace(standing, quiet_until=None, quiet_s=0.0, stopped=False))
    return sender_for(store, registry).drain(timeout_s)


@outbox.command()
def retry(context: typer.Context, contribution: Id, database: Database = None) -> None:
    """Make a dead or waiting contribution due now, for the registry of the settings."""
    registry = configured()
    with open_store(database or context.obj) as store, store.outbox.changing():
        one = _found(store, contribution)
        if one.state not in ("dead", "pending"):
            raise KPError(
                f"{one.trace_id} is {one.state}; only dead or pending ones can be retried"
            )
        now = datetime.now(UTC)
        to = registry.url if registry else one.registry
        again = replace(one, state="pending", due_at=now, changed_at=now, registry=to)
        if to != one.registry:
            again = replace(again, first_attempt_at=None, registry_id=None)
        store.outbox.settle(again, read=one)
        say(f"{one.trace_id} is pending for {to}; send it: kp-langchain outbox send")


@outbox.command()
def drop(context: typer.Context, contribution: Id, database: Database = None) -> None:
    """Take a contribution that was not sent out of the outbox; its run stays in the store."""
    with open_store(database or context.obj) as store, store.outbox.changing():
        one = _found(store, contribution)
        if one.state == "sent":
            raise KPError(
                f"{one.trace_id} was sent; take it back: kp-langchain withdraw {one.trace_id}"
            )
        store.outbox.remove(one.trace_id)
        say(f"{one.trace_id} is no longer in the outbox")


def withdraw(contribution: Id, database: Database = None) -> None:
    """Delete from the registry what was sent to it; a pending one is not sent any more."""
    with open_store(database) as store, store.outbox.changing():
        one = _found(store, contribution)
        if one.state == "withdrawn" and not one.withdraw_asked:
            raise KPError(f"{one.trace_id} is withdrawn already")
        # One that was tried may have arrived without its answer having come back.
        if one.state == "sent" or (one.state != "withdrawn" and one.attempts):
            _delete(store, one)
        now = datetime.now(UTC)
        gone = replace(one, state="withdrawn", changed_at=now, body=None, reason=None, issues=None)
        store.outbox.save(replace(gone, withdraw_asked=False))
        say(f"{one.trace_id} is withdrawn; its run stays in {store.location}")


def _delete(store: TraceStore, one: Contribution) -> None:
    from kp_langchain.config import Settings
    from kp_langchain.registry import pace
    from kp_langchain.registry.client import ANONYMOUS
    from kp_langchain.registry.from_settings import configured_registry

    settings = Settings()
    # The address comes from the database, which need not be the user's own.
    is_loose = settings.api_key is not None and settings.api_key_registry is None
    if is_loose:
        settings = settings.model_copy(update={"api_key": None})
    registry = configured_registry(settings, one.registry)
    if registry is None or registry.key_id == ANONYMOUS:
        if is_loose:
            raise KPError(
                "the api_key of the settings came without a registry, and is not shown to "
                f"{one.registry}; if it belongs there: KP_REGISTRY_URL={quote(one.registry)}"
            )
        raise KPError(f"there is no key for {one.registry}; {_GET_KEY}")
    now = datetime.now(UTC)
    standing = pace.restart_quiet_period(store.outbox.standing(registry.url, registry.key_id), now)
    seconds = pace.wait_s(standing, now)
    if seconds > 0.0 and not standing.stopped:
        raise KPError(
            f"nothing may be asked of {registry.url} for {seconds:.0f} s "
            f"({standing.quiet_reason}); withdraw {one.trace_id} after that"
        )
    answer = registry.withdraw(one.unit_id)
    now = datetime.now(UTC)
    store.outbox.save(pace.after_answer(standing, answer, now, contributes=False))
    if answer.kind != "done":
        raise KPError(
            f"{one.trace_id} could not be withdrawn: {answer.reason}. kp-langchain doctor says "
            "whether the key lives, and whose it is"
        )


def register(
    agent_id: Annotated[str, typer.Option(help="Who contributes, such as kp:agent:me.")],
    registry: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option(metavar="URL", help="The registry; by default the one of the settings."),
    ] = None,
    replace_key: Annotated[
        bool, typer.Option("--replace", help="Replace a stored key of another agent.")
    ] = False,
) -> None:
    """Obtain a key for a registry and store it in a file that only you can read.

    Traces carry the key's agent id from then on, and only with this key can they be withdrawn.
    """
    from kp_langchain.agent_id import normalised, shown, usable
    from kp_langchain.config import Settings
    from kp_langchain.registry.credentials import key_file, save_key, stored_key

    settings = Settings()
    agent_id = usable(agent_id, settings.redaction)
    to = _needed(registry)
    # The key is shown once, so the file had better be in order before.
    known = stored_key(to.url)
    if known is not None and normalised(known.agent_id) != agent_id and not replace_key:
        raise KPError(
            f"{key_file()} holds a key for {to.url} already, of {shown(known.agent_id)}; with "
            "--replace it is lost, and what was sent with it can no longer be withdrawn"
        )
    key = to.register(agent_id)
    path = save_key(to.url, agent_id, key)
    for line in _what_comes_before(settings, to.url, agent_id):
        say(line)
    say(f"{to.url} gave a key for {agent_id}; it is in {path}")


def _what_comes_before(settings: Settings, url: str, agent_id: str) -> list[str]:
    """Say which settings keep a stored key, or its agent, from being used."""
    from kp_langchain.agent_id import normalised

    lines = []
    used = configured(url)
    if settings.api_key is not None and used is not None and used.agent_id != agent_id:
        lines.append(
            f"But api_key is set ({_origin('api_key')}) and comes before it: unset that to use the "
            "new key"
        )
    if settings.agent_id is not None and normalised(settings.agent_id) != agent_id:
        lines.append(
            f"But agent_id is set ({_origin('agent_id')}) to another one, so that what is sent "
            "could not be withdrawn: unset that"
        )
    return lines


def _origin(name: str) -> str:
    """Where a setting comes from."""
    from kp_langchain.config_files import read_files

    variable = f"KP_{name.upper()}"
    named = [key for key, value in os.environ.items() if key.upper() == variable and value]
    files = [str(file.path) for file in read_files() if name in file.values]
    return (named + files)[0]


def configured(url: str | None = None) -> Registry | None:
    """Return the registry at `url`, or else the one of the settings; None if there is none."""
    from kp_langchain.config import Settings
    from kp_langchain.registry.from_settings import configured_registry

    return configured_registry(Settings(), url)


def _needed(url: str | None = None) -> Registry:
    registry = configured(url)
    if registry is None:
        raise KPError("no registry is configured; set KP_REGISTRY_URL=https://...")
    return registry


def _found(store: TraceStore, wanted: str) -> Contribution:
    one = store.outbox.get(wanted)
    if one is None:
        raise KPError(
            f"nothing {wanted!r} in the outbox of {store.location}; list it: kp-langchain outbox"
        )
    return one


def _as_json(one: Contribution) -> dict[str, Any]:
    values = {name: getattr(one, name) for name in one.__slots__ if name != "body"}
    return {
        name: value.isoformat() if isinstance(value, datetime) else value
        for name, value in values.items()
    }
