"""Shuffled verdicts tell how likely chance alone explains what a model has learned."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from kp_langchain.calibration.chance import chance
from kp_langchain.calibration.feature_table import FeatureTable
from kp_langchain.calibration.labelled_run import LabelledRun

pytest.importorskip("sklearn")


def share(runs: Sequence[LabelledRun]) -> float:
    return chance(runs, FeatureTable.of(runs))


def test_what_the_verdicts_follow_is_hardly_chance(labelled: Any) -> None:
    assert share(labelled(100)) == 0.001
    assert share(labelled(100, strength=-2.0)) == 0.001


def test_random_verdicts_look_like_chance(labelled: Any) -> None:
    shares = [share(labelled(60, strength=0, seed=seed, repeats=1)) for seed in range(100, 180)]
    assert sum(one <= 0.05 for one in shares) <= 9
    assert 0.35 < sum(shares) / len(shares) < 0.65


def test_the_same_runs_give_the_same_share(labelled: Any) -> None:
    runs = labelled(60, strength=0.5)
    assert share(runs) == share(runs)


def test_what_the_default_confidence_knows_already_is_no_evidence(labelled: Any) -> None:
    """The verdicts follow how a run looked, and so does a feature; nothing else does."""
    shares = []
    for seed in range(40):
        rng = random.Random(seed)
        runs = []
        for run in labelled(80, strength=0, seed=seed, repeats=1):
            looked = rng.random() < 0.5
            features = {"noise": run.features["noise"], "looked_successful": float(looked)}
            success = looked if rng.random() < 0.8 else not looked
            runs.append(replace(run, success=success, looked_successful=looked, features=features))
        shares.append(share(runs))
    assert sum(one <= 0.05 for one in shares) <= 6
    blind = [share([replace(run, looked_successful=True) for run in runs])]
    assert blind == [0.001]  # it is evidence where the default does not know it


def test_repeats_of_a_task_are_not_evidence_each(labelled: Any) -> None:
    """Repeats share their features and their verdict, which was drawn blindly for each task."""
    shares = []
    for seed in range(40):
        rng = random.Random(seed)
        verdicts = [rng.random() < 0.5 for _ in range(20)]
        signs = [{f"sign {n}": 20 * rng.random() for n in range(5)} for _ in range(20)]
        runs = [
            replace(run, success=verdicts[number // 5], features=signs[number // 5])
            for number, run in enumerate(labelled(100, repeats=5))
        ]
        shares.append(share(runs))
    assert sum(one <= 0.05 for one in shares) <= 6
    alone = [replace(run, task=str(number)) for number, run in enumerate(runs)]
    assert share(alone) < 0.05  # as runs of a hundred tasks they would be


@pytest.mark.parametrize("features", [{}, {"a": 1.0}, {"a": float("nan")}])
def test_without_features_everything_is_chance(labelled: Any, features: dict[str, float]) -> None:
    assert share(labelled(60, features=features)) == 1.0
