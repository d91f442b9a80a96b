"""The lock that makes one sender of all processes on a store: an open transaction.

The system frees it when the process dies, however it dies; it has no expiry that a clock or a
pause could get wrong; and a forked child does not inherit it.
"""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from kp_langchain.store.files import Identity, identity, make_private

if TYPE_CHECKING:
    import sqlalchemy as sa

_POSTGRES_LOCK = 0x6B705F736E  # any number, the same in every version of this package
_LOOK_AGAIN_S = 0.1

_held: set[sqlite3.Connection] = set()


@dataclass(frozen=True, slots=True)
class LockFile:
    """The file whose lock this process holds.

    Args:
        path: Where it is.
        identity: Which file it is.
    """

    path: Path
    identity: Identity | None

    def is_gone(self) -> bool:
        """Return whether it was deleted, so that another process may hold the lock of a new one."""
        return identity(self.path) != self.identity


@contextmanager
def sole_sender_of_file(path: Path, timeout_s: float) -> Iterator[LockFile | None]:
    """Hold the lock of the SQLite store at `path`; yields None if it could not be had.

    It is a transaction on an empty database beside it, because one on the store itself would keep
    the recorder from writing for as long as a registry takes to answer.

    Raises:
        OSError, sqlite3.Error: The lock's file cannot be made or used.
    """
    beside = path.with_name(path.name + "-sender")
    make_private(beside)
    lock = LockFile(beside, identity(beside))
    connection = sqlite3.connect(
        beside, isolation_level=None, timeout=timeout_s, check_same_thread=False
    )
    _held.add(connection)
    try:
        held = True
        try:
            connection.execute("PRAGMA journal_mode=OFF")  # nothing is ever written there
            connection.execute("BEGIN EXCLUSIVE")
        except sqlite3.OperationalError as error:
            if "locked" not in str(error):
                raise
            held = False
        yield lock if held and not lock.is_gone() else None
    finally:
        if connection in _held:  # in a forked child it no longer is
            _held.discard(connection)
            connection.close()


@contextmanager
def sole_sender_of_server(engine: sa.Engine, timeout_s: float) -> Iterator[bool]:
    """Hold the lock of the PostgreSQL store behind `engine`; yields whether it could be had.

    Raises:
        sqlalchemy.exc.SQLAlchemyError: The server cannot be reached.
    """
    import sqlalchemy as sa

    ask = sa.select(sa.func.pg_try_advisory_xact_lock(_POSTGRES_LOCK))
    until = time.monotonic() + timeout_s
    with engine.connect() as connection, connection.begin():
        # It idles for as long as a registry takes to answer.
        connection.execute(sa.text("SET LOCAL idle_in_transaction_session_timeout = 0"))
        while not (held := bool(connection.scalar(ask))) and time.monotonic() < until:
            time.sleep(_LOOK_AGAIN_S)
        yield held


def _leave_to_parent() -> None:
    # The lock is the parent's, but SQLite's own notes on it came along, and would keep the child
    # out for ever. Closing such a connection in a child is otherwise forbidden, because of what it
    # might write; here nothing is ever written.
    while _held:
        _held.pop().close()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_leave_to_parent)
