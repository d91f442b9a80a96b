"""Which kept traces are shown, and in what order: by similarity, trust, credit, and a floor.

The arithmetic alone: what a search shows of it stands in `test_search`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from numpy.typing import NDArray

from kp_langchain.recall.credit import PRIOR_RUNS, credits_of
from kp_langchain.recall.ranking import (
    DEFAULT_FLOOR,
    HIGHEST_FLOOR,
    LOWEST_FLOOR,
    Candidate,
    Trust,
    calibrate_floor,
    plan_f1,
    rank,
)
from kp_langchain.store.side_tables import OutcomeCount

# ------------------------------------------------------------------ the order

UNITS = st.floats(0.0, 1.0)
TRUSTS: st.SearchStrategy[Trust] = st.sampled_from(("verdict", "own", "registry"))


def candidate(trace_id: str = "kp:trace:1", **changes: object) -> Candidate:
    one = Candidate(trace_id, similarity=0.8, trust="own", confidence=0.8, worth=0.6, credit=0.0)
    return replace(one, **changes)  # type: ignore[arg-type]


@st.composite
def candidates(draw: st.DrawFn) -> list[Candidate]:
    plans = st.dictionaries(st.sampled_from("abc"), st.integers(1, 3))
    return [
        Candidate(
            f"kp:trace:{at}", similarity=draw(UNITS), trust=draw(TRUSTS), confidence=draw(UNITS),
            worth=draw(UNITS), credit=draw(st.floats(-1.0, 1.0)), plan=draw(plans), tools=("a",),
        )
        for at in range(draw(st.integers(0, 12)))
    ]  # fmt: skip


def ids(ranked: list[Candidate]) -> list[str]:
    return [one.trace_id for one in ranked]


@given(candidates(), st.randoms(use_true_random=False), UNITS)
def test_all_above_the_floor_in_an_order_of_their_own(found, shuffled, floor):
    ranked = rank(found, floor=floor)
    assert {*ids(ranked)} == {one.trace_id for one in found if one.counted_similarity >= floor}
    assert all(one.similarity >= floor for one in ranked)
    other = list(found)
    shuffled.shuffle(other)
    assert ids(rank(other, floor=floor)) == ids(ranked)


USUAL, DETOUR = {"search": 2, "book": 1}, {"search": 9, "wait": 4}


@pytest.mark.parametrize(
    "in_order",
    [
        {  # a much more similar run comes before one with a verdict
            "similar": {"similarity": 0.85, "trust": "verdict"},
            "near": {"similarity": 0.9},
            "far": {"similarity": 0.5, "trust": "verdict"},
        },
        {  # a surer run comes before one that is hardly more similar
            "surer": {"similarity": 0.78, "confidence": 0.9},
            "less sure": {"similarity": 0.8, "confidence": 0.3},
        },
        {  # worth decides among runs that help equally
            "better": {"similarity": 0.801, "worth": 0.7},
            "worse": {"similarity": 0.802, "worth": 0.5},
        },
        {  # what helped runs comes before what did not
            "helped": {"credit": 0.2},
            "unknown": {"similarity": 0.82},
            "no help": {"credit": -0.1},
        },
        {  # what most did comes before what one did
            "usual": {"similarity": 0.7, "plan": USUAL},
            "second": {"similarity": 0.69, "plan": USUAL},
            "third": {"similarity": 0.68, "plan": USUAL},
            "unusual": {"similarity": 0.75, "plan": DETOUR},
        },
        {  # unless it is much more similar
            "unusual": {"similarity": 1.0, "trust": "verdict", "plan": DETOUR},
            "usual": {"similarity": 0.7, "plan": USUAL},
            "second": {"similarity": 0.69, "plan": USUAL},
            "third": {"similarity": 0.68, "plan": USUAL},
        },
        {  # what comes from a registry has no say in that
            "own 0": {"similarity": 0.75, "plan": {"a": 1}},
            "own 1": {"similarity": 0.74, "plan": {"a": 1}},
            "odd": {"similarity": 0.76, "plan": {"b": 1}},
            **{f"foreign {at}": {"trust": "registry", "plan": {"b": 1}} for at in range(8)},
        },
    ],
    ids=lambda in_order: " ".join(in_order),
)
def test_what_comes_first(in_order):
    found = [candidate(name, **changes) for name, changes in in_order.items()]
    assert ids(rank(found[::-1], floor=0.0)) == list(in_order)


def test_the_similarity_of_what_calls_other_tools_counts_half():
    tools = {"a"}
    whole = candidate("whole", similarity=0.5, plan={"a": 2}, tools=tools)
    half = candidate("half", similarity=0.6, plan={"a": 1, "b": 1}, tools=tools)
    other = candidate("other", similarity=0.9, plan={"b": 1}, tools=tools)
    found = [other, half, whole]
    assert {*ids(rank(found, floor=0.4))} == {"whole", "half", "other"}
    assert ids(rank(found, floor=0.46)) == ["whole"]
    for plan, tools, share in (
        ({"a": 3, "b": 1}, {"a"}, 0.75),
        ({"a": 3, "b": 1}, {"c"}, 0.0),
        ({"a": 3, "b": 1}, (), 1.0),
        ({}, {"a"}, 1.0),
        ({"[REDACTED:customer]_lookup": 1, "b": 1}, {"acme_lookup"}, 0.5),
    ):
        one = candidate(similarity=1.0, plan=plan, tools=tools)
        assert one.counted_similarity == 0.5 + share / 2


# ------------------------------------------------------------------ credit


def count(
    *, success: bool, runs: int, held_out: bool = False, is_stated: bool = True,
    namespace: str | None = None, shown_id: str = "a",
) -> OutcomeCount:  # fmt: skip
    return OutcomeCount(shown_id, held_out, success, is_stated, runs, namespace)


GOOD_WITHOUT = count(held_out=True, success=True, runs=30)
GOOD_IN_B = count(success=True, runs=12, namespace="tenant-b")
BAD_IN_A = count(success=False, runs=1000, namespace="tenant-a")


@pytest.mark.parametrize(
    ("counts", "hurts"),
    [
        ([GOOD_WITHOUT, count(success=False, runs=6)], True),
        ([GOOD_WITHOUT, count(success=False, runs=4)], False),
        ([GOOD_WITHOUT, count(success=True, runs=6)], False),
        # runs that nobody judged do not make it hurt
        ([GOOD_WITHOUT, count(success=False, is_stated=False, runs=1000)], False),
        # a small loss does not hurt, however sure it is
        ([count(held_out=True, success=True, runs=9000), count(success=True, runs=7500),
          count(held_out=True, success=False, runs=1000), count(success=False, runs=2500)], False),
        # one namespace alone takes a shared trace from nobody, nor by what it was held out from
        ([GOOD_WITHOUT, BAD_IN_A], False),
        ([GOOD_WITHOUT, GOOD_IN_B, BAD_IN_A], False),
        ([count(held_out=True, success=False, runs=30), GOOD_IN_B, count(success=False, runs=12),
          count(held_out=True, success=True, runs=1000, namespace="tenant-a")], False),
        # nor one whose runs are fewer than those that ended badly in a large one
        ([*(count(held_out=held_out, success=success, runs=runs, namespace="tenant-b")
            for held_out, success, runs in ((False, True, 1400), (False, False, 600),
                                            (True, True, 140), (True, False, 60))),
          count(success=False, runs=664, namespace="tenant-a"),
          count(held_out=True, success=True, runs=66, namespace="tenant-a")], False),
        # but two do, and those without a namespace
        ([GOOD_WITHOUT, count(success=False, runs=9, namespace="tenant-a"),
          count(success=False, runs=9, namespace="tenant-b")], True),
        ([GOOD_WITHOUT, count(success=False, runs=9)], True),
    ],
)  # fmt: skip
def test_a_trace_hurts_if_judged_runs_ended_worse_with_it(counts, hurts):
    assert credits_of(counts)["a"].hurts is hurts


def test_credit_is_the_difference_to_the_runs_that_went_without_shrunk_towards_nothing():
    assert credits_of([]) == {}
    (credit,) = credits_of([count(held_out=True, success=False, runs=9)]).values()
    assert (credit.value, credit.shown, credit.held_out) == (0.0, 0, 9)
    without = [count(held_out=True, success=good, runs=500) for good in (True, False)]
    few = credits_of([*without, count(success=True, runs=2)])["a"]
    many = credits_of([*without, count(success=True, runs=2000)])["a"]
    assert few.value == pytest.approx(0.5 * 2 / (2 + PRIOR_RUNS), abs=0.01)
    assert many.value == pytest.approx(0.5, abs=0.01)
    assert few.deviation > many.deviation
    # Its tasks are hard: without it, fewer succeed than elsewhere in the domain.
    hard = [count(held_out=True, success=success, runs=runs)
            for success, runs in ((True, 10), (False, 190))]  # fmt: skip
    easy = count(shown_id="easy", held_out=True, success=True, runs=200)
    shown = [count(success=success, runs=20) for success in (True, False)]
    assert credits_of([*hard, easy, *shown])["a"].value > 0.3
    # A run that nobody judged counts less.
    judged, guessed = (
        credits_of([GOOD_WITHOUT, count(success=False, is_stated=is_stated, runs=4)])["a"]
        for is_stated in (True, False)
    )
    assert judged.value < guessed.value < 0
    assert judged.shown == guessed.shown == 4


@given(
    st.lists(
        st.builds(
            OutcomeCount, st.sampled_from("abc"), st.booleans(), st.booleans(), st.booleans(),
            st.integers(1, 1000), st.sampled_from([None, "tenant-a", "tenant-b"]),
        ),
        max_size=20,
    ),
    st.integers(1, 50),
)  # fmt: skip
def test_whatever_the_outcomes_credit_is_bounded_and_more_successes_do_not_lower_it(rows, more):
    by_trace = credits_of(rows)
    assert by_trace.keys() == {row.shown_id for row in rows}
    for credit in by_trace.values():
        assert -1 <= credit.value <= 1
        assert 0 <= credit.deviation <= 0.75
        assert not (credit.hurts and credit.shown == 0)
    base = [*rows, count(held_out=True, success=True, runs=1)]
    before, after = credits_of(base)["a"], credits_of([*base, count(success=True, runs=more)])["a"]
    # The domain's rate, which the comparison is shrunk to, rises a little as well.
    assert after.value >= before.value - 0.1


# ------------------------------------------------------------------ the floor of a domain

PLANS = st.dictionaries(st.sampled_from("abcdef"), st.integers(0, 5))
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


def alike(number: int, similarity: float) -> NDArray[np.float32]:
    """Vectors of which each two have this cosine."""
    found = np.linalg.cholesky(np.full((number, number), similarity) + 1e-9 * np.eye(number)
                               + (1 - similarity) * np.eye(number))  # fmt: skip
    return found.astype(np.float32)


def unit_vectors(number: int) -> NDArray[np.float32]:
    """Vectors of tasks that have nothing in common."""
    return np.eye(max(number, 1), dtype=np.float32)[:number]


def different_plans(number: int) -> list[dict[str, int]]:
    return [{f"tool {at}": 1} for at in range(number)]


def with_a_retry(pair_cosine: float, other_cosine: float) -> NDArray[np.float32]:
    """Sixty tasks twice each in other words, which are near, and those of others are not."""
    vectors = pairs([pair_cosine] * 60) * np.sqrt(1 - other_cosine)
    return np.hstack([vectors, np.full((120, 1), np.sqrt(other_cosine))]).astype(np.float32)


def a_strange_task_or_two() -> NDArray[np.float32]:
    vectors = np.zeros((202, 202), np.float32)
    vectors[:200, :200] = alike(200, 0.3)
    vectors[200, 200] = vectors[201, 201] = 1.0
    return vectors


STEPS = np.linspace(0.21, 0.9, 70)
LATE = np.linspace(0.41, 0.9, 60)
BAD = [False, True, False, *[True] * 57]
WORSE = [False] * 10 + [True] * 50
FROM_BASE = np.linspace(0.25, 0.9, 60)


@pytest.mark.parametrize(
    ("vectors", "of_plans", "baseline", "least", "most"),
    [
        # A domain of which nothing is known has the default, and so has one without tools or tasks.
        *((unit_vectors(number), [SAME_PLAN] * number, 0.0, DEFAULT_FLOOR, DEFAULT_FLOOR)
          for number in range(4)),
        (unit_vectors(50), [{}] * 50, 0.0, DEFAULT_FLOOR, DEFAULT_FLOOR),
        (np.tile(np.eye(1, 8, dtype=np.float32), (40, 1)), different_plans(40), 0.0, DEFAULT_FLOOR,
         DEFAULT_FLOOR),
        # Where every plan is the same, it sinks to what the tasks need.
        (alike(400, 0.3), [SAME_PLAN] * 400, 0.0, 0.29, 0.31),
        (alike(400, 0.5), [SAME_PLAN] * 400, 0.0, DEFAULT_FLOOR, DEFAULT_FLOOR),
        (unit_vectors(400), [SAME_PLAN] * 400, 0.0, LOWEST_FLOOR, LOWEST_FLOOR + 0.01),
        (a_strange_task_or_two(), [SAME_PLAN] * 202, 0.0, 0.29, 0.31),
        (with_a_retry(0.9, 0.2), [SAME_PLAN] * 120, 0.0, 0.18, 0.22),
        # Where no plan is like another, only the most similar are shown.
        (pairs([0.3, 0.5, 0.8] * 100), different_plans(600), 0.0, HIGHEST_FLOOR - 0.01,
         HIGHEST_FLOOR),
        (pairs([0.3, 0.5, 0.8] * 3), different_plans(18), 0.0, DEFAULT_FLOOR + 0.001,
         HIGHEST_FLOOR - 0.02),
        # It lies where examples begin to help, counted from the embedder's baseline.
        *((pairs(STEPS), plans(begin < STEPS), 0.0, begin - 0.02, begin + 0.02)
          for begin in (0.25, 0.3, 0.5, 0.6)),
        (pairs(0.6 + 0.4 * FROM_BASE), plans(FROM_BASE > 0.5), 0.6, 0.48, 0.52),
        (pairs(LATE + 0.09), plans([True] * 60), 0.0, DEFAULT_FLOOR, DEFAULT_FLOOR),
        # A few bad examples are no proof, nor is one good one.
        (pairs(LATE), plans(BAD), 0.0, DEFAULT_FLOOR, DEFAULT_FLOOR),
        (pairs(LATE), plans(WORSE), 0.0, LATE[8], 0.9),
        (pairs([0.3, 0.35]), plans([True, False]), 0.0, DEFAULT_FLOOR, DEFAULT_FLOOR),
        (pairs([0.3, 0.35]), plans([True, True]), 0.0, DEFAULT_FLOOR, DEFAULT_FLOOR),
    ],
    ids=lambda value: "",
)  # fmt: skip
def test_the_floor_of_a_domain(vectors, of_plans, baseline, least, most):
    assert least <= calibrate_floor(vectors, of_plans, baseline) <= most


def test_a_few_tasks_that_agree_move_the_floor_a_little_and_by_small_steps():
    floors = [calibrate_floor(unit_vectors(number), [SAME_PLAN] * number) for number in range(61)]
    assert floors[:5] == [DEFAULT_FLOOR] * 5
    assert min(floors[:7]) > 0.23
    assert LOWEST_FLOOR < floors[60] < LOWEST_FLOOR + 0.02
    assert all(-0.16 < later - floor <= 0 for floor, later in pairwise(floors))


@pytest.mark.parametrize("number", [3, 5, 10])
def test_many_runs_of_few_tasks_prove_no_more_than_one_run_of_each(number):
    vectors = np.random.default_rng(1).normal(size=(number, 4)).astype(np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    once = calibrate_floor(vectors, [SAME_PLAN] * number)
    assert (once < DEFAULT_FLOOR) == (number > 3)
    same = [SAME_PLAN] * number * 20
    assert calibrate_floor(np.tile(vectors, (20, 1)), same) == pytest.approx(once)
    assert calibrate_floor(np.repeat(vectors, 20, axis=0), same) == pytest.approx(once)


@given(PLANS, PLANS)
@example({"a": 2, "b": 1}, {"a": 1, "c": 1})
def test_f1_of_plans(one, other):
    assert plan_f1(one, other) == plan_f1(other, one)
    assert 0.0 <= plan_f1(one, other) <= 1.0
    assert plan_f1(one, one) == 1.0
    assert plan_f1({"a": 2, "b": 1}, {"a": 1, "c": 1}) == pytest.approx(2 / 5)
    assert plan_f1({"a": 1}, {"b": 1}) == plan_f1({"a": 1}, {}) == 0
