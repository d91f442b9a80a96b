"""The registry that settings and stored keys make up."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kp_langchain._logging import warn_once
from kp_langchain.agent_id import check_agent_id, normalise_agent_id, redact_agent_id
from kp_langchain.registry.client import Registry, base_url
from kp_langchain.registry.credentials import stored

if TYPE_CHECKING:
    from kp_langchain.config import Settings


def configured_registry(settings: Settings, url: str | None = None) -> Registry | None:
    """Return the registry at `url`, or else the one of the settings; None if there is none.

    Its key is the one of the settings if that belongs to it: to the registry that came with the key
    from the same source, or else the one of the settings. Otherwise it is the one that
    `kp-langchain register` stored for it.

    Raises:
        ConfigError: The URL or the key cannot be used, or the file of keys cannot be read.
    """
    url = url or settings.registry_url
    if url is None:
        return None
    url = base_url(url)
    key, agent_id, owner = settings.api_key, None, settings.api_key_registry
    if key is not None and owner is not None and base_url(owner) != url:
        warn_once(
            f"key of {owner} for {url}",
            "the api_key of the settings belongs to %s and is not shown to %s; get one for that: "
            "kp-langchain register --registry %s",
            base_url(owner),
            url,
            url,
        )
        key = None
    known = stored(url)
    if known is not None and (key is None or key == known.api_key):
        key, agent_id = known
    return Registry(url, api_key=key, agent_id=agent_id)


def agent_of(given: str | None, settings: Settings, registry: Registry | None) -> str | None:
    """Return the id that traces carry: the one given, of the settings, or of the registry's key.

    Args:
        given: The argument `agent_id`.
        settings: The settings.
        registry: Where traces go, if anywhere.

    Returns:
        `kp:agent:<id>`; where the registry knows the agent by another spelling of that, its own,
        without which it would delete nothing. None if there is none.

    Raises:
        ConfigError: The id cannot be written into traces as it is.
    """
    chosen = given or settings.agent_id
    of_key = None if registry is None else key_agent(registry)
    if chosen is None:
        # An earlier version registered any text. One that would be redacted no trace carries.
        same = of_key is not None and redact_agent_id(of_key, settings.redaction) == of_key
        return of_key if same else None
    chosen = check_agent_id(chosen, settings.redaction)
    return of_key if of_key is not None and normalise_agent_id(of_key) == chosen else chosen


def key_agent(registry: Registry) -> str | None:
    """Return the agent whose key a registry is used with; None if that is not known here.

    Raises:
        ConfigError: The file of keys cannot be read.
    """
    if registry.agent_id is not None:
        return registry.agent_id
    known = stored(registry.url)
    if known is None:
        return None
    same = Registry(registry.url, api_key=known.api_key).key_id == registry.key_id
    return known.agent_id if same else None
