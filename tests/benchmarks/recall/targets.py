"""A recorded run as a language model reads it: what the agent did, and what it knew by then."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tests.benchmarks.recall.surprise import Part

MOST_CALLS = 12
_RESULT_CHARS = 200
_USER_CHARS = 600


def parts_of(messages: Sequence[Mapping[str, Any]]) -> list[Part]:
    """Return a run as parts, of which the tool calls are the actions.

    Left out are the system's message and what the agent wrote beside its calls, which often states
    the next one. Results of tools and messages of users are cut.

    Args:
        messages: Its messages in OpenAI's form.
    """
    found: list[Part] = []
    calls = 0
    for part in _parts(messages):
        calls += part.is_action
        if calls > MOST_CALLS:
            break
        found.append(part)
    return found


def _parts(messages: Sequence[Mapping[str, Any]]) -> Iterator[Part]:
    said = ""
    for message in messages:
        role, content = message["role"], message.get("content") or ""
        if role == "user" and content != said:
            yield Part(f"{'User' if said else 'Task'}: {_cut(content, _USER_CHARS)}\n")
            said = content
        elif role == "tool":
            yield Part(f"Result: {_cut(content, _RESULT_CHARS)}\n")
        elif role == "assistant":
            for call in message.get("tool_calls") or ():
                yield Part("Call: ")
                yield Part(_call(call["function"]), is_action=True)
                yield Part("\n")


def _call(function: Mapping[str, Any]) -> str:
    arguments = function["arguments"]
    if not isinstance(arguments, str):
        arguments = json.dumps(arguments, ensure_ascii=False)
    return f"{function['name']}({arguments})"


def _cut(text: Any, most: int) -> str:
    written = text if isinstance(text, str) else json.dumps(text, ensure_ascii=False)
    line = " ".join(written.split())
    return line if len(line) <= most else line[: most - 2] + " …"
