"""SQLAlchemy's engine on a SQLite file or a PostgreSQL database, and what its errors mean.

Loads SQLAlchemy. A PostgreSQL server ends statements that wait for a lock, or run, for too long.
The system ends connections through a network that drops every packet.
"""

from __future__ import annotations

import os
import re
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import make_url
from sqlalchemy.exc import ArgumentError, SQLAlchemyError

from kp_langchain.config import mask_password
from kp_langchain.errors import ConfigError, KPError, StoreError
from kp_langchain.files import make_private
from kp_langchain.store.location import Location
from kp_langchain.store.migrations import (
    forget_foreign_changes,
    has_foreign_changes,
    is_usable,
    migrate,
    stored_version,
)
from kp_langchain.store.rows import dumps, loads
from kp_langchain.store.tables import metadata

_IS_WRITE = "kp_is_write"  # the option of a connection whose transaction writes
_BUSY_TIMEOUT_S = 10.0
_WAL_ATTEMPTS = 20
_CREATION_LOCK = 0x6B705F6C63  # any number, the same in every version of this package
_FILE = "give the path of a file in a folder you may write to"


def new_engine(location: Location) -> sa.Engine:
    """Return an engine on a database, in which the tables are created or migrated if need be.

    Raises:
        ConfigError: The URL cannot be read.
        StoreError: The schema has a version that this package cannot use.
        sqlalchemy.exc.SQLAlchemyError, sqlite3.Error, OSError: The database cannot be opened.
    """
    engine = _postgres_engine(location) if location.path is None else _sqlite_engine(location.path)
    try:
        with engine.connect() as connection:
            is_current = _is_current(connection, location)
        if not is_current:
            with write_transaction(engine) as connection:
                if location.path is None:  # keeps other processes from doing the same
                    connection.execute(sa.select(sa.func.pg_advisory_xact_lock(_CREATION_LOCK)))
                if not _is_current(connection, location):
                    migrate(connection, stored_version(connection))
        if location.path is None:
            with engine.connect() as connection:
                is_restored = has_foreign_changes(connection)
            if is_restored:
                with write_transaction(engine) as connection:
                    forget_foreign_changes(connection)
    except Exception:
        engine.dispose()
        raise
    return engine


@contextmanager
def write_transaction(engine: sa.Engine) -> Iterator[sa.Connection]:
    """Yield a connection in a write transaction: committed at the end, undone by an exception."""
    with engine.connect() as connection:
        connection.execution_options(**{_IS_WRITE: True})
        with connection.begin():
            yield connection


def _is_current(connection: sa.Connection, location: Location) -> bool:
    version = stored_version(connection)
    return version is not None and is_usable(connection, version, location)


def compact(engine: sa.Engine) -> bool:
    """Give back the room of deleted rows; return whether no file has their text any more.

    Raises:
        sqlalchemy.exc.SQLAlchemyError: The database is busy, or has no room for a copy.
    """
    is_sqlite = engine.dialect.name == "sqlite"
    connection = engine.raw_connection()  # outside any transaction, and without our limits
    try:
        cursor: Any = connection.cursor()
        refusals: list[object] = []
        if not is_sqlite:  # which only warns of tables that are somebody else's
            cursor.connection.add_notice_handler(refusals.append)
        cursor.execute("VACUUM" if is_sqlite else f"VACUUM {', '.join(metadata.tables)}")
        if refusals:
            return False
        if is_sqlite:  # others may keep the log from being emptied
            return not cursor.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()[0]
    except engine.dialect.dbapi.Error as error:  # type: ignore[union-attr]
        raise sa.exc.OperationalError("VACUUM", None, error) from error
    finally:
        connection.close()
    return True


# ------------------------------------------------------------------ errors

# Remedies, by a pattern of the driver's message in lower case.
_REMEDIES = {
    "is full|disk i/o|no space left": "make room and try again",
    "is locked": "another process has been writing to it for 10 s; try again when that has ended",
    "not a database|malformed": "the file is damaged or no SQLite database; "
    "restore it from a backup, or give another path",
    "readonly|unable to open": f"make it writable, or {_FILE}",
    "read-only transaction": "the server takes no writes now, as a standby does; give the URL of "
    "the primary server, or wait until there is one",
    "already exists": "it has tables of another program or version; give another database",
    "lock timeout": "another process has held a lock on it for 10 s; try again when that has ended",
    "statement timeout": "see what keeps the server busy, or set a limit of your own in the URL: "
    "?options=-c%20statement_timeout%3D5min (behind pgbouncer: ALTER ROLE ... SET)",
    "password|pg_hba.conf": "the server does not let this user in; check the URL",
    "permission denied": "grant the user CREATE on the schema, or give it a database that it owns",
    "must be owner": "have the tables' owner run kp-langchain store migrate before",
    'database ".*" does not exist': "create it, or correct its name",
    "connection|timeout|resolve": "check that the server runs and that the URL's host and port are "
    "right",
}


@contextmanager
def as_store_errors(location: Location, purpose: str) -> Iterator[None]:
    """Raise errors of the drivers and the file system as `StoreError`.

    Args:
        location: The database, for messages.
        purpose: What the block does with it: `open`, `read` or `write`.

    Raises:
        StoreError: A driver, or the file system, raised an error inside the block, or a value in
            the database could not be read.
    """
    try:
        yield
    except KPError:
        raise
    except (SQLAlchemyError, sqlite3.Error, OSError, ValueError) as error:
        is_of_file = isinstance(error, OSError | ValueError) and purpose == "open"
        explanation = f"{error}; {_FILE}" if is_of_file else _explain(error)
        raise StoreError(
            f"cannot {purpose} the trace store at {location}: {explanation}"
        ) from error


def _explain(error: Exception) -> str:
    """Return what an error means for the user of the store: the cause, and a remedy."""
    original = getattr(error, "orig", None) or error
    text = mask_password(str(original)).strip() or type(original).__name__
    remedies = (remedy for pattern, remedy in _REMEDIES.items() if re.search(pattern, text.lower()))
    return f"{text.splitlines()[0]}; {next(remedies, 'see the cause below')}"


# ------------------------------------------------------------------ the two kinds


# Limits of each transaction. The last one releases the rows of a process that was suspended.
_LIMITS = {
    "lock_timeout": "10s",
    "statement_timeout": "30s",
    "idle_in_transaction_session_timeout": "60s",
}
_READ_ONLY = "25006"  # read_only_sql_transaction
_IDLE_CONNECTIONS = 2  # of a process: one writes, and one reads meanwhile
# Of the driver: how long the server may take to answer at first, and a network to lose what was
# sent. Limits in the URL prevail.
_NETWORK_LIMITS = {
    "connect_timeout": 10,
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 4,
    "tcp_user_timeout": 30_000,
}


def _postgres_engine(location: Location) -> sa.Engine:
    """Return an engine on a PostgreSQL database; nothing is connected yet.

    With `options` in its URL, or the environment variable PGOPTIONS, transactions have the limits
    that are set there, and none of ours.

    A pooler may hand the session to another client after each transaction, so nothing is left in
    it: no settings, no prepared statements, no locks.

    Raises:
        ConfigError: The URL cannot be read.
    """
    url = _url(location)
    limits = {name: one for name, one in _NETWORK_LIMITS.items() if name not in url.query}
    engine = sa.create_engine(
        url,
        # The driver begins no transactions itself, because ours begin with their limits.
        connect_args=limits | {"autocommit": True, "prepare_threshold": None},
        json_serializer=dumps,
        json_deserializer=loads,
        hide_parameters=True,
        pool_pre_ping=True,
        pool_size=_IDLE_CONNECTIONS,
    )
    sa.event.listen(engine, "handle_error", _on_error)
    begin = "BEGIN"
    if "options" not in url.query and "PGOPTIONS" not in os.environ:
        # In one message with BEGIN, so that they cost no round trip.
        limits_sql = [f"SET LOCAL {name} = '{limit}'" for name, limit in _LIMITS.items()]
        begin = "; ".join([begin, *limits_sql])
    sa.event.listen(engine, "begin", lambda connection: connection.exec_driver_sql(begin))
    return engine


def _on_error(context: Any) -> None:
    """Replace the connections to a server that became a standby, or always was one."""
    if getattr(context.original_exception, "sqlstate", None) == _READ_ONLY:
        context.is_disconnect = True


def _url(location: Location) -> sa.URL:
    try:
        return make_url(location.url or "").set(drivername="postgresql+psycopg")
    except (ArgumentError, ValueError):
        pass
    # Not chained, because the cause may quote the password.
    raise ConfigError(
        f"{location} cannot be read as a URL; write postgresql://user:password@host/database,"
        " with special characters in the password percent-encoded"
    )


def _sqlite_engine(path: Path) -> sa.Engine:
    # `rw` does not create the file: one that was deleted meanwhile must be noticed.
    uri = f"{path.as_uri()}?mode=rw"
    engine = sa.create_engine(
        sa.URL.create("sqlite", database=str(path)),
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
    is_write = connection.get_execution_options().get(_IS_WRITE, False)
    driver: Any = connection.connection.driver_connection
    driver.execute("BEGIN IMMEDIATE" if is_write else "BEGIN")


Identity = tuple[int, int]
"""Device and inode. No other file gets those of a file that is open."""


class WatchedFile:
    """A SQLite file, created for its owner alone, and watched while it is open.

    SQLite does not notice when its file is deleted, moved or replaced: it silently keeps writing to
    the file that it opened.

    Args:
        path: Its path.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        real = path.resolve()  # SQLite names log and index after the target of a link
        beside = [real.with_name(real.name + suffix) for suffix in ("-wal", "-shm")]
        self._beside: dict[Path, Identity | None] = dict.fromkeys(beside)
        if not path.exists():
            self.remove_log_and_index()  # those of a database that was deleted
        make_private(path)
        self._identity = _identity(path)

    def note_log_and_index(self) -> None:
        """Note its log and index, which SQLite keeps as long as there is a connection."""
        self._beside = {path: _identity(path) for path in self._beside}

    def is_lost(self) -> bool:
        """Return whether it was deleted, moved or replaced."""
        return _identity(self._path) != self._identity

    def remove_log_and_index(self) -> None:
        """Remove its log and index: SQLite would apply them to another file at its path."""
        for path, identity in self._beside.items():
            if identity is None or _identity(path) == identity:
                path.unlink(missing_ok=True)


def _identity(path: Path) -> Identity | None:
    """Return the identity of the file at a path; None if there is none."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_dev, status.st_ino
