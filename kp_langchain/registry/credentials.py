"""The keys of registries, in one file in the data folder that only its owner may read.

Each key is stored under its registry's URL, so that it is never sent to another registry.
"""

from __future__ import annotations

import errno
import json
import os
import sqlite3
import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from pydantic import SecretStr

from kp_langchain.config import data_dir
from kp_langchain.errors import ConfigError
from kp_langchain.private_files import read_private_file
from kp_langchain.registry.urls import base_url
from kp_langchain.store.sqlite_files import make_private

_MAX_BYTES = 2**20
_LOCK_TIMEOUT_S = 10.0


def key_file() -> Path:
    """Return the path of the key file, which may not exist."""
    return data_dir() / "credentials.json"


class StoredKey(NamedTuple):
    """A stored key.

    Attributes:
        api_key: The key.
        agent_id: The agent that the key belongs to, as the registry spells it.
    """

    api_key: SecretStr
    agent_id: str


def stored_key(url: str) -> StoredKey | None:
    """Return the key stored for the registry at `url`, with its agent, or None.

    Args:
        url: The URL of the registry.

    Raises:
        ConfigError: The URL is invalid, or the key file is damaged, cannot be read, or can be read
            by others.
    """
    entry = _read(key_file()).get(base_url(url))
    return None if entry is None else StoredKey(SecretStr(entry["api_key"]), entry["agent_id"])


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
    entry = {"agent_id": agent_id, "api_key": key.get_secret_value()}
    try:
        with _exclusive_lock(path):
            _write(path, {**_read(path), base_url(url): entry})
    except OSError as error:
        raise ConfigError(f"the key cannot be stored in {path}: {error.strerror}") from None
    except sqlite3.Error as error:
        raise ConfigError(f"the key cannot be stored in {path}: its lock failed: {error}") from None
    return path


@contextmanager
def _exclusive_lock(path: Path) -> Iterator[None]:
    """Lock the key file against other processes; the lock ends with the process at the latest."""
    lock_file = path.with_name(path.name + "-lock")
    make_private(lock_file)
    with closing(sqlite3.connect(lock_file, isolation_level=None, timeout=_LOCK_TIMEOUT_S)) as lock:
        lock.execute("BEGIN EXCLUSIVE")
        yield


def _write(path: Path, keys: dict[str, dict[str, str]]) -> None:
    # Private from the start, and never incomplete under its real name.
    descriptor, temporary = tempfile.mkstemp(prefix=f"{path.name}.", dir=path.parent)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            json.dump(keys, file, indent=1)
            file.flush()
            os.fsync(file.fileno())
        Path(temporary).replace(path)
    except BaseException:
        with suppress(OSError):
            Path(temporary).unlink()
        raise


def _read(path: Path) -> dict[str, dict[str, str]]:
    try:
        content = read_private_file(path, _MAX_BYTES, "key file")
    except OSError as error:
        reason = "it is a symbolic link" if error.errno == errno.ELOOP else error.strerror
        raise ConfigError(f"the key file {path} cannot be read: {reason}") from None
    if content is None:
        return {}
    try:
        keys = json.loads(content)
    except (ValueError, RecursionError):
        keys = None
    if not isinstance(keys, dict) or not all(map(_is_entry, keys.values())):
        # Without the cause, which quotes the content.
        raise ConfigError(f"the key file {path} is damaged; move it away and register again")
    return keys


def _is_entry(entry: object) -> bool:
    return (
        isinstance(entry, dict)
        and isinstance(entry.get("api_key"), str)
        and isinstance(entry.get("agent_id"), str)
    )
