"""Trajectories in ATIF: by Harbor's models as a schema, and by the models where they are.

`check_trajectory` holds the rules that the schema of the models cannot say.
"""

from __future__ import annotations

import json
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from jsonschema import Draft202012Validator

from kp_langchain import ReasoningTrace, TraceStore
from kp_langchain.exporting.trajectories import trajectory
from kp_langchain.usage import ModelCall, ModelUsage, Usage
from tests.cli.made_runs import document
from tests.exporting.conftest import AT_ONCE, CASES, RECOVERED, exported, exported_run
from tests.exporting.test_conversations import FUNCTIONS, SUB_AGENT, TOOLS, any_trace

SCHEMA = json.loads(Path(__file__).with_name("atif.schema.json").read_text())


OF_AGENTS_ONLY = {"model_name", "reasoning_effort", "reasoning_content", "tool_calls", "metrics"}


def check_trajectory(value: Any) -> None:
    Draft202012Validator(SCHEMA).validate(value)
    check_rules(value)


def check_rules(value: Any) -> None:
    assert value["schema_version"] == "ATIF-v1.7"
    assert [step["step_id"] for step in value["steps"]] == list(range(1, len(value["steps"]) + 1))
    inner = value.get("subagent_trajectories", ())
    inner_ids = [one["trajectory_id"] for one in inner]
    refs = []
    for step in value["steps"]:
        assert step["source"] == "agent" or OF_AGENTS_ONLY.isdisjoint(step)
        assert step.get("llm_call_count") != 0
        if "timestamp" in step:
            datetime.fromisoformat(step["timestamp"])
        ids = {call["tool_call_id"] for call in step.get("tool_calls", ())}
        for result in step.get("observation", {}).get("results", ()):
            assert result["source_call_id"] in ids
            refs += [ref["trajectory_id"] for ref in result.get("subagent_trajectory_ref", ())]
    assert sorted(refs) == sorted(set(inner_ids)) == sorted(inner_ids)
    for one in inner:
        check_rules(one)


def test_every_case_is_valid(every_case: TraceStore) -> None:
    lines = exported("atif")
    assert len(lines) == len(CASES)
    for line in lines:
        check_trajectory(line)
        assert line["extra"]["trace_id"] == line["trajectory_id"]


def test_harbor_reads_every_case(every_case: TraceStore) -> None:
    models = pytest.importorskip("harbor.models.trajectories", reason="needs Python 3.12")
    for line in exported("atif"):
        read = models.Trajectory.model_validate(line)
        assert len(read.steps) == len(line["steps"])


def test_a_turn_is_a_step_with_its_calls_what_they_returned_and_what_the_model_took() -> None:
    trace = ReasoningTrace.model_validate(document(1, steps=AT_ONCE, answer="Done: 1.09."))
    answers = (
        ModelCall(step=0, model="gpt-x", input_tokens=30, output_tokens=7, is_reported=True),
        ModelCall(step=5, model="gpt-y", latency_ms=12.0),
    )
    model = ModelUsage(model="gpt-x", calls=2, reported_calls=1, input_tokens=30, output_tokens=7)
    run = exported_run(
        trace, model_calls=answers, functions=FUNCTIONS, usage=Usage(models=(model,), model_calls=2)
    )
    value = trajectory(run)
    check_trajectory(value)
    task, first, last = value["steps"]
    assert (task["source"], task["message"]) == ("user", "task 1")
    assert first["message"] == "Both."
    assert [call["function_name"] for call in first["tool_calls"]] == ["find", "rate"]
    contents = {one["source_call_id"]: one["content"] for one in first["observation"]["results"]}
    assert contents == {"call_1": "order 1", "call_2": "1.09"}
    assert first["metrics"]["prompt_tokens"] == 30
    assert (first["model_name"], first["llm_call_count"]) == ("gpt-x", 1)
    assert last["message"] == "Done: 1.09."
    assert "metrics" not in last
    assert value["agent"]["model_name"] == "gpt-x"
    assert value["agent"]["tool_definitions"] == TOOLS
    assert value["final_metrics"]["total_completion_tokens"] == 7
    assert value["extra"]["usage"]["models"][0]["calls"] == 2


def test_a_sub_agent_has_a_trajectory_of_its_own() -> None:
    trace = ReasoningTrace.model_validate(document(1, steps=SUB_AGENT, answer="Two at 1.09."))
    value = trajectory(exported_run(trace))
    check_trajectory(value)
    assert [step["message"] for step in value["steps"]] == ["task 1", "Both.", "Two at 1.09."]
    of_ask, of_rate = value["steps"][1]["observation"]["results"]
    (inner,) = value["subagent_trajectories"]
    assert of_ask["subagent_trajectory_ref"] == [{"trajectory_id": inner["trajectory_id"]}]
    assert "subagent_trajectory_ref" not in of_rate
    assert inner["agent"]["name"] == "ask"
    assert [step["message"] for step in inner["steps"]] == ["I look.", "Two orders."]
    assert [call["arguments"] for call in inner["steps"][0]["tool_calls"]] == [{"id": 1}, {"id": 2}]


def test_failing_calls_are_marked() -> None:
    trace = ReasoningTrace.model_validate(document(1, steps=RECOVERED, answer="Order 7 is here."))
    value = trajectory(exported_run(trace))
    marks = [
        call.get("extra", {}).get("mark", {}).get("failed", False)
        for step in value["steps"]
        for call in step.get("tool_calls", ())
    ]
    assert marks == [True, False]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(any_trace)
def test_any_trace_gives_a_valid_trajectory(trace: ReasoningTrace) -> None:
    check_trajectory(trajectory(exported_run(trace)))


def test_a_run_without_an_answer_is_a_trajectory() -> None:
    wire = document(1, steps=[{"type": "observation", "content": None}], answer="")
    check_trajectory(trajectory(exported_run(ReasoningTrace.model_validate(wire))))
