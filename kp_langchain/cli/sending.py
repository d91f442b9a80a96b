"""What commands share that send: contributions to the registry, scores to other tools."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from kp_langchain.errors import KPError

if TYPE_CHECKING:
    from kp_langchain.config import Settings
    from kp_langchain.registry.client import Registry
    from kp_langchain.store import TraceStore

GET_KEY = "get one: kp-langchain registry register --agent-id kp:agent:NAME"
"""What to do when there is no key for a registry."""

# It sends through the telemetry of the agent's process, which a command does not have.
_NEEDS_THE_AGENT = "opentelemetry"


def current_registry() -> Registry | None:
    """Return the registry of the settings; None if none is configured."""
    from kp_langchain.config import Settings
    from kp_langchain.registry.credentials import configured_registry

    return configured_registry(Settings())


def require_registry(settings: Settings, url: str | None = None) -> Registry:
    """Return the registry at `url`, or that of the settings.

    Raises:
        KPError: There is neither, or its URL or key cannot be used.
    """
    from kp_langchain.registry.credentials import configured_registry

    registry = configured_registry(settings, url)
    if registry is None:
        raise KPError("no registry is configured; set KP_REGISTRY_URL=https://...")
    return registry


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
            store.outbox.save(replace(standing, quiet_until=None, stopped=False))
    return sender_for(store, registry).drain(timeout_s)


def send_due(
    store: TraceStore,
    registry: Registry | None,
    count_due: Callable[[], int],
    timeout_s: float,
    report: Callable[[str], object],
) -> int:
    """Send and withdraw what a command changed, if anything is due, and report how far that got.

    Args:
        store: The store with the outbox.
        registry: Where to send it; None if none is configured.
        count_due: Returns how many contributions the command left to be sent or withdrawn.
        timeout_s: Seconds to take at most.
        report: Given each line to print.

    Returns:
        How many are left.

    Raises:
        KPError: The store cannot be read or written, or the settings cannot be used.
    """
    from kp_langchain.config import Settings

    due = count_due()
    if not due:
        return 0
    if registry is None:
        report(f"{due} wait for a registry, and none is configured (KP_REGISTRY_URL).")
        return due
    if Settings().disabled:
        report(f"{due} wait to be sent or withdrawn: KP_DISABLED is set.")
        return due
    send_now(store, registry, timeout_s)
    remaining = count_due()
    report(f"Sent or withdrawn at {registry.url}: {due - remaining} of {due}.")
    if remaining:
        for line in why_nothing_is_sent(store):
            report(line)
        report(
            "The others wait; the next process that sends takes them, or: "
            "kp-langchain registry outbox send"
        )
    return remaining


def why_nothing_is_sent(store: TraceStore) -> list[str]:
    """Return, as lines to print, why pending contributions are not being sent; empty if they are.

    Raises:
        KPError: The settings cannot be used, or the store cannot be read.
    """
    from kp_langchain.registry.answers import wait_s
    from kp_langchain.registry.client import ANONYMOUS

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


def score_tools() -> tuple[str, ...]:
    """Return the names of the tools that are sent scores; none if nothing is to be sent.

    Raises:
        ConfigError: The settings cannot be used.
    """
    from kp_langchain.config import Settings

    settings = Settings()
    return () if settings.disabled else settings.send_scores_to


def retry_less() -> None:
    """Have clients give up in seconds where nothing answers; MLflow's tries for four minutes."""
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "2")


def send_scores(store: TraceStore, timeout_s: float, report: Callable[[str], object]) -> None:
    """Send the scores that are still to be sent to other tools, and report how far that got.

    Args:
        store: The store with the runs.
        timeout_s: Seconds to take at most. What is left then is sent by the next process.
        report: Given each line to print.

    Raises:
        KPError: The store cannot be read, or the settings cannot be used.
    """
    names = [name for name in score_tools() if name != _NEEDS_THE_AGENT]
    if not names:
        return
    from kp_langchain.recording.bounds import Counters
    from kp_langchain.recording.score_receivers import ScoreSender, receivers_of
    from kp_langchain.store.jobs import drain

    retry_less()
    senders = [ScoreSender(one, store, Counters()) for one in receivers_of(names)]
    drain([sender.loop for sender in senders], timeout_s)
    for sender in senders:
        counts = sender.counters.counts()
        sent, left = counts.get("scores_sent", 0), store.journal.jobs.count(sender.kind)
        due = sent + counts.get("scores_failed", 0) + left
        why = f" ({sender.failure})" if sender.failure else "; the others wait" if left else ""
        if due:
            report(f"Scores sent to {sender.tool}: {sent} of {due}{why}.")
