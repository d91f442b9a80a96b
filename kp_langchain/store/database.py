"""Where a database is, `Location`, and the database itself, opened on first use: `Database`.

The parts of a store share it; what they have in common is `StorePart`. What they ask of it is in
the query modules, which `kp_langchain.store.sql` loads.
"""

from __future__ import annotations

import importlib.util
import logging
import time
import weakref
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kp_langchain._forksafe import ForkSafeLock, leave_in_child
from kp_langchain.config import Settings, data_dir, mask_password
from kp_langchain.errors import ConfigError, MissingExtraError
from kp_langchain.store import sql

if TYPE_CHECKING:
    import sqlalchemy as sa

log = logging.getLogger("kp_langchain")

_FILE_NAME = "traces.db"
_EXAMPLES = "give a file's path, sqlite:///path, or postgresql://user:password@host/database"
# How often a process that writes deletes expired bodies.
_DROP_EXPIRED_EVERY_S = 600.0


# ------------------------------------------------------------------ where it is


@dataclass(frozen=True, slots=True)
class Location:
    """The location of a database; exactly one of the two is set.

    Attributes:
        path: The absolute path of a SQLite file.
        url: A PostgreSQL URL, password included.
    """

    path: Path | None = None
    url: str | None = None

    def __str__(self) -> str:
        """Return the path or URL with the password masked, for messages."""
        return mask_password(self.url) if self.url else str(self.path)

    def __repr__(self) -> str:
        return f"Location({str(self)!r})"


def locate(url: object) -> Location:
    """Return the location that a database URL or path names.

    Args:
        url: A URL or path; None for `Settings.database_url`, or else a file in the data folder.

    Raises:
        ConfigError: `url` is neither a path nor a URL of a supported kind.
        MissingExtraError: `url` names a PostgreSQL database and the driver is not installed.
    """
    if url is None:
        url = Settings.current().database_url or data_dir() / _FILE_NAME
    if isinstance(url, Path):
        return _file(url)
    if not isinstance(url, str) or not url.strip():
        raise ConfigError(f"{url!r:.80} is not a database; {_EXAMPLES}")
    scheme, separator, rest = url.strip().partition("://")
    kind = scheme.lower().partition("+")[0]
    if kind == "sqlite" or not separator:
        return _file(_path_of(url, rest) if separator else url)
    if kind not in ("postgresql", "postgres"):
        raise ConfigError(f"databases of kind {scheme[:40]!r} are not supported; {_EXAMPLES}")
    if importlib.util.find_spec("psycopg") is None:
        raise MissingExtraError(
            "PostgreSQL needs the psycopg driver: pip install 'kp-langchain[postgres]'"
        )
    return Location(url=f"postgresql://{rest}")


def _path_of(url: str, rest: str) -> str:
    path = rest.removeprefix("/")
    if not path or path == rest or path.startswith("file:") or "?" in path:
        raise ConfigError(
            f"{url[:200]!r} does not name a file; write sqlite:///relative/path or "
            "sqlite:////absolute/path, without options"
        )
    return path


def _file(path: str | Path) -> Location:
    if str(path) == ":memory:":
        raise ConfigError("a store needs a file; to keep nothing, give the handler store=None")
    return Location(path=Path(path).expanduser().absolute())


# ------------------------------------------------------------------ what is there


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
        self._file: sql.connections.WatchedFile | None = None
        self._dispose: weakref.finalize[..., Any] | None = None
        self._expired_dropped_at = float("-inf")
        leave_in_child(self)

    def __repr__(self) -> str:
        return f"Database({str(self.location)!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        return (type(self), (self.location,))

    def open(self) -> sa.Engine:
        """Return the engine of the open database, after opening it if need be.

        Raises:
            ConfigError: The URL cannot be read.
            MissingExtraError: The PostgreSQL driver cannot be loaded.
            StoreError: The database cannot be opened.
        """
        with sql.connections.as_store_errors(self.location, "open"), self._lock:
            if self._engine is not None and self._file is not None and self._file.is_lost():
                self._warn_of_loss()
                self._file.remove_log_and_index()
                self._release()
            if self._engine is None:
                path = self.location.path
                file = self._file = None if path is None else sql.connections.WatchedFile(path)
                self._engine = sql.connections.new_engine(self.location)
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
            MissingExtraError: The PostgreSQL driver cannot be loaded.
            StoreError: The database cannot be opened or read.
        """
        with self._using("read") as engine, engine.connect() as connection:
            yield connection

    @contextmanager
    def writing(self) -> Iterator[sa.Connection]:
        """Yield a connection in a write transaction: committed at the end, undone by an exception.

        Every ten minutes it also deletes expired bodies.

        Raises:
            ConfigError: The URL cannot be read.
            MissingExtraError: The PostgreSQL driver cannot be loaded.
            StoreError: The database cannot be opened or written.
        """
        with (
            self._using("write") as engine,
            sql.connections.write_transaction(engine) as connection,
        ):
            yield connection
            now = time.monotonic()
            if now >= self._expired_dropped_at + _DROP_EXPIRED_EVERY_S:
                self._expired_dropped_at = now
                sql.run_queries.drop_expired_bodies(connection)

    def compact(self) -> bool:
        """Give back the room of deleted rows; SQLite writes the file anew, PostgreSQL vacuums.

        Returns:
            Whether no file has text of deleted rows any more. If not, other processes kept reading
            an earlier state of the file; it is complete when someone compacts it after them.

        Raises:
            StoreError: The database cannot be opened, has no room for it, or others kept writing.
        """
        with self._using("compact") as engine:
            return sql.connections.compact(engine)

    def load_drivers(self) -> None:
        """Import what the first use needs, which takes 0.2 s once a process; open nothing."""
        sql.load(with_postgres=self.location.path is None)

    def leave_to_parent(self) -> None:
        """Start without connections in a forked child; those inherited belong to the parent."""
        if self._dispose is not None:
            self._dispose.detach()
        if self._engine is not None:
            _inherited_engines.append(self._engine)
        self._engine = self._dispose = None

    @contextmanager
    def _using(self, purpose: str) -> Iterator[sa.Engine]:
        engine = self.open()
        with sql.connections.as_store_errors(self.location, purpose):
            yield engine

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

    def __repr__(self) -> str:
        return f"{type(self).__name__}({str(self._database.location)!r})"
