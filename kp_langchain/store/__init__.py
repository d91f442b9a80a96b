"""The durable side: every scored run with its breakdown, in SQLite or PostgreSQL.

Names are loaded when they are first used, because most of them load SQLAlchemy.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kp_langchain._forksafe import ForkSafeLock
from kp_langchain._lazy import lazy_names

if TYPE_CHECKING:
    from pathlib import Path

    from kp_langchain.gate import Rescored as Rescored
    from kp_langchain.store.deletion import Deletion as Deletion
    from kp_langchain.store.location import Location
    from kp_langchain.store.run_columns import StoredRun as StoredRun
    from kp_langchain.store.selection import RunFilters as RunFilters
    from kp_langchain.store.trace_store import TraceStore as TraceStore

_names, __getattr__ = lazy_names(
    __name__,
    {
        "kp_langchain.gate": "Rescored",
        "kp_langchain.store.deletion": "Deletion",
        "kp_langchain.store.run_columns": "StoredRun",
        "kp_langchain.store.selection": "RunFilters",
        "kp_langchain.store.trace_store": "TraceStore",
    },
)
__all__ = [*_names, "default_store"]

_MOST_SHARED = 16
_stores: dict[Location, TraceStore] = {}  # the one that was used last at the end
_lock = ForkSafeLock()


def default_store(url: str | Path | None = None) -> TraceStore:
    """Return the store at `url` that this process shares, so that handlers share its connections.

    The 16 that were used last are shared; `close` releases a store's connections.

    Args:
        url: As for `TraceStore`.

    Raises:
        ConfigError: `url` is neither a path nor a URL of a supported kind.
        MissingExtraError: `url` names a PostgreSQL database, and its driver cannot be loaded.
    """
    from kp_langchain.store.location import locate
    from kp_langchain.store.trace_store import TraceStore

    location = locate(url)
    with _lock:
        store = _stores.pop(location, None) or TraceStore(location.url or location.path)
        _stores[location] = store
        if len(_stores) > _MOST_SHARED:
            del _stores[next(iter(_stores))]
    return store
