"""Opens the database behind a store: its engine, its schema, its files. Loads SQLAlchemy."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass

import sqlalchemy as sa

from kp_langchain.errors import MissingExtraError, StoreError
from kp_langchain.store import schema_version, sqlite
from kp_langchain.store.location import Location
from kp_langchain.store.sqlite_files import OpenFiles, identity, make_database_file
from kp_langchain.store.tables import SCHEMA_VERSION

_OPEN_ATTEMPTS = 5


@dataclass(frozen=True, slots=True)
class OpenDatabase:
    """An open database.

    Attributes:
        engine: The SQLAlchemy engine, which holds its connections.
        files: The files of a SQLite database; None for PostgreSQL.
        is_new: Whether opening it created its tables.
    """

    engine: sa.Engine
    files: OpenFiles | None
    is_new: bool

    def describe_file_loss(self) -> str | None:
        """Return what happened to its files, as a predicate ("was deleted"); None for nothing."""
        return self.files.describe_loss() if self.files else None

    def size_bytes(self) -> int:
        """Return the size of the database, the write-ahead log of a SQLite file included."""
        if self.files:
            return self.files.size_bytes()
        from kp_langchain.store import postgres

        return postgres.size_bytes(self.engine)

    def compact(self) -> bool:
        """Give back the room of deleted rows.

        Returns:
            False if other connections to a SQLite file kept what was deleted in its log.

        Raises:
            sqlalchemy.exc.SQLAlchemyError, sqlite3.Error: The database is busy, or has no room.
        """
        if self.files:
            return sqlite.compact(self.engine)
        from kp_langchain.store import postgres

        postgres.vacuum(self.engine)
        return True

    def abandon(self) -> bool:
        """Close a database that lost files, and save what only its log holds.

        Returns:
            False if that could not be saved because other processes kept reading the database.
        """
        is_saved = True
        if self.files:
            self.files.move_log_to_database()
            if self.files.has_only_copy_of_log:
                # The database file may only have been moved. SQLite does not copy the log into
                # such a file when it is closed.
                with suppress(sa.exc.SQLAlchemyError, sqlite3.Error):
                    is_saved = sqlite.copy_log_into_database(self.engine)
            # Before closing: afterwards another process's new log may have the same identity.
            self.files.remove_orphans()
        self.engine.dispose()
        return is_saved


def open_database(location: Location) -> OpenDatabase:
    """Open `location`, and create its schema or bring it up to date.

    Raises:
        ConfigError: The URL cannot be read.
        MissingExtraError: The PostgreSQL driver cannot be loaded.
        StoreError: The schema is newer than this package or belongs to another program, or another
            program keeps replacing the file.
        sqlalchemy.exc.SQLAlchemyError, sqlite3.Error, OSError: The database cannot be opened.
    """
    if location.path is None:
        return _prepare(_postgres_engine(location), location)
    for _ in range(_OPEN_ATTEMPTS):
        make_database_file(location.path)
        file = identity(location.path)
        database = _prepare(sqlite.new_engine(location.path), location)
        if database.files and database.files.database == file:
            return database
        database.engine.dispose()
    raise StoreError(
        f"cannot open the trace store at {location}: another program keeps replacing its file; "
        "stop that program, or give another path"
    )


@contextmanager
def write_transaction(engine: sa.Engine) -> Iterator[sa.Connection]:
    """Yield a connection in a write transaction: committed at the end, undone by an exception.

    Raises:
        sqlalchemy.exc.SQLAlchemyError, sqlite3.Error: The database cannot be written.
    """
    with engine.connect() as connection:
        connection = connection.execution_options(**{sqlite.IS_WRITE: True})
        with connection.begin():
            yield connection


def _prepare(engine: sa.Engine, location: Location) -> OpenDatabase:
    path = location.path
    try:
        if path:
            sqlite.use_write_ahead_log(engine)
        with engine.connect() as connection:
            version = schema_version.read_version(connection)
        if version != SCHEMA_VERSION:
            with write_transaction(engine) as connection, _migration_lock(connection):
                schema_version.bring_up_to_date(connection, location)
        files = OpenFiles(path) if path else None
    except BaseException:
        engine.dispose()
        raise
    if files:
        sa.event.listen(engine, "close", lambda *_: files.expect_new_log())
    return OpenDatabase(engine, files, is_new=version is None)


def _postgres_engine(location: Location) -> sa.Engine:
    try:
        from kp_langchain.store import postgres
    except ImportError as error:
        raise MissingExtraError(
            f"the psycopg driver cannot be loaded ({error}): pip install 'kp-langchain[postgres]'"
        ) from error
    return postgres.new_engine(location)


def _migration_lock(connection: sa.Connection) -> AbstractContextManager[None]:
    if connection.dialect.name != "postgresql":
        return nullcontext()  # a SQLite file has one writer at a time anyway
    from kp_langchain.store import postgres

    return postgres.migration_lock(connection)
