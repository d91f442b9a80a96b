"""`default_store`: the stores that all handlers of this process share, one for each database."""

from __future__ import annotations

import copyreg
import weakref
from collections import OrderedDict
from pathlib import Path

from kp_langchain._forksafe import ForkSafeLock
from kp_langchain.store.location import Location, locate
from kp_langchain.store.trace_store import TraceStore

# Shared stores that stay open although no handler uses them at present.
_MOST_KEPT_OPEN = 16


def default_store(url: str | Path | None = None) -> TraceStore:
    """Return the store at `url` that this process shares, so that handlers share its connections.

    The 16 that were used last stay open until their file is deleted; `close` releases a store's
    connections.

    Args:
        url: As for `TraceStore`.

    Raises:
        ConfigError: `url` is neither a path nor a URL of a supported kind.
        MissingExtraError: `url` names a PostgreSQL database and its driver is not installed.
    """
    location = locate(url)
    with _lock:
        store = _stores.get(location)
        if store is None:
            store = _stores[location] = TraceStore(location.url or location.path)
        # For example in deleted temporary folders. A store that is in use warns of the loss itself.
        lost = [place for place, other in _recent.items() if other.database.has_lost_files()]
        evicted_stores = [_recent.pop(place) for place in lost]
        _recent[location] = store
        _recent.move_to_end(location)
        if len(_recent) > _MOST_KEPT_OPEN:
            evicted_stores.append(_recent.popitem(last=False)[1])
    # This closes those that are not in use; outside the lock, because it takes time.
    evicted_stores.clear()
    return store


_stores: weakref.WeakValueDictionary[Location, TraceStore] = weakref.WeakValueDictionary()
_recent: OrderedDict[Location, TraceStore] = OrderedDict()
_lock = ForkSafeLock()


def _reduce(store: TraceStore) -> tuple[object, ...]:
    """Pickle a store as its address, password included.

    All its copies that reach a process are one store there.
    """
    location = store.database.location
    return default_store, (location.url or location.path,)


# A subclass is pickled with its state, as any object is.
copyreg.pickle(TraceStore, _reduce)  # type: ignore[arg-type]
