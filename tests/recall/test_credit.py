"""A trace has credit for the runs that it was shown to, against those that went without."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kp_langchain.recall.credit import PRIOR_RUNS, credits_of
from kp_langchain.store.shown_queries import OutcomeCount
from tests.benchmarks.credit import CASES, simulate

counts = st.lists(
    st.builds(
        OutcomeCount,
        st.sampled_from("abc"),
        st.booleans(),
        st.booleans(),
        st.booleans(),
        st.integers(1, 1000),
        st.sampled_from([None, "tenant-a", "tenant-b"]),
    ),
    max_size=20,
)


def count(
    shown_id: str,
    *,
    success: bool,
    runs: int,
    held_out: bool = False,
    is_stated: bool = True,
    namespace: str | None = None,
) -> OutcomeCount:
    return OutcomeCount(shown_id, held_out, success, is_stated, runs, namespace)


def test_what_was_never_shown_has_none() -> None:
    assert credits_of([]) == {}
    (credit,) = credits_of([count("a", held_out=True, success=False, runs=9)]).values()
    assert (credit.value, credit.shown, credit.held_out) == (0.0, 0, 9)
    assert not credit.hurts


def test_the_difference_is_shrunk_towards_nothing() -> None:
    without = [count("a", held_out=True, success=good, runs=500) for good in (True, False)]
    few = credits_of([*without, count("a", success=True, runs=2)])["a"]
    many = credits_of([*without, count("a", success=True, runs=2000)])["a"]
    assert few.value == pytest.approx(0.5 * 2 / (2 + PRIOR_RUNS), abs=0.01)
    assert many.value == pytest.approx(0.5, abs=0.01)
    assert few.deviation > many.deviation


def test_a_trace_is_compared_with_the_runs_that_it_was_found_for() -> None:
    # Its tasks are hard: without it, fewer succeed than elsewhere in the domain.
    hard = [
        count("hard", held_out=True, success=True, runs=10),
        count("hard", held_out=True, success=False, runs=190),
    ]
    easy = [count("easy", held_out=True, success=True, runs=200)]
    shown = [count("hard", success=True, runs=20), count("hard", success=False, runs=20)]
    assert credits_of([*hard, *easy, *shown])["hard"].value > 0.3


def test_runs_that_end_worse_with_it_show_that_it_hurts() -> None:
    without = [count("a", held_out=True, success=True, runs=30)]
    assert credits_of([*without, count("a", success=False, runs=6)])["a"].hurts
    assert not credits_of([*without, count("a", success=False, runs=4)])["a"].hurts
    assert not credits_of([*without, count("a", success=True, runs=6)])["a"].hurts


def test_a_small_loss_does_not_hurt_however_sure_it_is() -> None:
    rows = [
        count("a", held_out=held_out, success=success, runs=runs)
        for held_out, success, runs in (
            (True, True, 9000),
            (True, False, 1000),
            (False, True, 7500),
            (False, False, 2500),
        )
    ]
    credit = credits_of(rows)["a"]
    assert credit.value < -10 * credit.deviation
    assert not credit.hurts


def test_runs_that_nobody_judged_do_not_make_it_hurt() -> None:
    without = [count("a", held_out=True, success=True, runs=30)]
    guessed = credits_of([*without, count("a", success=False, is_stated=False, runs=1000)])["a"]
    assert guessed.value < -0.5
    assert not guessed.hurts


class TestOneNamespaceAlone:
    without = (count("a", held_out=True, success=True, runs=30),)
    good = (count("a", success=True, runs=12, namespace="tenant-b"),)

    def test_takes_a_shared_trace_from_nobody(self) -> None:
        bad = count("a", success=False, runs=1000, namespace="tenant-a")
        assert not credits_of([*self.without, bad])["a"].hurts
        assert not credits_of([*self.without, *self.good, bad])["a"].hurts

    def test_nor_by_what_it_was_held_out_from(self) -> None:
        held_out = count("a", held_out=True, success=True, runs=1000, namespace="tenant-a")
        rows = [count("a", held_out=True, success=False, runs=30), *self.good, held_out]
        assert not credits_of([*rows, count("a", success=False, runs=12)])["a"].hurts

    def test_but_two_do(self) -> None:
        bad = [count("a", success=False, runs=9, namespace=f"tenant-{word}") for word in "ab"]
        assert credits_of([*self.without, *bad])["a"].hurts

    def test_and_those_without_a_namespace_or_with_that_of_the_trace(self) -> None:
        assert credits_of([*self.without, count("a", success=False, runs=9)])["a"].hurts


@pytest.mark.parametrize(
    ("name", "least", "most"),
    [
        ("changes nothing, at 0.5", 0, 0.2),
        ("changes nothing, at 0.9", 0, 0.1),
        ("0.4 instead of 0.7, 100 runs", 0.6, 1),
    ],
)
def test_how_often_it_errs(name: str, least: float, most: float) -> None:
    assert least <= simulate(CASES[name], 15).ever <= most


def test_a_run_that_nobody_judged_counts_less() -> None:
    without = [count("a", held_out=True, success=True, runs=30)]
    judged = credits_of([*without, OutcomeCount("a", False, False, True, 4)])["a"]
    guessed = credits_of([*without, OutcomeCount("a", False, False, False, 4)])["a"]
    assert judged.value < guessed.value < 0
    assert judged.shown == guessed.shown == 4


@given(counts)
def test_whatever_the_outcomes(rows: list[OutcomeCount]) -> None:
    by_trace = credits_of(rows)
    assert by_trace.keys() == {row.shown_id for row in rows}
    for credit in by_trace.values():
        assert -1 <= credit.value <= 1
        assert 0 <= credit.deviation <= 0.75
        assert not (credit.hurts and credit.shown == 0)


@given(counts, st.integers(1, 50))
def test_more_successes_never_lower_it(rows: list[OutcomeCount], more: int) -> None:
    base = [*rows, count("a", held_out=True, success=True, runs=1)]
    before = credits_of(base)["a"].value
    after = credits_of([*base, count("a", success=True, runs=more)])["a"]
    # The domain's rate, which the comparison is shrunk to, rises a little as well.
    assert after.value >= before - 0.1
