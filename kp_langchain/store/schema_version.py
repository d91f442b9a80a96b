"""Creates the tables, or refuses those of another version. Loads SQLAlchemy."""

from __future__ import annotations

import sqlalchemy as sa

from kp_langchain.errors import StoreError
from kp_langchain.store.location import Location
from kp_langchain.store.tables import (
    EARLIER_VERSION_TABLE,
    SCHEMA_VERSION,
    VERSION_TABLE,
    metadata,
)

_VERSIONS = sa.Table(
    VERSION_TABLE, sa.MetaData(), sa.Column("version", sa.String(), primary_key=True)
)


def read_version(connection: sa.Connection) -> str | None:
    """Return the schema version of a database; None if it has none of our tables yet."""
    inspector = sa.inspect(connection)
    if inspector.has_table(VERSION_TABLE):
        version: str | None = connection.scalar(sa.select(_VERSIONS.c.version))
        return version
    return "10" if inspector.has_table(EARLIER_VERSION_TABLE) else None


def bring_up_to_date(connection: sa.Connection, location: Location) -> None:
    """Create the tables, unless they are there.

    Args:
        connection: A write transaction in which no other process does so.
        location: The database, for messages.

    Raises:
        StoreError: The schema has another version, or belongs to another program.
    """
    version = read_version(connection)
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
