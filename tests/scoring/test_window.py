"""A sliding window over blocks, however they are cut, finds what comparing one by one finds."""

from __future__ import annotations

import itertools
import math
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kp_langchain.errors import VectorError
from kp_langchain.scoring.window import Vectors, nearest_in_window, repeats_in_window


class Row(NamedTuple):
    """A trace: its vector if it has one, its fingerprint, and whether it is remembered."""

    vector: tuple[int, ...] | None
    text: str
    is_remembered: bool


# Cosines of such small vectors are equal or far apart, so the nearest one is certain.
ROWS = st.lists(
    st.builds(
        Row,
        st.none() | st.tuples(*[st.integers(-2, 2)] * 3),
        st.sampled_from("abcd"),
        st.booleans() | st.just(True),
    ),
    max_size=24,
)


def one_by_one(rows: list[Row], window: int) -> list[tuple[int, float, int]]:
    """Return for each row its nearest, the similarity, and its repeat: -1 and -2 for none."""
    vectors: list[tuple[int, np.ndarray]] = []
    texts: list[tuple[int, str]] = []
    results = []
    for at, row in enumerate(rows):
        nearest, highest = -1, -2.0
        vector = None if row.vector is None else np.array(row.vector, float)
        for other, known in vectors[-window:] if vector is not None else ():
            lengths = math.sqrt(known @ known) * math.sqrt(vector @ vector)
            similarity = float(known @ vector) / (lengths or math.inf)
            if similarity >= highest - 1e-6:
                nearest, highest = other, max(highest, similarity)
        repeats = [other for other, text in texts[-window:] if text == row.text]
        results.append((nearest, highest, repeats[-1] if repeats else -1))
        if row.is_remembered:
            texts.append((at, row.text))
            if vector is not None:
                vectors.append((at, vector))
    return results


def in_blocks(rows: list[Row], window: int, cuts: set[int]) -> list[tuple[int, float, int]]:
    """The same, block by block; each block gets itself and its halo alone."""
    edges = [0, *sorted(cut for cut in cuts if cut < len(rows)), len(rows)]
    results = []
    for begin, end in itertools.pairwise(edges):
        before = [at for at in range(begin) if rows[at].is_remembered]
        block = range(begin, end)
        texts_halo = before[-window:]
        repeats = repeats_in_window(
            [rows[at].text for at in texts_halo],
            [rows[at].text for at in block],
            window=window,
            remembered=np.array([rows[at].is_remembered for at in block], bool),
        )
        halo = [at for at in before if rows[at].vector is not None][-window:]
        own = [at for at in block if rows[at].vector is not None]
        positions, similarities = nearest_in_window(
            vectors_of(rows, halo),
            vectors_of(rows, own),
            window=window,
            remembered=np.array([rows[at].is_remembered for at in own], bool),
        )
        nearest = {
            at: ([*halo, *own][position], similarity) if position >= 0 else (-1, -2.0)
            for at, position, similarity in zip(own, positions, similarities, strict=True)
        }
        for at, repeat in zip(block, repeats, strict=True):
            known = [*texts_halo, *block][repeat] if repeat >= 0 else -1
            results.append((*nearest.get(at, (-1, -2.0)), known))
    return results


def vectors_of(rows: list[Row], places: list[int]) -> Vectors:
    return Vectors.of(np.array([rows[at].vector for at in places], np.float32).reshape(-1, 3))


@given(rows=ROWS, window=st.integers(1, 6), cuts=st.sets(st.integers(0, 24), max_size=5))
def test_any_cut_into_blocks_gives_what_one_by_one_gives(rows, window, cuts):
    expected, results = one_by_one(rows, window), in_blocks(rows, window, cuts)
    assert [row[::2] for row in results] == [row[::2] for row in expected]
    np.testing.assert_allclose([row[1] for row in results], [row[1] for row in expected], atol=1e-6)


@pytest.mark.parametrize("window", [1, 100, 255, 256, 300, 5000])
def test_blocks_longer_than_what_is_multiplied_at_once(window):
    drawn = np.random.default_rng(window)
    rows = (
        drawn.standard_normal((900, 5)).astype(np.float32)
        * drawn.choice([1e-30, 1, 1e30], 900)[:, None]
    )
    flags = drawn.random(900) < 0.7
    wide = rows.astype(np.float64)
    wide /= np.linalg.norm(wide, axis=1, keepdims=True)
    known = np.flatnonzero(flags[:40])[-window:]
    positions, similarities = nearest_in_window(
        Vectors.of(rows[known]), Vectors.of(rows[40:]), window=window, remembered=flags[40:]
    )
    places = [*known, *range(40, 900)]
    for at in range(40, 900):
        others = np.flatnonzero(flags[:at])[-window:]
        cosines = wide[others] @ wide[at]
        assert similarities[at - 40] == pytest.approx(cosines.max(), abs=1e-6)
        assert places[positions[at - 40]] == others[cosines.argmax()]


def test_among_many_equal_vectors_the_newest_is_nearest():
    ones = Vectors.of(np.ones((600, 3)))
    positions, similarities = nearest_in_window(Vectors.of(np.ones((0, 3))), ones, window=400)
    assert positions.tolist() == list(range(-1, 599))
    assert math.isnan(similarities[0])
    np.testing.assert_allclose(similarities[1:], 1, atol=1e-12)


def test_what_is_not_finite_is_refused():
    with pytest.raises(VectorError, match="not finite"):
        Vectors.of(np.array([[1.0, 2.0], [math.nan, 0.0]]))
