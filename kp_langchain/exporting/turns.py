"""The turns of a run: what the agent said, what it called with that, and what came back.

All conversations are made of these: chats for training, trajectories, and spans. A turn that begins
while a tool call is open is that of a sub-agent, which the tool asks. A trace does not say who
called what, so calls that begin there and end before the tool does are taken for its calls.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from kp_langchain.calibration.tool_calls import calls_of

if TYPE_CHECKING:
    from kp_langchain.schema import ReasoningTrace, TraceStep
    from kp_langchain.usage import ModelCall


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCall:
    """A tool call of a turn.

    Attributes:
        id: Its id, `call_1` for the first one of the run.
        step: The step that calls the tool.
        position: The position of that step.
        output: The step with its output or error; None if the trace lacks it.
        output_position: The position of that step.
        has_failed: Whether it failed, or its output reads like a failure.
    """

    id: str
    step: TraceStep
    position: int
    output: TraceStep | None
    output_position: int | None
    has_failed: bool

    @property
    def name(self) -> str:
        """The name of the tool; may be empty in traces of other writers."""
        return self.step.tool.name if self.step.tool else ""

    @property
    def arguments(self) -> dict[str, Any]:
        """What the tool was given."""
        return self.step.input or {}

    @property
    def result(self) -> str:
        """What it returned, or its error; "" if that is not known."""
        return "" if self.output is None else text_of(self.output)

    @property
    def end(self) -> int:
        """The position at which it is over; its own, if the trace does not say when."""
        return self.position if self.output_position is None else self.output_position

    @property
    def latency_ms(self) -> float | None:
        """How long it took, in milliseconds; None if that is not known."""
        return None if self.output is None else self.output.latency_ms

    @property
    def is_recovered(self) -> bool:
        """Whether it failed, and the run went on."""
        return self.output is not None and self.output.type == "error_recovery"

    @property
    def is_useless(self) -> bool:
        """Whether nothing can be learned from making it: it failed, or has no output."""
        return self.has_failed or self.output is None

    @property
    def mark(self) -> dict[str, Any] | None:
        """What went wrong with it, ready for JSON; None if nothing did."""
        facts: dict[str, Any] = {}
        if self.has_failed:
            facts["failed"] = True
        if self.output is None:
            facts["unanswered"] = True
        if self.step.tries > 1:
            facts["attempts"] = self.step.tries
        if not facts:
            return None
        return {
            "step": self.position,
            "output_step": self.output_position,
            "tool": self.name,
            "call_id": self.id,
            **facts,
        }


@dataclass(slots=True, kw_only=True)
class Turn:
    """A turn of a run.

    Attributes:
        source: `agent`; `environment` for an output of which the trace lacks the call; `error` for
            a failure without a tool, such as that of a model.
        text: What was said.
        position: The position of its first step.
        calls: What the agent called with it, at once.
        caller: The call that asks the sub-agent whose turn it is; None for the run's own agent.
    """

    source: Literal["agent", "environment", "error"]
    text: str
    position: int
    calls: list[ToolCall] = field(default_factory=list)
    caller: ToolCall | None = None

    def call_around(self, position: int) -> ToolCall | None:
        """Return the call in which a position lies; of several, the one that ends last."""
        calls = [call for call in self.calls if call.end > position]
        return max(calls, key=lambda call: call.end, default=None)


def turns_of(trace: ReasoningTrace, model_calls: Sequence[ModelCall] = ()) -> list[Turn]:
    """Return the turns of a trace in their order, those of sub-agents among them.

    A thought and the calls after it are one turn. Calls that were made before any of them returned
    are one turn as well, and so is a call that begins while others of the turn are open.

    Args:
        trace: The trace.
        model_calls: The answers of its models, where they are known: each begins a turn.
    """
    turns: list[Turn] = []
    answers = {call.step for call in model_calls}
    calls, output_ids = _calls_by_step(trace.steps)
    stack: list[Turn] = []  # the agent's turn, and each next one inside an open call of the last
    is_over = False  # whether a result or an error has come since the last turn began
    for position, step in enumerate(trace.steps):
        if id(step) in output_ids:
            is_over = is_over or not answers
            continue
        call = calls.get(id(step))
        end = position if call is None else call.end
        while stack and stack[-1].caller and stack[-1].caller.end < position:
            stack.pop()
        # What outlasts a call is not inside it.
        owner = next((one for one in stack[::-1] if not one.caller or one.caller.end > end), None)
        is_at_once = owner is not None and owner.call_around(position) is not None
        if is_at_once and owner and position in answers:
            is_at_once = owner.call_around(end) is None
        goes_on = owner is not None and not is_over and position not in answers
        if call is None or owner is None or not (is_at_once or goes_on):
            while stack and stack[-1].call_around(end) is None:
                stack.pop()
            caller = stack[-1].call_around(end) if stack else None
            text = "" if call else text_of(step)
            owner = Turn(source=_source(step), text=text, position=position, caller=caller)
            turns.append(owner)
            is_over = owner.source != "agent"
            if not is_over:
                stack.append(owner)
        if call is not None:
            owner.calls.append(call)
    return turns


def marks_of(turns: Iterable[Turn]) -> list[dict[str, Any]]:
    """Return what went wrong in a run: calls that failed, were tried again or got no answer.

    Failures without a tool are among them. Positions count from 0.
    """
    marks: list[dict[str, Any]] = []
    for turn in turns:
        if turn.source == "error":
            marks.append({"step": turn.position, "tool": None, "failed": True})
        marks += [mark for call in turn.calls if (mark := call.mark)]
    return marks


def text_of(step: TraceStep) -> str:
    """Return what a step says, or the short form of it."""
    return step.content or step.output_summary or ""


def _source(step: TraceStep) -> Literal["agent", "environment", "error"]:
    if step.type == "error_recovery":
        return "error"
    return "environment" if step.type == "observation" else "agent"


def _calls_by_step(steps: Sequence[TraceStep]) -> tuple[dict[int, ToolCall], set[int]]:
    """Return the calls by the identity of their steps, and the identities of their outputs."""
    positions = {id(step): position for position, step in enumerate(steps)}
    calls: dict[int, ToolCall] = {}
    output_ids: set[int] = set()
    for one in calls_of(steps):
        if one.call is None:
            continue
        calls[id(one.call)] = ToolCall(
            id=f"call_{len(calls) + 1}",
            step=one.call,
            position=positions[id(one.call)],
            output=one.output,
            output_position=positions.get(id(one.output)),
            has_failed=one.has_failed,
        )
        if one.output is not None:
            output_ids.add(id(one.output))
    return calls, output_ids
