"""`VectorCache`: the newest embeddings, and how similar the nearest of them is."""

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
_Found: TypeAlias = tuple[str | None, float]

# Similarities closer than this count as equal: the embedding of a text differs by about as much
# from batch to batch, and must not lead to another nearest entry.
_EQUAL = 1e-6
# What lies this far below the best in float32 may still be among the equals in float64.
_CLOSE = 2 * _EQUAL
# Rows compared at once. More would gain little and hold the lock for longer.
_BLOCK = 128
# One row in so many is spare: each entry is moved so often on average.
_SPARE = 8
# Similarities held at once, so that they stay in the processor's cache: 1 MB.
_PRODUCTS = 1 << 18
# Pairs recomputed at once: 12 MB for vectors of 384.
_PAIRS = 4096
_CACHE_LINE_BYTES = 64
# Vectors whose squared length lies between are kept as they come. Others are scaled by a power of
# two, which changes no digit, so that no product leaves the range of float32.
_SMALLEST_SQUARE, _LARGEST_SQUARE = 2.0**-80, 2.0**80
# Spreads a small number over all bits of a hash (2^64 divided by the golden ratio).
_SPREAD = np.int64(0x9E3779B97F4A7C15 - (1 << 64))


class VectorCache:
    """A bounded memory of vectors with an exact search for the most similar one.

    Rows are kept one after the other in a float32 array, beside their lengths, so a search is one
    matrix-vector product over the rows in use, and many searches are one matrix product. A vector
    of float32 is kept to the last digit. The array has an eighth more rows than are needed (128 at
    least); when its end is reached, the rows in use move to its front. All operations may be called
    from any thread, and go on working in a forked child.

    Entries within 1e-6 of the highest similarity count as equally near; the newest of them is the
    nearest. What comes close in float32 is compared again in float64, so that a similarity is what
    float64 arithmetic gives for vectors of float32, and one search and many at once find the same.

    Args:
        max_elements: How many vectors it holds; the oldest leaves first. 1,000 of 384 values take
            about 1.7 MB.
        dimensions: Length of every vector.
        ttl_ms: Milliseconds after which an entry no longer counts, at exactly that age already; 0
            keeps nothing, None keeps entries until they are pushed out.
        clock: Seconds that never run backwards.

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
        # Of the same traces and as many, also of those that no model made a vector of.
        self.repeats = RepeatMemory(self._max_elements, ttl_ms, clock=clock)
        self._lock = NoForkSection()  # a child forked in a matrix product may hang in its first
        # A block is written behind the newest entry while all that it may see is still there.
        length = self._max_elements + max(_BLOCK, self._max_elements // _SPARE)
        self._rows = _aligned_zeros(length, self._dimensions)
        self._lengths = np.zeros(length)
        self._hashes = np.zeros(length, dtype=np.int64)
        self._added_at = np.zeros(length)
        self._keys: list[str | None] = [None] * length
        self._start = self._end = 0  # the rows of the entries, oldest first
        self._owner: object = None

    def __reduce__(self) -> tuple[partial[VectorCache], tuple[()]]:
        # To another process it travels empty: what it remembers is this process's.
        bounds = (self._max_elements, self._dimensions, self._ttl_ms)
        return (partial(type(self), *bounds, clock=self._clock), ())

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
            return self._end - self._start

    def __len__(self) -> int:
        return self.size

    def claim(self, owner: object) -> bool:
        """Give the entries an owner, whose vectors alone can be compared with them.

        Args:
            owner: What they belong to, such as the identity of an embedder.

        Returns:
            False if they have another owner already, until `clear`.
        """
        with self._lock:
            if self._owner is None:
                self._owner = owner
            return self._owner == owner

    def add(self, vector: ArrayLike, key: str | None = None) -> None:
        """Remember a vector; the oldest entry leaves if there is no room.

        Args:
            vector: `dimensions` finite numbers of any magnitude.
            key: What it stands for, such as a trace's id.

        Raises:
            VectorError: Wrong length, not one row of real numbers, or not finite.
        """
        row, length = self._read_one(vector)
        with self._lock:
            self._expire()
            self._place(row[None], length, [key])
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
        rows, lengths = self._read_all(vectors)
        if len(keys) != len(rows):
            raise ValueError(f"there are {len(rows)} vectors, but {len(keys)} keys")
        found: list[_Found | None] = []
        size = 1 if self._ttl_ms == 0 else _BLOCK  # nothing is kept for the next of a block
        for start in range(0, len(rows), size):
            block = slice(start, start + size)
            with self._lock:
                self._expire()
                self._place(rows[block], lengths[block], keys[block])
                if len(rows[block]) == 1:
                    found.append(self._nearest_of_one(rows[start], lengths.item(start), ignore))
                else:
                    found += self._nearest_of_each(rows[block], lengths[block], ignore)
                self._take_in(len(rows[block]))
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
        self.repeats.clear()
        with self._lock:
            self._keys = [None] * len(self._keys)
            self._start = self._end = 0
            self._owner = None

    def _place(self, rows: _Vectors, lengths: _Lengths | float, keys: Sequence[str | None]) -> None:
        """Write vectors behind the newest entry, where they do not count yet."""
        if self._end + len(rows) > len(self._rows):
            self._move_to_front()
        new = slice(self._end, self._end + len(rows))
        self._rows[new] = rows
        self._lengths[new] = lengths
        self._hashes[new] = [hash(row.tobytes()) for row in rows]
        self._added_at[new] = 0.0 if self._ttl_ms is None else self._clock()
        self._keys[new] = keys

    def _take_in(self, placed: int) -> None:
        """Make placed vectors count; the oldest entries leave if there is no room."""
        self._end += placed
        self._start = max(self._start, self._end - self._max_elements)

    def _move_to_front(self) -> None:
        shift, count = self._start, self._end - self._start
        # In pieces that do not overlap, or numpy would make a copy of it all first.
        for at in range(0, count, shift):
            to = slice(at, min(at + shift, count))
            of = slice(to.start + shift, to.stop + shift)
            self._rows[to] = self._rows[of]
            self._lengths[to] = self._lengths[of]
            self._hashes[to] = self._hashes[of]
            self._added_at[to] = self._added_at[of]
        self._keys[:count] = self._keys[self._start : self._end]
        self._start, self._end = 0, count

    def _expire(self) -> None:
        if self._ttl_ms is None or self._start == self._end:
            return
        now, ttl_ms = self._clock(), self._ttl_ms

        def lives(row: int) -> bool:
            return (now - self._added_at.item(row)) * 1000 < ttl_ms

        # Doubling steps: it costs little to find that none expired, or a million.
        gone, step = self._start, 1
        while gone + step <= self._end and not lives(gone + step - 1):
            gone, step = gone + step, step * 2
        rows = range(gone, min(gone + step, self._end))
        self._start = gone + bisect_left(rows, True, key=lives)

    def _nearest_of_one(self, query: _Vectors, length: float, ignore: Set[str]) -> _Found | None:
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
    ) -> list[_Found | None]:
        """Find the nearest of each placed vector among the `max_elements` entries before it."""
        placed, stop = len(rows), self._end + len(rows)
        units = rows / lengths[:, None].astype(np.float32)
        number = np.arange(placed)[:, None]
        best = np.full(placed, -math.inf, dtype=np.float32)
        parts = []
        lefts = range(self._start, max(self._start + 1, self._end), _PRODUCTS // placed)
        for left, right in pairwise([*lefts, stop]):
            products = units @ self._rows[left:right].T
            products /= self._lengths[left:right]
            # Each vector beyond the room has pushed one out for the next.
            out = np.arange(left, stop - self._max_elements)
            products[:, : len(out)][out < self._end + number - self._max_elements] = -math.inf
            if right == stop:
                products[:, -placed:][number <= number.T] = -math.inf
            if ignore:
                products[:, [key in ignore for key in self._keys[left:right]]] = -math.inf
            np.maximum(best, products.max(axis=1), out=best)
            # numpy finds what is set in one dimension ten times as fast as in two.
            near = (products > (best - _CLOSE)[:, None]).ravel().nonzero()[0]
            unit, row = np.divmod(near, right - left)
            row += left
            kept = self._distinct(unit, row, placed)
            parts.append((unit[kept], row[kept], products.ravel()[near[kept]]))
        unit, row, product = (np.concatenate(part) for part in zip(*parts, strict=True))
        still = product > best[unit] - _CLOSE
        return self._decide(rows, lengths, unit[still], row[still])

    def _decide(
        self, rows: _Vectors, lengths: _Lengths, unit: _Indices, row: _Indices
    ) -> list[_Found | None]:
        """Choose for each of `rows` among the pairs (its number, row of an entry close to it)."""
        kept = self._distinct(unit, row, len(rows))
        unit, row = unit[kept], row[kept]
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
        """Of identical entries keep the newest for each unit; there may be a thousand."""
        if row.size <= units:
            return slice(None)
        newest_first = row.argsort()[::-1]
        marks = self._hashes[row[newest_first]] + unit[newest_first] * _SPREAD
        return newest_first[np.unique(marks, return_index=True)[1]]

    def _read_all(self, vectors: Sequence[ArrayLike] | NDArray[Any]) -> tuple[_Vectors, _Lengths]:
        """Return vectors in float32, shape (n, dimensions), and their lengths as `_read_one`."""
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
        # One by one: it finds the faulty one, and takes care of extreme lengths.
        rows = np.empty((len(vectors), self._dimensions), dtype=np.float32)
        lengths = np.empty(len(vectors))
        for number, vector in enumerate(vectors):
            rows[number], lengths[number] = self._read_one(vector)
        return rows, lengths

    def _read_one(self, vector: ArrayLike) -> tuple[_Vectors, float]:
        """Return a vector in float32, and its length; of zeros infinity: like nothing."""
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
            if not _SMALLEST_SQUARE < square < _LARGEST_SQUARE:
                peak = float(np.abs(wide).max())
                if not math.isfinite(peak):
                    raise VectorError("the vector holds values that are not finite (NaN, infinity)")
                wide = np.ldexp(wide, -math.frexp(peak)[1])
            row = wide.astype(np.float32)
            wide = row.astype(np.float64)  # what is left of more digits
            square = float(wide.dot(wide))
        return row, math.sqrt(square) or math.inf


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
