"""The tool calls of any trace, and how each of them ended."""

from __future__ import annotations

import builtins
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kp_langchain.calibration.failed_outputs import reads_like_failure

if TYPE_CHECKING:
    from kp_langchain.schema import ReasoningTrace

_ERROR_NAME = re.compile(r"\b[A-Z][A-Za-z]{2,40}\b", re.ASCII)
_ERROR_NAMES = frozenset(
    name
    for name, value in vars(builtins).items()
    if isinstance(value, type) and issubclass(value, Exception)
) | {"HTTPError", "HTTPStatusError", "JSONDecodeError", "ToolException", "ValidationError"}
_ERROR_CHARS = 200
_READ_STEPS = 1000  # at each end of a trace


@dataclass(frozen=True, slots=True)
class EndedCall:
    """A tool call, and how it ended.

    Attributes:
        number: Its position among the calls of the run, from 1.
        name: The name of the tool; may be empty.
        input: The input of the tool. In a trace that was not validated, it may be anything.
        ending: `ok`, `error` or `no result`, with the name of a known exception, and with the
            failed call before that it made good. It holds no text of the run.
        output: What the tool returned, or its error; None if there is none.
    """

    number: int
    name: str
    input: Any
    ending: str
    output: Any = None


def ended_calls(trace: ReasoningTrace) -> list[EndedCall]:
    """Return the calls of a trace in order; of a very long one, those at both ends.

    The trace may lack anything, even what its class demands.
    """
    steps = getattr(trace, "steps", None)
    if not isinstance(steps, list):
        return []
    if len(steps) <= 2 * _READ_STEPS:
        return list(_paired(steps, 0))
    middle = steps[_READ_STEPS:-_READ_STEPS]
    head = list(_paired(steps[:_READ_STEPS], 0))
    before = len(head) + sum(getattr(step, "type", None) == "tool_call" for step in middle)
    return head + list(_paired(steps[-_READ_STEPS:], before))


def _paired(steps: list[Any], before: int) -> Iterator[EndedCall]:
    """Yield the calls among steps, numbered from `before` + 1, each with what came of it."""
    calls: list[Any] = []
    outputs: dict[int, Any] = {}  # by position of the call
    waiting: dict[int, Any] = {}  # the tools of calls without output, by position
    for step in steps:
        kind, name = getattr(step, "type", None), _tool_name(step)
        if kind == "tool_call":
            waiting[len(calls)] = name
            calls.append(step)
        elif kind in ("observation", "error_recovery"):
            # Calls that ran side by side end in any order. An observation may not name its tool.
            position = next((at for at in waiting if name in ("", waiting[at])), None)
            if position is not None:
                del waiting[position]
                outputs[position] = step
    failed: dict[str, int] = {}  # the numbers of the failed calls, by tool
    for position, call in enumerate(calls):
        number, name = before + position + 1, _tool_name(call)
        output = outputs.get(position)
        content = _content(output)
        ending = _ending(call, output, content)
        if ending.startswith("error"):
            failed[name] = number
        elif output is not None and name in failed:
            ending += f", after the error of {failed.pop(name)}"
        yield EndedCall(number, name, getattr(call, "input", None), ending, content)


def _ending(call: Any, output: Any, content: Any) -> str:
    if output is None:
        return "no result"
    text = content if isinstance(content, str) else ""
    words = _ERROR_NAME.findall(text[:_ERROR_CHARS])
    name = next((word for word in words if word in _ERROR_NAMES), "")
    begins_with_name = bool(name) and text.startswith(f"{name}:")
    ending = "ok"
    if output.type == "error_recovery" or begins_with_name or reads_like_failure(text):
        ending = f"error ({name})" if name else "error"
    tries = getattr(call, "tries", 1)
    return f"{ending}, {tries} attempts" if type(tries) is int and tries > 1 else ending


def _tool_name(step: Any) -> str:
    name = getattr(getattr(step, "tool", None), "name", "")
    return name if isinstance(name, str) else ""


def _content(step: Any) -> Any:
    content = getattr(step, "content", None)
    return getattr(step, "output_summary", None) if content is None else content
