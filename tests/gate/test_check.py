"""What a run is held against: its score or its worth, a fixed threshold or a pass rate."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache

import pytest
from hypothesis import given
from hypothesis import strategies as st
from langchain_core.messages import AIMessage, ToolMessage

from kp_langchain import DomainPolicy, ScoreBreakdown, Scorer, trace_from_messages
from kp_langchain.gate import default_threshold
from kp_langchain.gate.check import GateCheck, check
from kp_langchain.gate.recent_values import RecentValues
from kp_langchain.scoring import ScoringWeights, Worth

units = st.floats(0, 1)


@cache
def breakdown() -> ScoreBreakdown:
    trace = trace_from_messages([("user", "What is 6 x 7?"), ("ai", "42")], domain="default")
    return Scorer(embedder=None).score(trace)  # novelty 0.5


def with_worth(confidence: float) -> ScoreBreakdown:
    return breakdown().with_worth(confidence)


def checked(
    one: ScoreBreakdown, policy: DomainPolicy, values: Sequence[float] = (), base_rate: float = 0.0
) -> GateCheck:
    return check(one, "default", policy, recent=lambda _: RecentValues(values), base_rate=base_rate)


@given(units, units)
def test_worth_is_confidence_times_half_and_half_the_novelty(
    confidence: float, novelty: float
) -> None:
    worth = Worth.of(confidence, novelty)
    assert worth.value == pytest.approx(confidence * (0.5 + novelty / 2))
    assert confidence / 2 <= worth.value <= confidence


def test_by_default_the_score_is_held_against_the_built_in_threshold() -> None:
    expected = default_threshold("default", novelty_measured=False)
    assert checked(with_worth(0.9), DomainPolicy()) == ("score", breakdown().total, expected, None)


def test_a_domain_without_a_model_is_gated_by_its_score_whatever_the_policy_says() -> None:
    policy = DomainPolicy(gate="worth", worth_threshold=0.3, threshold=0.7)
    assert checked(breakdown(), policy) == ("score", breakdown().total, 0.7, None)


def test_the_worth_is_held_against_its_threshold() -> None:
    policy = DomainPolicy(gate="worth", worth_threshold=0.3, threshold=0.7)
    gate, value, threshold, pass_rate = checked(with_worth(0.8), policy)
    assert (gate, threshold, pass_rate) == ("worth", 0.3, None)
    assert value == pytest.approx(0.8 * 0.75)


def test_without_a_threshold_the_best_tenth_of_the_recent_worths_passes() -> None:
    values = [number / 100 for number in range(100)]
    assert checked(with_worth(0.8), DomainPolicy(gate="worth"), values).threshold == 0.9
    policy = DomainPolicy(gate="worth", pass_rate=0.3)
    assert checked(with_worth(0.8), policy, values).threshold == 0.7


def test_with_too_few_recent_worths_the_score_decides() -> None:
    assert checked(with_worth(0.8), DomainPolicy(gate="worth"), [0.1] * 29).gate == "score"


def test_no_run_passes_by_a_rate_whose_confidence_is_below_the_base_rate() -> None:
    policy, values = DomainPolicy(gate="worth", pass_rate=1.0), [0.1] * 50
    below = checked(with_worth(0.59), policy, values, base_rate=0.6)
    above = checked(with_worth(0.61), policy, values, base_rate=0.6)
    assert below.value < below.threshold
    assert above.value >= above.threshold


def scored(confidence: float, weights: ScoringWeights | None = None) -> ScoreBreakdown:
    """A run with two tool calls, with the confidence of a model."""
    messages = [
        ("user", "What is 6 x 7?"),
        ("ai", "I search."),
        AIMessage("", tool_calls=[{"name": "search", "args": {"q": "6"}, "id": "1"}]),
        ToolMessage("42", tool_call_id="1"),
        ("ai", "42"),
    ]
    trace = trace_from_messages(messages, domain="default")
    trace.outcome.confidence = confidence
    return Scorer(embedder=None).score(trace, weights=weights).with_worth(confidence)


@given(units, units)
def test_that_holds_for_the_score_too(confidence: float, base_rate: float) -> None:
    one = checked(scored(confidence), DomainPolicy(pass_rate=1.0), [0.0] * 50, base_rate)
    assert one.gate == "score"
    assert 0 <= one.threshold <= 1
    # What is smaller than the rounding of the sum does not count.
    if abs(confidence - base_rate) > 1e-12:
        assert (one.value >= one.threshold) is (confidence >= base_rate)


def test_a_score_that_does_not_count_the_confidence_is_not_held_against_the_base_rate() -> None:
    rate, values = DomainPolicy(pass_rate=1.0), [0.0] * 50
    weights = ScoringWeights(
        complexity=0.5, novelty=0.25, tool_diversity=0.25, outcome_confidence=0.0
    )
    for one in (scored(0.1, weights), with_worth(0.1)):  # the latter is a single thought
        found = checked(one, rate, values, base_rate=0.6)
        assert found.value >= found.threshold


def test_a_success_that_is_confirmed_later_passes() -> None:
    one = scored(0.95).with_worth(0.3)  # the run states more than the model believes
    found = checked(one, DomainPolicy(pass_rate=0.1), [0.1] * 50, base_rate=0.6)
    assert found.value >= found.threshold


def test_the_score_can_follow_a_rate_too() -> None:
    values = [number / 100 for number in range(100)]
    policy = DomainPolicy(pass_rate=0.2, threshold=0.95)
    assert checked(breakdown(), policy, values) == ("score", breakdown().total, 0.8, 0.2)
    few = checked(breakdown(), policy, [0.5] * 3)
    assert few.threshold == 0.95


@pytest.mark.parametrize("value", [0, -0.1, 1.5, float("nan"), True, "a"])
def test_a_pass_rate_that_is_none_is_refused(value: object) -> None:
    with pytest.raises(ValueError, match="pass_rate"):
        DomainPolicy(pass_rate=value)


def test_worth_is_shown_beside_the_score_and_survives_json() -> None:
    one = with_worth(0.8)
    assert one.line().endswith("; worth 0.600")
    assert "worth               0.800 x 0.75 = 0.600" in one.text()
    assert ScoreBreakdown.from_dict(one.to_dict()) == one
    assert "worth" not in breakdown().text()
    assert "worth" not in breakdown().line()
    old = {name: value for name, value in one.to_dict().items() if name != "worth"}
    assert ScoreBreakdown.from_dict(old) == replace(one, worth=None)
