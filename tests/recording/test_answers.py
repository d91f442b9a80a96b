"""What a run answers: in text, in a structure, not at all, cut off, beside reasoning or images."""

from __future__ import annotations

import json
import operator
from dataclasses import dataclass
from typing import Annotated, Any, TypedDict

import pytest
from hypothesis import given
from hypothesis import strategies as st
from langchain.agents import create_agent
from langchain_core.documents import Document
from langchain_core.language_models.llms import LLM
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage, ToolMessage
from langchain_core.output_parsers import StrOutputParser
from langchain_core.outputs import Generation, LLMResult
from langchain_core.runnables import Runnable, RunnableLambda
from langchain_core.tools import tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.graph.message import add_messages
from langgraph.prebuilt import ToolNode, tools_condition
from langgraph.types import Command, interrupt
from pydantic import BaseModel

from kp_langchain import ReasoningTrace, ScoredTrace, trace_from_messages
from tests.agents import (
    ASK,
    QUESTION,
    ScriptedChatModel,
    add,
    agent,
    call,
    handler,
    run,
    say,
    search,
    shape,
)
from tests.recording.playing import Events, last, scored_by
from tests.recording.situations import asking
from tests.recording.situations import graph_of as graph_of_nodes


def result(scored: ScoredTrace) -> tuple[str, bool]:
    return scored.trace.outcome.result_summary, scored.trace.metadata.success


def thoughts(scored: ScoredTrace) -> list[str | None]:
    return [step.content for step in scored.trace.steps if step.type == "thought"]


def answered(message: AIMessage) -> ReasoningTrace:
    return trace_from_messages([("user", "q"), message])


# ------------------------------------------------------------------ decisions in a structure


class Route(BaseModel):
    """Where to go."""

    step: str
    sure: bool = True


TO_POEM = call("Route", step="poem")
POEM = '{"step": "poem"}'


def routing(router: Runnable[Any, Any], *written: Any, **options: Any) -> Any:
    """A graph whose router decides by calling a function, and whose writer may search."""
    writer = ScriptedChatModel(written or [say("a poem")])
    graph = StateGraph(MessagesState)
    graph.add_node("route", lambda state: (router.invoke(state["messages"]), {})[1])
    graph.add_node("poem", lambda state: {"messages": [writer.invoke(state["messages"])]})
    graph.add_node("tools", ToolNode([search]))
    graph.add_edge(START, "route")
    graph.add_edge("route", "poem")
    graph.add_conditional_edges("poem", tools_condition)
    graph.add_edge("tools", "poem")
    return graph.compile(**options)


def structured(*answers: Any) -> Any:
    return ScriptedChatModel(answers or [say("", TO_POEM)]).with_structured_output(Route)


def deciding(*calls: Any, **fields: Any) -> Any:
    tools = [search] if TO_POEM in calls else [search, add]
    return ScriptedChatModel([AIMessage("", tool_calls=list(calls), **fields)]).bind_tools(tools)


def raw(answer: AIMessage) -> Any:
    return ScriptedChatModel([answer]).with_structured_output(Route, include_raw=True)


DECISIONS: dict[str, tuple[Any, list[str]]] = {
    "structured": (structured, [POEM]),
    "with words beside": (
        lambda: structured(say("A poem, I think.", TO_POEM)), [f"A poem, I think.\n\n{POEM}"],
    ),
    "raw and parsed": (lambda: raw(say("", TO_POEM)), [POEM]),
    "one of several functions": (
        lambda: deciding(call("Approve", why="good")), ['{"Approve": {"why": "good"}}'],
    ),
    "without arguments": (lambda: deciding(call("Approve")), ['{"Approve": {}}']),
    "two": (
        lambda: deciding(call("Approve", why="good"), call("Reject", why="long")),
        ['{"Approve": {"why": "good"}}\n\n{"Reject": {"why": "long"}}'],
    ),
    "cut off": (lambda: deciding(TO_POEM, response_metadata={"finish_reason": "length"}), []),
}  # fmt: skip


@pytest.mark.parametrize("how", DECISIONS)
def test_a_routers_decision_is_a_thought(how: str) -> None:
    make, decided = DECISIONS[how]
    scored = run(routing(make()))
    assert thoughts(scored) == [*decided, "a poem"]
    assert result(scored) == ("a poem", True)


def test_a_grader_after_the_answer_decides_and_the_answer_stays() -> None:
    grader, writer = structured(), ScriptedChatModel([say("a poem")])
    graph = graph_of_nodes(
        asking(writer), lambda state: Command(goto=END) if grader.invoke("it") else None
    )
    scored = run(graph)
    assert thoughts(scored) == ["a poem", POEM]
    assert result(scored)[0] == "a poem"


def test_the_decision_of_a_run_that_fails_later_stays() -> None:
    watching = handler()
    with pytest.raises(OSError, match="down"):
        routing(structured(), OSError("down")).invoke(ASK, {"callbacks": [watching]})
    scored = scored_by(watching)
    assert shape(scored.trace) == ["thought", "saw"]
    assert thoughts(scored) == [POEM]


def test_the_structured_answer_of_a_sub_agent_is_a_thought() -> None:
    answers = [say("", call("search", q="a")), say("", TO_POEM)]
    inner = create_agent(ScriptedChatModel(answers), [search], response_format=Route)

    @tool
    def ask(q: str) -> str:
        """Delegate."""
        return str(inner.invoke({"messages": [("user", q)]})["structured_response"].step)

    outer = ScriptedChatModel([say("", call("ask", q="x")), say("42")])
    scored = run(create_agent(outer, [ask]))
    assert shape(scored.trace) == [
        "call ask", "call search", "saw search", "thought", "saw ask", "thought",
    ]  # fmt: skip
    assert thoughts(scored) == [POEM, "42"]


@pytest.mark.parametrize("elsewhere", [False, True], ids=["in this handler", "from the store"])
def test_a_decision_before_a_pause_is_recorded_when_the_run_ends(elsewhere: bool) -> None:
    pytest.importorskip("langgraph.callbacks", reason="older releases tell of no breakpoint")
    written = [say("I search.", call("search", q="a")), say("a poem")]
    options: Any = {"checkpointer": InMemorySaver(), "interrupt_before": ["tools"]}
    graph = routing(structured(), *written, **options)
    watching = handler(store="runs.db")
    config: Any = {"configurable": {"thread_id": "t"}}
    graph.invoke(ASK, {**config, "callbacks": [watching]})
    if elsewhere:
        watching.close(60)
        watching = handler(store="runs.db")
    graph.invoke(None, {**config, "callbacks": [watching]})
    scored = scored_by(watching)
    assert thoughts(scored) == [POEM, "I search.", "a poem"]
    assert shape(scored.trace) == ["thought", "thought", "call search", "saw search", "thought"]


def test_a_decision_in_a_sub_graph_that_pauses_after_it() -> None:
    router, writer = structured(), ScriptedChatModel([say("a poem")])
    inner = graph_of_nodes(
        lambda state: (router.invoke(state["messages"]), {})[1],
        lambda state: (interrupt("may I?"), {})[1],
    )
    graph = graph_of_nodes(inner, asking(writer), checkpointer=InMemorySaver())
    watching = handler()
    config: Any = {"configurable": {"thread_id": "inner"}}
    graph.invoke(ASK, {**config, "callbacks": [watching]})
    assert thoughts(last(watching, graph, Command(resume="yes"), **config)) == [POEM, "a poem"]


def test_the_answer_of_a_model_alone_may_be_a_structure() -> None:
    assert result(run(deciding(TO_POEM), QUESTION)) == (POEM, True)
    messages = [("user", QUESTION), AIMessage("", tool_calls=[TO_POEM]), ("ai", "a poem")]
    assert [step.content for step in trace_from_messages(messages).steps] == [POEM, "a poem"]


# ------------------------------------------------------------------ raw and parsed


class RawState(TypedDict):
    q: str
    raw: Any
    parsed: Any
    parsing_error: Any


def test_what_a_node_parsed_is_the_result_of_a_state_that_holds_it() -> None:
    model = raw(say("", TO_POEM))
    builder = StateGraph(RawState).add_node("node", lambda state: model.invoke(state["q"]))
    scored = run(builder.add_edge(START, "node").compile(), {"q": QUESTION})
    assert json.loads(result(scored)[0]) == {"step": "poem", "sure": True}


def test_an_answer_that_cannot_be_parsed_is_a_failure_unless_the_run_goes_on() -> None:
    wrong = say("", call("Route", sure=True))
    scored = run(raw(wrong), QUESTION)
    assert not scored.trace.metadata.success
    assert result(scored)[0].startswith("ValidationError: 1 validation error")
    assert shape(scored.trace) == ["call Route", "saw"]
    scored = run(raw(wrong) | (lambda answer: answer["parsed"] or "?"), QUESTION)
    assert shape(scored.trace) == ["call Route", "recovered"]
    assert result(scored) == ("?", True)
    assert result(run(raw(say("I cannot say.")), QUESTION)) == ("", False)


@pytest.mark.parametrize(
    ("parsed", "written"),
    [
        (Route(step="poem"), '{"step": "poem", "sure": true}'),
        ({"step": "poem"}, POEM),
        ([1, 2], "[1, 2]"),
        (False, "false"),
        (0, "0"),
    ],
)
def test_whatever_was_parsed_is_the_result(parsed: object, written: str) -> None:
    def answer(question: str) -> Any:
        message = ScriptedChatModel([say("It is so.")]).invoke(question)
        return {"raw": message, "parsed": parsed, "parsing_error": None}

    assert result(run(RunnableLambda(answer), QUESTION)) == (written, True)


# ------------------------------------------------------------------ no answer

OLD: list[Any] = [("user", "old question"), ("ai", "old answer"), ("user", QUESTION)]
NO_ANSWER = ("", False)
REPORT = "Most numbers are large. Sources: [1]"
LINK = "https://reports.example.org/2026/numbers"


class Plain(TypedDict):
    messages: Annotated[list[Any], operator.add]


class Wider(MessagesState):
    route: str
    answer: str
    final_report: str


class Rag(TypedDict, total=False):
    question: str
    answer: str


def graph_of(update: Any, state: Any = MessagesState, **options: Any) -> Any:
    """A graph of one node that asks a model, and updates the state with something else."""

    def node(_state: Any) -> Any:
        ScriptedChatModel([say("It is about numbers.")]).invoke("classify")
        return update() if callable(update) else update

    return StateGraph(state).add_node("node", node).add_edge(START, "node").compile(**options)


ANSWER: dict[str, tuple[Any, Any, Any, tuple[str, bool]]] = {
    # The state of a graph, what it is given, how it updates that, and the run's result.
    "nothing": (MessagesState, ASK, {}, NO_ANSWER),
    "nothing, a text": (MessagesState, {"messages": QUESTION}, {}, NO_ANSWER),
    "nothing, a history": (MessagesState, {"messages": OLD}, {}, NO_ANSWER),
    "nothing, a history that ends in an answer": (
        MessagesState, {"messages": OLD[:2]}, {}, NO_ANSWER,
    ),
    "nothing, objects": (
        MessagesState, {"messages": [HumanMessage("old"), AIMessage("old"), HumanMessage("q")]},
        {}, NO_ANSWER,
    ),
    "nothing, pairs that stay pairs": (Plain, {"messages": OLD}, {}, NO_ANSWER),
    "nothing, no messages": (Rag, {"question": QUESTION}, {}, NO_ANSWER),
    **{
        f"{name}, {state.__name__}": (state, {"messages": OLD}, {"messages": [one]}, ("42", True))
        for state in (MessagesState, Plain)
        for name, one in {
            "a pair": ("ai", "42"), "OpenAI's form": {"role": "assistant", "content": "42"},
            "a message": AIMessage("42"), "an agent as user": HumanMessage("42", name="researcher"),
        }.items()
    },
    "before the user's last word": (
        MessagesState, ASK, {"messages": [AIMessage("42"), HumanMessage("Thank you.")]},
        ("42", True),
    ),
    "the key of an answer": (Rag, {"question": QUESTION}, {"answer": "42"}, ("42", True)),
    "the key beside messages": (Wider, ASK, {"answer": "42"}, ("42", True)),
    "a word under another key": (Wider, ASK, {"route": "poem"}, NO_ANSWER),
    "a text under another key": (Wider, ASK, {"final_report": REPORT}, (REPORT, True)),
    "a text and a word": (
        Wider, ASK, {"final_report": REPORT, "route": "end"}, (REPORT, True),
    ),
    "a long word": (Wider, ASK, {"final_report": LINK}, (LINK, True)),
    "the text that was given": (
        Wider, {**ASK, "final_report": REPORT}, {"final_report": REPORT}, NO_ANSWER,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", ANSWER)
def test_what_a_graph_adds_is_its_answer_and_what_it_was_given_is_none(name: str) -> None:
    state, inputs, update, expected = ANSWER[name]
    assert result(run(graph_of(update, state), inputs)) == expected


def test_a_wrapped_graph_without_an_answer_has_none() -> None:
    inner = graph_of({})
    for inputs, words in ((QUESTION, lambda given: given), ({"q": QUESTION}, lambda x: x["q"])):

        def ask(given: Any, words: Any = words) -> Any:
            return inner.invoke({"messages": [("user", words(given))]})

        assert result(run(RunnableLambda(ask), inputs)) == NO_ANSWER


def test_a_caller_may_extend_the_list_that_it_gave() -> None:
    watching = handler()
    history: list[Any] = [("user", QUESTION)]
    updates = graph_of({"messages": [("ai", "42")]}).stream(
        {"messages": history}, {"callbacks": [watching]}, stream_mode="updates"
    )
    for update in updates:
        history.extend(update["node"]["messages"])
    assert result(scored_by(watching)) == ("42", True)


def test_chains_that_return_their_inputs_with_an_answer() -> None:
    def answer(inputs: dict[str, str]) -> dict[str, str]:
        inputs["answer"] = str(ScriptedChatModel([say("42")]).invoke("q").text)
        return inputs

    def converse(messages: list[Any]) -> Any:
        return add_messages(messages, [ScriptedChatModel([say("42")]).invoke(messages)])

    assert result(run(RunnableLambda(answer), {"question": QUESTION})) == ("42", True)
    assert result(run(RunnableLambda(converse), [HumanMessage(QUESTION)])) == ("42", True)


def test_neither_an_earlier_turn_nor_what_was_said_before_a_pause_is_an_answer() -> None:
    watching = handler()
    config: Any = {"configurable": {"thread_id": "turns"}}
    graph = graph_of({}, checkpointer=InMemorySaver())
    graph.invoke({"messages": OLD[:2]}, {**config, "callbacks": [watching]})
    assert result(last(watching, graph, **config)) == NO_ANSWER
    graph = graph_of(lambda: (interrupt("may I?"), {})[1], checkpointer=InMemorySaver())
    graph.invoke(ASK, {**config, "callbacks": [watching]})
    assert result(last(watching, graph, Command(resume="yes"), **config)) == NO_ANSWER


# ------------------------------------------------------------------ refused, withheld, cut off

CUT_OFF: list[dict[str, Any]] = [
    *({"finish_reason": reason} for reason in (
        "length", "content_filter", "content-filter", "model_length", "FinishReason.MAX_TOKENS",
        "SAFETY", "PROHIBITED_CONTENT", "MALFORMED_FUNCTION_CALL", "STOPMAX_TOKENS", "token_limit",
        "TIMEOUT",
    )),
    *({"stop_reason": reason} for reason in (
        "max_tokens", "refusal", "model_context_window_exceeded", "pause_turn",
    )),
    {"stopReason": "guardrail_intervened"}, {"done_reason": "length"}, {"status": "failed"},
    {"status": "incomplete", "incomplete_details": {"reason": "max_output_tokens"}},
    {"prompt_feedback": {"block_reason": "SAFETY"}},
]  # fmt: skip
FINISHED: list[dict[str, Any]] = [
    {}, *({"finish_reason": reason} for reason in (
        "stop", "STOP", "tool_calls", "stopstop", None, ["length"], "x" * 5000 + "length",
    )),
    {"stop_reason": "end_turn"}, {"stop_reason": "stop_sequence"}, {"stop_reason": "tool_use"},
    {"status": "completed"}, {"status": {"a": 1}}, {"prompt_feedback": {"block_reason": None}},
    {"prompt_feedback": {"block_reason": 0, "safety_ratings": []}},
    {"prompt_feedback": {"block_reason": "BLOCKED_REASON_UNSPECIFIED"}},
]  # fmt: skip


@pytest.mark.parametrize(
    ("metadata", "success"),
    [*((one, False) for one in CUT_OFF), *((one, True) for one in FINISHED)],
)
def test_an_answer_that_was_cut_off_is_no_success(metadata: Any, success: bool) -> None:
    trace = answered(AIMessage("It is", response_metadata=metadata))
    assert (trace.outcome.result_summary, trace.metadata.success) == ("It is", success)


class Completing(LLM):
    """A model without chat, which tells beside its text why it stopped."""

    reason: str

    @property
    def _llm_type(self) -> str:
        return "completing"

    def _call(self, *_: Any, **__: Any) -> str:
        raise NotImplementedError

    def _generate(self, prompts: list[str], *_: Any, **__: Any) -> LLMResult:
        info = {"finish_reason": self.reason}
        return LLMResult(generations=[[Generation(text="It is", generation_info=info)]])


@pytest.mark.parametrize(("reason", "success"), [("length", False), ("stop", True)])
def test_a_model_without_chat(reason: str, success: bool) -> None:
    assert run(Completing(reason=reason), "q").trace.metadata.success is success


def test_only_the_answer_counts_and_a_report_before_it() -> None:
    def ended(text: str, why: str, **more: Any) -> AIMessage:
        return AIMessage(text, response_metadata={"stop_reason": why}, **more)

    cut = ended("I search", "max_tokens", tool_calls=[call("search", q="a")])
    assert result(run(agent(cut, say("42"))))[1] is True
    assert result(run(agent(ended("It is", "max_tokens")), outcome=lambda _: True))[1] is True
    for answer, title, success in (("refusal", "end_turn", False), ("end_turn", "refusal", True)):
        model = ScriptedChatModel([ended("It is 42.", answer), ended("On numb", title)])

        def work(question: str, model: Any = model) -> str:
            text = str(model.invoke(question).content)
            model.invoke("a title, please")
            return text

        assert run(RunnableLambda(work), "q").trace.metadata.success is success


@pytest.mark.parametrize("content", [None, ""])
def test_a_refusal_in_openais_own_dictionaries(content: Any) -> None:
    refused = {"role": "assistant", "content": content, "refusal": "I can't."}
    trace = trace_from_messages([{"role": "user", "content": "q"}, refused])
    assert trace.metadata.success is False
    assert trace.outcome.result_summary == trace.steps[0].content == "I can't."


# ------------------------------------------------------------------ reasoning

SPLIT = [
    # A text, the reasoning in it, and what it says.
    ("It is 42.", "", "It is 42."),
    ("<think>Hm.</think>It is 42.", "Hm.", "It is 42."),
    ("\n<think>\nHm.\n</think>\n\nIt is 42.\n", "Hm.", "It is 42."),
    ("<thinking>Hm.</thinking> It is 42.", "Hm.", "It is 42."),
    ("<think></think>It is 42.", "", "It is 42."),
    # Only where the text begins.
    ("<think>a</think>one<think>b</think>two", "a", "one<think>b</think>two"),
    ("<think>Is it 42? Or", "Is it 42? Or", ""),
    # Templates of some models put the opening tag into the prompt.
    ("Is it 42?\n</think>\n\nIt is 42.", "Is it 42?", "It is 42."),
    ("Is it 42? Yes.</think>\n\nIt is 42.", "Is it 42? Yes.", "It is 42."),
    # The answer may show the tag.
    ("<think>Don`t know.</think>Say `x`.", "Don`t know.", "Say `x`."),
    ("<think>a</think>Write `<think>b</think>`.", "a", "Write `<think>b</think>`."),
    ("<think>a</think>\n```\n<think>b</think>\n```", "a", "```\n<think>b</think>\n```"),
    # Texts that are about the tags.
    *((text, "", text) for text in (
        "Wrap it in <think> and </think> tags.",
        "Use `<think>`: the model reasons until `</think>`.",
        "```xml\n<think>\nreasoning\n</think>\n```", "Like this:\n\n```\n<think>cut off",
        "The tag <think> opens it.", "Close it with </think> when done.",
        "Some models begin with a line\n<think>\nthat is never closed.", "I think <b>42</b>.",
    )),
]  # fmt: skip


def letters(text: str | None) -> list[str]:
    return sorted("".join((text or "").split()))


@pytest.mark.parametrize(("text", "reasoning", "said"), SPLIT)
def test_reasoning_between_tags_is_no_part_of_the_answer(
    text: str, reasoning: str, said: str
) -> None:
    trace = answered(AIMessage(text))
    assert trace.outcome.result_summary.strip() == said
    assert letters(trace.steps[0].content) == letters(reasoning + said)
    assert trace.metadata.success is bool(said)


@given(
    st.lists(
        st.sampled_from(
            ["<think>", "</think>", "<thinking>", "</thinking>", "`", "```", "\n", " ", "a", "b.",
             "<think", "</", "\ud800", "\x00"]
        )
    ).map("".join)
)  # fmt: skip
def test_of_any_text_only_tags_and_space_are_lost(text: str) -> None:
    kept = [one for one in answered(AIMessage(text)).steps[0].content or "" if one in "ab."]
    assert sorted(kept) == sorted(one for one in text if one in "ab.")


LONG = "Is it 42? " * 1000
LONG_THOUGHT = f"<think>{LONG}</think>\n\nIt is 42."


@pytest.mark.parametrize(
    ("made", "inputs"),
    [
        (lambda: agent(say(LONG_THOUGHT)), None),
        (lambda: ScriptedChatModel([say(LONG_THOUGHT)]) | StrOutputParser(), "q"),
        (lambda: agent(AIMessage([{"type": "text", "text": LONG_THOUGHT}])), None),
        (lambda: agent(say("<think>" + "a" * 3_000_000 + "</think>It is 42.")), None),
    ],
)
def test_the_result_is_what_follows_however_long_the_reasoning(made: Any, inputs: Any) -> None:
    scored = run(made(), inputs)
    assert result(scored) == ("It is 42.", True)
    assert (scored.trace.steps[-1].content or "").startswith(("Is it 42?", "a"))


def test_what_others_write_between_tags_is_left_as_it_is() -> None:
    text = "<think>Hm.</think>42"
    called = AIMessage("", tool_calls=[call("search", "c", q="a")])
    messages = [("user", text), called, ToolMessage(text, tool_call_id="c"), ("ai", "42")]
    trace = trace_from_messages(messages)
    assert trace.task.objective == trace.steps[1].content == text


# ------------------------------------------------------------------ images, sound, video and files

DATA = "QUJDREVGR0hJSktMTU5PUFFSU1RVVldYWVo0Mg"
URL = "https://files.example.org/private/77"
PDF = "application/pdf"
IMAGE: dict[str, str] = {"data": DATA, "mime_type": "image/png"}
MEDIA: list[tuple[dict[str, Any], str]] = [
    # LangChain, as it was and as it is
    ({"type": "image", "source_type": "base64", **IMAGE}, "[image]"),
    ({"type": "image", "source_type": "url", "url": URL}, "[image]"),
    ({"type": "audio", "source_type": "base64", "data": DATA, "mime_type": "audio/wav"}, "[audio]"),
    ({"type": "file", "source_type": "base64", "data": DATA, "mime_type": PDF,
      "metadata": {"name": "a.pdf"}}, "[file]"),
    ({"type": "image", "base64": DATA, "mime_type": "image/jpeg"}, "[image]"),
    ({"type": "image", "url": URL}, "[image]"),
    ({"type": "image", "file_id": "file-1"}, "[image]"),
    ({"type": "video", "base64": DATA, "mime_type": "video/mp4"}, "[video]"),
    ({"type": "audio", "url": URL, "mime_type": "audio/mpeg"}, "[audio]"),
    ({"type": "file", "base64": DATA, "mime_type": PDF}, "[file]"),
    ({"type": "file", "url": URL}, "[file]"),
    ({"type": "text-plain", "text": "long", "mime_type": "text/plain"}, "[file]"),
    # OpenAI
    ({"type": "image_url", "image_url": {"url": f"data:image/png;base64,{DATA}"}}, "[image]"),
    ({"type": "image_url", "image_url": URL}, "[image]"),
    ({"type": "input_image", "image_url": URL, "detail": "auto"}, "[image]"),
    ({"type": "input_audio", "input_audio": {"data": DATA, "format": "wav"}}, "[audio]"),
    ({"type": "file",
      "file": {"filename": "a.pdf", "file_data": f"data:application/pdf;base64,{DATA}"}},
     "[file]"),
    ({"type": "file", "file": {"file_id": "file-1"}}, "[file]"),
    ({"type": "input_file", "filename": "a.pdf", "file_data": DATA}, "[file]"),
    ({"type": "input_file", "file_url": URL}, "[file]"),
    # Anthropic
    ({"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": DATA}},
     "[image]"),
    ({"type": "image", "source": {"type": "url", "url": URL}}, "[image]"),
    ({"type": "document", "title": "Report", "citations": {"enabled": True},
      "source": {"type": "base64", "media_type": PDF, "data": DATA}}, "[file]"),
    # Google
    ({"type": "media", "mime_type": "video/mp4", "data": DATA}, "[video]"),
    ({"type": "media", "mime_type": "audio/ogg", "file_uri": URL}, "[audio]"),
    ({"type": "media", "mime_type": PDF, "data": DATA.encode()}, "[file]"),
    # Bedrock, MCP
    ({"type": "document", "document": {"format": "pdf", "name": "a", "source": {"bytes": b"x"}}},
     "[file]"),
    ({"type": "image", "data": DATA, "mimeType": "image/png"}, "[image]"),
    # What names no MIME type gives none away.
    ({"type": "file", "base64": DATA, "mime_type": f"secret of {URL}"}, "[file]"),
    ({"type": "file", "base64": DATA, "mime_type": None}, "[file]"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("block", "mark"), MEDIA, ids=[f"{one['type']} {at}" for at, (one, _) in enumerate(MEDIA)]
)
def test_of_media_a_mark_is_kept_and_nothing_else(block: Any, mark: str) -> None:
    text = {"type": "text", "text": "Look:"}
    trace = trace_from_messages(
        [
            HumanMessage([text, block]),
            AIMessage("", tool_calls=[call("search", "c1", shots=[block])]),
            ToolMessage([text, block], tool_call_id="c1"),
            AIMessage([text, block]),
        ]
    )
    both = f"Look:\n{mark}"
    assert trace.task.objective == both
    assert [step.content for step in trace.steps] == [None, both, both]
    assert trace.outcome.result_summary == both
    # What only refers to something is data like any other: an agent attaches a file by its id.
    if DATA in str(block):
        assert trace.steps[0].input == {"shots": [mark]}
    elif "bytes" not in str(block):
        assert trace.steps[0].input == {"shots": [block]}
    trace.steps[0].input = None
    kept = trace.model_dump_json()
    for what in (DATA, DATA[:20], URL, "example.org", "file-1", "a.pdf", "Report"):
        assert what not in kept


@pytest.mark.parametrize(
    "entry",
    [
        {"type": "file", "name": "a.txt", "path": "src/a.txt"},
        {"type": "image", "title": "A", "width": 3, "url": URL},
        {"type": "restaurant", "name": "Da Mario"},
        {"type": ["image"], "url": URL},
    ],
)
def test_data_that_have_a_type_are_no_media(entry: Any) -> None:
    events = Events()
    events.tool(output=[entry, entry])
    if entry["type"] != "image":  # in a message, it may be one that is referred to
        events.tool(output=ToolMessage([entry], tool_call_id="c"))
    for step in events.end().trace.steps[1::2]:
        assert (step.content or "").startswith("[{")


def test_the_words_of_a_models_voice_are_its_text() -> None:
    audio = {"id": "audio_1", "data": DATA, "expires_at": 1, "transcript": "It is 42."}
    trace = answered(AIMessage("", additional_kwargs={"audio": audio}))
    assert trace.steps[0].content == trace.outcome.result_summary == "It is 42."


# ------------------------------------------------------------------ values of any form


class Form(BaseModel):
    value: int = 1
    confidence: float = 0.5


@dataclass
class Point:
    x: int
    y: int


FORM = '{"value": 1, "confidence": 0.5}'
PASSAGE = {
    "type": "search_result", "source": URL, "title": "Answers",
    "content": [{"type": "text", "text": "It is 42."}],
}  # fmt: skip


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("plain", "plain"), (None, ""), (b"\x00\x01", "<2 bytes>"), (7, "7"), (1.5, "1.5"),
        (True, "true"), ({"a": [1, "b"]}, '{"a": [1, "b"]}'), ([], "[]"), ((1, 2), "[1, 2]"),
        (ToolMessage("seen", tool_call_id="c"), "seen"), (Form(), FORM),
        ([Document("one"), Document("two")], "one\n\ntwo"), (Point(1, 2), '{"x": 1, "y": 2}'),
        (Command(update={"messages": [ToolMessage("moved", tool_call_id="c")]}), "moved"),
        ({"messages": [HumanMessage("q"), AIMessage("a")]}, "q\n\na"), ([PASSAGE],
        "Answers\nIt is 42."), ([{"type": "text", "text": "block"}], "block"),
    ],
)  # fmt: skip
def test_the_output_of_a_tool_as_text(value: Any, text: str) -> None:
    events = Events()
    events.tool(output=value)
    assert (events.end().trace.steps[1].content or "") == text


@pytest.mark.parametrize(
    ("inputs", "objective"),
    [
        ("just text", "just text"), (HumanMessage("message"), "message"), (None, ""), (7, ""),
        ({"messages": [("user", "first"), ("ai", "a"), ("user", "last")]}, "last"),
        ({"messages": [{"role": "user", "content": "dict"}]}, "dict"),
        ({"messages": [HumanMessage([{"type": "text", "text": "blocks"}])]}, "blocks"),
        ({"messages": ["bare"]}, "bare"), ({"messages": []}, ""),
        ([SystemMessage("s"), HumanMessage("h")], "h"), ({"question": "q", "context": "c"}, "q"),
        ({"input": "i", "chat_history": []}, "i"), ({"task": "t", "other": 1}, "t"),
        ({"topic": "only text"}, "only text"), ({"a": "one", "b": "two"}, ""), ({"input": ""}, ""),
        ({"messages": [HumanMessage([MEDIA[0][0]])]}, "[image]"),
    ],
)  # fmt: skip
def test_the_objective_is_found_in_the_inputs(inputs: Any, objective: str) -> None:
    events = Events(inputs=inputs)
    events.tool()
    assert events.end().trace.task.objective == (objective or "(not stated)")


@pytest.mark.parametrize(
    ("outputs", "answer"),
    [
        (None, ""), ("text", "text"), ("", ""), ({"output": "42"}, "42"), (AIMessage("m"), "m"),
        ({"messages": [AIMessage("a")]}, "a"), ({"messages": [AIMessage("")]}, ""), (Form(), FORM),
        ({"messages": [AIMessage([{"type": "thinking", "thinking": "hm"}])]}, ""),
        ({"structured_response": Form(), "messages": []}, FORM), ({"score": 5}, '{"score": 5}'),
        ({"output": "<think>Hm.</think>42"}, "42"),
        ({"messages": [{"role": "assistant", "content": "<think>Hm.</think>42"}]}, "42"),
    ],
)  # fmt: skip
def test_the_answer_is_found_in_the_outputs(outputs: Any, answer: str) -> None:
    events = Events()
    events.tool(output="")
    assert events.end(outputs).trace.outcome.result_summary == answer


@pytest.mark.parametrize(
    ("output", "confidence"),
    [
        ({"confidence": 0.4}, 0.4), (Form(confidence=1), 1.0), ("text", None), (None, None),
        ({"structured_response": {"confidence": 0}}, 0.0), ({"confidence": 85}, None),
        ({"confidence": float("nan")}, None), ({"confidence": True}, None),
        ({"confidence": "0.9"}, None),
    ],
)  # fmt: skip
def test_the_confidence_of_a_structured_answer(output: Any, confidence: float | None) -> None:
    events = Events()
    events.tool()
    scored = events.end(output)
    assert (scored.breakdown.confidence_source == "structured output") is (confidence is not None)
    assert confidence is None or scored.trace.outcome.confidence == confidence
