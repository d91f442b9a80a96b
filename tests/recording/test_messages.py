"""Text and plain JSON out of whatever comes: bounded, never changed, never raising."""

from __future__ import annotations

import copy
import json
import math
import re
import tracemalloc
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from langchain_core.documents import Document
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage, ToolMessage
from langgraph.types import Command
from pydantic import BaseModel

from kp_langchain.errors import VerdictError
from kp_langchain.recording.answer import answer_in
from kp_langchain.recording.clipping import clip
from kp_langchain.recording.messages import content_text, message_text
from kp_langchain.recording.objective import objective_in
from kp_langchain.recording.outcome import (
    choose_outcome,
    confidence_in,
    mean_probability,
)
from kp_langchain.recording.plain_values import as_text, gist_text, plain
from kp_langchain.recording.verdict_reader import read_verdict
from kp_langchain.verdict import Verdict

LIMIT = 1000


class Form(BaseModel):
    value: int = 1
    confidence: float = 0.5


@dataclass
class Point:
    x: int
    y: int


def test_text_and_reasoning_blocks_without_signatures_and_data() -> None:
    message = AIMessage(
        [
            {"type": "thinking", "thinking": "hmm", "signature": "c2lnbmF0dXJl"},
            {"type": "reasoning", "summary": [{"type": "summary_text", "text": "in short"}]},
            {"type": "reasoning", "reasoning": "at length", "id": "rs_1"},
            {"type": "redacted_thinking", "data": "c2VjcmV0"},
            {"type": "text", "text": "answer"},
            {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}},
            {"type": "tool_use", "id": "t", "name": "f", "input": {"a": 1}},
            "bare",
        ]
    )
    assert message_text(message, LIMIT).split("\n") == [
        "hmm", "in short", "at length", "answer", "[image]", "bare",
    ]  # fmt: skip


def test_reasoning_beside_the_content() -> None:
    message = AIMessage("answer", additional_kwargs={"reasoning_content": "because"})
    assert message_text(message, LIMIT) == "because\n\nanswer"
    assert answer_in({"messages": [message]}, LIMIT) == "answer"


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("plain", "plain"),
        (None, ""),
        (b"\x00\x01", "<2 bytes>"),
        (7, "7"),
        (1.5, "1.5"),
        (True, "true"),
        ({"a": [1, "b"]}, '{"a": [1, "b"]}'),
        ([], "[]"),
        ((1, 2), "[1, 2]"),
        (ToolMessage("seen", tool_call_id="c"), "seen"),
        ([Document("one"), Document("two")], "one\n\ntwo"),
        (Command(update={"messages": [ToolMessage("moved", tool_call_id="c")]}), "moved"),
        ({"messages": [HumanMessage("q"), AIMessage("a")]}, "q\n\na"),
        ([{"type": "text", "text": "block"}], "block"),
        (Form(), '{"value": 1, "confidence": 0.5}'),
        (Point(1, 2), '{"x": 1, "y": 2}'),
        (ValueError("v"), "v"),
    ],
)
def test_outputs_as_text(value: Any, text: str) -> None:
    assert as_text(value, LIMIT) == text


@pytest.mark.parametrize(
    ("inputs", "objective"),
    [
        ("just text", "just text"),
        ({"messages": [("user", "first"), ("ai", "a"), ("user", "last")]}, "last"),
        ({"messages": [{"role": "user", "content": "dict"}]}, "dict"),
        ({"messages": [HumanMessage([{"type": "text", "text": "blocks"}])]}, "blocks"),
        ({"messages": ["bare"]}, "bare"),
        ({"messages": []}, ""),
        ([SystemMessage("s"), HumanMessage("h")], "h"),
        ({"question": "q", "context": "c"}, "q"),
        ({"input": "i", "chat_history": []}, "i"),
        ({"task": "t", "other": 1}, "t"),
        ({"topic": "only text"}, "only text"),
        ({"a": "one", "b": "two"}, ""),
        ({"input": ""}, ""),
        (HumanMessage("message"), "message"),
        (None, ""),
        (7, ""),
    ],
)
def test_objective(inputs: Any, objective: str) -> None:
    assert objective_in(inputs, LIMIT) == objective


@pytest.mark.parametrize(
    ("outputs", "answer"),
    [
        (None, None),
        ("text", "text"),
        ("", ""),
        ({"output": "42"}, "42"),
        ({"messages": [AIMessage("a")]}, "a"),
        ({"messages": [AIMessage("")]}, ""),
        ({"messages": [AIMessage([{"type": "thinking", "thinking": "hm"}])]}, ""),
        ({"structured_response": Form(), "messages": []}, '{"value": 1, "confidence": 0.5}'),
        ({"score": 5}, '{"score": 5}'),
        (AIMessage("m"), "m"),
        (Form(), '{"value": 1, "confidence": 0.5}'),
    ],
)
def test_answer(outputs: Any, answer: str | None) -> None:
    found = answer_in(outputs, LIMIT)
    assert (None if found is None else gist_text(found, LIMIT)) == answer


@pytest.mark.parametrize(
    ("output", "confidence"),
    [
        ({"confidence": 0.4}, 0.4),
        (Form(confidence=1), 1.0),
        ({"structured_response": {"confidence": 0}}, 0.0),
        ({"confidence": 85}, None),
        ({"confidence": float("nan")}, None),
        ({"confidence": True}, None),
        ({"confidence": "0.9"}, None),
        (None, None),
        ("text", None),
    ],
)
def test_confidence_of_structured_output(output: Any, confidence: float | None) -> None:
    assert confidence_in(output) == confidence


@pytest.mark.parametrize(
    ("logprobs", "mean"),
    [
        ({"content": [{"logprob": 0.0}, {"logprob": math.log(0.5)}]}, 0.75),
        ({"token_logprobs": [None, math.log(0.25)]}, 0.25),
        ([math.log(0.1)], 0.1),
        ({"content": []}, None),
        ({"content": None}, None),
        ([float("nan"), "x", None], None),
        ([float("-inf"), 3.0], 0.5),
        (None, None),
        ("text", None),
    ],
)
def test_mean_token_probability(logprobs: Any, mean: float | None) -> None:
    assert mean_probability(logprobs) == (None if mean is None else pytest.approx(mean))


_stated = st.tuples(st.none() | st.booleans(), st.none() | st.floats(0, 1))
_verdicts = _stated.filter(lambda one: one != (None, None)).map(lambda one: Verdict(*one))


@given(
    success=st.booleans(),
    verdicts=st.lists(_verdicts, max_size=3),
    structured=st.none() | st.floats(0, 1),
    token_probability=st.none() | st.floats(0, 1),
)
def test_success_and_confidence_come_each_from_the_first_source_that_tells(
    success: bool,
    verdicts: list[Verdict],
    structured: float | None,
    token_probability: float | None,
) -> None:
    verdict = choose_outcome(
        success,
        verdicts=verdicts,
        structured=structured,
        token_probability=token_probability,
    )
    told = [one.success for one in verdicts if one.success is not None]
    assert verdict.success is (told[0] if told else success)
    sure = [one.confidence for one in verdicts if one.confidence is not None]
    sure += [value for value in (structured, token_probability) if value is not None]
    assert verdict.confidence == (sure[0] if sure else 0.8 if verdict.success else 0.2)
    assert verdict.source


@pytest.mark.parametrize(
    ("said", "stated"),
    [
        (True, (True, None)),
        (0.5, (None, 0.5)),
        (1, (None, 1.0)),
        ({"success": False, "confidence": 0}, (False, 0.0)),
        (np.bool_(True), (True, None)),
        (np.float32(0.5), (None, 0.5)),
        ({"success": np.bool_(False), "confidence": np.float64(0.25)}, (False, 0.25)),
    ],
)
def test_verdicts_that_are_read(said: Any, stated: tuple[bool | None, float | None]) -> None:
    verdict = read_verdict(said, "a test")
    assert verdict is not None
    assert (verdict.success, verdict.confidence, verdict.source) == (*stated, "a test")


@pytest.mark.parametrize("said", [None, {}, {"note": "hm"}, {"success": None}])
def test_what_states_nothing_is_no_verdict(said: Any) -> None:
    assert read_verdict(said, "a test") is None


PRIVATE = "hunter2-of-the-run"


@pytest.mark.parametrize(
    ("said", "told"),
    [
        (7, "number outside 0 to 1"),
        (float("nan"), "number outside"),
        (PRIVATE, "a str"),
        ({"confidence": PRIVATE}, "confidence is a str"),
        ({"confidence": True}, "confidence is a bool"),
        ({"success": 1}, "success is a int"),
        ({"success": PRIVATE}, "success is a str"),
        ({"sucess": True}, "1 keys besides"),
        ([True], "a list"),
    ],
)
def test_verdicts_that_are_refused_without_quoting_them(said: Any, told: str) -> None:
    with pytest.raises(VerdictError, match=told) as caught:
        read_verdict(said, "a test")
    assert PRIVATE not in str(caught.value)


class Rude:
    def __str__(self) -> str:
        raise RuntimeError

    __repr__ = __str__


_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary()
    | st.builds(Rude) | st.builds(Point, st.integers(), st.integers()) | st.builds(object),
    lambda inner: st.lists(inner) | st.tuples(inner)
    | st.dictionaries(st.text() | st.integers(), inner)
    | st.dictionaries(st.just("messages"), st.lists(st.builds(AIMessage, st.text()))),
)  # fmt: skip


@given(_values, st.integers(0, 200))
def test_any_value_becomes_bounded_text_and_json(value: Any, limit: int) -> None:
    assert len(as_text(value, limit)) <= max(limit, 60)
    shape = plain(value, limit)
    json.dumps(shape, allow_nan=False)
    assert objective_in(value, limit) is not None
    answer_in(value, limit)


@given(
    st.recursive(st.integers() | st.text(), lambda x: st.lists(x) | st.dictionaries(st.text(), x))
)
def test_nothing_is_changed_and_nothing_is_shared(value: Any) -> None:
    before = copy.deepcopy(value)
    shape = plain(value, 10_000)
    as_text(value, 10)
    assert value == before
    if isinstance(value, (list, dict)):
        assert shape is not value


MARK = re.compile(r"\.\.\. \[(\d+) characters left out\] \.\.\.")
_long_texts = st.text(st.characters(exclude_categories=["Cs"]), min_size=1).map(lambda x: x * 40)


@given(st.text() | _long_texts, st.integers(0, 200))
def test_clip_keeps_both_ends_and_counts_the_rest(text: str, limit: int) -> None:
    cut = clip(text, limit)
    if len(text) <= limit:
        assert cut == text
        return
    (mark,) = MARK.finditer(cut)
    assert len(cut) <= max(limit, len(mark[0]))
    head, tail = cut[: mark.start()], cut[mark.end() :]
    assert text.startswith(head)
    assert text.endswith(tail)
    assert int(mark[1]) == len(text) - len(head) - len(tail)
    assert abs(len(head) - len(tail)) <= 1
    assert len(cut) == limit or not head + tail


@given(_long_texts, st.lists(st.integers(60, 400), min_size=2, max_size=5), st.integers(0, 30))
def test_a_text_cut_again_counts_all_that_is_left_out(
    text: str, limits: list[int], margin: int
) -> None:
    cut = text
    for limit in sorted(limits, reverse=True):
        cut = clip(cut, limit)
    cut = clip(cut, min(limits), margin=margin)
    mark = MARK.search(cut)
    if mark is None:
        assert cut == text
        return
    assert len(cut) <= min(limits)
    assert text.startswith(cut[: mark.start()])
    assert text.endswith(cut[mark.end() :])
    assert int(mark[1]) + len(cut) - len(mark[0]) == len(text)


def test_the_margin_beside_an_earlier_cut_is_left_out_where_there_is_room_for_it() -> None:
    once = clip("a" * 500 + "b" * 500, 300)
    again = clip(once, 300, margin=50)
    (mark,) = MARK.finditer(again)
    assert int(mark[1]) == 1000 - (len(again) - len(mark[0]))
    assert len(again) <= 200
    assert clip("short", 300, margin=50) == "short"


@pytest.mark.parametrize("blocks", [1, 2, 3, 40])
@pytest.mark.parametrize("size", [10, 500, 3000])
def test_of_many_blocks_both_ends_are_kept(blocks: int, size: int) -> None:
    content = [
        {"type": "text", "text": f"begin {n} " + "x" * size + f" {n} end"} for n in range(blocks)
    ]
    whole = "\n".join(block["text"] for block in content)
    cut = content_text(content, 200)
    if len(whole) <= 200:
        assert cut == whole
        return
    (mark,) = MARK.finditer(cut)
    assert len(cut) <= 200
    assert whole.startswith(cut[: mark.start()])
    assert whole.endswith(cut[mark.end() :])
    assert int(mark[1]) == len(whole) - len(cut) + len(mark[0])


def test_the_objective_keeps_a_question_behind_a_long_prompt() -> None:
    prompt = "You are an expert in using functions. " * 400
    objective = objective_in(
        {"messages": [("user", f"{prompt}Question: how old is S1238552?")]}, 4000
    )
    assert objective.startswith(prompt[:1900])
    assert objective.endswith("Question: how old is S1238552?")


def test_cutting_a_long_text_costs_no_more_than_its_limit() -> None:
    """Nothing is looked for, nor copied, beyond what may stay: bounded by memory, not by time."""
    text = "ab \u0431" * 5_000_000
    tracemalloc.start()
    clip(text, 6000)
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak_bytes < 200_000
