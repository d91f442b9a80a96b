"""The registry of the settings with its stored key, and the agent id of traces."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kp_langchain._logging import warn_once
from kp_langchain.agent_id import check_agent_id, normalise_agent_id, redact_agent_id
from kp_langchain.registry.client import Registry
from kp_langchain.registry.credentials import stored_key
from kp_langchain.registry.urls import base_url

if TYPE_CHECKING:
    from kp_langchain.config import Settings


def configured_registry(settings: Settings, url: str | None = None) -> Registry | None:
    """Return the registry at `url`, or the registry of the settings; None if there is none.

    Its key is the key of the settings if that belongs to this registry: the key belongs to the
    registry set by the same source, or else to the registry of the settings. Otherwise its key is
    the one that `kp-langchain register` stored.

    Args:
        settings: The settings.
        url: The URL of a registry; None for the one of the settings.

    Raises:
        ConfigError: The URL or the key is invalid, or the key file cannot be read.
    """
    url = url or settings.registry_url
    if url is None:
        return None
    url = base_url(url)
    key, agent_id, owner = settings.api_key, None, settings.api_key_registry
    if key is not None and owner is not None and base_url(owner) != url:
        warn_once(
            f"key of {owner} for {url}",
            "the api_key of the settings belongs to %s and is not sent to %s; get a key for it: "
            "kp-langchain register --registry %s",
            base_url(owner),
            url,
            url,
        )
        key = None
    entry = stored_key(url)
    if entry is not None and (key is None or key == entry.api_key):
        key, agent_id = entry
    return Registry(url, api_key=key, agent_id=agent_id)


def agent_of(agent_id: str | None, settings: Settings, registry: Registry | None) -> str | None:
    """Return the agent id of traces: the argument, or that of the settings, or of the key.

    Args:
        agent_id: The argument `agent_id`.
        settings: The settings.
        registry: The registry that traces are sent to, if any.

    Returns:
        `kp:agent:<id>`; None if there is none. If the registry spells the id of the same agent
        differently, its spelling, because it deletes only units with that one.

    Raises:
        ConfigError: The id is invalid or would be redacted, or the key file cannot be read.
    """
    trace_agent = agent_id or settings.agent_id
    agent_of_key = None if registry is None else key_agent(registry)
    if trace_agent is None:
        # Earlier versions registered any text; an id that would be redacted is not used.
        is_same = (
            agent_of_key is not None
            and redact_agent_id(agent_of_key, settings.redaction) == agent_of_key
        )
        return agent_of_key if is_same else None
    trace_agent = check_agent_id(trace_agent, settings.redaction)
    return (
        agent_of_key
        if agent_of_key is not None and normalise_agent_id(agent_of_key) == trace_agent
        else trace_agent
    )


def key_agent(registry: Registry) -> str | None:
    """Return the agent that the key of `registry` belongs to; None if unknown.

    Raises:
        ConfigError: The key file cannot be read.
    """
    if registry.agent_id is not None:
        return registry.agent_id
    entry = stored_key(registry.url)
    if entry is None:
        return None
    is_same = Registry(registry.url, api_key=entry.api_key).key_id == registry.key_id
    return entry.agent_id if is_same else None
