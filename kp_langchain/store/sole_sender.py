"""The lock that lets one process at a time send from a store: an open transaction.

The system releases it when the process dies, however it dies. It does not expire, so neither a
changed clock nor a suspended process breaks it, and a forked child does not inherit it. Loads
SQLAlchemy.
"""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import sqlalchemy as sa

from kp_langchain.store.sqlite_files import Identity, identity, make_private

_POSTGRES_LOCK = 0x6B705F736E  # any number, the same in every version of this package
_POLL_INTERVAL_S = 0.1

# Connections of this process that hold, or wait for, the lock of a file.
_connections: set[sqlite3.Connection] = set()


@dataclass(frozen=True, slots=True)
class LockFile:
    """The file whose lock this process holds.

    Attributes:
        path: Where it is.
        identity: Device and inode of the file that is locked; None if it could not be read.
    """

    path: Path
    identity: Identity | None

    def is_lost(self) -> bool:
        """Return whether it was deleted, so that another process may hold the lock of a new one."""
        return identity(self.path) != self.identity


@contextmanager
def file_lock(path: Path, timeout_s: float) -> Iterator[LockFile | None]:
    """Hold the sender's lock of the SQLite store at `path`; yield None if another sender has it.

    It is a transaction on an empty database beside the store. One on the store itself would keep
    the recorder from writing for as long as a registry takes to answer.

    Args:
        path: The store's file.
        timeout_s: Seconds to wait for another sender to finish.

    Raises:
        OSError, sqlite3.Error: The lock file cannot be created or used.
    """
    lock_path = path.with_name(path.name + "-sender")
    make_private(lock_path)
    lock = LockFile(lock_path, identity(lock_path))
    connection = sqlite3.connect(
        lock_path, isolation_level=None, timeout=timeout_s, check_same_thread=False
    )
    _connections.add(connection)
    try:
        is_held = True
        try:
            connection.execute("PRAGMA journal_mode=OFF")  # nothing is ever written there
            connection.execute("BEGIN EXCLUSIVE")
        except sqlite3.OperationalError as error:
            if "locked" not in str(error):
                raise
            is_held = False
        yield lock if is_held and not lock.is_lost() else None
    finally:
        if connection in _connections:  # in a forked child it no longer is
            _connections.discard(connection)
            connection.close()


@contextmanager
def server_lock(engine: sa.Engine, timeout_s: float) -> Iterator[bool]:
    """Hold the sender's lock of the PostgreSQL store behind `engine`; yield whether it is held.

    Args:
        engine: The store's engine.
        timeout_s: Seconds to wait for another sender to finish.

    Raises:
        sqlalchemy.exc.SQLAlchemyError: The server cannot be reached.
    """
    try_lock = sa.select(sa.func.pg_try_advisory_xact_lock(_POSTGRES_LOCK))
    deadline = time.monotonic() + timeout_s
    with engine.connect() as connection, connection.begin():
        # The transaction idles for as long as a registry takes to answer.
        connection.execute(sa.text("SET LOCAL idle_in_transaction_session_timeout = 0"))
        while not (is_held := bool(connection.scalar(try_lock))) and time.monotonic() < deadline:
            time.sleep(_POLL_INTERVAL_S)
        yield is_held


def _leave_to_parent() -> None:
    # The lock is the parent's, but SQLite's own record of it was copied by the fork, and would keep
    # the child out for ever. Closing such a connection in a child is otherwise forbidden, because
    # of what it might write; nothing is ever written here.
    while _connections:
        _connections.pop().close()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_leave_to_parent)
