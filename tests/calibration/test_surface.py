"""A model that may have learned one size or count only says so; others do not."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from typing import Any

import pytest

from kp_langchain.calibration.feature_meanings import MEANINGS, is_surface
from kp_langchain.calibration.fitting import Fit, fit
from kp_langchain.calibration.labelled_run import LabelledRun
from kp_langchain.calibration.model import ConfidenceModel

pytest.importorskip("sklearn")


def made(labelled: Any, by: str, *, noise: float = 0.0, seed: int = 1) -> list[LabelledRun]:
    """Runs whose verdicts follow one feature, but for a share of noise."""
    rng = random.Random(seed)
    runs = []
    for run in labelled(120, strength=0, seed=seed):
        features = {
            "answer_chars": float(rng.randint(20, 900)),
            "answer_unsure": float(rng.randint(0, 9)),
            "steps": float(rng.randint(2, 30)),
            "called:search": float(rng.randint(0, 9)),
        }
        middle = {"answer_chars": 460, "steps": 16}.get(by, 4.5)
        success = (features[by] < middle) != (rng.random() < noise)
        runs.append(replace(run, features=features, success=success))
    return runs


def model_of(found: Fit) -> ConfidenceModel:
    assert found.model is not None
    return found.model


@pytest.mark.parametrize(
    ("feature", "meaning"),
    [
        ("answer_chars", "characters of the answer"),
        ("steps", "steps"),
        ("called:search", "calls of the tool search"),
    ],
)
@pytest.mark.parametrize("noise", [0.0, 0.1])
def test_labels_that_follow_one_size_are_warned_of(
    labelled: Any, feature: str, meaning: str, noise: float
) -> None:
    found = fit("finance", made(labelled, feature, noise=noise))
    assert found.refusal is None
    surface = model_of(found).surface
    assert surface is not None
    assert surface.feature == feature
    assert found.warning == model_of(found).warning
    assert f"one figure alone, {meaning}, reaches AUC {surface.auc:.2f}" in (found.warning or "")
    assert found.leans_on[0] == f"{meaning} (fewer)"


def test_what_a_run_says_is_no_surface(labelled: Any) -> None:
    found = fit("finance", made(labelled, "answer_unsure"))
    assert found.refusal is None
    assert found.leans_on[0] == "words of doubt in the answer (fewer)"
    assert found.warning is None
    surface = model_of(found).surface
    assert surface is not None
    assert surface.auc < 0.65


def test_a_size_that_tells_less_than_the_model_is_no_reason(labelled: Any) -> None:
    runs = [
        replace(run, features={**run.features, "answer_unsure": 9.0 * (not run.success)})
        for run in made(labelled, "steps", noise=0.1)
    ]
    found = fit("finance", runs)
    assert found.warning is None
    surface = model_of(found).surface
    assert surface is not None
    assert 0.8 < surface.auc < found.model.auc - 0.05  # type: ignore[union-attr]


def test_a_size_is_judged_on_tasks_on_which_it_was_not_chosen(labelled: Any) -> None:
    """The best of forty counts of random runs looks good on the runs that it was chosen on."""
    rng = random.Random(4)
    runs = [
        replace(run, features={f"called:{n}": float(rng.randint(0, 20)) for n in range(40)})
        for run in labelled(60, strength=0)
    ]
    surface = model_of(fit("finance", runs)).surface
    assert surface is not None
    assert surface.auc < 0.6


def test_without_sizes_there_is_none(labelled: Any) -> None:
    runs = [replace(run, features={"answer_unsure": run.features["signal"]}) for run in labelled()]
    found = fit("finance", runs)
    assert model_of(found).surface is None
    assert found.warning is None


def test_the_warning_outlives_json(labelled: Any) -> None:
    model = model_of(fit("finance", made(labelled, "steps")))
    read = ConfidenceModel.from_dict(json.loads(json.dumps(model.to_dict())))
    assert read.warning == model.warning is not None
    assert read.leans_on == model.leans_on


def test_every_surface_feature_has_a_meaning_and_wording_is_none() -> None:
    surface = {name for name in MEANINGS if is_surface(name)}
    assert {name for name in MEANINGS if name.endswith("_chars")} <= surface
    assert {"steps", "tool_calls", "answer_lines", "answer_numbers"} <= surface
    assert not {"answer_unsure", "looked_successful", "thoughts_alike"} & surface
    assert is_surface("called:any")
