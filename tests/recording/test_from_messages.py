"""`trace_from_messages` gives the trace that the handler records of the same run."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage

from kp_langchain import ReasoningTrace, trace_from_messages
from tests import recorded
from tests.agents import ASK, QUESTION, agent, call, run, say, searching, shape


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


def test_secrets_are_removed() -> None:
    secret = "ghp_" + "a1B2c3D4" * 4 + "zzzz"
    trace = trace_from_messages([("user", f"use {secret}"), ("ai", f"used {secret}")])
    assert secret not in trace.model_dump_json()


@pytest.mark.parametrize("messages", [[], [("user", "anyone?")]])
def test_nothing_to_trace_is_an_error(messages: Any) -> None:
    with pytest.raises(ValueError, match="no model answer"):
        trace_from_messages(messages)


def test_a_wrong_confidence_is_named() -> None:
    with pytest.raises(ValueError, match="confidence=2"):
        trace_from_messages([("ai", "x")], confidence=2)


@pytest.mark.skipif(not recorded.present(), reason="no recorded runs beside this checkout")
def test_recorded_runs_give_the_handlers_traces() -> None:
    # Where tools ran side by side the order of their steps is open, so only one at a time.
    runs = [
        one
        for one in itertools.islice(recorded.load(), 0, None, 15)
        if all(len(m.get("tool_calls") or ()) <= 1 for m in one["messages"])
    ]
    kept: list[Any] = []
    recorded.play(runs, "conversation", "tool_exception", keep=kept)
    assert len(kept) == len(runs) > 30
    for one, scored in kept:
        made = trace_from_messages(
            recorded.as_played(one), domain=scored.trace.metadata.task_domain
        )
        assert essence(made) == essence(scored.trace), one["run_id"]
