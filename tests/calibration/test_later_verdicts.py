"""A model is held against the verdicts given since, on runs that it was not fitted to."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any

import pytest

from kp_langchain.calibration.features import FEATURES_VERSION
from kp_langchain.calibration.fitting import fit
from kp_langchain.calibration.labelled_run import LabelledRun
from kp_langchain.calibration.later_verdicts import FEWEST_RUNS, MOST_RUNS, later_verdicts
from kp_langchain.calibration.model import ConfidenceModel

pytest.importorskip("sklearn")


def stream(labelled: Any, number: int, seed: int, name: str, **same: Any) -> list[LabelledRun]:
    """Runs with ids, of tasks of their own."""
    return [
        replace(run, trace_id=f"{name} {at}", task=f"{name} {run.task}")
        for at, run in enumerate(labelled(number, seed=seed, **same))
    ]


def fitted(labelled: Any, seed: int = 1) -> tuple[ConfidenceModel, list[LabelledRun]]:
    runs = stream(labelled, 100, seed, "old")
    model = fit("finance", runs).model
    assert model is not None
    return model, runs


def flipped(runs: Sequence[LabelledRun]) -> list[LabelledRun]:
    return [replace(run, success=not run.success) for run in runs]


def test_a_promise_that_is_kept(labelled: Any) -> None:
    model, known = fitted(labelled)
    later = later_verdicts(model, known + stream(labelled, 60, 2, "new"))
    assert later is not None
    assert later.holds is True
    assert later.runs == MOST_RUNS
    assert (later.promised_brier, later.promised_auc) == (model.brier, model.auc)
    assert later.brier is not None and later.base_brier is not None  # noqa: PT018
    assert later.brier < later.base_brier <= 0.25
    assert later.auc is not None
    assert later.auc > 0.7
    assert str(later).startswith(f"it holds: promised Brier score {model.brier:.3f}, AUC ")
    assert json.loads(json.dumps(asdict(later)))["holds"] is True


def test_streams_that_stay_as_they_are_raise_no_alarm(labelled: Any) -> None:
    alarms = 0
    for seed in range(10, 30):
        model, known = fitted(labelled, seed)
        later = later_verdicts(model, known + stream(labelled, 50, 100 + seed, "new"))
        assert later is not None
        alarms += later.is_broken
    assert alarms <= 2


def test_verdicts_that_say_the_opposite_are_noticed(labelled: Any) -> None:
    for seed in range(5):
        model, known = fitted(labelled, seed)
        later = later_verdicts(model, known + flipped(stream(labelled, 50, 50 + seed, "new")))
        assert later is not None
        assert later.is_broken
        assert later.auc is not None
        assert later.auc < 0.5
        assert str(later).startswith("it no longer holds: promised Brier score")


def test_confidence_that_is_far_off_is_noticed_though_the_order_is_right(labelled: Any) -> None:
    model, known = fitted(labelled)
    new = stream(labelled, 50, 2, "new")
    rarer = [replace(run, success=run.success and at % 4 == 0) for at, run in enumerate(new)]
    later = later_verdicts(model, known + rarer)
    assert later is not None
    assert later.is_broken
    assert later.confidence is not None and later.success_rate is not None  # noqa: PT018
    assert later.confidence - later.success_rate > 0.2
    assert later.success_rate == sum(run.success for run in rarer) / 50
    assert f"mean confidence {later.confidence:.2f} where {later.success_rate:.2f}" in str(later)


def test_only_the_last_runs_count(labelled: Any) -> None:
    model, known = fitted(labelled)
    bad, good = flipped(stream(labelled, 60, 2, "bad")), stream(labelled, 50, 3, "good")
    after = later_verdicts(model, known + bad + good)
    assert after is not None
    assert after.holds is True
    before = later_verdicts(model, known + good + bad)
    assert before is not None
    assert before.is_broken


def test_runs_that_it_was_fitted_to_do_not_count(labelled: Any) -> None:
    model, known = fitted(labelled)
    new = stream(labelled, FEWEST_RUNS, 2, "new")
    few = later_verdicts(model, known + new[1:])
    assert few is not None
    assert (few.runs, few.holds, few.brier, few.is_broken) == (FEWEST_RUNS - 1, None, None, False)
    assert str(few).startswith("19 verdicts so far on runs that it was not fitted to")
    enough = later_verdicts(model, known + new)
    assert enough is not None
    assert (enough.runs, enough.holds) == (FEWEST_RUNS, True)


def test_repeats_of_its_tasks_are_predicted_without_them(labelled: Any) -> None:
    model, known = fitted(labelled)
    repeats = [replace(run, trace_id=f"again {run.trace_id}") for run in known]
    later = later_verdicts(model, known + repeats)
    assert later is not None
    held_out = [model.held_out_confidence(run) or 0.0 for run in repeats[-MOST_RUNS:]]
    assert later.confidence == pytest.approx(sum(held_out) / MOST_RUNS)


@pytest.mark.parametrize("success", [True, False])
def test_later_runs_may_all_end_alike(labelled: Any, success: bool) -> None:
    model, known = fitted(labelled)
    later = later_verdicts(model, known + stream(labelled, 50, 2, "new", success=success))
    assert later is not None
    assert (later.auc, later.base_brier) == (None, 0.0)
    assert later.is_broken
    assert ", AUC 0." not in str(later).partition(";")[2]


def test_one_task_alone_proves_nothing(labelled: Any) -> None:
    model, known = fitted(labelled)
    new = flipped(stream(labelled, 50, 2, "new"))
    later = later_verdicts(model, known + [replace(run, task="one") for run in new])
    assert later is not None
    assert later.holds is True


def test_what_an_older_or_an_outdated_model_was_fitted_to_is_not_known(labelled: Any) -> None:
    model, known = fitted(labelled)
    older = replace(model, folds=(), task_folds={}, held_out={})
    outdated = replace(model, features_version=FEATURES_VERSION + 1)
    assert later_verdicts(older, known) is None
    assert later_verdicts(outdated, known) is None
