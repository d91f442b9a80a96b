"""The threshold that holds a pass rate."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kp_langchain.gate.recent_values import WINDOW, JudgedRun, RecentValues

units = st.floats(0, 1)


def stream(recent: RecentValues, values: list[float], pass_rate: float) -> list[bool]:
    """Gate values one after the other."""
    passes = []
    for value in values:
        threshold = recent.threshold(pass_rate)
        passes.append(threshold is not None and value >= threshold)
        recent.add(JudgedRun(value, passes[-1], pass_rate))
    return passes


@pytest.mark.parametrize("pass_rate", [0.05, 0.1, 0.3, 0.7])
@pytest.mark.parametrize("seed", range(5))
def test_the_promised_share_passes(pass_rate: float, seed: int) -> None:
    draw = random.Random(seed)
    recent = RecentValues(draw.random() for _ in range(100))
    passes = stream(recent, [draw.random() for _ in range(300)], pass_rate)
    assert sum(passes) / 300 == pytest.approx(pass_rate, abs=0.02)


@pytest.mark.parametrize("seed", range(5))
def test_the_share_holds_while_values_fall(seed: int) -> None:
    draw = random.Random(seed)
    recent = RecentValues(draw.random() for _ in range(150))
    falling = [draw.random() * (1 - 0.4 * number / 300) for number in range(300)]
    fixed = sorted((draw.random() for _ in range(150)), reverse=True)[15]
    assert sum(value >= fixed for value in falling) / 300 < 0.07
    assert sum(stream(recent, falling, 0.1)) / 300 == pytest.approx(0.1, abs=0.02)


@pytest.mark.parametrize("seed", range(5))
def test_a_restart_between_changes_nothing(seed: int) -> None:
    draw = random.Random(seed)
    held_out = [draw.random() for _ in range(150)]
    values = [draw.random() for _ in range(WINDOW)]
    whole = stream(RecentValues(held_out), values, 0.1)
    before = stream(RecentValues(held_out), values[:120], 0.1)
    judged = [JudgedRun(one, passes, 0.1) for one, passes in zip(values, before, strict=False)]
    again = RecentValues(held_out, judged)
    assert [*before, *stream(again, values[120:], 0.1)] == whole


def test_runs_of_one_value_pass_at_the_rate_too() -> None:
    passes = stream(RecentValues([0.5] * 50), [0.5] * 300, 0.1)
    assert sum(passes) / 300 == pytest.approx(0.1, abs=0.02)


def test_too_few_runs_have_no_threshold() -> None:
    recent = RecentValues([0.5] * 29)
    assert recent.threshold(0.1) is None
    recent.add(JudgedRun(0.5, passes=False, pass_rate=0.1))
    assert recent.threshold(0.1) is not None


@given(
    st.lists(units, min_size=30, max_size=300),
    st.lists(st.booleans(), max_size=300),
    st.floats(0.01, 1.0),
)
def test_whatever_came_before_the_share_is_at_most_four_times_the_promised_one(
    values: list[float], passes: list[bool], pass_rate: float
) -> None:
    recent = RecentValues(values, (JudgedRun(0.5, one, pass_rate) for one in passes))
    known = [*values, *[0.5] * len(passes)][-WINDOW:]
    threshold = recent.threshold(pass_rate)
    assert threshold is not None
    above = sum(value > threshold for value in known)
    assert above <= round(min(1.0, 4 * pass_rate) * len(known))


def test_what_passed_by_a_fixed_threshold_is_not_made_up_for() -> None:
    draw = random.Random(1)
    judged = [JudgedRun(draw.random(), passes=False, pass_rate=None) for _ in range(WINDOW)]
    passes = stream(RecentValues((), judged), [draw.random() for _ in range(300)], 0.1)
    assert sum(passes[:50]) <= 10
    assert sum(passes) / 300 == pytest.approx(0.1, abs=0.02)


@pytest.mark.parametrize(("before", "after"), [(0.1, 0.3), (0.3, 0.1)])
def test_another_rate_holds_at_once(before: float, after: float) -> None:
    draw = random.Random(1)
    recent = RecentValues(draw.random() for _ in range(100))
    stream(recent, [draw.random() for _ in range(300)], before)
    passes = stream(recent, [draw.random() for _ in range(200)], after)
    assert sum(passes) / 200 == pytest.approx(after, abs=0.03)


def test_everything_passes_at_rate_1() -> None:
    recent = RecentValues([0.2] * 40)
    assert all(stream(recent, [0.2, 0.9, 0.3], 1.0))
