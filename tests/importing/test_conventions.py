"""Spans, runs and messages as they are documented, written by hand."""

from __future__ import annotations

import base64
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kp_langchain import ScoredTrace
from kp_langchain.importing.formats import FileReader
from kp_langchain.importing.openinference import OPENINFERENCE
from kp_langchain.importing.otlp_json import Span
from kp_langchain.importing.recorded_run import Unusable
from kp_langchain.importing.span_calls import SpanRuns
from tests.agents import shape
from tests.importing.compared import import_values

TRACE = "5b8efff798038103d269b633813fc60c"
SEARCHED = ["thought", "call search", "saw search", "thought"]


def attribute(name: str, value: Any) -> dict[str, Any]:
    if isinstance(value, dict | list):
        value = json.dumps(value)
    return {"key": name, "value": {"stringValue": value}}


def span(number: int, parent: int, start: int, end: int, **more: Any) -> dict[str, Any]:
    fields: dict[str, Any] = {
        "traceId": TRACE,
        "spanId": f"{number:016x}",
        "name": f"span {number}",
        "startTimeUnixNano": str(1_700_000_000_000_000_000 + start * 1_000_000),
        "endTimeUnixNano": str(1_700_000_000_000_000_000 + end * 1_000_000),
        "attributes": [attribute(name, value) for name, value in more.pop("having", {}).items()],
    }
    if parent:
        fields["parentSpanId"] = f"{parent:016x}"
    return fields | more


def lines(*spans: dict[str, Any]) -> list[dict[str, Any]]:
    return [{"resourceSpans": [{"scopeSpans": [{"spans": [one]}]}]} for one in spans]


def import_one(values: list[Any], folder: Path) -> ScoredTrace:
    (imported,) = import_values(values, folder)
    assert imported.scored is not None, imported.fate
    return imported.scored


def genai_spans(**failure: Any) -> list[dict[str, Any]]:
    request = {"type": "tool_call", "id": "c1", "name": "search", "arguments": {"q": "a"}}
    result = {"type": "tool_call_response", "id": "c1", "response": "result for a"}
    question = {"role": "user", "parts": [{"type": "text", "content": "what is the answer?"}]}
    first = {
        "role": "assistant",
        "parts": [{"type": "text", "content": "I search."}, request],
        "finish_reason": "tool_call",
    }
    last = {"role": "assistant", "parts": [{"type": "text", "content": "42"}]}
    last_with_reason = {**last, "finish_reason": "stop"}
    tool_result = {} if failure else {"gen_ai.tool.call.result": "result for a"}
    return [
        span(
            1, 9, 0, 100,
            having={
                "gen_ai.operation.name": "invoke_agent",
                "gen_ai.agent.name": "desk",
                "gen_ai.input.messages": [question],
                "gen_ai.output.messages": [last_with_reason],
            },
        ),
        span(
            2, 1, 10, 20,
            having={
                "gen_ai.operation.name": "chat",
                "gen_ai.input.messages": [question],
                "gen_ai.output.messages": [first],
            },
        ),
        span(
            3, 1, 30, 40,
            having={
                "gen_ai.operation.name": "execute_tool",
                "gen_ai.tool.name": "search",
                "gen_ai.tool.call.id": "c1",
                "gen_ai.tool.call.arguments": {"q": "a"},
                **tool_result,
                **failure.get("having", {}),
            },
            **{key: value for key, value in failure.items() if key != "having"},
        ),
        span(
            4, 1, 50, 60,
            having={
                "gen_ai.operation.name": "chat",
                "gen_ai.input.messages": [
                    question, first, {"role": "tool", "parts": [result]},
                ],
                "gen_ai.output.messages": [last_with_reason],
            },
        ),
    ]  # fmt: skip


def test_genai_conventions(tmp_path: Path) -> None:
    scored = import_one(lines(*genai_spans()), tmp_path)
    trace = scored.trace
    assert shape(trace) == SEARCHED
    assert trace.task.objective == "what is the answer?"
    assert trace.outcome.result_summary == "42"
    assert trace.steps[1].input == {"q": "a"}
    assert trace.steps[2].content == "result for a"
    assert trace.steps[2].latency_ms == pytest.approx(10)
    assert trace.metadata.created_at.timestamp() == pytest.approx(1_700_000_000)
    assert scored.external_traces["opentelemetry"].trace_id == TRACE


def test_a_failed_tool_by_its_error_type(tmp_path: Path) -> None:
    failed = genai_spans(
        having={"error.type": "builtins.TimeoutError"},
        status={"code": 2, "message": "too slow"},
    )
    trace = import_one(lines(*failed), tmp_path).trace
    assert shape(trace) == ["thought", "call search", "recovered search", "thought"]
    assert trace.steps[2].content == "TimeoutError: too slow"


def test_the_order_of_spans_does_not_matter(tmp_path: Path) -> None:
    spans = genai_spans()
    traces = []
    for number, order in enumerate(([3, 2, 1, 0], [1, 0, 3, 2], [2, 2, 0, 1, 3])):
        folder = tmp_path / str(number)
        folder.mkdir()
        traces.append(import_one(lines(*(spans[at] for at in order)), folder))
    assert [shape(one.trace) for one in traces] == [SEARCHED] * 3
    assert len({one.run_id for one in traces}) == 1


def test_ids_in_base64_are_those_in_hexadecimal(tmp_path: Path) -> None:
    spans = genai_spans()
    for one in spans:
        for name in ("traceId", "spanId", "parentSpanId"):
            one[name] = base64.b64encode(bytes.fromhex(one[name])).decode()
    (tmp_path / "other").mkdir()
    scored = import_one(lines(*spans), tmp_path)
    assert scored.run_id == import_one(lines(*genai_spans()), tmp_path / "other").run_id


def test_spans_between_that_are_no_part_of_an_agent_are_left_out(tmp_path: Path) -> None:
    spans = genai_spans()
    http = span(9, 0, 0, 200, having={"http.method": "POST"})
    between = span(8, 1, 25, 45, having={"db.system": "sqlite"})
    spans[2]["parentSpanId"] = between["spanId"]
    assert shape(import_one(lines(http, between, *spans), tmp_path).trace) == SEARCHED


def test_openinference_by_attributes_alone(tmp_path: Path) -> None:
    kind = "openinference.span.kind"
    role, content = "message.role", "message.content"
    request = "llm.output_messages.0.message.tool_calls.0.tool_call"
    spans = [
        span(1, 0, 0, 100, having={kind: "AGENT", "input.value": "why?", "output.value": "42"}),
        span(
            2, 1, 10, 20,
            having={
                kind: "LLM",
                f"llm.input_messages.0.{role}": "user",
                f"llm.input_messages.0.{content}": "why?",
                f"llm.output_messages.0.{role}": "assistant",
                f"llm.output_messages.0.{content}": "I search.",
                f"{request}.id": "c1",
                f"{request}.function.name": "search",
                f"{request}.function.arguments": '{"q": "a"}',
            },
        ),
        span(
            3, 1, 30, 40,
            having={kind: "TOOL", "tool.name": "search", "input.value": "a", "output.value": "b"},
        ),
        span(
            4, 1, 50, 60,
            having={
                kind: "LLM",
                f"llm.output_messages.0.{role}": "assistant",
                "llm.output_messages.0.message.contents.0.message_content.type": "text",
                "llm.output_messages.0.message.contents.0.message_content.text": "42",
            },
        ),
    ]  # fmt: skip
    scored = import_one(lines(*spans), tmp_path)
    assert shape(scored.trace) == SEARCHED
    assert scored.trace.task.objective == "why?"
    assert scored.trace.steps[1].input == {"q": "a"}
    assert scored.external_traces["phoenix"].span_id == f"{1:016x}"


@pytest.mark.parametrize("nested", [False, True])
def test_a_bulk_export_of_langsmith(tmp_path: Path, nested: bool) -> None:
    def run(number: int, kind: str, inputs: Any, outputs: Any, **more: Any) -> dict[str, Any]:
        return {
            "id": f"00000000-0000-4000-8000-{number:012d}",
            "run_type": kind,
            "name": f"run {number}",
            "start_time": f"2026-01-01T00:00:{number:02d}",
            "end_time": f"2026-01-01T00:00:{number:02d}.500",
            "inputs": json.dumps(inputs),
            "outputs": json.dumps(outputs),
            **more,
        }

    root = run(1, "chain", {"question": "why?"}, {"output": "42"}, end_time="2026-01-01T00:01:00")
    parent = {} if nested else {"parent_run_id": root["id"]}
    choice = {"message": {"role": "assistant", "content": "42"}, "finish_reason": "stop"}
    asked = {"messages": [{"role": "user", "content": "why?"}]}
    children = [
        run(2, "tool", {"input": "{'q': 'a'}"}, {"output": "b"}, **parent),
        run(3, "llm", asked, {"choices": [choice]}, **parent),
    ]
    values = [{**root, "child_runs": children}] if nested else [{"runs": [*children, root]}]
    scored = import_one(values, tmp_path)
    assert shape(scored.trace) == ["call run 2", "saw run 2", "thought"]
    assert scored.trace.steps[0].input == {"q": "a"}
    assert scored.trace.task.objective == "why?"
    assert str(scored.run_id) == root["id"]


def test_times_of_langsmith_as_numbers(tmp_path: Path) -> None:
    def model(number: int, start: Any, end: Any) -> dict[str, Any]:
        return {
            "id": f"00000000-0000-4000-8000-{number:012d}",
            "run_type": "llm",
            "start_time": start,
            "end_time": end,
            "inputs": {"messages": [{"role": "user", "content": "why?"}]},
            "outputs": {"choices": [{"message": {"role": "assistant", "content": "42"}}]},
        }

    for number, unit in enumerate((1, 1_000, 1_000_000, 1_000_000_000)):
        folder = tmp_path / str(number)
        folder.mkdir()
        run = model(number, 1_767_225_600 * unit, 1_767_225_600.5 * unit)
        trace = import_one([run], folder).trace
        assert trace.metadata.created_at.isoformat() == "2026-01-01T00:00:00+00:00"
    (unusable,) = FileReader().add(model(9, "soon", "later"), "runs")
    assert isinstance(unusable, Unusable)
    assert unusable.why.endswith("has the start_time 'soon'; give a time")


def test_plain_spans_above_many_are_walked_once(tmp_path: Path) -> None:
    looks = []

    def describes(span: Span) -> bool:
        looks.append(span)
        return OPENINFERENCE.describes(span)

    runs = SpanRuns((replace(OPENINFERENCE, describes=describes),))
    depth = 300
    plain = [span(number + 1, number, 0, 9) for number in range(depth)]
    models = [
        span(depth + 1 + number, depth, 1, 2, having={"openinference.span.kind": "LLM"})
        for number in range(depth)
    ]
    for line in lines(*models, *plain):
        assert not list(runs.add(line, "spans"))
    assert len(list(runs.conclude())) == depth
    assert len(looks) < 10 * depth


MESSAGES = [
    {"role": "user", "content": "why?"},
    {
        "role": "assistant",
        "content": "I search.",
        "tool_calls": [
            {
                "id": "c1",
                "type": "function",
                "function": {"name": "search", "arguments": '{"q": "a"}'},
            }
        ],
    },
    {"role": "tool", "tool_call_id": "c1", "content": "b"},
    {"role": "assistant", "content": "42"},
]


def test_messages_in_every_form(tmp_path: Path) -> None:
    from langchain_core.load import dumpd
    from langchain_core.messages import convert_to_messages, message_to_dict

    messages = convert_to_messages(MESSAGES)
    forms: list[Any] = [
        MESSAGES,
        [message_to_dict(one) for one in messages],
        [one.model_dump(mode="json") for one in messages],
        [dumpd(one) for one in messages],
    ]
    for number, form in enumerate(forms):
        folder = tmp_path / str(number)
        folder.mkdir()
        scored = import_one([{"messages": form, "domain": "code", "id": "run 1"}], folder)
        assert shape(scored.trace) == SEARCHED
        assert scored.trace.task.objective == "why?"
        assert scored.trace.steps[1].input == {"q": "a"}
        assert scored.trace.metadata.task_domain == "code"
        assert [step.latency_ms for step in scored.trace.steps] == [None] * 4


def test_what_a_line_states_of_its_run(tmp_path: Path) -> None:
    line = {"messages": MESSAGES, "success": False, "objective": "find out why"}
    scored = import_one([line], tmp_path)
    assert scored.trace.metadata.success is False
    assert scored.trace.outcome.confidence == 0.0
    assert scored.trace.task.objective == "find out why"
    assert scored.verdict is not None
    assert scored.verdict.source == "import"
