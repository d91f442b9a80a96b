"""The path of a run: the calls that decide, in order, with what they were given and gave.

Two runs took the same plan if their calls have the same tools and words, in the same order.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kp_langchain.calibration.planted_instructions import find_planted
from kp_langchain.calibration.tool_calls import TracedCall, made_calls
from kp_langchain.recall.deciding_calls import VALUE, deciding_calls, holds, input_texts
from kp_langchain.recall.prompt_text import error_name
from kp_langchain.redaction.spans import PLACEHOLDER
from kp_langchain.store.rows import trace_key
from kp_langchain.values import plain

if TYPE_CHECKING:
    from kp_langchain.schema import Metadata, ReasoningTrace

_READ_CHARS, _OUTPUT_CHARS = 2_000, 4_000
_MOST_ERRORS = 20
_WORD = re.compile(r"[^\W\d_]\w*|[<>=!]+")


@dataclass(frozen=True, slots=True)
class PathCall:
    """A call that decides.

    Attributes:
        tool: The name of its tool.
        words: The words of its input, without values, in lower case; signs of comparison count as
            words. A text of one word is a value, of which a minus alone counts.
        inputs: Its input.
        output: What it returned.
    """

    tool: str
    words: frozenset[str]
    inputs: Mapping[str, Any]
    output: str


@dataclass(frozen=True, slots=True)
class RunPath:
    """A run, as plans are compared.

    Attributes:
        trace_id: The id of its trace, as the store has it.
        task: Its task; runs with an equal task are repeats of it.
        objective: The task in words.
        success: Whether it succeeded: by a verdict, or else as it ended.
        is_stated: Whether a verdict says so.
        confidence: How sure that is, 0 to 1: 1 if a verdict says so, else that of its outcome.
        may_teach: Whether it may be a member: a kept success without planted instructions.
        namespace: Whose it is; None if anybody's.
        calls: The calls that decide.
        tools: The tools that it called at all, in their order.
        errors: The tools whose calls failed, each with the name of the error; "" if unknown.
        duration_ms: How long the calls that decide took together; None if unknown, or 0.
        metadata: The metadata of its trace.
    """

    trace_id: str
    task: str
    objective: str
    success: bool
    is_stated: bool
    confidence: float
    may_teach: bool
    namespace: str | None
    calls: tuple[PathCall, ...]
    tools: tuple[str, ...]
    errors: tuple[tuple[str, str], ...]
    duration_ms: float | None
    metadata: Metadata

    @property
    def plan(self) -> tuple[tuple[str, ...], tuple[frozenset[str], ...]]:
        """The tools of its calls, and the words of each."""
        return self.path, tuple(call.words for call in self.calls)

    @property
    def path(self) -> tuple[str, ...]:
        """The tools of its calls."""
        return tuple(call.tool for call in self.calls)


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
    calls = made_calls(trace.steps)
    decisions = deciding_calls(trace)
    deciding = [calls[one.position] for one in decisions]
    given = {value.casefold() for one in decisions for value in one.gives}
    objective = trace.task.objective[:_READ_CHARS]
    ended_well = trace.metadata.success if success is None else success
    durations = [
        one.output.latency_ms
        for one in deciding
        if one.output is not None and one.output.latency_ms is not None
    ]
    return RunPath(
        trace_id=trace_key(trace.id),
        task=task,
        objective=objective,
        success=ended_well,
        is_stated=success is not None,
        confidence=trace.outcome.confidence if success is None else 1.0,
        may_teach=ended_well and is_kept and bool(deciding) and not find_planted(trace),
        namespace=namespace,
        calls=tuple(
            PathCall(
                tool=one.tool_name,
                words=_words(one, objective.casefold(), given),
                inputs=plain(one.call.input if one.call else {}, _READ_CHARS) or {},
                output=one.output_text[:_OUTPUT_CHARS],
            )
            for one in deciding
        ),
        tools=tuple(dict.fromkeys(one.tool_name for one in calls)),
        errors=tuple(
            (one.tool_name, error_name(one.output_text)) for one in calls if one.has_failed
        )[:_MOST_ERRORS],
        duration_ms=sum(durations) or None,
        metadata=trace.metadata,
    )


def _words(call: TracedCall, task: str, given: set[str]) -> frozenset[str]:
    """Return the words of an input, but those of a text that is from the task or an output."""
    words: set[str] = set()
    for text in input_texts(call):
        folded = text[:_READ_CHARS].casefold()
        if folded in given or holds(task, folded.strip()):
            continue
        if len(folded.split()) > 1:
            shown = PLACEHOLDER.sub(" ", text[:_READ_CHARS]).casefold()
            words.update(_WORD.findall(VALUE.sub(" ", shown)))
        elif folded[:1] == "-":
            words.add("-")
    return frozenset(words)
