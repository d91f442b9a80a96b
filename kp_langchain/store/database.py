"""`Database`: one SQLite file or PostgreSQL database, opened on first use.

The parts of a store share it; `StorePart` is what they have in common.
"""

from __future__ import annotations

import logging
import weakref
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import sqlalchemy as sa

from kp_langchain._forksafe import ForkSafeLock, leave_in_child
from kp_langchain.store.connections import (
    WatchedFile,
    as_store_errors,
    new_engine,
    write_transaction,
)
from kp_langchain.store.location import Location

log = logging.getLogger("kp_langchain")


class Database:
    """The connections, schema and locks of one database. Safe to use from several threads.

    Its first use opens it, which creates the database if need be. It is opened again after
    `close`, in a forked child, and when its file is gone. A copy of it, also a pickled
    one, is the same database, not opened yet.

    Args:
        location: Where the database is.

    Attributes:
        location: Where the database is.
    """

    def __init__(self, location: Location) -> None:
        self.location = location
        self._lock = ForkSafeLock()
        self._engine: sa.Engine | None = None
        self._file: WatchedFile | None = None
        self._dispose: weakref.finalize[..., Any] | None = None
        leave_in_child(self)

    def __repr__(self) -> str:
        return f"Database({str(self.location)!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        return (type(self), (self.location,))

    def open(self) -> sa.Engine:
        """Return the engine of the open database, after opening it if need be.

        Raises:
            ConfigError: The URL cannot be read.
            StoreError: The database cannot be opened.
        """
        with as_store_errors(self.location, "open"), self._lock:
            if self._engine is not None and self._file is not None and self._file.is_lost():
                self._warn_of_loss()
                self._file.remove_log_and_index()
                self._release()
            if self._engine is None:
                path = self.location.path
                file = self._file = None if path is None else WatchedFile(path)
                self._engine = new_engine(self.location)
                self._dispose = weakref.finalize(self, self._engine.dispose)
                if file is not None:
                    file.note_log_and_index()
            return self._engine

    def close(self) -> None:
        """Release the connections. The next use opens the database again."""
        with self._lock:
            self._release()

    @contextmanager
    def reading(self) -> Iterator[sa.Connection]:
        """Yield a connection to read with.

        Raises:
            ConfigError: The URL cannot be read.
            StoreError: The database cannot be opened or read.
        """
        with self.using("read") as engine, engine.connect() as connection:
            yield connection

    @contextmanager
    def writing(self) -> Iterator[sa.Connection]:
        """Yield a connection in a write transaction: committed at the end, undone by an exception.

        Raises:
            ConfigError: The URL cannot be read.
            StoreError: The database cannot be opened or written.
        """
        with self.using("write") as engine, write_transaction(engine) as connection:
            yield connection

    @contextmanager
    def using(self, purpose: str) -> Iterator[sa.Engine]:
        """Yield the engine; errors of the drivers become `StoreError`.

        Args:
            purpose: What the block does with the database: `read`, `write` or `compact`.
        """
        engine = self.open()
        with as_store_errors(self.location, purpose):
            yield engine

    def leave_to_parent(self) -> None:
        """Start without connections in a forked child; those inherited belong to the parent."""
        if self._dispose is not None:
            self._dispose.detach()
        if self._engine is not None:
            _inherited_engines.append(self._engine)
        self._engine = self._dispose = None

    def _warn_of_loss(self) -> None:
        with suppress(Exception):  # a handler or filter of the host's
            log.warning(
                "the file of the trace store at %s was deleted, moved or replaced while it was in "
                "use; it is reopened or recreated, and data may be missing",
                self.location,
            )

    def _release(self) -> None:
        if self._dispose is not None:
            self._dispose()
        self._engine = self._dispose = None


# Engines of the parent process. SQLite forbids even closing a connection on the other side of a
# fork, so they are kept here for good instead of being disposed of.
_inherited_engines: list[sa.Engine] = []


class StorePart:
    """A part of a store. Got from `TraceStore`.

    Every method raises `StoreError` when the database cannot be opened, read or written.

    Args:
        database: The database of the store.
    """

    def __init__(self, database: Database) -> None:
        self._database = database
