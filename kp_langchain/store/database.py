"""`Database`: one SQLite file or PostgreSQL database, opened on first use.

`TraceStore`, `Journal`, `Outbox`, `ConfidenceModels` and `PausedRuns` each hold one. What they ask
of it is in the query modules, which `kp_langchain.store.sql` loads.
"""

from __future__ import annotations

import logging
import time
import weakref
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kp_langchain._forksafe import ForkSafeLock, leave_in_child
from kp_langchain.errors import StoreError
from kp_langchain.store import sql

if TYPE_CHECKING:
    import sqlalchemy as sa

    from kp_langchain.store.engine import OpenDatabase
    from kp_langchain.store.location import Location

log = logging.getLogger("kp_langchain")

# How often a process that writes deletes expired bodies.
_DROP_EXPIRED_EVERY_S = 600.0


@dataclass(frozen=True, slots=True)
class Compaction:
    """What giving back the room of deleted rows achieved.

    Attributes:
        bytes_before: The size of the database before, its write-ahead log included.
        bytes_after: The size afterwards.
        is_complete: Whether no file has text of deleted rows any more. If False, other processes
            kept reading an earlier state of the file; it is complete when they have ended and
            someone compacts it again.
    """

    bytes_before: int
    bytes_after: int
    is_complete: bool


class Database:
    """The connections, schema and locks of one database. Safe to use from several threads.

    Its first use opens it, which creates the database if need be. It is opened again after
    `close`, in a forked child, and when its files or tables are gone. A copy of it, also a pickled
    one, is the same database, not opened yet.

    Args:
        location: Where the database is.

    Attributes:
        location: Where the database is.
    """

    def __init__(self, location: Location) -> None:
        self.location = location
        self._lock = ForkSafeLock()
        self._open_database: OpenDatabase | None = None
        self._dispose: weakref.finalize[..., Any] | None = None
        self._was_open = False
        self._expired_dropped_at = float("-inf")
        leave_in_child(self)

    def __repr__(self) -> str:
        return f"Database({str(self.location)!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        return (type(self), (self.location,))

    def open(self) -> OpenDatabase:
        """Return the open database, after opening it if need be.

        Raises:
            ConfigError: The URL cannot be read.
            MissingExtraError: The PostgreSQL driver cannot be loaded.
            StoreError: The database cannot be opened.
        """
        with sql.engine.as_store_errors(self.location, "open"), self._lock:
            if self._open_database is not None:
                self._abandon_if_files_lost(self._open_database)
            if self._open_database is None:
                database = self._open_database = sql.engine.kind_of(self.location)(self.location)
                self._dispose = weakref.finalize(self, database.engine.dispose)
                if database.is_new and self._was_open:
                    self._warn("lost its tables; their data is lost, and new ones are created")
                self._was_open = True
            return self._open_database

    def close(self) -> None:
        """Release the connections. The next use opens the database again."""
        with self._lock:
            self._release()
            self._was_open = False

    @contextmanager
    def reading(self) -> Iterator[sa.Connection]:
        """Yield a connection to read with.

        Raises:
            ConfigError: The URL cannot be read.
            MissingExtraError: The PostgreSQL driver cannot be loaded.
            StoreError: The database cannot be opened or read.
        """
        with self._using("read") as database, database.engine.connect() as connection:
            yield connection

    @contextmanager
    def writing(self) -> Iterator[sa.Connection]:
        """Yield a connection in a write transaction: committed at the end, undone by an exception.

        Every ten minutes it also deletes expired bodies.

        Raises:
            ConfigError: The URL cannot be read.
            MissingExtraError: The PostgreSQL driver cannot be loaded.
            StoreError: The database cannot be opened or written, or its files were lost meanwhile.
        """
        with self._using("write") as database:
            with database.write_transaction() as connection:
                yield connection
                self._drop_expired_bodies(connection)
            loss = database.describe_file_loss()
            if loss is not None:
                raise StoreError(
                    f"cannot write the trace store at {self.location}: while it was written to, it"
                    f" {loss}; write it again"
                )

    def compact(self) -> Compaction:
        """Give back the room of deleted rows; SQLite writes the file anew, PostgreSQL vacuums.

        Raises:
            StoreError: The database cannot be opened, has no room for it, or others kept writing.
        """
        with self._using("compact") as database:
            before = database.size_bytes()
            is_complete = database.compact()
            return Compaction(before, database.size_bytes(), is_complete)

    def has_lost_files(self) -> bool:
        """Return whether it is open, and its files were deleted, moved or replaced since."""
        database = self._open_database
        return database is not None and database.describe_file_loss() is not None

    def load_drivers(self) -> None:
        """Import what the first use needs, which takes 0.2 s once a process; open nothing."""
        sql.load(with_postgres=self.location.path is None)

    def leave_to_parent(self) -> None:
        """Start without connections in a forked child; those inherited belong to the parent."""
        if self._dispose is not None:
            self._dispose.detach()
        if self._open_database is not None:
            _inherited_engines.append(self._open_database.engine)
        self._open_database = self._dispose = None

    @contextmanager
    def _using(self, purpose: str) -> Iterator[OpenDatabase]:
        database = self.open()
        with sql.engine.as_store_errors(self.location, purpose):
            try:
                yield database
            except Exception as error:
                if sql.engine.is_missing_table(error):
                    with self._lock:
                        if self._open_database is database:
                            self._release()  # opening it again creates the tables, if all are gone
                raise

    def _abandon_if_files_lost(self, database: OpenDatabase) -> None:
        loss = database.describe_file_loss()
        if loss is None:
            return
        self._warn(f"{loss}; it is reopened or recreated, and data may be missing")
        database.abandon()
        self._release()
        self._was_open = False

    def _release(self) -> None:
        if self._dispose is not None:
            self._dispose()
        self._open_database = self._dispose = None

    def _warn(self, event: str) -> None:
        with suppress(Exception):  # a handler or filter of the host's
            log.warning("the trace store at %s was in use when it %s", self.location, event)

    def _drop_expired_bodies(self, connection: sa.Connection) -> None:
        now = time.monotonic()
        if now < self._expired_dropped_at + _DROP_EXPIRED_EVERY_S:
            return
        self._expired_dropped_at = now
        queries = sql.run_queries
        if queries.drop_expired_bodies(connection) >= queries.MOST_EXPIRED_AT_ONCE:
            self._expired_dropped_at = float("-inf")  # more are left for the next transaction


# Engines of the parent process. SQLite forbids even closing a connection on the other side of a
# fork, so they are kept here for good instead of being disposed of.
_inherited_engines: list[sa.Engine] = []


# ------------------------------------------------------------------ where it is
