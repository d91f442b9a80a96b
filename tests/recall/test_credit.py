"""A trace has credit for the runs that it was shown to, against those that went without."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kp_langchain.recall.credit import PRIOR_RUNS, credits_of
from kp_langchain.store.shown_queries import OutcomeCount

counts = st.lists(
    st.builds(
        OutcomeCount,
        st.sampled_from("abc"),
        st.booleans(),
        st.booleans(),
        st.booleans(),
        st.integers(1, 1000),
    ),
    max_size=20,
)


def count(shown_id: str, *, held_out: bool = False, success: bool, runs: int) -> OutcomeCount:
    return OutcomeCount(shown_id, held_out, success, is_stated=True, runs=runs)


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
    assert not credits_of([*without, count("a", success=False, runs=1)])["a"].hurts
    assert not credits_of([*without, count("a", success=True, runs=6)])["a"].hurts


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
