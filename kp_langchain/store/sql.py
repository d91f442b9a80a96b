"""The modules that load SQLAlchemy, each imported on first use.

Other modules reach them only through this one: `from kp_langchain.store import sql`, then
`sql.run_queries`. So neither `import kp_langchain` nor making a store costs the 0.2 s that
SQLAlchemy takes to import.
"""

from __future__ import annotations

from contextlib import suppress
from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kp_langchain.store import confidence_models as confidence_models
    from kp_langchain.store import connections as connections
    from kp_langchain.store import deletion as deletion
    from kp_langchain.store import outbox_queries as outbox_queries
    from kp_langchain.store import pulled_queries as pulled_queries
    from kp_langchain.store import run_queries as run_queries
    from kp_langchain.store import side_tables as side_tables
    from kp_langchain.store import tables as tables
    from kp_langchain.store import vector_queries as vector_queries
else:  # hidden from type checkers, for which a misspelt module would otherwise exist

    def __getattr__(name: str) -> object:
        if name.startswith("_"):
            raise AttributeError(name)
        module = globals()[name] = import_module(f"kp_langchain.store.{name}")
        return module


def load(*, with_postgres: bool = False) -> None:
    """Import what a run needs. Call it ahead of time to keep the cost out of the first transaction.

    Args:
        with_postgres: Whether to import the PostgreSQL driver as well, if it is installed.
    """
    names = ["kp_langchain.store.deletion", "kp_langchain.store.connections"]
    with suppress(ImportError):  # the error for users comes when the database is opened
        for name in [*names, "psycopg"] if with_postgres else names:
            import_module(name)
