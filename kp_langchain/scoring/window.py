"""Novelty over a sliding window: many traces compared with those remembered before each.

Traces come in order, and each is compared with the last N that were remembered before it. So a
block of traces needs only itself and its halo: the last N remembered before the block. Blocks are
independent, and any cut into blocks gives the same result, in one process or in many.

`nearest_in_window` compares vectors and `repeats_in_window` fingerprints. Both return positions in
the halo followed by the block: below the length of the halo it is a row of the halo, and from there
on a row of the block.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from kp_langchain.errors import VectorError

EQUAL = 1e-6
"""Similarities closer than this count as equal: the embedding of a text differs by about as much
from batch to batch."""

CLOSE = 2 * EQUAL
"""A vector this far below the best in float32 may still be equal to it in float64."""

CLOSE_MAX = 64
"""So many close vectors are compared again: there are more only if most vectors are the same."""

# Rows that are multiplied at once. With fewer, the product is slower; with more, more of it lies
# outside the window of each row.
_TILE_ROWS = 256
_TILE_ELEMENTS = 2**24  # of float32, so 64 MiB: fewer rows at once if the window is very long
_PAIRS = 1024  # compared in float64 at once

Flags: TypeAlias = NDArray[np.bool_]
Positions: TypeAlias = NDArray[np.int64]
Similarities: TypeAlias = NDArray[np.float64]


class Vectors(NamedTuple):
    """Vectors as they are compared.

    Attributes:
        rows: float32, shape (n, dimensions), each scaled by a power of two, which changes no digit,
            so that no product leaves the range of float32.
        lengths: The length of each row; infinity for a zero vector, so that its similarity is 0.
    """

    rows: NDArray[np.float32]
    lengths: NDArray[np.float64]

    @classmethod
    def of(cls, array: NDArray[np.generic]) -> Vectors:
        """Return finite vectors of any magnitude as they are compared.

        Args:
            array: Real numbers, shape (n, dimensions).

        Raises:
            VectorError: A value is not finite.
        """
        with np.errstate(all="ignore"):
            wide = array.astype(np.float64)
            peaks = np.abs(wide).max(axis=1)
            if not np.isfinite(peaks).all():
                raise VectorError("the vector holds values that are not finite (NaN, infinity)")
            rows = np.ldexp(wide, -np.frexp(peaks)[1][:, None]).astype(np.float32)
        # The length is that of the rounded vector.
        lengths = np.sqrt(np.einsum("ij,ij->i", rows, rows, dtype=np.float64))
        return cls(rows, np.where(lengths == 0, math.inf, lengths))


class _Band(NamedTuple):
    """Which of all remembered rows each row of a block is compared with: `start <= at < end`."""

    start: Positions
    end: Positions

    @classmethod
    def of(cls, halo: int, remembered: Flags, window: int) -> _Band:
        end = halo + np.cumsum(remembered) - remembered
        return cls(np.maximum(0, end - window), end)


def nearest_in_window(
    halo: Vectors, block: Vectors, *, window: int, remembered: Flags | None = None
) -> tuple[Positions, Similarities]:
    """Return the most similar of the last remembered vectors before each row of a block.

    Similarities are those of float64 arithmetic. Of the vectors within 1e-6 of the highest
    similarity, the newest is the nearest. Traces without a vector are neither compared nor do they
    take a place in the window, so the caller leaves them out.

    Args:
        halo: The last `window` vectors that were remembered before the block, or all if there are
            fewer; the oldest first.
        block: The vectors of the block, in order.
        window: How many remembered vectors each row is compared with at most.
        remembered: Which rows of the block are remembered; None if all are.

    Returns:
        The position of the nearest vector, -1 if there is none, and the highest cosine similarity,
        -1 to 1, NaN if there is none.
    """
    count = len(block.rows)
    flags = np.ones(count, dtype=bool) if remembered is None else remembered
    own = np.flatnonzero(flags)
    kept = block if remembered is None else Vectors(block.rows[own], block.lengths[own])
    band = _Band.of(len(halo.rows), flags, window)
    inverse = (1 / np.concatenate([halo.lengths, kept.lengths])).astype(np.float32)
    positions = np.full(count, -1)
    similarities = np.full(count, math.nan)
    tile = max(1, min(_TILE_ROWS, _TILE_ELEMENTS // (window + _TILE_ROWS)))
    for first in range(0, count, tile):
        part = slice(first, first + tile)
        begin, end = int(band.start[first]), int(band.end[part][-1])
        if begin == end:
            continue
        lengths: NDArray[np.float32] = block.lengths[part, None].astype(np.float32)
        queries: NDArray[np.float32] = np.divide(block.rows[part], lengths)
        products = _products(queries, halo.rows, kept.rows, begin, end)
        products *= inverse[begin:end]
        _leave_out(products, band.start[part] - begin, band.end[part] - begin)
        rows, columns = _close_pairs(products)
        exact = np.empty(len(rows))
        for at in range(0, len(rows), _PAIRS):
            pairs = slice(at, at + _PAIRS)
            exact[pairs] = _cosines(halo, kept, columns[pairs] + begin, block, rows[pairs] + first)
        best = np.full(len(queries), -math.inf)
        np.maximum.at(best, rows, exact)
        is_equal = exact >= best[rows] - EQUAL
        # Of several columns of a row, the last one assigned stays: the newest.
        positions[part][rows[is_equal]] = columns[is_equal] + begin
        found = best > -math.inf
        similarities[part][found] = best[found].clip(-1.0, 1.0)
    is_own = positions >= len(halo.rows)
    positions[is_own] = own[positions[is_own] - len(halo.rows)] + len(halo.rows)
    return positions, similarities


def _products(
    queries: NDArray[np.float32],
    halo: NDArray[np.float32],
    kept: NDArray[np.float32],
    begin: int,
    end: int,
) -> NDArray[np.float32]:
    """Return the products of queries with rows `begin` to `end` of a halo and what follows it."""
    products = np.empty((len(queries), end - begin), dtype=np.float32)
    own = max(0, len(halo) - begin)  # where the products with the block begin
    if begin < len(halo):
        np.matmul(queries, halo[begin:end].T, out=products[:, :own])
    if end > len(halo):
        rows = kept[max(0, begin - len(halo)) : end - len(halo)]
        np.matmul(queries, rows.T, out=products[:, own:])
    return products


def _leave_out(products: NDArray[np.float32], start: Positions, end: Positions) -> None:
    """Set the products that are outside of the window of their row to minus infinity."""
    older = np.arange(start[-1])  # of some rows these are too old already
    products[:, : len(older)][older < start[:, None]] = -math.inf
    newer = np.arange(end[0], products.shape[1])  # of some rows these come later
    products[:, end[0] :][newer >= end[:, None]] = -math.inf


def _close_pairs(products: NDArray[np.float32]) -> tuple[Positions, Positions]:
    """Return rows and columns of the products close to the highest of their row, in order.

    Of a row that has too many, the newest.
    """
    width = products.shape[1]
    top = products.max(axis=1)
    rows, columns = np.divmod(np.flatnonzero(products > (top - CLOSE)[:, None]), width)
    counts = np.bincount(rows, minlength=len(products))
    if counts.max() > CLOSE_MAX:
        newer = np.cumsum(counts)[rows] - np.arange(len(rows))
        rows, columns = rows[newer <= CLOSE_MAX], columns[newer <= CLOSE_MAX]
    return rows, columns


def _cosines(
    halo: Vectors, kept: Vectors, remembered: Positions, block: Vectors, rows: Positions
) -> Similarities:
    """Return the cosine similarities in float64 of remembered rows with rows of the block."""
    others = np.empty((len(rows), block.rows.shape[1]))
    lengths = np.empty(len(rows))
    is_own = remembered >= len(halo.rows)
    for source, places, at in (
        (halo, ~is_own, remembered),
        (kept, is_own, remembered - len(halo.rows)),
    ):
        others[places] = source.rows[at[places]]
        lengths[places] = source.lengths[at[places]]
    exact: Similarities = np.einsum("ij,ij->i", others, block.rows[rows].astype(np.float64))
    return exact / (lengths * block.lengths[rows])


def repeats_in_window(
    halo: Sequence[Hashable],
    block: Sequence[Hashable],
    *,
    window: int,
    remembered: Flags | None = None,
) -> Positions:
    """Return the newest equal one of the last remembered fingerprints before each row of a block.

    Args:
        halo: The last `window` fingerprints that were remembered before the block, or all if there
            are fewer; the oldest first.
        block: The fingerprints of the block, in order.
        window: How many remembered fingerprints each row is compared with at most.
        remembered: Which rows of the block are remembered; None if all are.

    Returns:
        The position of the equal fingerprint; -1 if there is none.
    """
    flags = [True] * len(block) if remembered is None else remembered.tolist()
    newest = {one: at for at, one in enumerate(halo)}  # by the count of remembered ones before it
    rows: dict[int, int] = {}  # of such a count in the block, its row
    count = len(halo)
    positions = []
    for row, (one, is_remembered) in enumerate(zip(block, flags, strict=True), len(halo)):
        at = newest.get(one, -1)
        # If the newest has left the window, so have all before it.
        positions.append(-1 if at < 0 or at < count - window else rows.get(at, at))
        if is_remembered:
            newest[one] = count
            rows[count] = row
            count += 1
    return np.array(positions, dtype=np.int64)
