"""The keys of registries: where they are stored, which one a registry gets, whose it is.

They are in one file in the data folder that only its owner may read. Each is stored under its
registry's URL, so that it is never sent to another registry.
"""

from __future__ import annotations

import errno
import json
import os
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import BaseModel, SecretStr, TypeAdapter, ValidationError

from kp_langchain._logging import warn_once
from kp_langchain.config import data_dir
from kp_langchain.errors import ConfigError
from kp_langchain.files import make_private, read_private_file
from kp_langchain.registry.client import Registry, base_url
from kp_langchain.run_keys import check_agent_id, redact_agent_id

if TYPE_CHECKING:
    from kp_langchain.config import Settings

_MAX_BYTES = 2**20


class StoredKey(BaseModel):
    """A stored key.

    Attributes:
        api_key: The key.
        agent_id: The agent that the key belongs to, as the registry spells it.
    """

    api_key: SecretStr
    agent_id: str


_KEYS = TypeAdapter(dict[str, StoredKey])


def key_file() -> Path:
    """Return the path of the key file, which may not exist."""
    return data_dir() / "credentials.json"


def stored_key(url: str) -> StoredKey | None:
    """Return the key stored for the registry at `url`, with its agent, or None.

    Args:
        url: The URL of the registry.

    Raises:
        ConfigError: The URL is invalid, or the key file is damaged, cannot be read, or can be read
            by others.
    """
    return _read(key_file()).get(base_url(url))


def save_key(url: str, agent_id: str, key: SecretStr) -> Path:
    """Store the key for the registry at `url`; replace an earlier one.

    Args:
        url: The URL of the registry.
        agent_id: The agent that the key belongs to.
        key: The key.

    Returns:
        The path of the key file.

    Raises:
        ConfigError: The URL is invalid, or the key file cannot be read or written.
    """
    path = key_file()
    keys = {**_read(path), base_url(url): StoredKey(api_key=key, agent_id=agent_id)}
    try:
        make_private(path)
        _write(path, keys)
    except OSError as error:
        raise ConfigError(f"the key cannot be stored in {path}: {error.strerror}") from None
    return path


def _write(path: Path, keys: Mapping[str, StoredKey]) -> None:
    documents = {
        url: {"agent_id": stored.agent_id, "api_key": stored.api_key.get_secret_value()}
        for url, stored in keys.items()
    }
    # Private from the start, and never incomplete under its real name.
    descriptor, temporary = tempfile.mkstemp(prefix=f"{path.name}.", dir=path.parent)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            json.dump(documents, file, indent=1)
        Path(temporary).replace(path)
    except Exception:
        with suppress(OSError):
            Path(temporary).unlink()
        raise


def _read(path: Path) -> dict[str, StoredKey]:
    try:
        content = read_private_file(path, _MAX_BYTES, "key file")
    except OSError as error:
        reason = "it is a symbolic link" if error.errno == errno.ELOOP else error.strerror
        raise ConfigError(f"the key file {path} cannot be read: {reason}") from None
    try:
        return {} if content is None else _KEYS.validate_json(content)
    except ValidationError:  # which quotes the content
        raise ConfigError(
            f"the key file {path} is damaged; move it away and register again"
        ) from None


# ------------------------------------------------------------------ which key, and whose it is


def configured_registry(settings: Settings, url: str | None = None) -> Registry | None:
    """Return the registry at `url`, or the registry of the settings; None if there is none.

    Its key is the key of the settings, if that belongs to this registry. A key belongs to the
    registry set by the same source, or else to the registry of the settings. Otherwise its key is
    the one that `kp-langchain registry register` stored.

    Args:
        settings: The settings.
        url: The URL of a registry; None for the one of the settings.

    Raises:
        ConfigError: The URL or the key is invalid, or the key file cannot be read.
    """
    url = url or settings.registry_url
    if url is None:
        return None
    url, key, owner = base_url(url), settings.api_key, settings.api_key_registry
    if key is not None and owner is not None and base_url(owner) != url:
        warn_once(
            f"key of {owner} for {url}",
            "the api_key of the settings belongs to %s and is not sent to %s; get a key for it: "
            "kp-langchain registry register --registry %s",
            base_url(owner),
            url,
            url,
        )
        key = None
    stored = stored_key(url)
    if stored is not None and key in (None, stored.api_key):
        return Registry(url, api_key=stored.api_key, agent_id=stored.agent_id)
    return Registry(url, api_key=key)


def agent_of(agent_id: str | None, settings: Settings, registry: Registry) -> str | None:
    """Return the agent id of traces: the argument, or that of the settings, or of the key.

    Args:
        agent_id: The argument `agent_id`.
        settings: The settings.
        registry: The registry that traces are sent to.

    Returns:
        `kp:agent:<id>`; None if there is none.

    Raises:
        ConfigError: The id is invalid or would be redacted, or the key file cannot be read.
    """
    trace_agent = agent_id or settings.agent_id
    if trace_agent is not None:
        return check_agent_id(trace_agent, settings.redaction)
    agent_of_key = key_agent(registry)
    if agent_of_key is None or redact_agent_id(agent_of_key, settings.redaction) != agent_of_key:
        return None  # traces cannot carry it
    return agent_of_key


def key_agent(registry: Registry) -> str | None:
    """Return the agent that the key of `registry` belongs to; None if unknown.

    Raises:
        ConfigError: The key file cannot be read.
    """
    if registry.agent_id is not None:
        return registry.agent_id
    stored = stored_key(registry.url)
    if stored is None or Registry(registry.url, api_key=stored.api_key).key_id != registry.key_id:
        return None
    return stored.agent_id
