"""`VectorCache`: the newest embeddings, with an exact search for the nearest one."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence, Set
from functools import partial
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from kp_langchain._forksafe import GatedLock
from kp_langchain.errors import VectorError
from kp_langchain.scoring.repeats import DEFAULT_MAX_ELEMENTS, RepeatMemory
from kp_langchain.scoring.window import CLOSE, CLOSE_MAX, EQUAL, Vectors, nearest_in_window

_Match: TypeAlias = tuple[str | None, float]

# The rows move to the beginning of their array each time so many of them have been dropped.
_SPARE_SHARE = 8


class VectorCache:
    """A bounded memory of vectors with an exact search for the most similar one.

    Vectors are the rows of one float32 array, the oldest first, and their lengths and times are
    stored beside it. So a search is one matrix-vector product over the rows in use. A vector is
    scaled by a power of two, which changes no digit, so that no product leaves the range of
    float32. All operations may be called from any thread, and keep working in a forked child.

    Vectors that are close in float32 are compared again in float64, so a similarity is that of
    float64 arithmetic. Of those within 1e-6 of the highest similarity, the newest is the nearest.

    Args:
        max_elements: How many vectors it holds; the oldest is dropped first. 1,000 of 384 values
            take about 1.7 MB.
        dimensions: Length of every vector.
        ttl_ms: Age in milliseconds at which a vector no longer counts; 0 keeps nothing, None keeps
            vectors until newer ones need the room.
        clock: Returns seconds that never run backwards.

    Raises:
        ValueError: An argument is out of range.
    """

    def __init__(
        self,
        max_elements: int = DEFAULT_MAX_ELEMENTS,
        dimensions: int = 384,
        ttl_ms: float | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._max_elements = _positive_int("max_elements", max_elements)
        self._dimensions = _positive_int("dimensions", dimensions)
        if ttl_ms is not None and (
            isinstance(ttl_ms, bool)
            or not isinstance(ttl_ms, int | float)
            or not 0 <= ttl_ms < math.inf
        ):
            raise ValueError(f"ttl_ms is {ttl_ms!r}; it must be milliseconds from 0, or None")
        self._ttl_ms = ttl_ms
        self._clock = clock
        # With the same bounds; it also remembers texts that have no vector.
        self.repeats = RepeatMemory(self._max_elements, ttl_ms, clock=clock)
        # A child forked in the middle of a matrix product may hang in its own first one.
        self._lock = GatedLock()
        places = self._max_elements + self._max_elements // _SPARE_SHARE + 1
        self._rows = np.zeros((places, self._dimensions), dtype=np.float32)
        self._lengths = np.zeros(places)
        self._added_at = np.zeros(places)
        self._start = 0  # the place of the oldest row in use
        self._keys: list[str | None] = []  # one for each row in use
        self._owner: object = None

    def __reduce__(self) -> tuple[partial[VectorCache], tuple[()]]:
        # Only the bounds travel to another process; the vectors stay in this one.
        bounds = (self._max_elements, self._dimensions, self._ttl_ms)
        return (partial(type(self), *bounds, clock=self._clock), ())

    @property
    def max_elements(self) -> int:
        """How many vectors it holds at most."""
        return self._max_elements

    @property
    def dimensions(self) -> int:
        """Length of every vector."""
        return self._dimensions

    @property
    def ttl_ms(self) -> float | None:
        """Age in milliseconds at which a vector no longer counts; None if none does."""
        return self._ttl_ms

    @property
    def size(self) -> int:
        """How many vectors it holds now."""
        with self._lock:
            self._expire()
            return len(self._keys)

    def __len__(self) -> int:
        return self.size

    def claim(self, owner: object) -> bool:
        """Claim the cache for one owner, if it has none. Vectors of two owners are not comparable.

        Args:
            owner: The owner of the vectors, such as the identity of an embedder.

        Returns:
            Whether the cache belongs to `owner`; it keeps its owner until `clear`.
        """
        with self._lock:
            if self._owner is None:
                self._owner = owner
            return self._owner == owner

    def add(self, vector: ArrayLike, key: str | None = None) -> None:
        """Remember a vector; the oldest one is dropped if the cache is full.

        Args:
            vector: `dimensions` finite numbers of any magnitude.
            key: What it stands for, such as a trace's id.

        Raises:
            VectorError: The vector has the wrong length, is not one row of real numbers, or is not
                finite.
        """
        added = self._read_one(vector)
        with self._lock:
            self._append(added, [key])

    def insert(self, vectors: ArrayLike, keys: Sequence[str]) -> None:
        """Remember many vectors, the last as the newest; a key that is there already is left out.

        Args:
            vectors: Finite numbers of any magnitude, shape (n, dimensions).
            keys: What they stand for, n of them.

        Raises:
            VectorError: As for `add`; nothing has been inserted then.
        """
        added = self._read(np.asarray(vectors))
        with self._lock:
            self._expire()
            places = {key: at for at, key in reversed(list(enumerate(keys)))}  # the first of each
            new = sorted(places[key] for key in places.keys() - set(self._keys))
            self._append(Vectors(added.rows[new], added.lengths[new]), [keys[at] for at in new])

    def remove(self, keys: Set[str]) -> None:
        """Forget the vectors with some keys."""
        with self._lock:
            used, rest = self._in_use, [at for at, key in enumerate(self._keys) if key not in keys]
            if len(rest) < len(self._keys):
                self._refill(
                    self._rows[used][rest],
                    self._lengths[used][rest],
                    self._added_at[used][rest],
                    [self._keys[at] for at in rest],
                )

    def nearest_then_add(
        self, vectors: NDArray[Any], keys: Sequence[str]
    ) -> tuple[list[str | None], list[float | None]]:
        """Compare each vector with those before it, those of the call included; remember them all.

        That is `nearest` and `add` for one after the other, in one atomic act, but faster; a
        vector's age is counted from the call.

        Args:
            vectors: Finite numbers of any magnitude, shape (n, dimensions).
            keys: What they stand for, n of them.

        Returns:
            For each vector the key of the most similar one and the highest cosine similarity, -1 to
            1; None and None if there was none before it.

        Raises:
            VectorError: As for `add`; nothing has been remembered then.
        """
        added = self._read(vectors)
        with self._lock:
            self._expire()
            used = self._in_use
            positions, similarities = nearest_in_window(
                Vectors(self._rows[used], self._lengths[used]), added, window=self._max_elements
            )
            all_keys = [*self._keys, *keys]
            self._append(added, keys)
        places = positions.tolist()
        return [None if at < 0 else all_keys[at] for at in places], [
            None if at < 0 else similarity
            for at, similarity in zip(places, similarities.tolist(), strict=True)
        ]

    def similarities(self, query: ArrayLike) -> tuple[list[str | None], NDArray[Any]]:
        """Return the keys of all vectors, in no order, and their cosine similarities in float32.

        Args:
            query: `dimensions` finite numbers of any magnitude.

        Raises:
            VectorError: As for `add`.
        """
        wanted = self._read_one(query)
        with self._lock:
            self._expire()
            return list(self._keys), self._products(wanted)

    def nearest(self, query: ArrayLike, *, ignore: Set[str] = frozenset()) -> _Match | None:
        """Return the key of the most similar vector and the highest cosine similarity, -1 to 1.

        Args:
            query: `dimensions` finite numbers of any magnitude.
            ignore: Keys that do not count.

        Returns:
            Key and similarity; None if no vector counts. A zero vector has similarity 0 with all.

        Raises:
            VectorError: As for `add`.
        """
        wanted = self._read_one(query)
        with self._lock:
            self._expire()
            products = self._products(wanted)
            if ignore:
                products[[key in ignore for key in self._keys]] = -math.inf
            top = products.max(initial=-math.inf)
            if top == -math.inf:
                return None
            close = (products > top - CLOSE).nonzero()[0]
            close = close[-CLOSE_MAX:]
            used = self._in_use
            exact = self._rows[used][close].astype(np.float64) @ wanted.rows[0].astype(np.float64)
            exact /= wanted.lengths[0] * self._lengths[used][close]
            newest = close[(exact >= exact.max() - EQUAL).nonzero()[0][-1]]
            return self._keys[newest], min(1.0, max(-1.0, float(exact.max())))

    def max_cosine_similarity(self, query: ArrayLike) -> float:
        """Return the highest cosine similarity with any vector, -1 to 1; 0 if there is none.

        Raises:
            VectorError: As for `add`.
        """
        match = self.nearest(query)
        return 0.0 if match is None else match[1]

    def clear(self) -> None:
        """Forget every vector."""
        with self.repeats.lock, self._lock:
            self.repeats.clear()
            self._keys.clear()
            self._start, self._owner = 0, None

    @property
    def _in_use(self) -> slice:
        """The places of the rows in use."""
        return slice(self._start, self._start + len(self._keys))

    def _products(self, query: Vectors) -> NDArray[Any]:
        """Return the cosine similarities of a vector with all rows in use, in float32."""
        row = query.rows[0] / query.lengths[0].astype(np.float32)
        products: NDArray[Any] = self._rows[self._in_use] @ row
        products /= self._lengths[self._in_use]
        return products

    def _append(self, added: Vectors, keys: Sequence[str | None]) -> None:
        """Write the newest vectors, and drop the oldest ones if the cache is full."""
        newest = slice(-self._max_elements, None)
        rows, lengths, keys = added.rows[newest], added.lengths[newest], keys[newest]
        self._drop_oldest(max(0, len(self._keys) + len(keys) - self._max_elements))
        used = self._in_use
        if used.stop + len(keys) > len(self._rows):
            remaining = list(self._keys)
            self._refill(self._rows[used], self._lengths[used], self._added_at[used], remaining)
        end = self._start + len(self._keys)
        at = slice(end, end + len(keys))
        self._rows[at], self._lengths[at], self._added_at[at] = rows, lengths, self._clock()
        self._keys += keys

    def _refill(
        self,
        rows: NDArray[np.float32],
        lengths: NDArray[np.float64],
        added_at: NDArray[np.float64],
        keys: list[str | None],
    ) -> None:
        """Replace all vectors, the oldest first."""
        self._start, self._keys, count = 0, keys, len(keys)
        self._rows[:count], self._lengths[:count] = rows, lengths
        self._added_at[:count] = added_at

    def _expire(self) -> None:
        """Drop the vectors whose time is over."""
        if self._ttl_ms is not None:
            ages_s = self._clock() - self._added_at[self._in_use]
            self._drop_oldest(int((ages_s * 1000 >= self._ttl_ms).sum()))

    def _drop_oldest(self, count: int) -> None:
        self._start += count
        del self._keys[:count]

    def _read_one(self, vector: ArrayLike) -> Vectors:
        """Return a vector as it is stored; see `_read`."""
        try:
            array: NDArray[Any] = np.asarray(vector)
        except Exception as error:
            raise VectorError(
                f"{type(vector).__name__} cannot be read as a vector of numbers"
            ) from error
        if array.ndim != 1:
            raise VectorError(f"a vector needs one dimension, not the shape {array.shape}")
        return self._read(array[None])

    def _read(self, array: NDArray[Any]) -> Vectors:
        """Return vectors as they are stored."""
        if array.dtype.kind not in "fiu":
            raise VectorError(f"a vector needs real numbers, not {array.dtype}")
        if array.shape[1] != self._dimensions:
            raise VectorError(
                f"the vector has {array.shape[1]} values, this cache takes {self._dimensions}"
            )
        return Vectors.of(array)


def _positive_int(name: str, value: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ValueError(f"{name} is {value!r}; it must be a whole number of at least 1")
    return value
