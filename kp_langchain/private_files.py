"""Files that only their owner may read: created, and read."""

from __future__ import annotations

import errno
import os
import stat
from contextlib import suppress
from pathlib import Path

from kp_langchain.errors import ConfigError

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
