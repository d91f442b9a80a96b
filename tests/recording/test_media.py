"""Images, sound, video and files leave a mark, and nothing else."""

from __future__ import annotations

from typing import Any

import pytest
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langchain_core.tools import tool

from kp_langchain import trace_from_messages
from kp_langchain.recording.objective import objective_in
from kp_langchain.recording.plain_values import as_text, plain
from tests.agents import agent, call, run, say

DATA = "QUJDREVGR0hJSktMTU5PUFFSU1RVVldYWVo0Mg"
URL = "https://files.example.org/private/77"
PDF = "application/pdf"

BLOCKS = [
    # LangChain, as it was and as it is
    ({"type": "image", "source_type": "base64", "data": DATA, "mime_type": "image/png"}, "[image]"),
    ({"type": "image", "source_type": "url", "url": URL}, "[image]"),
    ({"type": "audio", "source_type": "base64", "data": DATA, "mime_type": "audio/wav"}, "[audio]"),
    (
        {"type": "file", "source_type": "base64", "data": DATA, "mime_type": PDF,
         "metadata": {"name": "a.pdf"}},
        "[file: application/pdf]",
    ),
    ({"type": "image", "base64": DATA, "mime_type": "image/jpeg"}, "[image]"),
    ({"type": "image", "url": URL}, "[image]"),
    ({"type": "image", "file_id": "file-1"}, "[image]"),
    ({"type": "video", "base64": DATA, "mime_type": "video/mp4"}, "[video]"),
    ({"type": "audio", "url": URL, "mime_type": "audio/mpeg"}, "[audio]"),
    ({"type": "file", "base64": DATA, "mime_type": PDF}, "[file: application/pdf]"),
    ({"type": "file", "url": URL}, "[file]"),
    ({"type": "text-plain", "text": "long", "mime_type": "text/plain"}, "[file: text/plain]"),
    # OpenAI
    ({"type": "image_url", "image_url": {"url": f"data:image/png;base64,{DATA}"}}, "[image]"),
    ({"type": "image_url", "image_url": URL}, "[image]"),
    ({"type": "input_image", "image_url": URL, "detail": "auto"}, "[image]"),
    ({"type": "input_audio", "input_audio": {"data": DATA, "format": "wav"}}, "[audio]"),
    (
        {"type": "file",
         "file": {"filename": "a.pdf", "file_data": f"data:application/pdf;base64,{DATA}"}},
        "[file: application/pdf]",
    ),
    ({"type": "file", "file": {"file_id": "file-1"}}, "[file]"),
    ({"type": "input_file", "filename": "a.pdf", "file_data": DATA}, "[file: application/pdf]"),
    ({"type": "input_file", "file_url": URL}, "[file]"),
    # Anthropic
    (
        {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": DATA}},
        "[image]",
    ),
    ({"type": "image", "source": {"type": "url", "url": URL}}, "[image]"),
    (
        {"type": "document", "title": "Report", "citations": {"enabled": True},
         "source": {"type": "base64", "media_type": PDF, "data": DATA}},
        "[file: application/pdf]",
    ),
    # Google
    ({"type": "media", "mime_type": "video/mp4", "data": DATA}, "[video]"),
    ({"type": "media", "mime_type": "audio/ogg", "file_uri": URL}, "[audio]"),
    ({"type": "media", "mime_type": PDF, "data": DATA.encode()}, "[file: application/pdf]"),
    # Bedrock, MCP
    (
        {"type": "document", "document": {"format": "pdf", "name": "a", "source": {"bytes": b"x"}}},
        "[file: application/pdf]",
    ),
    ({"type": "image", "data": DATA, "mimeType": "image/png"}, "[image]"),
    # What names no MIME type gives none away.
    ({"type": "file", "base64": DATA, "mime_type": f"secret of {URL}"}, "[file]"),
    ({"type": "file", "base64": DATA, "mime_type": None}, "[file]"),
]  # fmt: skip
IDS = [f"{block['type']} {at}" for at, (block, _) in enumerate(BLOCKS)]


@pytest.mark.parametrize(("block", "mark"), BLOCKS, ids=IDS)
def test_a_question_that_is_nothing_else(block: Any, mark: str) -> None:
    assert objective_in({"messages": [HumanMessage([block])]}, 1000) == mark
    assert objective_in([{"role": "user", "content": [block]}], 1000) == mark


@pytest.mark.parametrize(("block", "mark"), BLOCKS, ids=IDS)
def test_everywhere_else(block: Any, mark: str) -> None:
    text = {"type": "text", "text": "Look:"}
    trace = trace_from_messages(
        [
            HumanMessage([text, block]),
            AIMessage("", tool_calls=[call("search", "c1", q="a")]),
            ToolMessage([text, block], tool_call_id="c1"),
            AIMessage([text, block]),
        ]
    )
    both = f"Look:\n{mark}"
    assert trace.task.objective == both
    assert [step.content for step in trace.steps] == [None, both, both]
    assert trace.outcome.result_summary == both
    kept = trace.model_dump_json()
    for what in (DATA, DATA[:20], URL, "example.org", "file-1", "a.pdf", "Report"):
        assert what not in kept


@pytest.mark.parametrize(("block", "mark"), BLOCKS, ids=IDS)
def test_outputs_of_tools(block: Any, mark: str) -> None:
    assert as_text([{"type": "text", "text": "Look:"}, block], 1000) == f"Look:\n{mark}"


@pytest.mark.parametrize(("block", "mark"), BLOCKS, ids=IDS)
def test_inside_other_data(block: Any, mark: str) -> None:
    kept = plain({"shots": [block]}, 1000)
    assert DATA not in str(kept)
    # What only refers to something is data like any other: an agent attaches a file by its id.
    if DATA in str(block):
        assert kept == {"shots": [mark]}
        assert as_text(block, 1000) == mark
    elif "bytes" not in str(block):
        assert kept == {"shots": [block]}


def test_a_tool_that_an_agent_calls() -> None:
    @tool
    def screenshot() -> list[dict[str, Any]]:
        """Take one."""
        return [
            {"type": "text", "text": "The screen:"},
            {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{DATA * 99}"}},
        ]

    made = agent(say("", call("screenshot")), say("Done."), tools=(screenshot,))
    inputs = {"messages": [HumanMessage([BLOCKS[0][0]])]}
    trace = run(made, inputs).trace
    assert trace.task.objective == "[image]"
    assert [step.content for step in trace.steps] == [None, "The screen:\n[image]", "Done."]


@pytest.mark.parametrize(
    "entry",
    [
        {"type": "file", "name": "a.txt", "path": "src/a.txt", "url": URL},
        {"type": "file", "name": "a.txt"},
        {"type": "image", "title": "A", "width": 3, "url": URL},
        {"type": "restaurant", "name": "Da Mario"},
        {"type": ["image"], "url": URL},
    ],
)
def test_data_that_have_a_type_are_no_media(entry: Any) -> None:
    shown = as_text([entry, entry], 1000)
    assert shown.startswith("[{")
    assert "[image]" not in shown
    assert as_text(ToolMessage([entry], tool_call_id="c"), 1000).startswith("[{")


def test_the_voice_of_a_model_is_marked_with_its_words() -> None:
    audio = {"id": "audio_1", "data": DATA, "expires_at": 1, "transcript": "It is 42."}
    trace = trace_from_messages([("user", "q"), AIMessage("", additional_kwargs={"audio": audio})])
    assert trace.steps[0].content == trace.outcome.result_summary == "[audio]\nIt is 42."
    assert trace.metadata.success is True
    spoken = AIMessage("", additional_kwargs={"audio": b"RIFF"})
    assert trace_from_messages([("user", "q"), spoken]).outcome.result_summary == "[audio]"


def test_passages_for_the_model_to_quote_are_read() -> None:
    passage = {
        "type": "search_result", "source": URL, "title": "Answers",
        "content": [{"type": "text", "text": "It is 42."}],
    }  # fmt: skip
    assert as_text([passage], 1000) == "Answers\nIt is 42."
