"""Runs as conversations to train on: OpenAI's chat format, and ShareGPT as LLaMA-Factory reads it.

A thought and the calls after it are one message of the assistant. Each call is answered directly
after that message. Failures without a tool and the turns of sub-agents are no part of it.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Literal

from kp_langchain.exporting.turns import Turn

if TYPE_CHECKING:
    from kp_langchain.exporting.exported_run import ExportedRun
    from kp_langchain.exporting.turns import ToolCall

FailingSteps = Literal["mask", "drop", "keep"]
"""What becomes of calls that failed, got no answer, or (to be masked) were tried again."""

_NO_NAME = "unknown_tool"
_NAME_CHARS, _HASH_CHARS = 64, 8
_OUTSIDE_NAMES = re.compile(r"[^a-zA-Z0-9_-]")
_BETWEEN_RESULTS = "\n</tool_response>\n<tool_response>\n"  # what LLaMA-Factory joins them with
_THINK_TAG = re.compile("</?think>")
_HUMAN, _OBSERVATION, _GPT, _FUNCTION = "human", "observation", "gpt", "function_call"


class UnwritableError(ValueError):
    """A run has no form in a format; the message says why."""


def _turns_to_learn(run: ExportedRun, failing: FailingSteps) -> list[Turn]:
    """Return the turns of a conversation; it ends with an answer of the agent.

    Raises:
        UnwritableError: The run ends without an answer.
    """
    turns: list[Turn] = []
    for turn in run.turns:
        if turn.source == "error" or turn.caller is not None:
            continue
        calls = turn.calls
        if failing == "drop":
            calls = [call for call in calls if not call.is_useless]
            if turn.calls and not calls:  # what was said with it only announced it
                continue
        if turn.text.strip() or calls:
            turn.calls = calls
            turns.append(turn)
    if not turns or turns[-1].calls or turns[-1].source != "agent":
        answer = run.trace.outcome.result_summary
        if not answer.strip():
            raise UnwritableError("without an answer at the end")
        turns.append(Turn(source="agent", text=answer, position=len(run.trace.steps)))
    return turns


def _is_masked(turn: Turn, failing: FailingSteps) -> bool:
    return failing == "mask" and any(call.mark for call in turn.calls)


def function_names(names: Iterable[str]) -> dict[str, str]:
    """Return the names of tools as OpenAI's format takes them: 64 letters, digits, _ and -.

    Where that makes two of them one, those that are changed end in a hash.
    """
    short = {name: _OUTSIDE_NAMES.sub("_", name)[:_NAME_CHARS] or _NO_NAME for name in names}
    uses = Counter(short.values())
    for name, text in short.items():
        if uses[text] > 1 and name != text:
            digest = sha256(name.encode(errors="replace")).hexdigest()[:_HASH_CHARS]
            short[name] = f"{text[: _NAME_CHARS - _HASH_CHARS - 1]}_{digest}"
    return short


def _names(run: ExportedRun, turns: Iterable[Turn]) -> dict[str, str]:
    """Return the names of a run's tools and calls in a conversation, by those in the trace."""
    of_calls = [call.name for turn in turns for call in turn.calls]
    return function_names([*(one["name"] for one in run.functions), *of_calls])


def _functions(run: ExportedRun, names: dict[str, str]) -> list[dict[str, Any]]:
    return [{**one, "name": names[one["name"]]} for one in run.functions]


# ------------------------------------------------------------------ OpenAI


def openai_example(run: ExportedRun, failing: FailingSteps = "mask") -> dict[str, Any]:
    """Return a run as a line of OpenAI's format for fine-tuning.

    Args:
        run: The run.
        failing: What becomes of failing calls: `mask` gives their messages the weight 0, `drop`
            leaves them out with their results, `keep` changes nothing.

    Raises:
        UnwritableError: It ends without an answer.
    """
    messages: list[dict[str, Any]] = [{"role": "user", "content": run.trace.task.objective}]
    turns = _turns_to_learn(run, failing)
    names = _names(run, turns)
    for turn in turns:
        if turn.source == "environment":
            messages.append({"role": "user", "content": turn.text})
            continue
        message: dict[str, Any] = {"role": "assistant"}
        if turn.text.strip():
            message["content"] = turn.text
        if turn.calls:
            message["tool_calls"] = [_openai_call(call, names) for call in turn.calls]
        if _is_masked(turn, failing):
            message["weight"] = 0
        messages.append(message)
        messages += [
            {"role": "tool", "tool_call_id": call.id, "content": call.result} for call in turn.calls
        ]
    example: dict[str, Any] = {"messages": messages}
    if run.functions:
        example["tools"] = [{"type": "function", "function": one} for one in _functions(run, names)]
    return example


def _openai_call(call: ToolCall, names: dict[str, str]) -> dict[str, Any]:
    arguments = json.dumps(call.arguments, ensure_ascii=False)
    return {
        "id": call.id,
        "type": "function",
        "function": {"name": names[call.name], "arguments": arguments},
    }


# ------------------------------------------------------------------ ShareGPT


def sharegpt_example(run: ExportedRun, failing: FailingSteps = "drop") -> dict[str, Any]:
    """Return a run as a line in ShareGPT's form with tools.

    What people and tools say and what the agent says take turns, so neighbours on one side are
    joined. What is said with a call stands before it in `<think>`.

    Args:
        run: The run.
        failing: As for `openai_example`; a message to be masked has `"train": false`, which
            LLaMA-Factory itself does not read.

    Raises:
        UnwritableError: It ends without an answer.
    """
    parts: list[dict[str, Any]] = [{"from": _HUMAN, "value": run.trace.task.objective}]
    text = ""  # of the agent, since the others spoke
    turns = _turns_to_learn(run, failing)
    names = _names(run, turns)
    for turn in turns:
        if turn.source == "agent" and not turn.calls:
            text = _join(text, turn.text)
            continue
        if turn.source == "environment":
            if text:
                parts.append({"from": _GPT, "value": text})
                text = ""
            if parts[-1]["from"] in (_HUMAN, _OBSERVATION):
                parts[-1]["value"] = _join(parts[-1]["value"], turn.text)
            else:
                parts.append({"from": _OBSERVATION, "value": turn.text})
            continue
        value = _calls_text(turn.calls, names, _join(text, turn.text))
        request: dict[str, Any] = {"from": _FUNCTION, "value": value}
        if _is_masked(turn, failing):
            request["train"] = False
        results = _BETWEEN_RESULTS.join(call.result for call in turn.calls)
        parts += [request, {"from": _OBSERVATION, "value": results}]
        text = ""
    parts.append({"from": _GPT, "value": text})
    example: dict[str, Any] = {"conversations": parts}
    if run.functions:
        example["tools"] = json.dumps(_functions(run, names), ensure_ascii=False)
    return example


def _calls_text(calls: list[ToolCall], names: dict[str, str], thought: str) -> str:
    values = [{"name": names[call.name], "arguments": call.arguments} for call in calls]
    text = json.dumps(values if len(values) > 1 else values[0], ensure_ascii=False)
    if not thought.strip():
        return text
    return f"<think>\n{_THINK_TAG.sub('', thought)}\n</think>\n\n{text}"


def _join(before: str, after: str) -> str:
    return "\n\n".join(filter(None, (before, after)))
