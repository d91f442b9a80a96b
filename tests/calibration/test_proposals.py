"""Thresholds that keep their promise, and weights that are no worse than those in force."""

from __future__ import annotations

import math
import random
from dataclasses import astuple, replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kp_langchain.calibration.hypothetical_score import hypothetical_score
from kp_langchain.calibration.proposals import propose_threshold, propose_weights
from kp_langchain.errors import ConfigError
from kp_langchain.scoring import PROFILES, ScoringWeights

pytest.importorskip("sklearn")

DEFAULT = PROFILES["default"]
SCORES = st.lists(st.floats(0, 1) | st.sampled_from([0.5, 0.6]), min_size=1, max_size=60)


@given(scores=SCORES, wished=st.floats(0.01, 1))
def test_no_larger_share_passes_than_wished(labelled: Any, scores: Any, wished: float) -> None:
    runs = labelled(len(scores))
    found = propose_threshold(runs, scores, pass_rate=wished)
    for point in found.curve:
        passing = [run for run, score in zip(runs, scores, strict=True) if score >= point.threshold]
        assert point.runs == len(passing)
        assert point.tasks == len({run.task for run in passing})
        assert point.pass_rate == pytest.approx(len(passing) / len(runs))
        assert point.precision.value == pytest.approx(
            sum(run.success for run in passing) / len(passing)
        )
    if found.point is None:
        assert found.refusal is not None
        assert all(point.pass_rate > wished for point in found.curve)
    else:
        assert found.point.pass_rate <= wished
        lower = [point for point in found.curve if point.threshold < found.point.threshold]
        assert all(point.pass_rate > wished for point in lower)


def test_the_best_score_reaches_the_highest_threshold(labelled: Any) -> None:
    # Times 1000 they are rounded up to whole numbers.
    just_below = [math.nextafter(at / 1000, 0) for at in range(1, 1001)]
    runs = labelled(1)
    for score in just_below:
        (point,) = propose_threshold(runs, [score], pass_rate=1.0).curve
        assert score - 0.0011 < point.threshold <= score


def test_the_best_tenth(labelled: Any) -> None:
    runs = labelled(200)
    found = propose_threshold(runs, [at / 200 for at in range(200)], pass_rate=0.1)
    assert found.point is not None
    assert found.point.threshold == 0.9
    assert found.point.runs == 20
    assert found.wish == "pass rate 0.10"


def test_a_precision_is_promised_by_the_lower_end_of_its_interval(labelled: Any) -> None:
    runs = [replace(run, success=at >= 100) for at, run in enumerate(labelled(200, repeats=1))]
    found = propose_threshold(runs, [at / 200 for at in range(200)], precision=0.9)
    assert found.refusal is None
    assert found.point is not None
    assert found.point.precision.low >= 0.9
    assert 0.45 < found.point.threshold < 0.55
    below = [point for point in found.curve if point.threshold < found.point.threshold]
    assert all(point.precision.low < 0.9 for point in below)


@pytest.mark.parametrize(
    "lucky",
    [
        {"number": 12, "repeats": 1, "success": True},  # too few to be sure
        {"number": 200, "task": "the same", "success": True},  # one task, solved 200 times
        {"number": 200, "success": False},
    ],
)
def test_a_precision_that_cannot_be_promised_is_not(labelled: Any, lucky: dict[str, Any]) -> None:
    runs = labelled(**lucky)
    found = propose_threshold(runs, [at / len(runs) for at in range(len(runs))], precision=0.9)
    assert found.point is None
    assert found.curve
    assert found.refusal is not None
    assert "no threshold is sure to give precision 0.90" in found.refusal
    assert f"of {len(runs)} runs" in found.refusal


def test_few_promises_are_broken(labelled: Any) -> None:
    """Where 75 of 100 succeed whatever their score, 0.8 is promised in few samples of 200."""
    promised = 0
    for seed in range(60):
        rng = random.Random(seed)
        runs = [
            replace(run, success=rng.random() < 0.75) for run in labelled(200, repeats=1, seed=seed)
        ]
        scores = [rng.random() for _ in runs]
        promised += propose_threshold(runs, scores, precision=0.8).point is not None
    assert promised <= 12


@pytest.mark.parametrize(
    ("wish", "words"),
    [
        ({}, "either a pass rate or a precision"),
        ({"pass_rate": 0.1, "precision": 0.9}, "either a pass rate or a precision"),
        ({"pass_rate": 0}, "pass rate is 0"),
        ({"pass_rate": 1.5}, "pass rate is 1.5"),
        ({"precision": float("nan")}, "precision is nan"),
        ({"precision": 1}, "precision is 1"),
        ({"precision": True}, "precision is True"),
    ],
)
def test_a_wish_that_makes_no_sense_is_named(labelled: Any, wish: Any, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        propose_threshold(labelled(5), [0.5] * 5, **wish)


@pytest.mark.parametrize("wish", [{"precision": 0.9995}, {"precision": math.nextafter(1, 0)}])
def test_every_precision_below_1_is_a_target(labelled: Any, wish: dict[str, float]) -> None:
    proposal = propose_threshold(labelled(5), [0.5] * 5, **wish)
    assert proposal.point is None
    assert proposal.refusal is not None


def test_no_runs_no_threshold() -> None:
    with pytest.raises(ConfigError, match="no labelled runs"):
        propose_threshold([], [], pass_rate=0.1)


def confident(runs: Any, *, knows: float = 1.0, seed: int = 0) -> list[float]:
    rng = random.Random(seed)
    return [
        min(
            0.99,
            max(0.01, 0.5 + (0.4 * knows if run.success else -0.4 * knows) + rng.gauss(0, 0.1)),
        )
        for run in runs
    ]


def test_a_confidence_that_knows_gets_the_weight(labelled: Any) -> None:
    runs = labelled(200)
    found = propose_weights(runs, confident(runs), DEFAULT)
    assert found.refusal is None
    assert found.in_force.weights == DEFAULT
    assert found.proposed.weights.outcome_confidence > 0.5
    assert found.proposed.auc.value > found.in_force.auc.value
    assert found.auc_gain.low > 0
    assert found.proposed.harvest > found.in_force.harvest
    assert found.proposed.top_success.value >= found.in_force.top_success.value > found.base_rate
    assert found.proposed.top_runs == 20
    assert found == propose_weights(runs, confident(runs), DEFAULT)


def test_the_figures_in_force_are_those_of_the_score(labelled: Any) -> None:
    runs = labelled(100)
    confidences = confident(runs)
    found = propose_weights(runs, confidences, DEFAULT)
    scores = [
        hypothetical_score(run, DEFAULT, one) for run, one in zip(runs, confidences, strict=True)
    ]
    best = sorted(range(100), key=lambda at: -scores[at])[:10]
    assert found.in_force.top_success.value == sum(runs[at].success for at in best) / 10
    assert found.in_force.top_tasks == len({runs[at].task for at in best})
    assert found.in_force.top_solved == len({runs[at].task for at in best if runs[at].success})


def test_solving_one_task_again_and_again_is_worth_little(labelled: Any) -> None:
    """Half of the runs repeat one easy task; the others are new, and as often right as wrong."""
    runs = [
        replace(run, task="easy", success=True, values={**run.values, "novelty": 0.05})
        if at % 2
        else replace(run, values={**run.values, "novelty": 0.9})
        for at, run in enumerate(labelled(200, repeats=1))
    ]
    surest = [0.9 if run.task == "easy" else 0.6 for run in runs]
    outcome_only = ScoringWeights(0.05, 0.05, 0.05, 0.85)
    found = propose_weights(runs, surest, outcome_only)
    assert found.in_force.top_success.value == 1
    assert found.in_force.top_tasks == 1
    assert found.proposed.top_tasks > 5
    assert found.proposed.weights.novelty > outcome_only.novelty


def test_weights_that_are_as_good_as_any_stay(labelled: Any) -> None:
    runs = labelled(200, repeats=1)
    best = propose_weights(runs, confident(runs), DEFAULT).proposed.weights
    again = propose_weights(runs, confident(runs), best)
    assert again.refusal is not None
    assert again.refusal.startswith("keep the weights in force")


@settings(max_examples=10, deadline=None)
@given(seed=st.integers(0, 1000), knows=st.floats(-1, 1))
def test_any_proposal_is_a_usable_profile(labelled: Any, seed: int, knows: float) -> None:
    runs = labelled(60, seed=seed)
    found = propose_weights(runs, confident(runs, knows=knows, seed=seed), DEFAULT)
    weights = astuple(found.proposed.weights)
    assert min(weights) >= 0.05
    assert sum(weights) == pytest.approx(1, abs=1e-9)


def test_weights_need_both_outcomes(labelled: Any) -> None:
    with pytest.raises(ConfigError, match="failures on 0 different tasks"):
        propose_weights(labelled(60, success=True), [0.5] * 60, DEFAULT)
