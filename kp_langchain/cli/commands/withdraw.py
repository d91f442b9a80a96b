"""The command `withdraw`."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from shlex import quote
from typing import TYPE_CHECKING

from kp_langchain.cli.output import say
from kp_langchain.cli.sending import GET_KEY, ContributionId, find_contribution
from kp_langchain.cli.store_option import Database, open_store
from kp_langchain.errors import KPError

if TYPE_CHECKING:
    from kp_langchain.registry.client import Registry
    from kp_langchain.store import Contribution, TraceStore


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
    standing = after_answer(standing, answer, datetime.now(UTC))
    store.outbox.save(standing)
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
