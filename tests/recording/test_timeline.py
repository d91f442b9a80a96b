"""A run keeps its first and its last marks, and counts those between, also across a pause."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from kp_langchain.recording.calls import Call
from kp_langchain.recording.timeline import Timeline

BOUNDS = st.integers(1, 9)
LENGTHS = st.integers(0, 30)


def timeline_of(calls: list[Call], max_marks: int) -> Timeline:
    timeline = Timeline(max_marks)
    for call in calls:
        timeline.add("start", call)
    return timeline


def calls_of(timeline: Timeline) -> list[Call]:
    return [call for _, call in timeline]


@given(LENGTHS, BOUNDS)
def test_the_middle_of_a_long_run_is_dropped_and_counted(length: int, max_marks: int) -> None:
    calls = [Call("tool", str(at), at) for at in range(length)]
    timeline = timeline_of(calls, max_marks)
    kept = calls_of(timeline)
    assert len(kept) == len(timeline) == min(length, max_marks)
    assert timeline.dropped == length - len(kept)
    first = (max_marks + 1) // 2
    assert kept[:first] == calls[:first]
    if timeline.dropped:
        last = max_marks - first
        assert kept[first:] == calls[length - last :]


@given(LENGTHS, LENGTHS, BOUNDS)
def test_a_pause_changes_neither_what_is_kept_nor_what_is_counted(
    before: int, after: int, max_marks: int
) -> None:
    calls = [Call("tool", str(at), at) for at in range(before + after)]
    earlier, later = timeline_of(calls[:before], max_marks), timeline_of(calls[before:], max_marks)
    joined = later.joined_to(earlier)
    assert len(joined) + joined.dropped == before + after
    assert len(joined) == min(before + after, max_marks)
    whole = calls_of(timeline_of(calls, max_marks))
    assert set(calls_of(joined)) <= set(calls)
    if later.dropped == 0:
        assert calls_of(joined) == whole
