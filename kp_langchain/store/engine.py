"""An open database of one of two kinds, and what its drivers' errors mean. Loads SQLAlchemy."""

from __future__ import annotations

import re
import sqlite3
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any, ClassVar

import sqlalchemy as sa
from sqlalchemy.exc import SQLAlchemyError

from kp_langchain.config import mask_password
from kp_langchain.errors import KPError, MissingExtraError, StoreError
from kp_langchain.store.location import Location
from kp_langchain.store.tables import (
    EARLIER_VERSION_TABLE,
    SCHEMA_VERSION,
    VERSION_TABLE,
    metadata,
)

IS_WRITE = "kp_is_write"
"""The execution option of a connection whose transaction is going to write."""

_FILE = "give a path in a folder you may write to"
_MISSING_SQLSTATES = ("42P01", "3F000")  # of a table, of a schema
_VERSIONS = sa.Table(
    VERSION_TABLE, sa.MetaData(), sa.Column("version", sa.String(), primary_key=True)
)


class OpenDatabase(ABC):
    """An open database, with its tables. What differs between the two kinds is in its subclasses.

    Args:
        location: Where it is.

    Attributes:
        engine: The SQLAlchemy engine, which holds its connections.
        is_new: Whether opening it created its tables.

    Raises:
        ConfigError: The URL cannot be read.
        StoreError: The schema has another version, or belongs to another program.
        sqlalchemy.exc.SQLAlchemyError, sqlite3.Error, OSError: The database cannot be opened.
    """

    CREATION_LOCK: ClassVar[sa.Select[Any] | None] = None
    """Keeps other processes from creating the tables until the transaction ends."""
    EXPLANATIONS: ClassVar[Mapping[str, str]]
    """Cause and remedy of a driver's error, by a pattern of its message in lower case."""

    def __init__(self, location: Location) -> None:
        self.engine = self._new_engine(location)
        try:
            with self.engine.connect() as connection:
                version = _read_version(connection)
            if version != SCHEMA_VERSION:
                with self.write_transaction() as connection:
                    if self.CREATION_LOCK is not None:
                        connection.execute(self.CREATION_LOCK)
                    _create_tables(connection, location)
        except BaseException:
            self.engine.dispose()
            raise
        self.is_new = version is None

    @contextmanager
    def write_transaction(self) -> Iterator[sa.Connection]:
        """Yield a connection in a write transaction: committed at the end, undone by an exception.

        Raises:
            sqlalchemy.exc.SQLAlchemyError, sqlite3.Error: The database cannot be written.
        """
        with self.engine.connect() as connection:
            connection = connection.execution_options(**{IS_WRITE: True})
            with connection.begin():
                yield connection

    def describe_file_loss(self) -> str | None:
        """Return what happened to its file, as a predicate ("was deleted"); None for nothing."""
        return None

    def abandon(self) -> None:
        """Close it after its file was lost."""
        self.engine.dispose()

    @abstractmethod
    def size_bytes(self) -> int:
        """Return the size of the database, the write-ahead log of a SQLite file included."""

    @abstractmethod
    def compact(self) -> bool:
        """Give back the room of deleted rows.

        Returns:
            False if other connections to a SQLite file kept what was deleted in its log.

        Raises:
            sqlalchemy.exc.SQLAlchemyError, sqlite3.Error: The database is busy, or has no room.
        """

    @abstractmethod
    def _new_engine(self, location: Location) -> sa.Engine:
        """Return an engine; nothing is connected yet."""


def kind_of(location: Location) -> type[OpenDatabase]:
    """Return the class of the database at a location.

    Raises:
        MissingExtraError: The PostgreSQL driver cannot be loaded.
    """
    # By name, because these modules import this one.
    if location.path is not None:
        return import_module("kp_langchain.store.sqlite").SqliteDatabase  # type: ignore[no-any-return]
    try:
        return import_module("kp_langchain.store.postgres").PostgresDatabase  # type: ignore[no-any-return]
    except ImportError as error:
        raise MissingExtraError(
            f"the psycopg driver cannot be loaded ({error}): pip install 'kp-langchain[postgres]'"
        ) from error


# ------------------------------------------------------------------ tables


def _read_version(connection: sa.Connection) -> str | None:
    """Return the schema version of a database; None if it has none of our tables yet."""
    inspector = sa.inspect(connection)
    if inspector.has_table(VERSION_TABLE):
        version: str | None = connection.scalar(sa.select(_VERSIONS.c.version))
        return version
    return "10" if inspector.has_table(EARLIER_VERSION_TABLE) else None


def _create_tables(connection: sa.Connection, location: Location) -> None:
    """Create the tables, unless another process has created them meanwhile."""
    version = _read_version(connection)
    if version == SCHEMA_VERSION:
        return
    if version is not None:
        is_newer = version.isdecimal() and int(version) > int(SCHEMA_VERSION)
        remedy = "upgrade it: pip install -U kp-langchain" if is_newer else "give another database"
        raise StoreError(
            f"the trace store at {location} has schema version {version}, and this kp-langchain "
            f"reads only version {SCHEMA_VERSION}; {remedy}"
        )
    inspector = sa.inspect(connection)
    for name in metadata.tables:
        if inspector.has_table(name):
            raise StoreError(
                f"the database at {location} has a table {name!r} that is not kp-langchain's; "
                "give it a database of its own"
            )
    metadata.create_all(connection, checkfirst=False)
    _VERSIONS.create(connection)
    connection.execute(_VERSIONS.insert().values(version=SCHEMA_VERSION))


# ------------------------------------------------------------------ errors


@contextmanager
def as_store_errors(location: Location, purpose: str) -> Iterator[None]:
    """Raise errors of the drivers and the file system as `StoreError`.

    Args:
        location: The database, for messages.
        purpose: What the block does with it: `open`, `read` or `write`.

    Raises:
        StoreError: A driver, or the file system, raised an error inside the block.
    """
    try:
        yield
    except KPError:
        raise
    except (SQLAlchemyError, sqlite3.Error, OSError, ValueError) as error:
        explanation = _explain(error, location)
        raise StoreError(
            f"cannot {purpose} the trace store at {location}: {explanation}"
        ) from error


def is_missing_table(error: Exception) -> bool:
    """Return whether `error` says that a table is missing."""
    original = getattr(error, "orig", None)
    return (
        "no such table" in str(original)
        or getattr(original, "sqlstate", None) in _MISSING_SQLSTATES
    )


def _explain(error: Exception, location: Location) -> str:
    """Return what an error means for the user of the store: the cause, and a remedy."""
    if isinstance(error, OSError) and location.path:
        return _explain_file_error(error, location.path)
    original = getattr(error, "orig", None) or error
    text = mask_password(str(original)).strip() or type(original).__name__
    cause = text.splitlines()[0]
    if isinstance(error, ValueError) and location.path:
        return f"{cause}; {_FILE}"
    if is_missing_table(error):
        return (
            f"a table is missing ({cause}); try again: if all tables are missing, they are "
            "created; otherwise restore the database from a backup"
        )
    for pattern, explanation in kind_of(location).EXPLANATIONS.items():
        if re.search(pattern, text.lower()):
            return explanation
    return f"{cause}; see the cause below"


def _explain_file_error(error: OSError, path: Path) -> str:
    if isinstance(error, IsADirectoryError):
        return f"it is a folder; give a file's path, such as {path / 'traces.db'}"
    where = error.filename or path
    if isinstance(error, FileExistsError | NotADirectoryError):
        return f"{where} lies in or is a file, not a folder; {_FILE}"
    return f"{where}: {error.strerror or error}; {_FILE}"
