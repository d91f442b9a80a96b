"""What a scorer measures novelty against: the protocol of a memory, and the one of this process."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence, Set
from functools import partial
from typing import TYPE_CHECKING, Generic, NamedTuple, Protocol, TypeVar, runtime_checkable

from kp_langchain._logging import describe_error, warn_once
from kp_langchain.embedding.embedder import NO_IDENTITY, EmbedderIdentity
from kp_langchain.errors import BadEmbeddingError, ConfigError, VectorError
from kp_langchain.novelty_sources import MEMORY_FAILED
from kp_langchain.scoring.breakdown import Nearest
from kp_langchain.scoring.dimensions import novelty
from kp_langchain.scoring.repeats import DEFAULT_MAX_ELEMENTS, RepeatMemory

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from kp_langchain.scoring.cache import VectorCache

Item = TypeVar("Item")


# ------------------------------------------------------------------ the protocol


class MemoryEntry(NamedTuple):
    """What a memory compares and keeps of one trace.

    Attributes:
        trace_id: The trace's id.
        fingerprint: Hash of the trace's text, see `fingerprint`; None if it is not known.
        vector: Embedding of the text, float32, shape (dimensions,); None if it has none.
        identity: The embedder that the vector comes from. Only vectors of one identity can be
            compared.
        domain: Domain of the trace; empty if not known.
    """

    trace_id: str
    fingerprint: bytes | None
    vector: NDArray[np.float32] | None = None
    identity: EmbedderIdentity = NO_IDENTITY
    domain: str = ""


class Match(NamedTuple):
    """What a memory has that is similar to an entry.

    Attributes:
        nearest: The trace with the most similar vector; None if no vector was compared.
        repeat: The newest trace with the same fingerprint; None if there is none.
    """

    nearest: Nearest | None
    repeat: Nearest | None


class MemoryEntries(NamedTuple):
    """Many entries, whose vectors come from one embedder; the rest is as in `MemoryEntry`.

    Attributes:
        trace_ids: The id of each.
        fingerprints: The fingerprint of each.
        vectors: The vectors of those that have one, shape (m, dimensions); None if none has.
        vector_rows: Which entries these are.
        identity: The embedder.
    """

    trace_ids: Sequence[str]
    fingerprints: Sequence[bytes]
    vectors: NDArray[np.float32] | None
    vector_rows: Sequence[int]
    identity: EmbedderIdentity


class Matches(NamedTuple):
    """What a memory has that is similar to many entries; the rest is as in `Match`.

    Attributes:
        nearest_ids: The id of the trace with the most similar vector, of each entry.
        similarities: Their similarity; None if no vector was compared.
        repeats: The newest trace with the same fingerprint, of each entry.
    """

    nearest_ids: list[str | None]
    similarities: list[float | None]
    repeats: list[Nearest | None]


@runtime_checkable
class NoveltyMemory(Protocol):
    """Remembers traces, so that a scorer can measure how new another one is.

    All methods may be called from any thread. A method that raises has remembered nothing.
    `VectorError` reaches the scorer's caller: the memory does not fit the scorer's embedder. After
    any other error novelty is 0.5, and one warning per kind of error says so.
    """

    @property
    def max_elements(self) -> int:
        """How many traces it remembers at most."""
        ...

    def compare(self, entry: MemoryEntry, *, ignore: Set[str] = frozenset()) -> Match:
        """Compare an entry with the remembered ones.

        Args:
            entry: The entry.
            ignore: Ids of remembered traces that do not count.
        """
        ...

    def compare_then_add(self, entry: MemoryEntry, *, ignore: Set[str] = frozenset()) -> Match:
        """Compare an entry with the remembered ones, and remember it, in one atomic act.

        Of two equal entries that come at the same time, one finds the other.

        Args:
            entry: The entry.
            ignore: Ids of remembered traces that do not count.
        """
        ...

    def add(self, entry: MemoryEntry) -> None:
        """Remember an entry."""
        ...


def report_memory_failure(error: Exception) -> str:
    """Return in words why no memory compares a trace, and warn once per kind of error."""
    problem = f"{MEMORY_FAILED}: {type(error).__name__}"
    warn_once(
        problem,
        "novelty is 0.5 while the novelty memory fails (%s); not logged again",
        describe_error(error),
    )
    return problem


# ------------------------------------------------------------------ the memory of this process


class InProcessMemory:
    """A novelty memory of this process, which a forked child inherits.

    It makes its own `VectorCache`, as long as the first vector; the cache starts again when vectors
    of another embedder come. A cache of the caller's is used as it is.

    Args:
        max_elements: How many traces it remembers; None for 1,000.
        cache: The caller's cache, which has its own bounds.
    """

    def __init__(
        self, max_elements: int | None = None, *, cache: VectorCache | None = None
    ) -> None:
        self._max_elements = max_elements or DEFAULT_MAX_ELEMENTS
        self._own_cache: VectorCache | None = None
        self._callers_cache = cache
        self._repeats = RepeatMemory(self._max_elements) if cache is None else cache.repeats
        self._lock = self._repeats.lock  # vectors and repeats change together

    def __reduce__(self) -> tuple[partial[InProcessMemory], tuple[()]]:
        # Only the bounds travel to another process; what is remembered stays in this one.
        return (partial(type(self), self._max_elements, cache=self._callers_cache), ())

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
        with self._lock:
            nearest = repeat = None
            if entry.vector is not None:
                cache = self._cache_for(entry.identity, len(entry.vector))
                match = cache.nearest(entry.vector, ignore=ignore)
                nearest = None if match is None else Nearest(*match)
            if entry.fingerprint is not None:
                repeat = self._repeats.find(entry.fingerprint, ignore=ignore)
            return Match(nearest, repeat)

    def compare_then_add(self, entry: MemoryEntry, *, ignore: Set[str] = frozenset()) -> Match:
        """Compare an entry with the remembered ones, and remember it; see `NoveltyMemory`.

        Raises:
            VectorError: As for `compare`.
            BadEmbeddingError: As for `compare`.
        """
        with self._lock:
            match = self.compare(entry, ignore=ignore)
            self.add(entry)
            return match

    def add(self, entry: MemoryEntry) -> None:
        """Remember an entry.

        Raises:
            VectorError: As for `compare`.
            BadEmbeddingError: As for `compare`.
        """
        with self._lock:
            if entry.vector is not None:
                cache = self._cache_for(entry.identity, len(entry.vector))
                cache.add(entry.vector, key=entry.trace_id)
            if entry.fingerprint is not None:
                self._repeats.add(entry.fingerprint, entry.trace_id)

    @property
    def takes_many(self) -> bool:
        """Whether many at once get what each alone would: not if something expires by age."""
        return self._callers_cache is None or self._callers_cache.ttl_ms is None

    def compare_then_add_many(self, entries: MemoryEntries) -> Matches:
        """Compare and remember one entry after the other, in one atomic act, but faster.

        Raises:
            VectorError: As for `compare`; nothing has been remembered then.
            BadEmbeddingError: As for `compare`; nothing has been remembered then.
        """
        ids: list[str | None] = [None] * len(entries.trace_ids)
        similarities: list[float | None] = [None] * len(entries.trace_ids)
        with self._lock:
            if entries.vectors is not None:
                cache = self._cache_for(entries.identity, entries.vectors.shape[1])
                keys = [entries.trace_ids[row] for row in entries.vector_rows]
                found = cache.nearest_then_add(entries.vectors, keys)
                for row, key, similarity in zip(entries.vector_rows, *found, strict=True):
                    ids[row], similarities[row] = key, similarity
            repeats = self._repeats.find_then_add(entries.fingerprints, entries.trace_ids)
            return Matches(ids, similarities, repeats)

    def clear(self) -> None:
        """Forget everything."""
        with self._lock:
            self._repeats.clear()
            self._own_cache = None
            if self._callers_cache is not None:
                self._callers_cache.clear()

    def insert(self, entries: Sequence[MemoryEntry]) -> None:
        """Remember many entries, the last as the newest; known traces are left out.

        Args:
            entries: The entries; their vectors come from the same embedder.

        Raises:
            VectorError: As for `compare`.
            BadEmbeddingError: As for `compare`.
        """
        texts = [(one.fingerprint, one.trace_id) for one in entries if one.fingerprint is not None]
        vectors = {one.trace_id: one.vector for one in entries if one.vector is not None}
        with self._lock:
            self._repeats.insert(texts)
            if vectors:
                rows = list(vectors.values())
                cache = self._cache_for(entries[0].identity, len(rows[0]))
                cache.insert(rows, list(vectors))

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

            cache = self._own_cache = VectorCache(self._max_elements, dimensions)
            cache.claim(identity)
        elif dimensions != cache.dimensions:
            raise BadEmbeddingError(
                f"the embedder returned {dimensions} values after {cache.dimensions} before"
            )
        return cache


def check_count(name: str, value: object) -> None:
    """Raise a `ConfigError` that names an argument unless it is a whole number above 0, or None."""
    if value is None:
        return
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ConfigError(f"{name} is {value!r}; it must be a whole number above 0, or None")


def resolve_memory(
    cache: VectorCache | NoveltyMemory | None, max_remembered: int | None
) -> NoveltyMemory:
    """Return the memory that the options of a scorer stand for.

    Args:
        cache: A `VectorCache`, a `NoveltyMemory`, or None for a memory of the scorer's own.
        max_remembered: How many traces that memory remembers; None for the default.

    Raises:
        ConfigError: An option is unusable, or a cache comes with `max_remembered`.
    """
    check_count("max_remembered", max_remembered)
    if cache is None:
        return InProcessMemory(max_remembered)
    if max_remembered is not None:
        raise ConfigError(
            "cache comes with max_remembered; give the cache its bounds itself: "
            "VectorCache(max_elements, dimensions, ttl_ms)"
        )
    if isinstance(cache, NoveltyMemory):
        return cache
    from kp_langchain.scoring.cache import VectorCache  # loads numpy

    if not isinstance(cache, VectorCache):
        raise ConfigError(
            f"cache is a {type(cache).__name__}; expected a VectorCache, a NoveltyMemory or None"
        )
    return InProcessMemory(cache=cache)


# ------------------------------------------------------------------ traces that are compared


class Window(Generic[Item]):
    """Items by the id of their trace, the oldest first, with one search over their vectors.

    Callers must hold a lock.

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
        for entry, item in pairs:
            self.items[entry.trace_id] = item
            if entry.fingerprint is not None:
                self._fingerprints[entry.trace_id] = entry.fingerprint
            if entry.vector is not None:
                self._vectors_like(entry.vector, entry.identity).add(entry.vector, entry.trace_id)
        self.remove(list(self.items)[: max(0, len(self.items) - self._most)])

    def _vectors_like(self, vector: NDArray[np.float32], identity: EmbedderIdentity) -> VectorCache:
        """Return the vectors of an embedder that are as long as this one."""
        key = identity, len(vector)
        cache = self._vectors.get(key)
        if cache is None:
            from kp_langchain.scoring.cache import VectorCache

            cache = self._vectors[key] = VectorCache(self._most, len(vector))
        return cache

    def has_text_of(self, entry: MemoryEntry) -> bool:
        """Return whether the item of another trace has the same text."""
        return any(
            fingerprint == entry.fingerprint and id_ != entry.trace_id
            for id_, fingerprint in self._fingerprints.items()
        )

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
        if entry.vector is not None:
            cache = self._vectors.get((entry.identity, len(entry.vector)))
            if cache is not None:
                baseline = entry.identity.baseline
                ids, cosines = cache.similarities(entry.vector)
                # Rounding errors are far smaller than the margin; all that follows is exact.
                margin = baseline + (least - 1e-3) * (1 - baseline)
                for at in (cosines > margin).nonzero()[0].tolist():
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
