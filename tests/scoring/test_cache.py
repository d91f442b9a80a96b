"""`VectorCache` is a list of the newest vectors with a search; `RepeatMemory` is one of hashes."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kp_langchain.errors import KPError, VectorError
from kp_langchain.scoring import VectorCache
from kp_langchain.scoring.repeats import RepeatMemory

EQUAL = 1e-6  # similarities closer than this may order in any way


class Clock:
    """Seconds that move only when told to."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


class PlainList:
    """The cache as a plain list in float64."""

    def __init__(self, max_elements: int, ttl_s: float | None, clock: Clock) -> None:
        self.rows: list[tuple[float, str, np.ndarray]] = []
        self.max_elements, self.ttl_s, self.clock = max_elements, ttl_s, clock

    def live(self):
        ttl_s = math.inf if self.ttl_s is None else self.ttl_s
        return [row for row in self.rows if self.clock.now - row[0] < ttl_s]

    def add(self, vector, key):
        self.rows = [*self.live(), (self.clock.now, key, vector)][-self.max_elements :]

    def similarities(self, query, ignore=()):
        return {key: cosine(vector, query) for _, key, vector in self.live() if key not in ignore}


def cosine(a, b) -> float:
    norms = math.sqrt(float(a @ a)) * math.sqrt(float(b @ b))
    return float(a @ b) / norms if norms else 0.0


def assert_nearest(match, expected):
    """A match is the key of one of the most similar, and its similarity."""
    if not expected:
        assert match is None
        return
    key, similarity = match
    assert similarity == pytest.approx(max(expected.values()), abs=EQUAL)
    assert expected[key] == pytest.approx(similarity, abs=2 * EQUAL)


COUNTS = st.integers(1, 12) | st.just(150)
ACTIONS = st.tuples(st.just("wait"), st.sampled_from([0.25, 0.5, 1.0])) | st.tuples(
    st.sampled_from(["add", "insert", "remove", "query", "query", "clear"]), COUNTS
)


@given(
    max_elements=st.integers(1, 12),
    ttl_s=st.sampled_from([None, 0, 0.25, 1.0]),
    actions=st.lists(ACTIONS, max_size=40),
    seed=st.integers(0, 999),
    ignored=st.sets(st.integers(0, 40), max_size=3),
)
def test_it_behaves_like_a_plain_list(max_elements, ttl_s, actions, seed, ignored):
    clock, rng = Clock(), np.random.default_rng(seed)
    ttl_ms = None if ttl_s is None else ttl_s * 1000
    cache, plain = (
        VectorCache(max_elements, 3, ttl_ms, clock=clock),
        PlainList(max_elements, ttl_s, clock),
    )
    ignore = frozenset(map(str, ignored))
    count = 0
    for action, value in actions:
        if action == "wait":
            clock.now += value
            continue
        # Whole numbers, so that some are zero, and some the same.
        vectors = rng.integers(-2, 3, size=(value, 3)) * rng.choice([1.0, 0.3, 1e9])
        keys = [str(count + at) for at in range(value)]
        count += value
        if action == "add":
            cache.add(vectors[0], key=keys[0])
            plain.add(vectors[0], keys[0])
        elif action == "remove":
            gone = {key for _, key, _ in plain.live()[::2]}
            cache.remove(gone)
            plain.rows = [row for row in plain.live() if row[1] not in gone]
        elif action == "insert":
            for _ in range(1 + (value <= max_elements)):
                cache.insert(vectors, keys)  # what is known is left out
            for vector, key in zip(vectors, keys, strict=True):
                plain.add(vector, key)
        elif action == "query":
            assert_nearest(cache.nearest(vectors[0]), plain.similarities(vectors[0]))
            assert_nearest(
                cache.nearest(vectors[0], ignore=ignore), plain.similarities(vectors[0], ignore)
            )
            highest = max(plain.similarities(vectors[0]).values(), default=0.0)
            assert cache.max_cosine_similarity(vectors[0]) == pytest.approx(highest, abs=EQUAL)
        else:
            cache.clear()
            plain.rows = []
        assert cache.size == len(cache) == len(plain.live())


def test_of_equally_near_vectors_the_newest_is_nearest():
    cache = VectorCache(200, 2)
    for number in range(500):
        cache.add([1, 0], key=str(number))
        assert cache.nearest([2, 0]) == (str(number), 1)


@pytest.mark.parametrize("passed_s", [0.0, 0.1, 1.0, 36.9, 37.0, 99.9, 200.0])
def test_what_is_as_old_as_its_time_has_expired_among_many(passed_s):
    clock = Clock()
    cache = VectorCache(max_elements=600, dimensions=2, ttl_ms=50_000, clock=clock)
    for number in range(1000):
        cache.add([1, 0], key=str(number))
        clock.now += 0.125
    clock.now += passed_s
    living = max(0, math.ceil((50.0 - passed_s) / 0.125) - 1)  # at exactly 50 s one has expired
    assert cache.size == living
    cache.add([0, 1])
    assert cache.size == living + 1


VECTORS = st.integers(0, 2**32 - 1).map(
    lambda seed: np.random.default_rng(seed).standard_normal((40, 24)).astype(np.float32)
)


@given(
    VECTORS,
    st.sampled_from([1.0, 0.1, 3.7, 1e-3, 1e6, 1e-30, 1e30]),
    st.sampled_from([np.float32, np.float64]),
    st.sampled_from([0.0, 1.0, 1e-4, 1e-8]),
)
def test_similarity_is_what_float64_gives(vectors, scale, dtype, apart):
    """Of vectors in float32, whatever their length and however alike they are."""
    given_vectors = (vectors * np.float32(scale)).astype(dtype)
    given_vectors[1::2] = given_vectors[0] + given_vectors[1::2] * dtype(apart)
    kept = given_vectors.astype(np.float32).astype(np.float64)
    cache = VectorCache(dimensions=24)
    for number, vector in enumerate(given_vectors):
        highest = max((cosine(one, kept[number]) for one in kept[:number]), default=0.0)
        assert cache.max_cosine_similarity(vector) == pytest.approx(highest, abs=1e-12)
        cache.add(vector)


@pytest.mark.parametrize("scale", [1e-323, 1e-310, 1e-161, 1e-30, 1e30, 1e200, 1.7e308])
def test_magnitude_does_not_matter(scale):
    cache = VectorCache(dimensions=3)
    cache.add(np.array([1.0, 1.0, 0.0]) * scale)
    assert cache.max_cosine_similarity([1, 1, 0]) == pytest.approx(1.0, abs=1e-6)
    assert cache.max_cosine_similarity([1, 0, 0]) == pytest.approx(math.sqrt(0.5), abs=1e-6)


def test_similarity_may_be_negative_and_the_caller_s_array_is_neither_kept_nor_changed():
    cache = VectorCache(dimensions=2)
    vector = np.array([3.0, 4.0], dtype=np.float32)
    cache.add(vector)
    assert vector.tolist() == [3.0, 4.0]
    vector[:] = [-4.0, 3.0]
    assert cache.nearest([-6, -8]) == (None, pytest.approx(-1, abs=1e-6))
    assert cache.max_cosine_similarity([3, 4]) == pytest.approx(1.0, abs=1e-6)


@pytest.mark.parametrize(("vector", "length"), [([], "0"), ([1.0], "1"), (np.ones(385), "385")])
def test_a_wrong_length_names_both(vector, length):
    cache = VectorCache()
    for call in (cache.add, cache.nearest, cache.max_cosine_similarity):
        with pytest.raises(VectorError) as caught:
            call(vector)
        assert length in str(caught.value)
        assert "384" in str(caught.value)
    assert isinstance(caught.value, KPError)
    assert isinstance(caught.value, ValueError)


class Unreadable:
    def __array__(self, *args, **kwargs):
        raise RuntimeError("no")

    def __repr__(self):
        raise RuntimeError("no")


cyclic: list = [1.0]
cyclic.append(cyclic)
DATES = np.array(["2020-01-01", "2020-01-02"], dtype="datetime64[D]")


@pytest.mark.parametrize(
    "vector",
    [
        [math.nan, 1.0], [math.inf, 1.0], [1e308, -math.inf], [10**400, 1], None, "ab", ["1", "2"],
        b"ab", [True, False], [1j, 0], [None, 1.0], [[1.0, 2.0]], [[1.0], [2.0, 3.0]], 5.0, {1: 2},
        cyclic, Unreadable(), DATES,
    ],
    ids=lambda value: type(value).__name__,
)  # fmt: skip
def test_what_is_no_vector_is_refused(vector):
    cache = VectorCache(dimensions=2)
    for call in (cache.add, cache.max_cosine_similarity):
        with pytest.raises(VectorError):
            call(vector)
    assert cache.size == 0


@pytest.mark.parametrize(
    "bad", [[[1.0, 0.0], [math.nan, 0.0]], [[1.0, 0.0], [math.inf, 0.0]], np.eye(3)]
)
def test_an_array_with_one_bad_row_is_refused(bad):
    cache = VectorCache(dimensions=2)
    with pytest.raises(VectorError):
        cache.insert(np.array(bad), ["a"] * len(bad))
    assert cache.size == 0


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("max_elements", [0, -1, 1.5, True, None, "3", math.nan]),
        ("dimensions", [0, -1, 1.5, True, None, "3", math.nan]),
        ("ttl_ms", [-1, -1e-9, math.inf, math.nan, True, "3"]),
    ],
)
def test_bounds_are_checked(name, values):
    for value in values:
        with pytest.raises(ValueError, match=name):
            VectorCache(**{name: value})


FINGERPRINTS = st.tuples(st.sampled_from("abc"), st.sampled_from("xyz"))


@given(
    actions=st.lists(
        st.tuples(st.sampled_from(["add", "insert", "find"]), FINGERPRINTS, st.integers(0, 2)),
        max_size=40,
    ),
    max_elements=st.integers(1, 5),
    ttl_s=st.sampled_from([None, 0.5, 2.0]),
    ignore=st.sets(st.sampled_from("xyz"), max_size=2),
)
def test_fingerprints_are_found_as_in_a_plain_list(actions, max_elements, ttl_s, ignore):
    clock = Clock()
    memory = RepeatMemory(max_elements, ttl_s and ttl_s * 1000, clock=clock)
    plain = PlainList(max_elements, ttl_s, clock)

    def expected(text):
        keys = [key for _, key, one in plain.live() if one == text and key not in ignore]
        return keys[-1] if keys else None

    for action, (text, key), later in actions:
        clock.now += later / 4
        if action == "add":
            memory.add(text.encode(), key)
            plain.add(text, key)
        elif action == "insert":
            memory.insert([(text.encode(), key)] * 2)
            if (key, text) not in [row[1:] for row in plain.live()]:
                plain.add(text, key)
        match = memory.find(text.encode(), ignore=ignore)
        assert (match and match.trace_id) == expected(text)
