"""A confidence model: plain figures, written as JSON, that never fail to give a probability."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from kp_langchain.calibration.features import FEATURES_VERSION
from kp_langchain.calibration.model import ConfidenceModel, Term
from kp_langchain.errors import OutdatedModelError

MODEL = ConfidenceModel(
    domain="finance",
    features_version=FEATURES_VERSION,
    created_at=datetime(2026, 2, 1, 12, tzinfo=UTC),
    runs=214,
    tasks=80,
    base_rate=0.6,
    auc=0.7449,
    auc_low=0.66,
    auc_high=0.81,
    brier=0.19,
    default_brier=0.31,
    intercept=0.4,
    terms=(
        Term("steps", 2.0, 0.5, -0.8),
        Term("answer_chars", 5.0, 1.0, 0.3),
        Term("called:search", 0.5, 0.4, 0.2),
    ),
)
LEANINGS = {
    "thought_share": 0.3,
    "looked_successful": 0.2,
    "steps": 0.1,
    "most_alike_thoughts": -0.4,
    "ends_with_thought": -0.5,
}
ANY_NUMBER = st.floats(allow_nan=True, allow_infinity=True)


def test_it_survives_json() -> None:
    assert ConfidenceModel.from_dict(json.loads(json.dumps(MODEL.to_dict()))) == MODEL


def test_it_says_where_a_confidence_comes_from() -> None:
    assert MODEL.source == "calibrated on 214 runs, AUC 0.74"
    provisional = replace(MODEL, provisional=True)
    assert provisional.source == "calibrated on 214 runs, provisional, AUC 0.74"


def test_an_older_model_is_read_as_it_was() -> None:
    stored = MODEL.to_dict()
    for name in ("provisional", "surface", "held_out", "folds", "task_folds"):
        del stored[name]
    assert ConfidenceModel.from_dict(stored) == MODEL


def test_it_says_what_it_leans_on_in_words() -> None:
    assert MODEL.leans_on == (
        "steps (fewer)", "characters of the answer (more)", "calls of the tool search (more)",
    )  # fmt: skip
    terms = [Term(name, 0.0, 1.0, weight) for name, weight in LEANINGS.items()]
    assert replace(MODEL, terms=tuple(terms)).leans_on == (
        "the last step is a thought (no)",
        "how alike two thoughts in a row are, at most (lower)",
        "share of thoughts among the steps (higher)",
        "the run looked successful by itself (yes)",
    )


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"auc": 1.2}, "auc"),
        ({"intercept": math.nan}, "intercept"),
        ({"terms": [{"feature": "a", "mean": 0, "scale": 0, "weight": 1}]}, "scale"),
        ({"terms": [{"feature": "a", "mean": 0, "scale": 1}]}, "weight"),
    ],
)
def test_a_model_that_cannot_be_is_refused(change: dict[str, Any], named: str) -> None:
    with pytest.raises(ValidationError, match=named):
        ConfidenceModel.from_dict(MODEL.to_dict() | change)


@given(
    st.dictionaries(st.sampled_from([*(term.feature for term in MODEL.terms), "other"]), ANY_NUMBER)
)
def test_any_features_give_a_probability(features: dict[str, float]) -> None:
    assert 0 < MODEL.confidence(features) < 1


def test_the_formula() -> None:
    found = MODEL.confidence({"steps": math.e**2.5 - 1, "answer_chars": 1e9, "called:search": 0.0})
    log_odds = 0.4 - 0.8 * 1.0 + 0.3 * 3.0 + 0.2 * (-0.5 / 0.4)
    assert found == pytest.approx(1 / (1 + math.exp(-log_odds)), abs=1e-12)


def test_what_is_not_measured_counts_as_average_but_a_tool_not_named_was_not_called() -> None:
    at_the_mean = {"steps": math.e**2 - 1, "answer_chars": math.e**5 - 1}
    assert MODEL.confidence({}) == pytest.approx(MODEL.confidence(at_the_mean), abs=1e-12)
    assert MODEL.confidence({}) == MODEL.confidence({"called:search": 0.0})
    assert MODEL.confidence({}) < MODEL.confidence({"called:search": 1.0})


def test_no_weights_make_a_probability_certain() -> None:
    wild = replace(MODEL, intercept=1e300, terms=(Term("steps", 0.0, 1e-9, 1e300),))
    assert 0 < wild.confidence({"steps": 5.0}) < 1


def test_a_model_for_other_features_is_not_used() -> None:
    old = replace(MODEL, features_version=FEATURES_VERSION + 1)
    assert MODEL.is_current
    assert not old.is_current
    with pytest.raises(OutdatedModelError, match=r"'finance'.*version 2.*kp-langchain calibrate"):
        old.confidence({})
