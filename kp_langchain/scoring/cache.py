"""`VectorCache`: the newest embeddings, with an exact search for the nearest one."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence, Set
from functools import partial
from itertools import chain, islice
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
# from batch to batch.
_EQUAL = 1e-6
# An entry this far below the best in float32 may still be equal to it in float64.
_CLOSE = 2 * _EQUAL
# So many are compared again: there are more only if most vectors are the same.
_CLOSE_MAX = 64
# Vectors compared at once. More would gain little and hold the lock for longer.
_BLOCK = 128
# Similarities held at once, so that they stay in the processor's cache: 1 MB.
_PRODUCTS = 1 << 18
# Vectors whose squared length is within these bounds are stored unchanged. Others are scaled by a
# power of two, which changes no digit, so that no product leaves the range of float32.
_SMALLEST_SQUARE, _LARGEST_SQUARE = 2.0**-80, 2.0**80


class VectorCache:
    """A bounded memory of vectors with an exact search for the most similar one.

    Vectors are the rows of one float32 array, and their lengths are stored beside it. So a search
    is one matrix-vector product over the rows in use, and many searches are one matrix product. A
    float32 vector is stored exactly. Once all rows are in use, a new vector replaces the oldest.
    All operations may be called from any thread, and keep working in a forked child.

    Entries that are close in float32 are compared again in float64, so a similarity is that of
    float64 arithmetic. Entries within 1e-6 of the highest similarity count as equally near: any of
    them may be the nearest, in small caches the newest.

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
        # Behind the rows of the entries is room for a block while it is compared.
        length = self._max_elements + _BLOCK
        self._rows = np.zeros((length, self._dimensions), dtype=np.float32)
        self._lengths = np.zeros(length)
        self._added_at = np.zeros(self._max_elements)
        self._keys: list[str | None] = [None] * self._max_elements
        self._size = 0  # rows in use, including entries that have expired
        self._next = 0  # the row of the next entry
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
            return self._size - int(np.count_nonzero(self._expired()))

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
            self._append(row[None], length, [key], self._clock())

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
            rows_in_use = self._rows_by_age()
            expired = self._expired()
            known = {self._keys[row] for row in rows_in_use.tolist() if not expired[row]} - {None}
            new = np.array([at for at, key in enumerate(keys) if key not in known], dtype=np.intp)
            if not new.size:
                return
            added_at = self._clock() - np.asarray(ages_s, dtype=np.float64)[new]
            # Entries that are newer than an inserted one are written again, after it.
            after = np.searchsorted(self._added_at[rows_in_use], added_at.min(), "right")
            later = rows_in_use[int(after) :]
            added_at = np.concatenate([self._added_at[later], added_at])
            rows = np.concatenate([self._rows[later], rows[new]])
            lengths = np.concatenate([self._lengths[later], lengths[new]])
            all_keys = [self._keys[row] for row in later.tolist()]
            all_keys += [keys[at] for at in new.tolist()]
            order = added_at.argsort(kind="stable")[-self._max_elements :]
            self._size -= len(later)
            self._next = (self._next - len(later)) % self._max_elements
            ordered_keys = [all_keys[at] for at in order.tolist()]
            self._append(rows[order], lengths[order], ordered_keys, added_at[order])

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
        # With a time of 0, an entry must not count for the next one.
        size = 1 if self._ttl_ms == 0 else min(_BLOCK, self._max_elements)
        for start in range(0, len(rows), size):
            block = slice(start, start + size)
            with self._lock:
                if len(rows[block]) == 1:
                    matches.append(self._nearest_of_one(rows[start], lengths.item(start), ignore))
                else:
                    matches += self._nearest_of_each(
                        rows[block], lengths[block], keys[block], ignore
                    )
                self._append(rows[block], lengths[block], keys[block], self._clock())
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
        with self.repeats.section, self._lock:
            self.repeats.clear()
            self._keys = [None] * self._max_elements
            self._size = self._next = 0
            self._owner = None

    def _append(
        self,
        rows: _Vectors,
        lengths: _Lengths | float,
        keys: Sequence[str | None],
        added_at: _Lengths | float,
    ) -> None:
        """Write at most `max_elements` vectors; without room they replace the oldest ones."""
        places = (self._next + np.arange(len(rows))) % self._max_elements
        self._rows[places] = rows
        self._lengths[places] = lengths
        self._added_at[places] = added_at
        for place, key in zip(places.tolist(), keys, strict=True):
            self._keys[place] = key
        self._next = (self._next + len(rows)) % self._max_elements
        self._size = min(self._max_elements, self._size + len(rows))

    def _rows_by_age(self) -> _Indices:
        """Return the rows in use, that of the oldest entry first."""
        return (self._next - self._size + np.arange(self._size)) % self._max_elements

    def _by_age(self, rows: _Indices) -> _Indices:
        """Return numbers that are higher for newer entries, from 0 for the oldest one."""
        numbers = (rows - self._next + self._size) % self._max_elements
        return np.where(rows < self._size, numbers, rows)

    def _expired(self) -> NDArray[np.bool_]:
        """Return for each row in use whether its entry has expired."""
        if self._ttl_ms is None:
            return np.zeros(self._size, dtype=np.bool_)
        return (self._clock() - self._added_at[: self._size]) * 1000 >= self._ttl_ms

    def _nearest_of_one(self, vector: _Vectors, length: float, ignore: Set[str]) -> _Match | None:
        if not self._size:
            return None
        products = self._rows[: self._size].dot(vector / np.float32(length))
        products /= self._lengths[: self._size]
        if self._ttl_ms is not None or ignore:
            products[self._hidden((), ignore)] = -math.inf
        row, similarity = self._closest(products, 0, vector, length)
        return None if row < 0 else (self._keys[row], _within_range(similarity))

    def _nearest_of_each(
        self,
        vectors: _Vectors,
        lengths: _Lengths,
        keys: Sequence[str | None],
        ignore: Set[str],
    ) -> list[_Match | None]:
        """Find the nearest of each vector among the entries, and the vectors before it."""
        count, size = len(vectors), self._size
        stop = size + count
        self._rows[size:stop], self._lengths[size:stop] = vectors, lengths
        units = vectors / lengths[:, None].astype(np.float32)
        hidden = self._hidden(keys, ignore)
        best, nearest = np.full(count, -math.inf), [-1] * count
        for first in range(0, stop, _PRODUCTS // count):
            part = slice(first, min(stop, first + _PRODUCTS // count))
            products = units @ self._rows[part].T
            products /= self._lengths[part]
            products[:, hidden[part]] = -math.inf
            products[self._not_before(count, part)] = -math.inf
            for at in (products.max(axis=1) > best - _CLOSE).nonzero()[0].tolist():
                row, similarity = self._closest(products[at], first, vectors[at], lengths[at])
                if similarity > best[at]:
                    best[at], nearest[at] = similarity, row
        return [
            None
            if row < 0
            else (self._keys[row] if row < size else keys[row - size], _within_range(similarity))
            for row, similarity in zip(nearest, best.tolist(), strict=True)
        ]

    def _closest(
        self, products: _Vectors, first: int, vector: _Vectors, length: float
    ) -> tuple[int, float]:
        """Return the row that is closest to a vector, and its similarity in float64.

        Args:
            products: The similarities of some rows in float32; -inf for rows that do not count.
            first: The first of these rows.
            vector: The vector.
            length: Its length.

        Returns:
            Row -1 and -inf if no row counts.
        """
        top = products.max()
        close = (products > top - _CLOSE).nonzero()[0] + first
        if not close.size:
            return -1, -math.inf
        if close.size > 1:
            close = close[self._by_age(close).argsort()[-_CLOSE_MAX:]]
        exact = self._rows[close].astype(np.float64).dot(vector.astype(np.float64))
        exact /= length * self._lengths[close]
        best = exact.max()
        newest = (exact >= best - _EQUAL).nonzero()[0][-1]
        return int(close[newest]), float(best)

    def _hidden(self, keys: Sequence[str | None], ignore: Set[str]) -> NDArray[np.bool_]:
        """Return for each row in use, and for `keys` after them, whether it does not count."""
        hidden = np.zeros(self._size + len(keys), dtype=np.bool_)
        hidden[: self._size] = self._expired()
        if ignore:
            all_keys = chain(islice(self._keys, self._size), keys)
            hidden |= np.fromiter((key in ignore for key in all_keys), np.bool_, len(hidden))
        return hidden

    def _not_before(self, count: int, part: slice) -> NDArray[np.bool_]:
        """Return for each of `count` new vectors which rows are not among those before it.

        The new vectors are in the rows behind those in use. Each drops the oldest entry for the
        next one if all rows are in use.
        """
        numbers = self._by_age(np.arange(part.start, part.stop))
        distance = self._size + np.arange(count)[:, None] - numbers
        result: NDArray[np.bool_] = (distance < 1) | (distance > self._max_elements)
        return result

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
