"""The database that a command looks at."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Optional

import typer

from kp_langchain.errors import ConfigError, KPError

if TYPE_CHECKING:
    from kp_langchain.store import TraceStore

Database = Annotated[
    Optional[str],  # noqa: UP045 - typer reads it at run time
    typer.Option(help="Database URL or SQLite file; by default the one of the settings."),
]


def open_store(database: str | None) -> TraceStore:
    """Return the store at `database`, or the one of the settings.

    Raises:
        KPError: It was named, and there is none.
    """
    from kp_langchain.config import Settings
    from kp_langchain.store import TraceStore

    store = TraceStore(database or Settings().database_url)
    # Looking at a database that is not there must not make one.
    if database and is_missing(store):
        raise KPError(f"there is no database at {store.location}; check --database")
    return store


def has_registry(store: TraceStore) -> bool:
    """Return whether what passes is contributed: a registry is set, or the store has sent to one.

    Raises:
        StoreError: The store cannot be read.
    """
    from kp_langchain.config import Settings

    with suppress(ConfigError):  # --database works without settings
        if Settings().registry_url is not None:
            return True
    return any(store.outbox.counts().values())


def is_missing(store: TraceStore) -> bool:
    """Tell whether a store is a file that is not there (yet)."""
    return "://" not in store.location and not Path(store.location).exists()
