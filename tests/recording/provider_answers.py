"""What providers answer, as LangChain hands it over, each with the steps to be recorded of it.

The messages have the shape that langchain-openai, langchain-anthropic, langchain-google-genai,
langchain-groq and langchain-mistralai make of their providers' answers, in each of the forms that
a user can choose. A list of chunks is an answer that was streamed.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from langchain.agents import create_agent
from langchain_core.language_models.chat_models import BaseChatModel
from langchain_core.messages import AIMessage, AIMessageChunk
from langchain_core.outputs import ChatGenerationChunk

from kp_langchain import KPCallbackHandler, ScoredTrace
from tests.agents import ASK, TOOLS, ScriptedChatModel, call, handler

Block = dict[str, Any]
Reply = AIMessage | list[AIMessageChunk]

ENCRYPTED = "gAAAAABencryptedForTheProviderAlone" * 50
SIGNATURE = "EqQBCgIYsignatureOfAThought" * 20
PIXELS = "iVBORw0KGgoAAAANSUhEUg" * 400


@dataclass(frozen=True)
class ProviderAnswer:
    """What a model answered, and what is to be recorded.

    Args:
        name: Of the provider and the kind of answer.
        replies: The answers of one run, in order.
        steps: The steps, as `shape` gives them.
        success: Whether the run counts as a success.
        summary: The run's result.
    """

    name: str
    replies: tuple[Reply, ...]
    steps: list[str]
    success: bool = True
    summary: str = "It is 42."


ANSWERS: list[ProviderAnswer] = []


def answer(
    name: str,
    *replies: Reply,
    steps: str = "thought",
    success: bool = True,
    summary: str = "It is 42.",
) -> None:
    """Add an answer; `ran` and `failed` stand for a call with its end."""
    words: list[str] = []
    for step in steps.split(", "):
        kind, _, tool = step.partition(" ")
        end = {"ran": "saw", "failed": "recovered"}.get(kind)
        words += [step] if end is None else [f"call {tool}", f"{end} {tool}"]
    # An answer after a call that failed does not look like a success.
    ends = [one for one in words if one.startswith(("saw", "recovered"))]
    success = success and not "".join(ends[-1:]).startswith("recovered")
    ANSWERS.append(ProviderAnswer(name, replies, words, success, summary))


def ai(content: str | list[Any], **fields: Any) -> AIMessage:
    return AIMessage(content=content, **fields)


def text(words: str, **more: Any) -> Block:
    return {"type": "text", "text": words, **more}


SAID = text("It is 42.", annotations=[], id="msg_1")


# ------------------------------------------------------------------ OpenAI, Responses

REASONED = {
    "type": "reasoning",
    "id": "rs_1",
    "summary": [{"type": "summary_text", "text": "I should look it up."}],
    "encrypted_content": ENCRYPTED,
}
WEB = {
    "type": "web_search_call",
    "id": "ws_1",
    "status": "completed",
    "action": {
        "type": "search",
        "query": "the answer",
        "sources": [{"type": "url", "url": "https://example.org/answer"}],
    },
}
CODE = {
    "type": "code_interpreter_call",
    "id": "ci_1",
    "status": "completed",
    "code": "print(6 * 7)",
    "container_id": "cntr_1",
    "outputs": [{"type": "logs", "logs": "42\n"}],
}
CODE_FAILED = {
    **CODE,
    "id": "ci_0",
    "status": "failed",
    "code": "print(6 / 0)",
    "outputs": [{"type": "logs", "logs": "ZeroDivisionError: division by zero"}],
}
FILES = {
    "type": "file_search_call",
    "id": "fs_1",
    "status": "completed",
    "queries": ["the answer"],
    "results": [
        {"file_id": "file_1", "filename": "guide.pdf", "score": 0.9, "text": "The answer is 42."}
    ],
}
MCP_LISTED = {
    "type": "mcp_list_tools",
    "id": "mcpl_1",
    "server_label": "deepwiki",
    "tools": [{"name": "ask_question", "description": "Asks.", "input_schema": {}}],
}
MCP = {
    "type": "mcp_call",
    "id": "mcp_2",
    "server_label": "deepwiki",
    "name": "ask_question",
    "arguments": '{"question": "which answer?"}',
    "output": "42",
}
MCP_FAILED = {
    **{key: value for key, value in MCP.items() if key != "output"},
    "id": "mcp_1",
    "error": {
        "type": "mcp_tool_execution_error",
        "content": [{"type": "text", "text": "no such repository"}],
    },
}
IMAGE = {
    "type": "image_generation_call",
    "id": "ig_1",
    "status": "completed",
    "result": PIXELS,
    "revised_prompt": "the number 42, in oil",
    "output_format": "png",
}
COMPUTER = {
    "type": "computer_call",
    "id": "cu_1",
    "call_id": "call_1",
    "status": "completed",
    "action": {"type": "click", "button": "left", "x": 1, "y": 2},
    "pending_safety_checks": [],
}
SHELL = {
    "type": "local_shell_call",
    "id": "lsh_1",
    "call_id": "call_2",
    "status": "completed",
    "action": {"type": "exec", "command": ["ls"], "env": {}},
}
APPROVAL = {
    "type": "mcp_approval_request",
    "id": "mcpr_1",
    "server_label": "deepwiki",
    "name": "ask_question",
    "arguments": '{"question": "which answer?"}',
}


def server_call(name: str, call_id: str, args: Any, **extras: Any) -> Block:
    block = {"type": "server_tool_call", "name": name, "id": call_id, "args": args}
    return {**block, "extras": extras} if extras else block


def server_result(call_id: str, output: Any, status: str = "success", **extras: Any) -> Block:
    block = {"type": "server_tool_result", "tool_call_id": call_id, "status": status}
    if output is not None:
        block["output"] = output
    return {**block, "extras": extras} if extras else block


V1 = {"output_version": "v1", "model_provider": "openai"}

answer(
    "OpenAI web search, responses/v1",
    ai([REASONED, WEB, SAID]),
    steps="thought, ran web_search, thought",
)
answer(
    "OpenAI web search, v1",
    ai(
        [
            {"type": "reasoning", "id": "rs_1", "reasoning": "I should look it up."},
            server_call("web_search", "ws_1", {"type": "search", "query": "the answer"}),
            server_result("ws_1", {"sources": [{"type": "url", "url": "https://example.org"}]}),
            SAID,
        ],
        response_metadata=V1,
    ),
    steps="thought, ran web_search, thought",
)
answer(
    "OpenAI code interpreter between two texts",
    ai([text("I compute."), CODE, SAID]),
    steps="thought, ran code_interpreter, thought",
)
answer(
    "OpenAI code interpreter fails, then works",
    ai([CODE_FAILED, CODE, SAID]),
    steps="failed code_interpreter, ran code_interpreter, thought",
)
answer(
    "OpenAI code interpreter fails, v1",
    ai(
        [
            server_call("code_interpreter", "ci_0", {"code": "print(6 / 0)"}, container_id="c"),
            server_result("ci_0", [{"type": "logs", "logs": "ZeroDivisionError"}], "error"),
            SAID,
        ],
        response_metadata=V1,
    ),
    steps="failed code_interpreter, thought",
)
answer(
    "OpenAI code interpreter fails, nothing follows",
    ai([text("I compute."), CODE_FAILED]),
    steps="thought, call code_interpreter, saw code_interpreter",
    success=False,
    summary="I compute.",
)
answer("OpenAI file search", ai([FILES, SAID]), steps="ran file_search, thought")
answer(
    "OpenAI MCP, one call fails",
    ai([MCP_LISTED, MCP_FAILED, MCP, SAID]),
    steps="failed ask_question, ran ask_question, thought",
)
answer(
    "OpenAI MCP, v1",
    ai(
        [
            server_call("remote_mcp", "m1", {}, tool_name="ask_question", server_label="deepwiki"),
            server_result("m1", None, "error", error=MCP_FAILED["error"]),
            server_call("remote_mcp", "m2", {}, tool_name="ask_question", server_label="deepwiki"),
            server_result("m2", "42"),
            SAID,
        ],
        response_metadata=V1,
    ),
    steps="failed ask_question, ran ask_question, thought",
)
answer(
    "OpenAI MCP asks for approval",
    ai([APPROVAL]),
    steps="call ask_question",
    success=False,
    summary="",
)
answer("OpenAI image generation", ai([IMAGE]), steps="ran image_generation", summary="[image]")
answer(
    "OpenAI computer use and local shell",
    ai([text("I click."), COMPUTER, SHELL]),
    steps="thought, call computer, call local_shell",
    summary="I click.",
)
answer(
    "OpenAI hosted shell, which gives its output in a block of its own",
    ai(
        [
            {**SHELL, "type": "shell_call"},
            {
                "type": "shell_call_output",
                "id": "sho_1",
                "call_id": "call_2",
                "output": [
                    {"stdout": "", "stderr": "no", "outcome": {"type": "exit", "exit_code": 2}}
                ],
            },
            SAID,
        ]
    ),
    steps="failed shell, thought",
)
answer(
    "OpenAI, a kind of call that nobody knows yet",
    ai([{"type": "weather_report_call", "id": "wr_1", "status": "completed", "city": "X"}, SAID]),
    steps="ran weather_report, thought",
)
answer(
    "OpenAI web search and a tool of the caller's",
    ai(
        [
            WEB,
            {"type": "function_call", "id": "fc_1", "call_id": "c1", "name": "search",
             "arguments": '{"q": "a"}'},
        ],
        tool_calls=[call("search", "c1", q="a")],
    ),
    ai([SAID]),
    steps="ran web_search, ran search, thought"
)  # fmt: skip
answer(
    "OpenAI custom tool of the caller's",
    ai(
        [
            {"type": "custom_tool_call", "id": "ctc_1", "call_id": "c1", "name": "search",
             "input": "a"},
        ],
        tool_calls=[call("search", "c1", q="a")],
    ),
    ai([SAID]),
    steps="ran search, thought"
)  # fmt: skip
answer(
    "OpenAI web search, streamed",
    [
        AIMessageChunk([{**WEB, "index": 0}]),
        AIMessageChunk([{"type": "text", "text": "It is ", "index": 1}]),
        AIMessageChunk([{"type": "text", "text": "42.", "index": 1}], chunk_position="last"),
    ],
    steps="ran web_search, thought",
)
for _form, _refused in {
    "Chat Completions": ai("", additional_kwargs={"refusal": "I can't help with that."}),
    "responses/v1": ai([{"type": "refusal", "refusal": "I can't help with that.", "id": "m"}]),
}.items():
    answer(f"OpenAI refusal, {_form}", _refused, success=False, summary="I can't help with that.")
for _metadata in (
    {"finish_reason": "length"},
    {"finish_reason": "content_filter"},
    {"status": "incomplete", "incomplete_details": {"reason": "max_output_tokens"}},
):
    answer(
        f"OpenAI {' '.join(map(str, _metadata.values()))}",
        ai("It is", response_metadata=_metadata),
        success=False,
        summary="It is",
    )


# ------------------------------------------------------------------ Anthropic


def used(name: str, **given: Any) -> Block:
    return {"type": "server_tool_use", "id": f"srvtoolu_{name}", "name": name, "input": given}


def came_back(name: str, content: Any, kind: str = "") -> Block:
    return {
        "type": f"{kind or name}_tool_result",
        "tool_use_id": f"srvtoolu_{name}",
        "content": content,
    }


CLAUDE_FOUND = came_back(
    "web_search",
    [
        {
            "type": "web_search_result",
            "title": "Answers",
            "url": "https://example.org/answers",
            "encrypted_content": ENCRYPTED,
            "page_age": "2 days ago",
        }
    ],
)
CITED = text(
    "It is 42.",
    citations=[
        {
            "type": "web_search_result_location",
            "url": "https://example.org/answers",
            "title": "Answers",
            "encrypted_index": ENCRYPTED,
            "cited_text": "42",
        }
    ],
)

answer(
    "Anthropic web search",
    ai([text("I look it up."), used("web_search", query="the answer"), CLAUDE_FOUND, CITED]),
    steps="thought, ran web_search, thought",
)
answer(
    "Anthropic web search refuses",
    ai(
        [
            used("web_search", query="the answer"),
            came_back(
                "web_search",
                {"type": "web_search_tool_result_error", "error_code": "max_uses_exceeded"},
            ),
            CITED,
        ]
    ),
    steps="failed web_search, thought",
)
answer(
    "Anthropic web search, streamed",
    [
        AIMessageChunk([{"type": "text", "text": "I ", "index": 0}]),
        AIMessageChunk([{"type": "text", "text": "look.", "index": 0}]),
        AIMessageChunk([{**used("web_search"), "index": 1}]),
        *(
            AIMessageChunk([{"type": "input_json_delta", "partial_json": piece, "index": 1}])
            for piece in ("", '{"query": "the ', 'answer"}')
        ),
        AIMessageChunk([{**CLAUDE_FOUND, "index": 2}]),
        AIMessageChunk([{"type": "text", "text": "It is 42.", "index": 3}]),
        AIMessageChunk([], response_metadata={"stop_reason": "end_turn"}, chunk_position="last"),
    ],
    steps="thought, ran web_search, thought",
)
answer(
    "Anthropic web search, streamed, v1",
    [
        AIMessageChunk(
            [
                {
                    "type": "server_tool_call_chunk",
                    "name": "web_search",
                    "args": "",
                    "id": "s1",
                    "index": 0,
                }
            ],
            response_metadata={"output_version": "v1"},
        ),
        *(
            AIMessageChunk([{"type": "server_tool_call_chunk", "args": piece, "index": 0}])
            for piece in ('{"query": "the ', 'answer"}')
        ),
        AIMessageChunk([{**server_result("s1", CLAUDE_FOUND["content"]), "index": 1}]),
        AIMessageChunk([{"type": "text", "text": "It is 42.", "index": 2}], chunk_position="last"),
    ],
    steps="ran web_search, thought",
)
answer(
    "Anthropic fetches a page",
    ai(
        [
            used("web_fetch", url="https://example.org/answers"),
            came_back(
                "web_fetch",
                {
                    "type": "web_fetch_result",
                    "url": "https://example.org/answers",
                    "content": {
                        "type": "document",
                        "title": "Answers",
                        "source": {
                            "type": "text",
                            "media_type": "text/plain",
                            "data": "The answer is 42.",
                        },
                    },
                },
            ),
            SAID,
        ]
    ),
    steps="ran web_fetch, thought",
)
answer(
    "Anthropic code execution, the code fails",
    ai(
        [
            used("code_execution", code="6 / 0"),
            came_back(
                "code_execution",
                {
                    "type": "code_execution_result",
                    "stdout": "",
                    "stderr": "ZeroDivisionError",
                    "return_code": 1,
                    "content": [],
                },
            ),
            SAID,
        ]
    ),
    steps="failed code_execution, thought",
)
answer(
    "Anthropic bash, which works and then cannot be reached",
    ai(
        [
            used("bash_code_execution", command="echo 42"),
            came_back(
                "bash_code_execution",
                {
                    "type": "bash_code_execution_result",
                    "stdout": "42\n",
                    "stderr": "",
                    "return_code": 0,
                    "content": [{"type": "bash_code_execution_output", "file_id": "file_1"}],
                },
            ),
            used("bash_code_execution", command="echo 43"),
            came_back(
                "bash_code_execution",
                {"type": "bash_code_execution_tool_result_error", "error_code": "unavailable"},
            ),
            SAID,
        ]
    ),
    steps="ran bash_code_execution, failed bash_code_execution, thought",
)
answer(
    "Anthropic MCP fails",
    ai(
        [
            {
                "type": "mcp_tool_use",
                "id": "mcptoolu_1",
                "name": "ask_question",
                "server_name": "deepwiki",
                "input": {"question": "which answer?"},
            },
            {
                "type": "mcp_tool_result",
                "tool_use_id": "mcptoolu_1",
                "is_error": True,
                "content": [{"type": "text", "text": "no such repository"}],
            },
            SAID,
        ]
    ),
    steps="failed ask_question, thought",
)
answer(
    "Anthropic pauses between a call and its result",
    ai(
        [text("I look."), used("web_search", query="a"), {"type": "tool_use", "id": "c1",
         "name": "search", "input": {"q": "a"}}],
        tool_calls=[call("search", "c1", q="a")],
        response_metadata={"stop_reason": "pause_turn"},
    ),
    ai([CLAUDE_FOUND, SAID]),
    steps="thought, call web_search, ran search, saw web_search, thought"
)  # fmt: skip
for _reason in ("refusal", "max_tokens", "model_context_window_exceeded"):
    answer(
        f"Anthropic {_reason}",
        ai("It is", response_metadata={"stop_reason": _reason}),
        success=False,
        summary="It is",
    )


# ------------------------------------------------------------------ Google

GROUNDING = {
    "web_search_queries": ["the answer"],
    "grounding_chunks": [
        {"web": {"uri": "https://example.org/a", "title": "example.org", "domain": None}}
    ],
    "grounding_supports": [],
    "search_entry_point": {"rendered_content": "<div>widget</div>", "sdk_blob": None},
}


def python(code: str, outcome: Any, output: str) -> list[Block]:
    return [
        {"type": "executable_code", "executable_code": code, "language": "PYTHON", "id": "e1"},
        {
            "type": "code_execution_result",
            "code_execution_result": output,
            "outcome": outcome,
            "tool_call_id": "",
        },
    ]


answer(
    "Google Search grounding",
    ai("It is 42.", response_metadata={"grounding_metadata": GROUNDING, "finish_reason": "STOP"}),
    steps="ran google_search, thought",
)
answer(
    "Google Search offered, not used",
    ai(
        "It is 42.",
        response_metadata={
            "grounding_metadata": {"web_search_queries": [], "grounding_chunks": []}
        },
    ),
)
answer(
    "Google code execution",
    ai(["I compute.", *python("print(6 * 7)", 1, "42\n"), "It is 42."]),
    steps="thought, ran code_interpreter, thought",
)
answer(
    "Google code execution fails",
    ai([*python("6 / 0", "OUTCOME_FAILED", "ZeroDivisionError"), "It is 42."]),
    steps="failed code_interpreter, thought",
)
answer(
    "Google code execution fails, v1",
    ai(
        [
            server_call("code_interpreter", "e1", {"code": "6 / 0", "language": "PYTHON"}),
            server_result("", "ZeroDivisionError", "error", block_type="code_execution_result"),
            SAID,
        ],
        response_metadata={"output_version": "v1"},
    ),
    steps="failed code_interpreter, thought",
)
answer(
    "Google thought with a signature",
    ai([{"type": "thinking", "thinking": "Hm.", "signature": SIGNATURE}, SAID]),
)
for _reason in ("SAFETY", "MAX_TOKENS", "STOPMAX_TOKENS", "RECITATION"):
    answer(
        f"Google {_reason}",
        ai("It is", response_metadata={"finish_reason": _reason}),
        success=False,
        summary="It is",
    )


# ------------------------------------------------------------------ others

answer(
    "Mistral thinking",
    ai([{"type": "thinking", "thinking": [{"type": "text", "text": "Hm."}]}, SAID]),
)
answer(
    "Thoughts between tags",
    ai("<think>Is it 42?</think>\n\nIt is 42."),
)
answer("Thoughts between tags that never end", ai("<think>Is it 42? Or"), success=False, summary="")


# ------------------------------------------------------------------ running them


class Streamed(ScriptedChatModel):
    """A scripted model that streams the chunks it is given."""

    def _stream(self, *args: Any, **kwargs: Any) -> Iterator[ChatGenerationChunk]:
        for chunk in self.answers.popleft():
            yield ChatGenerationChunk(message=chunk)


def model_for(one: ProviderAnswer) -> BaseChatModel:
    replies: Any = [
        [chunk.model_copy(deep=True) for chunk in reply]
        if isinstance(reply, list)
        else reply.model_copy(deep=True)
        for reply in one.replies
    ]
    return (Streamed if is_streamed(one) else ScriptedChatModel)(replies)


def is_streamed(one: ProviderAnswer) -> bool:
    return isinstance(one.replies[0], list)


def play(one: ProviderAnswer, watching: KPCallbackHandler) -> None:
    """Run an agent that gets these answers."""
    agent = create_agent(model_for(one), list(TOOLS))
    if is_streamed(one):
        list(agent.stream(ASK, {"callbacks": [watching]}, stream_mode="messages"))
    else:
        agent.invoke(ASK, {"callbacks": [watching]})


def record(one: ProviderAnswer, **options: Any) -> ScoredTrace:
    """Run an agent that gets these answers; return what was recorded."""
    scored: list[ScoredTrace] = []
    watching = handler(on_scored=scored.append, **options)
    play(one, watching)
    assert watching.flush(120)
    assert watching.stats()["callback_errors"] == 0
    return scored[0]
