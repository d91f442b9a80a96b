"""The table of dimensions and the typed fields that go with it."""

from __future__ import annotations

import dataclasses

import pytest
from pydantic import ValidationError

from kp_langchain.scoring import Dimension, ScoreBreakdown, Scorer
from kp_langchain.scoring.changed_outcome import with_outcome
from kp_langchain.scoring.dimensions import DIMENSION_NAMES, DIMENSIONS, TraceShape
from kp_langchain.weights import WEIGHT_NAMES


def test_every_row_has_its_weight_and_its_field_in_the_same_order():
    fields = [field.name for field in dataclasses.fields(ScoreBreakdown)]
    assert DIMENSION_NAMES == WEIGHT_NAMES
    assert tuple(name for name in fields if name in DIMENSION_NAMES) == DIMENSION_NAMES


def test_labels_fit_their_columns():
    for dimension in DIMENSIONS:
        assert len(dimension.label) < 20
        wide, narrow = dimension.headings
        assert len(narrow) <= len(wide)


def test_a_breakdown_has_its_dimensions_by_name(make_trace):
    breakdown = Scorer(embedder=None).score(make_trace())
    assert tuple(breakdown.dimensions) == DIMENSION_NAMES
    assert breakdown.dimensions["novelty"] is breakdown.novelty
    assert breakdown.weighted_sum == pytest.approx(
        sum(dimension.contribution for dimension in breakdown.dimensions.values()), abs=1e-12
    )


@pytest.mark.parametrize("name", DIMENSION_NAMES)
def test_a_breakdown_stored_before_a_dimension_existed_can_be_read(name, make_trace):
    breakdown = Scorer(embedder=None).score(make_trace())
    data = breakdown.to_dict()
    del data[name]
    earlier = ScoreBreakdown.from_dict(data)
    absent = earlier.dimensions[name]
    assert (absent.value, absent.weight, absent.contribution) == (0, 0, 0)
    assert absent.why == "not scored by the version that stored this breakdown"
    assert dataclasses.replace(earlier, **{name: getattr(breakdown, name)}) == breakdown
    assert ScoreBreakdown.from_dict(earlier.to_dict()) == earlier


def test_a_verdict_on_such_a_run_counts_only_what_was_scored(make_trace):
    trace = make_trace()
    data = Scorer(embedder=None).score(trace).to_dict()
    part = data.pop("tool_diversity")
    data["weighted_sum"] -= part["contribution"]
    after = with_outcome(
        ScoreBreakdown.from_dict(data),
        success=True,
        confidence=1.0,
        source="a reviewer",
        shape=TraceShape.of(trace),
    )
    assert after.tool_diversity == Dimension(
        0, 0, 0, "not scored by the version that stored this breakdown"
    )
    assert after.weighted_sum == pytest.approx(
        sum(one.contribution for one in after.dimensions.values()), abs=1e-12
    )


@pytest.mark.parametrize("name", DIMENSION_NAMES)
def test_a_dimension_with_a_wrong_value_is_refused(name, make_trace):
    data = Scorer(embedder=None).score(make_trace()).to_dict()
    for wrong in (None, 0.5, {"value": "high"}, {"value": 0.1, "weight": 0.2}):
        with pytest.raises(ValidationError, match=name):
            ScoreBreakdown.from_dict({**data, name: wrong})
