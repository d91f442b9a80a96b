"""Wherever a run is cut in two, the halves joined again give the steps of the whole."""

from __future__ import annotations

import json
from typing import Any
from uuid import uuid4

from hypothesis import given
from hypothesis import strategies as st

from kp_langchain.recording.counters import Counters
from kp_langchain.recording.first_half import half_of, record_of
from kp_langchain.recording.recorder import Recorder
from kp_langchain.recording.redactor import Redactor
from kp_langchain.recording.requested_calls import RequestedCall
from kp_langchain.recording.run_record import Before, Bounds, Call, RunRecord, Start
from kp_langchain.recording.steps import build_steps

RECORDER = Recorder(Bounds(), lambda _: None)

CALLS = st.lists(
    st.tuples(
        st.sampled_from(["model", "tool", "retriever", "chain"]),
        st.sampled_from(["search", "add", ""]),
        st.sampled_from(["c1", "c2", "c3"]),  # the attempts of one call share it
        st.booleans(),
        st.integers(0, 2),
        st.booleans(),
        st.sampled_from(["", "rejected", "stopped", "cancelled"]),
    ),
    max_size=12,
)


def made(drawn: list[tuple[Any, ...]]) -> list[Call]:
    calls = []
    for at, (kind, name, call_id, failed, retries, void, flag) in enumerate(drawn):
        key = ("tool", call_id) if kind == "tool" else (kind, at)
        call = Call(kind, name, key, tool_call_id=call_id if kind == "tool" else None)
        call.text, call.error = ("", f"error {at}") if failed else (f"text {at}", "")
        call.failed, call.retries, call.void, call.answered = failed, retries, void, True
        call.input, call.latency_ms = {"q": at}, 1.5
        call.rejected, call.stopped = flag == "rejected", flag == "stopped"
        call.cancelled = flag == "cancelled"
        calls.append(call)
    return calls


def recorded(calls: list[Call]) -> RunRecord:
    record = RunRecord(RECORDER, Start(uuid4(), None, "graph"))
    for call in calls:
        record.mark("start", call)
        if call.kind != "model":
            record.mark("error" if call.failed else "end", call)
    return record


@given(CALLS, st.integers(0, 12))
def test_a_run_that_is_cut_and_joined_has_the_same_steps(drawn: list[Any], cut: int) -> None:
    whole = build_steps(recorded(made(drawn)).timeline(), fatal="", answer="a")
    first, second = recorded(made(drawn)[:cut]), recorded(made(drawn)[cut:])
    first.objective = "what?"
    first.requested.add(RequestedCall("c9", "search", {"q": 9}))
    redactor = Redactor(Counters(), 4000)
    half = half_of(first, redactor, "aggregated", domain="", before=Before(), reported=None)
    second.continues(record_of(json.loads(json.dumps(half)), RECORDER))
    joined = build_steps(second.timeline(), fatal="", answer="a")
    assert joined.steps == whole.steps
    assert joined.unresolved_error == whole.unresolved_error
    assert joined.last_thought == whole.last_thought
    assert joined.stopped == whole.stopped
    assert joined.ends_on_action == whole.ends_on_action
    assert second.objective == "what?"
    (request,) = second.requested
    assert (request.call_id, request.name, request.arguments) == ("c9", "search", {"q": 9})
    assert second.started_at == first.started_at
