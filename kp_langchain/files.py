"""The user's folders, files in them that only their owner may read, and the secret key in one.

The key of this installation hashes identifiers. It is created on first use.
"""

from __future__ import annotations

import errno
import os
import secrets
import stat
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from kp_langchain.errors import ConfigError

_NAME = "kp_langchain"


def data_dir() -> Path:
    """Return the folder of this package's data. It need not exist."""
    import platformdirs

    return _folder(platformdirs.user_data_path)


def config_dir() -> Path:
    """Return the folder of the user's configuration. It need not exist."""
    import platformdirs

    return _folder(platformdirs.user_config_path)


def _folder(of_user: Callable[..., Path]) -> Path:
    try:
        path = of_user(_NAME, appauthor=False)
    except RuntimeError:
        path = Path("~")
    # A user without a home is like one whose home is /dev/null: nothing can be read or kept there.
    return path if path.parts[:1] != ("~",) else Path(os.devnull, _NAME)


# ------------------------------------------------------------------ private files

_OTHERS = stat.S_IRWXG | stat.S_IRWXO


def read_private_file(path: Path, max_bytes: int, kind: str) -> bytes | None:
    """Return the content of a file that only its owner may read; None if there is no file.

    A symbolic link is not followed. Anything but a regular file counts as empty.

    Args:
        path: The path of the file.
        max_bytes: The largest number of bytes to read.
        kind: What the file is, for the message.

    Raises:
        ConfigError: Others may read the file.
        OSError: The file cannot be read, or is a symbolic link (`ELOOP`).
    """
    # O_NONBLOCK: opening a named pipe must not wait for its other end.
    flags = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
    try:
        descriptor = os.open(path, os.O_RDONLY | flags)
    except FileNotFoundError:
        return None
    try:
        mode = os.fstat(descriptor).st_mode
        content = os.read(descriptor, max_bytes) if stat.S_ISREG(mode) else b""
    finally:
        os.close(descriptor)
    if os.name == "posix" and mode & _OTHERS:
        raise ConfigError(f"others may read the {kind} {path}; run: chmod 600 {path}")
    return content


def make_private(path: Path) -> None:
    """Create an empty file at `path` with mode 0600, and its parent folders with 0700.

    An existing file or folder keeps its contents and its mode.

    Raises:
        OSError: The file cannot be created, or is not a file that may be read and written.
    """
    for folder in reversed(path.parents):
        folder.mkdir(mode=0o700, exist_ok=True)
    with suppress(FileExistsError):
        # Created here, because SQLite would create it with the umask. An existing file is not
        # opened: closing it would release every lock that this process's SQLite holds on it, and
        # another process would then delete the log that is in use.
        os.close(os.open(path.resolve(), os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))
        return
    if path.is_dir():
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    if not os.access(path, os.R_OK | os.W_OK):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))


# ------------------------------------------------------------------ the secret key

_BYTES = 32
_cache: dict[Path, bytes] = {}


def secret_key() -> bytes:
    """Return the key of this installation; create it if there is none.

    Raises:
        ConfigError: There is no folder for it, or the file cannot be read or created, is damaged,
            or others may read it.
    """
    path = data_dir() / "secret.key"
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
