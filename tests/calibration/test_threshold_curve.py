"""Thresholds that keep their promise."""

from __future__ import annotations

import math
import random
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kp_langchain.calibration.threshold_curve import propose_threshold
from kp_langchain.errors import ConfigError
from kp_langchain.scoring import PROFILES

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
    assert "no threshold is sure to give precision 0.9:" in found.refusal
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
