"""What a human decided, as far as the value says with which a run is resumed."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from langgraph.types import Command

from kp_langchain.recording.decisions import decision_in

APPROVED = [
    True,
    "yes",
    " OK. ",
    {"decisions": [{"type": "approve"}, {"type": "edit", "edited_action": {"name": "no"}}]},
    [{"type": "accept", "args": None}],
    {"0123456789abcdef0123456789abcdef": True},
    {"approved": True, "notify": False},
    {"rejected": False},
]
REJECTED = [
    False,
    "No",
    "reject",
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


def test_a_cycle_ends() -> None:
    value: list[Any] = []
    value.append(value)
    assert decision_in(Command(resume=value)) == "unclear"
