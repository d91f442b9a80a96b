"""The modules that load SQLAlchemy, imported together on first use.

Other modules reach them only through this one: `from kp_langchain.store import sql`, then
`sql.run_queries`. So neither `import kp_langchain` nor making a store costs the 0.2 s that
SQLAlchemy takes to import.
"""

from __future__ import annotations

from contextlib import suppress
from importlib import import_module
from typing import TYPE_CHECKING

__all__ = [
    "deletion_queries",
    "driver_errors",
    "engine",
    "entry_queries",
    "external_queries",
    "journal_queries",
    "outbox_queries",
    "paused_queries",
    "pulled_queries",
    "recall_queries",
    "remembered_queries",
    "run_conditions",
    "run_queries",
    "shown_queries",
    "sole_sender",
    "tables",
    "verdict_queries",
]

if TYPE_CHECKING:
    from kp_langchain.store import (
        deletion_queries,
        driver_errors,
        engine,
        entry_queries,
        external_queries,
        journal_queries,
        outbox_queries,
        paused_queries,
        pulled_queries,
        recall_queries,
        remembered_queries,
        run_conditions,
        run_queries,
        shown_queries,
        sole_sender,
        tables,
        verdict_queries,
    )
else:  # hidden from type checkers, for which a misspelt module would otherwise exist

    def __getattr__(name: str) -> object:
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        load()
        return globals()[name]


def load(*, with_postgres: bool = False) -> None:
    """Import the modules. Call it ahead of time to keep the cost out of the first transaction.

    Args:
        with_postgres: Whether to import the PostgreSQL driver as well, if it is installed.
    """
    for name in __all__:
        globals()[name] = import_module(f"kp_langchain.store.{name}")
    if with_postgres:
        with suppress(ImportError):  # the error for users comes when the database is opened
            import_module("kp_langchain.store.postgres")
