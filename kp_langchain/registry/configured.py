"""The registry that settings and stored keys make up."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kp_langchain.registry.client import Registry
from kp_langchain.registry.credentials import stored_key

if TYPE_CHECKING:
    from kp_langchain.config import Settings


def configured_registry(settings: Settings, url: str | None = None) -> Registry | None:
    """Return the registry at `url`, or else the one of the settings; None if there is none.

    Its key is the one of the settings, else the one that `kp-langchain register` stored for it.

    Raises:
        ConfigError: The URL or the key cannot be used, or the file of keys cannot be read.
    """
    url = url or settings.registry_url
    if url is None:
        return None
    registry = Registry(url, api_key=settings.api_key)
    if settings.api_key is None and (key := stored_key(registry.url)) is not None:
        return Registry(url, api_key=key)
    return registry
