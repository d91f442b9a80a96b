"""`InProcessMemory`: the novelty memory of one process, a window of vectors and one of repeats."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence, Set
from functools import partial
from typing import TYPE_CHECKING

from kp_langchain.errors import BadEmbeddingError, VectorError
from kp_langchain.scoring.breakdown import Nearest
from kp_langchain.scoring.novelty_memory import Match, MemoryEntry
from kp_langchain.scoring.repeats import DEFAULT_MAX_ELEMENTS, RepeatMemory

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from kp_langchain.embedding.identity import EmbedderIdentity
    from kp_langchain.scoring.cache import VectorCache


class InProcessMemory:
    """A novelty memory of this process, which a forked child inherits.

    It makes its own `VectorCache`, as long as the first vector; the cache starts again when vectors
    of another embedder come. A cache of the caller's is used as it is.

    Args:
        max_elements: How many traces it remembers; None for 1,000.
        ttl_ms: Milliseconds after which it forgets a trace; None for when newer ones need the room.
        cache: The caller's cache, which has its own bounds.
    """

    def __init__(
        self,
        max_elements: int | None = None,
        ttl_ms: float | None = None,
        *,
        cache: VectorCache | None = None,
    ) -> None:
        self._max_elements = max_elements or DEFAULT_MAX_ELEMENTS
        self._ttl_ms = ttl_ms
        self._own_cache: VectorCache | None = None
        self._callers_cache = cache
        self._repeats = RepeatMemory(self._max_elements, ttl_ms) if cache is None else cache.repeats
        self._section = self._repeats.section  # vectors and repeats change together

    def __reduce__(self) -> tuple[partial[InProcessMemory], tuple[()]]:
        # Only the bounds travel to another process; the entries stay in this one.
        bounds = (self._max_elements, self._ttl_ms)
        return (partial(type(self), *bounds, cache=self._callers_cache), ())

    @property
    def max_elements(self) -> int:
        """How many traces it remembers at most."""
        cache = self._callers_cache
        return self._max_elements if cache is None else cache.max_elements

    def compare(self, entry: MemoryEntry, *, ignore: Set[str] = frozenset()) -> Match:
        """Compare an entry with the remembered ones; see `NoveltyMemory`.

        Raises:
            VectorError: The caller's cache has vectors of another length or another embedder.
            BadEmbeddingError: The embedder returned vectors of another length before.
        """
        with self._section:
            nearest = None
            if entry.vector is not None:
                cache = self._cache_for(entry.identity, len(entry.vector))
                nearest = cache.nearest(entry.vector, ignore=ignore)
            repeat = None
            if entry.fingerprint is not None:
                repeat = self._repeats.find(entry.fingerprint, ignore=ignore)
            return Match(_as_nearest(nearest), repeat)

    def compare_then_add(
        self, entries: Sequence[MemoryEntry], *, ignore: Set[str] = frozenset()
    ) -> list[Match]:
        """Compare entries with the remembered ones, and remember them; see `NoveltyMemory`.

        Raises:
            VectorError: As for `compare`.
            BadEmbeddingError: As for `compare`.
        """
        with self._section:
            nearest = self._nearest_then_add(entries, ignore)
            matches = []
            for entry in entries:
                repeat = None
                if entry.fingerprint is not None:
                    repeat = self._repeats.find_then_add(
                        entry.fingerprint, entry.trace_id, ignore=ignore
                    )
                of_vector = None if entry.vector is None else next(nearest)
                matches.append(Match(_as_nearest(of_vector), repeat))
            return matches

    def add(self, entry: MemoryEntry) -> None:
        """Remember an entry.

        Raises:
            VectorError: As for `compare`.
            BadEmbeddingError: As for `compare`.
        """
        with self._section:
            if entry.vector is not None:
                cache = self._cache_for(entry.identity, len(entry.vector))
                cache.add(entry.vector, key=entry.trace_id)
            if entry.fingerprint is not None:
                self._repeats.add(entry.fingerprint, entry.trace_id)

    def clear(self) -> None:
        """Forget every entry."""
        with self._section:
            self._repeats.clear()
            self._own_cache = None
            if self._callers_cache is not None:
                self._callers_cache.clear()

    def insert_vectors(
        self,
        identity: EmbedderIdentity,
        vectors: NDArray[np.float32],
        trace_ids: Sequence[str],
        ages_s: Sequence[float],
    ) -> None:
        """Remember vectors that are not new, each in its place by age; known traces are left out.

        Args:
            identity: The embedder that they come from.
            vectors: Finite vectors, shape (n, dimensions).
            trace_ids: Ids of their traces, n of them.
            ages_s: Their ages in seconds. Of equally old ones, the last is the newest.

        Raises:
            VectorError: As for `compare`.
            BadEmbeddingError: As for `compare`.
        """
        with self._section:
            cache = self._cache_for(identity, vectors.shape[1])
            cache.insert(vectors, trace_ids, ages_s)

    def insert_repeats(self, entries: Iterable[tuple[bytes, str, float]]) -> None:
        """Remember fingerprints that are not new, each in its place by age.

        Args:
            entries: For each its fingerprint, its trace's id and its age in seconds. Of equally old
                ones, the last is the newest. One that the trace has already is left out.
        """
        with self._section:
            self._repeats.insert(entries)

    def _nearest_then_add(
        self, entries: Sequence[MemoryEntry], ignore: Set[str]
    ) -> Iterator[tuple[str | None, float] | None]:
        """Return what is nearest to each entry with a vector, and remember the vectors."""
        vectors = [entry.vector for entry in entries if entry.vector is not None]
        if not vectors:
            return iter(())
        import numpy as np

        embedded = [entry for entry in entries if entry.vector is not None]
        cache = self._cache_for(embedded[0].identity, len(vectors[0]))
        ids = [entry.trace_id for entry in embedded]
        return iter(cache.nearest_then_add(np.stack(vectors), ids, ignore=ignore))

    def _cache_for(self, identity: EmbedderIdentity, dimensions: int) -> VectorCache:
        """Return the cache for vectors of an embedder."""
        cache = self._callers_cache
        if cache is not None:
            if not cache.claim(identity):
                raise VectorError(
                    "the cache holds embeddings of another model, revision or baseline than "
                    f"{identity}; give each embedder a cache of its own, or clear() it"
                )
            return cache
        cache = self._own_cache
        if cache is None or not cache.claim(identity):
            from kp_langchain.scoring.cache import VectorCache

            cache = self._own_cache = VectorCache(self._max_elements, dimensions, self._ttl_ms)
            cache.claim(identity)
        elif dimensions != cache.dimensions:
            raise BadEmbeddingError(
                f"the embedder returned {dimensions} values after {cache.dimensions} before"
            )
        return cache


def _as_nearest(match: tuple[str | None, float] | None) -> Nearest | None:
    return None if match is None else Nearest(*match)
