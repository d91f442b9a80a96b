"""Entries that are not new: inserting them with their ages is as if they had come at their time."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kp_langchain import VectorCache
from kp_langchain.errors import VectorError
from kp_langchain.scoring.repeats import RepeatMemory

NOW_S = 1000.0

# The ages of entries, each with whether it is inserted later; the oldest comes first.
ENTRIES = st.lists(st.tuples(st.integers(0, 30), st.booleans()), max_size=40).map(
    lambda entries: sorted(entries, key=lambda entry: -entry[0])
)


class Clock:
    def __init__(self) -> None:
        self.now_s = NOW_S

    def __call__(self) -> float:
        return self.now_s


def vector(number: int) -> list[float]:
    """Vectors in a half circle: each is nearest to itself."""
    angle = number / 40 * np.pi
    return [float(np.cos(angle)), float(np.sin(angle))]


def of_vectors(cache: VectorCache, count: int) -> list[tuple[str | None, float] | None]:
    return [cache.nearest(vector(number)) for number in range(count)]


@given(entries=ENTRIES, size=st.integers(1, 20), ttl_s=st.sampled_from([None, 20.0]))
def test_vectors_are_where_they_would_be(entries, size, ttl_s):
    ttl_ms = None if ttl_s is None else ttl_s * 1000
    clock = Clock()
    in_time = VectorCache(size, 2, ttl_ms, clock=clock)
    inserted = VectorCache(size, 2, ttl_ms, clock=clock)
    late = []
    # Of equally old entries those inserted are the newer ones.
    for number, (age_s, is_late) in sorted(
        enumerate(entries), key=lambda entry: (-entry[1][0], entry[1][1])
    ):
        clock.now_s = NOW_S - age_s
        in_time.add(vector(number), key=str(number))
        if is_late:
            late.append((number, age_s))
        else:
            inserted.add(vector(number), key=str(number))
    clock.now_s = NOW_S
    if late:
        numbers, ages_s = zip(*late, strict=True)
        rows = np.array([vector(number) for number in numbers])
        for _ in range(1 + (len(entries) <= size)):  # what is known is left out
            inserted.insert(rows, [str(number) for number in numbers], ages_s)
    assert inserted.size == in_time.size
    assert of_vectors(inserted, len(entries)) == of_vectors(in_time, len(entries))
    for number in range(100, 100 + size):  # they also leave in the same order
        inserted.add(vector(number), key=str(number))
        in_time.add(vector(number), key=str(number))
        assert of_vectors(inserted, len(entries)) == of_vectors(in_time, len(entries))


def test_a_load_that_is_larger_than_the_spare_room():
    cache = VectorCache(1000, 2)
    for number in range(990):
        cache.add(vector(number), key=f"own {number}")
    rows = np.array([vector(0)] * 1500)
    cache.insert(rows, [f"loaded {number}" for number in range(1500)], [0.0] * 1500)
    assert cache.size == 1000
    assert cache.nearest(vector(0)) == ("loaded 1499", pytest.approx(1))


def test_nothing_is_inserted_with_a_bad_vector():
    cache = VectorCache(10, 2)
    with pytest.raises(VectorError, match="not finite"):
        cache.insert(np.array([[1.0, 0.0], [np.nan, 0.0]]), ["a", "b"], [0.0, 0.0])
    assert cache.size == 0


def test_entries_without_a_key_are_all_kept():
    cache = VectorCache(10, 2)
    cache.add([1.0, 0.0])
    cache.insert(np.array([[1.0, 0.0], [0.0, 1.0]]), [None, None], [0.0, 0.0])
    assert cache.size == 3


@given(entries=ENTRIES, size=st.integers(1, 20), ttl_s=st.sampled_from([None, 20.0]))
def test_fingerprints_are_where_they_would_be(entries, size, ttl_s):
    ttl_ms = None if ttl_s is None else ttl_s * 1000
    clock = Clock()
    in_time = RepeatMemory(size, ttl_ms, clock=clock)
    inserted = RepeatMemory(size, ttl_ms, clock=clock)
    late = []
    for number, (age_s, is_late) in sorted(
        enumerate(entries), key=lambda entry: (-entry[1][0], entry[1][1])
    ):
        clock.now_s = NOW_S - age_s
        digest = bytes([number % 5])
        in_time.add(digest, str(number))
        if is_late:
            late.append((digest, str(number), float(age_s)))
        else:
            inserted.add(digest, str(number))
    clock.now_s = NOW_S
    inserted.insert(late)
    if len(entries) <= size:
        inserted.insert(late)  # what is known is left out
    for number in range(size + 1):
        for digest in range(5):
            assert inserted.find(bytes([digest])) == in_time.find(bytes([digest]))
        for memory in (inserted, in_time):
            memory.add(b"new", str(100 + number))
