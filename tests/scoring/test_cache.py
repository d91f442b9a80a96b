from __future__ import annotations

import itertools
import math
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kp_langchain.errors import KPError, VectorError
from kp_langchain.scoring import VectorCache


class Clock:
    """Seconds that move only when told to."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


class Model:
    """The cache as a plain list in float64."""

    def __init__(self, max_elements: int, ttl_ms: float | None, clock: Clock) -> None:
        self.entries: list[tuple[float, str, np.ndarray]] = []
        self.max_elements, self.ttl_ms, self.clock = max_elements, ttl_ms, clock

    def live(self):
        return [
            entry
            for entry in self.entries
            if self.ttl_ms is None or (self.clock.now - entry[0]) * 1000 < self.ttl_ms
        ]

    def add(self, vector, key):
        self.entries = [*self.live(), (self.clock.now, key, vector)][-self.max_elements :]

    def similarities(self, query):
        return {key: cosine(vector, query) for _, key, vector in self.live()}


def cosine(a, b) -> float:
    norms = math.sqrt(float(a @ a)) * math.sqrt(float(b @ b))
    return float(a @ b) / norms if norms else 0.0


vectors = st.lists(
    st.integers(-3, 3).map(float) | st.floats(-2, 2, width=32).filter(lambda x: abs(x) > 1e-3),
    min_size=3,
    max_size=3,
).map(np.array)
adding = st.tuples(st.just("add"), vectors)
asking = st.tuples(st.just("query"), vectors)
waiting = st.tuples(st.just("wait"), st.sampled_from([0.25, 0.5, 1.0]))
actions = st.lists(
    st.one_of(adding, adding, adding, asking, asking, waiting, waiting, st.just(("clear", None))),
    max_size=60,
)


@given(st.integers(1, 6), st.sampled_from([None, 0, 250.0, 1000.0]), actions, st.integers(0, 9))
def test_behaves_like_a_plain_list(max_elements, ttl_ms, steps, ignored):
    clock = Clock()
    cache = VectorCache(max_elements, 3, ttl_ms, clock=clock)
    model = Model(max_elements, ttl_ms, clock)
    names = (f"v{number}" for number in itertools.count())
    ignore = frozenset({f"v{ignored}", f"v{ignored + 1}"})
    for action, value in steps:
        if action == "add":
            name = next(names)
            cache.add(value, key=name)
            model.add(value, name)
        elif action == "wait":
            clock.now += value
        elif action == "clear":
            cache.clear()
            model.entries = []
        else:
            expected = model.similarities(value)
            assert cache.max_cosine_similarity(value) == pytest.approx(
                max(expected.values(), default=0.0), abs=1e-6
            )
            assert_nearest(cache.nearest(value), expected)
            others = {key: sim for key, sim in expected.items() if key not in ignore}
            assert_nearest(cache.nearest(value, ignore=ignore), others)
        assert cache.size == len(cache) == len(model.live())


def assert_nearest(found, expected):
    if not expected:
        assert found is None
        return
    key, similarity = found
    assert similarity == pytest.approx(max(expected.values()), abs=1e-6)
    assert expected[key] == pytest.approx(similarity, abs=1e-6)


def test_empty_and_zero_vectors():
    cache = VectorCache(dimensions=2)
    assert cache.max_cosine_similarity([1, 0]) == 0.0
    assert cache.nearest([1, 0]) is None
    cache.add([0, 0], key="zero")
    assert cache.nearest([1, 0]) == ("zero", 0.0)
    cache.add([-1, 0], key="opposite")
    assert cache.nearest([1, 0]) == ("zero", 0.0)
    assert cache.max_cosine_similarity([0, 0]) == 0.0


def test_similarity_may_be_negative():
    cache = VectorCache(dimensions=2)
    cache.add([-1, 0])
    assert cache.nearest([2, 0]) == (None, -1.0)


def test_oldest_leaves_first():
    cache = VectorCache(max_elements=2, dimensions=3)
    for axis in range(3):
        cache.add(np.eye(3)[axis], key=str(axis))
    assert len(cache) == 2
    assert [cache.max_cosine_similarity(np.eye(3)[axis]) for axis in range(3)] == [0.0, 1.0, 1.0]


@pytest.mark.parametrize("passed_s", [0.0, 0.1, 1.0, 36.9, 37.0, 99.9, 200.0])
def test_what_expired_is_found_among_many(passed_s):
    clock = Clock()
    cache = VectorCache(max_elements=600, dimensions=2, ttl_ms=50_000, clock=clock)
    for number in range(1000):
        cache.add([1, 0], key=str(number))
        clock.now += 0.125
    clock.now += passed_s
    # At exactly 50 s one has expired.
    living = max(0, math.ceil((50.0 - passed_s) / 0.125) - 1)
    assert cache.size == living
    cache.add([0, 1])
    assert cache.size == living + 1


def test_a_few_entries_that_keep_expiring():
    """The entries wander through the array and to its front again."""
    clock = Clock()
    cache = VectorCache(max_elements=4, dimensions=4, ttl_ms=1000, clock=clock)
    for axis in (0, 1, 2):
        cache.add(np.eye(4)[axis], key=f"old {axis}")
    clock.now += 0.75
    for axis in (3, 0):
        cache.add(np.eye(4)[axis], key=f"new {axis}")
    clock.now += 0.5
    for number in range(1000):
        cache.add(np.eye(4)[3], key=f"passing {number}")
        clock.now += 0.5
        assert cache.size <= 4
    clock.now += 1.5
    assert cache.size == 0
    for axis in (3, 0):
        cache.add(np.eye(4)[axis], key=f"new {axis}")
    assert cache.size == 2
    assert cache.nearest(np.eye(4)[3]) == ("new 3", 1.0)
    assert cache.nearest(np.eye(4)[0]) == ("new 0", 1.0)
    assert cache.nearest(np.eye(4)[0], ignore={"new 0"}) == ("new 3", 0.0)
    assert cache.max_cosine_similarity(np.eye(4)[1]) == 0.0


def test_at_exactly_its_age_an_entry_has_expired():
    clock = Clock()
    cache = VectorCache(dimensions=2, ttl_ms=500, clock=clock)
    cache.add([1, 0], key="a")
    clock.now += 0.5 - 2**-20
    assert cache.size == 1
    clock.now += 2**-20
    assert cache.size == 0
    assert cache.nearest([1, 0]) is None
    assert cache.max_cosine_similarity([1, 0]) == 0.0


@pytest.mark.parametrize("ttl_ms", [0, 0.0, -0.0])
def test_a_ttl_of_nothing_keeps_nothing(ttl_ms):
    clock = Clock()
    cache = VectorCache(dimensions=2, ttl_ms=ttl_ms, clock=clock)
    cache.add([1, 0], key="a")
    assert cache.size == 0
    assert cache.nearest([1, 0]) is None
    assert cache.nearest_then_add(np.ones((300, 2)), ["b"] * 300) == [None] * 300
    assert cache.size == 0


real_vectors = st.integers(0, 2**32 - 1).map(
    lambda seed: np.random.default_rng(seed).standard_normal((40, 24)).astype(np.float32)
)


@given(
    real_vectors,
    st.sampled_from([1.0, 0.1, 3.7, 1e-3, 1e6, 1e-30, 1e30]),
    st.sampled_from([np.float32, np.float64]),
    st.sampled_from([0.0, 1.0, 1e-4, 1e-8]),
)
def test_similarity_is_what_float64_gives(vectors, scale, dtype, apart):
    """Of vectors in float32, whatever their length and however alike they are."""
    given_vectors = (vectors * np.float32(scale)).astype(dtype)
    given_vectors[1::2] = given_vectors[0] + given_vectors[1::2] * dtype(apart)
    kept = given_vectors.astype(np.float32).astype(np.float64)
    single, many = VectorCache(dimensions=24), VectorCache(dimensions=24)
    found = many.nearest_then_add(given_vectors, [None] * 40)
    for number, vector in enumerate(given_vectors):
        highest = max((cosine(one, kept[number]) for one in kept[:number]), default=0.0)
        assert single.max_cosine_similarity(vector) == pytest.approx(highest, abs=1e-12)
        assert (found[number] or (None, 0.0))[1] == pytest.approx(highest, abs=1e-12)
        single.add(vector)


@pytest.mark.parametrize("scale", [1e-323, 1e-310, 1e-161, 1e-30, 1e30, 1e200, 1.7e308])
def test_magnitude_does_not_matter(scale):
    cache = VectorCache(dimensions=3)
    cache.add(np.array([1.0, 1.0, 0.0]) * scale)
    assert cache.max_cosine_similarity([1, 1, 0]) == pytest.approx(1.0, abs=1e-6)
    assert cache.max_cosine_similarity([1, 0, 0]) == pytest.approx(math.sqrt(0.5), abs=1e-6)


def test_the_callers_array_is_neither_kept_nor_changed():
    cache = VectorCache(dimensions=2)
    vector = np.array([3.0, 4.0], dtype=np.float32)
    cache.add(vector)
    assert vector.tolist() == [3.0, 4.0]
    vector[:] = [-4.0, 3.0]
    assert cache.max_cosine_similarity([3, 4]) == pytest.approx(1.0, abs=1e-6)


@pytest.mark.parametrize(("given", "named"), [([], "0"), ([1.0], "1"), (np.ones(385), "385")])
def test_wrong_length_names_both(given, named):
    cache = VectorCache()
    for call in (cache.add, cache.nearest, cache.max_cosine_similarity):
        with pytest.raises(VectorError) as caught:
            call(given)
        assert named in str(caught.value)
        assert "384" in str(caught.value)
    assert isinstance(caught.value, KPError)
    assert isinstance(caught.value, ValueError)
    assert cache.size == 0


class Unreadable:
    def __array__(self, *args, **kwargs):
        raise RuntimeError("no")

    def __repr__(self):
        raise RuntimeError("no")


cyclic: list = [1.0]
cyclic.append(cyclic)


@pytest.mark.parametrize(
    "given",
    [
        [math.nan, 1.0],
        [math.inf, 1.0],
        [1e308, -math.inf],
        [10**400, 1],
        None,
        "ab",
        ["1", "2"],
        b"ab",
        [True, False],
        [1j, 0],
        [None, 1.0],
        [[1.0, 2.0]],
        [[1.0], [2.0, 3.0]],
        5.0,
        {1: 2},
        cyclic,
        Unreadable(),
        np.array(["2020-01-01", "2020-01-02"], dtype="datetime64[D]"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_is_no_vector_is_refused(given):
    cache = VectorCache(dimensions=2)
    for call in (cache.add, cache.max_cosine_similarity):
        with pytest.raises(VectorError):
            call(given)
    assert cache.size == 0


@pytest.mark.parametrize("bad", [0, -1, 1.5, True, None, "3", math.nan])
@pytest.mark.parametrize("name", ["max_elements", "dimensions"])
def test_sizes_are_checked(name, bad):
    with pytest.raises(ValueError, match=name):
        VectorCache(**{name: bad})


@pytest.mark.parametrize("bad", [-1, -1e-9, math.inf, math.nan, True, "3"])
def test_ttl_is_checked(bad):
    with pytest.raises(ValueError, match="ttl_ms"):
        VectorCache(ttl_ms=bad)


def test_among_equals_the_newest_is_the_nearest():
    cache = VectorCache(dimensions=3)
    for key, vector in [("a", [1, 0, 0]), ("b", [2, 0, 0]), ("c", [0, 1, 0]), ("d", [1, 1e-9, 0])]:
        cache.add(vector, key=key)
    assert cache.nearest([5, 0, 0]) == ("d", 1.0)
    assert cache.nearest([5, 0, 0], ignore={"d"}) == ("b", 1.0)
    assert cache.nearest([5, 0, 0], ignore={"b", "d"}) == ("a", 1.0)
    assert cache.nearest([5, 0, 0], ignore={"a", "b", "d"}) == ("c", 0.0)
    assert cache.nearest([5, 0, 0], ignore={"a", "b", "c", "d"}) is None


def test_a_hair_less_similar_is_equal():
    cache = VectorCache(dimensions=2)
    for key, vector in [("a", [1, 0]), ("less by 5e-7", [1, 1e-3]), ("less by 2e-6", [1, 2e-3])]:
        cache.add(vector, key=key)
    assert cache.nearest([1, 0]) == ("less by 5e-7", 1.0)
    assert cache.nearest_then_add([[1, 0], [1, 0]], ["b", "c"]) == [("less by 5e-7", 1), ("b", 1)]


def test_a_hair_less_similar_is_not_taken_for_identical():
    """Also not after the entries moved to where identical ones were before."""
    cache = VectorCache(max_elements=4, dimensions=2)
    for _ in range(128):
        cache.add([1, 1])
    for number, vector in enumerate([[1, -1], [1, 0], [1, 1e-3], [1, -1], [1, -1]]):
        cache.add(vector, key=str(number))
        assert cache.nearest([1, 0])[1] == pytest.approx(math.sqrt(0.5) if number == 0 else 1.0)
    assert cache.nearest([1, 0]) == ("2", 1.0)


def test_a_thousand_equals():
    cache = VectorCache(dimensions=8)
    vectors = np.tile(np.arange(8.0), (1500, 1))
    found = cache.nearest_then_add(vectors, [str(number) for number in range(1500)])
    assert found[0] is None
    for number, one in enumerate(found[1:]):
        assert one == (str(number), pytest.approx(1.0, abs=1e-6))
    assert cache.nearest(vectors[0]) == ("1499", pytest.approx(1.0, abs=1e-6))


keyed = st.lists(st.tuples(vectors, st.integers(0, 20)), max_size=60)


@given(
    st.integers(1, 70),
    st.sampled_from([None, 500.0]),
    st.lists(keyed, max_size=4),
    st.sets(st.integers(0, 20), max_size=3),
)
def test_many_at_once_find_and_leave_what_one_by_one_does(max_elements, ttl_ms, groups, ignored):
    clock = Clock()
    many = VectorCache(max_elements, 3, ttl_ms, clock=clock)
    single = VectorCache(max_elements, 3, ttl_ms, clock=clock)
    ignore = {str(number) for number in ignored}
    for group in groups:
        expected = []
        for vector, key in group:
            expected.append(single.nearest(vector, ignore=ignore))
            single.add(vector, key=str(key))
        found = many.nearest_then_add(
            np.array([vector for vector, _ in group]).reshape(-1, 3),
            [str(key) for _, key in group],
            ignore=ignore,
        )
        assert_same(found, expected)
        assert many.size == single.size
        clock.now += 0.375
        for query in np.eye(3):
            assert_same([many.nearest(query)], [single.nearest(query)])


@pytest.mark.parametrize("max_elements", [3, 100, 128, 300, 5000])
def test_blocks_of_all_sizes_in_caches_of_all_sizes(max_elements):
    rng = np.random.default_rng(1)
    many, single = VectorCache(max_elements, 16), VectorCache(max_elements, 16)
    keys = [str(number) for number in range(2000)]
    for size in (1, 300, 127, 129, 2000, 2000, 2000, 64):
        vectors = rng.normal(size=(size, 16)).astype(np.float32)
        vectors[rng.random(size) < 0.3] = vectors[0]
        expected = []
        for vector, key in zip(vectors, keys, strict=False):
            expected.append(single.nearest(vector, ignore={"3", "17"}))
            single.add(vector, key=key)
        found = many.nearest_then_add(vectors, keys[:size], ignore={"3", "17"})
        assert_same(found, expected)


def assert_same(found, expected):
    assert [one and one[0] for one in found] == [one and one[0] for one in expected]
    for one, other in zip(found, expected, strict=True):
        assert one is None or one[1] == pytest.approx(other[1], abs=1e-9)


@pytest.mark.parametrize(
    "bad", [[[1.0, 0.0], [math.nan, 0.0]], np.array([[1.0, 0.0], [math.inf, 0.0]]), np.eye(3)]
)
def test_nothing_is_added_if_one_of_many_is_refused(bad):
    cache = VectorCache(dimensions=2)
    with pytest.raises(VectorError):
        cache.nearest_then_add(bad, ["a"] * len(bad))
    assert cache.size == 0


def test_each_of_many_needs_a_key():
    cache = VectorCache(dimensions=2)
    with pytest.raises(ValueError, match="2 vectors, but 1 keys"):
        cache.nearest_then_add(np.eye(2), ["a"])
    assert cache.nearest_then_add([], []) == []
    assert cache.nearest_then_add([[3, 0], [0, 0], [1e-320, 0]], [None] * 3)[2] == (None, 1.0)


def test_many_threads():
    cache = VectorCache(max_elements=50, dimensions=8, ttl_ms=60_000)

    def work(seed):
        random = np.random.default_rng(seed)
        for number in range(200):
            vector = random.normal(size=8)
            cache.add(vector, key=f"{seed}-{number}")
            found = cache.nearest(vector)
            assert found is not None
            assert -1.0 <= found[1] <= 1.0
            assert cache.size <= 50

    with ThreadPoolExecutor(6) as pool:
        assert list(pool.map(work, range(6))) == [None] * 6
    assert cache.size == 50
