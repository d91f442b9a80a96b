"""A SQLite database: its connections, its write-ahead log, and its file. Loads SQLAlchemy."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, ClassVar

import sqlalchemy as sa

from kp_langchain.private_files import make_private
from kp_langchain.store.engine import IS_WRITE, OpenDatabase
from kp_langchain.store.location import Location
from kp_langchain.store.rows import dumps, loads

_BUSY_TIMEOUT_S = 10.0
_POLL_INTERVAL_S = 0.01
_SHORT_WAIT_MS = 200
_WAL_ATTEMPTS = 20

Identity = tuple[int, int]
"""Device and inode."""


def identity(path: Path, *, follow: bool = True) -> Identity | None:
    """Return the identity of the file at `path`, which no other file has; None if there is none.

    It is reliable while the file is open: no other file gets its identity meanwhile.

    Args:
        path: The path of the file.
        follow: Whether to follow a symbolic link.
    """
    try:
        status = path.stat(follow_symlinks=follow)
    except OSError:
        return None
    return status.st_dev, status.st_ino


class SqliteDatabase(OpenDatabase):
    """A SQLite file, created for its owner alone, and watched while it is open.

    SQLite does not notice when its file is deleted, moved or replaced: it silently keeps writing to
    the file that it opened.
    """

    EXPLANATIONS: ClassVar = {
        "database or disk is full": "the disk is full; make room and try again",
        "disk i/o error": "the disk refused to read or write; check its free space and health",
        "database is locked": "another process has been writing to it for 10 s; "
        "try again when that has ended",
        "not a database": "the file is not a SQLite database; "
        "give another path, or move the file away",
        "malformed": "the file is damaged; "
        "restore it from a backup, or move it away to begin a new one",
        "readonly database": "it is read-only; make the file and its folder writable",
        "unable to open": "the file cannot be opened; give a path in a folder you may write to",
    }

    def __init__(self, location: Location) -> None:
        self._path = location.path or Path()
        self._real = self._path.resolve()  # SQLite names log and index after the target of a link
        self._note_log_and_index()
        if not self._path.exists():
            self._remove_log_and_index()  # those of a database that was deleted
        make_private(self._path)
        self._identity = identity(self._path)
        super().__init__(location)
        self._note_log_and_index()  # the pool keeps a connection, so that SQLite keeps these files

    def _new_engine(self, location: Location) -> sa.Engine:
        # `rw` does not create the file: one that was deleted meanwhile must be noticed.
        uri = f"{self._path.as_uri()}?mode=rw"
        engine = sa.create_engine(
            sa.URL.create("sqlite", database=str(location.path)),
            creator=lambda: sqlite3.connect(
                uri, uri=True, timeout=_BUSY_TIMEOUT_S, check_same_thread=False
            ),
            json_serializer=dumps,
            json_deserializer=loads,
            hide_parameters=True,
        )
        sa.event.listen(engine, "connect", _on_connect)
        sa.event.listen(engine, "begin", _on_begin)
        return engine

    def describe_file_loss(self) -> str | None:
        """Return what happened to its file, as a predicate ("was deleted"); None for nothing."""
        try:
            status = self._path.stat()
        except OSError:
            return "was deleted or moved"
        at_path = (status.st_dev, status.st_ino)
        # It may also have been moved, and replaced by a link to where it is now.
        if not at_path == self._identity == identity(self._real, follow=False):
            return "was replaced by another file"
        return None if status.st_size else "was emptied"  # which a database never is

    def abandon(self) -> None:
        """Close it after its file was lost; what only the log holds is copied into a moved file."""
        with suppress(sa.exc.SQLAlchemyError, sqlite3.Error), self._cursor() as cursor:
            # SQLite does not do it for such a file when it is closed.
            cursor.execute("PRAGMA wal_checkpoint(FULL)")
        if identity(self._real, follow=False) not in (None, self._identity):
            # Before closing: afterwards another process's new log may have the same identity.
            self._remove_log_and_index()
        self.engine.dispose()

    def _note_log_and_index(self) -> None:
        beside = [self._real.with_name(self._real.name + suffix) for suffix in ("-wal", "-shm")]
        self._log_and_index = {path: identity(path) for path in beside}

    def _remove_log_and_index(self) -> None:
        """Remove them where they are unchanged: SQLite would apply them to another database."""
        for path, before in self._log_and_index.items():
            if before is not None and identity(path) == before:
                with suppress(OSError):
                    path.unlink()

    def size_bytes(self) -> int:
        """Return the size of the database and its log."""
        log = next(iter(self._log_and_index))
        return sum(path.stat().st_size for path in (self._path, log) if path.exists())

    def compact(self) -> bool:
        """Write the file anew without the room of deleted rows, and empty the write-ahead log.

        Returns:
            False if other connections kept reading the log for 10 s, so that it was not emptied.

        Raises:
            sqlalchemy.exc.SQLAlchemyError, sqlite3.Error: Others kept writing for 10 s, or there is
                no room for a copy.
        """
        with self._cursor() as cursor:
            cursor.execute("VACUUM")
            # Nobody can write while SQLite waits for readers here, so it waits in short pieces.
            cursor.execute(f"PRAGMA busy_timeout = {_SHORT_WAIT_MS}")
            deadline = time.monotonic() + _BUSY_TIMEOUT_S
            try:
                while cursor.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()[0]:
                    if time.monotonic() >= deadline:
                        return False
                    time.sleep(_POLL_INTERVAL_S)
            finally:
                cursor.execute(f"PRAGMA busy_timeout = {round(_BUSY_TIMEOUT_S * 1000)}")
        return True

    @contextmanager
    def _cursor(self) -> Iterator[Any]:
        """Yield a cursor of the driver, outside any transaction."""
        connection = self.engine.raw_connection()
        try:
            yield connection.cursor()
        finally:
            connection.close()


def _on_connect(connection: Any, _record: object) -> None:
    # The driver must not begin transactions itself: it only begins deferred ones.
    connection.isolation_level = None
    connection.execute("PRAGMA synchronous=NORMAL")
    connection.execute("PRAGMA foreign_keys=ON")
    # Overwrite deleted content, such as expired bodies; not every build does so by default.
    connection.execute("PRAGMA secure_delete=ON")
    _use_write_ahead_log(connection)


def _use_write_ahead_log(connection: Any) -> None:
    """Switch the file to write-ahead logging, which is a lasting property of it."""
    for attempt in range(1, _WAL_ATTEMPTS + 1):
        try:
            connection.execute("PRAGMA journal_mode=WAL")
            break
        except sqlite3.OperationalError as error:
            # This pragma does not wait for another process's write as BEGIN does.
            if "locked" not in str(error) or attempt == _WAL_ATTEMPTS:
                raise
            connection.execute("BEGIN IMMEDIATE")
            connection.execute("ROLLBACK")


def _on_begin(connection: sa.Connection) -> None:
    # A deferred transaction that starts to write can fail at once instead of waiting.
    is_write = connection.get_execution_options().get(IS_WRITE, False)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if is_write else "BEGIN")
