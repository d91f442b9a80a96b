"""Creates the tables, or upgrades those of an earlier version. Loads SQLAlchemy."""

from __future__ import annotations

from pathlib import Path

import sqlalchemy as sa

from kp_langchain._forksafe import ForkSafeLock
from kp_langchain._quiet_loggers import quiet_loggers
from kp_langchain.errors import StoreError
from kp_langchain.store.location import Location
from kp_langchain.store.tables import SCHEMA_VERSION, VERSION_TABLE, metadata

# Defined as Alembic defines it.
_VERSIONS = sa.Table(
    VERSION_TABLE,
    sa.MetaData(),
    sa.Column("version_num", sa.String(32), nullable=False),
    sa.PrimaryKeyConstraint("version_num", name=f"{VERSION_TABLE}_pkc"),
)
# Alembic has one context for the whole process.
_alembic_lock = ForkSafeLock()


def read_version(connection: sa.Connection) -> str | None:
    """Return the schema version of a database; None if it has none of our tables yet."""
    if not sa.inspect(connection).has_table(VERSION_TABLE):
        return None
    version: str | None = connection.scalar(sa.select(_VERSIONS.c.version_num))
    return version


def bring_up_to_date(connection: sa.Connection, location: Location) -> None:
    """Create the tables, or upgrade them to `SCHEMA_VERSION`.

    Args:
        connection: A write transaction in which no other process migrates.
        location: The database, for messages.

    Raises:
        StoreError: The schema is newer than this package or belongs to another program, or the
            upgrade failed.
    """
    version = read_version(connection)
    if version == SCHEMA_VERSION:
        return
    if version is None:
        _create(connection, location)
    elif version > SCHEMA_VERSION:
        raise StoreError(
            f"the trace store at {location} has schema version {version}, and this kp-langchain"
            f" knows versions up to {SCHEMA_VERSION}; upgrade it: pip install -U kp-langchain"
        )
    else:
        _upgrade(connection, location)


def _create(connection: sa.Connection, location: Location) -> None:
    inspector = sa.inspect(connection)
    for name in metadata.tables:
        if inspector.has_table(name):
            raise StoreError(
                f"the database at {location} has a table {name!r} that is not kp-langchain's; "
                "give it a database of its own"
            )
    # The tables that the migrations make, without the 0.1 s that Alembic takes to import.
    metadata.create_all(connection, checkfirst=False)
    _VERSIONS.create(connection)
    connection.execute(_VERSIONS.insert().values(version_num=SCHEMA_VERSION))


def _upgrade(connection: sa.Connection, location: Location) -> None:
    # Alembic logs its plugins and each step at INFO, which would fill the log of the host.
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
        with _alembic_lock:
            command.upgrade(config, "head")
    except CommandError as error:
        raise StoreError(
            f"the trace store at {location} cannot be brought to schema version {SCHEMA_VERSION}: "
            f"{error}; restore it from a backup, or give another database"
        ) from error
