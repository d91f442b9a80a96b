"""What the commands about contributions share: the registry, the outbox entry, sending now."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated

import typer

from kp_langchain.errors import KPError

if TYPE_CHECKING:
    from kp_langchain.config import Settings
    from kp_langchain.registry.client import Registry
    from kp_langchain.store import Contribution, TraceStore

GET_KEY = "get one: kp-langchain register --agent-id kp:agent:NAME"
"""What to do when there is no key for a registry."""

ContributionId = Annotated[
    str, typer.Argument(metavar="ID", help="Trace id or its beginning, or the registry's id.")
]


def current_registry() -> Registry | None:
    """Return the registry of the settings; None if none is configured."""
    from kp_langchain.config import Settings
    from kp_langchain.registry.from_settings import configured_registry

    return configured_registry(Settings())


def require_registry(settings: Settings, url: str | None = None) -> Registry:
    """Return the registry at `url`, or that of the settings.

    Raises:
        KPError: There is neither, or its URL or key cannot be used.
    """
    from kp_langchain.registry.from_settings import configured_registry

    registry = configured_registry(settings, url)
    if registry is None:
        raise KPError("no registry is configured; set KP_REGISTRY_URL=https://...")
    return registry


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
            "list it: kp-langchain outbox"
        )
    return contribution


def send_now(store: TraceStore, registry: Registry, timeout_s: float) -> bool:
    """Send and withdraw what is due, even if the registry refused the key before.

    Args:
        store: The store with the outbox.
        registry: Where to send it.
        timeout_s: Seconds to take at most.

    Returns:
        Whether nothing is left to send or withdraw.
    """
    from kp_langchain.registry.sender import sender_for

    with store.outbox.changing():
        standing = store.outbox.standing(registry.url, registry.key_id)
        if standing.stopped:
            store.outbox.save(replace(standing, quiet_until=None, quiet_s=0.0, stopped=False))
    return sender_for(store, registry).drain(timeout_s)


def why_nothing_is_sent(store: TraceStore) -> list[str]:
    """Return, as lines to print, why pending contributions are not being sent; empty if they are.

    Raises:
        KPError: The settings cannot be used, or the store cannot be read.
    """
    from kp_langchain.registry.client import ANONYMOUS
    from kp_langchain.registry.pace import wait_s

    registry = current_registry()
    if registry is None:
        return ["No registry is configured (KP_REGISTRY_URL), so nothing is sent."]
    if registry.key_id == ANONYMOUS:
        return [f"Nothing is sent to {registry.url}, because there is no key for it; {GET_KEY}."]
    standing = store.outbox.standing(registry.url, registry.key_id)
    seconds = wait_s(standing, datetime.now(UTC))
    if seconds <= 0.0:
        return []
    return [f"Nothing is sent to {registry.url} for {seconds:.0f} s: {standing.quiet_reason}."]
