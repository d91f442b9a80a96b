"""The path of a run: the calls that decide, in order, with what they were given and gave.

Calls of one tool that follow each other, and whose inputs have the same words, are one step: the
same for another value. Two runs took the same plan if their steps have the same tools and words.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from kp_langchain.calibration.planted_instructions import find_planted
from kp_langchain.calibration.tool_calls import TracedCall, calls_of
from kp_langchain.recall.deciding_calls import VALUE, deciding_calls, holds, input_texts
from kp_langchain.recall.prompt_text import error_name
from kp_langchain.redaction.spans import PLACEHOLDER
from kp_langchain.store.rows import trace_key
from kp_langchain.values import plain

if TYPE_CHECKING:
    from kp_langchain.schema import Metadata, ReasoningTrace

_READ_CHARS, _OUTPUT_CHARS = 2_000, 4_000
_WORD = re.compile(r"[^\W\d_]\w*|[<>=!]+")


@dataclass(frozen=True, slots=True)
class PathCall:
    """A call that decides.

    Attributes:
        tool: The name of its tool.
        words: The words of its input, without values, in lower case and in their order; signs of
            comparison count as words.
        inputs: Its input.
        output: What it returned, in lower case.
        is_at_once: Whether it began before the call before it had returned.
    """

    tool: str
    words: tuple[str, ...]
    inputs: Mapping[str, Any]
    output: str
    is_at_once: bool


Step = Sequence[PathCall]
"""The calls of one step."""


@dataclass(frozen=True)
class RunPath:
    """A run, as plans are compared.

    Attributes:
        trace_id: The id of its trace, as the store has it.
        task: Its task; runs with an equal task are repeats of it.
        objective: The task in words.
        success: Whether it succeeded: by a verdict, or else as it ended.
        may_teach: Whether it may be a member of a pattern: a kept success without planted
            instructions.
        namespace: Whose it is; None if anybody's.
        calls: The calls that decide.
        tools: The tools that it called at all.
        errors: The tools whose calls failed, each with the class of its error; "" if unknown.
        duration_ms: The sum of the durations of the calls that decide; None if none is known, or
            all are 0, as in runs that were imported.
        ends_with_output: Whether the output of its last call is its answer.
        metadata: The metadata of its trace.
    """

    trace_id: str
    task: str
    objective: str
    success: bool
    may_teach: bool
    namespace: str | None
    calls: tuple[PathCall, ...]
    tools: frozenset[str]
    errors: tuple[tuple[str, str], ...]
    duration_ms: float | None
    ends_with_output: bool
    metadata: Metadata

    @cached_property
    def steps(self) -> list[list[PathCall]]:
        """Its calls, those of one tool with the same words together that follow each other."""
        return _merged(self.calls, by_words=True)

    @cached_property
    def steps_by_tool(self) -> list[list[PathCall]]:
        """Its calls, those of one tool together that follow each other."""
        return _merged(self.calls, by_words=False)

    @cached_property
    def plan(self) -> tuple[tuple[str, frozenset[str]], ...]:
        """Tool and words of each step."""
        return tuple((step[0].tool, frozenset(step[0].words)) for step in self.steps)

    @cached_property
    def path(self) -> tuple[str, ...]:
        """The names of the tools, repeats counted once."""
        return tuple(step[0].tool for step in self.steps_by_tool)


def run_path(
    trace: ReasoningTrace,
    task: str,
    *,
    success: bool | None = None,
    is_kept: bool = True,
    namespace: str | None = None,
) -> RunPath:
    """Return the path of a run.

    Args:
        trace: Its redacted trace.
        task: What is equal for runs of its task.
        success: What a verdict says; None without one: how the run ended counts.
        is_kept: Whether it is kept, and not withheld. Only then may it be a member of a pattern.
        namespace: Whose it is; None if anybody's.
    """
    calls = [one for one in calls_of(trace.steps) if one.call is not None]
    deciding = deciding_calls(trace)
    given = {value.casefold() for one in deciding for value in one.gives}
    objective = trace.task.objective[:_READ_CHARS]
    positions = [one.position for one in deciding]
    ended_well = trace.metadata.success if success is None else success
    durations = [
        one.output.latency_ms
        for one in (calls[at] for at in positions)
        if one.output is not None and one.output.latency_ms is not None
    ]
    return RunPath(
        trace_id=trace_key(trace.id),
        task=task,
        objective=objective,
        success=ended_well,
        may_teach=ended_well and is_kept and bool(deciding) and not find_planted(trace),
        namespace=namespace,
        calls=tuple(
            PathCall(
                tool=calls[at].tool_name,
                words=_words(calls[at], objective.casefold(), given),
                inputs=_inputs(calls[at]),
                output=calls[at].output_text[:_OUTPUT_CHARS].casefold(),
                is_at_once=before is not None and _is_at_once(calls[before], calls[at]),
            )
            for before, at in pairwise([None, *positions])
            if at is not None
        ),
        tools=frozenset(one.tool_name for one in calls),
        errors=tuple(
            (one.tool_name, error_name(one.output_text)) for one in calls if one.has_failed
        ),
        duration_ms=sum(durations) or None,
        ends_with_output=bool(deciding) and deciding[-1].is_answer,
        metadata=trace.metadata,
    )


def _merged(calls: Sequence[PathCall], *, by_words: bool) -> list[list[PathCall]]:
    steps: list[list[PathCall]] = []
    for call in calls:
        last = steps[-1][-1] if steps else None
        is_same = last is not None and last.tool == call.tool
        if not is_same or (by_words and set(steps[-1][-1].words) != set(call.words)):
            steps.append([])
        steps[-1].append(call)
    return steps


def _words(call: TracedCall, task: str, given: set[str]) -> tuple[str, ...]:
    """Return the words of an input, but those of a text that is from the task or an output."""
    words: dict[str, None] = {}
    for text in input_texts(call):
        folded = text[:_READ_CHARS].casefold()
        if folded not in given and not holds(task, folded.strip()):
            shown = PLACEHOLDER.sub(" ", text[:_READ_CHARS]).casefold()
            words |= dict.fromkeys(_WORD.findall(VALUE.sub(" ", shown)))
    return tuple(words)


def _inputs(call: TracedCall) -> dict[str, Any]:
    inputs = call.call and call.call.input
    copy: dict[str, Any] = plain(inputs or {}, _READ_CHARS)
    return copy


def _is_at_once(before: TracedCall, call: TracedCall) -> bool:
    """Return whether a call began before the one before it had returned."""
    if before.output is None or call.call is None:
        return False
    return call.call.step_id < before.output.step_id
