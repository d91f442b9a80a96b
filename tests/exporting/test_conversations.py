"""Conversations to train on: valid whatever a trace holds, and the run again when imported."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from kp_langchain import DomainPolicy, ReasoningTrace, TraceStore
from kp_langchain.exporting.conversations import (
    UnwritableError,
    function_names,
    openai_example,
    sharegpt_example,
)
from kp_langchain.usage import ModelCall
from tests.agents import ASK, handler, shape
from tests.cli.made_runs import document
from tests.exporting.conftest import (
    AT_ONCE,
    CASES,
    WITHOUT_ANSWER,
    asking,
    called,
    exported,
    exported_run,
    runs_in,
    saw,
    scored,
    thought,
)
from tests.importing.ways import import_values

SCHEMA = json.loads(Path(__file__).with_name("openai.schema.json").read_text())
FUNCTIONS: list[dict[str, Any]] = [
    {"name": "find", "parameters": {"type": "object"}},
    {"name": "a b"},
]
TOOLS = [{"type": "function", "function": one} for one in FUNCTIONS]


def check_openai(example: Any) -> None:
    """Fail unless an example follows OpenAI's rules, of which the schema has those of form."""
    Draft202012Validator(SCHEMA).validate(example)
    waiting: list[str] = []
    seen: set[str] = set()
    for message in example["messages"]:
        if message["role"] == "tool":
            waiting.remove(message["tool_call_id"])
            continue
        assert not waiting, "each call is answered directly after it"
        waiting = [call["id"] for call in message.get("tool_calls", ())]
        assert seen.isdisjoint(waiting)
        seen.update(waiting)
        for call in message.get("tool_calls", ()):
            assert isinstance(json.loads(call["function"]["arguments"]), dict)
    assert not waiting
    assert example["messages"][-1]["role"] == "assistant"
    assert "tool_calls" not in example["messages"][-1]


def check_sharegpt(example: Any) -> None:
    """Fail unless LLaMA-Factory would take an example."""
    parts = example["conversations"]
    assert len(parts) % 2 == 0
    for at, part in enumerate(parts):
        roles = ("gpt", "function_call") if at % 2 else ("human", "observation")
        assert part["from"] in roles
        if part["from"] == "function_call":
            text = part["value"]
            if text.startswith("<think>\n"):
                text = text.partition("\n</think>\n\n")[2]
            calls = json.loads(text)
            for call in calls if isinstance(calls, list) else [calls]:
                assert {"name", "arguments"} == set(call)
    assert parts[-1]["from"] == "gpt"
    assert parts[-1]["value"].strip()


def roles(messages: Any) -> list[str]:
    return ["+".join([one["role"], *["call"] * len(one.get("tool_calls", ()))]) for one in messages]


def test_every_case_is_valid_and_one_without_an_answer_is_left_out(
    every_case: TraceStore, fill: Callable[..., TraceStore]
) -> None:
    fill(scored(99, WITHOUT_ANSWER))
    for failing in ("mask", "drop", "keep"):
        lines = exported("openai", "--failing-steps", failing)
        assert len(lines) == len(CASES)
        for line in lines:
            check_openai(line)
        for line in exported("sharegpt", "--failing-steps", failing):
            check_sharegpt(line)


ROLES = {
    "an answer alone": ["user", "assistant"],
    "a call": ["user", "assistant+call", "tool", "assistant"],
    "calls at once": ["user", "assistant+call+call", "tool", "tool", "assistant"],
    "an error that was recovered": [
        "user", "assistant+call", "tool", "assistant+call", "tool", "assistant",
    ],
    "a retry": ["user", "assistant+call", "tool", "assistant"],
    "no last thought": ["user", "assistant+call", "tool", "assistant"],
    "a call without an answer": ["user", "assistant+call", "tool", "assistant"],
    "an answer without a call": ["user", "user", "assistant"],
    "a model that failed": ["user", "assistant"],
}  # fmt: skip


@pytest.mark.parametrize("name", ROLES)
def test_what_becomes_of_steps(name: str) -> None:
    trace = ReasoningTrace.model_validate(document(1, **CASES[name]))
    example = openai_example(exported_run(trace), "keep")
    assert roles(example["messages"]) == ROLES[name]
    assert all("weight" not in message for message in example["messages"])
    if name == "calls at once":
        assert [one["content"] for one in example["messages"]][2:4] == ["order 1", "1.09"]
    if name == "no last thought":
        assert example["messages"][-1]["content"] == "Bought."
    assert set(example) == {"messages"}


@pytest.mark.parametrize(
    ("name", "failing", "weights"),
    [
        ("an error that was recovered", "mask", [0, None, None]),
        ("an error that was recovered", "drop", [None, None]),
        ("a retry", "mask", [0, None]), ("a retry", "drop", [None, None]),
        ("a call without an answer", "mask", [0, None]),
        ("a call without an answer", "drop", [None]),
    ],
)  # fmt: skip
def test_failing_steps_are_masked_or_left_out(
    name: str, failing: Any, weights: list[int | None]
) -> None:
    run = exported_run(ReasoningTrace.model_validate(document(1, **CASES[name])))
    own = [one for one in openai_example(run, failing)["messages"] if one["role"] == "assistant"]
    assert [one.get("weight") for one in own] == weights
    parts = sharegpt_example(run, failing)["conversations"][1::2]
    assert [part.get("train") for part in parts] == [
        None if weight is None else False for weight in weights
    ]


def test_calls_that_failed_are_left_out_of_sharegpt_unless_it_is_said(
    every_case: TraceStore,
) -> None:
    def calls(*words: str) -> int:
        parts = [part for line in exported("sharegpt", *words) for part in line["conversations"]]
        assert all("train" not in part for part in parts) or words
        return sum(part["from"] == "function_call" for part in parts)

    assert calls() == calls("--failing-steps", "drop") < calls("--failing-steps", "mask")


def test_step_marks_say_which_steps_failed_or_were_tried_again() -> None:
    marks = {
        name: exported_run(ReasoningTrace.model_validate(document(1, **case))).marks()
        for name, case in CASES.items()
    }
    assert marks["a call"] == marks["calls at once"] == []
    (mark,) = marks["an error that was recovered"]
    assert mark == {
        "step": 1, "output_step": 2, "tool": "find", "call_id": "call_1", "failed": True,
    }  # fmt: skip
    assert marks["a retry"][0]["attempts"] == 3
    assert marks["a call without an answer"][0]["unanswered"] is True
    assert marks["a model that failed"] == [{"step": 0, "tool": None, "failed": True}]


def test_answers_of_models_say_which_calls_were_made_at_once() -> None:
    one_after_the_other = [
        called("find", id=1), saw("order 1", "find"), called("find", id=2), saw("order 2", "find"),
        thought("1 and 2"),
    ]  # fmt: skip
    trace = ReasoningTrace.model_validate(document(1, steps=one_after_the_other))
    apart = openai_example(exported_run(trace))["messages"]
    assert roles(apart)[1:4] == ["assistant+call", "tool", "assistant+call"]
    answers = tuple(ModelCall(step=step) for step in (0, 4))
    at_once = openai_example(exported_run(trace, model_calls=answers))["messages"]
    assert roles(at_once)[1:4] == ["assistant+call+call", "tool", "tool"]


def test_tools_are_written_where_they_are_known() -> None:
    trace = ReasoningTrace.model_validate(document(1, steps=AT_ONCE))
    example = openai_example(exported_run(trace, functions=FUNCTIONS))
    check_openai(example)
    assert [tool["function"]["name"] for tool in example["tools"]] == ["find", "a_b"]
    functions = json.loads(sharegpt_example(exported_run(trace, functions=FUNCTIONS))["tools"])
    assert functions == [FUNCTIONS[0], {"name": "a_b"}]
    assert "tools" not in openai_example(exported_run(trace))


def test_two_tools_keep_two_names_in_calls_as_in_tools() -> None:
    names = ("find.customer/record", "find.customer.record", "a" * 70, "a" * 71, "", "b.c")
    steps = [step for name in names for step in (called(name, of=name), saw("1", name))]
    trace = ReasoningTrace.model_validate(document(1, steps=steps, answer="1"))
    run = exported_run(trace, functions=[{"name": name} for name in names if name])
    example = openai_example(run)
    check_openai(example)
    calls = [call["function"] for one in example["messages"] for call in one.get("tool_calls", ())]
    by_call = {json.loads(call["arguments"])["of"]: call["name"] for call in calls}
    assert len(set(by_call.values())) == len(names)
    assert [tool["function"]["name"] for tool in example["tools"]] == [
        by_call[name] for name in names if name
    ]
    assert by_call["b.c"] == "b_c"
    assert function_names(["find_it", "find.it"])["find_it"] == "find_it"


SUB_AGENT = [
    thought("Both."), called("ask", of="sales"), called("rate", currency="EUR"),
    thought("I look."), called("find", id=1), called("find", id=2), saw("order 1", "find"),
    saw("1.09", "rate"), saw("order 2", "find"), thought("Two orders."), saw("two", "ask"),
    thought("Two at 1.09."),
]  # fmt: skip
AT_ONCE_WITHOUT_THOUGHTS = [
    thought("All."), called("slow"), called("find", id=1), saw("order 1", "find"),
    called("find", id=2), saw("order 2", "find"), saw("slow result", "slow"), thought("Done."),
]  # fmt: skip
LATE = [
    thought("Both."), called("ask"), thought("I look."), called("rate"), called("find", id=1),
    saw("order 1", "find"), thought("One order."), saw("one", "ask"), saw("1.09", "rate"),
    thought("One at 1.09."),
]  # fmt: skip


@pytest.mark.parametrize("answers", [(), (0, 3, 9, 11)], ids=["steps alone", "answers known"])
def test_a_sub_agent_inside_a_call_is_no_part_of_the_conversation(answers: Any) -> None:
    trace = ReasoningTrace.model_validate(document(1, steps=SUB_AGENT, answer="Two at 1.09."))
    run = exported_run(trace, model_calls=tuple(ModelCall(step=step) for step in answers))
    messages = openai_example(run)["messages"]
    assert roles(messages) == ["user", "assistant+call+call", "tool", "tool", "assistant"]
    assert [one["content"] for one in messages[2:4]] == ["two", "1.09"]
    assert len(sharegpt_example(run)["conversations"]) == 4
    inner = [turn for turn in run.turns if turn.caller is not None]
    assert {turn.caller.name for turn in inner if turn.caller} == {"ask"}
    assert [len(turn.calls) for turn in inner] == [2, 0]


@pytest.mark.parametrize(
    ("steps", "answers", "inner"),
    [
        (AT_ONCE_WITHOUT_THOUGHTS, (), []), (AT_ONCE_WITHOUT_THOUGHTS, (0, 7), []),
        (LATE, (), ["find"]), (LATE, (0, 2, 6, 9), ["find"]), (LATE, (0, 3, 6, 9), ["find"]),
    ],
)  # fmt: skip
def test_calls_at_once_are_of_one_agent_unless_they_lie_in_the_call_of_a_sub_agent(
    steps: Any, answers: Any, inner: list[str]
) -> None:
    trace = ReasoningTrace.model_validate(document(1, steps=steps, answer="Done."))
    run = exported_run(trace, model_calls=tuple(ModelCall(step=step) for step in answers))
    first, last = (turn for turn in run.turns if turn.caller is None)
    assert last.calls == []
    names = {step["tool"]["name"] for step in steps if step["type"] == "tool_call"}
    assert {call.name for call in first.calls} == names - set(inner)
    of_others = [call.name for turn in run.turns if turn.caller for call in turn.calls]
    assert of_others == inner


def test_a_sub_agent_that_asks_another_is_inside_it() -> None:
    steps = [
        called("ask"), thought("I ask on."), called("ask_on"), thought("Seven."),
        saw("7", "ask_on"), thought("It is seven."), saw("seven", "ask"), thought("7"),
    ]  # fmt: skip
    trace = ReasoningTrace.model_validate(document(1, steps=steps, answer="7"))
    turns = exported_run(trace).turns
    assert [turn.caller and turn.caller.name for turn in turns] == [
        None, "ask", "ask_on", "ask", None,
    ]  # fmt: skip


def test_a_real_sub_agent_is_left_out() -> None:
    with TraceStore("runs.db") as store:
        watching = handler("finance", store=store, policy=DomainPolicy(threshold=0.0))
        asking().invoke(ASK, {"callbacks": [watching]})
        assert watching.flush(60)
    (line,) = exported("openai")
    check_openai(line)
    assert roles(line["messages"]) == [
        "user", "assistant+call+call", "tool", "tool", "assistant",
    ]  # fmt: skip
    results = [one["content"] for one in line["messages"] if one["role"] == "tool"]
    assert sorted(results) == ["1.09", "seven"]


@pytest.mark.parametrize("name", ["an answer alone", "a call", "no last thought"])
def test_an_imported_conversation_is_the_same_run(name: str, tmp_path: Path) -> None:
    trace = ReasoningTrace.model_validate(document(1, **CASES[name]))
    example = openai_example(exported_run(trace, functions=FUNCTIONS))
    (imported,) = import_values([example], tmp_path)
    assert imported.scored is not None
    back = imported.scored.trace
    assert back.task.objective == trace.task.objective
    assert shape(back)[: len(trace.steps)] == shape(trace)
    for before, after in zip(trace.steps, back.steps, strict=False):
        assert (after.content, after.input) == (before.content, before.input)


ANY_TEXT = st.text(max_size=12)
ANY_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | ANY_TEXT,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(ANY_TEXT, inner, max_size=2),
    max_leaves=4,
)
ANY_STEP = st.fixed_dictionaries(
    {"type": st.sampled_from(["thought", "tool_call", "observation", "error_recovery"])},
    optional={
        "content": st.none() | ANY_TEXT,
        "output_summary": ANY_TEXT,
        "tool": st.builds(dict, name=st.sampled_from(["find", "", "a b"]) | ANY_TEXT),
        "input": st.dictionaries(ANY_TEXT, ANY_JSON, max_size=2),
        "attempts": st.integers(-1, 3),
        "latency_ms": st.floats(0, 1e300),
    },
)
any_trace = st.builds(
    lambda steps, objective, answer: ReasoningTrace.model_validate(
        document(1, steps=steps, objective=objective, answer=answer)
    ),
    st.lists(ANY_STEP, min_size=1, max_size=8),
    st.text(min_size=1, max_size=12),
    ANY_TEXT,
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    any_trace,
    st.sampled_from(["mask", "drop", "keep"]),
    st.lists(st.integers(0, 8).map(lambda step: ModelCall(step=step)), max_size=3),
)
def test_any_trace_gives_a_valid_conversation_or_none(
    trace: ReasoningTrace, failing: Any, calls: list[ModelCall]
) -> None:
    run = exported_run(trace, model_calls=tuple(calls))
    try:
        example = openai_example(run, failing)
    except UnwritableError:
        with pytest.raises(UnwritableError):
            sharegpt_example(run, failing)
        return
    check_openai(example)
    check_sharegpt(sharegpt_example(run, failing))


class WithTools(TraceStore):
    """A store that has recorded tools and the answers of models."""

    def model_calls(self, trace_ids: Any) -> dict[str, tuple[ModelCall, ...]]:
        answer = ModelCall(step=0, model="gpt-x", input_tokens=9, is_reported=True)
        return dict.fromkeys(trace_ids, (answer,))

    def tool_definitions(self, trace_ids: Any) -> dict[str, list[dict[str, Any]]]:
        return dict.fromkeys(trace_ids, FUNCTIONS)


def test_what_a_store_has_of_tools_and_models_is_read(every_case: TraceStore) -> None:
    with WithTools("runs.db") as store:
        runs = runs_in(store)
    assert len(runs) == len(CASES)
    for run in runs:
        assert openai_example(run)["tools"][0] == TOOLS[0]
        assert run.model_calls[0].model == "gpt-x"
