"""The secret key of this installation, under which identifiers are hashed.

A file in the user's data folder that only its owner may read; it is made when it is first needed.
"""

from __future__ import annotations

import os
import secrets
import stat
import tempfile
from contextlib import suppress
from pathlib import Path

from kp_langchain.errors import ConfigError
from kp_langchain.folders import data_dir

_BYTES = 32
_OTHERS = stat.S_IRWXG | stat.S_IRWXO
_known: dict[Path, bytes] = {}


def secret_key_file() -> Path:
    """Return the path of the file with the key. It need not exist."""
    return data_dir() / "secret.key"


def secret_key() -> bytes:
    """Return the key of this installation; make it if there is none.

    Raises:
        ConfigError: There is no folder for it, or the file cannot be read or made, is damaged, or
            others may read it.
    """
    path = secret_key_file()
    key = _known.get(path)
    if key is None:
        if not path.is_absolute():  # without a home folder it would lie wherever this process is
            raise ConfigError("there is no folder for the key of this installation; set HOME")
        try:
            key = _known[path] = _read(path) or _make(path)
        except OSError as error:
            raise ConfigError(
                f"the key of this installation, {path}, cannot be read or made: {error.strerror}"
            ) from None
    return key


def _read(path: Path) -> bytes | None:
    # Neither waits for the other end of a pipe, nor goes to where a link leads.
    flags = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
    try:
        descriptor = os.open(path, os.O_RDONLY | flags)
    except FileNotFoundError:
        return None
    try:
        mode = os.fstat(descriptor).st_mode
        key = os.read(descriptor, _BYTES + 1) if stat.S_ISREG(mode) else b""
    finally:
        os.close(descriptor)
    if os.name == "posix" and mode & _OTHERS:
        raise ConfigError(f"others may read the key {path}; run: chmod 600 {path}")
    if len(key) != _BYTES:
        raise ConfigError(
            f"the key {path} is damaged; restore it from a copy, or move it away, after which a new"
            " one is made and runs are no longer found by what was hashed under the old one"
        )
    return key


def _publish(beside: str, path: Path, key: bytes) -> None:
    """Give the file `beside` its name.

    Raises:
        FileExistsError: Another process was first.
    """
    try:
        os.link(beside, path)
    except FileExistsError:
        raise
    except OSError:  # a file system without hard links
        new = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
        with os.fdopen(new, "wb") as file:
            file.write(key)


def _make(path: Path) -> bytes:
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    key = secrets.token_bytes(_BYTES)
    # Whole from its first moment; of several processes that make one, the first has made it.
    descriptor, beside = tempfile.mkstemp(prefix=f"{path.name}.", dir=path.parent)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(key)
            file.flush()
            os.fsync(file.fileno())
        with suppress(FileExistsError):
            _publish(beside, path, key)
    finally:
        Path(beside).unlink()
    return _read(path) or key
