"""Figures of a model in force never rest on what it learned from the runs they are of."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from pydantic import ValidationError

from kp_langchain.calibration.features import FEATURES_VERSION
from kp_langchain.calibration.fitting import fit
from kp_langchain.calibration.measures import auc
from kp_langchain.calibration.model import ConfidenceModel, Fold
from kp_langchain.errors import OutdatedModelError

pytest.importorskip("sklearn")


def named(runs: Any) -> list[Any]:
    return [replace(run, trace_id=f"kp:trace:{number}") for number, run in enumerate(runs)]


@pytest.fixture
def runs(labelled: Any) -> list[Any]:
    return named(labelled(120))


@pytest.fixture
def model(runs: Any) -> ConfidenceModel:
    model = fit("finance", runs).model
    assert model is not None
    return model


def test_the_model_keeps_the_held_out_probability_of_each_run(runs: Any) -> None:
    result = fit("finance", runs)
    assert result.model is not None
    assert dict(result.model.held_out) == dict(
        zip([run.trace_id for run in runs], result.held_out, strict=True)
    )
    assert [result.model.held_out_confidence(run) for run in runs] == list(result.held_out)
    lost = [replace(run, task="reworded", features={}) for run in runs]
    assert [result.model.held_out_confidence(run) for run in lost] == list(result.held_out)


def test_they_outlive_json(runs: Any, model: ConfidenceModel) -> None:
    read = ConfidenceModel.from_dict(json.loads(json.dumps(model.to_dict())))
    assert read == model
    assert [read.held_out_confidence(run) for run in runs] == list(model.held_out.values())


def test_a_new_run_of_a_known_task_is_predicted_without_that_task(
    runs: Any, model: ConfidenceModel
) -> None:
    for run in runs:
        again = replace(run, trace_id="kp:trace:new")
        assert model.held_out_confidence(again) == pytest.approx(
            model.held_out_confidence(run), abs=1e-12
        )
        assert model.held_out_confidence(again) != model.confidence(run.features)
    other = replace(runs[0], trace_id="", features={**runs[0].features, "signal": 0.0})
    assert model.held_out_confidence(other) != model.held_out_confidence(runs[0])


def test_a_run_of_a_new_task_is_predicted_by_the_model_itself(
    runs: Any, model: ConfidenceModel
) -> None:
    stranger = replace(runs[0], task="another task", trace_id="kp:trace:new")
    assert model.held_out_confidence(stranger) == model.confidence(stranger.features)


def test_chance_does_not_look_good_on_repeats_of_its_tasks(labelled: Any) -> None:
    """Repeats have the verdicts of the runs it was fitted to, which it partly knows by heart."""
    runs = labelled(100, strength=0, repeats=1)
    model = fit("finance", named(runs)).model
    assert model is not None
    truth, tasks = [run.success for run in runs], [run.task for run in runs]
    by_heart = auc(truth, [model.confidence(run.features) for run in runs], tasks)
    held_out = auc(truth, [model.held_out_confidence(run) or 0.0 for run in runs], tasks)
    assert by_heart.value > 0.57
    assert held_out.value < 0.52


def test_an_older_model_does_not_know_what_it_was_fitted_to(
    runs: Any, model: ConfidenceModel
) -> None:
    stored = model.to_dict()
    for name in ("held_out", "folds", "task_folds"):
        del stored[name]
    older = ConfidenceModel.from_dict(stored)
    assert older.held_out_confidence(runs[0]) is None
    assert older.held_out_confidence(replace(runs[0], task="another task")) is None


def test_a_model_for_other_features_predicts_nothing(runs: Any, model: ConfidenceModel) -> None:
    outdated = replace(model, features_version=FEATURES_VERSION + 1)
    with pytest.raises(OutdatedModelError):
        outdated.held_out_confidence(runs[0])


def test_no_task_is_named(labelled: Any) -> None:
    runs = named(labelled(60))
    runs[0] = replace(runs[0], task="refund jane\ud800 doe")
    model = fit("finance", runs).model
    assert model is not None
    text = json.dumps(model.to_dict())
    assert "task 1" not in text
    assert "jane" not in text
    assert len(model.task_folds) == len({run.task for run in runs})


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"folds": [{"intercept": 0.0, "weights": [1.0]}]}, "one weight for each of the terms"),
        ({"folds": [], "task_folds": {"ab": 0}}, "there are only 0 folds"),
        ({"task_folds": {"ab": -1}}, "task_folds"),
        ({"held_out": {"kp:trace:1": 1.5}}, "held_out"),
    ],
)
def test_folds_that_cannot_be_are_refused(
    model: ConfidenceModel, change: dict[str, Any], words: str
) -> None:
    with pytest.raises(ValidationError, match=words):
        ConfidenceModel.from_dict(model.to_dict() | change)


def test_folds_are_checked_when_built(model: ConfidenceModel) -> None:
    with pytest.raises(ValueError, match="one weight"):
        replace(model, folds=(Fold(0.0, ()),))
