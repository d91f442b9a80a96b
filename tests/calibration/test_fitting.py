"""A fit learns what is there, says how well on tasks it never saw, and refuses what is chance.

Its model is plain figures that outlive JSON, and is compared with the verdicts given later.
"""

from __future__ import annotations

import json
import math
import random
from collections.abc import Sequence
from dataclasses import asdict, replace
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from kp_langchain import DomainPolicy, ScoringWeights
from kp_langchain.calibration.calibrate_domain import calibrate
from kp_langchain.calibration.features import FEATURES_VERSION
from kp_langchain.calibration.fitting import (
    FEWEST_RUNS,
    FEWEST_TASKS,
    FeatureTable,
    Fit,
    chance,
    fit,
)
from kp_langchain.calibration.later_verdicts import (
    FEWEST_LATER_VERDICTS,
    MOST_LATER_VERDICTS,
    later_verdicts,
)
from kp_langchain.calibration.model import ConfidenceModel, LabelledRun, Term
from kp_langchain.errors import ConfigError, OutdatedModelError
from kp_langchain.scoring import PROFILES
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
    assert result.chance == 0.001
    weights = {term.feature: abs(term.weight) for term in model.terms}
    assert weights.pop("signal") > 2 * max(weights.values())
    low, high = ({"signal": value} for value in (1.0, 19.0))
    assert model.confidence(low) < model.base_rate < model.confidence(high)

    assert len(result.held_out) == 160
    assert all(0 < one < 1 for one in result.held_out)
    assert list(result.held_out) != [model.confidence(run.features) for run in runs]
    assert 0.7 < result.auc.value < 1
    assert model.brier < result.base_brier < model.default_brier
    assert result.weights == PROFILES["finance"]
    assert len(model.scores) == len(model.worths) == 160

    again = fit("finance", runs)  # the same, but for when it was made
    assert replace(again, model=replace(model_of(again), created_at=model.created_at)) == result


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


def test_a_gain_that_may_be_chance_is_refused_with_how_often_shuffles_do_as_well(
    labelled: Any,
) -> None:
    result = fit("finance", labelled(60, strength=0.8, seed=5))
    assert result.auc.value > result.default_auc.value
    assert result.chance == pytest.approx(0.072, abs=0.02)
    assert f"followed as closely in {result.chance:.0%} of trials" in (result.refusal or "")


def test_a_default_that_knows_already_is_not_replaced(labelled: Any) -> None:
    runs = [replace(run, looked_successful=run.success) for run in labelled(160)]
    assert "default confidence's 1.00" in (fit("finance", runs).refusal or "")


@pytest.mark.parametrize(
    ("number", "same", "words"),
    [
        (0, {}, f"0 verdicts; at least {FEWEST_RUNS}"),
        (FEWEST_RUNS - 1, {}, f"{FEWEST_RUNS - 1} verdicts; at least"),
        (50, {"success": True}, "none of the 50 runs with a verdict failed; failures in at least"),
        (50, {"success": False}, "none of the 50 runs with a verdict succeeded; successes in"),
        (200, {"task": "one"}, f"succeeded, all in 1 task; successes in at least {FEWEST_TASKS}"),
        (60, {"features": {"a": 1.0}}, "no feature of the runs differs in at least 5 tasks"),
        (60, {"features": {"a": math.nan}}, "no feature of the runs differs"),
    ],
)  # fmt: skip
def test_too_little_to_learn_from_is_said(
    labelled: Any, number: int, same: dict[str, Any], words: str
) -> None:
    result = fit("finance", labelled(number, **same))
    assert (result.model, result.held_out) == (None, ())
    assert words in (result.refusal or "")


def test_features_that_some_runs_lack_are_used_all_the_same(labelled: Any) -> None:
    runs = [
        replace(run, features={"signal": run.features["signal"]} if at % 3 else {})
        for at, run in enumerate(labelled(240))
    ]
    result = fit("finance", runs)
    assert result.refusal is None
    assert [term.feature for term in model_of(result).terms] == ["signal"]


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


# ------------------------------------------------------------------ a model


def test_a_model_survives_json_and_an_older_one_is_read_as_it_was() -> None:
    stored = json.loads(json.dumps(MODEL.to_dict()))
    assert ConfidenceModel.from_dict(stored) == MODEL
    del stored["scores"], stored["worths"]
    assert ConfidenceModel.from_dict(stored | {"folds": []}) == MODEL


def test_it_says_where_a_confidence_comes_from_and_what_it_leans_on_in_words() -> None:
    assert MODEL.source == "calibrated on 214 runs, AUC 0.74"
    assert MODEL.leans_on == (
        "steps (fewer)", "characters of the answer (more)", "calls of the tool search (more)",
    )  # fmt: skip
    leanings = {
        "thought_share": 0.3, "steps": 0.2 + 1e-14, "looked_successful": 0.2,
        "most_alike_thoughts": -0.4, "ends_with_thought": -0.5,
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
        ({"worths": [1.5]}, "worths"),
    ],
)
def test_a_model_that_cannot_be_is_refused(change: dict[str, Any], words: str) -> None:
    with pytest.raises(ValidationError, match=words):
        ConfidenceModel.from_dict(MODEL.to_dict() | change)


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


def test_a_model_for_other_features_is_not_used() -> None:
    old = replace(MODEL, features_version=FEATURES_VERSION + 1)
    assert MODEL.is_current
    assert not old.is_current
    with pytest.raises(OutdatedModelError, match=r"'finance'.*version 2.*kp-langchain calibrate"):
        old.confidence({})
    with pytest.raises(OutdatedModelError):
        later_verdicts(old, [])


# ------------------------------------------------------------------ what it was not fitted to


def after(model: ConfidenceModel, runs: list[LabelledRun]) -> list[LabelledRun]:
    """Runs that were judged after a model was fitted, of tasks of their own."""
    at = model.created_at
    return [
        replace(run, task=f"new {run.task}", judged_at=at + timedelta(minutes=1 + number))
        for number, run in enumerate(runs)
    ]


@pytest.fixture(scope="module")
def known(labelled: Any) -> list[LabelledRun]:
    return labelled(100)


@pytest.fixture(scope="module")
def model(known: list[LabelledRun]) -> ConfidenceModel:
    return model_of(fit("finance", known))


# ------------------------------------------------------------------ later verdicts


def flipped(runs: Sequence[LabelledRun]) -> list[LabelledRun]:
    return [replace(run, success=not run.success) for run in runs]


def test_a_promise_that_holds(labelled: Any, model: ConfidenceModel, known: Any) -> None:
    result = later_verdicts(model, known + after(model, labelled(60, seed=2)))
    assert (result.holds, result.is_broken, result.runs) == (True, False, MOST_LATER_VERDICTS)
    assert (result.promised_brier, result.promised_auc) == (model.brier, model.auc)
    assert result.brier < result.base_brier <= 0.25
    assert result.auc > 0.7
    assert str(result).startswith(f"it holds: promised Brier score {model.brier:.3f}, AUC ")
    assert json.loads(json.dumps(asdict(result)))["holds"] is True


def test_runs_like_the_known_ones_raise_no_alarm_and_opposite_ones_do(labelled: Any) -> None:
    alarms = 0
    for seed in range(10, 18):
        model = model_of(fit("finance", labelled(100, seed=seed)))
        new = after(model, labelled(50, seed=100 + seed))
        alarms += later_verdicts(model, new).is_broken
        result = later_verdicts(model, flipped(new))
        assert result.is_broken
        assert result.auc < 0.5
        assert str(result).startswith("it no longer holds: promised Brier score")
    assert alarms <= 1


def test_confidence_that_is_far_off_is_noticed_though_the_order_is_right(
    labelled: Any, model: ConfidenceModel
) -> None:
    new = after(model, labelled(50, seed=2))
    rarer = [replace(run, success=run.success and at % 4 == 0) for at, run in enumerate(new)]
    result = later_verdicts(model, rarer)
    assert result.is_broken
    assert result.confidence - result.success_rate > 0.2
    assert result.success_rate == sum(run.success for run in rarer) / 50
    assert f"mean confidence {result.confidence:.2f} where {result.success_rate:.2f}" in str(result)
    failed = later_verdicts(model, [replace(run, success=False) for run in new])
    assert (failed.auc, failed.base_brier, failed.is_broken) == (None, 0.0, True)
    same_task = [replace(run, task="one") for run in flipped(new)]
    assert later_verdicts(model, same_task).holds is True  # one task alone proves nothing


def test_only_the_last_verdicts_count_and_none_from_before_the_fit(
    labelled: Any, model: ConfidenceModel, known: Any
) -> None:
    bad, good = flipped(labelled(60, seed=2)), labelled(50, seed=3)
    assert later_verdicts(model, known + after(model, bad + good)).holds is True
    assert later_verdicts(model, known + after(model, good + bad)).is_broken
    few = later_verdicts(model, known + after(model, good)[: FEWEST_LATER_VERDICTS - 1])
    assert (few.runs, few.holds, few.brier, few.is_broken) == (19, None, None, False)
    assert str(few).startswith("19 verdicts since it was fitted; it is compared with them")
    assert later_verdicts(model, flipped(known)).runs == 0


# ------------------------------------------------------------------ the proposed gate


def test_a_gate_by_worth_is_proposed_and_keeps_the_share_that_was_asked_for(labelled: Any) -> None:
    runs, policy = labelled(200), DomainPolicy(threshold=0.6)
    for rate in (0.05, 0.1, 0.3):
        result = calibrate("finance", runs, policy, pass_rate=rate)
        assert result.policy_fields == {"gate": "worth", "pass_rate": rate}
        proposal = result.proposal
        assert proposal is not None
        assert (proposal.proposed.runs, proposal.proposed.kept) == (round(200 * rate), rate)
        assert proposal.proposed.right.value > proposal.base_rate
    assert proposal.in_force.thresholds == (0.6,)
    assert (proposal.in_force.gate, proposal.with_model.gate) == ("score", "score")
    assert [one.pass_rate for one in proposal.other_rates] == [0.5, 0.3, 0.2, 0.1, 0.05]
    assert proposal.other_rates[1] == proposal.proposed
    # All but the kept runs whose confidence reaches the base rate are refused at any rate.
    assert calibrate("finance", runs, policy, pass_rate=1.0).proposal.proposed.kept < 0.8


def test_no_gate_is_proposed_that_is_no_better_than_none_or_than_the_one_in_force(
    labelled: Any,
) -> None:
    policy = DomainPolicy()
    by_chance = calibrate("finance", labelled(60, strength=0, seed=5), policy)
    assert (by_chance.policy_fields, by_chance.proposal.refusal) == ({}, "the model is refused")
    # Novelty alone tells here: a gate by score that has it in full ranks better than the worth.
    runs = [
        replace(run, values={**run.values, "novelty": 0.9 if run.success else 0.1})
        for run in labelled(200, strength=1.2)
    ]
    by_novelty = ScoringWeights(complexity=0, novelty=1, tool_diversity=0, outcome_confidence=0)
    better = calibrate("finance", runs, DomainPolicy(weights=by_novelty, threshold=0.5))
    assert "that of the gate in force 1.00" in (better.proposal.refusal or "")
    assert better.policy_fields == {}


def test_a_model_in_force_is_compared_with_later_verdicts_only_if_it_stays(
    labelled: Any, model: ConfidenceModel
) -> None:
    result = calibrate("finance", labelled(160), DomainPolicy(), before=model)
    assert (result.later, result.proposal.in_force) == (None, None)
    refused = calibrate(
        "finance", after(model, flipped(labelled(29))), DomainPolicy(), before=model
    )
    assert (refused.proposal.refusal, refused.later.is_broken) == ("the model is refused", True)
    for rate in (0, 1.5, math.nan):
        with pytest.raises(ConfigError, match="pass rate is"):
            calibrate("finance", [], DomainPolicy(), pass_rate=rate)
