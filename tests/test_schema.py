"""The wire form: what is read, what is written, what is refused and how that is told."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from kp_langchain import ReasoningTrace, TraceStep
from kp_langchain.schema import CONTEXT, Metadata, Outcome, Task

ID = "kp:trace:0f8fad5b-d9cb-469f-a165-70867728950e"


def wire(**changes: Any) -> dict[str, Any]:
    data: dict[str, Any] = {
        "@context": CONTEXT,
        "@type": "ReasoningTrace",
        "id": ID,
        "metadata": {
            "created_at": "2026-02-01T12:00:00.000Z",
            "task_domain": "finance",
            "success": True,
            "quality_score": 0.5,
            "visibility": "network",
            "privacy_level": "aggregated",
        },
        "task": {"objective": "hedge"},
        "steps": [{"step_id": 0, "type": "thought", "content": "why"}],
        "outcome": {"result_summary": "done", "confidence": 0.9},
    }
    for path, value in changes.items():
        *above, last = path.split("__")
        place = data
        for part in above:
            place = place[int(part)] if part.isdigit() else place[part]  # type: ignore[call-overload]
        place[last] = value
    return data


def rewritten(data: dict[str, Any]) -> Any:
    return json.loads(ReasoningTrace.model_validate_json(json.dumps(data)).model_dump_json())


def test_a_round_trip_changes_nothing() -> None:
    assert rewritten(wire()) == wire()
    assert ReasoningTrace.model_validate(wire()).model_dump(mode="json") == wire()


def test_all_fields_of_the_protocol_round_trip() -> None:
    full = wire(
        source_skill="kp:skill:hedging:1.0",
        metadata__agent_id="kp:agent:a",
        metadata__framework="langgraph",
        metadata__validated_by=["kp:agent:b"],
        task__input_schema={"type": "object"},
        knowledge_graph_delta={
            "entities": [{"name": "EUR", "type": "currency"}],
            "relationships": [{"fact": "EUR is volatile", "valid_from": "2026-01-01"}],
        },
        steps=[
            {
                "step_id": 0,
                "type": "tool_call",
                "tool": {"name": "rate", "mcp_server": "fx"},
                "input": {"currency": "EUR", "nested": {"a": [1, None]}},
                "output_summary": "1.08",
                "latency_ms": 12.5,
                "attempts": 2,
            }
        ],
    )
    assert rewritten(full) == full


def test_the_older_context_is_read_and_the_newer_written() -> None:
    old = wire() | {"@context": "https://knowledgepulse.dev/schema/v1"}
    assert rewritten(old)["@context"] == "https://openknowledgepulse.org/schema/v1"


def test_unknown_fields_survive_everywhere_even_when_null() -> None:
    data = wire(
        future={"a": 1},
        nothing=None,
        metadata__run="r",
        task__hint=None,
        steps__0__colour="red",
        outcome__grade="A",
    )
    assert rewritten(data) == data


def test_absent_fields_are_left_out_and_never_null() -> None:
    data = wire(source_skill=None, metadata__agent_id=None, steps__0__tool=None)
    assert "null" not in ReasoningTrace.model_validate(data).model_dump_json()


@pytest.mark.parametrize(
    ("given_text", "written"),
    [
        ("2026-02-01T12:00:00Z", "2026-02-01T12:00:00.000Z"),
        ("2026-02-01T12:00:00.123Z", "2026-02-01T12:00:00.123Z"),
        ("2026-02-01T12:00:00.123456Z", "2026-02-01T12:00:00.123456Z"),
        ("2026-02-01T12:00:00+02:00", "2026-02-01T10:00:00.000Z"),
        ("2026-02-01T12:00:00", "2026-02-01T12:00:00.000Z"),
        (
            datetime(2026, 2, 1, 12, tzinfo=timezone(timedelta(hours=-5))),
            "2026-02-01T17:00:00.000Z",
        ),
        (datetime(2026, 2, 1, 12), "2026-02-01T12:00:00.000Z"),
    ],
)
def test_created_at_is_written_in_utc_ending_in_z(given_text: Any, written: str) -> None:
    trace = ReasoningTrace.model_validate(wire(metadata__created_at=given_text))
    assert json.loads(trace.model_dump_json())["metadata"]["created_at"] == written


@given(st.datetimes(timezones=st.timezones() | st.none()))
def test_any_moment_survives(moment: datetime) -> None:
    try:
        expected = moment.astimezone(UTC) if moment.tzinfo else moment.replace(tzinfo=UTC)
    except OverflowError:
        with pytest.raises(ValidationError):
            Metadata(task_domain="d", success=True, created_at=moment)
        return
    made = Metadata(task_domain="d", success=True, created_at=moment)
    text = json.loads(made.model_dump_json())["created_at"]
    assert text.endswith("Z")
    assert datetime.fromisoformat(text) == expected


def test_python_names_and_defaults_are_enough_to_make_one() -> None:
    trace = ReasoningTrace(
        metadata=Metadata(task_domain="code", success=False),
        task=Task(objective="fix"),
        steps=[TraceStep(step_id=0, type="thought", content="hm")],
        outcome=Outcome(result_summary="", confidence=0),
    )
    data = json.loads(trace.model_dump_json())
    assert re.fullmatch(r"kp:trace:[0-9a-f-]{36}", data["id"])
    assert data["@context"] == CONTEXT
    assert data["@type"] == "ReasoningTrace"
    assert data["metadata"]["quality_score"] == 0
    assert data["metadata"]["visibility"] == "private"
    assert ReasoningTrace.model_validate(data) == trace


@pytest.mark.parametrize(
    ("path", "value", "told"),
    [
        ("id", "trace-1", r"id\n.*'trace-1' is not a trace id; write kp:trace:<uuid>"),
        ("id", 7, r"id\n"),
        ("@context", "https://example.org", r"@context\n"),
        ("@type", "Pattern", r"@type\n"),
        ("metadata__created_at", "yesterday", r"metadata.created_at\n.*'yesterday' is not an ISO"),
        ("metadata__created_at", 1700000000, r"metadata.created_at\n"),
        ("metadata__task_domain", "", r"metadata.task_domain\n"),
        ("metadata__success", "yes", r"metadata.success\n"),
        ("metadata__success", 1, r"metadata.success\n"),
        ("metadata__quality_score", 1.01, r"metadata.quality_score\n"),
        ("metadata__visibility", "public", r"metadata.visibility\n.*'private', 'org' or 'network'"),
        ("metadata__privacy_level", "none", r"metadata.privacy_level\n"),
        ("task__objective", "", r"task.objective\n"),
        ("steps__0__type", "guess", r"steps.0.type\n.*'thought', 'tool_call'"),
        ("steps__0__step_id", -1, r"steps.0.step_id\n"),
        ("steps__0__step_id", "0", r"steps.0.step_id\n"),
        ("steps__0__latency_ms", -0.5, r"steps.0.latency_ms\n"),
        ("steps__0__latency_ms", float("inf"), r"steps.0.latency_ms\n"),
        ("outcome__confidence", float("nan"), r"outcome.confidence\n.*finite"),
        ("outcome__confidence", float("inf"), r"outcome.confidence\n"),
        ("outcome__confidence", -0.1, r"outcome.confidence\n"),
        ("outcome__confidence", 1.1, r"outcome.confidence\n.*less than or equal to 1"),
        ("outcome__confidence", "0.9", r"outcome.confidence\n"),
    ],
)
def test_a_wrong_value_is_refused_by_its_name(path: str, value: Any, told: str) -> None:
    with pytest.raises(ValidationError, match=told):
        ReasoningTrace.model_validate(wire(**{path: value}))


@pytest.mark.parametrize("text", ["", "{", "[]", "null", '"trace"', "{}", "\x00"])
def test_what_is_no_trace_is_refused(text: str) -> None:
    with pytest.raises(ValidationError):
        ReasoningTrace.model_validate_json(text)


def test_assignments_are_checked_too() -> None:
    trace = ReasoningTrace.model_validate(wire())
    trace.metadata.quality_score = 0.25
    with pytest.raises(ValidationError, match="quality_score"):
        trace.metadata.quality_score = 2


def test_json_schema_names_the_wire_fields() -> None:
    schema = ReasoningTrace.model_json_schema()
    assert {"@context", "@type", "id", "metadata", "task", "steps", "outcome"} <= set(
        schema["properties"]
    )
    assert set(schema["required"]) == {"metadata", "task", "steps", "outcome"}
    json.dumps(schema)


_json = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=2)
    | st.dictionaries(st.text(max_size=4), inner, max_size=2),
    max_leaves=5,
)  # fmt: skip


@given(
    st.dictionaries(st.text(min_size=1, max_size=6).map("x_".__add__), _json, max_size=3),
    st.text(min_size=1).filter(lambda text: text.isprintable()),
    st.floats(0, 1),
)
def test_any_unknown_fields_survive(unknown: dict[str, Any], objective: str, unit: float) -> None:
    data = wire(task__objective=objective, outcome__confidence=unit)
    data |= unknown
    data["steps"][0] |= unknown
    assert rewritten(data) == data
