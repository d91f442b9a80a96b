"""Traces as examples that can be pasted into a prompt."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from kp_langchain.cli.output import visible
from kp_langchain.printable import one_line

if TYPE_CHECKING:
    from kp_langchain.schema import ReasoningTrace, TraceStep

_TASK_CHARS, _INPUT_CHARS, _OUTPUT_CHARS, _ANSWER_CHARS = 2000, 300, 300, 2000
# After so many in a row that do not fit any more, the room counts as full.
_MOST_TOO_LONG = 20


def examples(traces: Iterable[ReasoningTrace], max_chars: int) -> Iterator[str]:
    """Yield traces as examples, each for a line of its own.

    Args:
        traces: The traces, the best first. One whose example does not fit is left out.
        max_chars: The number of characters of all, line feeds after them included.
    """
    left, number, too_long = max_chars, 1, 0
    for trace in traces:
        example = f"Example {number}\n{example_of(trace)}"
        if len(example) < left:
            yield example
            left, number, too_long = left - len(example) - 1, number + 1, 0
            continue
        too_long += 1
        if too_long == _MOST_TOO_LONG:
            return


def example_of(trace: ReasoningTrace) -> str:
    """Return the task of a run, its calls with their inputs and results, and its answer."""
    lines = [f"Task: {_shortened(trace.task.objective, _TASK_CHARS)}"]
    lines += [line for step in trace.steps if (line := _line_of(step))]
    lines.append(f"Answer: {_shortened(trace.outcome.result_summary, _ANSWER_CHARS)}")
    return "\n".join(lines) + "\n"


def _line_of(step: TraceStep) -> str | None:
    """Return a call, or what came of it, as a line; None for a thought."""
    if step.type == "thought":
        return None
    name = one_line(step.tool.name, _INPUT_CHARS) if step.tool else ""
    if step.type == "tool_call":
        arguments = json.dumps(step.input or {}, ensure_ascii=False)
        return f"Call: {name}({one_line(arguments, _INPUT_CHARS)})"
    output = " ".join((step.content or step.output_summary or "").split())
    word = "Result" if step.type == "observation" else "Error"
    return f"{word}{' of ' if name else ''}{name}: {one_line(output, _OUTPUT_CHARS)}"


def _shortened(text: str, limit_chars: int) -> str:
    """Return text of several lines, as long as it may be at most."""
    text = visible(text.strip())
    return text if len(text) <= limit_chars else f"{text[: limit_chars - 1]}…"
