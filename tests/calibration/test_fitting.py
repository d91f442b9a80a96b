"""A fit learns what is there, says how well on tasks it never saw, and refuses what is chance."""

from __future__ import annotations

import itertools
import random
import sys
from dataclasses import replace
from typing import Any

import pytest

from kp_langchain.calibration.features import FEATURES_VERSION, features_of
from kp_langchain.calibration.fitting import FEWEST_RUNS, FEWEST_TASKS, Fit, fit
from kp_langchain.calibration.folds import folds
from kp_langchain.calibration.labelled_run import LabelledRun
from kp_langchain.errors import MissingExtraError
from kp_langchain.recording.from_messages import trace_from_messages
from kp_langchain.scoring import PROFILES, Scorer
from tests import recorded

pytest.importorskip("sklearn")


def told(found: Fit) -> Any:
    """A fit but for when it was made."""
    assert found.model is not None
    return replace(found, model=replace(found.model, created_at=found.model.created_at.min))


def test_what_success_follows_is_found(labelled: Any) -> None:
    runs = labelled(160)
    found = fit("finance", runs)
    assert found.refusal is None
    assert (found.runs, found.tasks, found.successes) == (160, 80, sum(r.success for r in runs))
    assert found.model is not None
    assert (found.model.domain, found.model.runs, found.model.tasks) == ("finance", 160, 80)
    assert found.model.is_current
    weights = {term.feature: term.weight for term in found.model.terms}
    assert weights["signal"] > 0
    assert weights["signal"] > 2 * max(abs(weights[name]) for name in weights if name != "signal")
    low, high = ({"signal": value} for value in (1.0, 19.0))
    assert found.model.confidence(low) < found.model.base_rate < found.model.confidence(high)


def test_the_figures_are_of_held_out_runs(labelled: Any) -> None:
    runs = labelled(160)
    found = fit("finance", runs)
    assert found.model is not None and found.auc is not None and found.brier is not None  # noqa: PT018
    assert found.base_brier is not None and found.default_brier is not None  # noqa: PT018
    assert found.score_auc_after is not None and found.score_auc_before is not None  # noqa: PT018
    assert len(found.held_out) == 160
    assert all(0 < one < 1 for one in found.held_out)
    assert list(found.held_out) != [found.model.confidence(run.features) for run in runs]
    assert 0.7 < found.auc.value < 1
    assert (found.model.auc, found.model.auc_low) == (found.auc.value, found.auc.low)
    assert found.brier < found.base_brier < found.default_brier
    assert found.weights == PROFILES["finance"]
    assert found.score_auc_after.value > found.score_auc_before.value
    assert sum(one.runs for one in found.reliability) == 160
    assert found.reliability[0].success_rate.high < found.reliability[-1].success_rate.low


def test_the_same_runs_give_the_same_fit(labelled: Any) -> None:
    assert told(fit("finance", labelled(80))) == told(fit("finance", labelled(80)))


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
    signs = [[20 * rng.random() for _ in range(12)] for _ in range(40)]
    runs = [
        replace(
            run,
            success=verdicts[at // 5],
            features={f"sign {n}": sign for n, sign in enumerate(signs[at // 5])},
        )
        for at, run in enumerate(labelled(200, repeats=5))
    ]
    found = fit("finance", runs)
    assert found.refusal is not None
    assert "it is no better" in found.refusal


def test_chance_is_hardly_ever_installed(labelled: Any) -> None:
    seeds = range(200, 260)
    fits = [fit("finance", labelled(60, strength=0, seed=seed)) for seed in seeds]
    assert sum(one.refusal is None for one in fits) <= 6
    assert sum(one.refusal is None and not one.provisional for one in fits) <= 2


def test_between_chance_and_certainty_a_model_is_provisional(labelled: Any) -> None:
    found = fit("finance", labelled(60, strength=0.8, seed=3))
    assert found.refusal is None
    assert found.model is not None and found.chance is not None  # noqa: PT018
    assert 0.01 < found.chance <= 0.05
    assert found.provisional
    assert found.model.provisional
    assert found.model.source == f"calibrated on 60 runs, provisional, AUC {found.model.auc:.2f}"


def test_a_certain_model_and_a_refused_one_are_not_provisional(labelled: Any) -> None:
    certain, refused = fit("finance", labelled(160)), fit("finance", labelled(60, strength=0))
    assert certain.chance == 0.001
    assert refused.chance is not None
    assert refused.chance > 0.05
    assert certain.refusal is None
    assert refused.refusal is not None
    for found in (certain, refused):
        assert found.model is not None
        assert not found.provisional
        assert not found.model.provisional


def test_a_gain_that_may_be_chance_is_refused_with_how_often_shuffles_do_as_well(
    labelled: Any,
) -> None:
    found = fit("finance", labelled(60, strength=0.8, seed=5))
    assert found.auc is not None and found.default_auc is not None  # noqa: PT018
    assert found.auc.value > found.default_auc.value
    assert found.chance == pytest.approx(0.072, abs=0.02)
    assert f"followed as closely in {found.chance:.0%} of trials" in (found.refusal or "")


def test_a_default_that_knows_already_is_not_replaced(labelled: Any) -> None:
    runs = [replace(run, looked_successful=run.success) for run in labelled(160)]
    found = fit("finance", runs)
    assert found.refusal is not None
    assert "default confidence's 1.00" in found.refusal


@pytest.mark.parametrize(
    ("runs", "words"),
    [
        (lambda make: [], f"0 verdicts; at least {FEWEST_RUNS}"),
        (lambda make: make(FEWEST_RUNS - 1), f"{FEWEST_RUNS - 1} verdicts; at least"),
        (lambda make: make(50, success=True), "the 0 failed among 50 runs are of 0 different"),
        (lambda make: make(50, success=False), "the 0 successful among 50"),
        (
            lambda make: make(200, task="one"),
            f"of 1 different tasks; at least {FEWEST_TASKS} are needed",
        ),
        (
            lambda make: make(50, features={"features_version": FEATURES_VERSION + 1.0}),
            "50 of 50 runs have features of another version",
        ),
    ],
)
def test_too_little_to_learn_from_is_said(labelled: Any, runs: Any, words: str) -> None:
    found = fit("finance", runs(labelled))
    assert found.model is None
    assert found.held_out == ()
    assert found.refusal is not None
    assert words in found.refusal


@pytest.mark.parametrize(
    "features",
    [
        {},
        {"a": 1.0},
        {"a": float("nan")},
        {"a": float("inf"), "b": -5.0},
        {"a": 1e308, "b": 5e-324},
    ],
)
def test_features_that_say_nothing_are_refused_in_good_order(
    labelled: Any, features: dict[str, float]
) -> None:
    found = fit("finance", labelled(60, features=features))
    assert found.model is not None
    assert found.model.terms == ()
    assert found.refusal is not None


def test_features_that_some_runs_lack_are_used_all_the_same(labelled: Any) -> None:
    runs = [
        replace(run, features={"signal": run.features["signal"]} if at % 3 else {})
        for at, run in enumerate(labelled(240))
    ]
    found = fit("finance", runs)
    assert found.refusal is None
    assert found.model is not None
    assert [term.feature for term in found.model.terms] == ["signal"]


def test_without_scikit_learn_the_extra_is_named(
    labelled: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "sklearn.model_selection", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'kp-langchain\[calibrate\]'"):
        fit("finance", labelled(60))


@pytest.mark.skipif(not recorded.present(), reason="no recorded runs beside this checkout")
def test_recorded_runs_can_be_learned_from() -> None:
    scorer = Scorer(embedder=None)
    runs = []
    for one in itertools.islice(recorded.load(), 0, None, 3):
        if one["source"] != "agentdojo":
            continue
        trace = trace_from_messages(one["messages"])
        breakdown = scorer.score(trace)
        runs.append(
            LabelledRun(
                task=one["meta"]["task_id"],
                success=one["success"],
                features=features_of(trace),
                looked_successful=trace.metadata.success,
                values={name: one.value for name, one in breakdown.dimensions.items()},
                created_at=trace.metadata.created_at,
            )
        )
    found = fit("default", runs)
    assert found.refusal is None
    assert found.auc is not None
    assert found.auc.low > 0.6
