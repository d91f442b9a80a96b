"""Opens the database behind a store: connections, transactions, schema. Loads SQLAlchemy."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import make_url
from sqlalchemy.exc import ArgumentError

from kp_langchain._forksafe import ForkSafeLock
from kp_langchain.errors import ConfigError, MissingExtraError, StoreError
from kp_langchain.store.files import make_private
from kp_langchain.store.location import Location
from kp_langchain.store.rows import dumps
from kp_langchain.store.tables import SCHEMA_VERSION, VERSION_TABLE

_BUSY_TIMEOUT_S = 10
_CONNECT_TIMEOUT_S = 10
_WAL_ATTEMPTS = 20
_MIGRATION_LOCK = 0x6B705F6C63  # any number, the same in every version of this package
_WRITES = "kp_writes"
# Alembic's context is one for the whole process.
_upgrading = ForkSafeLock()

_SCHEMA = sa.table(VERSION_TABLE, sa.column("version_num", sa.String))


def open_engine(location: Location) -> sa.Engine:
    """Return an engine on `location`, its schema created or brought up to date.

    Raises:
        ConfigError: The URL cannot be read.
        MissingExtraError: The PostgreSQL driver cannot be loaded.
        StoreError: The schema is newer than this package, or not ours.
        sqlalchemy.exc.SQLAlchemyError, sqlite3.Error, OSError: The database cannot be opened.
    """
    engine = _sqlite_engine(location.path) if location.path else _postgres_engine(location)
    try:
        if location.path:
            _use_wal(engine)
        with engine.connect() as connection:
            version = _version(connection)
        if version != SCHEMA_VERSION:
            _migrate(engine, location)
    except BaseException:
        engine.dispose()
        raise
    return engine


@contextmanager
def writing(engine: sa.Engine) -> Iterator[sa.Connection]:
    """One write transaction: committed at the end, undone by an exception."""
    with engine.connect() as connection:
        connection = connection.execution_options(**{_WRITES: True})
        with connection.begin():
            yield connection


def _sqlite_engine(path: Path) -> sa.Engine:
    make_private(path)  # SQLite gives -wal and -shm the same permissions
    engine = sa.create_engine(
        sa.URL.create("sqlite", database=str(path)),
        connect_args={"timeout": _BUSY_TIMEOUT_S},
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
        connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")

    return engine


def _use_wal(engine: sa.Engine) -> None:
    """Switch the file to write-ahead logging; it stays so."""
    connection = engine.raw_connection()
    try:
        driver = connection.cursor()
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
    finally:
        connection.close()


def _postgres_engine(location: Location) -> sa.Engine:
    try:
        url = make_url(location.url or "").set(drivername="postgresql+psycopg")
    except (ArgumentError, ValueError):
        # Without the cause, which may quote the password.
        url = None
    if url is None:
        raise ConfigError(
            f"{location} is not a URL that can be read; write postgresql://user:password@host/"
            "database, with special characters in the password percent-encoded"
        )
    waits = {} if "connect_timeout" in url.query else {"connect_timeout": _CONNECT_TIMEOUT_S}
    try:
        return sa.create_engine(
            url,
            connect_args=waits,
            json_serializer=dumps,
            hide_parameters=True,
            pool_pre_ping=True,
        )
    except ImportError as error:
        raise MissingExtraError(
            f"the psycopg driver cannot be loaded ({error}): pip install 'kp-langchain[postgres]'"
        ) from error


def _version(connection: sa.Connection) -> str | None:
    if not sa.inspect(connection).has_table(VERSION_TABLE):
        return None
    version: str | None = connection.scalar(sa.select(_SCHEMA.c.version_num))
    return version


def _migrate(engine: sa.Engine, location: Location) -> None:
    with writing(engine) as connection:
        if connection.dialect.name == "postgresql":
            connection.execute(sa.text(f"SET LOCAL lock_timeout = '{_BUSY_TIMEOUT_S}s'"))
            connection.execute(sa.select(sa.func.pg_advisory_xact_lock(_MIGRATION_LOCK)))
        # Asked again now that nobody else can be at it.
        version = _version(connection)
        if version == SCHEMA_VERSION:
            return
        if version is not None and version > SCHEMA_VERSION:
            raise StoreError(
                f"the trace store at {location} has schema version {version}, and this kp-langchain"
                f" knows versions up to {SCHEMA_VERSION}; upgrade it: pip install -U kp-langchain"
            )
        if version is None and sa.inspect(connection).has_table("runs"):
            raise StoreError(
                f"the database at {location} has a table 'runs' that is not kp-langchain's; "
                "give it a database of its own"
            )
        _upgrade(connection, location)


def _upgrade(connection: sa.Connection, location: Location) -> None:
    # Alembic costs about 0.3 s to import, so a database that is up to date never gets here.
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
