"""Opens the database behind a store: connections, transactions, schema. Loads SQLAlchemy."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from kp_langchain._forksafe import ForkSafeLock, allow_forks
from kp_langchain._quiet_loggers import quiet_loggers
from kp_langchain.errors import MissingExtraError, StoreError
from kp_langchain.store.files import OpenFiles, identity, make_database_file
from kp_langchain.store.location import Location
from kp_langchain.store.rows import dumps
from kp_langchain.store.tables import SCHEMA_VERSION, VERSION_TABLE, metadata

_BUSY_TIMEOUT_S = 10
_LOOK_AGAIN_S = 0.01
_WAL_ATTEMPTS = 20
_OPEN_ATTEMPTS = 5
_MIGRATION_LOCK = 0x6B705F6C63  # any number, the same in every version of this package
_WRITES = "kp_writes"
# Alembic's context is one for the whole process.
_upgrading = ForkSafeLock()

# As Alembic makes it.
_VERSIONS = sa.Table(
    VERSION_TABLE,
    sa.MetaData(),
    sa.Column("version_num", sa.String(32), nullable=False),
    sa.PrimaryKeyConstraint("version_num", name=f"{VERSION_TABLE}_pkc"),
)


@dataclass(frozen=True, slots=True)
class Database:
    """An open database.

    Args:
        engine: Its connections.
        files: Its files, if it is a SQLite database.
        is_new: Whether its tables were created just now.
    """

    engine: sa.Engine
    files: OpenFiles | None
    is_new: bool

    def what_is_gone(self) -> str | None:
        """Return what happened to its files, as part of a sentence; None if nothing did."""
        return self.files.what_is_gone() if self.files else None

    def abandon(self) -> bool:
        """Close what `what_is_gone` tells of, and save what only its log holds.

        Returns:
            False if that cannot be saved, because somebody reads the database all the time.
        """
        saved = True
        if self.files:
            self.files.take_log_along()
            if self.files.log_is_lost_otherwise:
                # Its file may only have been moved. Closing does not do this for such a file.
                with (
                    suppress(sa.exc.SQLAlchemyError, sqlite3.Error),
                    _driver(self.engine) as driver,
                ):
                    saved = _copy_from_log(driver)
            # Before they are closed: afterwards another process's new log may have their identity.
            self.files.remove_orphans()
        self.engine.dispose()
        return saved


def open_database(location: Location) -> Database:
    """Open `location`, its schema created or brought up to date.

    Raises:
        ConfigError: The URL cannot be read.
        MissingExtraError: The PostgreSQL driver cannot be loaded.
        StoreError: The schema is newer than this package, or not ours.
        sqlalchemy.exc.SQLAlchemyError, sqlite3.Error, OSError: The database cannot be opened.
    """
    if location.path is None:
        return _opened(_postgres_engine(location), location, None)
    for _ in range(_OPEN_ATTEMPTS):
        make_database_file(location.path)
        before = identity(location.path)
        database = _opened(_sqlite_engine(location.path), location, location.path)
        if database.files and database.files.database == before:
            return database
        database.engine.dispose()
    raise StoreError(
        f"cannot open the trace store at {location}: its file is replaced all the time; end what "
        "does that, or give another path"
    )


def _opened(engine: sa.Engine, location: Location, path: Path | None) -> Database:
    try:
        if path:
            _use_wal(engine)
        with engine.connect() as connection:
            version = _version(connection)
        if version != SCHEMA_VERSION:
            _migrate(engine, location)
        files = OpenFiles(path) if path else None
    except BaseException:
        engine.dispose()
        raise
    if files:
        sa.event.listen(engine, "close", lambda *_: files.expect_new_log())
    return Database(engine, files, is_new=version is None)


@contextmanager
def writing(engine: sa.Engine) -> Iterator[sa.Connection]:
    """One write transaction: committed at the end, undone by an exception."""
    with engine.connect() as connection:
        connection = connection.execution_options(**{_WRITES: True})
        with connection.begin():
            yield connection


def _sqlite_engine(path: Path) -> sa.Engine:
    engine = sa.create_engine(
        sa.URL.create("sqlite", database=str(path)),
        # Only the file that was made for it: one deleted meanwhile is not made again in passing.
        creator=lambda: sqlite3.connect(
            f"{path.as_uri()}?mode=rw", uri=True, timeout=_BUSY_TIMEOUT_S, check_same_thread=False
        ),
        json_serializer=dumps,
        hide_parameters=True,
    )

    @sa.event.listens_for(engine, "connect")
    def on_connect(connection: Any, _record: object) -> None:
        # The driver must not begin transactions of its own: it only knows deferred ones.
        connection.isolation_level = None
        connection.execute("PRAGMA synchronous=NORMAL")
        connection.execute("PRAGMA foreign_keys=ON")
        # A body whose time is over is to be gone from the file, too; not every build does so.
        connection.execute("PRAGMA secure_delete=ON")

    @sa.event.listens_for(engine, "begin")
    def on_begin(connection: sa.Connection) -> None:
        # A deferred transaction that turns into a writing one can fail at once instead of waiting.
        writes = connection.get_execution_options().get(_WRITES, False)
        if writes:
            _begin_writing(connection.connection.dbapi_connection)
        else:
            connection.exec_driver_sql("BEGIN")

    return engine


def _begin_writing(driver: Any) -> None:
    """Begin a transaction as soon as nobody else writes."""
    # Waited for here, because a fork would have to await the end of SQLite's own waiting.
    until = time.monotonic() + _BUSY_TIMEOUT_S
    driver.execute("PRAGMA busy_timeout = 0")
    try:
        while True:
            try:
                driver.execute("BEGIN IMMEDIATE")
            except sqlite3.OperationalError as error:
                left_s = until - time.monotonic()
                if "locked" not in str(error) or left_s <= 0:
                    raise
                with allow_forks():
                    time.sleep(min(_LOOK_AGAIN_S, left_s))
            else:
                return
    finally:
        driver.execute(f"PRAGMA busy_timeout = {round(_BUSY_TIMEOUT_S * 1000)}")


def _copy_from_log(driver: Any) -> bool:
    """Bring what the log holds into the database; False if others are at it for too long."""
    until = time.monotonic() + _BUSY_TIMEOUT_S
    while True:
        # Waits for those who read or write the database, and not for those who do the same.
        busy, *_ = driver.execute("PRAGMA wal_checkpoint(FULL)").fetchone()
        if not busy:
            return True
        if time.monotonic() >= until:
            return False
        with allow_forks():
            time.sleep(_LOOK_AGAIN_S)


@contextmanager
def _driver(engine: sa.Engine) -> Iterator[Any]:
    """Yield a cursor of the driver, outside of any transaction."""
    connection = engine.raw_connection()
    try:
        yield connection.cursor()
    finally:
        connection.close()


def _use_wal(engine: sa.Engine) -> None:
    """Switch the file to write-ahead logging; it stays so."""
    with _driver(engine) as driver:
        for attempt in range(1, _WAL_ATTEMPTS + 1):
            try:
                driver.execute("PRAGMA journal_mode=WAL")
                break
            except sqlite3.OperationalError as error:
                # While another process writes, this does not wait as BEGIN does.
                if "locked" not in str(error) or attempt == _WAL_ATTEMPTS:
                    raise
                driver.execute("BEGIN IMMEDIATE")
                driver.execute("ROLLBACK")


def _postgres_engine(location: Location) -> sa.Engine:
    try:
        from kp_langchain.store import postgres
    except ImportError as error:
        raise MissingExtraError(
            f"the psycopg driver cannot be loaded ({error}): pip install 'kp-langchain[postgres]'"
        ) from error
    return postgres.new_engine(location)


def _version(connection: sa.Connection) -> str | None:
    if not sa.inspect(connection).has_table(VERSION_TABLE):
        return None
    version: str | None = connection.scalar(sa.select(_VERSIONS.c.version_num))
    return version


def _migrate(engine: sa.Engine, location: Location) -> None:
    with writing(engine) as connection, _alone(connection):
        # Asked again now that nobody else can be at it.
        version = _version(connection)
        if version == SCHEMA_VERSION:
            return
        if version is not None and version > SCHEMA_VERSION:
            raise StoreError(
                f"the trace store at {location} has schema version {version}, and this kp-langchain"
                f" knows versions up to {SCHEMA_VERSION}; upgrade it: pip install -U kp-langchain"
            )
        if version is not None:
            _upgrade(connection, location)
            return
        known = sa.inspect(connection)
        for name in metadata.tables:
            if known.has_table(name):
                raise StoreError(
                    f"the database at {location} has a table {name!r} that is not kp-langchain's; "
                    "give it a database of its own"
                )
        # The same tables as the migrations make, without the 0.1 s that Alembic takes to import.
        metadata.create_all(connection, checkfirst=False)
        _VERSIONS.create(connection)
        connection.execute(_VERSIONS.insert().values(version_num=SCHEMA_VERSION))


@contextmanager
def _alone(connection: sa.Connection) -> Iterator[None]:
    """A block in which nobody else migrates; a SQLite file has one writer anyway."""
    if connection.dialect.name != "postgresql":
        yield
        return
    from kp_langchain.store import postgres

    connection.execute(sa.select(sa.func.pg_advisory_xact_lock(_MIGRATION_LOCK)))
    with postgres.time_for_migration(connection):
        yield


def _upgrade(connection: sa.Connection, location: Location) -> None:
    # It logs at INFO what it is made of when it is imported, and each step that it takes.
    with quiet_loggers("alembic.runtime.migration", "alembic.runtime.plugins"):
        _run_alembic(connection, location)


def _run_alembic(connection: sa.Connection, location: Location) -> None:
    from alembic import command
    from alembic.config import Config
    from alembic.util import CommandError

    config = Config(attributes={"connection": connection})
    scripts = Path(__file__).parent / "migrations"
    config.set_main_option("script_location", str(scripts).replace("%", "%%"))
    try:
        with _upgrading:
            command.upgrade(config, "head")
    except CommandError as error:
        raise StoreError(
            f"the trace store at {location} cannot be brought to schema version {SCHEMA_VERSION}: "
            f"{error}; restore it from a copy, or give another database"
        ) from error
