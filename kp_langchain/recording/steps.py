"""The steps of a run, from the timeline of its calls, and what they show of its end.

A model's answer is a thought and stands where the model was asked. A tool or retriever is a
`tool_call` where it starts and an `observation` where it ends. A failure is an `error_recovery` if
the run did something afterwards, else an `observation`, because nothing recovered. The attempts of
one call are one step with their number.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

from kp_langchain.calibration.wording import output_failed
from kp_langchain.recording.calls import Call, Mark, Timeline

Step = dict[str, Any]
"""A step in wire form, before redaction."""

# What the frameworks answer in the agent's place when its steps run out.
_OUT_OF_STEPS = re.compile(
    r"Agent stopped due to (?:iteration limit or time limit|max iterations)\.$"
    r"|Sorry, need more steps to process this request\.$"
    r"|Model call limits exceeded: |(?:Tool|'[^']*' tool) call limit reached: "
)


@dataclass
class StepList:
    """The steps of one run, and what they show of its end.

    Attributes:
        steps: The steps in wire form, before redaction, numbered from 0.
        unresolved_error: Whether the run did nothing after its last error or a human's rejection.
        last_call_failed: Whether all tool calls failed that the model asked for last: an answer
            after that seldom is right.
        is_incomplete: Whether the model's last answer was refused, withheld or cut off, or waits
            for an approval, and nothing followed.
        last_thought: What the model said last.
        ends_on_action: Whether the last call was a tool call, neither rejected nor cancelled.
        model_calls: The answers of models, each with the number of steps before it.
    """

    steps: list[Step] = field(default_factory=list)
    unresolved_error: bool = False
    last_call_failed: bool = False
    is_incomplete: bool = False
    last_thought: str = ""
    ends_on_action: bool = False
    model_calls: list[tuple[int, Call]] = field(default_factory=list)

    def ends_well(self, answer: str) -> bool:
        """Return whether no step limit wrote the answer, and it was neither refused nor cut off."""
        return not (self.is_incomplete or _OUT_OF_STEPS.match(answer.strip()))

    def looks_successful(self, answer: str, *, ended_well: bool, is_checked: bool = False) -> bool:
        """Return whether the run counts as a success if nobody judged it.

        Args:
            answer: The final answer. A run that ends on an action needs none: an agent that buys,
                sends or submits something is done with that.
            ended_well: No error ended the run, and `ends_well`.
            is_checked: The answer is a structure that was checked after the last tool call.
        """
        complete = bool(answer.strip()) or self.ends_on_action
        failed = self.unresolved_error or (self.last_call_failed and not is_checked)
        return ended_well and complete and not failed


def build_steps(timeline: Timeline, *, fatal: str, answer: str) -> StepList:
    """Turn a run's timeline into steps.

    Args:
        timeline: Starts, ends and errors of calls in the order in which they came.
        fatal: The error that ended the run; "" if none did. Nothing recovers from it, although
            calls that ran beside it may have gone on.
        answer: The run's answer, for a run that shows no other step.
    """
    builder = _Builder(fatal)
    marks = _marks_in_order(timeline)
    for at, mark, call in marks:
        builder.add(at, mark, call)
    step_list = builder.step_list
    models = [call for _, _, call in marks if call.kind == "model"]
    if not step_list.steps and models:
        builder.add_step("thought", content=answer)
    builder.close_failures(max((at for at, mark, _ in marks if mark == "start"), default=-1))
    answers = [call for call in models if answer.strip() and answer in call.text]
    if answers:  # a log, a title or the like may follow the answer
        step_list.is_incomplete = answers[-1].is_incomplete
    last = builder.last_call
    if last is not None and last.kind == "tool":
        step_list.ends_on_action = not (last.is_rejected or last.is_cancelled)
        step_list.unresolved_error = step_list.unresolved_error or last.is_rejected
    failed = [
        output_failed(step["type"], step.get("tool"), step["content"]) for step in builder.last_ends
    ]
    step_list.last_call_failed = bool(failed) and all(failed)
    return step_list


def _marks_in_order(timeline: Timeline) -> list[tuple[int, Mark, Call]]:
    """Return the marks that leave steps, with their positions in the timeline.

    A call in which the run paused is made again when it is resumed. It stands where it was first
    made, before what had happened inside it.
    """
    marks: list[tuple[int, Mark, Call]] = []
    repeated_at: dict[str, int] = {}  # positions in `marks` of calls that are to be made again
    for at, (mark, call) in enumerate(timeline):
        call_id, position = call.tool_call_id or "", len(marks)
        if mark == "start":
            position = repeated_at.pop(call_id, position)
            if call.is_void and call_id:
                repeated_at[call_id] = position
        marks[position : position + 1] = [(at, mark, call)]
    return [(at, mark, call) for at, mark, call in marks if not call.is_void]


@dataclass
class _Failure:
    """The failed attempts of one call.

    Attributes:
        step: Their step.
        position: The last attempt's position in the timeline.
    """

    step: Step
    position: int


class _Builder:
    """Builds the steps of one run, one mark of its timeline after another.

    Args:
        fatal: The error that ended the run; "" if none did.
    """

    def __init__(self, fatal: str) -> None:
        self.step_list = StepList()
        self.last_call: Call | None = None
        self.last_ends: list[Step] = []  # of the tool calls that the model asked for last
        self._has_asked_anew = False
        self._fatal = fatal
        self._tool_calls: dict[object, Step] = {}  # by the calls' keys
        self._failing: dict[object, _Failure] = {}  # calls that may be tried again, by their keys
        self._failures: list[_Failure] = []

    def add(self, at: int, mark: Mark, call: Call) -> None:
        """Add the mark at position `at` of the timeline."""
        if call.kind == "chain":
            if mark == "error":
                self._add_failure(call, at)
            return  # a start only says that the run continued
        self.last_call = call
        if call.is_incomplete or call.kind == "model" or mark == "end":
            # A tool that only starts does not make up for an answer that was cut off.
            self.step_list.is_incomplete = call.is_incomplete
        if call.kind == "model":
            self._add_model(call, at)
        elif mark == "start":
            self._add_tool_call(call)
        else:
            self._add_tool_end(call, at)

    def _add_model(self, call: Call, at: int) -> None:
        # The model decides anew, so whatever a tool does from here on is another call.
        self._has_asked_anew = True
        self.step_list.model_calls.append((len(self.step_list.steps), call))
        self._failing = {key: one for key, one in self._failing.items() if key == call.key}
        if call.has_failed:
            self._add_failure(call, at)
            return
        self._failing.pop(call.key, None)
        if call.text.strip():
            self.add_step("thought", content=call.text)
            self.step_list.last_thought = call.text

    def _add_tool_call(self, call: Call) -> None:
        if call.key in self._failing and call.key in self._tool_calls:
            step = self._tool_calls[call.key]
            step["attempts"] = step.get("attempts", 1) + 1
        else:
            tool_call = self.add_step("tool_call", tool=_tool(call), input=call.input or {})
            self._tool_calls[call.key] = tool_call

    def _add_tool_end(self, call: Call, at: int) -> None:
        if call.is_cancelled and self._fatal:
            return  # because of another call's error
        if call.has_failed:
            self._add_failure(call, at)
            return
        self._failing.pop(call.key, None)
        step = self.add_step("observation", content=call.text, tool=_tool(call))
        self._add_end(call, step)
        _set_latency(step, call)

    def _add_end(self, call: Call, step: Step) -> None:
        if self._has_asked_anew or call.tool_call_id is None:
            self.last_ends = []
        self._has_asked_anew = False
        if not call.is_rejected:  # it did not run
            self.last_ends.append(step)

    def _add_failure(self, call: Call, at: int) -> None:
        failure = self._failing.get(call.key)
        if failure is None:
            failure = _Failure(self.add_step("error_recovery", content=call.error), at)
            if call.kind in ("tool", "retriever") and call.name:
                failure.step["tool"] = _tool(call)
                self._add_end(call, failure.step)
            self._failures.append(failure)
        else:
            failure.step["attempts"] = 1 + failure.step.get("attempts", 1)
            failure.step["content"] = call.error
            failure.position = at
        self._failing[call.key] = failure
        _set_latency(failure.step, call)

    def add_step(self, kind: str, **fields: Any) -> Step:
        """Add a step of a kind, and return it."""
        step = {"step_id": len(self.step_list.steps), "type": kind, **fields}
        self.step_list.steps.append(step)
        return step

    def close_failures(self, last_start: int) -> None:
        """Turn the failures that nothing recovered from into observations.

        Args:
            last_start: The position of the last start in the timeline.
        """
        for failure in self._failures:
            is_fatal = self._fatal and failure.step["content"] == self._fatal
            if failure.position >= last_start or is_fatal:
                failure.step["type"] = "observation"
                self.step_list.unresolved_error = True


def _set_latency(step: Step, call: Call) -> None:
    if call.latency_ms is not None:
        step["latency_ms"] = round(call.latency_ms, 3)


def _tool(call: Call) -> Step:
    tool = {"name": call.name or call.kind}
    if call.mcp_server:
        tool["mcp_server"] = call.mcp_server
    return tool
