"""A fit learns what is there, says how well on tasks it never saw, and refuses what is chance.

Its model is plain figures that outlive JSON, and is held against the verdicts given later.
"""

from __future__ import annotations

import itertools
import json
import math
import random
from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from kp_langchain.calibration.calibrate_domain import FEWEST_RUNS as FEWEST_LATER
from kp_langchain.calibration.calibrate_domain import MOST_RUNS, LaterVerdicts, later_verdicts
from kp_langchain.calibration.features import FEATURES_VERSION, features_of
from kp_langchain.calibration.fitting import (
    FEWEST_RUNS,
    FEWEST_TASKS,
    FeatureTable,
    Fit,
    chance,
    fit,
    folds,
)
from kp_langchain.calibration.measures import auc
from kp_langchain.calibration.model import ConfidenceModel, Fold, LabelledRun, Term
from kp_langchain.errors import OutdatedModelError
from kp_langchain.recording.from_messages import trace_from_messages
from kp_langchain.scoring import PROFILES, Scorer
from tests import recorded
from tests.calibration.conftest import MODEL

pytest.importorskip("sklearn")


def model_of(result: Fit) -> ConfidenceModel:
    assert result.model is not None
    return result.model


# ------------------------------------------------------------------ what a fit says


def test_what_success_follows_is_learned_and_judged_on_held_out_runs(labelled: Any) -> None:
    runs = labelled(160)
    result = fit("finance", runs)
    model = model_of(result)
    assert result.refusal is None
    assert (result.runs, result.tasks) == (160, 80)
    assert result.successes == sum(run.success for run in runs)
    assert (model.domain, model.runs, model.tasks, model.is_current) == ("finance", 160, 80, True)
    assert (result.chance, result.provisional, model.provisional) == (0.001, False, False)
    weights = {term.feature: abs(term.weight) for term in model.terms}
    assert weights.pop("signal") > 2 * max(weights.values())
    low, high = ({"signal": value} for value in (1.0, 19.0))
    assert model.confidence(low) < model.base_rate < model.confidence(high)

    assert len(result.held_out) == 160
    assert all(0 < one < 1 for one in result.held_out)
    assert list(result.held_out) != [model.confidence(run.features) for run in runs]
    assert 0.7 < result.auc.value < 1
    assert (model.auc, model.auc_low) == (result.auc.value, result.auc.low)
    assert result.brier < result.base_brier < result.default_brier
    assert result.weights == PROFILES["finance"]
    assert result.score_auc_after.value > result.score_auc_before.value
    assert sum(one.runs for one in result.reliability) == 160
    assert result.reliability[0].success_rate.high < result.reliability[-1].success_rate.low

    again = fit("finance", runs)  # the same, but for when it was made
    assert replace(again, model=replace(model_of(again), created_at=model.created_at)) == result


def test_a_task_never_stands_on_both_sides(labelled: Any) -> None:
    runs = labelled(100, repeats=3)
    judged_once: list[int] = []
    for learned, judged in folds(runs):
        assert {runs[at].task for at in learned}.isdisjoint(runs[at].task for at in judged)
        assert sorted(learned + judged) == list(range(100))
        judged_once += judged
    assert sorted(judged_once) == list(range(100))


def test_what_tells_tasks_but_not_their_success_is_no_evidence(labelled: Any) -> None:
    """Repeats of a task share features and verdict: learned by heart, they would look perfect."""
    rng = random.Random(5)
    verdicts = [rng.random() < 0.5 for _ in range(40)]
    signs = [{f"sign {n}": 20 * rng.random() for n in range(12)} for _ in range(40)]
    runs = [
        replace(run, success=verdicts[at // 5], features=signs[at // 5])
        for at, run in enumerate(labelled(200, repeats=5))
    ]
    assert "it is no better" in (fit("finance", runs).refusal or "")


@pytest.mark.parametrize(
    "seeds", [range(200, 215), pytest.param(range(215, 260), marks=pytest.mark.slow)]
)
def test_chance_is_hardly_ever_installed(labelled: Any, seeds: range) -> None:
    fits = [fit("finance", labelled(60, strength=0, seed=seed)) for seed in seeds]
    assert sum(one.refusal is None for one in fits) <= len(seeds) / 7
    assert sum(one.refusal is None and not one.provisional for one in fits) <= len(seeds) / 15


def test_between_chance_and_certainty_a_model_is_provisional(labelled: Any) -> None:
    result = fit("finance", labelled(60, strength=0.8, seed=3))
    assert result.refusal is None
    assert 0.01 < result.chance <= 0.05
    assert result.provisional
    model = model_of(result)
    assert model.provisional
    assert model.source == f"calibrated on 60 runs, provisional, AUC {model.auc:.2f}"


def test_a_gain_that_may_be_chance_is_refused_with_how_often_shuffles_do_as_well(
    labelled: Any,
) -> None:
    result = fit("finance", labelled(60, strength=0.8, seed=5))
    assert result.auc.value > result.default_auc.value
    assert result.chance == pytest.approx(0.072, abs=0.02)
    assert f"followed as closely in {result.chance:.0%} of trials" in (result.refusal or "")
    assert not result.provisional
    assert not model_of(result).provisional


def test_a_default_that_knows_already_is_not_replaced(labelled: Any) -> None:
    runs = [replace(run, looked_successful=run.success) for run in labelled(160)]
    assert "default confidence's 1.00" in (fit("finance", runs).refusal or "")


@pytest.mark.parametrize(
    ("number", "same", "words"),
    [
        (0, {}, f"0 verdicts; at least {FEWEST_RUNS}"),
        (FEWEST_RUNS - 1, {}, f"{FEWEST_RUNS - 1} verdicts; at least"),
        (50, {"success": True}, "the 0 failed among 50 runs are of 0 different"),
        (50, {"success": False}, "the 0 successful among 50"),
        (200, {"task": "one"}, f"of 1 different tasks; at least {FEWEST_TASKS} are needed"),
        (50, {"features": {"features_version": FEATURES_VERSION + 1.0}},
         "50 of 50 runs have features of another version"),
    ],
)  # fmt: skip
def test_too_little_to_learn_from_is_said(
    labelled: Any, number: int, same: dict[str, Any], words: str
) -> None:
    result = fit("finance", labelled(number, **same))
    assert (result.model, result.held_out) == (None, ())
    assert words in (result.refusal or "")


NO_FEATURES: list[dict[str, float]] = [
    {}, {"a": 1.0}, {"a": math.nan}, {"a": math.inf, "b": -5.0}, {"a": 1e308, "b": 5e-324},
]  # fmt: skip


@pytest.mark.parametrize("features", NO_FEATURES)
def test_features_that_say_nothing_are_refused_in_good_order(
    labelled: Any, features: dict[str, float]
) -> None:
    result = fit("finance", labelled(60, features=features))
    assert model_of(result).terms == ()
    assert (result.chance, result.refusal is None) == (1.0, False)


def test_features_that_some_runs_lack_are_used_all_the_same(labelled: Any) -> None:
    runs = [
        replace(run, features={"signal": run.features["signal"]} if at % 3 else {})
        for at, run in enumerate(labelled(240))
    ]
    result = fit("finance", runs)
    assert result.refusal is None
    assert [term.feature for term in model_of(result).terms] == ["signal"]


@pytest.mark.skipif(not recorded.present(), reason="no recorded runs beside this checkout")
def test_recorded_runs_can_be_learned_from() -> None:
    scorer = Scorer(embedder=None)
    runs = []
    for one in itertools.islice(recorded.load(), 0, None, 3):
        if one["source"] != "agentdojo":
            continue
        trace = trace_from_messages(one["messages"])
        dimensions = scorer.score(trace).dimensions
        runs.append(
            LabelledRun(
                task=one["meta"]["task_id"],
                success=one["success"],
                features=features_of(trace),
                looked_successful=trace.metadata.success,
                values={name: one.value for name, one in dimensions.items()},
                created_at=trace.metadata.created_at,
            )
        )
    result = fit("default", runs)
    assert result.refusal is None
    assert result.auc.low > 0.6


# ------------------------------------------------------------------ how likely chance explains it


def share(runs: Sequence[LabelledRun]) -> float:
    return chance(runs, FeatureTable.of(runs))


def test_random_verdicts_look_like_chance_and_others_do_not(labelled: Any) -> None:
    assert share(labelled(100)) == share(labelled(100, strength=-2.0)) == 0.001
    shares = [share(labelled(60, strength=0, seed=seed, repeats=1)) for seed in range(100, 180)]
    assert sum(one <= 0.05 for one in shares) <= 9
    assert 0.35 < sum(shares) / len(shares) < 0.65


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
    blind = [replace(run, looked_successful=True) for run in runs]
    assert share(blind) == 0.001  # it is evidence where the default does not know it


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


# ------------------------------------------------------------------ one size or count alone


def runs_by(labelled: Any, by: str, *, noise: float = 0.1) -> list[LabelledRun]:
    """Runs whose verdicts follow one feature, but for a share of noise."""
    rng = random.Random(1)
    runs = []
    for run in labelled(120, strength=0):
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


@pytest.mark.parametrize(
    ("feature", "meaning", "noise"),
    [
        ("answer_chars", "characters of the answer", 0.1),
        ("steps", "steps", 0.0),
        ("called:search", "calls of the tool search", 0.1),
    ],
)
def test_labels_that_follow_one_size_are_warned_of(
    labelled: Any, feature: str, meaning: str, noise: float
) -> None:
    result = fit("finance", runs_by(labelled, feature, noise=noise))
    model = model_of(result)
    assert result.refusal is None
    assert model.surface.feature == feature
    words = f"one figure alone, {meaning}, reaches AUC {model.surface.auc:.2f}"
    assert words in (result.warning or "")
    assert result.leans_on[0] == f"{meaning} (fewer)"
    read = ConfidenceModel.from_dict(json.loads(json.dumps(model.to_dict())))
    assert read.warning == model.warning == result.warning
    assert read.leans_on == model.leans_on


def test_what_a_run_says_is_no_surface_nor_a_size_that_tells_less_than_the_model(
    labelled: Any,
) -> None:
    result = fit("finance", runs_by(labelled, "answer_unsure", noise=0.0))
    assert result.leans_on[0] == "words of doubt in the answer (fewer)"
    assert (result.refusal, result.warning) == (None, None)
    assert model_of(result).surface.auc < 0.65
    runs = [
        replace(run, features={**run.features, "answer_unsure": 9.0 * (not run.success)})
        for run in runs_by(labelled, "steps")
    ]
    result = fit("finance", runs)
    assert result.warning is None
    assert 0.8 < model_of(result).surface.auc < model_of(result).auc - 0.05
    without = [
        replace(run, features={"answer_unsure": run.features["signal"]}) for run in labelled()
    ]
    assert model_of(fit("finance", without)).surface is None


def test_a_size_is_judged_on_tasks_on_which_it_was_not_chosen(labelled: Any) -> None:
    """The best of forty counts of random runs looks good on the runs that it was chosen on."""
    rng = random.Random(4)
    runs = [
        replace(run, features={f"called:{n}": float(rng.randint(0, 20)) for n in range(40)})
        for run in labelled(60, strength=0)
    ]
    assert model_of(fit("finance", runs)).surface.auc < 0.6


# ------------------------------------------------------------------ a model


def test_a_model_survives_json_and_an_older_one_is_read_as_it_was() -> None:
    stored = json.loads(json.dumps(MODEL.to_dict()))
    assert ConfidenceModel.from_dict(stored) == MODEL
    for name in ("provisional", "surface", "held_out", "folds", "task_folds"):
        del stored[name]
    assert ConfidenceModel.from_dict(stored) == MODEL


def test_it_says_where_a_confidence_comes_from_and_what_it_leans_on_in_words() -> None:
    assert MODEL.source == "calibrated on 214 runs, AUC 0.74"
    assert MODEL.leans_on == (
        "steps (fewer)", "characters of the answer (more)", "calls of the tool search (more)",
    )  # fmt: skip
    leanings = {
        "thought_share": 0.3, "looked_successful": 0.2, "steps": 0.1, "most_alike_thoughts": -0.4,
        "ends_with_thought": -0.5,
    }  # fmt: skip
    terms = [Term(name, 0.0, 1.0, weight) for name, weight in leanings.items()]
    assert replace(MODEL, terms=tuple(terms)).leans_on == (
        "the last step is a thought (no)",
        "how alike two thoughts in a row are, at most (lower)",
        "share of thoughts among the steps (higher)",
        "the run looked successful by itself (yes)",
    )


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"auc": 1.2}, "auc"),
        ({"intercept": math.nan}, "intercept"),
        ({"terms": [{"feature": "a", "mean": 0, "scale": 0, "weight": 1}]}, "scale"),
        ({"terms": [{"feature": "a", "mean": 0, "scale": 1}]}, "weight"),
        ({"folds": [{"intercept": 0.0, "weights": [1.0]}]}, "one weight for each of the terms"),
        ({"folds": [], "task_folds": {"ab": 0}}, "there are only 0 folds"),
        ({"task_folds": {"ab": -1}}, "task_folds"),
        ({"held_out": {"kp:trace:1": 1.5}}, "held_out"),
    ],
)
def test_a_model_that_cannot_be_is_refused(change: dict[str, Any], words: str) -> None:
    with pytest.raises(ValidationError, match=words):
        ConfidenceModel.from_dict(MODEL.to_dict() | change)
    with pytest.raises(ValueError, match="one weight"):
        replace(MODEL, folds=(Fold(0.0, ()),))


ANY_NUMBER = st.floats(allow_nan=True, allow_infinity=True)
FEATURES = st.sampled_from([*(term.feature for term in MODEL.terms), "other"])


@given(st.dictionaries(FEATURES, ANY_NUMBER))
def test_any_features_give_a_probability(features: dict[str, float]) -> None:
    assert 0 < MODEL.confidence(features) < 1
    wild = replace(MODEL, intercept=1e300, terms=(Term("steps", 0.0, 1e-9, 1e300),))
    assert 0 < wild.confidence(features) < 1


def test_the_formula() -> None:
    found = MODEL.confidence({"steps": math.e**2.5 - 1, "answer_chars": 1e9, "called:search": 0.0})
    log_odds = 0.4 - 0.8 * 1.0 + 0.3 * 3.0 + 0.2 * (-0.5 / 0.4)
    assert found == pytest.approx(1 / (1 + math.exp(-log_odds)), abs=1e-12)
    # What is not measured counts as average, but a tool that is not named was not called.
    at_the_mean = {"steps": math.e**2 - 1, "answer_chars": math.e**5 - 1}
    assert MODEL.confidence({}) == pytest.approx(MODEL.confidence(at_the_mean), abs=1e-12)
    assert MODEL.confidence({}) == MODEL.confidence({"called:search": 0.0})
    assert MODEL.confidence({}) < MODEL.confidence({"called:search": 1.0})


def test_a_model_for_other_features_is_not_used(labelled: Any) -> None:
    old = replace(MODEL, features_version=FEATURES_VERSION + 1)
    assert MODEL.is_current
    assert not old.is_current
    with pytest.raises(OutdatedModelError, match=r"'finance'.*version 2.*kp-langchain calibrate"):
        old.confidence({})
    with pytest.raises(OutdatedModelError):
        old.held_out_confidence(labelled(1)[0])


# ------------------------------------------------------------------ what it was not fitted to


def stream(labelled: Any, number: int, seed: int, name: str, **same: Any) -> list[LabelledRun]:
    """Runs with ids, of tasks of their own."""
    return [
        replace(run, trace_id=f"{name} {at}", task=f"{name} {run.task}")
        for at, run in enumerate(labelled(number, seed=seed, **same))
    ]


@pytest.fixture(scope="module")
def known(labelled: Any) -> list[LabelledRun]:
    return stream(labelled, 100, 1, "old")


@pytest.fixture(scope="module")
def fitted(known: list[LabelledRun]) -> Fit:
    return fit("finance", known)


@pytest.fixture(scope="module")
def model(fitted: Fit) -> ConfidenceModel:
    return model_of(fitted)


def test_the_model_keeps_the_held_out_probability_of_each_run(
    fitted: Fit, model: ConfidenceModel, known: list[LabelledRun]
) -> None:
    held_out = [model.held_out_confidence(run) for run in known]
    assert held_out == list(fitted.held_out) == list(model.held_out.values())
    lost = [replace(run, task="reworded", features={}) for run in known]
    assert [model.held_out_confidence(run) for run in lost] == held_out
    read = ConfidenceModel.from_dict(json.loads(json.dumps(model.to_dict())))
    assert read == model
    assert [read.held_out_confidence(run) for run in known] == held_out


def test_a_new_run_is_predicted_without_its_task(
    model: ConfidenceModel, known: list[LabelledRun]
) -> None:
    for run in known:
        again = model.held_out_confidence(replace(run, trace_id="kp:trace:new"))
        assert again == pytest.approx(model.held_out_confidence(run), abs=1e-12)
        assert again != model.confidence(run.features)
    run = replace(known[0], trace_id="", features={**known[0].features, "signal": 0.0})
    assert model.held_out_confidence(run) != model.held_out_confidence(known[0])
    stranger = replace(run, task="another task")
    assert model.held_out_confidence(stranger) == model.confidence(stranger.features)


def test_chance_does_not_look_good_on_repeats_of_its_tasks(labelled: Any) -> None:
    """Repeats have the verdicts of the runs it was fitted to, which it partly knows by heart."""
    runs = [
        replace(run, trace_id=f"kp:trace:{at}")
        for at, run in enumerate(labelled(100, strength=0, repeats=1))
    ]
    model = model_of(fit("finance", runs))
    truth, tasks = [run.success for run in runs], [run.task for run in runs]
    by_heart = auc(truth, [model.confidence(run.features) for run in runs], tasks)
    held_out = auc(truth, [model.held_out_confidence(run) or 0.0 for run in runs], tasks)
    assert by_heart.value > 0.57
    assert held_out.value < 0.52


def test_no_task_is_named(labelled: Any) -> None:
    runs = stream(labelled, 60, 1, "named")
    runs[0] = replace(runs[0], task="refund jane\ud800 doe")
    model = model_of(fit("finance", runs))
    text = json.dumps(model.to_dict())
    assert "task 1" not in text
    assert "jane" not in text
    assert len(model.task_folds) == len({run.task for run in runs})


# ------------------------------------------------------------------ later verdicts


def flipped(runs: Sequence[LabelledRun]) -> list[LabelledRun]:
    return [replace(run, success=not run.success) for run in runs]


def later(model: ConfidenceModel, runs: Sequence[LabelledRun]) -> LaterVerdicts:
    result = later_verdicts(model, runs)
    assert result is not None
    return result


def test_a_promise_that_holds(labelled: Any, model: ConfidenceModel, known: Any) -> None:
    result = later(model, known + stream(labelled, 60, 2, "new"))
    assert (result.holds, result.is_broken, result.runs) == (True, False, MOST_RUNS)
    assert (result.promised_brier, result.promised_auc) == (model.brier, model.auc)
    assert result.brier < result.base_brier <= 0.25
    assert result.auc > 0.7
    assert str(result).startswith(f"it holds: promised Brier score {model.brier:.3f}, AUC ")
    assert json.loads(json.dumps(asdict(result)))["holds"] is True


def test_streams_that_stay_raise_no_alarm_and_those_that_turn_do(labelled: Any) -> None:
    alarms = 0
    for seed in range(10, 18):
        known = stream(labelled, 100, seed, "old")
        model = model_of(fit("finance", known))
        new = stream(labelled, 50, 100 + seed, "new")
        alarms += later(model, known + new).is_broken
        result = later(model, known + flipped(new))
        assert result.is_broken
        assert result.auc < 0.5
        assert str(result).startswith("it no longer holds: promised Brier score")
    assert alarms <= 1


def test_confidence_that_is_far_off_is_noticed_though_the_order_is_right(
    labelled: Any, model: ConfidenceModel, known: Any
) -> None:
    new = stream(labelled, 50, 2, "new")
    rarer = [replace(run, success=run.success and at % 4 == 0) for at, run in enumerate(new)]
    result = later(model, known + rarer)
    assert result.is_broken
    assert result.confidence - result.success_rate > 0.2
    assert result.success_rate == sum(run.success for run in rarer) / 50
    assert f"mean confidence {result.confidence:.2f} where {result.success_rate:.2f}" in str(result)


def test_only_the_last_runs_count_and_none_that_it_was_fitted_to(
    labelled: Any, model: ConfidenceModel, known: Any
) -> None:
    bad, good = flipped(stream(labelled, 60, 2, "bad")), stream(labelled, 50, 3, "good")
    assert later(model, known + bad + good).holds is True
    assert later(model, known + good + bad).is_broken
    few = later(model, known + good[: FEWEST_LATER - 1])
    assert (few.runs, few.holds, few.brier, few.is_broken) == (FEWEST_LATER - 1, None, None, False)
    assert str(few).startswith("19 verdicts so far on runs that it was not fitted to")
    enough = later(model, known + good[:FEWEST_LATER])
    assert (enough.runs, enough.holds) == (FEWEST_LATER, True)
    repeats = [replace(run, trace_id=f"again {run.trace_id}") for run in known]
    held_out = [model.held_out_confidence(run) or 0.0 for run in repeats[-MOST_RUNS:]]
    expected = sum(held_out) / MOST_RUNS
    assert later(model, known + repeats).confidence == pytest.approx(expected)


@pytest.mark.parametrize("success", [True, False])
def test_later_runs_may_all_end_alike(
    labelled: Any, model: ConfidenceModel, known: Any, success: bool
) -> None:
    result = later(model, known + stream(labelled, 50, 2, "new", success=success))
    assert (result.auc, result.base_brier, result.is_broken) == (None, 0.0, True)
    assert ", AUC 0." not in str(result).partition(";")[2]


def test_one_task_alone_proves_nothing_and_some_models_cannot_be_judged(
    labelled: Any, model: ConfidenceModel, known: Any
) -> None:
    new = flipped(stream(labelled, 50, 2, "new"))
    assert later(model, known + [replace(run, task="one") for run in new]).holds is True
    older = replace(model, folds=(), task_folds={}, held_out={})
    outdated = replace(model, features_version=FEATURES_VERSION + 1)
    assert older.held_out_confidence(known[0]) is None
    assert older.held_out_confidence(replace(known[0], task="another task")) is None
    assert later_verdicts(older, known) is None
    assert later_verdicts(outdated, known) is None
