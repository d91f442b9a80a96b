"""The files of a SQLite store: created for their owner alone, and watched while in use.

SQLite does not notice when its file is deleted, moved or replaced: it silently keeps writing to the
file that it opened.
"""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

if os.name == "posix":
    import fcntl

_LOCK_PATIENCE_S = 2.0
_POLL_INTERVAL_S = 0.01

Identity = tuple[int, int]
"""Device and inode."""


def make_private(path: Path) -> None:
    """Create an empty file at `path` with mode 0600, and its parent folders with 0700.

    An existing file or folder keeps its contents and its mode.

    Raises:
        OSError: The file cannot be created, or is not a file that may be read and written.
    """
    _make_folders(path)
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


def make_database_file(path: Path) -> None:
    """Create a file as `make_private` does, without the log and index of a deleted database.

    Raises:
        OSError: The file cannot be created, or is not a file that may be read and written.
    """
    _make_folders(path)
    if path.exists():
        make_private(path)
        return
    with _folder_lock(path.resolve().parent):  # the folder of log and index
        if not path.exists():
            # SQLite would apply the log of the deleted database to the new one.
            for orphan in _log_and_index(path):
                orphan.unlink(missing_ok=True)
        make_private(path)


def identity(path: Path, *, follow: bool = True) -> Identity | None:
    """Return the identity of the file at `path`, which no other file has; None if there is none.

    Args:
        path: The path of the file.
        follow: Whether to follow a symbolic link.
    """
    try:
        status = path.stat(follow_symlinks=follow)
    except OSError:
        return None
    return status.st_dev, status.st_ino


class OpenFiles:
    """The files of an open SQLite database, compared with what they were when it was opened.

    Their identities are reliable, because no other file gets the identity of one that is open.

    Args:
        path: The path of the database; its log and index lie beside it.

    Attributes:
        database: The identity of the database file.
    """

    __slots__ = ("_expects_new_log", "_log_and_index", "_path", "_real", "database")

    def __init__(self, path: Path) -> None:
        self._path = path
        self.database = identity(path)
        self._real = path.resolve()
        self._log_and_index = {beside: identity(beside) for beside in _log_and_index(path)}
        self._expects_new_log = False

    def size_bytes(self) -> int:
        """Return the size of the database and its log."""
        log, _ = _log_and_index(self._path)
        return sum(path.stat().st_size for path in (self._path, log) if path.exists())

    def expect_new_log(self) -> None:
        """Accept the next log and index: SQLite deletes them when its last connection closes."""
        self._expects_new_log = True

    def describe_loss(self) -> str | None:
        """Return what happened to the files, as a predicate ("was deleted"); None for nothing."""
        loss = self._describe_database_loss()
        if loss is not None:
            return loss
        if self._expects_new_log:
            self._expects_new_log = False
            self._log_and_index = {path: identity(path) for path in self._log_and_index}
            return None
        for path, before in self._log_and_index.items():
            if identity(path) != before:
                return f"lost its file {path.name}, which was deleted or replaced"
        return None

    def _describe_database_loss(self) -> str | None:
        try:
            status = self._path.stat()
        except OSError:
            return "was deleted or moved"
        if (status.st_dev, status.st_ino) != self.database:
            return "was replaced by another file"
        if self._at_real_path != self.database:
            return "was moved and replaced by a link"
        if status.st_size == 0:  # which a database never is
            return "was emptied"
        return None

    @property
    def _at_real_path(self) -> Identity | None:
        # Log and index are named after this path, also if a link has replaced the file there.
        return identity(self._real, follow=False)

    @property
    def _is_behind_a_link(self) -> bool:
        return identity(self._path) == self.database != self._at_real_path

    def move_log_to_database(self) -> None:
        """Move log and index beside the database if it was moved and replaced by a link to it.

        A process that opens it by the link looks for them there, and one that has them open keeps
        using them. Two logs of one database would damage it.
        """
        if not self._is_behind_a_link:
            return
        moves = zip(self._log_and_index, _log_and_index(self._path), strict=True)
        for source, target in reversed(list(moves)):
            with suppress(OSError):  # another process moved it, or has begun another log
                os.link(source, target)
                source.unlink()

    @property
    def has_only_copy_of_log(self) -> bool:
        """Whether no other process can read the open log, so that this one has to save it."""
        if self._is_behind_a_link:
            # If another process has begun a new log for the database, the open one is outdated.
            return not _log_and_index(self._path)[0].exists()
        log = next(iter(self._log_and_index))
        return self._describe_database_loss() is not None or not log.exists()

    def remove_orphans(self) -> None:
        """Delete log and index if another file is in the database's place; they would damage it."""
        with _folder_lock(self._real.parent):
            if self._at_real_path in (None, self.database):
                return
            for path, before in self._log_and_index.items():
                if before is not None and identity(path) == before:
                    with suppress(OSError):
                        path.unlink()


def _log_and_index(path: Path) -> list[Path]:
    real = path.resolve()  # SQLite names them after the target of a link
    return [real.with_name(f"{real.name}-wal"), real.with_name(f"{real.name}-shm")]


def _make_folders(path: Path) -> None:
    for folder in reversed(path.parents):
        folder.mkdir(mode=0o700, exist_ok=True)


@contextmanager
def _folder_lock(folder: Path) -> Iterator[None]:
    """Keep other processes out of the same block; after two seconds, continue regardless."""
    if os.name != "posix" or not folder.is_dir():
        yield  # other systems do not let a file that is open be deleted or replaced
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        _lock(descriptor)
        yield
    finally:
        with suppress(OSError):
            # Closing does not unlock if a child that was forked meanwhile also has the descriptor.
            fcntl.flock(descriptor, fcntl.LOCK_UN)
        os.close(descriptor)


def _lock(descriptor: int) -> None:
    deadline = time.monotonic() + _LOCK_PATIENCE_S
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() < deadline:
                time.sleep(_POLL_INTERVAL_S)
                continue
        except OSError:  # a file system without such locks
            pass
        return
