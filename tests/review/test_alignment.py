"""Two traces side by side."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from kp_langchain.review.alignment import align
from kp_langchain.review.calls import Call, calls_of
from kp_langchain.schema import Tool, TraceStep


def call(tool: str, number: int = 0) -> Call:
    step = TraceStep(step_id=0, type="tool_call", tool=Tool(name=tool), input={"n": number})
    return Call(step, None)


def told(left: list[Call], right: list[Call]) -> list[str]:
    """Each row as `left-right`, a call as its tool and the number in its input."""
    return [
        "-".join(
            "" if one is None else f"{one.tool}{one.input['n']}" for one in (row.left, row.right)
        )
        for row in align(left, right)
    ]


def test_calls_of_the_same_tool_are_counterparts() -> None:
    left = [call("a"), call("b"), call("c")]
    right = [call("a"), call("x"), call("c", 1)]
    assert told(left, right) == ["a0-a0", "b0-", "-x0", "c0-c1"]
    assert [row.is_same for row in align(left, right)] == [True, False, False, False]


def test_equal_inputs_are_preferred() -> None:
    left = [call("a", 1)]
    right = [call("a", 0), call("a", 1), call("a", 2)]
    assert told(left, right) == ["-a0", "a1-a1", "-a2"]


def test_more_counterparts_outweigh_equal_inputs() -> None:
    assert told([call("a", 1), call("a", 2)], [call("a", 2), call("a", 3)]) == ["a1-a2", "a2-a3"]


def longest_common(left: list[str], right: list[str]) -> int:
    """The length of the longest common subsequence, by its definition."""
    if not left or not right:
        return 0
    if left[0] == right[0]:
        return 1 + longest_common(left[1:], right[1:])
    return max(longest_common(left[1:], right), longest_common(left, right[1:]))


CALLS = st.lists(st.builds(call, st.sampled_from("ab"), st.integers(0, 1)), max_size=7)


@given(CALLS, CALLS)
def test_no_call_is_lost_and_none_changes_its_place(left: list[Call], right: list[Call]) -> None:
    rows = align(left, right)
    assert [row.left for row in rows if row.left is not None] == left
    assert [row.right for row in rows if row.right is not None] == right
    assert all(row.left is not None or row.right is not None for row in rows)
    pairs = [(row.left, row.right) for row in rows if row.left and row.right]
    assert all(one.tool == other.tool for one, other in pairs)
    names = [one.tool for one in left], [one.tool for one in right]
    assert len(pairs) == longest_common(*names)


def test_traces_of_many_calls_are_aligned_as_far_as_can_be() -> None:
    left = [call("a", at) for at in range(2500)]
    rows = align(left, left[:3])
    assert len(rows) == 2500
    assert [row.left for row in rows] == left


def step(kind: str, tool: str | None, content: str | None = None) -> TraceStep:
    return TraceStep(
        step_id=0, type=kind, tool=None if tool is None else Tool(name=tool), content=content
    )


def test_each_call_has_its_own_output() -> None:
    steps = [
        step("thought", None, "hm"),
        step("tool_call", "a"),
        step("tool_call", "b"),
        step("observation", "b", "of b"),
        step("error_recovery", "a", "of a"),
        step("tool_call", "c"),
        step("observation", None, "of c"),
        step("observation", "d", "of none"),
        step("tool_call", "e"),
    ]
    calls = calls_of(steps)
    outputs = [None if one.output is None else one.output.content for one in calls]
    assert [one.tool for one in calls] == ["a", "b", "c", "d", "e"]
    assert outputs == ["of a", "of b", "of c", "of none", None]
    assert [one.has_failed for one in calls] == [True, False, False, False, False]
    assert calls[3].call is None
