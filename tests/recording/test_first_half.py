"""Wherever a run is cut in two, the halves joined again give the steps of the whole."""

from __future__ import annotations

import dataclasses
import json
from typing import Any
from uuid import uuid4

from hypothesis import given
from hypothesis import strategies as st

from kp_langchain.gate import ShownTrace
from kp_langchain.recording.bounds import Bounds
from kp_langchain.recording.calls import Call
from kp_langchain.recording.counters import Counters
from kp_langchain.recording.first_half import (
    _CALL_FIELDS,
    first_half_body,
    first_half_record,
)
from kp_langchain.recording.record_owner import RecordOwner
from kp_langchain.recording.redactor import Redactor
from kp_langchain.recording.requested_calls import RequestedCall
from kp_langchain.recording.run_record import EarlierPart, RunRecord
from kp_langchain.recording.run_start import Start
from kp_langchain.recording.steps import build_steps

OWNER = RecordOwner(Bounds(), Counters())

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
        call.has_failed, call.retries, call.is_void, call.has_ended = failed, retries, void, True
        call.input, call.latency_ms = {"q": at}, 1.5
        call.is_rejected, call.is_incomplete = flag == "rejected", flag == "stopped"
        call.is_cancelled = flag == "cancelled"
        calls.append(call)
    return calls


def recorded(calls: list[Call]) -> RunRecord:
    record = RunRecord(OWNER, Start(uuid4(), None, "graph"))
    for call in calls:
        record.mark("start", call)
        if call.kind != "model":
            record.mark("error" if call.has_failed else "end", call)
    return record


@given(CALLS, st.integers(0, 12))
def test_a_run_that_is_cut_and_joined_has_the_same_steps(drawn: list[Any], cut: int) -> None:
    whole = build_steps(recorded(made(drawn)).timeline, fatal="", answer="a")
    first, second = recorded(made(drawn)[:cut]), recorded(made(drawn)[cut:])
    first.objective = "what?"
    first.requested_calls.add(RequestedCall("c9", "search", {"q": 9}))
    redactor = Redactor(Counters(), 4000)
    shown = ShownTrace("kp:trace:kept", 1, 0.5)
    part = EarlierPart(shown=(shown,))
    body = first_half_body(
        first, redactor, "aggregated", domain="", earlier_part=part, verdict=None
    )
    second.prepend(first_half_record(json.loads(json.dumps(body)), OWNER))
    joined = build_steps(second.timeline, fatal="", answer="a")
    assert joined.steps == whole.steps
    assert joined.unresolved_error == whole.unresolved_error
    assert joined.last_thought == whole.last_thought
    assert joined.is_incomplete == whole.is_incomplete
    assert joined.ends_on_action == whole.ends_on_action
    assert second.objective == "what?"
    (request,) = second.requested_calls
    assert (request.call_id, request.name, request.arguments) == ("c9", "search", {"q": 9})
    assert second.started_at == first.started_at
    assert second.shown == {"kp:trace:kept": shown}


def test_every_field_of_a_call_is_stored_or_known_by_other_means() -> None:
    fields = {field.name for field in dataclasses.fields(Call)}
    others = {"kind", "key", "started_s", "tool_call_id"}
    others.add("returns_examples")  # what it repeats of them is dropped before it is stored
    assert fields - set(_CALL_FIELDS.values()) == others
