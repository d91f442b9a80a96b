"""From the calls of a run to the steps of a trace, and to the trace.

A model's answer is a thought and stands where the model was asked. A tool or retriever is a
`tool_call` where it starts and an `observation` where it ends. A failure is an `error_recovery` if
the run did something afterwards, else an `observation`, because nothing recovered. The attempts of
one call are one step with their number.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from kp_langchain.calibration.failed_outputs import output_failed
from kp_langchain.recording.calls import Call, Mark, Timeline
from kp_langchain.schema import ReasoningTrace

if TYPE_CHECKING:
    from kp_langchain.config import DomainPolicy
    from kp_langchain.recording.redactor import Redactor
    from kp_langchain.recording.run_record import RunRecord
    from kp_langchain.verdict import Verdict

Step = dict[str, Any]
"""A step in wire form, before redaction."""

# Tools that the classic AgentExecutor invents to tell its model of a mistake.
_MISTAKES = frozenset({"_Exception", "invalid_tool"})
# What the frameworks answer in the agent's place when its steps run out.
_OUT_OF_STEPS = (
    "Agent stopped due to iteration limit or time limit.",
    "Agent stopped due to max iterations.",
    "Sorry, need more steps to process this request.",
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
    """

    steps: list[Step] = field(default_factory=list)
    unresolved_error: bool = False
    last_call_failed: bool = False
    is_incomplete: bool = False
    last_thought: str = ""
    ends_on_action: bool = False

    def looks_successful(self, answer: str, *, ended_well: bool, is_checked: bool = False) -> bool:
        """Return whether the run counts as a success if nobody judged it.

        Args:
            answer: The final answer. A run that ends on an action needs none: an agent that buys,
                sends or submits something is done with that.
            ended_well: No error and no step limit ended the run, and its last answer was neither
                refused nor cut off.
            is_checked: The answer is a structure that was checked after the last tool call.
        """
        text = answer.strip()
        complete = (bool(text) or self.ends_on_action) and text not in _OUT_OF_STEPS
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
    builder.settle_failures(max((at for at, mark, _ in marks if mark == "start"), default=-1))
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
    places: dict[str, int] = {}  # in `marks`, by the ids of calls that are to be made again
    for at, (mark, call) in enumerate(timeline):
        place = places.pop(call.tool_call_id or "", len(marks)) if mark == "start" else len(marks)
        marks[place : place + 1] = [(at, mark, call)]
        if call.is_void and mark == "start" and call.tool_call_id is not None:
            places[call.tool_call_id] = place
    return [(at, mark, call) for at, mark, call in marks if not call.is_void]


@dataclass
class _Failure:
    """The failed attempts of one call.

    Attributes:
        step: Their step.
        position: The last attempt's position in the timeline; -1 if the call then succeeded.
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
        self._origin: Step = {}  # what each step says of where it comes from
        self._tool_calls: dict[object, Step] = {}  # by the calls' keys
        self._failing: dict[object, _Failure] = {}  # calls that may be tried again, by their keys
        self._failures: list[_Failure] = []

    def add(self, at: int, mark: Mark, call: Call) -> None:
        """Add the mark at position `at` of the timeline."""
        self._origin = {"remote": True} if call.is_remote else {}
        if call.kind == "chain":
            if mark == "error":
                self._add_failure(call, at, call.error)
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
        self._failing = {key: one for key, one in self._failing.items() if key == call.key}
        if call.has_failed:
            self._add_failure(call, at, call.error, attempts=1 + call.retries)
            return
        if call.retries:
            self._add_failure(call, at, call.error, attempts=call.retries)
            self._failing[call.key].position = -1
        self._failing.pop(call.key, None)
        if call.text.strip():
            self.add_step("thought", content=call.text)
            self.step_list.last_thought = call.text

    def _add_tool_call(self, call: Call) -> None:
        if call.key in self._failing and call.key in self._tool_calls:
            step = self._tool_calls[call.key]
            step["attempts"] = step.get("attempts", 1) + 1
        elif call.name not in _MISTAKES:
            tool_call = self.add_step("tool_call", tool=_tool(call), input=call.input or {})
            self._tool_calls[call.key] = tool_call

    def _add_tool_end(self, call: Call, at: int) -> None:
        if call.is_cancelled and self._fatal:
            return  # because of another call's error
        if call.has_failed or call.name in _MISTAKES:
            self._add_failure(call, at, call.error or call.text)
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

    def _add_failure(self, call: Call, at: int, content: str, attempts: int = 1) -> None:
        failure = self._failing.get(call.key)
        last = self._failures[-1] if self._failures else None
        if call.name in _MISTAKES and last and last.step is self.step_list.steps[-1]:
            last.position = at  # this call only reports a failure that already has a step
            return
        if failure is None:
            failure = _Failure(self.add_step("error_recovery", content=content), at)
            if call.kind in ("tool", "retriever") and call.name and call.name not in _MISTAKES:
                failure.step["tool"] = _tool(call)
                self._add_end(call, failure.step)
            self._failures.append(failure)
        else:
            attempts += failure.step.get("attempts", 1)
            failure.step["content"] = content
            failure.position = at
        self._failing[call.key] = failure
        if attempts > 1:
            failure.step["attempts"] = attempts
        _set_latency(failure.step, call)

    def add_step(self, kind: str, **fields: Any) -> Step:
        """Add a step of a kind, and return it."""
        step = {"step_id": len(self.step_list.steps), "type": kind, **fields, **self._origin}
        self.step_list.steps.append(step)
        return step

    def settle_failures(self, last_start: int) -> None:
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


def build_trace(
    record: RunRecord,
    step_list: StepList,
    *,
    domain: str,
    agent_id: str | None,
    policy: DomainPolicy,
    verdict: Verdict,
    answer: str,
    redaction: Redactor,
) -> ReasoningTrace:
    """Return the trace of a run; every text is redacted.

    Args:
        record: The run.
        step_list: Its steps.
        domain: Its domain, redacted.
        agent_id: `kp:agent:<id>`, checked with the handler's arguments.
        policy: The policy of the domain.
        verdict: Success and confidence, both stated.
        answer: The final answer.
        redaction: Redacts the texts.
    """
    level = policy.privacy_level
    objective = record.objective or record.fallback_objective or record.name or "(not stated)"
    return ReasoningTrace.model_validate(
        {
            "metadata": {
                "created_at": record.started_at,
                "agent_id": agent_id,
                "framework": "langgraph" if record.is_langgraph else "langchain",
                "task_domain": domain,
                "success": verdict.success,
                "visibility": policy.visibility,
                "privacy_level": level,
            },
            "task": {"objective": redaction.task(objective, level) or "(removed)"},
            "steps": [redaction.step(step, level) for step in step_list.steps],
            "outcome": {
                "result_summary": redaction.text(record.error or answer, level),
                "confidence": verdict.confidence,
            },
        }
    )
