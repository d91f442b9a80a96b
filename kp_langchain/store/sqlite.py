"""SQLite connections: write-ahead log, and write transactions that wait for their turn.

Loads SQLAlchemy.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from kp_langchain._forksafe import allow_forks
from kp_langchain.store.rows import dumps, loads

IS_WRITE = "kp_is_write"
"""The execution option of a connection whose transaction is going to write."""

_BUSY_TIMEOUT_S = 10
_POLL_INTERVAL_S = 0.01
_SHORT_WAIT_MS = 200
_WAL_ATTEMPTS = 20


def new_engine(path: Path) -> sa.Engine:
    """Return an engine on the SQLite file at `path`; nothing is connected yet.

    Args:
        path: An existing file; no connection creates it.
    """
    engine = sa.create_engine(
        sa.URL.create("sqlite", database=str(path)),
        # `rw` does not create the file: one that was deleted meanwhile must be noticed.
        creator=lambda: sqlite3.connect(
            f"{path.as_uri()}?mode=rw", uri=True, timeout=_BUSY_TIMEOUT_S, check_same_thread=False
        ),
        json_serializer=dumps,
        json_deserializer=loads,
        hide_parameters=True,
    )

    @sa.event.listens_for(engine, "connect")
    def on_connect(connection: Any, _record: object) -> None:
        # The driver must not begin transactions itself: it only begins deferred ones.
        connection.isolation_level = None
        connection.execute("PRAGMA synchronous=NORMAL")
        connection.execute("PRAGMA foreign_keys=ON")
        # Overwrite deleted content, such as expired bodies; not every build does so by default.
        connection.execute("PRAGMA secure_delete=ON")

    @sa.event.listens_for(engine, "begin")
    def on_begin(connection: sa.Connection) -> None:
        # A deferred transaction that starts to write can fail at once instead of waiting.
        if connection.get_execution_options().get(IS_WRITE, False):
            _begin_writing(connection.connection.dbapi_connection)
        else:
            connection.exec_driver_sql("BEGIN")

    return engine


def use_write_ahead_log(engine: sa.Engine) -> None:
    """Switch the file to write-ahead logging, which is a lasting property of the file.

    Raises:
        sqlite3.Error: The file cannot be switched, or other processes keep it locked.
    """
    with cursor_of(engine) as cursor:
        for attempt in range(1, _WAL_ATTEMPTS + 1):
            try:
                cursor.execute("PRAGMA journal_mode=WAL")
                break
            except sqlite3.OperationalError as error:
                # This pragma does not wait for another process's write as BEGIN does.
                if "locked" not in str(error) or attempt == _WAL_ATTEMPTS:
                    raise
                cursor.execute("BEGIN IMMEDIATE")
                cursor.execute("ROLLBACK")


def copy_log_into_database(engine: sa.Engine) -> bool:
    """Copy what the write-ahead log holds into the database file.

    Returns:
        False if other connections kept the database busy for 10 s.

    Raises:
        sqlalchemy.exc.SQLAlchemyError, sqlite3.Error: The database cannot be read or written.
    """
    with cursor_of(engine) as cursor:
        # Waits for readers and writers, but not for another checkpoint.
        return _checkpoint(cursor, "FULL")


def compact(engine: sa.Engine) -> bool:
    """Write the file anew without the room of deleted rows, and empty the write-ahead log.

    Returns:
        False if other connections kept reading the log for 10 s, so that it was not emptied.

    Raises:
        sqlalchemy.exc.SQLAlchemyError, sqlite3.Error: Others kept writing for 10 s, or there is no
            room for a copy.
    """
    with cursor_of(engine) as cursor:
        cursor.execute("VACUUM")
        # Nobody can write while SQLite waits for readers here, so it waits in short pieces.
        cursor.execute(f"PRAGMA busy_timeout = {_SHORT_WAIT_MS}")
        try:
            return _checkpoint(cursor, "TRUNCATE")
        finally:
            cursor.execute(f"PRAGMA busy_timeout = {round(_BUSY_TIMEOUT_S * 1000)}")


@contextmanager
def cursor_of(engine: sa.Engine) -> Iterator[Any]:
    """Yield a cursor of the driver, outside any transaction."""
    connection = engine.raw_connection()
    try:
        yield connection.cursor()
    finally:
        connection.close()


def _checkpoint(cursor: Any, mode: str) -> bool:
    """Copy the write-ahead log into the file; return False if others were in the way for 10 s."""
    deadline = time.monotonic() + _BUSY_TIMEOUT_S
    while True:
        is_busy, *_ = cursor.execute(f"PRAGMA wal_checkpoint({mode})").fetchone()
        if not is_busy:
            return True
        if time.monotonic() >= deadline:
            return False
        with allow_forks():
            time.sleep(_POLL_INTERVAL_S)


def _begin_writing(driver: Any) -> None:
    """Begin a write transaction as soon as no other connection writes."""
    # Polled here, because a fork would have to wait until SQLite's own waiting ends.
    deadline = time.monotonic() + _BUSY_TIMEOUT_S
    driver.execute("PRAGMA busy_timeout = 0")
    try:
        while True:
            try:
                driver.execute("BEGIN IMMEDIATE")
            except sqlite3.OperationalError as error:
                remaining_s = deadline - time.monotonic()
                if "locked" not in str(error) or remaining_s <= 0:
                    raise
                with allow_forks():
                    time.sleep(min(_POLL_INTERVAL_S, remaining_s))
            else:
                return
    finally:
        driver.execute(f"PRAGMA busy_timeout = {round(_BUSY_TIMEOUT_S * 1000)}")
