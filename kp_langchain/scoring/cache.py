"""`VectorCache`: the newest embeddings, and how similar the nearest of them is."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Set
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from kp_langchain._forksafe import ForkSafeLock
from kp_langchain.errors import VectorError

_Vector: TypeAlias = NDArray[np.float32]
# A squared norm below this has lost digits in float64; the vector is rescaled first.
_SAFE_SQUARE_MIN = 1e-280


class VectorCache:
    """A bounded memory of vectors with an exact search for the most similar one.

    Rows are normalised when added and kept in one preallocated float32 ring, so a search is one
    matrix-vector product over the rows in use. All operations may be called from any thread, and
    go on working in a forked child.

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
        self._rows = np.zeros((self._max_elements, self._dimensions), dtype=np.float32)
        self._keys: list[str | None] = [None] * self._max_elements
        self._added_at = [0.0] * self._max_elements
        self._head = 0  # row of the oldest entry
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
        row = self._normalised(vector)
        with self._lock:
            self._expire()
            if self._count == self._max_elements:
                self._drop_oldest()
            slot = (self._head + self._count) % self._max_elements
            self._rows[slot] = row
            self._keys[slot] = key
            self._added_at[slot] = self._clock() if self._ttl_ms is not None else 0.0
            self._count += 1

    def nearest(
        self, query: ArrayLike, *, ignore: Set[str] = frozenset()
    ) -> tuple[str | None, float] | None:
        """Return the key of the most similar entry and its cosine similarity, -1 to 1.

        Args:
            query: `dimensions` finite numbers of any magnitude.
            ignore: Keys that do not count.

        Returns:
            None if no entry counts. A zero vector has similarity 0 with everything.

        Raises:
            VectorError: Wrong length, not one row of real numbers, or not finite.
        """
        unit = self._normalised(query)
        best_row, best = -1, -math.inf
        with self._lock:
            self._expire()
            for rows in self._live():
                similarities = self._rows[rows] @ unit
                if ignore:
                    similarities[[key in ignore for key in self._keys[rows]]] = -math.inf
                row = int(similarities.argmax())
                if similarities[row] > best:
                    best_row, best = rows.start + row, float(similarities[row])
            if best_row < 0:
                return None
            # Rounding in float32 can leave the range by a hair.
            return self._keys[best_row], min(1.0, max(-1.0, best))

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
            self._keys = [None] * self._max_elements
            self._head = self._count = 0

    def _live(self) -> Iterator[slice]:
        """The rows in use as one slice, or two if they run over the end of the ring."""
        end = self._head + self._count
        if self._count == self._max_elements:
            yield slice(0, self._count)
        elif self._count:
            yield slice(self._head, min(end, self._max_elements))
            if end > self._max_elements:
                yield slice(0, end - self._max_elements)

    def _expire(self) -> None:
        if self._ttl_ms is None or not self._count:
            return
        now = self._clock()
        while self._count and (now - self._added_at[self._head]) * 1000 > self._ttl_ms:
            self._drop_oldest()

    def _drop_oldest(self) -> None:
        self._keys[self._head] = None
        self._head = (self._head + 1) % self._max_elements
        self._count -= 1

    def _normalised(self, vector: ArrayLike) -> _Vector:
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
            square = float(wide @ wide)
            if not _SAFE_SQUARE_MIN < square < math.inf:
                peak = float(np.abs(wide).max())
                if not math.isfinite(peak):
                    raise VectorError("the vector holds values that are not finite (NaN, infinity)")
                if peak == 0.0:
                    return wide.astype(np.float32)
                wide /= peak
                square = float(wide @ wide)
            return (wide / math.sqrt(square)).astype(np.float32)


def _positive_int(name: str, value: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ValueError(f"{name} is {value!r}; it must be a whole number of at least 1")
    return value
