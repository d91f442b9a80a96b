"""The commands `registry register`, `pull` and `withdraw`; quarantine and outbox are elsewhere."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import replace
from datetime import UTC, datetime
from shlex import quote
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kp_langchain.cli import outbox, quarantine
from kp_langchain.cli.options import INTERRUPTED, AsJson, Database, new_app, open_store
from kp_langchain.cli.outbox import ContributionId, find_contribution
from kp_langchain.cli.output import say, say_json, warn
from kp_langchain.cli.sending import GET_KEY, require_registry
from kp_langchain.errors import KPError

if TYPE_CHECKING:
    from kp_langchain.config import Settings
    from kp_langchain.recall.quarantine import Pull
    from kp_langchain.registry.client import Registry
    from kp_langchain.store import Contribution, TraceStore

_NOT_READ = 1
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
}
RegistryUrl = Annotated[
    str | None,
    typer.Option(
        "--registry", metavar="URL", help="The registry; by default that of the settings."
    ),
]

app = new_app(help="Exchange traces with a registry: register, pull, send, withdraw.")
app.add_typer(quarantine.app, name="quarantine")
app.add_typer(outbox.app, name="outbox")


# ------------------------------------------------------------------ a key


@app.command()
def register(
    agent_id: Annotated[str, typer.Option(help="The contributing agent, such as kp:agent:me.")],
    registry: RegistryUrl = None,
    replace_key: Annotated[
        bool, typer.Option("--replace", help="Replace the stored key of another agent.")
    ] = False,
) -> None:
    """Obtain a key for a registry and store it in a file that only you can read.

    Traces carry the key's agent id from then on, and only this key can withdraw them.
    """
    from kp_langchain.config import Settings
    from kp_langchain.registry.credentials import key_file, save_key, stored_key
    from kp_langchain.run_keys import check_agent_id, normalise_agent_id, redact_agent_id

    settings = Settings()
    agent_id = check_agent_id(agent_id, settings.redaction)
    client = require_registry(settings, registry)
    # The registry shows the key once, so the file has to be usable before.
    present = stored_key(client.url)
    if present is not None and normalise_agent_id(present.agent_id) != agent_id and not replace_key:
        owner = redact_agent_id(present.agent_id)
        raise KPError(
            f"{key_file()} holds a key for {client.url} already, of {owner}; --replace would lose "
            "it, and what was sent with it could no longer be withdrawn"
        )
    key = client.register(agent_id)
    path = save_key(client.url, agent_id, key)
    _say_conflicts(settings, client.url, agent_id)
    say(f"{client.url} gave a key for {agent_id}; it is in {path}")


def _say_conflicts(settings: Settings, url: str, agent_id: str) -> None:
    """Say which settings keep the stored key or its agent from being used."""
    from kp_langchain.registry.credentials import configured_registry
    from kp_langchain.run_keys import normalise_agent_id

    registry = configured_registry(settings, url)
    if settings.api_key is not None and registry is not None and registry.agent_id != agent_id:
        say("But api_key (KP_API_KEY) is set and overrides the new key: unset it to use that one")
    if settings.agent_id is not None and normalise_agent_id(settings.agent_id) != agent_id:
        say(
            "But agent_id (KP_AGENT_ID) is set to another agent, so the new key could not withdraw "
            "what is sent: unset it"
        )


# ------------------------------------------------------------------ pull


@app.command()
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
    registry: RegistryUrl = None,
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
            warn("interrupted; what is in quarantine already stays there")
            raise typer.Exit(INTERRUPTED) from None
    answer: dict[str, Any] = {"kind": pulled.answer.kind, "reason": pulled.answer.reason}
    if as_json:
        say_json(pulled, {"answer": answer})
    else:
        _say_pulled(pulled)
    if pulled.answer.kind != "done":
        raise typer.Exit(_NOT_READ)


def _wait(seconds: float) -> None:
    if seconds > _SOON_S:
        warn(f"Waiting {seconds:.0f} s for the registry's limit of requests.")
    time.sleep(seconds)


def _say_pulled(pulled: Pull) -> None:
    of = "" if pulled.total is None else f" of {pulled.total}"
    counts = Counter({str(fate): number for fate, number in pulled.fates.items()})
    fates = [f"{counts[fate]} {word}" for fate, word in _FATES.items() if counts[fate]]
    what = f": {', '.join(fates)}" if fates else ""
    say(f"Read {pulled.read}{of} traces of {pulled.domain} from {pulled.registry}{what}.")
    not_taken = Counter(pulled.skipped)
    not_taken.update({word: counts[fate] for fate, word in _NOT_TAKEN.items() if counts[fate]})
    if not_taken:
        reasons = "; ".join(f"{number} {reason}" for reason, number in not_taken.most_common())
        say(f"Not taken: {reasons}.")
    if pulled.with_findings:
        hint = "kp-langchain registry quarantine"
        say(f"{pulled.with_findings} may hold planted instructions: {hint}")
    if pulled.admitted:
        say(f"Admitted {pulled.admitted} in which nothing was found.")
    if pulled.answer.kind != "done":
        say(f"Not all was read: {pulled.answer.reason}.")
    if pulled.next_offset is not None:
        say(f"There may be more: --offset {pulled.next_offset}")


# ------------------------------------------------------------------ withdraw


@app.command()
def withdraw(contribution_id: ContributionId, database: Database = None) -> None:
    """Delete a contribution from the registry; one still pending is not sent."""
    with open_store(database) as store, store.outbox.changing():
        one = find_contribution(store, contribution_id)
        if one.state == "withdrawn" and not one.withdraw_asked:
            raise KPError(f"{one.trace_id} is withdrawn already")
        # One that was tried may have arrived although its answer was lost.
        if one.state == "sent" or (one.state != "withdrawn" and one.attempts):
            _delete(store, one)
        withdrawn = replace(
            one,
            state="withdrawn",
            changed_at=datetime.now(UTC),
            body=None,
            reason=None,
            issues=None,
            withdraw_asked=False,
        )
        store.outbox.save(withdrawn)
        is_deleted = store.get(one.trace_id) is None
        stays = "" if is_deleted else f"; its run stays in {store.location}"
        say(f"{one.trace_id} is withdrawn{stays}")


def _delete(store: TraceStore, contribution: Contribution) -> None:
    """Have the registry delete a contribution.

    Raises:
        KPError: There is no key for the registry, or it is in a quiet period, or it did not delete
            the contribution.
    """
    from kp_langchain.registry.answers import after_answer, wait_s

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
    from kp_langchain.config import Settings
    from kp_langchain.registry.client import ANONYMOUS
    from kp_langchain.registry.credentials import configured_registry

    settings = Settings()
    # The URL comes from the database, which need not be the user's own, so a key that names no
    # registry is not sent there.
    is_key_unbound = settings.api_key is not None and settings.api_key_registry is None
    if is_key_unbound:
        settings = settings.model_copy(update={"api_key": None})
    registry = configured_registry(settings, contribution.registry)
    if registry is not None and registry.key_id != ANONYMOUS:
        return registry
    if is_key_unbound:
        raise KPError(
            "the api_key of the settings came without a registry, and is not sent to "
            f"{contribution.registry}; if it belongs there, set: "
            f"KP_REGISTRY_URL={quote(contribution.registry)}"
        )
    raise KPError(f"there is no key for {contribution.registry}; {GET_KEY}")
