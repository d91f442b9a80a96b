"""From the calls of a run to the steps of a trace.

A model's answer is a thought and stands where the model was asked. A tool or retriever is a
tool_call where it starts and an observation where it ends. A failure is an error_recovery if the
run went on to do something afterwards, else an observation, because nothing recovered. The
attempts of one call are one step with their number.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kp_langchain.recording.run_record import Call, Mark

Draft = dict[str, Any]

# Tools that the classic AgentExecutor invents to tell its model of a mistake.
_MISTAKES = frozenset({"_Exception", "invalid_tool"})


@dataclass
class StepList:
    """The steps of one run in wire form, before redaction.

    Args:
        steps: The steps, numbered from 0.
        unresolved_error: The run did nothing after its last error, or after a human's refusal.
        stopped: The model's last answer was refused, withheld or cut off, or waits for an
            approval, and nothing followed.
        last_thought: What the model said last.
        ends_on_action: The last thing it did was to use a tool, and nobody refused or stopped that.
    """

    steps: list[Draft] = field(default_factory=list)
    unresolved_error: bool = False
    stopped: bool = False
    last_thought: str = ""
    ends_on_action: bool = False


@dataclass
class _Failure:
    step: Draft
    position: int  # of the last attempt, in the timeline


def build_steps(timeline: list[tuple[Mark, Call]], *, fatal: str, answer: str) -> StepList:
    """Turn a run's timeline into steps.

    Args:
        timeline: Starts, ends and errors in the order in which they came.
        fatal: The error that ended the run; empty if none did. Nothing recovers from it, though
            what ran beside it may have gone on.
        answer: The run's answer, for a run that shows no other step.
    """
    step_list = StepList()
    called: dict[object, Draft] = {}
    failing: dict[object, _Failure] = {}
    failures: list[_Failure] = []
    last_start = max(
        (at for at, (mark, call) in enumerate(timeline) if mark == "start" and not call.void),
        default=-1,
    )

    def add(kind: str, **fields: Any) -> Draft:
        step = {"step_id": len(step_list.steps), "type": kind, **fields}
        step_list.steps.append(step)
        return step

    def fail(call: Call, at: int, attempts: int = 1) -> None:
        earlier = failing.get(call.key)
        if call.name in _MISTAKES and failures and failures[-1].step is step_list.steps[-1]:
            failures[-1].position = at  # what was told of the failure that is recorded already
            return
        if earlier is None:
            earlier = _Failure(add("error_recovery", content=call.error), at)
            if call.kind in ("tool", "retriever") and call.name and call.name not in _MISTAKES:
                earlier.step["tool"] = _tool(call)
            failures.append(earlier)
        else:
            attempts += earlier.step.get("attempts", 1)
            earlier.step["content"] = call.error
            earlier.position = at
        failing[call.key] = earlier
        if attempts > 1:
            earlier.step["attempts"] = attempts
        if call.latency_ms is not None:
            earlier.step["latency_ms"] = round(call.latency_ms, 3)

    last: Call | None = None
    for at, (mark, call) in enumerate(timeline):
        if call.void:
            continue
        if call.kind == "chain":
            if mark == "error":
                fail(call, at)
            continue  # a start says that the run went on
        last = call
        if call.stopped or call.kind == "model" or mark == "end":
            step_list.stopped = call.stopped  # tools that nobody ran do not make good for it
        if call.kind == "model":
            # The model decides anew: what a tool does from here on is another call.
            failing = {key: one for key, one in failing.items() if key == call.key}
            if call.failed:
                fail(call, at, attempts=1 + call.retries)
                continue
            if call.retries:
                fail(call, at, attempts=call.retries)
                failing[call.key].position = -1  # its own answer came after it
            failing.pop(call.key, None)
            if call.text.strip():
                add("thought", content=call.text)
                step_list.last_thought = call.text
        elif mark == "start":
            if call.key in failing and call.key in called:
                step = called[call.key]
                step["attempts"] = step.get("attempts", 1) + 1
            elif call.name not in _MISTAKES:
                called[call.key] = add("tool_call", tool=_tool(call), input=call.input or {})
        elif call.cancelled and fatal:
            continue  # another call's error cancelled it
        elif call.failed or call.name in _MISTAKES:
            call.error = call.error or call.text
            fail(call, at)
        else:
            failing.pop(call.key, None)
            step = add("observation", content=call.text, tool=_tool(call))
            if call.latency_ms is not None:
                step["latency_ms"] = round(call.latency_ms, 3)

    if not step_list.steps and any(call.kind == "model" and not call.void for _, call in timeline):
        add("thought", content=answer)
    for failure in failures:
        if failure.position >= last_start or (fatal and failure.step["content"] == fatal):
            failure.step["type"] = "observation"
            step_list.unresolved_error = True
    answering = [
        call
        for _, call in timeline
        if answer.strip() and call.kind == "model" and not call.void and answer in call.text
    ]
    if answering:  # a log, a title or the like may follow the answer
        step_list.stopped = answering[-1].stopped
    if last is not None and last.kind == "tool":
        step_list.ends_on_action = not (last.rejected or last.cancelled)
        step_list.unresolved_error = step_list.unresolved_error or last.rejected
    return step_list


def _tool(call: Call) -> Draft:
    tool = {"name": call.name or call.kind}
    if call.mcp_server:
        tool["mcp_server"] = call.mcp_server
    return tool
