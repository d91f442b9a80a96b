"""`Window`: what is compared of traces in memory, by id, with one search over their vectors."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING, Generic, TypeVar

from kp_langchain.scoring.dimensions import novelty

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from kp_langchain.embedding.identity import EmbedderIdentity
    from kp_langchain.scoring.cache import VectorCache
    from kp_langchain.scoring.novelty_memory import MemoryEntry

Item = TypeVar("Item")


class Window(Generic[Item]):
    """Items by the id of their trace, the oldest first. Who uses it holds a lock meanwhile.

    Args:
        most: It holds at most so many; the oldest is dropped first.

    Attributes:
        items: The items.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self.items: dict[str, Item] = {}
        self._fingerprints: dict[str, bytes] = {}
        self._vectors: dict[tuple[EmbedderIdentity, int], VectorCache] = {}

    def put(self, pairs: Iterable[tuple[MemoryEntry, Item]]) -> None:
        """Add items, or replace those with their ids.

        Args:
            pairs: What is compared of each trace, and its item.
        """
        pairs = list(pairs)
        self.remove([entry.trace_id for entry, _ in pairs])
        vectors: dict[tuple[EmbedderIdentity, int], dict[str, NDArray[np.float32]]] = {}
        for entry, item in pairs:
            self.items[entry.trace_id] = item
            if entry.fingerprint is not None:
                self._fingerprints[entry.trace_id] = entry.fingerprint
            if entry.vector is not None:
                key = entry.identity, len(entry.vector)
                vectors.setdefault(key, {})[entry.trace_id] = entry.vector
        for key, by_id in vectors.items():
            self._add_vectors(key, by_id)
        self.remove(list(self.items)[: max(0, len(self.items) - self._most)])

    def remove(self, ids: Collection[str]) -> None:
        """Remove the items with some ids, if they are there."""
        known = {id_ for id_ in ids if self.items.pop(id_, None) is not None}
        for id_ in known:
            self._fingerprints.pop(id_, None)
        if known:
            for cache in self._vectors.values():
                cache.remove(known)

    def clear(self) -> None:
        """Remove all items."""
        self.items.clear()
        self._fingerprints.clear()
        self._vectors.clear()

    def similar(self, entry: MemoryEntry, least: float) -> list[tuple[Item, float]]:
        """Return the items that are similar to a trace, the oldest first, and how similar.

        That is 1 for the same text. Else it is the cosine similarity, counted from the embedder's
        baseline as for novelty; without two vectors of one embedder it is 0.

        Args:
            entry: What is compared of the trace.
            least: The similarity from which an item is returned, above 0, at most 1.
        """
        similarities: dict[str, float] = {}
        vector, cache = entry.vector, None
        if vector is not None:
            cache = self._vectors.get((entry.identity, len(vector)))
        if cache is not None and vector is not None:
            baseline = entry.identity.baseline
            ids, cosines = cache.similarities(vector)
            # Rounding errors are far smaller than the margin; all that follows is exact.
            for at in (cosines > baseline + (least - 1e-3) * (1 - baseline)).nonzero()[0].tolist():
                similarities[ids[at] or ""] = 1.0 - novelty(float(cosines[at]), baseline)
        for id_, fingerprint in self._fingerprints.items():
            if fingerprint == entry.fingerprint:
                similarities[id_] = 1.0
        if not similarities:
            return []
        return [
            (item, similarities[id_])
            for id_, item in self.items.items()
            if similarities.get(id_, 0.0) >= least
        ]

    def _add_vectors(
        self, key: tuple[EmbedderIdentity, int], by_id: dict[str, NDArray[np.float32]]
    ) -> None:
        import numpy as np

        from kp_langchain.scoring.cache import VectorCache

        cache = self._vectors.get(key)
        if cache is None:
            cache = self._vectors[key] = VectorCache(self._most, key[1])
        cache.add_many(np.stack(list(by_id.values())), list(by_id))
