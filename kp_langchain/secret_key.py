"""The secret key of this installation, with which identifiers are hashed.

It is in a file in the user's data folder that only its owner may read, created on first use.
"""

from __future__ import annotations

import os
import secrets
import tempfile
from contextlib import suppress
from pathlib import Path

from kp_langchain.errors import ConfigError
from kp_langchain.folders import data_dir
from kp_langchain.private_files import read_private_file

_BYTES = 32
_cache: dict[Path, bytes] = {}


def secret_key_file() -> Path:
    """Return the path of the key file. It need not exist."""
    return data_dir() / "secret.key"


def secret_key() -> bytes:
    """Return the key of this installation; create it if there is none.

    Raises:
        ConfigError: There is no folder for it, or the file cannot be read or created, is damaged,
            or others may read it.
    """
    path = secret_key_file()
    key = _cache.get(path)
    if key is None:
        if not path.is_absolute():
            # Without a home folder it would be relative to the working folder.
            raise ConfigError("there is no folder for the key of this installation; set HOME")
        try:
            key = _cache[path] = _read(path) or _create(path)
        except OSError as error:
            raise ConfigError(
                f"the key of this installation, {path}, cannot be read or created: {error.strerror}"
            ) from None
    return key


def _read(path: Path) -> bytes | None:
    key = read_private_file(path, _BYTES + 1, "key")
    if key is not None and len(key) != _BYTES:
        raise ConfigError(
            f"the key {path} is damaged; restore it from a backup, or move it away: a new key is "
            "created then, and hashes under the old one no longer match"
        )
    return key


def _publish(temporary: str, path: Path, key: bytes) -> None:
    """Give the temporary file its final name.

    Raises:
        FileExistsError: Another process was first.
    """
    try:
        os.link(temporary, path)
    except FileExistsError:
        raise
    except OSError:  # a file system without hard links
        descriptor = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(key)


def _create(path: Path) -> bytes:
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    key = secrets.token_bytes(_BYTES)
    # The file is complete as soon as it exists; of several processes, the first one's key is used.
    descriptor, temporary = tempfile.mkstemp(prefix=f"{path.name}.", dir=path.parent)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(key)
            file.flush()
            os.fsync(file.fileno())
        with suppress(FileExistsError):
            _publish(temporary, path, key)
    finally:
        Path(temporary).unlink()
    return _read(path) or key
