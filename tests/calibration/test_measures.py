"""Figures agree with scikit-learn's and scipy's; intervals know that repeats are alike."""

from __future__ import annotations

import random
import statistics
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kp_langchain.calibration.measures import (
    auc,
    auc_gain,
    auc_value,
    brier,
    mean_p_value,
    reliability,
    share,
)

metrics = pytest.importorskip("sklearn.metrics")
stats = pytest.importorskip("scipy.stats")

SCORED = st.lists(
    st.tuples(st.booleans(), st.sampled_from([0.0, 0.1, 0.25, 0.5, 0.75, 1.0])),
    min_size=4,
    max_size=40,
).filter(lambda pairs: len({success for success, _ in pairs}) == 2)


def drawn(tasks: int, repeats: int, seed: int) -> tuple[list[bool], list[float], list[str]]:
    """Runs of tasks, the runs of a task nearly alike."""
    rng = random.Random(seed)
    rows = []
    for task in range(tasks):
        success = rng.random() < 0.5
        middle = rng.gauss(1.0 if success else 0.0, 1)
        rows += [(success, middle + rng.gauss(0, 0.01), str(task)) for _ in range(repeats)]
    return [one[0] for one in rows], [one[1] for one in rows], [one[2] for one in rows]


@given(SCORED)
def test_auc_is_scikit_learns(pairs: Any) -> None:
    truth, scores = [one[0] for one in pairs], [one[1] for one in pairs]
    found = auc(truth, scores, [str(at) for at in range(len(pairs))])
    assert found.value == pytest.approx(metrics.roc_auc_score(truth, scores), abs=1e-12)
    assert 0 <= found.low <= found.value <= found.high <= 1


@given(SCORED)
def test_brier_is_scikit_learns(pairs: Any) -> None:
    truth, scores = [one[0] for one in pairs], [one[1] for one in pairs]
    assert brier(truth, scores) == pytest.approx(metrics.brier_score_loss(truth, scores))


def test_the_interval_is_as_wide_as_tasks_drawn_anew_say() -> None:
    truth, scores, tasks = drawn(tasks=80, repeats=3, seed=2)
    found = auc(truth, scores, tasks)
    rng = random.Random(0)
    members = {task: [at for at, one in enumerate(tasks) if one == task] for task in set(tasks)}
    names = sorted(members)
    again = []
    for _ in range(400):
        places = [at for task in rng.choices(names, k=len(names)) for at in members[task]]
        again.append(metrics.roc_auc_score([truth[i] for i in places], [scores[i] for i in places]))
    width = 2 * 1.96 * statistics.stdev(again)
    assert found.high - found.low == pytest.approx(width, rel=0.2)


def test_saying_everything_five_times_makes_nothing_surer() -> None:
    truth, scores, tasks = drawn(tasks=40, repeats=1, seed=3)
    once, often = auc(truth, scores, tasks), auc(truth * 5, scores * 5, tasks * 5)
    assert (often.low, often.high) == pytest.approx((once.low, once.high))
    assert share(truth * 5, tasks * 5) == share(truth, tasks)


def test_the_interval_holds_what_it_says() -> None:
    """True AUC of two normal distributions one standard deviation apart: 0.760."""
    held = 0
    for seed in range(200):
        found = auc(*drawn(tasks=60, repeats=2, seed=seed))
        held += found.low <= 0.760 <= found.high
    assert 180 <= held <= 200


def test_a_gain_is_surer_than_two_figures_apart() -> None:
    truth, scores, tasks = drawn(tasks=60, repeats=2, seed=4)
    rng = random.Random(0)
    worse = [one + rng.gauss(0, 0.5) for one in scores]
    gain = auc_gain(truth, scores, worse, tasks)
    both = auc(truth, scores, tasks), auc(truth, worse, tasks)
    assert gain.value == pytest.approx(both[0].value - both[1].value)
    assert gain.high - gain.low < both[0].high - both[0].low
    assert auc_gain(truth, scores, scores, tasks).low == 0


@pytest.mark.parametrize(("good", "runs"), [(0, 5), (5, 5), (9, 10), (30, 70)])
def test_a_share_is_scipys_wilson_interval(good: int, runs: int) -> None:
    found = share([at < good for at in range(runs)], [str(at) for at in range(runs)])
    expected = stats.binomtest(good, runs).proportion_ci(0.90, "wilson")
    assert (found.low, found.high) == pytest.approx((expected.low, expected.high), abs=1e-6)


@given(SCORED)
def test_reliability_counts_every_run_once(pairs: Any) -> None:
    truth, scores = [one[0] for one in pairs], [one[1] for one in pairs]
    bins = reliability(truth, scores, [str(at) for at in range(len(pairs))])
    assert sum(one.runs for one in bins) == len(pairs)
    assert sum(one.runs * one.success_rate.value for one in bins) == pytest.approx(sum(truth))
    assert all(one.confidence <= next_.confidence + 1e-9 for one, next_ in pairwise(bins))


def test_the_p_value_of_a_mean_is_that_of_a_t_test_for_runs_of_a_task_each() -> None:
    rng = random.Random(3)
    values = [rng.gauss(0.2, 1) for _ in range(30)]
    tasks = [str(at) for at in range(30)]
    expected = stats.ttest_1samp(values, 0, alternative="greater").pvalue
    assert mean_p_value(values, tasks) == pytest.approx(expected, abs=1e-9)


def test_repeats_of_a_task_make_a_mean_no_surer() -> None:
    rng = random.Random(4)
    values, tasks = [rng.gauss(0.5, 1) for _ in range(20)], [str(at) for at in range(20)]
    once = mean_p_value(values, tasks)
    assert 0 < once < 0.2
    assert mean_p_value(values * 5, tasks * 5) == pytest.approx(once)
    apart = [str(at) for at in range(100)]
    assert mean_p_value(values * 5, apart) < once / 10


@pytest.mark.parametrize(
    ("values", "tasks", "expected"),
    [([1.0, 1.0], ["a", "a"], 1.0), ([1.0, 1.0], ["a", "b"], 0.0), ([0.0, 0.0], ["a", "b"], 1.0)],
)
def test_a_mean_without_spread(values: list[float], tasks: list[str], expected: float) -> None:
    assert mean_p_value(values, tasks) == expected


@given(SCORED)
def test_the_value_of_an_auc_is_that_with_an_interval(pairs: Any) -> None:
    truth, scores = [one[0] for one in pairs], [one[1] for one in pairs]
    assert (
        auc_value(truth, scores) == auc(truth, scores, [str(at) for at in range(len(pairs))]).value
    )
