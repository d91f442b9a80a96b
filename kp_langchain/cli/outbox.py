"""The commands `registry outbox` and `withdraw`, and sending what other commands changed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from kp_langchain.cli.options import (
    AsJson,
    AsJsonLines,
    Database,
    Limit,
    group_app,
    open_store,
)
from kp_langchain.cli.output import (
    Column,
    fact_table,
    field_facts,
    make_console,
    print_list,
    say,
    say_json,
)
from kp_langchain.config import Settings
from kp_langchain.errors import KPError
from kp_langchain.registry.answers import after_answer, wait_s
from kp_langchain.registry.client import ANONYMOUS
from kp_langchain.registry.credentials import configured_registry
from kp_langchain.text import one_line, short_id

if TYPE_CHECKING:
    from kp_langchain.registry.client import Registry
    from kp_langchain.store import TraceStore
    from kp_langchain.store.registry_units import Contribution

_GET_KEY = "get one: kp-langchain registry register --agent-id kp:agent:NAME"
_UNSENT_SHOWN = 5
SEND_TIMEOUT_S = 20.0
"""How long a command sends what it changed, in seconds."""

_DETAIL_CHARS = 300
_STYLES = {"sent": "green", "dead": "red", "pending": "yellow", "withdrawn": "bright_black"}
_ContributionId = Annotated[
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
        print_list(_COLUMNS, contributions, as_json=as_json, to_json=_fields)
        if as_json:
            return
        summary = ", ".join(f"{number} {name}" for name, number in store.outbox.counts().items())
        to_withdraw = len(store.outbox.to_withdraw())
        more = f"; {to_withdraw} to withdraw" if to_withdraw else ""
        say(f"{summary} in {store.location}{more}.")
        for line in _why_nothing_is_sent(store):
            say(line)


@app.command()
def show(
    contribution_id: _ContributionId, database: Database = None, as_json: AsJson = False
) -> None:
    """Show one contribution, and the registry's answer to it."""
    with open_store(database) as store:
        fields = _fields(_find(store, contribution_id))
    if as_json:
        say_json(fields)
    else:
        make_console().print(fact_table(field_facts(fields)))


@app.command()
def send(
    timeout: Annotated[
        float, typer.Option(min=0, metavar="SECONDS", help="Take at most this long.")
    ] = 60.0,
    database: Database = None,
) -> None:
    """Send pending contributions now, even if the registry refused the key before."""
    settings = Settings()
    if settings.disabled:
        raise KPError("KP_DISABLED is set, so nothing is sent; unset it")
    registry = require_registry(settings)
    with open_store(database) as store:
        before = store.outbox.counts()
        is_empty = _send_now(store, registry, timeout)
        after, to_withdraw = store.outbox.counts(), store.outbox.to_withdraw()
        withdrawn = after["withdrawn"] - before["withdrawn"]
        say(
            f"Sent {after['sent'] - before['sent'] + withdrawn}, refused "
            f"{after['dead'] - before['dead']}, still pending {after['pending']}"
            f"{f', withdrawn {withdrawn}' if withdrawn else ''}"
            f"{f', still to withdraw {len(to_withdraw)}' if to_withdraw else ''}."
        )
        pending = store.outbox.contributions(state="pending", limit=_UNSENT_SHOWN)
        if unsent := [*to_withdraw[:_UNSENT_SHOWN], *pending]:
            print_list(_COLUMNS, unsent, as_json=False)
            for line in _why_nothing_is_sent(store):
                say(line)
    if not is_empty:
        raise typer.Exit(1)


@app.command()
def retry(contribution_id: _ContributionId, database: Database = None) -> None:
    """Make a dead or pending contribution due now, for the registry of the settings."""
    registry = current_registry()
    with open_store(database) as store, store.outbox.changing():
        one = _find(store, contribution_id)
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


def _find(store: TraceStore, contribution_id: str) -> Contribution:
    contribution = store.outbox.get(contribution_id)
    if contribution is None:
        raise KPError(
            f"nothing {contribution_id!r} in the outbox of {store.location}; "
            "list it: kp-langchain registry outbox"
        )
    return contribution


def _fields(contribution: Contribution) -> dict[str, Any]:
    """Return what is shown of a contribution: all but its body."""
    values = asdict(contribution)
    del values["body"]
    return values


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
    hours, seconds = divmod(int(age.total_seconds()), 3600)
    if hours < 1:
        return f"{seconds // 60} min"
    return f"{hours} h" if hours < 48 else f"{hours // 24} d"


# ------------------------------------------------------------------ withdraw


def withdraw(contribution_id: _ContributionId, database: Database = None) -> None:
    """Delete a contribution from the registry; one still pending is not sent."""
    with open_store(database) as store, store.outbox.changing():
        one = _find(store, contribution_id)
        if one.state == "withdrawn" and not one.withdraw_asked:
            raise KPError(f"{one.trace_id} is withdrawn already")
        # One that was tried may have arrived although its answer was lost.
        if one.state == "sent" or (one.state != "withdrawn" and one.attempts):
            _delete_at_registry(store, one)
        withdrawn = replace(
            one,
            state="withdrawn",
            changed_at=datetime.now(UTC),
            body=None,
            reason=None,
            withdraw_asked=False,
        )
        store.outbox.save(withdrawn)
        say(f"{one.trace_id} is withdrawn")


def _delete_at_registry(store: TraceStore, contribution: Contribution) -> None:
    """Have the registry delete a contribution.

    Raises:
        KPError: There is no key for the registry, or it is in a quiet period, or it did not delete
            the contribution.
    """
    registry = _registry_of(contribution)
    standing = store.outbox.standing(registry.url, registry.key_id)
    seconds = wait_s(standing, datetime.now(UTC))
    if seconds > 0.0 and not standing.stopped:
        raise KPError(
            f"no request may be sent to {registry.url} for {seconds:.0f} s "
            f"({standing.quiet_reason}); withdraw {contribution.trace_id} after that"
        )
    answer = registry.withdraw(contribution.unit_id)
    store.outbox.save(after_answer(standing, answer, datetime.now(UTC)))
    if answer.kind != "done":
        raise KPError(
            f"{contribution.trace_id} could not be withdrawn: {answer.reason}. kp-langchain doctor "
            "says whether the key is valid, and whose it is"
        )


def _registry_of(contribution: Contribution) -> Registry:
    """Return the registry that has a contribution, with the user's key for it.

    Raises:
        KPError: There is no key for it.
    """
    settings = Settings()
    # The URL comes from the database, which need not be the user's own, so a key that names no
    # registry is not sent there.
    if settings.api_key_registry is None:
        settings = settings.model_copy(update={"api_key": None})
    registry = configured_registry(settings, contribution.registry)
    if registry is None or registry.key_id == ANONYMOUS:
        raise KPError(
            f"there is no key for {contribution.registry}, and api_key is sent to the registry "
            f"that is set with it (registry_url) alone; {_GET_KEY}"
        )
    return registry


# ------------------------------------------------------------------ sending


def current_registry() -> Registry | None:
    """Return the registry of the settings; None if none is configured."""
    return configured_registry(Settings())


def require_registry(settings: Settings, url: str | None = None) -> Registry:
    """Return the registry at `url`, or that of the settings.

    Raises:
        KPError: There is neither, or its URL or key cannot be used.
    """
    registry = configured_registry(settings, url)
    if registry is None:
        raise KPError("no registry is configured; set KP_REGISTRY_URL=https://...")
    return registry


def send_due(
    store: TraceStore,
    registry: Registry | None,
    count_due: Callable[[], int],
    report: Callable[[str], object],
) -> int:
    """Send and withdraw what a command changed, if anything is due, and report how far that got.

    What is left after 20 s is sent by the next process.

    Args:
        store: The store with the outbox.
        registry: Where to send it; None if none is configured.
        count_due: Returns how many contributions the command left to be sent or withdrawn.
        report: Given each line to print.

    Returns:
        How many are left.

    Raises:
        KPError: The store cannot be read or written, or the settings cannot be used.
    """
    due = count_due()
    if not due:
        return 0
    if registry is not None and not Settings().disabled:
        _send_now(store, registry, SEND_TIMEOUT_S)
    remaining = count_due()
    report(f"Sent or withdrawn at the registry: {due - remaining} of {due}.")
    if remaining:
        for line in _why_nothing_is_sent(store):
            report(line)
        report(
            "The others wait; the next process that sends takes them, or: "
            "kp-langchain registry outbox send"
        )
    return remaining


def _send_now(store: TraceStore, registry: Registry, timeout_s: float) -> bool:
    """Send and withdraw what is due, even if the registry refused the key before.

    Returns:
        Whether nothing is left to send or withdraw.
    """
    from kp_langchain.registry.sender import sender_for

    with store.outbox.changing():
        standing = store.outbox.standing(registry.url, registry.key_id)
        if standing.stopped:
            store.outbox.save(replace(standing, quiet_until=None, stopped=False))
    return sender_for(store, registry).loop.drain(timeout_s)


def _why_nothing_is_sent(store: TraceStore) -> list[str]:
    """Return, as lines to print, why pending contributions are not being sent; empty if they are.

    Raises:
        KPError: The settings cannot be used, or the store cannot be read.
    """
    registry = current_registry()
    if Settings().disabled:
        return ["KP_DISABLED is set, so nothing is sent."]
    if registry is None:
        return ["No registry is configured (KP_REGISTRY_URL), so nothing is sent."]
    if registry.key_id == ANONYMOUS:
        return [f"Nothing is sent to {registry.url}, because there is no key for it; {_GET_KEY}."]
    lines = []
    standing = store.outbox.standing(registry.url, registry.key_id)
    if (seconds := wait_s(standing, datetime.now(UTC))) > 0.0:
        why = standing.quiet_reason
        lines.append(f"Nothing is sent to {registry.url} for {seconds:.0f} s: {why}.")
    pending = store.outbox.contributions(state="pending", limit=None)
    others = {one.registry for one in pending} - {registry.url}
    if others:
        lines.append(
            f"Some are meant for another registry ({', '.join(sorted(others))}); "
            f"`outbox retry ID` readdresses one to {registry.url}."
        )
    return lines
