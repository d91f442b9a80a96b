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

_Vectors: TypeAlias = NDArray[np.float32]
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
# Similarities held at once: 64 MB.
_MOST_PRODUCTS = 1 << 24
# Vectors whose squared length is within these bounds are stored unchanged. Others are scaled by a
# power of two, which changes no digit, so that no product leaves the range of float32.
_SMALLEST_SQUARE, _LARGEST_SQUARE = 2.0**-80, 2.0**80


class VectorCache:
    """A bounded memory of vectors with an exact search for the most similar one.

    Vectors are the rows of one float32 array, in the order of their age, and their lengths are
    stored beside it. So a search is one matrix-vector product over the rows in use, and many
    searches are one matrix product. A float32 vector is stored exactly. All operations may be
    called from any thread, and keep working in a forked child.

    Entries that are close in float32 are compared again in float64, so a similarity is that of
    float64 arithmetic. Entries within 1e-6 of the highest similarity count as equally near.

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
        self._lock = GatedLock()
        # The entries are the rows from `_start` to `_end`, the oldest first. Those before are
        # dropped, and when there is no room behind them, they move to the front.
        room = self._max_elements + max(_BLOCK, self._max_elements // 4)
        self._rows = np.zeros((room, self._dimensions), dtype=np.float32)
        self._lengths = np.zeros(room)
        self._added_at = np.zeros(room)
        self._keys: list[str | None] = [None] * room
        self._start = self._end = 0
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
            self._expire()
            known = {*self._keys[self._start : self._end]} - {None}
            new = [at for at, key in enumerate(keys) if key not in known]
            if not new:
                return
            added_at = self._clock() - np.asarray(ages_s, dtype=np.float64)[new]
            # Entries that are newer than an inserted one are written again, after it.
            in_use = self._added_at[self._start : self._end]
            after = self._start + int(np.searchsorted(in_use, added_at.min(), "right"))
            later = slice(after, self._end)
            added_at = np.concatenate([self._added_at[later], added_at])
            all_keys = [*self._keys[later], *(keys[at] for at in new)]
            order = added_at.argsort(kind="stable")[-self._max_elements :]
            rows = np.concatenate([self._rows[later], rows[new]])[order]
            lengths = np.concatenate([self._lengths[later], lengths[new]])[order]
            self._end = after
            self._append(rows, lengths, [all_keys[at] for at in order.tolist()], added_at[order])

    def add_many(
        self, vectors: Sequence[ArrayLike] | NDArray[Any], keys: Sequence[str | None]
    ) -> None:
        """Call `add` for one vector after the other.

        Args:
            vectors: Finite numbers of any magnitude, shape (n, dimensions).
            keys: What they stand for, n of them.

        Raises:
            VectorError: As for `add`; nothing has been added then.
        """
        rows, lengths = self._read_all(vectors)
        last = slice(-self._max_elements, None)
        with self._lock:
            self._append(rows[last], lengths[last], keys[last], self._clock())

    def remove(self, keys: Set[str]) -> None:
        """Forget the entries with some keys."""
        with self._lock:
            in_use = range(self._start, self._end)
            stay = [at for at in in_use if self._keys[at] not in keys]
            self._start = self._end - len(stay)
            if stay and stay[0] != self._start:  # else only the oldest ones go
                place = slice(self._start, self._end)
                for array in (self._rows, self._lengths, self._added_at):
                    array[place] = array[stay]
                self._keys[place] = [self._keys[at] for at in stay]

    def similarities(self, query: ArrayLike) -> tuple[list[str | None], NDArray[Any]]:
        """Return the keys of all entries, the oldest first, and their cosine similarities.

        Args:
            query: `dimensions` finite numbers of any magnitude.

        Raises:
            VectorError: As for `add`.
        """
        row, length = self._read_one(query)
        with self._lock:
            self._expire()
            rows = slice(self._start, self._end)
            products = self._rows[rows].dot(row / np.float32(length))
            return self._keys[rows], self._counted(products, frozenset())

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
            products = self._rows[self._start : self._end].dot(row / np.float32(length))
            return self._closest(self._counted(products, ignore), self._start, row, length)

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
        start = 0
        while start < len(rows):
            with self._lock:
                self._expire()
                # With a time of 0, an entry must not count for the next one.
                most = _MOST_PRODUCTS // (self._end - self._start + _BLOCK)
                size = 1 if self._ttl_ms == 0 else max(1, min(_BLOCK, most))
                block = slice(start, start + size)
                matches += self._nearest_of_each(rows[block], lengths[block], keys[block], ignore)
            start += size
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
            self._start = self._end = 0
            self._owner = None

    def _append(
        self,
        rows: _Vectors,
        lengths: _Lengths | float,
        keys: Sequence[str | None],
        added_at: _Lengths | float,
    ) -> None:
        """Write vectors behind the others; of more than `max_elements`, drop the oldest."""
        room, count = len(self._rows), len(rows)
        if self._end + count > room:
            stay = slice(self._end - min(self._end - self._start, room - count), self._end)
            self._start, self._end = 0, stay.stop - stay.start
            for array in (self._rows, self._lengths, self._added_at):
                array[: self._end] = array[stay]
            self._keys[: self._end] = self._keys[stay]
        place = slice(self._end, self._end + count)
        self._rows[place] = rows
        self._lengths[place] = lengths
        self._added_at[place] = added_at
        self._keys[place] = keys
        self._end += count
        self._start = max(self._start, self._end - self._max_elements)

    def _expire(self) -> None:
        """Drop the entries whose time is over, which are the oldest ones."""
        if self._ttl_ms is not None:
            ages_s = self._clock() - self._added_at[self._start : self._end]
            self._start += int(np.count_nonzero(ages_s * 1000 >= self._ttl_ms))

    def _counted(self, products: NDArray[Any], ignore: Set[str]) -> NDArray[Any]:
        """Turn products with the last rows into similarities, -inf for those that do not count."""
        rows = slice(self._end - products.shape[-1], self._end)
        products /= self._lengths[rows]
        if ignore:
            products[..., [key in ignore for key in self._keys[rows]]] = -math.inf
        return products

    def _nearest_of_each(
        self,
        vectors: _Vectors,
        lengths: _Lengths,
        keys: Sequence[str | None],
        ignore: Set[str],
    ) -> list[_Match | None]:
        """Find the nearest of each vector among the entries and the vectors before it; add them."""
        count, size = len(vectors), self._end - self._start
        self._append(vectors, lengths, keys, self._clock())
        first = self._end - count - size  # rows that were just dropped are still there
        units = vectors / lengths[:, None].astype(np.float32)
        products = self._counted(units @ self._rows[first : self._end].T, ignore)
        # How many came between each vector and each row, the row included.
        distance = size + np.arange(count)[:, None] - np.arange(size + count)
        products[(distance < 1) | (distance > self._max_elements)] = -math.inf
        return [
            self._closest(similarities, first, vector, length)
            for similarities, vector, length in zip(
                products, vectors, lengths.tolist(), strict=True
            )
        ]

    def _closest(
        self, similarities: NDArray[Any], first: int, vector: _Vectors, length: float
    ) -> _Match | None:
        """Return the key of the row that is closest to a vector, and its similarity in float64.

        Args:
            similarities: Those of some rows in float32; -inf for rows that do not count.
            first: The first of these rows.
            vector: The vector.
            length: Its length.
        """
        top = similarities.max(initial=-math.inf)
        if top == -math.inf:
            return None
        close = (similarities > top - _CLOSE).nonzero()[0][-_CLOSE_MAX:] + first
        exact = self._rows[close].astype(np.float64).dot(vector.astype(np.float64))
        exact /= length * self._lengths[close]
        newest = (exact >= exact.max() - _EQUAL).nonzero()[0][-1]
        return self._keys[close[newest]], min(1.0, max(-1.0, float(exact.max())))

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


def _positive_int(name: str, value: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ValueError(f"{name} is {value!r}; it must be a whole number of at least 1")
    return value
