"""Trace ids of any writer: each is kept apart from the others and found again."""

from __future__ import annotations

import json
import uuid

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kp_langchain import ReasoningTrace, TraceStore
from kp_langchain.errors import UnknownRunError

FOREIGN = [
    "kp:trace:finance-demo-001",
    "kp:trace:Finance-Demo-001",
    "kp:trace:crewai-Research the latest ",
    "kp:trace:crewai-Research the latest",
    "kp:trace:0F8FAD5B-D9CB-469F-A165-70867728950E",
    "kp:trace:a/b?c=d#e%20f_%",
    "kp:trace:事例 😀",
    "kp:trace:\x1b[2J\n\u202e",
    "kp:trace:[/red]",
    "kp:trace:a\x00",
    "kp:trace:a\ufffd",
    "kp:trace:" + "x" * 5000,
    "kp:trace:" + "x" * 4999 + "y",
    "kp:trace:" + "😀" * 150,
    "kp:trace:\U0010ffff",
    "kp:trace:\ud7ff",
    "kp:trace:kp:trace:",
    "kp:trace:kp:trace:finance-demo-001",
]


@pytest.fixture
def filled(tmp_path, scored):
    with TraceStore(tmp_path / "runs.db") as store:
        store.add_many(
            [scored(number, trace_id=one) for number, one in enumerate(FOREIGN)],
            registry="https://registry.example.org",
        )
        yield store


def test_each_is_a_run_of_its_own(filled):
    assert filled.count() == len(FOREIGN)
    assert len({run.trace_id for run in filled.runs(limit=None)}) == len(FOREIGN)
    assert max(len(run.trace_id) for run in filled.runs(limit=None)) <= 150


@pytest.mark.parametrize(("number", "trace_id"), list(enumerate(FOREIGN)), ids=ascii)
def test_each_is_found_by_its_whole_id(filled, number, trace_id):
    run = filled.get(trace_id)
    assert run.objective == f"task {number}"
    assert run.trace.id == trace_id.replace("\x00", "\ufffd")
    assert filled.get(run.trace_id) == run
    (change,) = filled.report_outcome(trace_id, success=False, note="no")
    assert change.trace_id == run.trace_id
    assert [verdict.note for verdict in filled.verdicts(trace_id)] == ["no"]
    assert filled.verdicts(run.trace_id) == filled.verdicts(trace_id)


@pytest.mark.parametrize(
    ("wanted", "number"),
    [
        ("finance-demo", 0),
        ("Finance", 1),
        ("FINANCE-demo-001", 0),
        ("a/b?c=d#e%20f_%", 5),
        ("kp:trace:a/b", 5),
        ("事", 6),
        ("[/", 8),
        ("\U0010ffff", 14),
        ("\ud7ff", 15),
        (" 0F8FAD5B\n", 4),
        ("kp:trace:kp:trace:f", 17),
    ],
)
def test_each_is_found_by_its_beginning(filled, wanted, number):
    assert filled.get(wanted).objective == f"task {number}"


@pytest.mark.parametrize(
    "wanted", ["", " ", "kp:trace:", "KP:TRACE:", "%", "_", "b/", "kp:tracf", "\ud800", "z" * 9000]
)
def test_nothing_is_found_by_what_none_begins_with(filled, wanted):
    assert filled.get(wanted) is None
    assert filled.outbox.get(wanted) is None
    with pytest.raises(UnknownRunError):
        filled.report_outcome(wanted, success=True)


def test_a_beginning_of_several_lists_them(filled):
    with pytest.raises(UnknownRunError, match="may mean several") as caught:
        filled.get("crewai")
    assert all(one in str(caught.value) for one in FOREIGN[2:4])


@pytest.mark.parametrize("trace_id", FOREIGN, ids=ascii)
def test_each_goes_to_the_registry_under_its_own_id(tmp_path, scored, trace_id):
    with TraceStore(tmp_path / "one.db") as store:
        store.add(scored(trace_id=trace_id, visibility="network"), registry="https://r.example.org")
        waiting = store.outbox.get(trace_id)
    assert waiting.unit_id == json.loads(waiting.body)["id"] == trace_id.replace("\x00", "\ufffd")


def test_postgres_keeps_and_finds_them_too(new_postgres_url, scored):
    with TraceStore(new_postgres_url()) as store:
        runs = [
            scored(number, trace_id=one, domain="😀" * 500) for number, one in enumerate(FOREIGN)
        ]
        store.add_many(runs, registry="https://registry.example.org")
        for number, one in enumerate(FOREIGN):
            assert store.get(one).objective == f"task {number}"
        for beginning, number in (("\U0010ffff", 14), ("\ud7ff", 15), ("事", 6), ("a/b", 5)):
            assert store.get(beginning).objective == f"task {number}"


def test_a_uuid_is_found_in_any_letters(tmp_path, scored):
    own = str(uuid.uuid4())
    with TraceStore(tmp_path / "one.db") as store:
        store.add(scored(trace_id=f"kp:trace:{own}"))
        for wanted in (own.upper(), f"KP:TRACE:{own.upper()}", own[:9].upper()):
            assert store.get(wanted).trace_id == f"kp:trace:{own}"
        assert store.verdicts(own.upper()) == []


@settings(suppress_health_check=list(HealthCheck))
@given(st.lists(st.text(min_size=1, max_size=200), unique=True, min_size=1, max_size=8))
def test_any_ids_live_side_by_side(scored, tmp_path_factory, names):
    with TraceStore(tmp_path_factory.mktemp("ids") / "runs.db") as store:
        runs = [scored(at, trace_id=f"kp:trace:{name}") for at, name in enumerate(names)]
        store.add_many(runs)
        for at, run in enumerate(runs):
            assert store.get(run.trace.id).objective == f"task {at}"


def test_a_trace_without_steps_is_neither_kept_nor_contributed(tmp_path, scored):
    whole = scored(visibility="network")
    emptied = scored(visibility="network")
    emptied.trace.steps.clear()
    with TraceStore(tmp_path / "runs.db") as store:
        store.add_many([whole, emptied], registry="https://registry.example.org")
        assert store.get(emptied.trace.id).kept is False
        assert [trace.id for trace in store.traces()] == [whole.trace.id]
        assert [one.trace_id for one in store.outbox.entries()] == [whole.trace.id]
    with pytest.raises(ValueError, match="steps"):
        ReasoningTrace.model_validate(emptied.trace.model_dump())
