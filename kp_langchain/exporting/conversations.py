"""Runs as conversations to train on: OpenAI's chat format, and ShareGPT as LLaMA-Factory reads it.

A thought and the calls after it are one message of the assistant. Each call is answered directly
after that message. Failures without a tool are no part of a conversation.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any, Literal

from kp_langchain.exporting.turns import Turn

if TYPE_CHECKING:
    from kp_langchain.exporting.exported_run import ExportedRun
    from kp_langchain.exporting.turns import ToolCall

FailingSteps = Literal["mask", "drop", "keep"]
"""What becomes of calls that failed, got no answer, or (to be masked) were tried again."""

_NO_NAME = "unknown_tool"
_NAME_CHARS = 64
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
        if turn.source == "error":
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


def _function_name(name: str) -> str:
    """Return the name of a tool as OpenAI's format takes it: 64 letters, digits, _ and -."""
    return _OUTSIDE_NAMES.sub("_", name)[:_NAME_CHARS] or _NO_NAME


def _functions(run: ExportedRun) -> list[dict[str, Any]]:
    """Return the tools that the run could ask for, by the names that its calls have."""
    return [{**one, "name": _function_name(one["name"])} for one in run.functions]


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
    for turn in turns:
        if turn.source == "environment":
            messages.append({"role": "user", "content": turn.text})
            continue
        message: dict[str, Any] = {"role": "assistant"}
        if turn.text.strip():
            message["content"] = turn.text
        if turn.calls:
            message["tool_calls"] = [_openai_call(call) for call in turn.calls]
        if _is_masked(turn, failing):
            message["weight"] = 0
        messages.append(message)
        messages += [
            {"role": "tool", "tool_call_id": call.id, "content": call.result} for call in turn.calls
        ]
    example: dict[str, Any] = {"messages": messages}
    if run.functions:
        example["tools"] = [{"type": "function", "function": one} for one in _functions(run)]
    most_at_once = max(len(turn.calls) for turn in turns)
    if most_at_once == 1:
        example["parallel_tool_calls"] = False
    return example


def _openai_call(call: ToolCall) -> dict[str, Any]:
    arguments = json.dumps(call.arguments, ensure_ascii=False)
    return {
        "id": call.id,
        "type": "function",
        "function": {"name": _function_name(call.name), "arguments": arguments},
    }


# ------------------------------------------------------------------ ShareGPT


def sharegpt_example(run: ExportedRun, failing: FailingSteps = "mask") -> dict[str, Any]:
    """Return a run as a line in ShareGPT's form with tools.

    What people and tools say and what the agent says take turns, so neighbours on one side are
    joined. What is said with a call stands before it in `<think>`.

    Args:
        run: The run.
        failing: As for `openai_example`; a message to be masked has `"train": false`.

    Raises:
        UnwritableError: It ends without an answer.
    """
    parts: list[dict[str, Any]] = [{"from": _HUMAN, "value": run.trace.task.objective}]
    said = ""  # what the agent said without a call since the others spoke
    turns = _turns_to_learn(run, failing)
    for turn in turns:
        if turn.source == "agent" and not turn.calls:
            said = _join(said, turn.text)
            continue
        if turn.source == "environment":
            if said:
                parts.append({"from": _GPT, "value": said})
                said = ""
            if parts[-1]["from"] in (_HUMAN, _OBSERVATION):
                parts[-1]["value"] = _join(parts[-1]["value"], turn.text)
            else:
                parts.append({"from": _OBSERVATION, "value": turn.text})
            continue
        text = _calls_text(turn.calls, _join(said, turn.text))
        request: dict[str, Any] = {"from": _FUNCTION, "value": text}
        if _is_masked(turn, failing):
            request["train"] = False
        results = _BETWEEN_RESULTS.join(call.result for call in turn.calls)
        parts += [request, {"from": _OBSERVATION, "value": results}]
        said = ""
    parts.append({"from": _GPT, "value": said})
    example: dict[str, Any] = {"conversations": parts}
    if run.functions:
        example["tools"] = json.dumps(_functions(run), ensure_ascii=False)
    return example


def _calls_text(calls: list[ToolCall], said: str) -> str:
    values = [{"name": _function_name(call.name), "arguments": call.arguments} for call in calls]
    text = json.dumps(values if len(values) > 1 else values[0], ensure_ascii=False)
    if not said.strip():
        return text
    return f"<think>\n{_THINK_TAG.sub('', said)}\n</think>\n\n{text}"


def _join(before: str, after: str) -> str:
    return "\n\n".join(filter(None, (before, after)))
