"""Dimensions, rules and the embedded text."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kp_langchain.scoring import embedded_text
from kp_langchain.scoring.dimensions import (
    TraceShape,
    complexity,
    novelty,
    outcome_confidence,
    tool_diversity,
)
from kp_langchain.scoring.rules import RuleFired, apply_rules

STEP_TYPES = ("thought", "tool_call", "observation", "error_recovery")


def shape(steps=4, types=("thought", "tool_call"), errors=0, tools=()):
    thoughts = steps if set(types) == {"thought"} else min(steps, int("thought" in types))
    return TraceShape(steps, len(set(types)), thoughts, errors, len(set(tools)))


shapes = st.builds(
    shape,
    steps=st.integers(0, 500),
    types=st.sets(st.sampled_from(STEP_TYPES)),
    errors=st.integers(0, 20),
    tools=st.sets(st.text(max_size=3), max_size=6),
)


def test_shape_counts_tools_of_steps_of_any_type(make_trace):
    trace = make_trace("thought:a", "observation:b", "tool_call:a", "error_recovery", "tool_call")
    assert TraceShape.of(trace) == TraceShape(5, 4, 1, 1, 2)


@pytest.mark.parametrize(
    ("given_shape", "expected"),
    [
        (shape(steps=0, types=()), 0.0),
        (shape(steps=1, types=("thought",)), 0.125 + 0.01),
        (shape(steps=10, types=STEP_TYPES, errors=1), 0.5 + 0.3 + 0.1),
        (shape(steps=60, types=("thought",)), 0.125 + 0.6),
        (shape(steps=1000, types=STEP_TYPES), 1.0),
    ],
)
def test_complexity(given_shape, expected):
    assert complexity(given_shape) == pytest.approx(expected, abs=1e-12)


def test_complexity_with_the_step_cap():
    assert complexity(shape(steps=60), step_cap=20) == complexity(shape(steps=20))
    assert complexity(shape(steps=19), step_cap=20) == complexity(shape(steps=19))


@pytest.mark.parametrize(
    ("similarity", "expected"),
    [(None, 0.5), (0.0, 1.0), (0.25, 0.75), (1.0, 0.0), (-1.0, 1.0), (1.0000001, 0.0)],
)
def test_novelty(similarity, expected):
    assert novelty(similarity) == expected


@pytest.mark.parametrize(
    ("steps", "tools", "expected"),
    [(0, "", 0.0), (10, "", 0.0), (10, "a", 0.3), (6, "ab", 1.0), (2, "abc", 1.0)],
)
def test_tool_diversity(steps, tools, expected):
    assert tool_diversity(shape(steps=steps, tools=tools)) == pytest.approx(expected, abs=1e-12)


def test_outcome_confidence():
    assert outcome_confidence(0.5, success=True) == 0.5
    assert outcome_confidence(0.5, success=False) == pytest.approx(0.15, abs=1e-12)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -0.01, 1.01])
def test_outcome_confidence_out_of_range_is_refused(bad):
    with pytest.raises(ValueError, match=r"outcome\.confidence"):
        outcome_confidence(bad, success=True)


@pytest.mark.parametrize(
    ("score", "given_shape", "success", "expected"),
    [
        (0.7, shape(steps=1, types=("thought",)), True, [("single_thought", 0.7, 0.1)]),
        (0.7, shape(steps=1, types=("observation",)), True, []),
        (0.7, shape(steps=2, types=("thought",)), True, []),
        (0.7, shape(steps=0, types=()), True, []),
        (0.7, shape(errors=3), True, [("recovered_errors", 0.7, 0.8)]),
        (0.7, shape(errors=3), False, []),
        (0.7, shape(errors=2), True, []),
        (0.95, shape(errors=3), True, [("recovered_errors", 0.95, 1.0)]),
        (0.7, shape(tools="a"), True, [("single_tool", 0.7, 0.6)]),
        (0.05, shape(tools="a"), False, [("single_tool", 0.05, 0.0)]),
        (0.7, shape(tools="ab"), True, []),
        (
            # Were rule 3 to come first, the cap of rule 2 would give 0.95 here.
            0.95,
            shape(errors=3, tools="a"),
            True,
            [("recovered_errors", 0.95, 1.0), ("single_tool", 1.0, 0.9)],
        ),
        (
            0.7,
            shape(steps=1, types=("thought",), tools="a"),
            True,
            [("single_thought", 0.7, 0.1), ("single_tool", 0.1, 0.0)],
        ),
    ],
)
def test_rules(score, given_shape, success, expected):
    total, fired = apply_rules(score, given_shape, success=success)
    assert [rule.name for rule in fired] == [name for name, _, _ in expected]
    for rule, (_, before, after) in zip(fired, expected, strict=True):
        assert rule.before == pytest.approx(before, abs=1e-12)
        assert rule.after == pytest.approx(after, abs=1e-12)
    assert total == (fired[-1].after if fired else score)


@given(shapes, st.floats(0, 1), st.booleans())
def test_everything_stays_within_0_and_1(given_shape, score, success):
    total, fired = apply_rules(score, given_shape, success=success)
    values = [complexity(given_shape), tool_diversity(given_shape), total]
    assert all(0.0 <= value <= 1.0 for value in values)
    assert all(isinstance(rule, RuleFired) for rule in fired)


def test_embedded_text(make_trace):
    trace = make_trace("thought", "tool_call:a", "observation", objective="the goal")
    for step, content in zip(trace.steps, ["one", None, "three"], strict=True):
        step.content = content
    assert embedded_text(trace) == "the goal one  three"


def test_embedded_text_of_a_trace_without_steps(make_trace):
    trace = make_trace("thought", objective="the goal")
    assert embedded_text(trace.model_copy(update={"steps": []})) == "the goal "
