"""`trace_from_messages` gives the trace that the handler records of the same run."""

from __future__ import annotations

import itertools
import json
import os
from typing import Any

import pytest
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage

from kp_langchain import ReasoningTrace, trace_from_messages
from tests import recorded
from tests.agents import ASK, QUESTION, agent, call, run, say, searching, shape

# RECORDED_EVERY=1 plays all of them: half a minute.
EVERY = int(os.environ.get("RECORDED_EVERY", "15"))


def essence(trace: ReasoningTrace) -> Any:
    """What does not depend on when and by which framework a run was recorded."""
    data = trace.model_dump(mode="json", exclude={"id"})
    data["metadata"].pop("created_at")
    data["metadata"].pop("framework")
    data["metadata"].pop("quality_score")
    for step in data["steps"]:
        step.pop("latency_ms", None)
    return data


@pytest.mark.parametrize(
    "made",
    [
        searching,
        lambda: agent(say("Try.", call("soft", x="1")), say("42")),
        lambda: agent(say("", call("search", q="a")), say("")),
        lambda: agent(say("only this")),
    ],
)
def test_same_trace_as_the_handlers(made: Any) -> None:
    recorded_trace = run(made()).trace
    messages = made().invoke(ASK)["messages"]
    assert essence(trace_from_messages(messages)) == essence(recorded_trace)


def test_openai_dictionaries_are_read() -> None:
    trace = trace_from_messages(
        [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": QUESTION},
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
            {"role": "tool", "tool_call_id": "c1", "content": "result for a"},
            {"role": "assistant", "content": "42"},
        ],
        domain="finance",
        success=False,
        confidence=0.4,
        agent_id="a",
    )
    assert shape(trace) == ["thought", "call search", "saw search", "thought"]
    assert trace.task.objective == QUESTION
    assert trace.metadata.task_domain == "finance"
    assert trace.metadata.success is False
    assert trace.outcome.confidence == 0.4
    assert trace.metadata.agent_id == "kp:agent:a"


def test_calls_that_never_ran_and_arguments_that_are_no_json() -> None:
    asked = AIMessage(
        "both",
        tool_calls=[{"name": "search", "args": {}, "id": "c1", "type": "tool_call"}],
        invalid_tool_calls=[
            {"name": "add", "args": "{oops", "id": "c2", "error": None, "type": "invalid_tool_call"}
        ],
    )
    trace = trace_from_messages(
        [HumanMessage("q"), asked, ToolMessage("bad", tool_call_id="c2", status="error")]
    )
    assert shape(trace) == ["thought", "call add", "saw add"]
    assert trace.steps[1].input == {"input": "{oops"}
    assert trace.metadata.success is False


def test_calls_with_empty_or_cut_off_arguments_and_without_ids() -> None:
    def function(name: str, arguments: str, **more: Any) -> dict[str, Any]:
        return {"type": "function", "function": {"name": name, "arguments": arguments}} | more

    trace = trace_from_messages(
        [
            {"role": "user", "content": "q"},
            {
                "role": "assistant",
                "content": None,
                "reasoning_content": "I look.",
                "tool_calls": [function("search", "", id="c1"), function("add", '{"a": 1')],
            },
            {"role": "tool", "content": "nothing", "tool_call_id": "c1"},
            {"role": "assistant", "content": "none"},
        ]
    )
    assert {"thought", "call search", "saw search", "call add"} <= set(shape(trace))
    inputs = {
        step.tool.name: step.input for step in trace.steps if step.tool and step.input is not None
    }
    assert inputs == {"search": {}, "add": {"input": '{"a": 1'}}


def test_function_calls_of_old() -> None:
    call = {"name": "search", "arguments": '{"q": "a"}'}
    trace = trace_from_messages(
        [
            {"role": "user", "content": "q"},
            {"role": "assistant", "content": None, "function_call": call},
            {"role": "function", "name": "search", "content": "found a"},
            {"role": "assistant", "content": "a"},
        ]
    )
    assert shape(trace) == ["call search", "saw search", "thought"]
    assert trace.steps[0].input == {"q": "a"}
    assert trace.steps[1].content == "found a"


def test_blocks_of_anthropic() -> None:
    use = {"type": "tool_use", "id": "t1", "name": "search", "input": {"q": "a"}}
    result = {"type": "tool_result", "tool_use_id": "t1", "content": "found a"}
    failure = {"type": "tool_result", "tool_use_id": "t2", "content": "boom", "is_error": True}
    trace = trace_from_messages(
        [
            {"role": "user", "content": "q"},
            {"role": "assistant", "content": [{"type": "text", "text": "I look."}, use]},
            {"role": "user", "content": [result]},
            {"role": "assistant", "content": [use | {"id": "t2", "input": {}}]},
            {"role": "user", "content": [failure, {"type": "text", "text": "go on"}]},
            {"role": "assistant", "content": "a"},
        ]
    )
    assert shape(trace)[:3] == ["thought", "call search", "saw search"]
    assert trace.steps[1].input == {"q": "a"}
    assert [step.type for step in trace.steps].count("tool_call") == 2
    assert "boom" in trace.model_dump_json()


def test_secrets_are_removed() -> None:
    secret = "ghp_" + "a1B2c3D4" * 4 + "zzzz"
    trace = trace_from_messages([("user", f"use {secret}"), ("ai", f"used {secret}")])
    assert secret not in trace.model_dump_json()


@pytest.mark.parametrize("messages", [[], [("user", "anyone?")]])
def test_nothing_to_trace_is_an_error(messages: Any) -> None:
    with pytest.raises(ValueError, match="no model answer"):
        trace_from_messages(messages)


@pytest.mark.parametrize("calls", ["x", {"a": 1}, [1], [{}], [{"function": {"arguments": 3}}]])
def test_calls_that_are_none_are_an_error(calls: Any) -> None:
    with pytest.raises(ValueError):
        trace_from_messages([{"role": "assistant", "content": "a", "tool_calls": calls}])


def test_a_wrong_confidence_is_named() -> None:
    with pytest.raises(ValueError, match="confidence=2"):
        trace_from_messages([("ai", "x")], confidence=2)


def test_a_greeting_and_a_farewell_are_no_part_of_the_run() -> None:
    trace = trace_from_messages(
        [("ai", "How can I help?"), ("user", QUESTION), ("ai", "42"), ("user", "Thanks, bye!")]
    )
    assert trace.task.objective == QUESTION
    assert [step.content for step in trace.steps] == ["42"]
    assert trace.outcome.result_summary == "42"


def test_what_was_done_unasked_is_part_of_the_run() -> None:
    asked = AIMessage(
        "I look first.",
        tool_calls=[{"name": "search", "args": {}, "id": "c1", "type": "tool_call"}],
    )
    trace = trace_from_messages(
        [asked, ToolMessage("seen", tool_call_id="c1"), HumanMessage(QUESTION), AIMessage("42")]
    )
    assert shape(trace) == ["thought", "call search", "saw search", "thought"]


def test_a_greeting_alone_is_a_thought() -> None:
    trace = trace_from_messages([("ai", "How can I help?"), ("user", "bye")])
    assert [step.content for step in trace.steps] == ["How can I help?"]


def side_by_side(trace: ReasoningTrace) -> Any:
    """The essence of a trace; which of several tools came first between two thoughts is open."""
    data = essence(trace)
    stretches = itertools.groupby(data.pop("steps"), lambda step: step["type"] == "thought")
    order = [
        sorted(json.dumps({**step, "step_id": 0}, sort_keys=True) for step in stretch)
        for _, stretch in stretches
    ]
    return data, order


@pytest.mark.skipif(not recorded.present(), reason="no recorded runs beside this checkout")
def test_recorded_runs_give_the_handlers_traces() -> None:
    runs = list(itertools.islice(recorded.load(), 0, None, EVERY))
    kept: list[Any] = []
    # An exception of the replayer's would stand in the trace with its name, which no message has.
    recorded.play(runs, "conversation", "tool_exception", keep=kept)
    assert len(kept) == len(runs) > 30
    for one, scored in kept:
        domain = scored.trace.metadata.task_domain
        made = trace_from_messages(one["messages"], domain=domain)
        # With one tool at a time the order is settled, too.
        alone = all(len(message.get("tool_calls") or ()) <= 1 for message in one["messages"])
        same = essence if alone else side_by_side
        assert same(made) == same(scored.trace), one["run_id"]
