"""Reasoning between tags is told from what a model says; tags that a text shows are none."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langchain_core.output_parsers import StrOutputParser

from kp_langchain import trace_from_messages
from kp_langchain.recording.answer import answer_in
from kp_langchain.recording.messages import message_text
from kp_langchain.recording.reasoning import split_reasoning
from tests.agents import ScriptedChatModel, agent, run, say


@pytest.mark.parametrize(
    ("text", "reasoning", "said"),
    [
        ("It is 42.", "", "It is 42."),
        ("<think>Hm.</think>It is 42.", "Hm.", "It is 42."),
        ("\n<think>\nHm.\n</think>\n\nIt is 42.\n", "Hm.", "It is 42."),
        ("<thinking>Hm.</thinking> It is 42.", "Hm.", "It is 42."),
        ("<think></think>It is 42.", "", "It is 42."),
        ("<think>a</think>one<think>b</think>two", "a\nb", "onetwo"),
        ("<think>a</think>\none\n<think>b</think>\ntwo", "a\nb", "one\n\ntwo"),
        ("First.\n<think>Hm.</think>\nIt is 42.", "Hm.", "First.\n\nIt is 42."),
        ("<think>Is it 42? Or", "Is it 42? Or", ""),
        ("<think>a</think>It is\n<think>42? Or", "a\n42? Or", "It is"),
        # Templates of some models put the opening tag into the prompt.
        ("Is it 42?\n</think>\n\nIt is 42.", "Is it 42?", "It is 42."),
        ("Is it 42? Yes.</think>\n\nIt is 42.", "Is it 42? Yes.", "It is 42."),
        # The reasoning shows the tag, and so may the answer.
        ("<think>Explain `</think>`.</think>It closes.", "Explain `</think>`.", "It closes."),
        ("<think>Don`t know.</think>Say `x`.", "Don`t know.", "Say `x`."),
        ("<think>a</think>Write `<think>b</think>`.", "a", "Write `<think>b</think>`."),
        (
            "<think>a</think>\n```\n<think>b</think>\n```",
            "a",
            "```\n<think>b</think>\n```",
        ),
        # Texts that are about the tags.
        *(
            (text, "", text)
            for text in (
                "Wrap it in <think> and </think> tags.",
                "Use `<think>`: the model reasons until `</think>`.",
                "```xml\n<think>\nreasoning\n</think>\n```",
                "Like this:\n\n```\n<think>cut off",
                "The tag <think> opens it.",
                "Close it with </think> when done.",
                "Some models begin with a line\n<think>\nthat is never closed.",
                "I think <b>42</b>.",
            )
        ),
    ],
)
def test_split(text: str, reasoning: str, said: str) -> None:
    assert split_reasoning(text) == (reasoning, said)


@given(
    st.lists(
        st.sampled_from(
            ["<think>", "</think>", "<thinking>", "</thinking>", "`", "```", "\n", " ", "a", "b.",
             "<think", "</", "\ud800", "\x00"]
        )
    ).map("".join)
)  # fmt: skip
def test_nothing_is_lost_but_tags_and_space(text: str) -> None:
    reasoning, said = split_reasoning(text)
    letters = [one for one in text if one in "ab."]
    assert sorted(one for one in reasoning + said if one in "ab.") == sorted(letters)
    if not reasoning and "<think" not in text and "</think" not in text:
        assert said == text


@pytest.mark.parametrize(
    "text",
    [
        "<think>" * 100_000,
        "<think>" + "a" * 3_000_000,
        "<think>" + "a" * 3_000_000 + "</think>It is 42.",
        "<think>a</think>" * 50_000,
        "\n<think>" * 50_000 + "`" * 50_000,
        "<think>" + "``` " * 100_000,
    ],
)
def test_long_texts_are_split_in_one_go(text: str) -> None:
    _, said = split_reasoning(text)  # a search from each tag to the end would take an hour
    assert ("It is 42." in said) == ("42" in text)


LONG = "Is it 42? " * 1000
THOUGHT = f"<think>{LONG}</think>\n\nIt is 42."


@pytest.mark.parametrize(
    ("runnable", "inputs"),
    [
        (lambda: agent(say(THOUGHT)), None),
        (lambda: ScriptedChatModel([say(THOUGHT)]), "q"),
        (lambda: ScriptedChatModel([say(THOUGHT)]) | StrOutputParser(), "q"),
        (lambda: agent(AIMessage([{"type": "text", "text": THOUGHT}])), None),
    ],
)
def test_the_result_is_what_follows_however_long_the_reasoning(runnable: Any, inputs: Any) -> None:
    scored = run(runnable(), inputs)
    assert scored.trace.outcome.result_summary == "It is 42."
    assert scored.trace.metadata.success is True
    assert (scored.trace.steps[-1].content or "").startswith("Is it 42?")


def test_reasoning_alone_is_no_answer() -> None:
    scored = run(agent(say("<think>Is it 42?")))
    assert scored.trace.outcome.result_summary == ""
    assert scored.trace.metadata.success is False
    assert scored.trace.steps[0].content == "Is it 42?"


def test_answers_in_other_places() -> None:
    text = "<think>Hm.</think>42"
    assert answer_in({"output": text}, 100) == "42"
    assert answer_in({"messages": [{"role": "assistant", "content": text}]}, 100) == "42"
    assert trace_from_messages([("user", "q"), ("ai", text)]).outcome.result_summary == "42"


def test_what_others_write_is_left_as_it_is() -> None:
    text = "<think>Hm.</think>42"
    assert message_text(ToolMessage(text, tool_call_id="c"), 100) == text
    assert message_text(HumanMessage(text), 100) == text
    trace = trace_from_messages([("user", text), ("ai", "42")])
    assert trace.task.objective == text


@pytest.mark.parametrize(
    "beside",
    [
        {"reasoning_content": "because"},
        {"reasoning": "because"},
        {"reasoning": {"summary": [{"type": "summary_text", "text": "because"}]}},
    ],
)  # fmt: skip
def test_reasoning_beside_the_content(beside: Any) -> None:
    message = AIMessage("42", additional_kwargs=beside)
    assert message_text(message, 100) == "because\n\n42"
    assert answer_in(message, 100) == "42"
