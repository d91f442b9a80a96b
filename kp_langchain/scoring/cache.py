"""`VectorCache`: the newest embeddings, with an exact search for the nearest one."""

from __future__ import annotations

import math
import time
from bisect import bisect_left
from collections.abc import Callable, Sequence, Set
from functools import partial
from itertools import pairwise
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from kp_langchain._forksafe import NoForkSection
from kp_langchain.errors import VectorError
from kp_langchain.scoring.repeats import DEFAULT_MAX_ELEMENTS, RepeatMemory

_Vectors: TypeAlias = NDArray[np.float32]
_Indices: TypeAlias = NDArray[np.intp]
_Lengths: TypeAlias = NDArray[np.float64]
_Match: TypeAlias = tuple[str | None, float]

# Similarities closer than this count as equal: the embedding of a text differs by about as much
# from batch to batch, and that must not change which entry is the nearest.
_EQUAL = 1e-6
# An entry this far below the best in float32 may still be equal to it in float64.
_CLOSE = 2 * _EQUAL
# Rows compared at once. More would gain little and hold the lock for longer.
_BLOCK = 128
# There is one spare row for this many; each entry is moved this many times on average.
_SPARE = 8
# Similarities held at once, so that they stay in the processor's cache: 1 MB.
_PRODUCTS = 1 << 18
# Pairs recomputed at once: 12 MB for vectors of 384.
_PAIRS = 4096
_CACHE_LINE_BYTES = 64
# Vectors whose squared length is within these bounds are stored unchanged. Others are scaled by a
# power of two, which changes no digit, so that no product leaves the range of float32.
_SMALLEST_SQUARE, _LARGEST_SQUARE = 2.0**-80, 2.0**80
# Spreads a small number over all bits of a hash (2^64 divided by the golden ratio).
_SPREAD = np.int64(0x9E3779B97F4A7C15 - (1 << 64))


class VectorCache:
    """A bounded memory of vectors with an exact search for the most similar one.

    Vectors are the rows of one float32 array, and their lengths are stored beside it. So a search
    is one matrix-vector product over the rows in use, and many searches are one matrix product. A
    float32 vector is stored exactly. The array has an eighth more rows than it needs (at least
    128); when its end is reached, the rows in use move to its front. All operations may be called
    from any thread, and keep working in a forked child.

    Entries within 1e-6 of the highest similarity count as equally near; the newest of them is the
    nearest. Entries that are close in float32 are compared again in float64; so a similarity is
    that of float64 arithmetic, and one search finds the same as many at once.

    Args:
        max_elements: How many vectors it holds; the oldest is dropped first. 1,000 of 384 values
            take about 1.7 MB.
        dimensions: Length of every vector.
        ttl_ms: Age in milliseconds at which an entry no longer counts; 0 keeps nothing, None keeps
            entries until newer ones need the room.
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
        self._lock = NoForkSection()
        # A block is written after the newest entry, while all entries it is compared with exist.
        length = self._max_elements + max(_BLOCK, self._max_elements // _SPARE)
        self._rows = _aligned_zeros(length, self._dimensions)
        self._lengths = np.zeros(length)
        self._hashes = np.zeros(length, dtype=np.int64)
        self._added_at = np.zeros(length)
        self._keys: list[str | None] = [None] * length
        self._start = self._end = 0  # the rows of the entries, oldest first
        self._owner: object = None

    def __reduce__(self) -> tuple[partial[VectorCache], tuple[()]]:
        # Only the bounds travel to another process; the entries stay in this one.
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
    def size(self) -> int:
        """How many entries it holds now."""
        with self._lock:
            self._expire()
            return self._end - self._start

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
        """Remember a vector; the oldest entry is dropped if the cache is full.

        Args:
            vector: `dimensions` finite numbers of any magnitude.
            key: What it stands for, such as a trace's id.

        Raises:
            VectorError: The vector has the wrong length, is not one row of real numbers, or is not
                finite.
        """
        row, length = self._read_one(vector)
        with self._lock:
            self._expire()
            self._place(row[None], length, [key], self._clock())
            self._commit(1)

    def insert(
        self, vectors: NDArray[Any], keys: Sequence[str | None], ages_s: Sequence[float]
    ) -> None:
        """Remember vectors that are not new, each in its place by age.

        A key that is in the cache already is left out.

        Args:
            vectors: Finite numbers of any magnitude, shape (n, dimensions).
            keys: What they stand for, n of them.
            ages_s: Their ages in seconds. Of equally old entries, those inserted last are newer.

        Raises:
            VectorError: As for `add`; nothing has been inserted then.
        """
        rows, lengths = self._read_all(vectors)
        with self._lock:
            self._expire()
            known = set(self._keys[self._start : self._end]) - {None}
            new = np.array([at for at, key in enumerate(keys) if key not in known], dtype=np.intp)
            if not new.size:
                return
            added_at = self._clock() - np.asarray(ages_s, dtype=np.float64)[new]
            # Entries that are newer than an inserted one are placed again, after it.
            after = np.searchsorted(
                self._added_at[self._start : self._end], added_at.min(), "right"
            )
            later = slice(self._start + int(after), self._end)
            added_at = np.concatenate([self._added_at[later], added_at])
            rows = np.concatenate([self._rows[later], rows[new]])
            lengths = np.concatenate([self._lengths[later], lengths[new]])
            all_keys = [*self._keys[later], *(keys[at] for at in new.tolist())]
            order = added_at.argsort(kind="stable")[-self._max_elements :]
            self._end = later.start
            for start in range(0, len(order), _BLOCK):
                block = order[start : start + _BLOCK]
                block_keys = [all_keys[at] for at in block.tolist()]
                self._place(rows[block], lengths[block], block_keys, added_at[block])
                self._commit(len(block))
            self._expire()

    def nearest(self, query: ArrayLike, *, ignore: Set[str] = frozenset()) -> _Match | None:
        """Return the key of the most similar entry and the highest cosine similarity, -1 to 1.

        Args:
            query: `dimensions` finite numbers of any magnitude.
            ignore: Keys that do not count.

        Returns:
            Key and similarity; None if no entry counts. A zero vector has similarity 0 with all.

        Raises:
            VectorError: As for `add`.
        """
        row, length = self._read_one(query)
        with self._lock:
            self._expire()
            return self._nearest_of_one(row, length, ignore)

    def nearest_then_add(
        self,
        vectors: Sequence[ArrayLike] | NDArray[Any],
        keys: Sequence[str | None],
        *,
        ignore: Set[str] = frozenset(),
    ) -> list[_Match | None]:
        """Call `nearest` and then `add` for one vector after the other, in blocks of 128.

        A block is atomic; other threads may come, and entries expire, between two blocks.

        Args:
            vectors: Finite numbers of any magnitude, shape (n, dimensions).
            keys: What they stand for, n of them.
            ignore: Keys that do not count.

        Returns:
            For each vector, the result of `nearest` among the entries before it.

        Raises:
            VectorError: As for `add`; no vector has been added then.
            ValueError: The numbers of keys and vectors differ.
        """
        rows, lengths = self._read_all(vectors)
        if len(keys) != len(rows):
            raise ValueError(f"there are {len(rows)} vectors, but {len(keys)} keys")
        matches: list[_Match | None] = []
        size = 1 if self._ttl_ms == 0 else _BLOCK  # an entry must not count for the next one
        for start in range(0, len(rows), size):
            block = slice(start, start + size)
            with self._lock:
                self._expire()
                self._place(rows[block], lengths[block], keys[block], self._clock())
                if len(rows[block]) == 1:
                    matches.append(self._nearest_of_one(rows[start], lengths.item(start), ignore))
                else:
                    matches += self._nearest_of_each(rows[block], lengths[block], ignore)
                self._commit(len(rows[block]))
        return matches

    def max_cosine_similarity(self, query: ArrayLike) -> float:
        """Return the highest cosine similarity with any entry, -1 to 1; 0 if there is none.

        Raises:
            VectorError: As for `add`.
        """
        match = self.nearest(query)
        return 0.0 if match is None else match[1]

    def clear(self) -> None:
        """Forget every entry."""
        self.repeats.clear()
        with self._lock:
            self._keys = [None] * len(self._keys)
            self._start = self._end = 0
            self._owner = None

    def _place(
        self,
        rows: _Vectors,
        lengths: _Lengths | float,
        keys: Sequence[str | None],
        added_at: _Lengths | float,
    ) -> None:
        """Write vectors after the newest entry, where they do not count yet."""
        if self._end + len(rows) > len(self._rows):
            self._move_to_front()
        new = slice(self._end, self._end + len(rows))
        self._rows[new] = rows
        self._lengths[new] = lengths
        self._hashes[new] = [hash(row.tobytes()) for row in rows]
        self._added_at[new] = added_at
        self._keys[new] = keys

    def _commit(self, count: int) -> None:
        """Make placed vectors count; the oldest entries are dropped if the cache is full."""
        self._end += count
        self._start = max(self._start, self._end - self._max_elements)

    def _move_to_front(self) -> None:
        shift, count = self._start, self._end - self._start
        # In pieces that do not overlap: otherwise numpy would copy all of it first.
        for at in range(0, count, shift):
            target = slice(at, min(at + shift, count))
            source = slice(target.start + shift, target.stop + shift)
            self._rows[target] = self._rows[source]
            self._lengths[target] = self._lengths[source]
            self._hashes[target] = self._hashes[source]
            self._added_at[target] = self._added_at[source]
        self._keys[:count] = self._keys[self._start : self._end]
        self._start, self._end = 0, count

    def _expire(self) -> None:
        if self._ttl_ms is None or self._start == self._end:
            return
        now, ttl_ms = self._clock(), self._ttl_ms

        def is_alive(row: int) -> bool:
            return (now - self._added_at.item(row)) * 1000 < ttl_ms

        # Doubling steps make the search cheap, whether no entry has expired or a million.
        start, step = self._start, 1
        while start + step <= self._end and not is_alive(start + step - 1):
            start, step = start + step, step * 2
        rows = range(start, min(start + step, self._end))
        self._start = start + bisect_left(rows, True, key=is_alive)

    def _nearest_of_one(self, query: _Vectors, length: float, ignore: Set[str]) -> _Match | None:
        start = self._start
        if start == self._end:
            return None
        products = self._rows[start : self._end].dot(query / np.float32(length))
        products /= self._lengths[start : self._end]
        at = int(products.argmax())
        while ignore and self._keys[start + at] in ignore:
            products[at] = -math.inf
            at = int(products.argmax())
            if products.item(at) == -math.inf:
                return None
        top = products.item(at)
        products[at] = -math.inf
        if products.item(products.argmax()) <= top - _CLOSE:
            exact = self._rows[start + at].astype(np.float64).dot(query.astype(np.float64))
            exact /= length * self._lengths.item(start + at)
            return self._keys[start + at], _within_range(exact)
        products[at] = top
        near = (products > top - _CLOSE).nonzero()[0] + start
        if ignore:
            near = near[[self._keys[one] not in ignore for one in near.tolist()]]
        return self._decide(query[None], np.array([length]), np.zeros_like(near), near)[0]

    def _nearest_of_each(
        self, rows: _Vectors, lengths: _Lengths, ignore: Set[str]
    ) -> list[_Match | None]:
        """Find the nearest of each placed vector among the `max_elements` entries before it."""
        count, stop = len(rows), self._end + len(rows)
        units = rows / lengths[:, None].astype(np.float32)
        number = np.arange(count)[:, None]
        best = np.full(count, -math.inf, dtype=np.float32)
        parts = []
        starts = range(self._start, max(self._start + 1, self._end), _PRODUCTS // count)
        for first, last in pairwise([*starts, stop]):
            products = units @ self._rows[first:last].T
            products /= self._lengths[first:last]
            # In a full cache, each vector drops the oldest entry for the next one.
            out = np.arange(first, stop - self._max_elements)
            products[:, : len(out)][out < self._end + number - self._max_elements] = -math.inf
            if last == stop:
                products[:, -count:][number <= number.T] = -math.inf
            if ignore:
                products[:, [key in ignore for key in self._keys[first:last]]] = -math.inf
            np.maximum(best, products.max(axis=1), out=best)
            # `nonzero` is ten times as fast in one dimension as in two.
            near = (products > (best - _CLOSE)[:, None]).ravel().nonzero()[0]
            unit, row = np.divmod(near, last - first)
            row += first
            distinct = self._distinct(unit, row, count)
            parts.append((unit[distinct], row[distinct], products.ravel()[near[distinct]]))
        unit, row, product = (np.concatenate(part) for part in zip(*parts, strict=True))
        is_close = product > best[unit] - _CLOSE
        return self._decide(rows, lengths, unit[is_close], row[is_close])

    def _decide(
        self, rows: _Vectors, lengths: _Lengths, unit: _Indices, row: _Indices
    ) -> list[_Match | None]:
        """Return the nearest entry for each of `rows`, in float64.

        Args:
            rows: The vectors.
            lengths: Their lengths.
            unit: Candidate pairs: the index into `rows`.
            row: Candidate pairs: the row of an entry close to it.
        """
        distinct = self._distinct(unit, row, len(rows))
        unit, row = unit[distinct], row[distinct]
        exact = np.empty(row.size)
        for start in range(0, row.size, _PAIRS):
            pairs = slice(start, start + _PAIRS)
            ones, others = rows[unit[pairs]], self._rows[row[pairs]]
            np.einsum("ij,ij->i", ones, others, dtype=np.float64, out=exact[pairs])
        exact /= lengths[unit] * self._lengths[row]
        best = np.full(len(rows), -math.inf)
        np.maximum.at(best, unit, exact)
        newest = np.full(len(rows), -1)
        equal = exact >= best[unit] - _EQUAL
        np.maximum.at(newest, unit[equal], row[equal])
        return [
            None if at < 0 else (self._keys[at], _within_range(similarity))
            for at, similarity in zip(newest.tolist(), best.tolist(), strict=True)
        ]

    def _distinct(self, unit: _Indices, row: _Indices, units: int) -> slice | _Indices:
        """Return the pairs without duplicates: of identical entries the newest, for each unit."""
        if row.size <= units:
            return slice(None)
        newest_first = row.argsort()[::-1]
        marks = self._hashes[row[newest_first]] + unit[newest_first] * _SPREAD
        return newest_first[np.unique(marks, return_index=True)[1]]

    def _read_all(self, vectors: Sequence[ArrayLike] | NDArray[Any]) -> tuple[_Vectors, _Lengths]:
        """Return vectors in float32, shape (n, dimensions), and their lengths; see `_read_one`."""
        if (
            len(vectors) > 1
            and isinstance(vectors, np.ndarray)
            and vectors.dtype.kind in "fiu"
            and vectors.shape[1:] == (self._dimensions,)
        ):
            with np.errstate(all="ignore"):
                rows = vectors.astype(np.float32)
                squares = np.einsum("ij,ij->i", rows, rows, dtype=np.float64)
                if np.all((squares > _SMALLEST_SQUARE) & (squares < _LARGEST_SQUARE)):
                    return rows, np.sqrt(squares)
        # One by one, to name the faulty vector, and to scale extreme lengths.
        rows = np.empty((len(vectors), self._dimensions), dtype=np.float32)
        lengths = np.empty(len(vectors))
        for number, vector in enumerate(vectors):
            rows[number], lengths[number] = self._read_one(vector)
        return rows, lengths

    def _read_one(self, vector: ArrayLike) -> tuple[_Vectors, float]:
        """Return a vector in float32, and its length; infinity for zeros: similar to nothing."""
        try:
            array: NDArray[Any] = np.asarray(vector)
        except Exception as error:
            raise VectorError(
                f"{type(vector).__name__} cannot be read as a vector of numbers"
            ) from error
        if array.dtype.kind not in "fiu":
            raise VectorError(f"a vector needs real numbers, not {array.dtype}")
        if array.ndim != 1:
            raise VectorError(f"a vector needs one dimension, not the shape {array.shape}")
        if array.size != self._dimensions:
            raise VectorError(
                f"the vector has {array.size} values, this cache takes {self._dimensions}"
            )
        with np.errstate(all="ignore"):
            wide = array.astype(np.float64)
            square = float(wide.dot(wide))
            if not _SMALLEST_SQUARE < square < _LARGEST_SQUARE:
                peak = float(np.abs(wide).max())
                if not math.isfinite(peak):
                    raise VectorError("the vector holds values that are not finite (NaN, infinity)")
                wide = np.ldexp(wide, -math.frexp(peak)[1])
            row = wide.astype(np.float32)
            wide = row.astype(np.float64)  # the length is that of the rounded vector
            square = float(wide.dot(wide))
        return row, math.sqrt(square) or math.inf


def _within_range(similarity: float) -> float:
    """Return a cosine within -1 to 1, which rounding may have left."""
    return min(1.0, max(-1.0, float(similarity)))


def _positive_int(name: str, value: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ValueError(f"{name} is {value!r}; it must be a whole number of at least 1")
    return value


def _aligned_zeros(rows: int, columns: int) -> _Vectors:
    """Return zeros that start on a cache line, which makes products some 5 % faster."""
    spare = _CACHE_LINE_BYTES // 4
    flat = np.zeros(rows * columns + spare, dtype=np.float32)
    address: int = flat.__array_interface__["data"][0]
    start = -address % _CACHE_LINE_BYTES // 4
    return flat[start : start + rows * columns].reshape(rows, columns)
