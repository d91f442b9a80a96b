"""The option `--database`, and the store that a command opens."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kp_langchain.errors import ConfigError, KPError, StoreError

if TYPE_CHECKING:
    from kp_langchain.store import TraceStore

Database = Annotated[
    str | None,
    typer.Option(help="Database URL or SQLite file; by default that of the settings."),
]


def open_store(database: str | None) -> TraceStore:
    """Return the store at `database`, or that of the settings.

    Raises:
        KPError: `database` names a file that does not exist, or the settings cannot be used.
    """
    from kp_langchain.config import Settings
    from kp_langchain.store import TraceStore

    store = TraceStore(database or Settings().database_url)
    # A mistyped file name must not create a database.
    if database and is_missing(store):
        raise KPError(f"there is no database at {store.location}; check --database")
    return store


def has_registry(store: TraceStore) -> bool:
    """Return whether runs that pass are contributed: a registry is configured, or was used before.

    Raises:
        StoreError: The store cannot be read.
    """
    from kp_langchain.config import Settings

    with suppress(ConfigError):  # --database works without settings
        if Settings().registry_url is not None:
            return True
    return any(store.outbox.counts().values())


def complete_summaries(store: TraceStore) -> None:
    """Have all runs of a store listed; while others write it, those that are listed already."""
    with suppress(StoreError):
        store.complete_summaries()


def is_missing(store: TraceStore) -> bool:
    """Return whether a store is a file that does not exist (yet)."""
    return "://" not in store.location and not Path(store.location).exists()
