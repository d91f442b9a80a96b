from __future__ import annotations

import copy
import dataclasses
import json
import math
import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from kp_langchain.scoring import Dimension, Nearest, RuleFired, ScoreBreakdown, Scorer

unit = st.floats(0, 1)
dimensions = st.builds(Dimension, value=unit, weight=unit, contribution=unit, why=st.text())
breakdowns = st.builds(
    ScoreBreakdown,
    total=unit,
    complexity=dimensions,
    novelty=dimensions,
    tool_diversity=dimensions,
    outcome_confidence=dimensions,
    weighted_sum=unit,
    profile=st.text(),
    rules=st.lists(st.builds(RuleFired, name=st.text(), before=unit, after=unit)).map(tuple),
    novelty_source=st.text(),
    nearest=st.none()
    | st.builds(Nearest, trace_id=st.none() | st.text(), similarity=st.floats(-1, 1)),
    confidence_source=st.text(),
    elapsed_ms=st.floats(0, 1e6),
)


class Turning:
    """Embeds the texts it sees as (1, 0), then as (0.6, 0.8)."""

    def __init__(self) -> None:
        self._vectors = iter([[1.0, 0.0], [0.6, 0.8]])

    def embed(self, texts):
        return [next(self._vectors) for _ in texts]


@pytest.fixture
def explained(make_trace):
    scorer = Scorer(embedder=Turning())
    first = make_trace()
    scorer.remember(first)
    steps = ("thought", "tool_call:a", "error_recovery")
    trace = make_trace(*steps, objective="another", domain="code", confidence=0.5)
    return scorer.score(trace), first


def test_line(explained):
    breakdown, _ = explained
    # C .375+.3+.03, N 1-.6, D 1/3*3, O .5
    assert breakdown.line() == str(breakdown)
    assert breakdown.line() == (
        "score 0.561 = complexity 0.705 x 0.20 + novelty 0.400 x 0.30 + tools 1.000 x 0.30"
        " + outcome 0.500 x 0.20, single_tool 0.661 -> 0.561 (code profile)"
    )


def test_line_says_when_novelty_is_neutral(make_trace):
    assert (
        Scorer(embedder=None)
        .score(make_trace())
        .line()
        .endswith("(default profile; novelty: no embedder)")
    )


def test_text(explained):
    breakdown, first = explained
    lines = dataclasses.replace(
        breakdown, confidence_source="reported by the caller", elapsed_ms=1.5
    ).text()
    assert lines.splitlines() == [
        "score 0.561 with the weights of profile code",
        "  complexity          0.705 x 0.20 = 0.141   3 of 4 step types, 3 steps, 1 error recovery",
        "  novelty             0.400 x 0.30 = 0.120   "
        "similarity 0.600 to the nearest remembered trace",
        "  tool diversity      1.000 x 0.30 = 0.300   1 distinct tool in 3 steps",
        "  outcome confidence  0.500 x 0.20 = 0.100   confidence 0.50, succeeded",
        "  weighted sum                       0.661",
        "  rule single_tool          0.661 -> 0.561   all its tool calls went to the same tool",
        "  score                              0.561   in 1.50 ms",
        f"  novelty from        nearest remembered trace, {first.id}",
        "  confidence from     reported by the caller",
    ]


def test_the_score_has_the_name_of_the_field_and_is_a_number(explained):
    breakdown, _ = explained
    assert breakdown.score == float(breakdown) == breakdown.total
    assert "score" not in breakdown.to_dict()


def test_dict_is_plain_and_complete(explained):
    breakdown, first = explained
    data = breakdown.to_dict()
    assert json.loads(json.dumps(data, allow_nan=False)) == data
    assert set(data) == {field.name for field in dataclasses.fields(ScoreBreakdown)}
    assert data["nearest"]["trace_id"] == first.id
    assert data["novelty"]["contribution"] == pytest.approx(0.12, abs=1e-6)
    assert [rule["name"] for rule in data["rules"]] == ["single_tool"]


@given(breakdowns)
def test_round_trip_through_json(breakdown):
    data = json.loads(json.dumps(breakdown.to_dict(), allow_nan=False))
    assert ScoreBreakdown.from_dict(data) == breakdown


@given(breakdowns)
def test_any_breakdown_has_its_texts(breakdown):
    assert breakdown.line()
    assert breakdown.text()


def test_from_dict_ignores_what_it_does_not_know(explained):
    breakdown, _ = explained
    assert ScoreBreakdown.from_dict({**breakdown.to_dict(), "later": 1}) == breakdown


@pytest.mark.parametrize(
    ("key", "value"),
    [("total", "high"), ("total", math.nan), ("novelty", None), ("rules", [1]), ("nearest", "x")],
)
def test_from_dict_names_what_is_wrong(explained, key, value):
    breakdown, _ = explained
    with pytest.raises(ValidationError, match=key):
        ScoreBreakdown.from_dict({**breakdown.to_dict(), key: value})


def test_from_dict_names_what_is_missing(explained):
    breakdown, _ = explained
    data = breakdown.to_dict()
    del data["weighted_sum"]
    with pytest.raises(ValidationError, match="weighted_sum"):
        ScoreBreakdown.from_dict(data)


def test_frozen_copied_and_pickled(explained):
    breakdown, _ = explained
    with pytest.raises(AttributeError):
        breakdown.total = 1.0
    assert copy.deepcopy(breakdown) == breakdown
    assert pickle.loads(pickle.dumps(breakdown)) == breakdown  # noqa: S301 - our own bytes
