"""Features of a trace: always numbers, never the verdict, and they mean what they are called."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kp_langchain import ReasoningTrace, trace_from_messages
from kp_langchain.calibration.features import (
    FEATURES_VERSION,
    features_of,
    meaning_of,
    meanings,
)
from kp_langchain.calibration.wording import BEGINNING_CHARS, reads_like_failure
from kp_langchain.scoring.dimensions import TraceShape

OUTPUTS = json.loads(Path(__file__).with_name("outputs.json").read_text(encoding="utf-8"))
TEXTS = st.text(max_size=40) | st.sampled_from(
    ["", "Error: not found", "航班已取消。对不起，无法退款", "\ud800"]
)
STEPS = st.fixed_dictionaries(
    {"type": st.sampled_from(["thought", "tool_call", "observation", "error_recovery"])},
    optional={
        "content": TEXTS,
        "tool": st.fixed_dictionaries({"name": st.text(min_size=1, max_size=5)}),
        "input": st.dictionaries(
            st.text(max_size=3), TEXTS | st.integers() | st.none(), max_size=3
        ),
        "attempts": st.integers(1, 5) | st.sampled_from(["3", None, [], -1, 10**400]),
    },
)


def trace_of(
    *steps: dict[str, Any], objective: str = "Book a flight", answer: str = "It is booked."
) -> ReasoningTrace:
    return ReasoningTrace.model_validate(
        {
            "metadata": {"task_domain": "travel", "success": True},
            "task": {"objective": objective},
            "steps": [
                {"step_id": at, **step} for at, step in enumerate(steps or ({"type": "thought"},))
            ],
            "outcome": {"result_summary": answer, "confidence": 0.8},
        }
    )


def thought(content: str) -> dict[str, Any]:
    return {"type": "thought", "content": content}


def call(tool: str, **given: Any) -> dict[str, Any]:
    return {"type": "tool_call", "tool": {"name": tool}, "input": given}


def seen(content: str) -> dict[str, Any]:
    return {"type": "observation", "content": content}


@given(st.lists(STEPS, max_size=70), st.text(min_size=1, max_size=30), TEXTS)
def test_any_trace_has_finite_features_of_fixed_names(
    steps: list[dict[str, Any]], objective: str, answer: str
) -> None:
    trace = trace_of(*steps, objective=objective, answer=answer)
    found = features_of(trace)
    assert all(type(one) is float and math.isfinite(one) and one >= 0 for one in found.values())
    fixed = {name for name in found if not name.startswith("called:")}
    assert fixed == {name for name in features_of(trace_of()) if not name.startswith("called:")}
    assert len(found) - len(fixed) <= 20
    assert json.loads(json.dumps(found)) == found == features_of(trace)


@given(st.lists(STEPS, max_size=10), st.booleans(), st.floats(0, 1))
def test_no_verdict_shows_in_them(steps: Any, success: bool, confidence: float) -> None:
    trace = trace_of(*steps)
    judged = trace.model_copy(deep=True)
    judged.metadata.success = success
    judged.metadata.quality_score = confidence
    judged.metadata.validated_by = ["somebody"]
    judged.outcome.confidence = confidence
    assert features_of(judged) == features_of(trace)


@given(st.lists(STEPS, max_size=70))
def test_the_counts_that_the_rules_ask_for_are_exact(steps: Any) -> None:
    trace = trace_of(*steps)
    found, shape = features_of(trace), TraceShape.of(trace)
    for name in ("steps", "step_types", "thoughts", "error_recoveries", "distinct_tools"):
        assert found[name] == getattr(shape, name)


def test_they_carry_their_version_and_what_the_run_looked_like_if_that_is_known() -> None:
    assert features_of(trace_of())["features_version"] == FEATURES_VERSION
    assert "looked_successful" not in features_of(trace_of())
    assert features_of(trace_of(), looked_successful=False)["looked_successful"] == 0


def test_calls() -> None:
    found = features_of(
        trace_of(
            call("search", q="a"),
            call("search", q="a"),
            call("search", q="b", page=2),
            call("book", id=1) | {"attempts": 3},
        )
    )
    assert found["tool_calls"] == 4
    assert found["repeated_calls"] == 1
    assert found["longest_same_tool"] == 3
    assert found["calls_per_tool"] == 2
    assert found["arguments_per_call"] == 1.25
    assert found["retries"] == 2
    assert found["called:search"] == 3
    assert found["called:book"] == 1


def test_tools_are_bounded_in_number_and_length() -> None:
    found = features_of(trace_of(*(call(f"{at:02}" + "x" * 500) for at in range(50))))
    named = sorted(name for name in found if name.startswith("called:"))
    assert len(named) == 20
    assert all(len(name) < 80 for name in named)
    assert named[0].startswith("called:00x")


def test_errors() -> None:
    overcome = features_of(
        trace_of(
            {"type": "error_recovery", "content": "boom", "tool": {"name": "search"}},
            thought("a"),
            thought("b"),
            thought("c"),
        )
    )
    assert overcome["error_share"] == 0.25
    assert overcome["after_last_error"] == 0.75
    assert overcome["failing_observations"] == overcome["last_observation_fails"] == 1
    calm = features_of(trace_of(seen("Error: no such file"), seen("fine"), seen("fine")))
    assert calm["after_last_error"] == 1
    assert calm["failing_observations"] == 1
    assert calm["last_observation_fails"] == 0
    assert calm["same_observations"] == 1


@pytest.mark.parametrize(
    ("answer", "name"),
    [
        ("I'm sorry, I could not find it.", "answer_unable"),
        ("Lo siento, no puedo hacerlo.", "answer_unable"),
        ("很抱歉，无法退款。", "answer_unable"),
        ("申し訳ありません。", "answer_unable"),
        ("죄송합니다.", "answer_unable"),
        ("It might be Paris.", "answer_unsure"),
        ("可能是巴黎", "answer_unsure"),
        ("It was successfully booked", "answer_done"),
        ("予約が完了しました", "answer_done"),
        ("It isn't there", "answer_negated"),
        ("Which one do you mean?", "answer_asks"),
        ("你要哪一个？", "answer_asks"),
        ("Done!", "answer_exclaims"),
        ("It costs 12.50 or 1,300", "answer_numbers"),
        ("Ask Alice", "answer_names"),
    ],
)
def test_wording(answer: str, name: str) -> None:
    assert features_of(trace_of(answer=answer))[name] > 0
    assert features_of(trace_of(answer="it rains"))[name] == 0


def test_where_the_answer_comes_from() -> None:
    found = features_of(
        trace_of(
            call("find", city="Paris"),
            seen("Hotel Ritz costs 300"),
            objective="hotel in Paris",
            answer="Ritz for 300, says Bob",
        )
    )
    assert found["answer_numbers_seen"] == 1
    assert found["answer_names_unseen"] == 0.5  # Ritz was seen, Bob was not
    assert found["answer_from_observations"] == pytest.approx(2 / 5)
    assert found["objective_in_inputs"] == pytest.approx(1 / 3)
    assert found["objective_in_last_observation"] == pytest.approx(1 / 3)


def test_thoughts_that_go_in_circles() -> None:
    found = features_of(trace_of(thought("try again now"), thought("try again now"), thought("x")))
    assert found["most_alike_thoughts"] == 1
    assert found["thoughts_alike"] == 0.5


def test_only_a_bounded_part_of_a_huge_run_is_read() -> None:
    ends = [thought(f"thought {at}") for at in range(30)]
    middle = [thought("sorry " * 10), call("other"), seen("error")] * 200
    found = features_of(trace_of(*ends, *middle, *ends))
    assert found["steps"] == 660
    assert found["thoughts_unable"] == found["tool_calls"] == found["observations"] == 0
    assert "called:other" not in found
    far = features_of(trace_of(thought("a " * 5000 + "sorry"), answer="b " * 5000 + "sorry"))
    assert far["thoughts_unable"] == far["answer_unable"] == 0
    assert far["answer_chars"] == 10_005


def test_every_feature_has_a_meaning_of_its_own_and_no_other_has() -> None:
    trace = trace_from_messages([("user", "What is 6 x 7?"), ("ai", "42")], domain="code")
    names = set(features_of(trace, looked_successful=True, proves_failure=False))
    assert set(meanings()) == names - {"features_version"} | {"agreement"}
    assert len(set(meanings().values())) == len(meanings())
    assert meaning_of("called:ledger") == "calls of the tool ledger"
    assert meaning_of("steps") == "steps"
    assert meaning_of("of_a_later_version") == "of_a_later_version"


@pytest.mark.parametrize("output", OUTPUTS["failed"])
def test_a_line_that_begins_with_a_word_for_an_error_says_that_the_call_failed(output: str) -> None:
    assert reads_like_failure(output)


@pytest.mark.parametrize(
    "output", [*OUTPUTS["harmless"], None, f"{'x' * BEGINNING_CHARS}\nError: y"]
)
def test_words_for_errors_elsewhere_and_empty_outputs_say_nothing(output: str | None) -> None:
    assert not reads_like_failure(output)
