"""The files of a SQLite store: made readable by their owner alone, and watched while in use.

SQLite does not notice when its file is deleted, moved or replaced: it goes on writing to the one
it opened, and says nothing.
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
_LOOK_AGAIN_S = 0.01

Identity = tuple[int, int]


def make_private(path: Path) -> None:
    """Make an empty file at `path` with mode 0600, and the folders to it with 0700.

    What is there already keeps its contents and its mode.

    Raises:
        OSError: It cannot be made, or is no file that may be read and written.
    """
    _make_folders(path)
    with suppress(FileExistsError):
        # Made here, because whoever writes it would go by the umask. One that is there is not
        # opened: closing it again would take from SQLite every lock that this process holds on it,
        # and another process would delete the log that is in use.
        os.close(os.open(path.resolve(), os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))
        return
    if path.is_dir():
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    if not os.access(path, os.R_OK | os.W_OK):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))


def make_database_file(path: Path) -> None:
    """Do as `make_private` for a SQLite database, and delete what a deleted one left behind.

    Raises:
        OSError: As `make_private`.
    """
    _make_folders(path)
    if path.exists():
        make_private(path)
        return
    with _alone_in(path.resolve().parent):  # where log and index lie, as in `remove_orphans`
        if not path.exists():
            # SQLite would take the log and index of the deleted database for the new one's.
            for orphan in _log_and_index(path):
                orphan.unlink(missing_ok=True)
        make_private(path)


def identity(path: Path, *, follow: bool = True) -> Identity | None:
    """Return what tells the file at `path` from every other one; None if there is none.

    Args:
        path: Where it lies.
        follow: Whether a link stands for the file it leads to.
    """
    try:
        status = path.stat(follow_symlinks=follow)
    except OSError:
        return None
    return status.st_dev, status.st_ino


class OpenFiles:
    """The files of an open SQLite database, as they are when this is made.

    No other file gets the identity of one that is still open.

    Args:
        path: The database's path; its log and index lie beside it.
    """

    __slots__ = ("_log_and_index", "_may_be_new", "_path", "_real", "database")

    def __init__(self, path: Path) -> None:
        self._path = path
        self.database = identity(path)
        self._real = path.resolve()
        self._log_and_index = {beside: identity(beside) for beside in _log_and_index(path)}
        self._may_be_new = False

    def expect_new_log(self) -> None:
        """Take the next log and index for granted: SQLite deletes them with its last connection."""
        self._may_be_new = True

    def what_is_gone(self) -> str | None:
        """Return what happened to the files, as part of a sentence; None if all are the same."""
        gone = self._what_befell_database()
        if gone is not None:
            return gone
        if self._may_be_new:
            self._may_be_new = False
            self._log_and_index = {beside: identity(beside) for beside in self._log_and_index}
            return None
        for beside, before in self._log_and_index.items():
            if identity(beside) != before:
                return f"lost its file {beside.name}, which was deleted or replaced"
        return None

    def _what_befell_database(self) -> str | None:
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
        # Log and index are named after this path, wherever a link in its place may lead.
        return identity(self._real, follow=False)

    @property
    def _is_behind_a_link(self) -> bool:
        return identity(self._path) == self.database != self._at_real_path

    def take_log_along(self) -> None:
        """Put log and index beside the database if it was moved and a link leads to it.

        Whoever opens it by the link looks for them there, and whoever has them open stays with
        them. Two logs of one database would damage it.
        """
        if not self._is_behind_a_link:
            return
        moves = zip(self._log_and_index, _log_and_index(self._path), strict=True)
        for before, now in reversed(list(moves)):
            with suppress(OSError):  # another process did that, or has begun another log
                os.link(before, now)
                before.unlink()

    @property
    def log_is_lost_otherwise(self) -> bool:
        """Whether what the open log holds is to be copied from it, because nobody else will."""
        if self._is_behind_a_link:
            # Where somebody has begun another log for the database, ours is out of date.
            return not _log_and_index(self._path)[0].exists()
        log = next(iter(self._log_and_index))
        return self._what_befell_database() is not None or not log.exists()

    def remove_orphans(self) -> None:
        """Delete log and index if something else lies beside them now, which they would damage."""
        with _alone_in(self._real.parent):
            if self._at_real_path in (None, self.database):
                return
            for beside, before in self._log_and_index.items():
                if before is not None and identity(beside) == before:
                    with suppress(OSError):
                        beside.unlink()


def _log_and_index(path: Path) -> list[Path]:
    real = path.resolve()  # as SQLite does, which names them after what a link leads to
    return [real.with_name(f"{real.name}-wal"), real.with_name(f"{real.name}-shm")]


def _make_folders(path: Path) -> None:
    for folder in reversed(path.parents):
        folder.mkdir(mode=0o700, exist_ok=True)


@contextmanager
def _alone_in(folder: Path) -> Iterator[None]:
    """A block that one process at a time is in; after two seconds in spite of another one."""
    if os.name != "posix" or not folder.is_dir():
        yield  # elsewhere nobody can delete or replace a file that is open
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        _lock(descriptor)
        yield
    finally:
        with suppress(OSError):  # a child forked meanwhile has the descriptor, too
            fcntl.flock(descriptor, fcntl.LOCK_UN)
        os.close(descriptor)


def _lock(descriptor: int) -> None:
    until = time.monotonic() + _LOCK_PATIENCE_S
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() < until:
                time.sleep(_LOOK_AGAIN_S)
                continue
        except OSError:  # a file system without such locks
            pass
        return
