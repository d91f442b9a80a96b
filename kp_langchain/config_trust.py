"""Which configuration files of working folders the user trusts, by path and content.

Each entry is a small file in the data folder, named by the hash of both. A file that has changed,
or the same content at another path, is therefore not trusted.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator
from contextlib import suppress
from hashlib import sha256
from pathlib import Path

from kp_langchain.errors import ConfigError
from kp_langchain.folders import data_dir

_OTHERS_MAY_WRITE = stat.S_IWGRP | stat.S_IWOTH
_PATH_BYTES_MAX = 64 * 1024


def trust_folder() -> Path:
    """Return the folder of the entries. It need not exist.

    Raises:
        ConfigError: The user has no home folder.
    """
    folder = data_dir() / "trusted"
    if not folder.is_absolute():  # it would be relative to the working folder
        raise ConfigError("there is no folder to record what you trust; set HOME")
    return folder


def canonical_path(path: Path) -> Path:
    """Return the path of a file with the links in its folder resolved, but not a link at its end.

    A link in one folder to a trusted file in another is not trusted, because paths relative to the
    file mean something else there.
    """
    path = path.expanduser()
    return path.parent.resolve() / path.name


def is_trusted(path: Path, content: bytes) -> bool:
    """Return whether the user trusts the file at a `canonical_path` with this content."""
    try:
        folder = trust_folder()
        return _is_own(folder.lstat(), stat.S_ISDIR) and _is_own(
            (folder / _name(path, content)).lstat(), stat.S_ISREG
        )
    except (OSError, ConfigError):
        return False


def trust(path: Path, content: bytes) -> None:
    """Trust the file at a `canonical_path` with this content, and with no other.

    Raises:
        ConfigError: The entry cannot be written, or there is no folder for it.
    """
    folder = trust_folder()
    entry = folder / _name(path, content)
    temporary = entry.with_name(f"{entry.name}.{os.getpid()}")
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not _is_own(folder.lstat(), stat.S_ISDIR):
            raise ConfigError(f"others may write {folder}; move it away and trust again")
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(os.fsencode(path))
        temporary.replace(entry)
        for other in _entries_of(path):
            if other != entry:
                other.unlink(missing_ok=True)
    except OSError as error:
        raise ConfigError(f"{folder} cannot be written: {error.strerror or error}") from None


def distrust(path: Path) -> bool:
    """Stop trusting the file at `path`; return whether it was trusted.

    Raises:
        ConfigError: An entry cannot be removed.
    """
    entries = list(_entries_of(path))
    for entry in entries:
        try:
            entry.unlink(missing_ok=True)
        except OSError as error:
            raise ConfigError(f"{entry} cannot be removed: {error.strerror or error}") from None
    return bool(entries)


def was_trusted(path: Path) -> bool:
    """Return whether the file at `path` was trusted, with any content."""
    return next(_entries_of(path), None) is not None


def trusted_paths() -> list[Path]:
    """Return the paths of the files that were trusted, whether or not they changed since."""
    return sorted({path for _, path in _entries()})


def _entries_of(path: Path) -> Iterator[Path]:
    return (entry for entry, trusted_path in _entries() if trusted_path == path)


def _entries() -> Iterator[tuple[Path, Path]]:
    with suppress(OSError, ConfigError):
        folder = trust_folder()
        if not _is_own(folder.lstat(), stat.S_ISDIR):
            return
        for entry in folder.iterdir():
            with suppress(OSError):
                if _is_own(entry.lstat(), stat.S_ISREG):
                    with entry.open("rb") as file:
                        yield entry, Path(os.fsdecode(file.read(_PATH_BYTES_MAX)))


def _name(path: Path, content: bytes) -> str:
    return sha256(os.fsencode(path) + b"\0" + sha256(content).digest()).hexdigest()


def _is_own(status: os.stat_result, is_kind: Callable[[int], bool]) -> bool:
    """Return whether a file is of a kind, owned by this user, and writable by no one else."""
    if not is_kind(status.st_mode):
        return False
    if os.name != "posix":
        return True
    return status.st_uid == os.geteuid() and not status.st_mode & _OTHERS_MAY_WRITE
