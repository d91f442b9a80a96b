"""`VectorCache`: the newest embeddings, and how similar the nearest of them is."""

from __future__ import annotations

import math
import time
from bisect import bisect_left
from collections.abc import Callable, Sequence, Set
from itertools import pairwise
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from kp_langchain._forksafe import ForkSafeLock
from kp_langchain.errors import VectorError

_Vectors: TypeAlias = NDArray[np.float32]
_Indices: TypeAlias = NDArray[np.intp]
_Found: TypeAlias = tuple[str | None, float]

# Similarities closer than this count as equal: the embedding of a text differs by about as much
# from batch to batch, and must not lead to another nearest entry.
_EQUAL = 1e-6
# What lies this far below the best in float32 may still be among the equals in float64.
_CLOSE = 2 * _EQUAL
# Rows compared at once. More would gain little and hold the lock for longer.
_BLOCK = 128
# Similarities held at once, so that they stay in the processor's cache: 1 MB.
_PRODUCTS = 1 << 18
# Pairs recomputed at once: 12 MB for vectors of 384.
_PAIRS = 4096
_CACHE_LINE_BYTES = 64
# A squared norm below this has lost digits in float64; the vector is rescaled first.
_SAFE_SQUARE_MIN = 1e-280
# Spreads the number of a row over all bits of a hash (2^64 divided by the golden ratio).
_SPREAD = np.int64(0x9E3779B97F4A7C15 - (1 << 64))


class VectorCache:
    """A bounded memory of vectors with an exact search for the most similar one.

    Rows are normalised when added and kept in one preallocated float32 ring, so a search is one
    matrix-vector product over the rows in use, and many searches are one matrix product. All
    operations may be called from any thread, and go on working in a forked child.

    Entries within 1e-6 of the highest similarity count as equally near; the newest of them is the
    nearest. What comes close in float32 is compared again in float64, so that one search and many
    at once find the same.

    Args:
        max_elements: How many vectors it holds; the oldest leaves first. 1,000 of 384 values take
            about 1.5 MB.
        dimensions: Length of every vector.
        ttl_ms: Milliseconds after which an entry no longer counts; None keeps entries until they
            are pushed out.
        clock: Seconds that never run backwards.

    Raises:
        ValueError: An argument is out of range.
    """

    def __init__(
        self,
        max_elements: int = 1000,
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
            or not 0 < ttl_ms < math.inf
        ):
            raise ValueError(f"ttl_ms is {ttl_ms!r}; it must be milliseconds above 0, or None")
        self._ttl_ms = ttl_ms
        self._clock = clock
        self._lock = ForkSafeLock()
        # A block is written behind the newest entry while all that it may see is still there.
        self._slots = self._max_elements + _BLOCK
        self._rows = _aligned_zeros(self._slots, self._dimensions)
        self._hashes = np.zeros(self._slots, dtype=np.int64)
        self._added_at = np.zeros(self._slots)
        self._keys: list[str | None] = [None] * self._slots
        self._head = 0  # slot of the oldest entry; positions count from there
        self._count = 0

    @property
    def max_elements(self) -> int:
        """How many vectors fit."""
        return self._max_elements

    @property
    def dimensions(self) -> int:
        """Length of every vector."""
        return self._dimensions

    @property
    def size(self) -> int:
        """How many entries count now."""
        with self._lock:
            self._expire()
            return self._count

    def __len__(self) -> int:
        return self.size

    def add(self, vector: ArrayLike, key: str | None = None) -> None:
        """Remember a vector; the oldest entry leaves if there is no room.

        Args:
            vector: `dimensions` finite numbers of any magnitude.
            key: What it stands for, such as a trace's id.

        Raises:
            VectorError: Wrong length, not one row of real numbers, or not finite.
        """
        unit = self._normalised(vector)
        with self._lock:
            self._expire()
            self._place(unit[None], [key])
            self._take_in(1)

    def nearest(self, query: ArrayLike, *, ignore: Set[str] = frozenset()) -> _Found | None:
        """Return the key of the most similar entry and the highest cosine similarity, -1 to 1.

        Args:
            query: `dimensions` finite numbers of any magnitude.
            ignore: Keys that do not count.

        Returns:
            None if no entry counts. A zero vector has similarity 0 with everything.

        Raises:
            VectorError: Wrong length, not one row of real numbers, or not finite.
        """
        unit = self._normalised(query)
        with self._lock:
            self._expire()
            return self._nearest_of_one(unit, ignore)

    def nearest_then_add(
        self,
        vectors: Sequence[ArrayLike] | NDArray[Any],
        keys: Sequence[str | None],
        *,
        ignore: Set[str] = frozenset(),
    ) -> list[_Found | None]:
        """Do for one vector after the other what `nearest` and then `add` do, in blocks of 128.

        A block is one act: other threads come in, and entries expire, between two blocks.

        Args:
            vectors: Finite numbers of any magnitude, shape (n, dimensions).
            keys: What they stand for, n of them.
            ignore: Keys that do not count.

        Returns:
            What `nearest` finds for each vector among the entries before it.

        Raises:
            VectorError: One is not what `add` takes. None has been added then.
            ValueError: There are more keys than vectors, or fewer.
        """
        units = self._all_normalised(vectors)
        if len(keys) != len(units):
            raise ValueError(f"there are {len(units)} vectors, but {len(keys)} keys")
        found: list[_Found | None] = []
        for start in range(0, len(units), _BLOCK):
            block = units[start : start + _BLOCK]
            with self._lock:
                self._expire()
                self._place(block, keys[start : start + _BLOCK])
                if len(block) == 1:
                    found.append(self._nearest_of_one(block[0], ignore))
                else:
                    found += self._nearest_of_each(block, ignore)
                self._take_in(len(block))
        return found

    def max_cosine_similarity(self, query: ArrayLike) -> float:
        """Return the highest cosine similarity with any entry, -1 to 1; 0 if there is none.

        Raises:
            VectorError: Wrong length, not one row of real numbers, or not finite.
        """
        found = self.nearest(query)
        return 0.0 if found is None else found[1]

    def clear(self) -> None:
        """Forget every entry."""
        with self._lock:
            self._keys = [None] * self._slots
            self._head = self._count = 0

    def _place(self, units: _Vectors, keys: Sequence[str | None]) -> None:
        """Write vectors behind the newest entry, where they do not count yet."""
        now = 0.0 if self._ttl_ms is None else self._clock()
        for position, (unit, key) in enumerate(zip(units, keys, strict=True), self._count):
            slot = (self._head + position) % self._slots
            self._rows[slot] = unit
            self._hashes[slot] = hash(unit.tobytes())
            self._added_at[slot] = now
            self._keys[slot] = key

    def _take_in(self, placed: int) -> None:
        """Make placed vectors count; the oldest entries leave if there is no room."""
        self._count += placed
        self._drop_oldest(max(0, self._count - self._max_elements))

    def _drop_oldest(self, entries: int) -> None:
        self._head = (self._head + entries) % self._slots
        self._count -= entries

    def _expire(self) -> None:
        if self._ttl_ms is None or not self._count:
            return
        now, ttl_ms = self._clock(), self._ttl_ms

        def lives(position: int) -> bool:
            added_at = self._added_at.item((self._head + position) % self._slots)
            return (now - added_at) * 1000 <= ttl_ms

        # Doubling steps: it costs little to find that none expired, or a million.
        end = 1
        while end < self._count and not lives(end - 1):
            end *= 2
        positions = range(min(end, self._count))
        self._drop_oldest(bisect_left(positions, True, lo=end // 2, key=lives))

    def _key(self, position: int) -> str | None:
        return self._keys[(self._head + position) % self._slots]

    def _pieces(self, start: int, end: int) -> list[tuple[_Vectors, slice]]:
        """The rows at the positions `start` to `end`, two pieces if they run over the ring's end.

        Each comes with its place among these positions.
        """
        first, length = (self._head + start) % self._slots, end - start
        fit = min(length, self._slots - first)
        pieces = [(self._rows[first : first + fit], slice(0, fit))]
        if fit < length:
            pieces.append((self._rows[: length - fit], slice(fit, length)))
        return pieces

    def _nearest_of_one(self, unit: _Vectors, ignore: Set[str]) -> _Found | None:
        if not self._count:
            return None
        products = np.empty(self._count, dtype=np.float32)
        for rows, place in self._pieces(0, self._count):
            rows.dot(unit, out=products[place])
        while True:
            top = products.item(products.argmax())
            if top == -math.inf:
                return None
            near = (products > top - _CLOSE).nonzero()[0]
            ignored = [at for at in near.tolist() if self._key(at) in ignore] if ignore else []
            if not ignored:
                break
            products[ignored] = -math.inf
        if near.size > 1:
            return self._decide(unit[None], np.zeros(near.size, dtype=np.intp), near)[0]
        slot = (self._head + near.item()) % self._slots
        exact = self._rows[slot].astype(np.float64).dot(unit.astype(np.float64))
        return self._keys[slot], _within_range(exact)

    def _nearest_of_each(self, units: _Vectors, ignore: Set[str]) -> list[_Found | None]:
        """Find the nearest of each placed vector among the `max_elements` entries before it."""
        placed, total = len(units), self._count + len(units)
        number = np.arange(placed)[:, None]
        best = np.full(placed, -math.inf, dtype=np.float32)
        parts = []
        for start, end in pairwise([*range(0, max(1, self._count), _PRODUCTS // placed), total]):
            products = np.empty((placed, end - start), dtype=np.float32)
            for rows, place in self._pieces(start, end):
                np.matmul(units, rows.T, out=products[:, place])
            if start == 0:  # each vector beyond the room pushes one more out before the next
                out = np.arange(total - self._max_elements) + self._max_elements
                products[:, : len(out)][out < self._count + number] = -math.inf
            if end == total:
                products[:, -placed:][number <= number.T] = -math.inf
            if ignore:
                ignored = [self._key(at) in ignore for at in range(start, end)]
                products[:, ignored] = -math.inf
            np.maximum(best, products.max(axis=1), out=best)
            # numpy finds what is set in one dimension ten times as fast as in two.
            near = (products > (best - _CLOSE)[:, None]).ravel().nonzero()[0]
            row, position = np.divmod(near, end - start)
            position += start
            kept = self._distinct(row, position, placed)
            parts.append((row[kept], position[kept], products.ravel()[near[kept]]))
        row, position, product = (np.concatenate(part) for part in zip(*parts, strict=True))
        still = product > best[row] - _CLOSE
        return self._decide(units, row[still], position[still])

    def _decide(self, units: _Vectors, row: _Indices, position: _Indices) -> list[_Found | None]:
        """Choose for each unit among the pairs (its row, position of an entry close to it)."""
        kept = self._distinct(row, position, len(units))
        row, position = row[kept], position[kept]
        slot = (self._head + position) % self._slots
        exact = np.empty(row.size)
        for start in range(0, row.size, _PAIRS):
            pairs = slice(start, start + _PAIRS)
            rows, wide = self._rows[slot[pairs]], units[row[pairs]]
            np.einsum("ij,ij->i", rows, wide, dtype=np.float64, out=exact[pairs])
        best = np.full(len(units), -math.inf)
        np.maximum.at(best, row, exact)
        newest = np.full(len(units), -1)
        equal = exact >= best[row] - _EQUAL
        np.maximum.at(newest, row[equal], position[equal])
        return [
            None if at < 0 else (self._key(at), _within_range(similarity))
            for at, similarity in zip(newest.tolist(), best.tolist(), strict=True)
        ]

    def _distinct(self, row: _Indices, position: _Indices, rows: int) -> slice | _Indices:
        """Of identical entries keep the newest for each row; there may be a thousand."""
        if row.size <= rows:
            return slice(None)
        newest_first = position.argsort()[::-1]
        slot = (self._head + position[newest_first]) % self._slots
        marks = self._hashes[slot] + row[newest_first] * _SPREAD
        return newest_first[np.unique(marks, return_index=True)[1]]

    def _all_normalised(self, vectors: Sequence[ArrayLike] | NDArray[Any]) -> _Vectors:
        """Return the vectors with length 1, shape (n, dimensions), checked."""
        if (
            len(vectors) > 1
            and isinstance(vectors, np.ndarray)
            and vectors.dtype.kind in "fiu"
            and vectors.shape[1:] == (self._dimensions,)
        ):
            with np.errstate(all="ignore"):
                wide = vectors.astype(np.float64)
                squares = (wide[:, None, :] @ wide[:, :, None])[:, 0, 0]
                if np.all((squares > _SAFE_SQUARE_MIN) & (squares < math.inf)):
                    return (wide / np.sqrt(squares)[:, None]).astype(np.float32)
        # One by one: it finds the faulty one, and takes care of extreme lengths.
        units = np.empty((len(vectors), self._dimensions), dtype=np.float32)
        for number, vector in enumerate(vectors):
            units[number] = self._normalised(vector)
        return units

    def _normalised(self, vector: ArrayLike) -> _Vectors:
        """Return the vector with length 1 (a zero vector as it is), checked."""
        try:
            given: NDArray[Any] = np.asarray(vector)
        except Exception as error:
            raise VectorError(
                f"{type(vector).__name__} cannot be read as a vector of numbers"
            ) from error
        if given.dtype.kind not in "fiu":
            raise VectorError(f"a vector needs real numbers, not {given.dtype}")
        if given.ndim != 1:
            raise VectorError(f"a vector needs one dimension, not the shape {given.shape}")
        if given.size != self._dimensions:
            raise VectorError(
                f"the vector has {given.size} values, this cache takes {self._dimensions}"
            )
        with np.errstate(all="ignore"):
            wide = given.astype(np.float64)
            square = float(wide.dot(wide))
            if not _SAFE_SQUARE_MIN < square < math.inf:
                peak = float(np.abs(wide).max())
                if not math.isfinite(peak):
                    raise VectorError("the vector holds values that are not finite (NaN, infinity)")
                if peak == 0.0:
                    return wide.astype(np.float32)
                wide /= peak
                square = float(wide.dot(wide))
            wide *= 1.0 / math.sqrt(square)
            return wide.astype(np.float32)


def _within_range(similarity: float) -> float:
    """Rounding may leave the range of a cosine by a hair."""
    return min(1.0, max(-1.0, float(similarity)))


def _positive_int(name: str, value: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ValueError(f"{name} is {value!r}; it must be a whole number of at least 1")
    return value


def _aligned_zeros(rows: int, columns: int) -> _Vectors:
    """Return zeros that start on a cache line, which a product reads some 5 % faster."""
    spare = _CACHE_LINE_BYTES // 4
    flat = np.zeros(rows * columns + spare, dtype=np.float32)
    address: int = flat.__array_interface__["data"][0]
    start = -address % _CACHE_LINE_BYTES // 4
    return flat[start : start + rows * columns].reshape(rows, columns)
