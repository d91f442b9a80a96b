"""The versions of the schema: what a database of an earlier one needs, and who may use it.

Processes of two releases use one database while a fleet is upgraded. So the tables first only grow
("expand"): a new column may be null or has a default in the database, and a new table may be
empty, so that a process of the release before reads and writes on as it did. What nobody uses any
more goes a release later ("contract").
Source: M. Fowler and D. Sato, "Parallel Change", https://martinfowler.com/bliki/ParallelChange.html
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import sqlalchemy as sa

from kp_langchain.errors import StoreError
from kp_langchain.store.tables import metadata, vectors

FIRST_VERSION: Final = 27
"""Databases of earlier versions are refused."""


@dataclass(frozen=True, slots=True)
class Migration:
    """What makes a database of one version one of the next.

    Attributes:
        about: What changes, in a few words.
        run: Changes the tables, within a write transaction. It must end within 30 s, and must not
            keep others from reading or writing for long: so it fills no column of existing rows.
        oldest: The oldest version of which a process may use the database from then on. One that
            only grows keeps that of the migration before.
    """

    about: str
    run: Callable[[sa.Connection], None]
    oldest: int = FIRST_VERSION


MIGRATIONS: tuple[Migration, ...] = ()
"""From `FIRST_VERSION` to the one after, and so on. One that was released never changes."""

_versions = sa.Table(
    "kp_schema",
    sa.MetaData(),
    sa.Column("version", sa.String(), primary_key=True),
    sa.Column("oldest", sa.String()),
)


def schema_version() -> int:
    """Return the version of the tables that this package uses."""
    return FIRST_VERSION + len(MIGRATIONS)


def stored_version(connection: sa.Connection) -> int | None:
    """Return the version of a database; None if it has none of our tables yet."""
    if not sa.inspect(connection).has_table(_versions.name):
        return None
    return int(connection.scalar(sa.select(_versions.c.version)) or 0)


def is_usable(connection: sa.Connection, version: int, location: object) -> bool:
    """Return whether this process may use a database as it is; False if it must be migrated.

    Args:
        connection: A connection to the database.
        version: Its version.
        location: The database, for messages.

    Raises:
        StoreError: It can neither be used nor be migrated.
    """
    own = schema_version()
    if FIRST_VERSION <= version <= own:
        return version == own
    oldest = version
    if version > own:
        oldest = int(connection.scalar(sa.select(_versions.c.oldest)) or version)
    if FIRST_VERSION <= oldest <= own:
        return True
    which = str(own) if own == FIRST_VERSION else f"{FIRST_VERSION} to {own}"
    raise StoreError(
        f"the trace store at {location} has schema version {version}, and this kp-langchain uses "
        f"version {which}; give another database, or install the version of kp-langchain that "
        "wrote it"
    )


def migrate(connection: sa.Connection, version: int | None) -> None:
    """Create the tables, or bring those of an earlier version up to this one.

    Args:
        connection: A write transaction in which no other process does the same.
        version: The version of the database; None if it has no tables.
    """
    oldest = max((one.oldest for one in MIGRATIONS), default=FIRST_VERSION)
    versions = {"version": str(schema_version()), "oldest": str(oldest)}
    if version is None:
        # Unchecked, so that a table of this name which is not ours is an error.
        metadata.create_all(connection, checkfirst=False)
        _versions.create(connection)
        connection.execute(_versions.insert().values(versions))
        return
    for migration in MIGRATIONS[version - FIRST_VERSION :]:
        migration.run(connection)
    connection.execute(_versions.update().values(versions))


# ------------------------------------------------------------------ restored backups


def has_foreign_changes(connection: sa.Connection) -> bool:
    """Return whether a PostgreSQL database was restored from another server's.

    That one counted its transactions for itself, so a change of it may seem to come later.
    """
    return any(
        connection.scalar(sa.select(vectors.c.number).where(one).limit(1)) for one in _FOREIGN
    )


def forget_foreign_changes(connection: sa.Connection) -> None:
    """Take back the numbers of another server's changes, within a write transaction."""
    for is_foreign in _FOREIGN:
        connection.execute(sa.update(vectors).where(is_foreign).values(change=0))


_XMAX: sa.ColumnElement[int] = sa.literal_column(
    "pg_snapshot_xmax(pg_current_snapshot())::text::bigint"
)
_FOREIGN = [
    sa.and_(vectors.c.kind == kind, vectors.c.change >= _XMAX) for kind in ("run", "memory", "task")
]  # by an index
