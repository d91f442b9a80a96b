"""The floor of a domain, from its own successes."""

from __future__ import annotations

import time
from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from kp_langchain.recall.floor import (
    DEFAULT_FLOOR,
    HIGHEST_FLOOR,
    LOWEST_FLOOR,
    calibrate_floor,
    plan_f1,
)

_PLANS = st.dictionaries(st.sampled_from("abcdef"), st.integers(0, 5))
SAME_PLAN = {"search": 2, "finish": 1}


def pairs(similarities: Sequence[float]) -> NDArray[np.float32]:
    """Vectors of which two and two have these cosines, and all others are orthogonal."""
    rows = np.zeros((2 * len(similarities), 2 * len(similarities)), dtype=np.float32)
    for at, cosine in enumerate(similarities):
        first, second = 2 * at, 2 * at + 1
        rows[first, first] = 1.0
        rows[second, first], rows[second, second] = cosine, np.sqrt(1 - cosine**2)
    return rows


def plans(useful: Sequence[bool]) -> list[dict[str, int]]:
    """Plans of such pairs: the same, or without a tool in common."""
    return [
        plan
        for at, same in enumerate(useful)
        for plan in ({f"tool {at}": 1}, {f"tool {at if same else -1 - at}": 1})
    ]


@pytest.mark.parametrize("number", [0, 1, 2, 3])
def test_a_domain_of_which_nothing_is_known_has_the_default(number):
    vectors = np.eye(max(number, 1), dtype=np.float32)[:number]
    assert calibrate_floor(vectors, [SAME_PLAN] * number) == DEFAULT_FLOOR


def alike(number: int, similarity: float) -> NDArray[np.float32]:
    """Vectors of which each two have this cosine."""
    found = np.linalg.cholesky(np.full((number, number), similarity) + 1e-9 * np.eye(number)
                               + (1 - similarity) * np.eye(number))  # fmt: skip
    return found.astype(np.float32)


def test_where_every_plan_is_the_same_the_floor_sinks_to_what_its_tasks_need():
    assert calibrate_floor(alike(400, 0.3), [SAME_PLAN] * 400) == pytest.approx(0.3, abs=0.01)
    assert calibrate_floor(alike(400, 0.5), [SAME_PLAN] * 400) == DEFAULT_FLOOR
    lowest = calibrate_floor(np.eye(400, dtype=np.float32), [SAME_PLAN] * 400)
    assert LOWEST_FLOOR < lowest < LOWEST_FLOOR + 0.01


def test_a_strange_task_or_two_lower_no_floor():
    vectors = np.zeros((202, 202), np.float32)
    vectors[:200, :200] = alike(200, 0.3)
    vectors[200, 200] = vectors[201, 201] = 1.0
    assert calibrate_floor(vectors, [SAME_PLAN] * 202) > 0.29


def test_a_retried_task_is_not_taken_for_another_one():
    """The same tasks in other words are near, and those of others are not."""
    vectors = pairs([0.9] * 60)
    vectors = np.hstack([vectors * np.sqrt(0.8), np.full((120, 1), np.sqrt(0.2))])
    floor = calibrate_floor(vectors.astype(np.float32), [SAME_PLAN] * 120)
    assert floor == pytest.approx(0.2, abs=0.02)


def test_a_few_tasks_that_agree_move_the_floor_a_little_and_by_small_steps():
    floors = [
        calibrate_floor(np.eye(max(number, 1), dtype=np.float32)[:number], [SAME_PLAN] * number)
        for number in range(61)
    ]
    assert floors[:5] == [DEFAULT_FLOOR] * 5
    assert min(floors[:7]) > 0.23
    assert LOWEST_FLOOR < floors[60] < LOWEST_FLOOR + 0.02
    assert all(-0.16 < later - floor <= 0 for floor, later in pairwise(floors))


def test_where_no_plan_is_like_another_only_the_most_similar_are_shown():
    vectors = pairs([0.3, 0.5, 0.8] * 100)
    different = [{f"tool {at}": 1} for at in range(600)]
    floor = calibrate_floor(vectors, different)
    assert HIGHEST_FLOOR - 0.01 < floor < HIGHEST_FLOOR
    assert DEFAULT_FLOOR < calibrate_floor(vectors[:18], different[:18]) < floor


@pytest.mark.parametrize("begin", [0.25, 0.3, 0.5, 0.6])
def test_the_floor_lies_where_examples_begin_to_help(begin):
    similarities = np.linspace(0.21, 0.9, 70)
    found = calibrate_floor(pairs(similarities.tolist()), plans(similarities > begin))
    assert found == pytest.approx(begin, abs=0.02)


def test_where_similar_tasks_alone_have_similar_plans_the_default_stays():
    similarities = np.linspace(0.5, 0.9, 60)
    assert calibrate_floor(pairs(similarities.tolist()), plans([True] * 60)) == DEFAULT_FLOOR


def test_a_few_bad_examples_are_no_proof():
    similarities = np.linspace(0.41, 0.9, 60)
    useful = [True] * 60
    useful[0] = useful[2] = False
    assert calibrate_floor(pairs(similarities.tolist()), plans(useful)) == DEFAULT_FLOOR
    useful[:10] = [False] * 10
    assert calibrate_floor(pairs(similarities.tolist()), plans(useful)) > similarities[8]


def test_one_good_example_is_no_proof():
    assert calibrate_floor(pairs([0.3, 0.35]), plans([True, False])) == DEFAULT_FLOOR
    assert calibrate_floor(pairs([0.3, 0.35]), plans([True, True])) == DEFAULT_FLOOR


def test_the_floor_counts_from_the_embedders_baseline():
    similarities = np.linspace(0.25, 0.9, 60)
    with_baseline = 0.6 + 0.4 * similarities
    vectors = pairs(with_baseline.tolist())
    found = calibrate_floor(vectors, plans(similarities > 0.5), baseline=0.6)
    assert found == pytest.approx(0.5, abs=0.02)


def test_runs_of_one_task_say_nothing_of_others():
    one_task = np.tile(np.eye(1, 8, dtype=np.float32), (40, 1))
    assert calibrate_floor(one_task, [{f"tool {at}": 1} for at in range(40)]) == DEFAULT_FLOOR


@pytest.mark.parametrize("number", [3, 5, 10])
@pytest.mark.parametrize("times", [3, 20])
def test_many_runs_of_few_tasks_prove_no_more_than_one_run_of_each(number, times):
    vectors = np.random.default_rng(1).normal(size=(number, 4)).astype(np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    same = [SAME_PLAN] * number
    once = calibrate_floor(vectors, same)
    assert (once < DEFAULT_FLOOR) == (number > 3)
    assert calibrate_floor(np.tile(vectors, (times, 1)), same * times) == pytest.approx(once)
    assert calibrate_floor(np.repeat(vectors, times, axis=0), same * times) == pytest.approx(once)


def test_without_tools_there_are_no_plans_to_compare():
    assert calibrate_floor(np.eye(50, dtype=np.float32), [{}] * 50) == DEFAULT_FLOOR


@given(
    st.lists(st.tuples(_PLANS, st.integers(0, 3)), max_size=60),
    st.sampled_from([0.0, np.nan, np.inf, -np.inf, 1e-30]),
    st.floats(0, 0.99),
)
def test_whatever_the_vectors_the_floor_is_within_its_limits(found, odd, baseline):
    vectors = np.eye(4, 8, dtype=np.float32)[[at for _, at in found]]
    vectors[::7] = odd
    floor = calibrate_floor(vectors, [plan for plan, _ in found], baseline)
    assert LOWEST_FLOOR <= floor <= HIGHEST_FLOOR
    assert floor == calibrate_floor(vectors, [plan for plan, _ in found], baseline)


def test_a_large_domain_is_sampled():
    random = np.random.default_rng(1)
    vectors = random.normal(size=(10_000, 384)).astype(np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    many = [{"search": 1, f"tool {at % 7}": 1} for at in range(10_000)]
    began = time.thread_time()
    first = calibrate_floor(vectors, many)
    assert time.thread_time() - began < 20  # seconds; all pairs of plans would take minutes
    assert first == calibrate_floor(vectors, many)


@given(_PLANS, _PLANS)
def test_f1_of_plans(one, other):
    assert plan_f1(one, other) == plan_f1(other, one)
    assert 0.0 <= plan_f1(one, other) <= 1.0
    assert plan_f1(one, one) == 1.0


@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [
        ({"a": 2, "b": 1}, {"a": 1, "c": 1}, 2 / 5),
        ({"a": 1}, {"b": 1}, 0.0),
        ({"a": 1}, {}, 0.0),
        ({}, {}, 1.0),
        ({"a": -5}, {"a": 2}, 0.0),
    ],
)
def test_f1_by_hand(one, other, expected):
    assert plan_f1(one, other) == pytest.approx(expected)
