"""Where the keys of registries lie: one file in the data folder that only its owner may read.

Keys are kept by the registry's URL, so that one registry's key never goes to another.
"""

from __future__ import annotations

import errno
import json
import os
import sqlite3
import stat
import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from pydantic import SecretStr

from kp_langchain.config import data_dir
from kp_langchain.errors import ConfigError
from kp_langchain.registry.client import base_url
from kp_langchain.store.files import make_private

_OTHERS = stat.S_IRWXG | stat.S_IRWXO
_MAX_BYTES = 2**20
_PATIENCE_S = 10.0


def key_file() -> Path:
    """Return the path of the file of keys. It need not exist."""
    return data_dir() / "credentials.json"


class StoredKey(NamedTuple):
    """A key, and the agent that it was given to, as the registry knows it."""

    api_key: SecretStr
    agent_id: str


def stored(url: str) -> StoredKey | None:
    """Return the key stored for the registry at `url`, with its agent, or None.

    Raises:
        ConfigError: The URL is none, or the file of keys is damaged, cannot be read, or can be
            read by others.
    """
    found = _read(key_file()).get(base_url(url))
    return None if found is None else StoredKey(SecretStr(found["api_key"]), found["agent_id"])


def save_key(url: str, agent_id: str, key: SecretStr) -> Path:
    """Store the key for the registry at `url`, in place of an earlier one, and return where.

    Raises:
        ConfigError: The URL is none, or the file of keys cannot be read or written.
    """
    path = key_file()
    entry = {"agent_id": agent_id, "api_key": key.get_secret_value()}
    try:
        with _alone(path):
            _write(path, {**_read(path), base_url(url): entry})
    except OSError as error:
        raise ConfigError(f"the key cannot be stored in {path}: {error.strerror}") from None
    except sqlite3.Error as error:
        raise ConfigError(f"the key cannot be stored in {path}: its lock: {error}") from None
    return path


@contextmanager
def _alone(path: Path) -> Iterator[None]:
    """Keep other processes from storing a key meanwhile, by a lock that ends with the process."""
    beside = path.with_name(path.name + "-lock")
    make_private(beside)
    with closing(sqlite3.connect(beside, isolation_level=None, timeout=_PATIENCE_S)) as lock:
        lock.execute("BEGIN EXCLUSIVE")
        yield


def _write(path: Path, keys: dict[str, dict[str, str]]) -> None:
    # Private from its first moment, and never half written under its real name.
    descriptor, beside = tempfile.mkstemp(prefix=f"{path.name}.", dir=path.parent)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            json.dump(keys, file, indent=1)
            file.flush()
            os.fsync(file.fileno())
        Path(beside).replace(path)
    except BaseException:
        with suppress(OSError):
            Path(beside).unlink()
        raise


def _read(path: Path) -> dict[str, dict[str, str]]:
    # Neither waits for the other end of a pipe, nor goes to where a link leads.
    flags = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
    try:
        descriptor = os.open(path, os.O_RDONLY | flags)
    except FileNotFoundError:
        return {}
    except OSError as error:
        told = "it is a link" if error.errno == errno.ELOOP else error.strerror
        raise ConfigError(f"the file of keys {path} cannot be read: {told}") from None
    try:
        mode = os.fstat(descriptor).st_mode
        content = os.read(descriptor, _MAX_BYTES) if stat.S_ISREG(mode) else b""
    except OSError as error:
        raise ConfigError(f"the file of keys {path} cannot be read: {error.strerror}") from None
    finally:
        os.close(descriptor)
    if os.name == "posix" and mode & _OTHERS:
        raise ConfigError(f"others may read the file of keys {path}; run: chmod 600 {path}")
    try:
        keys = json.loads(content)
    except (ValueError, RecursionError):
        keys = None
    if not isinstance(keys, dict) or not all(map(_is_entry, keys.values())):
        # Without the cause, which quotes the content.
        raise ConfigError(f"the file of keys {path} is damaged; move it away and register again")
    return keys


def _is_entry(entry: object) -> bool:
    return (
        isinstance(entry, dict)
        and isinstance(entry.get("api_key"), str)
        and isinstance(entry.get("agent_id"), str)
    )
