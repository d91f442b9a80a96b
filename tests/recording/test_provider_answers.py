"""Every answer of `provider_answers.py`: its steps, its end, and what must not be kept of it."""

from __future__ import annotations

import json
import uuid
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage, HumanMessage
from langchain_core.output_parsers import StrOutputParser
from langchain_core.runnables import Runnable

from kp_langchain import ReasoningTrace, ScoredTrace, trace_from_messages
from kp_langchain.recording.message_parts import parts_of
from kp_langchain.recording.messages import message_text
from tests.agents import ASK, ScriptedChatModel, agent, handler, run, say
from tests.recording.provider_answers import (
    ANSWERS,
    CITED,
    CODE_FAILED,
    ENCRYPTED,
    IMAGE,
    PIXELS,
    SAID,
    SIGNATURE,
    WEB,
    ProviderAnswer,
    ai,
    came_back,
    is_streamed,
    model_for,
    record,
    steps_of,
    text,
    used,
)

by_name = {one.name: one for one in ANSWERS}
STOPPED = [
    one
    for one in ANSWERS
    if not one.success and one.summary and "error_recovery" not in dict(one.steps)
]


@pytest.mark.parametrize("one", ANSWERS, ids=lambda one: one.name)
def test_answer(one: ProviderAnswer) -> None:
    scored = record(one)
    assert steps_of(scored) == one.steps
    assert scored.trace.metadata.success is one.success
    assert scored.trace.outcome.result_summary == one.summary
    assert [step.step_id for step in scored.trace.steps] == list(range(len(scored.trace.steps)))
    assert all(step.content.strip() for step in scored.trace.steps if step.tool is None)


def messages_of(one: ProviderAnswer) -> list[BaseMessage]:
    """The conversation that the answers lead to."""
    if not is_streamed(one):
        return list(
            agent(*(reply.model_copy(deep=True) for reply in one.replies)).invoke(ASK)["messages"]  # type: ignore[union-attr]
        )
    first, *others = (chunk.model_copy(deep=True) for chunk in one.replies[0])
    return [HumanMessage("q"), sum(others, first)]  # type: ignore[list-item]


@pytest.mark.parametrize("one", ANSWERS, ids=lambda one: one.name)
def test_answer_in_a_list_of_messages(one: ProviderAnswer) -> None:
    trace = trace_from_messages(messages_of(one))
    assert [(step.type, step.tool.name if step.tool else None) for step in trace.steps] == one.steps
    assert trace.metadata.success is one.success
    assert trace.outcome.result_summary == one.summary


@pytest.mark.parametrize("one", ANSWERS, ids=lambda one: one.name)
def test_no_data_and_no_ids_are_kept(one: ProviderAnswer) -> None:
    kept = record(one).trace.model_dump_json()
    for what in (ENCRYPTED, SIGNATURE, PIXELS):
        assert what[:60] not in kept
    for name in ("ws_1", "ci_1", "rs_1", "cntr_1", "file_1", "srvtoolu", "mcp_1", "ig_1", "msg_1"):
        assert name not in kept
    for name in ("encrypted", "signature", "annotations", "widget"):
        assert name not in kept


def input_and_output(name: str) -> list[tuple[Any, str, str | None]]:
    """Input, output and MCP server of each call."""
    steps = record(by_name[name]).trace.steps
    calls = [step for step in steps if step.type == "tool_call"]
    results = [step for step in steps if step.tool is not None and step.type != "tool_call"]
    return [
        (one.input, two.content, one.tool and one.tool.mcp_server)
        for one, two in zip(calls, results, strict=True)
    ]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        (
            "OpenAI web search, responses/v1",
            [({"type": "search", "query": "the answer"}, "https://example.org/answer", None)],
        ),
        ("OpenAI code interpreter between two texts", [({"code": "print(6 * 7)"}, "42\n", None)]),
        (
            "OpenAI code interpreter fails, v0",
            [({"code": "print(6 / 0)"}, "ZeroDivisionError: division by zero", None)],
        ),
        (
            "OpenAI file search",
            [
                (
                    {"queries": ["the answer"]},
                    '[{"filename": "guide.pdf", "score": 0.9, "text": "The answer is 42."}]',
                    None,
                )
            ],
        ),
        (
            "OpenAI MCP, one call fails",
            [
                ({"question": "which answer?"}, "no such repository", "deepwiki"),
                ({"question": "which answer?"}, "42", "deepwiki"),
            ],
        ),
        (
            "OpenAI MCP, v1",
            [({}, "no such repository", "deepwiki"), ({}, "42", "deepwiki")],
        ),
        (
            "OpenAI image generation",
            [
                (
                    {"revised_prompt": "the number 42, in oil", "output_format": "png"},
                    "[image]",
                    None,
                )
            ],
        ),
        (
            "OpenAI, a kind of call that nobody knows yet",
            [({"city": "X"}, "", None)],
        ),
        (
            "Anthropic web search, streamed",
            [
                (
                    {"query": "the answer"},
                    '[{"title": "Answers", "url": "https://example.org/answers", '
                    '"page_age": "2 days ago"}]',
                    None,
                )
            ],
        ),
        (
            "Anthropic bash, which works and then cannot be reached",
            [
                ({"command": "echo 42"}, '{"stdout": "42\\n", "content": ["[file]"]}', None),
                ({"command": "echo 43"}, "unavailable", None),
            ],
        ),
        ("Anthropic web search refuses", [({"query": "the answer"}, "max_uses_exceeded", None)]),
        (
            "Anthropic fetches a page",
            [
                (
                    {"url": "https://example.org/answers"},
                    '{"url": "https://example.org/answers", "content": "The answer is 42."}',
                    None,
                )
            ],
        ),
        (
            "Anthropic code execution, the code fails",
            [({"code": "6 / 0"}, '{"stderr": "ZeroDivisionError", "return_code": 1}', None)],
        ),
        (
            "Anthropic MCP fails",
            [({"question": "which answer?"}, "no such repository", "deepwiki")],
        ),
        (
            "Google Search grounding",
            [
                (
                    {"queries": ["the answer"]},
                    '[{"uri": "https://example.org/a", "title": "example.org"}]',
                    None,
                )
            ],
        ),
        (
            "Google code execution fails",
            [({"code": "6 / 0", "language": "PYTHON"}, "ZeroDivisionError", None)],
        ),
        (
            "Groq compound",
            [({"query": "a"}, "Title: A", None), ({"input": "6 * 7"}, "42", None)],
        ),
    ],
)
def test_inputs_and_outputs(name: str, expected: Any) -> None:
    assert input_and_output(name) == expected


def test_a_streamed_input_is_the_same_in_langchains_own_form() -> None:
    trace = record(by_name["Anthropic web search, streamed, v1"]).trace
    assert trace.steps[0].input == {"query": "the answer"}


def test_an_approved_call_is_one_call() -> None:
    asked = {
        "type": "mcp_approval_request", "id": "mcpr_1", "server_label": "s", "name": "ask",
        "arguments": '{"q": 1}',
    }  # fmt: skip
    made = {**asked, "type": "mcp_call", "id": "mcp_1", "approval_request_id": "mcpr_1",
            "output": "yes"}  # fmt: skip
    trace = trace_from_messages([("user", "q"), ai([asked]), ("user", "yes"), ai([made, SAID])])
    assert [step.type for step in trace.steps] == ["tool_call", "observation", "thought"]


@pytest.mark.parametrize("one", STOPPED, ids=lambda one: one.name)
@pytest.mark.parametrize("wrapping", ["model", "chain", "streamed chain"])
def test_what_was_refused_or_cut_off_is_no_success_in_any_wrapping(
    one: ProviderAnswer, wrapping: str
) -> None:
    runnable: Runnable[Any, Any] = model_for(one)
    if wrapping != "model":
        runnable = runnable | StrOutputParser()
    done: list[Any] = []
    watching = handler(on_scored=done.append)
    if wrapping == "streamed chain":
        list(model_for(one).stream("q", {"callbacks": [watching]}))
    else:
        runnable.invoke("q", {"callbacks": [watching]})
    assert watching.flush(60)
    (scored,) = done
    assert scored.trace.metadata.success is False
    if "refusal" not in one.name or wrapping != "streamed chain":
        assert scored.trace.outcome.result_summary == one.summary


def test_a_refusal_that_the_run_got_over_is_none() -> None:
    refused = ai("", additional_kwargs={"refusal": "No."}, response_metadata={"finish_reason": "x"})
    both = (
        (ScriptedChatModel([refused]) | StrOutputParser())
        | (lambda _: "again")
        | ScriptedChatModel([say("It is 42.")])
    )
    scored = run(both, "q")
    assert scored.trace.metadata.success is True
    assert [step.content for step in scored.trace.steps] == ["No.", "It is 42."]


def test_a_finished_answer_is_a_success() -> None:
    for reason in ({"finish_reason": "stop"}, {"stop_reason": "end_turn"}, {"status": "completed"},
                   {"finish_reason": "STOPSTOP"}, {"stop_reason": "stop_sequence"},
                   {"finish_reason": None}, {"finish_reason": ["length"]}):  # fmt: skip
        assert run(agent(ai("42", response_metadata=reason))).trace.metadata.success is True


SECRET = "ghp_" + "a1B2c3D4" * 4 + "zzzz"


def test_secrets_of_a_search_do_not_reach_the_store(tmp_path: Path) -> None:
    one = ai(
        [
            used("web_search", query=f"what is {SECRET}?", token=SECRET),
            came_back("web_search", [{"type": "web_search_result", "title": f"Key {SECRET}"}]),
            {**CODE_FAILED, "code": f"login('{SECRET}')",
             "outputs": [{"type": "logs", "logs": f"401 for {SECRET}"}]},
            text(f"It is {SECRET}."),
        ]
    )  # fmt: skip
    database = tmp_path / "traces.db"
    with handler(store=str(database)) as watching:
        agent(one).invoke(ASK, {"callbacks": [watching]})
        scored = watching.last(60)
    assert scored is not None
    assert [step.type for step in scored.trace.steps] == [
        "tool_call", "observation", "tool_call", "error_recovery", "thought",
    ]  # fmt: skip
    for file in tmp_path.iterdir():
        assert SECRET.encode() not in file.read_bytes()


class Rude(dict[str, Any]):
    def get(self, *_: Any) -> Any:
        raise RuntimeError("no")

    items = keys = get  # type: ignore[assignment]


_cycle: dict[str, Any] = {"type": "web_search_call", "id": "w"}
_cycle.update(action=_cycle, outputs=[_cycle])
_values = st.sampled_from(
    [None, float("nan"), "", "\ud800", "x" * 20_000, b"\x00" * 9, 7, True, [], {}, [None], object(),
     {"type": "x_error"}, [{"text": 1}], _cycle, Rude(), {"return_code": "1", "stderr": 5},
     '{"a": ' * 2000]
)  # fmt: skip
_kinds = st.sampled_from(
    ["web_search_call", "mcp_call", "image_generation_call", "server_tool_call", "mcp_list_tools",
     "server_tool_result", "server_tool_use", "web_search_tool_result", "executable_code",
     "code_execution_result", "shell_call_output", "non_standard", "image", "file", "text",
     "refusal", "thinking", "reasoning", "tool_use", "_call", "", "x" * 9999]
)  # fmt: skip
_fields = st.sampled_from(
    ["id", "call_id", "tool_use_id", "tool_call_id", "name", "args", "input", "arguments", "action",
     "output", "outputs", "results", "result", "content", "status", "error", "extras", "value",
     "text", "refusal", "thinking", "summary", "source", "url", "base64", "partial_json",
     "is_error", "outcome", "server_label", "approval_request_id", "queries"]
)  # fmt: skip
_blocks = st.builds(
    lambda kind, fields: {"type": kind, **fields},
    st.one_of(_kinds, _values),
    st.dictionaries(_fields, st.one_of(_values, st.sampled_from(["a", "b"])), max_size=6),
)


@given(
    st.lists(st.one_of(_blocks, _values), max_size=5),
    st.dictionaries(
        st.sampled_from(["tool_outputs", "executed_tools", "refusal", "audio", "reasoning",
                         "reasoning_content", "grounding_metadata"]),
        st.one_of(_values, st.lists(_blocks, max_size=3)),
    ),
    st.dictionaries(
        st.sampled_from(["finish_reason", "stop_reason", "status", "grounding_metadata",
                         "prompt_feedback", "logprobs"]),
        _values,
    ),
)  # fmt: skip
def test_whatever_stands_in_a_message_is_recorded_or_left_out(
    content: Any, beside: Any, metadata: Any
) -> None:
    scored, stats = played(content=content, additional_kwargs=beside, response_metadata=metadata)
    assert stats["scored"] + stats["empty"] == 1
    for step in (step for one in scored for step in one.trace.steps):
        assert len(step.content or "") <= 4000
        assert len(json.dumps(step.input)) < 20_000


def test_an_output_that_cannot_be_read_is_left_out() -> None:
    outputs = [
        {"type": "image", "output": {"text": "seen", "value": Rude()}},
        {"type": "file", "output": Rude()},
    ]
    (one,), _ = played(
        content=[], additional_kwargs={"tool_outputs": outputs}, response_metadata={}
    )
    assert [step.content for step in one.trace.steps] == [None, "seen", None, ""]


def played(**fields: Any) -> tuple[list[ScoredTrace], dict[str, int]]:
    """What is scored of a run whose model answers with a message that nothing has validated."""
    message = AIMessage.model_construct(
        type="ai", tool_calls=[], invalid_tool_calls=[], id=None, name=None, usage_metadata=None,
        **fields,
    )  # fmt: skip
    scored: list[ScoredTrace] = []
    watching = handler(on_scored=scored.append)
    play(watching, message)
    assert watching.flush(60)
    stats = watching.stats()
    assert stats["callback_errors"] == stats["failed"] == 0
    return scored, stats


def play(watching: Any, message: Any) -> None:
    """The events of a model that answers with a message that LangChain itself would not make."""
    run_id = uuid.uuid4()
    watching.on_chat_model_start(None, [[HumanMessage("q")]], run_id=run_id)
    generation = SimpleNamespace(message=message, text="", generation_info=None)
    watching.on_llm_end(SimpleNamespace(generations=[[generation]]), run_id=run_id)


def test_megabytes_are_cut() -> None:
    large = "a b" * 1_000_000
    one = ai(
        [
            used("web_search", query=large),
            came_back("web_search", [{"title": large, "encrypted_content": ENCRYPTED * 1000}] * 9),
            {**IMAGE, "result": PIXELS * 500},
            *[WEB] * 3000,
            CITED,
        ]
    )
    scored = run(agent(one))
    assert len(scored.trace.model_dump_json()) < 1_000_000
    assert len(scored.trace.steps) <= 1000


@pytest.mark.parametrize("kind", [None, 3, "", {}])
def test_what_names_no_tool_is_none(kind: object) -> None:
    extra = {"executed_tools": [{"type": kind, "arguments": "{}", "output": "x"}]}
    message = AIMessage("It is 42.", additional_kwargs=extra)
    trace = trace_from_messages([("user", "q"), message])
    assert [step.type for step in trace.steps] == ["thought"]


def test_of_a_plain_answer_nothing_is_taken_apart() -> None:
    for message in (say("42"), AIMessageChunk("42"), ai([SAID]), ai("", tool_calls=[])):
        assert len(parts_of(message, 100)) == 0
    assert message_text(say("42"), 100) == "42"


def test_the_name_of_an_mcp_server_is_kept() -> None:
    trace: ReasoningTrace = record(by_name["OpenAI MCP, v1"]).trace
    assert {step.tool.mcp_server for step in trace.steps if step.tool} == {"deepwiki"}
