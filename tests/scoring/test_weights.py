from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, ValidationError

from kp_langchain.errors import KPError, WeightsError
from kp_langchain.scoring import PROFILES, ScoringWeights

NAMES = ("complexity", "novelty", "tool_diversity", "outcome_confidence")
EQUAL = dict.fromkeys(NAMES, 0.25)


def test_built_in_profiles():
    as_rows = {
        domain: tuple(getattr(weights, name) for name in NAMES)
        for domain, weights in PROFILES.items()
    }
    assert as_rows == {
        "default": (0.25, 0.35, 0.15, 0.25),
        "finance": (0.20, 0.25, 0.10, 0.45),
        "code": (0.20, 0.30, 0.30, 0.20),
        "medical": (0.15, 0.20, 0.10, 0.55),
        "customer_service": (0.20, 0.30, 0.20, 0.30),
    }
    with pytest.raises(TypeError):
        PROFILES["default"] = ScoringWeights(**EQUAL)


def test_positional_keyword_and_numpy_numbers_become_floats():
    assert ScoringWeights(0.25, 0.25, 0.25, 0.25) == ScoringWeights(**EQUAL)
    weights = ScoringWeights(1, 0, np.float32(0.0), np.float64(0.0))
    assert [type(getattr(weights, name)) for name in NAMES] == [float] * 4


@pytest.mark.parametrize(
    "bad", [-0.1, 1.1, math.nan, math.inf, -math.inf, None, "0.25", True, [], 10**400, 1j]
)
@pytest.mark.parametrize("name", NAMES)
def test_a_bad_weight_is_named_with_its_value(name, bad):
    with pytest.raises(WeightsError) as caught:
        ScoringWeights(**{**EQUAL, name: bad})
    assert name in str(caught.value)
    assert repr(bad)[:20] in str(caught.value)
    assert isinstance(caught.value, KPError)
    assert isinstance(caught.value, ValueError)


def test_a_wrong_sum_names_the_values_and_the_sum():
    with pytest.raises(WeightsError) as caught:
        ScoringWeights(0.5, 0.25, 0.25, 0.125)
    for part in ("complexity=0.5", "novelty=0.25", "outcome_confidence=0.125", "1.125"):
        assert part in str(caught.value)


def test_tolerance_of_the_sum():
    ScoringWeights(0.25, 0.25, 0.25, 0.25 + 5e-10)
    with pytest.raises(WeightsError):
        ScoringWeights(0.25, 0.25, 0.25, 0.25 + 5e-9)


def test_frozen():
    with pytest.raises(AttributeError):
        ScoringWeights(**EQUAL).novelty = 0.5


@given(st.lists(st.floats(0.01, 1), min_size=4, max_size=4))
def test_anything_divided_by_its_sum_is_accepted(raw):
    total = math.fsum(raw)
    ScoringWeights(*(value / total for value in raw))


class _Policy(BaseModel):
    weights: ScoringWeights | None = None


def test_as_a_pydantic_field():
    assert _Policy(weights=EQUAL).weights == ScoringWeights(**EQUAL)
    weights = ScoringWeights(0.1, 0.2, 0.3, 0.4)
    assert _Policy(weights=weights).weights is weights
    assert (
        _Policy.model_validate_json(_Policy(weights=weights).model_dump_json()).weights == weights
    )


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ({**EQUAL, "novelty": 0.5}, "sum to 1.25"),
        ({**EQUAL, "novelty": -1}, "novelty"),
        ({**EQUAL, "novelity": 0.0}, "novelity"),
        ({"novelty": 1.0}, "complexity"),
        (7, "weights"),
    ],
)
def test_as_a_pydantic_field_with_bad_input(value, said):
    with pytest.raises(ValidationError, match="weights") as caught:
        _Policy(weights=value)
    assert said in str(caught.value)


@pytest.mark.parametrize(
    "value", [None, 1, "default", [0.25] * 4, {}, {"novelty": 1.0}, {**EQUAL, "extra": 0}, {1: 2}]
)
def test_of_refuses_what_is_no_weights(value):
    with pytest.raises(WeightsError):
        ScoringWeights.of(value)


def test_importing_weights_is_light(run_python):
    script = (
        "import sys, kp_langchain.weights\n"
        "print([m for m in ('numpy', 'torch', 'sqlalchemy', 'httpx') if m in sys.modules])"
    )
    assert run_python(script, is_cold=True).stdout.strip() == "[]"
