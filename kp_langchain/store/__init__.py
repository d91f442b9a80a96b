"""The durable side: every scored run with its breakdown, in SQLite or PostgreSQL."""

from pathlib import Path

from kp_langchain._forksafe import ForkSafeLock
from kp_langchain.gate import Rescored
from kp_langchain.store.confidence_models import ConfidenceModels, InstalledModel
from kp_langchain.store.deletion import Deletion, Pruning
from kp_langchain.store.location import Location, locate
from kp_langchain.store.novelty import StoredMemory
from kp_langchain.store.outbox import Outbox
from kp_langchain.store.registry_units import Contribution, Standing
from kp_langchain.store.run_columns import StoredRun
from kp_langchain.store.selection import RunFilters
from kp_langchain.store.trace_store import TraceStore
from kp_langchain.verdict import Verdict

__all__ = [
    "ConfidenceModels",
    "Contribution",
    "Deletion",
    "InstalledModel",
    "Outbox",
    "Pruning",
    "Rescored",
    "RunFilters",
    "Standing",
    "StoredMemory",
    "StoredRun",
    "TraceStore",
    "Verdict",
    "default_store",
]

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
    location = locate(url)
    with _lock:
        store = _stores.pop(location, None) or TraceStore(location.url or location.path)
        _stores[location] = store
        if len(_stores) > _MOST_SHARED:
            del _stores[next(iter(_stores))]
    return store
