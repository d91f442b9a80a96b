"""What messages show of a run: answers of providers, and conversations."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, TypedDict

import pytest
from hypothesis import given
from hypothesis import strategies as st
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, ToolMessage
from langchain_core.output_parsers import StrOutputParser
from langgraph.graph import START, MessagesState, StateGraph

from kp_langchain import ReasoningTrace, trace_from_messages
from tests.agents import (
    ASK,
    QUESTION,
    ScriptedChatModel,
    agent,
    call,
    handler,
    run,
    say,
    searching,
    shape,
)
from tests.recording.playing import Events, last, scored_by
from tests.recording.provider_answers import (
    ANSWERS,
    CITED,
    CODE_FAILED,
    ENCRYPTED,
    IMAGE,
    PIXELS,
    SIGNATURE,
    WEB,
    ProviderAnswer,
    ai,
    came_back,
    is_streamed,
    model_for,
    record,
    text,
    used,
)
from tests.recording.situations import SEARCHED, graph_of
from tests.recording.test_bounds import LoudMapping

STOPPED = [
    one
    for one in ANSWERS
    if not one.success and one.summary and not any("recovered" in step for step in one.steps)
]
SECRET = "ghp_" + "a1B2c3D4" * 4 + "zzzz"


def messages_of(one: ProviderAnswer) -> list[BaseMessage]:
    """The conversation that the answers lead to."""
    if not is_streamed(one):
        return list(
            agent(*(reply.model_copy(deep=True) for reply in one.replies)).invoke(ASK)["messages"]  # type: ignore[union-attr]
        )
    first, *others = (chunk.model_copy(deep=True) for chunk in one.replies[0])
    return [HumanMessage("q"), sum(others, first)]  # type: ignore[list-item]


@pytest.mark.parametrize("one", ANSWERS, ids=lambda one: one.name)
def test_a_providers_answer_is_recorded_without_data_and_ids(one: ProviderAnswer) -> None:
    scored = record(one)
    assert shape(scored.trace) == one.steps
    assert all(step.content.strip() for step in scored.trace.steps if step.tool is None)
    in_messages = trace_from_messages(messages_of(one))
    assert shape(in_messages) == one.steps
    for trace in (scored.trace, in_messages):
        assert trace.metadata.success is one.success
        assert trace.outcome.result_summary == one.summary
    kept = scored.trace.model_dump_json()
    for what in (
        ENCRYPTED[:60], SIGNATURE[:60], PIXELS[:60], "ws_1", "ci_1", "rs_1", "cntr_1", "file_1",
        "srvtoolu", "mcp_1", "ig_1", "msg_1", "encrypted", "signature", "annotations", "widget",
    ):  # fmt: skip
        assert what not in kept


@pytest.mark.parametrize("one", STOPPED, ids=lambda one: one.name)
def test_what_was_refused_or_cut_off_is_no_success_in_any_wrapping(one: ProviderAnswer) -> None:
    assert last(handler(), model_for(one), "q").trace.metadata.success is False
    in_chain = last(handler(), model_for(one) | StrOutputParser(), "q").trace
    assert (in_chain.metadata.success, in_chain.outcome.result_summary) == (False, one.summary)
    watching = handler()
    list((model_for(one) | StrOutputParser()).stream("q", {"callbacks": [watching]}))
    assert scored_by(watching).trace.metadata.success is False


def test_a_refusal_that_the_run_got_over_is_none() -> None:
    refused = ai("", additional_kwargs={"refusal": "No."}, response_metadata={"finish_reason": "x"})
    again = ScriptedChatModel([refused]) | StrOutputParser() | (lambda _: "again")
    scored = run(again | ScriptedChatModel([say("It is 42.")]), "q")
    assert scored.trace.metadata.success is True
    assert [step.content for step in scored.trace.steps] == ["No.", "It is 42."]


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
    with handler(store=str(tmp_path / "traces.db")) as watching:
        assert len(last(watching, agent(one)).trace.steps) == 5
    for file in tmp_path.iterdir():
        assert SECRET.encode() not in file.read_bytes()


_cycle: dict[str, Any] = {"type": "web_search_call", "id": "w"}
_cycle.update(action=_cycle, outputs=[_cycle])
_values = st.sampled_from(
    [None, float("nan"), "", "\ud800", "x" * 20_000, b"\x00" * 9, 7, True, [], {}, [None], object(),
     {"type": "x_error"}, [{"text": 1}], _cycle, LoudMapping(), {"return_code": "1", "stderr": 5},
     '{"a": ' * 2000, "a", "b"]
)  # fmt: skip
_kinds = st.sampled_from(
    ["web_search_call", "mcp_call", "image_generation_call", "server_tool_call", "mcp_list_tools",
     "server_tool_result", "server_tool_use", "web_search_tool_result", "executable_code",
     "code_execution_result", "shell_call_output", "non_standard", "image", "file", "text",
     "refusal", "thinking", "reasoning", "tool_use", "_call", "", "x" * 9999]
)  # fmt: skip
_fields = st.sampled_from(
    ["id", "call_id", "tool_use_id", "tool_call_id", "name", "args", "input", "arguments", "action",
     "output", "outputs", "results", "result", "content", "status", "error", "extras",
     "text", "refusal", "thinking", "summary", "source", "url", "base64", "partial_json",
     "is_error", "outcome", "server_label", "approval_request_id", "queries"]
)  # fmt: skip
_blocks = st.builds(
    lambda kind, fields: {"type": kind, **fields},
    st.one_of(_kinds, _values),
    st.dictionaries(_fields, _values, max_size=6),
)
_beside = st.sampled_from(
    ["tool_outputs", "executed_tools", "refusal", "audio", "reasoning", "reasoning_content",
     "grounding_metadata", "finish_reason", "stop_reason", "status", "prompt_feedback", "logprobs"]
)  # fmt: skip


@given(
    st.lists(st.one_of(_blocks, _values), max_size=5),
    st.dictionaries(_beside, st.one_of(_values, st.lists(_blocks, max_size=3))),
    st.dictionaries(_beside, _values),
)
def test_whatever_stands_in_a_message_is_recorded_or_left_out(
    content: Any, beside: Any, metadata: Any
) -> None:
    message = AIMessage.model_construct(
        type="ai", tool_calls=[], invalid_tool_calls=[], id=None, name=None, usage_metadata=None,
        content=content, additional_kwargs=beside, response_metadata=metadata,
    )  # fmt: skip
    events = Events()
    events.tool()
    events.model(message)
    for step in events.end().trace.steps:
        assert len(step.content or "") <= 4000
        assert len(json.dumps(step.input)) < 20_000


def test_megabytes_are_cut() -> None:
    large = "a b" * 1_000_000
    found = [{"title": large, "encrypted_content": ENCRYPTED * 1000}] * 9
    image = {**IMAGE, "result": PIXELS * 500}
    answer = [used("web_search", query=large), came_back("web_search", found), image, *[WEB] * 3000]
    scored = run(agent(ai([*answer, CITED])))
    assert len(scored.trace.model_dump_json()) < 1_000_000
    assert len(scored.trace.steps) <= 1000


# ------------------------------------------------------------------ conversations


def essence(trace: ReasoningTrace) -> Any:
    """What does not depend on when and by which framework a run was recorded."""
    data = trace.model_dump(mode="json", exclude={"id"})
    for name in ("created_at", "framework", "quality_score"):
        data["metadata"].pop(name)
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
def test_messages_give_the_trace_that_the_handler_records(made: Any) -> None:
    messages = made().invoke(ASK)["messages"]
    assert essence(trace_from_messages(messages)) == essence(run(made()).trace)


def user(words: Any) -> dict[str, Any]:
    return {"role": "user", "content": words}


def assistant(words: Any, **more: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": words, **more}


def function(name: str, arguments: str, **more: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "arguments": arguments}} | more


UNPARSED: Any = {"name": "add", "args": "{oops", "id": "c2", "error": None, "type": "x"}
# Messages, the steps they give, and the inputs of the calls.
CONVERSATIONS: dict[str, tuple[list[Any], list[str], list[Any]]] = {
    "of OpenAI": (
        [{"role": "system", "content": "Be brief."}, user(QUESTION),
         assistant("I search.", tool_calls=[function("search", '{"q": "a"}', id="c1")]),
         {"role": "tool", "tool_call_id": "c1", "content": "result for a"}, assistant("42")],
        SEARCHED, [{"q": "a"}],
    ),
    "arguments that are empty or cut off, a call without id": (
        [user(QUESTION), assistant(None, reasoning_content="I look.",
                                   tool_calls=[function("search", "", id="c1"),
                                               function("add", '{"a": 1')]),
         {"role": "tool", "content": "nothing", "tool_call_id": "c1"}, assistant("none")],
        ["thought", "call add", "recovered add", *SEARCHED[1:]], [{"input": '{"a": 1'}, {}],
    ),
    "calls that never ran, and arguments that are no JSON": (
        [user(QUESTION), AIMessage("both", tool_calls=[call("search", "c1")],
                                   invalid_tool_calls=[UNPARSED]),
         ToolMessage("bad", tool_call_id="c2", status="error")],
        ["thought", "call add", "saw add"], [{"input": "{oops"}],
    ),
    "a greeting and a farewell": (
        [("ai", "How can I help?"), ("user", QUESTION), ("ai", "42"), ("user", "Thanks, bye!")],
        ["thought"], [],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CONVERSATIONS)
def test_conversations_of_any_form(name: str) -> None:
    messages, steps, inputs = CONVERSATIONS[name]
    trace = trace_from_messages(messages)
    assert shape(trace) == steps
    assert [step.input for step in trace.steps if step.type == "tool_call"] == inputs
    assert trace.task.objective == QUESTION


def test_what_the_caller_says_of_a_conversation_counts() -> None:
    messages = [("user", f"use {SECRET}"), ("ai", f"used {SECRET}")]
    trace = trace_from_messages(
        messages, domain="finance", success=False, confidence=0.4, agent_id="a"
    )
    assert (trace.metadata.task_domain, trace.metadata.success) == ("finance", False)
    assert (trace.outcome.confidence, trace.metadata.agent_id) == (0.4, "kp:agent:a")
    assert SECRET not in trace.model_dump_json()
    with pytest.raises(ValueError, match="confidence=2"):
        trace_from_messages([("ai", "x")], confidence=2)


@pytest.mark.parametrize(
    "messages",
    [
        [], [("user", "anyone?")],
        *([assistant("a", tool_calls=calls)] for calls in (
            "x", {"a": 1}, [1], [{}], [{"function": {"arguments": 3}}],
        )),
    ],
)  # fmt: skip
def test_messages_that_make_no_run_are_an_error(messages: Any) -> None:
    with pytest.raises(ValueError):
        trace_from_messages(messages)


# ------------------------------------------------------------------ messages as data


class Logged(MessagesState):
    log: list[Any]


class Chat(TypedDict, total=False):
    question: str
    history: list[Any]
    answer: str


@pytest.mark.parametrize("is_loaded", [False, True], ids=["written", "loaded"])
def test_a_log_of_messages_under_another_key_is_no_answer(is_loaded: bool) -> None:
    old = [AIMessage("old answer").model_dump(), ToolMessage("old", tool_call_id="1").model_dump()]

    def log(state: Any) -> Any:
        return {"log": old if is_loaded else [one.model_dump() for one in state["messages"]]}

    nodes = [("log", log), ("agent", searching())][:: 1 if is_loaded else -1]
    graph = StateGraph(Logged).add_sequence(nodes).add_edge(START, nodes[0][0])
    assert shape(run(graph.compile()).trace) == SEARCHED


def test_what_a_function_answers_here_is_recorded_once_in_whatever_form() -> None:
    def answer(state: Any) -> Any:
        return {"messages": [ScriptedChatModel([say("42")]).invoke(state["messages"]).model_dump()]}

    assert shape(run(graph_of(answer)).trace) == ["thought"]

    def ask(state: Chat) -> Chat:
        return {"answer": str(ScriptedChatModel([say("42")]).invoke(state["question"]).text)}

    def note(state: Chat) -> Chat:
        return {"history": [*state["history"], {"type": "ai", "content": state["answer"]}]}

    builder = StateGraph(Chat).add_sequence([ask, note]).add_edge(START, "ask")
    trace = run(builder.compile(), {"question": QUESTION, "history": []}).trace
    assert (shape(trace), trace.outcome.result_summary) == (["thought"], "42")
