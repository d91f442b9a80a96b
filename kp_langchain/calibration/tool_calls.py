"""The tool calls of a trace, each with its output."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kp_langchain.calibration.wording import reads_like_failure

if TYPE_CHECKING:
    from kp_langchain.schema import TraceStep


@dataclass(frozen=True, slots=True)
class TracedCall:
    """A tool call of a trace with its output, one of the two, or a failure without a tool.

    Attributes:
        call: The step that calls the tool; None if the trace lacks it.
        output: The step with the tool's output or error; None if the trace lacks it.
    """

    call: TraceStep | None
    output: TraceStep | None

    @property
    def is_error(self) -> bool:
        """Whether the trace records it as an error."""
        return self.output is not None and self.output.type == "error_recovery"

    @property
    def has_failed(self) -> bool:
        """Whether it failed, or its output reads like a failure."""
        return self.is_error or (self.output is not None and reads_like_failure(self.output_text))

    @property
    def output_text(self) -> str:
        """What its tool returned, or its error; "" if the trace does not say it."""
        if self.output is None:
            return ""
        whole, short = self.output.content, self.output.output_summary
        return (short if whole is None else whole) or ""

    @property
    def tool_name(self) -> str:
        """The name of its tool; "" if the trace does not say it."""
        named = (step.tool.name for step in (self.call, self.output) if step and step.tool)
        return next(filter(None, named), "")


def calls_of(steps: Iterable[TraceStep]) -> list[TracedCall]:
    """Return the tool calls among steps, in their order, each with its output.

    Calls that ran side by side end in any order. An observation may not name its tool.
    """
    calls: list[TracedCall] = []
    waiting: dict[int, str] = {}  # the names of the tools of calls without output, by position
    for step in steps:
        name = step.tool.name if step.tool else ""
        if step.type == "tool_call":
            waiting[len(calls)] = name
            calls.append(TracedCall(step, None))
        elif step.type != "thought":
            is_nameless = not name and step.type == "observation"
            position = next((at for at in waiting if is_nameless or waiting[at] == name), None)
            if position is None:
                calls.append(TracedCall(None, step))
            else:
                del waiting[position]
                calls[position] = TracedCall(calls[position].call, step)
    return calls


def made_calls(steps: Iterable[TraceStep]) -> list[TracedCall]:
    """Return the tool calls of which the trace has the call itself, as `calls_of` does."""
    return [one for one in calls_of(steps) if one.call is not None]
