"""The registry that settings and stored keys make up."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kp_langchain._notices import warn_once
from kp_langchain.registry.client import Registry, base_url
from kp_langchain.registry.credentials import stored_key

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
    registry = Registry(url)
    key, owner = settings.api_key, settings.api_key_registry
    if key is not None and owner is not None and base_url(owner) != registry.url:
        warn_once(
            f"key of {owner} for {registry.url}",
            "the api_key of the settings belongs to %s and is not shown to %s; get one for that: "
            "kp-langchain register --registry %s",
            base_url(owner),
            registry.url,
            registry.url,
        )
        key = None
    if key is None:
        key = stored_key(registry.url)
    return registry if key is None else Registry(url, api_key=key)
