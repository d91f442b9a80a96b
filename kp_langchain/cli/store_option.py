"""The option `--database`, and the store that a command opens."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kp_langchain.errors import KPError

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


def is_missing(store: TraceStore) -> bool:
    """Return whether a store is a file that does not exist (yet)."""
    return "://" not in store.location and not Path(store.location).exists()
