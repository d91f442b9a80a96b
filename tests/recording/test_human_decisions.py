"""What a human decided, as far as the value says with which a run is resumed."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from langgraph.types import Command

from kp_langchain.recording.human_decisions import decision_in

APPROVED = [
    True,
    "yes",
    " OK. ",
    "Yes, but be quick",
    {"decisions": [{"type": "approve"}, {"type": "edit", "edited_action": {"name": "no"}}]},
    [{"type": "accept", "args": None}],
    {"0123456789abcdef0123456789abcdef": True},
    {"approved": True, "notify": False},
    {"rejected": False},
    {"cancelled": "no"},
    {"status": "approved", "breakfast": False},
]
REJECTED = [
    False,
    "No",
    "reject",
    "no, too dear",
    {"0123456789abcdef0123456789abcdef": {"decisions": [{"type": "reject"}]}},
    {"rejected": "yes"},
    {"decisions": [{"type": "reject", "message": "yes, but too dear"}]},
    [{"type": "ignore", "args": None}],
    {"approved": False, "reason": "no"},
    {"action": "deny"},
]
UNCLEAR = [
    None,
    "",
    "Rather the cheaper one",
    42,
    {"data": "a name"},
    {"guests": 2, "breakfast": False, "smoking": "no"},
    "no problem",
    {"0123456789abcdef0123456789abcdef": "Bob", "f123456789abcdef0123456789abcdef": "no"},
    [{"type": "approve"}, {"type": "response", "args": "later"}],
    {"type": "approve", "approved": False},
    {},
    [],
    {"decisions": [{"type": "approve"}, {"type": "reject"}]},
    [{"type": "response", "args": "Ask me tomorrow"}],
]
NESTED = st.recursive(
    st.none() | st.booleans() | st.text() | st.floats() | st.binary(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text() | st.integers(), inner),
)


@pytest.mark.parametrize(
    ("decision", "value"),
    [
        *(("approved", one) for one in APPROVED),
        *(("rejected", one) for one in REJECTED),
        *(("unclear", one) for one in UNCLEAR),
    ],
)
def test_decision(decision: str, value: Any) -> None:
    assert decision_in(Command(resume=value)) == decision


@given(NESTED)
def test_any_value_says_one_of_three(value: Any) -> None:
    assert decision_in(Command(resume=value)) in ("approved", "rejected", "unclear")


def test_a_cycle_and_what_is_large_without_end_are_read_at_once() -> None:
    value: list[Any] = []
    value.append(value)
    for _ in range(10):
        value = [value] * 200
    assert decision_in(Command(resume=value)) == "unclear"
    assert decision_in(Command(resume={"decisions": value})) == "unclear"
